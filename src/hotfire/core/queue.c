/* A consume queue's entries in memory: claimed in order, made visible in order, selected for a pull.
   The maps belong to store/consumequeue.py, which attaches one window per file and is asked to grow the queue. */
#include "store.h"

#define CHECKED_AT_ONCE 512 /* records copied, then checked */

uint8_t *hf_queue_entry(hf_queue *q, int64_t index) {
    for (int i = q->windows_count - 1; i >= 0; i--) {
        hf_window *w = &q->windows[i];
        if (index >= w->base && index < w->base + w->count)
            return (uint8_t *)w->view.buf + (index - w->base) * HF_ENTRY_BYTES;
    }
    return NULL;
}

/* Whether the sorted codes hold this one. */
static int holds(const int32_t *codes, int count, int32_t code) {
    int low = 0;
    while (low < count) {
        int middle = low + (count - low) / 2;
        if (codes[middle] == code) return 1;
        if (codes[middle] < code) low = middle + 1;
        else count = middle;
    }
    return 0;
}

static int compare_codes(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int32_t *hf_codes_sorted(PyObject *codes, int *count) {
    *count = (int)PyTuple_GET_SIZE(codes);
    int32_t *sorted = PyMem_Malloc((size_t)(*count ? *count : 1) * sizeof *sorted);
    if (!sorted) { PyErr_NoMemory(); return NULL; }
    for (int i = 0; i < *count; i++) {
        sorted[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(codes, i));
        if (PyErr_Occurred()) { PyMem_Free(sorted); return NULL; }
    }
    qsort(sorted, (size_t)*count, sizeof *sorted, compare_codes);
    return sorted;
}

void hf_queue_select(hf_queue *q, int64_t from, const hf_limits *limits, const int32_t *codes, int codes_count,
                     hf_piece *pieces, hf_selection *out) {
    *out = (hf_selection){0, from, 0, 0};
    int64_t stop = q->max;
    if (stop - from > limits->scan_max) stop = from + limits->scan_max;
    for (int64_t i = from; i < stop; i++) {
        const uint8_t *entry = hf_queue_entry(q, i);
        if (!entry) { out->missing = 1; return; }
        int64_t physical = (int64_t)get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (size == HF_FILLER_SIZE || size <= 0) { out->next = i + 1; continue; }
        int in_memory = physical >= limits->memory_from;
        if (out->count) { /* the batch is judged full before each message but never before the first */
            int64_t bytes = out->bytes + size;
            if (out->count >= limits->count_max || bytes > limits->bytes_max) return;
            if (bytes > (in_memory ? limits->memory_bytes_max : limits->disk_bytes_max)) return;
            if (out->count >= (in_memory ? limits->memory_count_max : limits->disk_count_max)) return;
        }
        out->next = i + 1;
        if (codes_count >= 0) {
            int32_t code = (int32_t)(int64_t)get64(entry + 12);
            if (!holds(codes, codes_count, code)) continue;
        }
        pieces[out->count++] = (hf_piece){physical, i, size};
        out->bytes += size;
    }
}

/* What an entry is to hold in place of its tags; 0 with an exception when that could not be found out. */
int hf_queue_extend(hf_queue *q, int64_t tags, int64_t timestamp, int64_t physical, int32_t size, int64_t *out) {
    *out = tags;
    if (!q->extend || q->extend == Py_None) return 1;
    PyObject *extended = PyObject_CallFunction(q->extend, "LLLi", (long long)tags, (long long)timestamp, (long long)physical, size);
    if (!extended) return 0;
    *out = PyLong_AsLongLong(extended);
    Py_DECREF(extended);
    return *out != -1 || !PyErr_Occurred();
}

/* ---- Python face ---- */
static int queue_init(hf_queue *q, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"key", "grow", NULL};
    PyObject *key, *grow = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &key, &grow)) return -1;
    Py_INCREF(key); Py_XSETREF(q->key, key);
    Py_INCREF(grow); Py_XSETREF(q->grow, grow);
    return 0;
}

static void release_windows(hf_queue *q) {
    for (int i = 0; i < q->windows_count; i++) PyBuffer_Release(&q->windows[i].view);
    q->windows_count = 0;
}

static int queue_traverse(hf_queue *q, visitproc visit, void *arg) { Py_VISIT(q->key); Py_VISIT(q->grow); Py_VISIT(q->extend); return 0; }
static int queue_clear(hf_queue *q) { release_windows(q); Py_CLEAR(q->key); Py_CLEAR(q->grow); Py_CLEAR(q->extend); return 0; }
static void queue_dealloc(hf_queue *q) {
    PyObject_GC_UnTrack(q);
    queue_clear(q);
    PyMem_Free(q->windows);
    Py_TYPE(q)->tp_free((PyObject *)q);
}

static PyObject *queue_attach(hf_queue *q, PyObject *args) {
    long long base;
    PyObject *buffer;
    if (!PyArg_ParseTuple(args, "LO", &base, &buffer)) return NULL;
    if (q->windows_count == q->windows_room) {
        int room = q->windows_room ? q->windows_room * 2 : 1;
        hf_window *grown = PyMem_Realloc(q->windows, (size_t)room * sizeof *grown);
        if (!grown) return PyErr_NoMemory();
        q->windows = grown;
        q->windows_room = room;
    }
    hf_window w = {.base = base};
    if (PyObject_GetBuffer(buffer, &w.view, PyBUF_WRITABLE)) return NULL;
    w.count = w.view.len / HF_ENTRY_BYTES;
    q->windows[q->windows_count++] = w;
    Py_RETURN_NONE;
}

static PyObject *queue_detach(hf_queue *q, PyObject *arg) {
    long long base = PyLong_AsLongLong(arg);
    if (base == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < q->windows_count; i++) {
        if (q->windows[i].base != base) continue;
        PyBuffer_Release(&q->windows[i].view);
        memmove(&q->windows[i], &q->windows[i + 1], (size_t)(q->windows_count - i - 1) * sizeof(hf_window));
        q->windows_count--;
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *queue_close(hf_queue *q, PyObject *ignored) {
    (void)ignored;
    release_windows(q);
    Py_RETURN_NONE;
}

static PyObject *queue_claim(hf_queue *q, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromLongLong(q->next++);
}

static PyObject *queue_entry(hf_queue *q, PyObject *arg) {
    long long index = PyLong_AsLongLong(arg);
    if (index == -1 && PyErr_Occurred()) return NULL;
    uint8_t *e = hf_queue_entry(q, index);
    if (!e) Py_RETURN_NONE;
    return Py_BuildValue("(LiL)", (long long)get64(e), (int)get32(e + 8), (long long)get64(e + 12));
}

static PyObject *queue_put(hf_queue *q, PyObject *args) {
    long long index, physical, tags;
    int size;
    if (!PyArg_ParseTuple(args, "LLiL", &index, &physical, &size, &tags)) return NULL;
    uint8_t *e = hf_queue_entry(q, index);
    if (!e) return PyErr_Format(PyExc_IndexError, "queue entry %lld has no attached file", index);
    put64(put32(put64(e, (uint64_t)physical), (uint32_t)size), (uint64_t)tags);
    Py_RETURN_NONE;
}

/* Write the entry, asking for a file if there is none yet, and make it visible. */
static PyObject *queue_show(hf_queue *q, PyObject *args) {
    long long index = PyTuple_GET_SIZE(args) ? PyLong_AsLongLong(PyTuple_GET_ITEM(args, 0)) : 0;
    if (index == -1 && PyErr_Occurred()) return NULL;
    if (!hf_queue_entry(q, index) && q->grow && q->grow != Py_None) {
        PyObject *grown = PyObject_CallFunction(q->grow, "L", index);
        if (!grown) return NULL;
        Py_DECREF(grown);
    }
    long long physical, tags, timestamp;
    int size;
    int64_t extended;
    if (!PyArg_ParseTuple(args, "LLiLL", &index, &physical, &size, &tags, &timestamp)) return NULL;
    if (!hf_queue_extend(q, tags, timestamp, physical, size, &extended)) return NULL;
    uint8_t *e = hf_queue_entry(q, index);
    if (!e) return PyErr_Format(PyExc_IndexError, "queue entry %lld has no attached file", index);
    put64(put32(put64(e, (uint64_t)physical), (uint32_t)size), (uint64_t)extended);
    q->max = index + 1;
    Py_RETURN_NONE;
}

static PyObject *list_of(const hf_piece *pieces, int count) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *piece = Py_BuildValue("(LiL)", (long long)pieces[i].physical, pieces[i].size, (long long)pieces[i].index);
        if (!piece) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, piece);
    }
    return list;
}

/* select(from, count_max, bytes_max, memory_from, codes|None, limits) -> (pieces, next, bytes, missing)
   limits: (memory_count_max, disk_count_max, memory_bytes_max, disk_bytes_max, scan_max) */
static PyObject *queue_select(hf_queue *q, PyObject *args) {
    long long from;
    hf_limits l;
    long long bytes_max, memory_from, memory_bytes, disk_bytes;
    PyObject *codes;
    if (!PyArg_ParseTuple(args, "LiLLO(iiLLi)", &from, &l.count_max, &bytes_max, &memory_from, &codes, &l.memory_count_max,
                          &l.disk_count_max, &memory_bytes, &disk_bytes, &l.scan_max)) return NULL;
    l.bytes_max = bytes_max; l.memory_from = memory_from; l.memory_bytes_max = memory_bytes; l.disk_bytes_max = disk_bytes;
    if (l.count_max > HF_PIECES_MAX) l.count_max = HF_PIECES_MAX;
    int32_t *wanted = NULL;
    int wanted_count = -1;
    if (codes != Py_None) {
        if (!PyTuple_Check(codes)) return PyErr_Format(PyExc_TypeError, "codes: a tuple of tag hashes or None");
        if (!(wanted = hf_codes_sorted(codes, &wanted_count))) return NULL;
    }
    hf_piece *pieces = PyMem_Malloc(HF_PIECES_MAX * sizeof *pieces);
    if (!pieces) { PyMem_Free(wanted); return PyErr_NoMemory(); }
    hf_selection s;
    hf_queue_select(q, from, &l, wanted, wanted_count, pieces, &s);
    PyMem_Free(wanted);
    PyObject *list = list_of(pieces, s.count);
    PyMem_Free(pieces);
    if (!list) return NULL;
    return Py_BuildValue("(NLLO)", list, (long long)s.next, (long long)s.bytes, s.missing ? Py_True : Py_False);
}

/* Whether all the pieces lie in the log, as far as it is written; what is asked for in bulk is never looked at one by one in Python. */
static int lie_in_log(const hf_journal *j, int64_t lowest, const hf_piece *pieces, int count) {
    for (int i = 0; i < count; i++)
        if (pieces[i].size <= 0 || pieces[i].physical < lowest || pieces[i].physical > j->written - pieces[i].size) return 0;
    return 1;
}

/* The records of the pieces, checked while they are still in the processor's cache: how many, before the first that is cold, harmed or not there. */
static int copy_sound(hf_journal *j, const hf_piece *pieces, int count, hf_slice topic, int32_t queue_id, uint8_t *out) {
    for (int done = 0; done < count; done += CHECKED_AT_ONCE) {
        int some = count - done < CHECKED_AT_ONCE ? count - done : CHECKED_AT_ONCE;
        if (hf_journal_fetch(j, pieces + done, some, out)) return done;
        for (int i = done; i < done + some; out += pieces[i++].size)
            if (!hf_record_sound(out, &pieces[i], topic, queue_id, j->summed_from)) return i;
    }
    return count;
}

static PyObject *bulk_of(hf_queue *q, hf_journal *j, int64_t from, const hf_limits *l, const int32_t *codes, int codes_count, int64_t lowest,
                         hf_slice topic, int32_t queue_id, hf_piece *pieces) {
    hf_selection s;
    hf_queue_select(q, from, l, codes, codes_count, pieces, &s);
    if (s.missing || !s.count || !lie_in_log(j, lowest, pieces, s.count)) Py_RETURN_NONE;
    PyObject *data = PyBytes_FromStringAndSize(NULL, s.bytes);
    if (!data) return NULL;
    if (copy_sound(j, pieces, s.count, topic, queue_id, (uint8_t *)PyBytes_AS_STRING(data)) == s.count)
        return Py_BuildValue("(NiLL)", data, s.count, (long long)s.next, (long long)pieces[s.count - 1].physical);
    Py_DECREF(data);
    Py_RETURN_NONE;
}

/* bulk(journal, lowest, topic, queue_id, from, count_max, bytes_max, memory_from, codes|None, limits) ->
   (records, how many, next, log offset of the last), or None when some are cold, harmed or not there: then whoever asked
   looks at them one by one. The same as select, fetch and sound_records, without an object for each record. */
static PyObject *queue_bulk(hf_queue *q, PyObject *args) {
    hf_journal *journal;
    long long lowest, from, bytes_max, memory_from, memory_bytes, disk_bytes;
    Py_buffer topic;
    int queue_id;
    hf_limits l;
    PyObject *codes, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!Ly*iLiLLO(iiLLi)", &hf_journal_type, &journal, &lowest, &topic, &queue_id, &from, &l.count_max, &bytes_max,
                          &memory_from, &codes, &l.memory_count_max, &l.disk_count_max, &memory_bytes, &disk_bytes, &l.scan_max)) return NULL;
    l.bytes_max = bytes_max; l.memory_from = memory_from; l.memory_bytes_max = memory_bytes; l.disk_bytes_max = disk_bytes;
    if (l.count_max > HF_PIECES_MAX) l.count_max = HF_PIECES_MAX;
    int32_t *wanted = NULL;
    int wanted_count = -1;
    hf_piece *pieces = PyMem_Malloc(HF_PIECES_MAX * sizeof *pieces);
    if (!pieces) PyErr_NoMemory();
    else if (codes != Py_None && !PyTuple_Check(codes)) PyErr_SetString(PyExc_TypeError, "codes: a tuple of tag hashes or None");
    else if (codes == Py_None || (wanted = hf_codes_sorted(codes, &wanted_count)))
        result = bulk_of(q, journal, from, &l, wanted, wanted_count, lowest, (hf_slice){topic.buf, (uint32_t)topic.len}, queue_id, pieces);
    PyMem_Free(wanted);
    PyMem_Free(pieces);
    PyBuffer_Release(&topic);
    return result;
}

/* What is sound of the records found, and None with an exception when there is no memory for them. */
static PyObject *sound_of(hf_journal *j, hf_piece *kept, hf_sifted *s, hf_slice topic, int32_t queue_id) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, s->bytes);
    int sound = data ? copy_sound(j, kept, s->count, topic, queue_id, (uint8_t *)PyBytes_AS_STRING(data)) : 0;
    if (!data || sound == s->count) return data;
    for (int i = sound; i < s->count; i++) s->bytes -= kept[i].size;
    s->is_done = 0;
    s->next = kept[sound].index;
    s->count = sound;
    return _PyBytes_Resize(&data, (Py_ssize_t)s->bytes) ? NULL : data;
}

/* sift(journal, topic, queue_id, program, from, stop, count_max, bytes_max, cost_max) ->
   (records, pieces, next, looked, cost, is_done): those the condition is TRUE of, sound. Not done: what lies at `next` is cold, harmed
   or not there, and whoever asked goes on by himself. The same as select, fetch, sift_records and sound_records in turns. */
static PyObject *queue_sift(hf_queue *q, PyObject *args) {
    hf_journal *journal;
    long long from, stop, bytes_max, cost_max;
    Py_buffer topic, program;
    int queue_id, count_max;
    if (!PyArg_ParseTuple(args, "O!y*iy*LLiLL", &hf_journal_type, &journal, &topic, &queue_id, &program, &from, &stop, &count_max,
                          &bytes_max, &cost_max)) return NULL;
    if (count_max > HF_PIECES_MAX) count_max = HF_PIECES_MAX;
    hf_sought sought = {{program.buf, (uint32_t)program.len}, bytes_max, cost_max, count_max};
    hf_sifted s;
    PyObject *data = NULL, *list = NULL;
    hf_piece *kept = PyMem_Malloc((size_t)(count_max > 0 ? count_max : 1) * sizeof *kept);
    if (!kept) PyErr_NoMemory();
    else {
        hf_queue_sift(q, journal, &sought, from, stop, kept, &s);
        data = sound_of(journal, kept, &s, (hf_slice){topic.buf, (uint32_t)topic.len}, queue_id);
        list = data ? list_of(kept, s.count) : NULL;
    }
    PyMem_Free(kept);
    PyBuffer_Release(&topic);
    PyBuffer_Release(&program);
    if (!list) { Py_XDECREF(data); return NULL; }
    return Py_BuildValue("(NNLLLO)", data, list, (long long)s.next, (long long)s.looked, (long long)s.cost, s.is_done ? Py_True : Py_False);
}

static PyMethodDef queue_methods[] = {
    {"attach", (PyCFunction)queue_attach, METH_VARARGS, "attach(base, buffer): entries base.. live in this writable buffer"},
    {"detach", (PyCFunction)queue_detach, METH_O, "detach(base) -> bool"},
    {"close", (PyCFunction)queue_close, METH_NOARGS, "Let go of every buffer."},
    {"claim", (PyCFunction)queue_claim, METH_NOARGS, "The next offset, now taken."},
    {"entry", (PyCFunction)queue_entry, METH_O, "entry(index) -> (physical, size, tags) or None when no file is attached"},
    {"put", (PyCFunction)queue_put, METH_VARARGS, "put(index, physical, size, tags)"},
    {"show", (PyCFunction)queue_show, METH_VARARGS, "show(index, physical, size, tags, timestamp): put, in a file made if need be; visible"},
    {"select", (PyCFunction)queue_select, METH_VARARGS, "Entries of one pull, within its limits."},
    {"bulk", (PyCFunction)queue_bulk, METH_VARARGS, "The records of one pull, within its limits, if all are in memory and sound."},
    {"sift", (PyCFunction)queue_sift, METH_VARARGS, "The records of one pull that a condition is TRUE of, as far as they are in memory and sound."},
    {NULL}};
static PyMemberDef queue_members[] = {
    {"next", Py_T_LONGLONG, offsetof(hf_queue, next), 0, NULL},
    {"max", Py_T_LONGLONG, offsetof(hf_queue, max), 0, NULL},
    {"min", Py_T_LONGLONG, offsetof(hf_queue, min), 0, NULL},
    {"watched", Py_T_INT, offsetof(hf_queue, watched), 0, NULL},
    {"extended", Py_T_INT, offsetof(hf_queue, extended), 0, NULL},
    {"extend", T_OBJECT, offsetof(hf_queue, extend), 0, NULL}, /* None stands for NULL */
    {"key", Py_T_OBJECT_EX, offsetof(hf_queue, key), Py_READONLY, NULL},
    {NULL}};
PyTypeObject hf_queue_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Queue", .tp_basicsize = sizeof(hf_queue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = PyType_GenericNew,
    .tp_init = (initproc)queue_init, .tp_dealloc = (destructor)queue_dealloc,
    .tp_traverse = (traverseproc)queue_traverse, .tp_clear = (inquiry)queue_clear,
    .tp_methods = queue_methods, .tp_members = queue_members};

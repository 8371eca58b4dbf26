/* One key index file in memory: 40 bytes of header, hash slots, entries chained newest first.

     header   begin time 8, end time 8, begin offset 8, end offset 8, used slots 4, next entry 4
     slot     number of the newest entry, 4
     entry    key hash 4, physical offset 8, seconds since begin time 4, entry before it in the slot 4

   Entry 0 is never used. The map belongs to store/keyindex.py, which also decides when a file is full. */
#include "store.h"

#define HEADER_BYTES 40
#define SLOT_BYTES 4
#define QUERY_MAX 100000

static int64_t header64(hf_index *x, int at) { return (int64_t)get64((uint8_t *)x->view.buf + at); }
static void set_header64(hf_index *x, int at, int64_t v) { put64((uint8_t *)x->view.buf + at, (uint64_t)v); }
static int32_t header32(hf_index *x, int at) { return (int32_t)get32((uint8_t *)x->view.buf + at); }
static void set_header32(hf_index *x, int at, int32_t v) { put32((uint8_t *)x->view.buf + at, (uint32_t)v); }
static uint8_t *slot_at(hf_index *x, uint32_t slot) { return (uint8_t *)x->view.buf + HEADER_BYTES + (size_t)slot * SLOT_BYTES; }
static uint8_t *entry_at(hf_index *x, int32_t i) {
    return (uint8_t *)x->view.buf + HEADER_BYTES + (size_t)x->slots * SLOT_BYTES + (size_t)i * HF_ENTRY_BYTES;
}

enum { BEGIN_TIME = 0, END_TIME = 8, BEGIN_OFFSET = 16, END_OFFSET = 24, USED_SLOTS = 32, NEXT_ENTRY = 36 };

int hf_index_full(hf_index *x) { return x->next >= x->entries || x->next >= x->reserved; }

void hf_index_expect(hf_index *x, uint32_t hash) {
    if (x->view.obj) __builtin_prefetch(slot_at(x, hash % x->slots), 1);
}

void hf_index_put(hf_index *x, uint32_t hash, int64_t physical, int64_t timestamp) {
    uint8_t *slot = slot_at(x, hash % x->slots);
    int32_t before = (int32_t)get32(slot);
    if (before <= 0 || before > x->next) before = 0;
    int64_t begin = header64(x, BEGIN_TIME), seconds = begin > 0 ? (timestamp - begin) / 1000 : 0;
    if (seconds < 0) seconds = 0;
    if (seconds > INT32_MAX) seconds = INT32_MAX;
    uint8_t *e = entry_at(x, x->next);
    put32(put32(put64(put32(e, hash), (uint64_t)physical), (uint32_t)seconds), (uint32_t)before);
    put32(slot, (uint32_t)x->next);
    if (x->next <= 1) { set_header64(x, BEGIN_OFFSET, physical); set_header64(x, BEGIN_TIME, timestamp); }
    if (!before) set_header32(x, USED_SLOTS, header32(x, USED_SLOTS) + 1);
    x->next++;
    set_header32(x, NEXT_ENTRY, x->next);
    set_header64(x, END_OFFSET, physical);
    set_header64(x, END_TIME, timestamp);
    x->end_offset = physical;
    x->end_timestamp = timestamp;
}

uint32_t hf_key_hash(hf_slice topic, const char *kind, hf_slice key) {
    /* Java's hash of "topic#key", or of "topic#T#tag", made absolute; the one hash without an absolute value counts as 0 */
    uint32_t h = 31 * hf_java_hash_on(0, topic.p, topic.size) + '#';
    for (; *kind; kind++) h = 31 * h + (uint8_t)*kind;
    int32_t hash = (int32_t)hf_java_hash_on(h, key.p, key.size);
    if (hash == INT32_MIN) return 0;
    return (uint32_t)(hash < 0 ? -hash : hash);
}

int hf_blank(hf_slice text) {
    for (uint32_t i = 0; i < text.size; i++) {
        uint8_t c = text.p[i];
        if (!(c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31))) return 0;
    }
    return 1;
}

/* ---- asking: each chain may be followed without the interpreter lock, while its file stays ---- */
hf_chain hf_chain_of(hf_index *x, uint32_t hash, int64_t begin, int64_t end) {
    return (hf_chain){x, begin, end, header64(x, BEGIN_TIME), (int32_t)get32(slot_at(x, hash % x->slots)), x->next, hash};
}

int hf_chain_next(hf_chain *c, int64_t *physical) {
    while (c->at > 0 && c->at < c->index->entries) { /* one being written now may be the newest; it is passed over */
        const uint8_t *e = entry_at(c->index, c->at);
        int32_t here = c->at, seconds = (int32_t)get32(e + 12), before = (int32_t)get32(e + 16);
        if (seconds < 0) break;
        int64_t stored = c->base + (int64_t)seconds * 1000;
        int is_wanted = here < c->next && get32(e) == c->hash && stored >= c->begin && stored <= c->end;
        if (is_wanted) *physical = (int64_t)get64(e + 4);
        c->at = before <= 0 || before >= here || stored < c->begin ? 0 : before; /* chains only lead back: no loop, whatever the bytes */
        if (c->at) __builtin_prefetch(entry_at(c->index, c->at));
        if (is_wanted) return 1;
    }
    return c->at = 0;
}

/* ---- Python face ---- */
static int index_init(hf_index *x, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "slots", "entries", "reserved", NULL};
    PyObject *buffer;
    unsigned int slots;
    int entries, reserved;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OIii", names, &buffer, &slots, &entries, &reserved)) return -1;
    if (x->view.obj) { PyErr_SetString(PyExc_RuntimeError, "index is already open"); return -1; }
    if (PyObject_GetBuffer(buffer, &x->view, PyBUF_WRITABLE)) return -1;
    if (!slots || entries < 1 || (size_t)x->view.len < HEADER_BYTES + (size_t)slots * SLOT_BYTES + (size_t)entries * HF_ENTRY_BYTES) {
        PyBuffer_Release(&x->view);
        PyErr_SetString(PyExc_ValueError, "index buffer is smaller than its slots and entries");
        return -1;
    }
    x->slots = slots;
    x->entries = entries;
    x->reserved = reserved;
    x->next = header32(x, NEXT_ENTRY);
    if (x->next < 1 || x->next > entries) x->next = 1;
    x->end_offset = header64(x, END_OFFSET);
    x->end_timestamp = header64(x, END_TIME);
    return 0;
}

static void index_dealloc(hf_index *x) {
    if (x->view.obj) PyBuffer_Release(&x->view);
    Py_TYPE(x)->tp_free((PyObject *)x);
}

static PyObject *index_close(hf_index *x, PyObject *ignored) {
    (void)ignored;
    if (x->view.obj) PyBuffer_Release(&x->view);
    x->next = x->entries = 0;
    Py_RETURN_NONE;
}

static int index_open(hf_index *x) {
    if (x->view.obj) return 1;
    PyErr_SetString(PyExc_ValueError, "index is closed");
    return 0;
}

static PyObject *index_begin(hf_index *x, PyObject *args) {
    long long timestamp, offset;
    if (!PyArg_ParseTuple(args, "LL", &timestamp, &offset) || !index_open(x)) return NULL;
    set_header64(x, BEGIN_TIME, timestamp); set_header64(x, END_TIME, timestamp);
    set_header64(x, BEGIN_OFFSET, offset); set_header64(x, END_OFFSET, offset);
    set_header32(x, NEXT_ENTRY, 1);
    x->next = 1;
    x->end_offset = offset;
    x->end_timestamp = timestamp;
    Py_RETURN_NONE;
}

static PyObject *index_put(hf_index *x, PyObject *args) {
    unsigned int hash;
    long long physical, timestamp;
    if (!PyArg_ParseTuple(args, "ILL", &hash, &physical, &timestamp) || !index_open(x)) return NULL;
    if (hf_index_full(x)) Py_RETURN_FALSE;
    hf_index_put(x, hash, physical, timestamp);
    Py_RETURN_TRUE;
}

/* query(hash, count_max, begin_ms, end_ms) -> physical offsets, newest first */
static PyObject *index_query(hf_index *x, PyObject *args) {
    unsigned int hash;
    int count_max;
    long long begin, end;
    if (!PyArg_ParseTuple(args, "IiLL", &hash, &count_max, &begin, &end) || !index_open(x)) return NULL;
    if (count_max < 0) count_max = 0;
    if (count_max > QUERY_MAX) count_max = QUERY_MAX;
    int64_t *offsets = PyMem_RawMalloc((size_t)(count_max + 1) * sizeof *offsets);
    if (!offsets) return PyErr_NoMemory();
    int count = 0;
    Py_buffer view;
    if (PyObject_GetBuffer(x->view.obj, &view, PyBUF_SIMPLE)) { PyMem_RawFree(offsets); return NULL; } /* it stays while we look */
    Py_BEGIN_ALLOW_THREADS /* the chain of a key goes all over a file that need not be in memory */
    hf_chain chain = hf_chain_of(x, hash, begin, end);
    while (count < count_max && hf_chain_next(&chain, &offsets[count])) count++;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyObject *found = PyList_New(count);
    for (int n = 0; found && n < count; n++) {
        PyObject *offset = PyLong_FromLongLong((long long)offsets[n]);
        if (!offset) { Py_CLEAR(found); break; }
        PyList_SET_ITEM(found, n, offset);
    }
    PyMem_RawFree(offsets);
    return found;
}

/* repair(below): keep the entries of records before `below`, which were synced, and make slots and header of them */
static PyObject *index_repair(hf_index *x, PyObject *arg) {
    long long below = PyLong_AsLongLong(arg);
    if ((below == -1 && PyErr_Occurred()) || !index_open(x)) return NULL;
    int32_t low = 1, high = x->entries;
    while (low < high) { /* offsets only grow; a never-written entry is all zeros, and only the log's first record has offset 0 */
        int32_t middle = low + (high - low) / 2;
        const uint8_t *e = entry_at(x, middle);
        int64_t physical = (int64_t)get64(e + 4);
        int written = physical > 0 || get32(e) || get32(e + 12);
        if (written && physical >= 0 && physical < below) low = middle + 1;
        else high = middle;
    }
    memset(slot_at(x, 0), 0, (size_t)x->slots * SLOT_BYTES);
    int32_t used = 0;
    int64_t last_offset = 0, last_time = 0, begin = header64(x, BEGIN_TIME);
    for (int32_t i = 1; i < low; i++) {
        uint8_t *e = entry_at(x, i), *slot = slot_at(x, get32(e) % x->slots);
        int32_t before = (int32_t)get32(slot);
        put32(e + 16, (uint32_t)before);
        used += !before;
        put32(slot, (uint32_t)i);
        last_offset = (int64_t)get64(e + 4);
        last_time = begin + (int64_t)get32(e + 12) * 1000;
    }
    set_header32(x, USED_SLOTS, used);
    set_header32(x, NEXT_ENTRY, low);
    x->next = low;
    if (low > 1 && header64(x, END_OFFSET) == last_offset && header64(x, END_TIME) / 1000 >= last_time / 1000) last_time = header64(x, END_TIME); /* to the millisecond */
    if (low > 1) { set_header64(x, END_OFFSET, last_offset); set_header64(x, END_TIME, last_time); x->end_offset = last_offset; x->end_timestamp = last_time; }
    return PyLong_FromLong(low - 1);
}

static PyMethodDef index_methods[] = {
    {"begin", (PyCFunction)index_begin, METH_VARARGS, "begin(timestamp, offset): a new file that follows another"},
    {"put", (PyCFunction)index_put, METH_VARARGS, "put(hash, physical, timestamp) -> bool; False when full"},
    {"query", (PyCFunction)index_query, METH_VARARGS, "query(hash, count_max, begin_ms, end_ms) -> offsets, newest first"},
    {"repair", (PyCFunction)index_repair, METH_O, "repair(below) -> entries kept"},
    {"close", (PyCFunction)index_close, METH_NOARGS, "Let go of the buffer."},
    {NULL}};
static PyMemberDef index_members[] = {
    {"next", Py_T_INT, offsetof(hf_index, next), Py_READONLY, "Number of the next entry."},
    {"end_timestamp", Py_T_LONGLONG, offsetof(hf_index, end_timestamp), Py_READONLY, "Store time of the newest record indexed."},
    {"reserved", Py_T_INT, offsetof(hf_index, reserved), 0, "Entries whose blocks are surely there."},
    {"end_offset", Py_T_LONGLONG, offsetof(hf_index, end_offset), Py_READONLY, "Offset of the newest record indexed."},
    {NULL}};
static PyObject *index_is_full(hf_index *x, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(hf_index_full(x));
}
static PyGetSetDef index_getset[] = {
    {"is_full", (getter)index_is_full, NULL, "No room, or none whose blocks are surely there.", NULL},
    {NULL}};
PyTypeObject hf_index_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.KeyIndex", .tp_basicsize = sizeof(hf_index), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)index_init, .tp_dealloc = (destructor)index_dealloc,
    .tp_methods = index_methods, .tp_members = index_members, .tp_getset = index_getset};

/* Transactions in the fast lane: halves that wait, and the places of their queue that are dealt with.
   The lane stores a half as handlers/send.py does and ends a transaction as handlers/transactions.py does, where nothing
   is in doubt: the half is of this life, open, in memory, unharmed, and goes to a topic the lane serves. What is dealt
   with is kept here for both; which of it no op in the log names yet, too. Specification: core/plain_halves.py. */
#include "lane.h"

#define SPAN_MAX (1ll << 28)      /* places from the first open one on, in 32 MiB */
#define HALF_BYTES_BESIDE_BODY 36000 /* of a record, at most */
#define PROPERTIES_COUNT_MAX 32
#define PLACE_BYTES 20            /* of one place in an op's body, at most */

/* ---- places ---- */
static int is_ended(const hf_halves *h, int64_t at) {
    if (at < h->next || at < h->base || at >= h->base + (int64_t)h->words * 64) return 0;
    return h->bits[(at - h->base) / 64] >> ((at - h->base) % 64) & 1;
}

static int is_open(const hf_halves *h, int64_t at) { return h->queue && at >= h->next && at < h->queue->next && !is_ended(h, at); }

/* Words that lie before `next` are needed no more. */
static void let_go(hf_halves *h) {
    int64_t passed = h->next - h->base;
    size_t words = passed > 0 ? (size_t)passed / 64 : 0;
    if (!words) return;
    if (words < h->words) memmove(h->bits, h->bits + words, (h->words - words) * sizeof *h->bits);
    memset(h->bits + (words < h->words ? h->words - words : 0), 0, (words < h->words ? words : h->words) * sizeof *h->bits);
    h->base += (int64_t)words * 64;
}

/* A bit for this place; 0 with an exception when there cannot be one. */
static int place_for(hf_halves *h, int64_t at) {
    if (at - h->base < (int64_t)h->words * 64) return 1;
    if (h->words && (h->next - h->base) / 64 > (int64_t)h->words / 2) let_go(h); /* rarely: it moves what is left */
    if (!h->words) h->base = h->next / 64 * 64;
    if (at - h->base < (int64_t)h->words * 64) return 1;
    if (at - h->base >= SPAN_MAX) { PyErr_Format(PyExc_OverflowError, "half %lld, and %lld is open", (long long)at, (long long)h->next); return 0; }
    size_t words = h->words ? h->words : 64;
    while ((int64_t)words * 64 <= at - h->base) words *= 2;
    uint64_t *grown = PyMem_Realloc(h->bits, words * sizeof *grown);
    if (!grown) { PyErr_NoMemory(); return 0; }
    memset(grown + h->words, 0, (words - h->words) * sizeof *grown);
    h->bits = grown;
    h->words = words;
    return 1;
}

static void set_ended(hf_halves *h, int64_t at) {
    uint64_t *word = &h->bits[(at - h->base) / 64], bit = 1ull << ((at - h->base) % 64);
    h->ended += !(*word & bit);
    *word |= bit;
}

static int owed_room(hf_halves *h) {
    if (h->owed_count < h->owed_room) return 1;
    size_t room = h->owed_room ? 2 * h->owed_room : 256;
    int64_t *grown = PyMem_Realloc(h->owed, room * sizeof *grown);
    if (!grown) { PyErr_NoMemory(); return 0; }
    h->owed = grown;
    h->owed_room = room;
    return 1;
}

/* ---- the lane's part ---- */
static uint8_t *put_pair(uint8_t *p, const char *name, hf_slice value) {
    p = put_bytes(p, name, strlen(name));
    *p++ = 1;
    p = put_bytes(p, value.p, value.size);
    *p++ = 2;
    return p;
}

int hf_lane_half_suffix(hf_lane *l, hf_slice topic, int64_t queue_id, hf_slice unique, hf_slice *suffix) {
    if (!hf_lane_room(&l->half, &l->half_room, suffix->size + topic.size + unique.size + 128)) return 0;
    char digits[20];
    hf_slice queue = {(const uint8_t *)digits, (uint32_t)hf_decimal(digits, (uint64_t)queue_id)};
    uint8_t *p = put_bytes(l->half, suffix->p, suffix->size);
    p = put_pair(put_pair(put_pair(p, "REAL_TOPIC", topic), "REAL_QID", queue), "__transactionId__", unique);
    *suffix = (hf_slice){l->half, (uint32_t)(p - l->half)};
    return 1;
}

void hf_lane_half_stored(hf_lane *l, int64_t offset) { if (l->halves->stored < 0) l->halves->stored = offset; }

typedef struct { hf_slice group, id, message_id; int64_t offset, physical, outcome; } end_fields;

static int read_end(hf_frame *f, end_fields *out) {
    unsigned seen = 0;
    *out = (end_fields){0};
    for (int i = 0; i < f->fields_count; i++) {
        hf_slice k = f->fields[i].key, v = f->fields[i].value;
        if (f->fields[i].escaped) return 0;
        if (hf_slice_is(k, "producerGroup")) { out->group = v; seen |= 1; }
        else if (hf_slice_is(k, "tranStateTableOffset")) { if (!hf_parse_int(v.p, v.size, 0, INT64_MAX, &out->offset)) return 0; seen |= 2; }
        else if (hf_slice_is(k, "commitLogOffset")) { if (!hf_parse_int(v.p, v.size, 0, INT64_MAX, &out->physical)) return 0; seen |= 4; }
        else if (hf_slice_is(k, "commitOrRollback")) { if (!hf_parse_int(v.p, v.size, 0, INT32_MAX, &out->outcome)) return 0; seen |= 8; }
        else if (hf_slice_is(k, "msgId")) { out->message_id = v; seen |= 16; }
        else if (hf_slice_is(k, "transactionId")) out->id = v;
        else if (hf_slice_is(k, "fromTransactionCheck")) { if (!hf_slice_is(v, "true") && !hf_slice_is(v, "false")) return 0; }
        else if (!hf_slice_is(k, "topic") && !hf_slice_is(k, "bname")) return 0;
    }
    return seen == 31 && (out->outcome == HF_SYS_FLAG_COMMIT || out->outcome == HF_SYS_FLAG_TRANSACTION);
}

static int same(hf_slice a, hf_slice b) { return a.size == b.size && !memcmp(a.p, b.p, a.size); }

/* The half at a place of its queue, read into the lane's memory; its size, 0 when the handler has to look. */
static uint32_t fetch_half(hf_lane *l, int64_t offset, int64_t physical) {
    hf_queue *queue = l->halves->queue;
    if (offset < queue->min || offset >= queue->max) return 0;
    const uint8_t *entry = hf_queue_entry(queue, offset);
    if (!entry) return 0;
    hf_piece piece = {(int64_t)get64(entry), offset, (int32_t)get32(entry + 8)};
    if (piece.physical != physical || piece.size <= 0 || (uint32_t)piece.size > l->body_max + HALF_BYTES_BESIDE_BODY) return 0;
    if (!hf_lane_room(&l->half, &l->half_room, 2 * (size_t)piece.size)) return 0; /* with an exception; behind it what is left of its properties */
    l->fetched += (size_t)piece.size;
    if (hf_journal_fetch(l->journal, &piece, 1, l->half)) return 0;
    hf_slice topic = {(const uint8_t *)HF_HALF_TOPIC, sizeof HF_HALF_TOPIC - 1};
    return hf_record_sound(l->half, &piece, topic, 0, l->journal->summed_from) ? (uint32_t)piece.size : 0;
}

typedef struct { hf_slice topic, queue; } real_place;

/* The properties of a half as its copy has them; 0 when they are not plain. Those of a message that waits again are not. */
static int copied_properties(hf_slice text, uint8_t *out, hf_slice *kept, hf_known *known, real_place *real) {
    static const char *const strange[] = {"DELAY", "CHECK_IMMUNITY_TIME_IN_SECONDS", NULL};
    const uint8_t *p = text.p, *end = p + text.size;
    hf_slice names[PROPERTIES_COUNT_MAX];
    int count = 0;
    uint8_t *o = out;
    *known = (hf_known){0};
    *real = (real_place){{NULL, 0}, {NULL, 0}};
    for (const uint8_t *stop; p < end; p = stop + 1) {
        stop = memchr(p, 2, (size_t)(end - p));
        const uint8_t *equals = stop ? memchr(p, 1, (size_t)(stop - p)) : NULL;
        if (!equals || equals == p || equals + 1 == stop || count == PROPERTIES_COUNT_MAX) return 0;
        hf_slice name = {p, (uint32_t)(equals - p)}, value = {equals + 1, (uint32_t)(stop - equals - 1)};
        for (int i = 0; i < count; i++) if (same(names[i], name)) return 0;
        names[count++] = name;
        if (name.size >= 6 && !memcmp(name.p, "TIMER_", 6)) return 0;
        for (int i = 0; strange[i]; i++) if (hf_slice_is(name, strange[i])) return 0;
        if (hf_slice_is(name, "REAL_TOPIC")) { real->topic = value; continue; }
        if (hf_slice_is(name, "REAL_QID")) { real->queue = value; continue; }
        if (hf_slice_is(name, "__CRC32#")) continue;
        if (hf_slice_is(name, "UNIQ_KEY")) known->unique = value;
        else if (hf_slice_is(name, "TAGS")) known->tags = value;
        else if (hf_slice_is(name, "KEYS")) known->keys = value;
        else if (hf_slice_is(name, "PGROUP")) known->group = value;
        o = put_bytes(o, p, (size_t)(stop + 1 - p));
    }
    *kept = (hf_slice){out, (uint32_t)(o - out)};
    return known->unique.size && known->group.size && real->topic.size && real->queue.size;
}

/* The record at p, which is sound, as its copy begins. */
static hf_record copy_of(const uint8_t *p, int64_t physical) {
    hf_record r = {.flag = (int32_t)get32(p + 16), .sys_flag = (int32_t)get32(p + 36), .born_timestamp = (int64_t)get64(p + 40), .prepared_offset = physical};
    uint32_t born = r.sys_flag & 0x10 ? 20 : 8, stored = r.sys_flag & 0x20 ? 20 : 8;
    p += 48;
    r.born_host = (hf_slice){p, born};
    r.store_host = (hf_slice){p += born + 8, stored};
    r.reconsume_times = (int32_t)get32(p += stored);
    r.body = (hf_slice){p + 16, get32(p + 12)};
    r.sys_flag = (r.sys_flag & ~HF_SYS_FLAG_TRANSACTION) | HF_SYS_FLAG_COMMIT;
    return r;
}

int hf_lane_serve_end(hf_lane *l, hf_frame *f, int64_t now) {
    hf_halves *h = l->halves;
    end_fields q;
    if ((f->flag != 0 && f->flag != 2) || f->body.size || !read_end(f, &q)) return NEXT_HANDLER;
    if (q.offset < h->serves_from || !is_open(h, q.offset)) return NEXT_HANDLER;
    uint32_t size = fetch_half(l, q.offset, q.physical);
    hf_scanned s;
    if (!size || hf_scan_one(l->half, size, 0, INT64_MAX, &s)) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
    hf_record r = copy_of(l->half, q.physical);
    hf_known known;
    real_place real;
    if (!copied_properties(s.properties, l->half + size, &r.properties, &known, &real)) return NEXT_HANDLER;
    if (!same(known.group, q.group)) return NEXT_HANDLER;
    if (q.id.size && !same(known.unique, q.id) && !same(known.unique, q.message_id)) return NEXT_HANDLER;
    int64_t queue_id;
    hf_queue *queue = NULL;
    size_t bytes = 0;
    if (q.outcome == HF_SYS_FLAG_COMMIT) {
        PyObject *entry = hf_lane_topic(l, real.topic);
        if (!entry) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
        if (!hf_parse_int(real.queue.p, real.queue.size, 0, INT32_MAX, &queue_id)) return NEXT_HANDLER;
        if (!(queue = hf_lane_queue(PyTuple_GET_ITEM(entry, 0), queue_id))) return NEXT_HANDLER;
        r.topic = real.topic;
        r.queue_id = (int32_t)queue_id;
        r.append_crc = l->append_crc;
        r.store_timestamp = hf_lane_stamp(l, now);
        if (!(bytes = hf_record_size(&r))) return NEXT_HANDLER;
        int next = hf_lane_reserve(l, bytes, hf_keys_max(&known), &r.physical_offset);
        if (next != NEXT_DONE) return next;
    }
    if (!place_for(h, q.offset) || !owed_room(h)) return NEXT_ERROR;
    size_t waiting = l->waiting_size;
    if (f->flag == 0 && !hf_lane_reply_plain(l, f->opaque)) return NEXT_ERROR;
    if (queue && !hf_lane_place(l, queue, &r, bytes, &known)) { l->waiting_size = waiting; return NEXT_ERROR; }
    set_ended(h, q.offset);
    h->owed[h->owed_count++] = q.offset;
    if (queue) h->committed++;
    else h->rolled_back++;
    h->promised |= f->flag == 0;
    return NEXT_DONE;
}

/* ---- Python face ---- */
static int halves_init(hf_halves *h, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"queue", NULL};
    PyObject *queue;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &hf_queue_type, &queue)) return -1;
    Py_INCREF(queue);
    Py_XSETREF(h->queue_ref, queue);
    h->queue = (hf_queue *)queue;
    h->serves_from = INT64_MAX;
    h->stored = -1;
    return 0;
}

static int halves_traverse(hf_halves *h, visitproc visit, void *arg) { Py_VISIT(h->queue_ref); return 0; }
static int halves_clear(hf_halves *h) { (void)h; return 0; } /* its queue clears itself */
static void halves_dealloc(hf_halves *h) {
    PyObject_GC_UnTrack(h);
    Py_CLEAR(h->queue_ref);
    PyMem_Free(h->bits);
    PyMem_Free(h->owed);
    Py_TYPE(h)->tp_free((PyObject *)h);
}

static int number_of(PyObject *arg, int64_t *out) {
    *out = PyLong_AsLongLong(arg);
    return *out != -1 || !PyErr_Occurred();
}

static int place_of(PyObject *arg, int64_t *out) {
    if (!number_of(arg, out)) return 0;
    if (*out >= 0 && *out < INT64_MAX - 2 * SPAN_MAX) return 1;
    PyErr_Format(PyExc_ValueError, "place %lld", (long long)*out);
    return 0;
}

static PyObject *halves_is_open(hf_halves *h, PyObject *arg) {
    int64_t at;
    return number_of(arg, &at) ? PyBool_FromLong(is_open(h, at)) : NULL;
}

static PyObject *halves_is_ended(hf_halves *h, PyObject *arg) {
    int64_t at;
    return number_of(arg, &at) ? PyBool_FromLong(is_ended(h, at)) : NULL;
}

static PyObject *halves_mark(hf_halves *h, PyObject *arg) {
    int64_t at;
    if (!place_of(arg, &at)) return NULL;
    if (at >= h->next) {
        if (!place_for(h, at)) return NULL;
        set_ended(h, at);
    }
    Py_RETURN_NONE;
}

static PyObject *halves_end(hf_halves *h, PyObject *arg) {
    int64_t at;
    if (!place_of(arg, &at)) return NULL;
    if (!is_open(h, at)) return PyErr_Format(PyExc_ValueError, "half %lld is not open", (long long)at);
    if (!place_for(h, at) || !owed_room(h)) return NULL;
    set_ended(h, at);
    h->owed[h->owed_count++] = at;
    Py_RETURN_NONE;
}

/* Numbers, highest and count of the first places owed, as an op's body names them. */
static PyObject *halves_owed(hf_halves *h, PyObject *arg) {
    long long bytes_max = PyLong_AsLongLong(arg);
    if (bytes_max == -1 && PyErr_Occurred()) return NULL;
    size_t room = 0, count = 0, size = 0;
    uint8_t *text = NULL;
    int64_t highest = -1;
    for (; count < h->owed_count && (long long)size < bytes_max; count++) {
        if (!hf_lane_room(&text, &room, size + PLACE_BYTES + 1)) { PyMem_Free(text); return NULL; }
        size += hf_decimal((char *)text + size, (uint64_t)h->owed[count]);
        text[size++] = ',';
        if (h->owed[count] > highest) highest = h->owed[count];
    }
    PyObject *found = Py_BuildValue("(nLy#)", (Py_ssize_t)count, (long long)highest, text ? (const char *)text : "", (Py_ssize_t)size);
    PyMem_Free(text);
    return found;
}

static PyObject *halves_paid(hf_halves *h, PyObject *arg) {
    Py_ssize_t count = PyLong_AsSsize_t(arg);
    if (count == -1 && PyErr_Occurred()) return NULL;
    if (count < 0 || (size_t)count > h->owed_count) return PyErr_Format(PyExc_ValueError, "%zd of %zu owed", count, h->owed_count);
    h->owed_count -= (size_t)count;
    if (count) memmove(h->owed, h->owed + count, h->owed_count * sizeof *h->owed);
    Py_RETURN_NONE;
}

static PyObject *halves_pass_over(hf_halves *h, PyObject *arg) {
    int64_t until;
    if (!number_of(arg, &until)) return NULL;
    while (h->next < until && is_ended(h, h->next)) { h->next++; h->ended--; }
    Py_RETURN_NONE;
}

static PyObject *halves_move_to(hf_halves *h, PyObject *arg) {
    int64_t to, limit = h->base + (int64_t)h->words * 64;
    if (!place_of(arg, &to)) return NULL;
    if (to < h->next || !h->words) {
        if (h->ended) return PyErr_Format(PyExc_ValueError, "places before half %lld are passed over", (long long)h->next);
        if (h->words) memset(h->bits, 0, h->words * sizeof *h->bits);
        h->base = to / 64 * 64;
    }
    for (int64_t at = h->next; at < to && at < limit; at++) h->ended -= is_ended(h, at);
    h->next = to;
    if (to >= limit && h->words) {
        memset(h->bits, 0, h->words * sizeof *h->bits);
        h->base = to / 64 * 64;
    }
    Py_RETURN_NONE;
}

static PyObject *halves_take_stored(hf_halves *h, PyObject *ignored) {
    (void)ignored;
    int64_t stored = h->stored;
    h->stored = -1;
    return PyLong_FromLongLong(stored);
}

static PyObject *halves_owes(hf_halves *h, void *closure) { (void)closure; return PyLong_FromSize_t(h->owed_count); }

static PyMethodDef halves_methods[] = {
    {"is_open", (PyCFunction)halves_is_open, METH_O, "is_open(place): whether a half lies there that is not dealt with"},
    {"is_ended", (PyCFunction)halves_is_ended, METH_O, "is_ended(place): whether it is known as dealt with, and not passed over"},
    {"mark", (PyCFunction)halves_mark, METH_O, "mark(place): an op in the log names it"},
    {"end", (PyCFunction)halves_end, METH_O, "end(place): dealt with in this turn; its op is owed"},
    {"owed", (PyCFunction)halves_owed, METH_O, "owed(bytes_max) -> (count, highest, body): the next op"},
    {"paid", (PyCFunction)halves_paid, METH_O, "paid(count): so many of those owed are named by an op"},
    {"pass_over", (PyCFunction)halves_pass_over, METH_O, "pass_over(until): move on to the first that is not dealt with"},
    {"move_to", (PyCFunction)halves_move_to, METH_O, "move_to(place): what lies before it counts no more"},
    {"take_stored", (PyCFunction)halves_take_stored, METH_NOARGS, "The first place the lane gave to a half since the last time, or -1."},
    {NULL}};
static PyMemberDef halves_members[] = {
    {"next", Py_T_LONGLONG, offsetof(hf_halves, next), Py_READONLY, "The first place not passed over."},
    {"ended", Py_T_LONGLONG, offsetof(hf_halves, ended), Py_READONLY, "How many from there on are dealt with."},
    {"serves_from", Py_T_LONGLONG, offsetof(hf_halves, serves_from), 0, "From this place on the lane ends transactions."},
    {"promised", Py_T_INT, offsetof(hf_halves, promised), 0, "Whether the lane has told anybody of an end."},
    {"committed", Py_T_LONGLONG, offsetof(hf_halves, committed), Py_READONLY, "By the lane."},
    {"rolled_back", Py_T_LONGLONG, offsetof(hf_halves, rolled_back), Py_READONLY, "By the lane."},
    {NULL}};
static PyGetSetDef halves_getset[] = {{"owes", (getter)halves_owes, NULL, "How many places no op names yet.", NULL}, {NULL}};
PyTypeObject hf_halves_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Halves", .tp_basicsize = sizeof(hf_halves), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)halves_init, .tp_dealloc = (destructor)halves_dealloc,
    .tp_traverse = (traverseproc)halves_traverse, .tp_clear = (inquiry)halves_clear,
    .tp_methods = halves_methods, .tp_members = halves_members, .tp_getset = halves_getset};

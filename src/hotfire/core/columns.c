/* Records -> the buffers of Arrow columns, with no Python object for any message. plain_columns.py is the specification:
   both take ordinary records and stop before the first other one, which goes the plain road and comes back by add().
   The columns and their order are those of hotfire.spark.schema; of those not asked for nothing is kept, nor looked at. */
#include "store.h"

#define UNUSUAL (0x1 | 0x4 | 0x40 | 0x80) /* compressed, prepared or rolled back, batches */
#define BATCH (0x40 | 0x80)
#define PAIRS_MAX 64               /* properties of an ordinary record; every name is held against those before it */
#define DATA_MAX 0x7fffffff        /* bytes, rows or pairs: Arrow counts them in 32 bits */
#define ROWS_FEW 1024
#define DATA_FEW 65536
#define ID_BYTES_MAX 56
#define PREFETCH_LINES 6           /* of 64 bytes: most records have no more */

enum { TOPIC, BROKER_NAME, QUEUE_ID, QUEUE_OFFSET, MSG_ID, KEYS, TAGS, BODY, PROPERTIES, BORN, STORED, RECONSUMED, SYS_FLAG, LOG_OFFSET,
       COLUMNS };
#define BIT(column) (1u << (column))
#define FOUND_IN_PROPERTIES (BIT(MSG_ID) | BIT(KEYS) | BIT(TAGS) | BIT(PROPERTIES))
/* what the parts of a column are: values of so many bytes; text; text that may be missing; pairs of texts */
enum { INT32 = 4, INT64 = 8, TEXT, MISSABLE, PAIRS };
static const uint8_t kinds[COLUMNS] = {TEXT, TEXT, INT32, INT64, TEXT, MISSABLE, MISSABLE, TEXT, PAIRS, INT64, INT64, INT32, INT32, INT64};

typedef struct { uint8_t *p; size_t used, room, before; } part; /* before: bytes used when it was last taken */
enum { VALID, OFFSETS, DATA };                                  /* parts of a text */
enum { PAIR_OFFSETS, NAME_OFFSETS, NAMES, VALUE_OFFSETS, VALUES, PARTS }; /* and of pairs; values have one part */
typedef struct { hf_slice name, value; } pair;
typedef struct {
    hf_slice topic, msg_id, keys, tags, body;
    const pair *pairs;
    size_t pairs_count;
    int64_t queue_offset, born_ms, store_ms, log_offset;
    int32_t queue_id, reconsume_times, sys_flag;
} row;

typedef struct {
    PyObject_HEAD
    uint32_t wanted;
    int made, busy;                /* busy: a thread fills it without the interpreter lock */
    PyObject *broker_name;
    int64_t stored_from, stored_until, summed_from;
    int32_t *queues;               /* numbers of those wanted; NULL: any */
    Py_ssize_t queues_count;
    size_t rows, rows_room, rows_before, pairs, pairs_room, missing[COLUMNS];
    part parts[COLUMNS][PARTS];
} columns;

/* --- a buffer that was taken: owns its memory ------------------------------------------------------------------ */

typedef struct { PyObject_HEAD uint8_t *p; size_t size; } memory;

static void memory_dealloc(memory *self) { free(self->p); Py_TYPE(self)->tp_free((PyObject *)self); }

static int memory_buffer(memory *self, Py_buffer *view, int flags) {
    static uint8_t nothing[1];
    return PyBuffer_FillInfo(view, (PyObject *)self, self->p ? self->p : nothing, (Py_ssize_t)self->size, 1, flags);
}

static Py_ssize_t memory_size(memory *self) { return (Py_ssize_t)self->size; }

static PyBufferProcs memory_as_buffer = {.bf_getbuffer = (getbufferproc)memory_buffer};
static PySequenceMethods memory_as_sequence = {.sq_length = (lenfunc)memory_size};
PyTypeObject hf_memory_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.Memory",
    .tp_basicsize = sizeof(memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Bytes of a column, to be read only.",
    .tp_dealloc = (destructor)memory_dealloc,
    .tp_as_buffer = &memory_as_buffer,
    .tp_as_sequence = &memory_as_sequence,
};

/* --- room ------------------------------------------------------------------------------------------------------ */

enum { FULL = 0, DONE = 1, NO_MEMORY = -1 };

static int enlarge(part *a, size_t room) {
    uint8_t *p = realloc(a->p, room);
    if (!p) return NO_MEMORY;
    a->p = p;
    a->room = room;
    return DONE;
}

/* Room for so many bytes more; they stay below what an offset can say. */
static int need_data(part *a, size_t size) {
    if (size > DATA_MAX - a->used) return FULL;
    if (a->used + size <= a->room) return DONE;
    size_t room = a->room ? 2 * a->room : a->before + a->before / 8 > DATA_FEW ? a->before + a->before / 8 : DATA_FEW;
    return enlarge(a, room < a->used + size ? a->used + size : room);
}

static int enlarge_offsets(part *a, size_t count) {
    int is_new = !a->p;
    if (enlarge(a, (count + 1) * 4) < 0) return NO_MEMORY;
    if (is_new) memset(a->p, 0, 4);
    return DONE;
}

static int enlarge_valid(part *a, size_t rows) {
    size_t room = rows / 8 + 1, old = a->room;
    if (enlarge(a, room) < 0) return NO_MEMORY;
    memset(a->p + old, 0, room - old);
    return DONE;
}

static int enlarge_rows(columns *c) {
    if (c->rows_room >= DATA_MAX / 2) return FULL;
    size_t rows = c->rows_room ? 2 * c->rows_room : c->rows_before + c->rows_before / 8 > ROWS_FEW ? c->rows_before + c->rows_before / 8 : ROWS_FEW;
    if (rows > DATA_MAX / 2) rows = DATA_MAX / 2;
    for (int i = 0; i < COLUMNS; i++) {
        part *parts = c->parts[i];
        if (!(c->wanted & BIT(i))) continue;
        if (kinds[i] == PAIRS) { if (enlarge_offsets(&parts[PAIR_OFFSETS], rows) < 0) return NO_MEMORY; }
        else if (kinds[i] == INT32 || kinds[i] == INT64) { if (enlarge(&parts[0], rows * kinds[i]) < 0) return NO_MEMORY; }
        else if (enlarge_offsets(&parts[OFFSETS], rows) < 0) return NO_MEMORY;
        if (kinds[i] == MISSABLE && enlarge_valid(&parts[VALID], rows) < 0) return NO_MEMORY;
    }
    c->rows_room = rows;
    return DONE;
}

static int need_pairs(columns *c, const row *r) {
    part *parts = c->parts[PROPERTIES];
    size_t names = 0, values = 0;
    for (size_t i = 0; i < r->pairs_count; i++) {
        names += r->pairs[i].name.size;
        values += r->pairs[i].value.size;
    }
    if (r->pairs_count > DATA_MAX / 2 - c->pairs) return FULL;
    if (c->pairs + r->pairs_count > c->pairs_room) {
        size_t room = 2 * (c->pairs + r->pairs_count) + ROWS_FEW;
        if (enlarge_offsets(&parts[NAME_OFFSETS], room) < 0 || enlarge_offsets(&parts[VALUE_OFFSETS], room) < 0) return NO_MEMORY;
        c->pairs_room = room;
    }
    int named = need_data(&parts[NAMES], names);
    return named == DONE ? need_data(&parts[VALUES], values) : named;
}

/* --- a row ----------------------------------------------------------------------------------------------------- */

static inline void put_offset(part *a, size_t at, size_t offset) { ((int32_t *)a->p)[at] = (int32_t)offset; }

static inline void put_data(part *offsets, part *data, size_t at, hf_slice text) {
    put_bytes(data->p + data->used, text.p, text.size);
    data->used += text.size;
    put_offset(offsets, at + 1, data->used);
}

static inline void put_int32(columns *c, int column, int32_t v) { if (c->wanted & BIT(column)) ((int32_t *)c->parts[column][0].p)[c->rows] = v; }
static inline void put_int64(columns *c, int column, int64_t v) { if (c->wanted & BIT(column)) ((int64_t *)c->parts[column][0].p)[c->rows] = v; }

/* What is too far away for microseconds is as far as they go. */
static int64_t microseconds(int64_t ms) { return ms > INT64_MAX / 1000 ? INT64_MAX : ms < INT64_MIN / 1000 ? INT64_MIN : ms * 1000; }

static void put_text(columns *c, int column, hf_slice text) {
    part *parts = c->parts[column];
    put_data(&parts[OFFSETS], &parts[DATA], c->rows, text);
    if (kinds[column] != MISSABLE) return;
    if (text.p) parts[VALID].p[c->rows / 8] |= (uint8_t)(1u << c->rows % 8);
    else c->missing[column]++;
}

static void put_pairs(columns *c, const row *r) {
    part *parts = c->parts[PROPERTIES];
    for (size_t i = 0; i < r->pairs_count; i++, c->pairs++) {
        put_data(&parts[NAME_OFFSETS], &parts[NAMES], c->pairs, r->pairs[i].name);
        put_data(&parts[VALUE_OFFSETS], &parts[VALUES], c->pairs, r->pairs[i].value);
    }
    put_offset(&parts[PAIR_OFFSETS], c->rows + 1, c->pairs);
}

/* All of it, or nothing and FULL or NO_MEMORY. */
static int put_row(columns *c, const row *r) {
    static const int texts[] = {TOPIC, BROKER_NAME, MSG_ID, KEYS, TAGS, BODY};
    const hf_slice broker = {(const uint8_t *)PyBytes_AS_STRING(c->broker_name), (uint32_t)PyBytes_GET_SIZE(c->broker_name)};
    const hf_slice values[] = {r->topic, broker, r->msg_id, r->keys, r->tags, r->body};
    int how = c->rows < c->rows_room ? DONE : enlarge_rows(c);
    for (int i = 0; how == DONE && i < 6; i++)
        if (c->wanted & BIT(texts[i])) how = need_data(&c->parts[texts[i]][DATA], values[i].size);
    if (how == DONE && c->wanted & BIT(PROPERTIES)) how = need_pairs(c, r);
    if (how != DONE) return how;
    for (int i = 0; i < 6; i++)
        if (c->wanted & BIT(texts[i])) put_text(c, texts[i], values[i]);
    if (c->wanted & BIT(PROPERTIES)) put_pairs(c, r);
    put_int32(c, QUEUE_ID, r->queue_id);
    put_int64(c, QUEUE_OFFSET, r->queue_offset);
    put_int64(c, BORN, microseconds(r->born_ms));
    put_int64(c, STORED, microseconds(r->store_ms));
    put_int32(c, RECONSUMED, r->reconsume_times);
    put_int32(c, SYS_FLAG, r->sys_flag);
    put_int64(c, LOG_OFFSET, r->log_offset);
    c->rows++;
    return DONE;
}

/* --- a record -------------------------------------------------------------------------------------------------- */

typedef struct {
    hf_slice topics, without, tags; /* wanted ones, joined by byte 1; p NULL: any; and topics not wanted; p NULL: none */
    int32_t queue_id;              /* -1: any */
    int64_t first, until;
    int64_t base;                  /* log offset of the data, which each record must agree with; -1: not known */
} filter;

typedef struct { hf_scanned s; row r; pair pairs[PAIRS_MAX]; uint8_t id[ID_BYTES_MAX]; } record;

enum { ADDED = DONE, PASSED = 2, STRANGE = 3 }; /* beside FULL and NO_MEMORY */

static int is_one_of(hf_slice joined, hf_slice text) {
    const uint8_t *p = joined.p, *end = p + joined.size;
    for (;;) {
        const uint8_t *stop = p < end ? memchr(p, 1, (size_t)(end - p)) : NULL;
        if (!stop) stop = end;
        if ((size_t)(stop - p) == text.size && !memcmp(p, text.p, text.size)) return 1;
        if (stop == end) return 0;
        p = stop + 1;
    }
}

static int is_named(hf_slice name, const char *text, uint32_t size) { return name.size == size && !memcmp(name.p, text, size); }

/* Names and values; 0 when they are not ordinary: not UTF-8, one name twice, too many. */
static int find_pairs(record *f, const uint8_t *p, const uint8_t *end) {
    size_t count = 0;
    if (!hf_utf8_ok(p, (size_t)(end - p))) return 0;
    for (const uint8_t *stop; p < end; p = stop + 1) {
        stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const uint8_t *cut = memchr(p, 1, (size_t)(stop - p));
        if (!cut || cut == p || cut + 1 == stop) continue; /* no pair */
        hf_slice name = {p, (uint32_t)(cut - p)}, value = {cut + 1, (uint32_t)(stop - cut - 1)};
        if (count == PAIRS_MAX) return 0;
        for (size_t i = 0; i < count; i++)
            if (f->pairs[i].name.size == name.size && !memcmp(f->pairs[i].name.p, name.p, name.size)) return 0;
        f->pairs[count++] = (pair){name, value};
        if (is_named(name, "UNIQ_KEY", 8)) f->r.msg_id = value;
        else if (is_named(name, "KEYS", 4)) f->r.keys = value;
        else if (is_named(name, "TAGS", 4)) f->r.tags = value;
    }
    f->r.pairs = f->pairs;
    f->r.pairs_count = count;
    return 1;
}

/* Store's address and place in the log, upper-case hex. */
static hf_slice place_id(record *f, const uint8_t *p) {
    static const char digits[] = "0123456789ABCDEF";
    uint32_t host = f->s.sys_flag & 0x20 ? 20 : 8, host_at = f->s.sys_flag & 0x10 ? 76 : 64;
    uint8_t *out = f->id;
    for (uint32_t i = 0; i < host + 8; i++) {
        uint8_t byte = i < host ? p[host_at + i] : p[28 + i - host];
        *out++ = (uint8_t)digits[byte >> 4];
        *out++ = (uint8_t)digits[byte & 15];
    }
    return (hf_slice){f->id, (uint32_t)(out - f->id)};
}

/* The record's fixed part; 0 when it is not a whole, unharmed record. The checksum of the whole, or where there is none that
   of the body, is held against it before anything it says is believed. */
static int find_record(const columns *c, const uint8_t *p, size_t left, record *f) {
    if (left < 8 || hf_scan_one(p, left, 1, c->summed_from, &f->s)) return 0;
    size_t at = 48 + (f->s.sys_flag & 0x10 ? 20 : 8) + 8 + (f->s.sys_flag & 0x20 ? 20 : 8);
    row *r = &f->r;
    *r = (row){.topic = f->s.topic, .body = {p + at + 16, get32(p + at + 12)}};
    r->queue_id = f->s.queue_id;
    r->queue_offset = f->s.queue_offset;
    r->log_offset = f->s.physical;
    r->sys_flag = f->s.sys_flag;
    r->born_ms = (int64_t)get64(p + 40);
    r->store_ms = f->s.store_timestamp;
    r->reconsume_times = (int32_t)get32(p + at);
    return 1;
}

static int is_of_queues(const columns *c, int32_t queue_id) {
    for (Py_ssize_t i = 0; i < c->queues_count; i++) if (c->queues[i] == queue_id) return 1;
    return !c->queues;
}

/* The record's row, if it is among those wanted: ADDED, PASSED over, STRANGE: not ordinary, FULL or NO_MEMORY. */
static int add_record(columns *c, const uint8_t *p, record *f, const filter *wanted) {
    row *r = &f->r;
    if (wanted->topics.p && !is_one_of(wanted->topics, r->topic)) return PASSED;
    if (wanted->without.p && is_one_of(wanted->without, r->topic)) return PASSED;
    if ((wanted->queue_id != -1 && r->queue_id != wanted->queue_id) || !is_of_queues(c, r->queue_id)) return PASSED;
    if (r->sys_flag & BATCH) return STRANGE; /* of several offsets */
    if (r->queue_offset < wanted->first || r->queue_offset >= wanted->until) return PASSED;
    if (r->store_ms < c->stored_from || r->store_ms >= c->stored_until) return PASSED;
    if (r->sys_flag & UNUSUAL) return STRANGE;
    if (c->wanted & FOUND_IN_PROPERTIES || wanted->tags.p) {
        const uint8_t *begin = f->s.properties.p, *end = begin + f->s.properties.size;
        if (end - begin >= HF_CRC_BYTES && !memcmp(end - HF_CRC_BYTES, "__CRC32#\x01", 9)) end -= HF_CRC_BYTES;
        if (!find_pairs(f, begin, end)) return STRANGE;
        if (wanted->tags.p && !(r->tags.p && is_one_of(wanted->tags, r->tags))) return PASSED;
        if (!r->msg_id.p && c->wanted & BIT(MSG_ID)) r->msg_id = place_id(f, p);
    }
    return put_row(c, r);
}

static int run_records(columns *c, const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, const filter *wanted) {
    record f;
    int how = PASSED;
    while ((how == ADDED || how == PASSED) && *at < end) {
        if (!find_record(c, data + *at, (size_t)(end - *at), &f)) return STRANGE;
        if (wanted->base != -1 && f.s.physical != wanted->base + *at) return STRANGE;
        how = add_record(c, data + *at, &f, wanted);
        if (how == ADDED || how == PASSED) *at += f.s.size;
    }
    return how;
}

typedef struct { const uint8_t *data, *entries; Py_ssize_t size, count; int64_t base, first; } gathered;

/* The records of one queue lie apart: the next is on its way while this one is taken. */
static void prefetch(const gathered *g, const uint8_t *entry) {
    int64_t physical = (int64_t)get64(entry);
    if (physical < g->base || physical - g->base >= g->size) return;
    const uint8_t *p = g->data + (physical - g->base);
    for (int i = 0; i < PREFETCH_LINES; i++) __builtin_prefetch(p + 64 * i);
}

static int gather_records(columns *c, const gathered *g, Py_ssize_t *at, const filter *wanted) {
    record f;
    int how = PASSED;
    for (; *at < g->count; ++*at) {
        const uint8_t *entry = g->entries + *at * HF_ENTRY_BYTES;
        int64_t physical = (int64_t)get64(entry), size = (int32_t)get32(entry + 8), offset = g->first + *at;
        if (size <= 0 || size > g->size || physical < g->base || physical - g->base > g->size - size) return STRANGE;
        const uint8_t *p = g->data + (physical - g->base);
        if (*at + 1 < g->count) prefetch(g, entry + HF_ENTRY_BYTES);
        if (!find_record(c, p, (size_t)size, &f) || f.s.size != size || f.s.physical != physical || f.s.queue_offset != offset) return STRANGE;
        if (f.s.queue_id != wanted->queue_id || f.s.topic.size != wanted->topics.size) return STRANGE;
        if (memcmp(f.s.topic.p, wanted->topics.p, f.s.topic.size)) return STRANGE;
        how = add_record(c, p, &f, wanted);
        if (how != ADDED && how != PASSED) return how;
    }
    return how;
}

/* --- the type -------------------------------------------------------------------------------------------------- */

static int take_queues(columns *self, PyObject *queues) {
    PyObject *sequence = PySequence_Fast(queues, "Columns: queues are numbers");
    if (!sequence) return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    self->queues = malloc(((size_t)count + 1) * sizeof *self->queues);
    if (!self->queues) PyErr_NoMemory();
    for (Py_ssize_t i = 0; self->queues && i < count; i++) {
        long number = PyLong_AsLong(PySequence_Fast_GET_ITEM(sequence, i));
        if ((number < INT32_MIN || number > INT32_MAX) && !PyErr_Occurred()) PyErr_SetString(PyExc_OverflowError, "Columns: a queue of more than 32 bits");
        self->queues[i] = (int32_t)number;
        self->queues_count = i + 1;
        if (PyErr_Occurred()) break;
    }
    Py_DECREF(sequence);
    return PyErr_Occurred() ? -1 : 0;
}

static int columns_init(columns *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"wanted", "broker_name", "stored_from", "stored_until", "summed_from", "queues", NULL};
    unsigned int wanted;
    PyObject *broker_name, *queues = Py_None;
    long long from = INT64_MIN, until = INT64_MAX, summed_from = INT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IO!|LLLO", names, &wanted, &PyBytes_Type, &broker_name, &from, &until, &summed_from, &queues)) return -1;
    if (self->made) { PyErr_SetString(PyExc_TypeError, "Columns: made already"); return -1; }
    if (wanted >= BIT(COLUMNS)) { PyErr_Format(PyExc_ValueError, "Columns: %d columns, bits %u wanted", COLUMNS, wanted); return -1; }
    const uint8_t *name = (const uint8_t *)PyBytes_AS_STRING(broker_name);
    if (PyBytes_GET_SIZE(broker_name) > INT16_MAX || !hf_utf8_ok(name, (size_t)PyBytes_GET_SIZE(broker_name))) {
        PyErr_SetString(PyExc_ValueError, "Columns: a broker's name is UTF-8 of at most 32767 bytes");
        return -1;
    }
    self->made = 1;
    if (queues != Py_None && take_queues(self, queues)) { self->made = -1; return -1; }
    Py_INCREF(broker_name);
    self->broker_name = broker_name;
    self->wanted = wanted;
    self->summed_from = summed_from;
    self->stored_from = from;
    self->stored_until = until;
    return 0;
}

static void columns_dealloc(columns *self) {
    for (int i = 0; i < COLUMNS; i++)
        for (int k = 0; k < PARTS; k++) free(self->parts[i][k].p);
    free(self->queues);
    Py_XDECREF(self->broker_name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* 1 when it may be used: made, and by no other thread just now. */
static int is_ours(columns *self) {
    if (self->made != 1) PyErr_SetString(PyExc_TypeError, "Columns: not made");
    else if (self->busy) PyErr_SetString(PyExc_RuntimeError, "Columns: another thread is filling it");
    else return 1;
    return 0;
}

/* Bytes that nobody can change while the interpreter lock is away. */
static int is_fixed(PyObject *data) {
    return PyBytes_CheckExact(data) || (PyMemoryView_Check(data) && PyMemoryView_GET_BASE(data) && PyBytes_CheckExact(PyMemoryView_GET_BASE(data)));
}

static hf_slice slice_of(const char *text, Py_ssize_t size) { return (hf_slice){(const uint8_t *)text, size < DATA_MAX ? (uint32_t)size : DATA_MAX}; }

static PyObject *columns_run(columns *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", "at", "end", "topic", "queue_id", "first", "until", "tags", "base", "without", NULL};
    PyObject *object, *result = NULL;
    Py_ssize_t at, end, topic_size, tags_size = 0, without_size = 0;
    const char *topic, *tags = NULL, *without = NULL;
    filter wanted;
    long long first, until, base = -1;
    int how;
    Py_buffer data;
    if (!is_ours(self)) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onnz#iLL|z#Lz#", names, &object, &at, &end, &topic, &topic_size, &wanted.queue_id, &first, &until,
                                     &tags, &tags_size, &base, &without, &without_size)) return NULL;
    if (PyObject_GetBuffer(object, &data, PyBUF_SIMPLE)) return NULL;
    wanted = (filter){.topics = slice_of(topic, topic_size), .without = slice_of(without, without_size), .tags = slice_of(tags, tags_size),
                      .queue_id = wanted.queue_id, .first = first, .until = until, .base = base};
    if (base < -1 || base > INT64_MAX - data.len) PyErr_SetString(PyExc_ValueError, "run: data outside every log");
    else if (at < 0 || at > end || end > data.len) PyErr_SetString(PyExc_ValueError, "run: a place outside the data");
    else {
        self->busy = 1;
        if (is_fixed(object)) {
            Py_BEGIN_ALLOW_THREADS
            how = run_records(self, data.buf, &at, end, &wanted);
            Py_END_ALLOW_THREADS
        } else how = run_records(self, data.buf, &at, end, &wanted);
        self->busy = 0;
        result = how == NO_MEMORY ? PyErr_NoMemory() : PyLong_FromSsize_t(at);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *columns_gather(columns *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", "base", "entries", "at", "topic", "queue_id", "first_offset", "tags", NULL};
    PyObject *object, *entries_object, *result = NULL;
    Py_ssize_t at, tags_size = 0;
    const char *tags = NULL, *topic;
    Py_ssize_t topic_size;
    long long base, first;
    int queue_id, how;
    Py_buffer data, entries;
    if (!is_ours(self)) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLOny#iL|z#", names, &object, &base, &entries_object, &at, &topic, &topic_size, &queue_id, &first,
                                     &tags, &tags_size)) return NULL;
    if (PyObject_GetBuffer(object, &data, PyBUF_SIMPLE)) return NULL;
    if (PyObject_GetBuffer(entries_object, &entries, PyBUF_SIMPLE)) { PyBuffer_Release(&data); return NULL; }
    gathered g = {data.buf, entries.buf, data.len, entries.len / HF_ENTRY_BYTES, base, first};
    filter wanted = {.topics = slice_of(topic, topic_size), .tags = slice_of(tags, tags_size), .queue_id = queue_id, .first = INT64_MIN,
                     .until = INT64_MAX, .base = -1};
    if (at < 0 || at > g.count || base < 0 || first < 0 || first > INT64_MAX - g.count) {
        PyErr_SetString(PyExc_ValueError, "gather: a place outside the entries, or below 0");
    } else if (queue_id < 0) PyErr_SetString(PyExc_ValueError, "gather: a queue below 0");
    else {
        self->busy = 1;
        if (is_fixed(object) && is_fixed(entries_object)) {
            Py_BEGIN_ALLOW_THREADS
            how = gather_records(self, &g, &at, &wanted);
            Py_END_ALLOW_THREADS
        } else how = gather_records(self, &g, &at, &wanted);
        self->busy = 0;
        result = how == NO_MEMORY ? PyErr_NoMemory() : PyLong_FromSsize_t(at);
    }
    PyBuffer_Release(&entries);
    PyBuffer_Release(&data);
    return result;
}

/* Pairs of the sequence's bytes, which it keeps alive; to be freed. NULL with an exception. */
static pair *pairs_of(PyObject *sequence, size_t *count) {
    Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    pair *pairs = PyMem_Calloc((size_t)size + 1, sizeof *pairs);
    if (!pairs) { PyErr_NoMemory(); return NULL; }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *one = PySequence_Fast_GET_ITEM(sequence, i);
        int is_pair = PyTuple_Check(one) && PyTuple_GET_SIZE(one) == 2 && PyBytes_Check(PyTuple_GET_ITEM(one, 0)) && PyBytes_Check(PyTuple_GET_ITEM(one, 1));
        for (int k = 0; is_pair && k < 2; k++) {
            PyObject *text = PyTuple_GET_ITEM(one, k);
            hf_slice slice = {(const uint8_t *)PyBytes_AS_STRING(text), (uint32_t)PyBytes_GET_SIZE(text)};
            is_pair = PyBytes_GET_SIZE(text) <= DATA_MAX && hf_utf8_ok(slice.p, slice.size);
            *(k ? &pairs[i].value : &pairs[i].name) = slice;
        }
        if (is_pair) continue;
        PyErr_SetString(PyExc_ValueError, "add: properties are pairs of UTF-8");
        PyMem_Free(pairs);
        return NULL;
    }
    *count = (size_t)size;
    return pairs;
}

static PyObject *columns_add(columns *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"topic", "queue_id", "queue_offset", "msg_id", "keys", "tags", "body", "properties", "born_ms", "store_ms",
                            "reconsume_times", "sys_flag", "log_offset", NULL};
    const char *texts[5]; /* topic, msg_id, keys, tags, body */
    Py_ssize_t sizes[5];
    PyObject *properties;
    long long queue_offset, born_ms, store_ms, log_offset;
    row r = {0};
    if (!is_ours(self)) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#iLy#z#z#y#OLLiiL", names, &texts[0], &sizes[0], &r.queue_id, &queue_offset, &texts[1], &sizes[1],
                                     &texts[2], &sizes[2], &texts[3], &sizes[3], &texts[4], &sizes[4], &properties, &born_ms, &store_ms,
                                     &r.reconsume_times, &r.sys_flag, &log_offset)) return NULL;
    hf_slice *const slices[5] = {&r.topic, &r.msg_id, &r.keys, &r.tags, &r.body};
    for (int i = 0; i < 5; i++) {
        if (sizes[i] > DATA_MAX) return PyErr_Format(PyExc_OverflowError, "add: %zd bytes, at most %d fit", sizes[i], DATA_MAX);
        *slices[i] = (hf_slice){(const uint8_t *)texts[i], (uint32_t)sizes[i]};
        if (i < 4 && !hf_utf8_ok(slices[i]->p, slices[i]->size)) return PyErr_Format(PyExc_ValueError, "add: text that is not UTF-8");
    }
    r.queue_offset = queue_offset;
    r.born_ms = born_ms;
    r.store_ms = store_ms;
    r.log_offset = log_offset;
    PyObject *sequence = PySequence_Fast(properties, "add: properties are pairs");
    pair *pairs = sequence ? pairs_of(sequence, &r.pairs_count) : NULL;
    r.pairs = pairs;
    int how = pairs ? put_row(self, &r) : FULL;
    if (pairs && how == FULL) PyErr_SetString(PyExc_OverflowError, "add: the columns are full, take them first");
    if (how == NO_MEMORY) PyErr_NoMemory();
    PyMem_Free(pairs);
    Py_XDECREF(sequence);
    if (how != DONE) return NULL;
    Py_RETURN_NONE;
}

/* --- taking ---------------------------------------------------------------------------------------------------- */

/* How many parts a column has, and their bytes. */
static int measure(columns *c, int column, size_t sizes[PARTS]) {
    const part *parts = c->parts[column];
    size_t offsets = (c->rows + 1) * 4;
    if (kinds[column] == PAIRS) {
        size_t pair_offsets = (c->pairs + 1) * 4;
        memcpy(sizes, (size_t[]){offsets, pair_offsets, parts[NAMES].used, pair_offsets, parts[VALUES].used}, PARTS * sizeof *sizes);
        return PARTS;
    }
    if (kinds[column] == INT32 || kinds[column] == INT64) { sizes[0] = c->rows * kinds[column]; return 1; }
    sizes[VALID] = c->missing[column] ? (c->rows + 7) / 8 : 0;
    sizes[OFFSETS] = offsets;
    sizes[DATA] = parts[DATA].used;
    return 3;
}

static PyObject *memory_of(part *a, size_t size) {
    memory *m = PyObject_New(memory, &hf_memory_type);
    if (!m) return NULL;
    m->p = a->p;
    m->size = size;
    *a = (part){.before = size};
    return (PyObject *)m;
}

static PyObject *column_of(columns *c, int column) {
    size_t sizes[PARTS];
    int count = measure(c, column, sizes), is_text = kinds[column] == TEXT || kinds[column] == MISSABLE;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *one = Py_None;
        if (is_text && i == VALID && !c->missing[column]) Py_INCREF(one);
        else one = memory_of(&c->parts[column][i], sizes[i]);
        if (one) PyTuple_SET_ITEM(tuple, i, one);
        else Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *columns_take(columns *self, PyObject *unused) {
    (void)unused;
    if (!is_ours(self)) return NULL;
    if (!self->rows_room && enlarge_rows(self) != DONE) return PyErr_NoMemory(); /* none at all have a first offset, too */
    part *pairs = self->parts[PROPERTIES];
    if (self->wanted & BIT(PROPERTIES) && !self->pairs_room && (enlarge_offsets(&pairs[NAME_OFFSETS], 0) != DONE || enlarge_offsets(&pairs[VALUE_OFFSETS], 0) != DONE)) return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < COLUMNS; i++) {
        if (!(self->wanted & BIT(i))) continue;
        PyObject *tuple = column_of(self, i);
        if (!tuple || PyList_Append(list, tuple)) Py_CLEAR(list);
        Py_XDECREF(tuple);
    }
    for (int i = 0; i < COLUMNS; i++) /* what nobody took: the bits of a text where none was missing */
        for (int k = 0; k < PARTS; k++) {
            free(self->parts[i][k].p);
            self->parts[i][k] = (part){.before = self->parts[i][k].before};
        }
    Py_ssize_t rows = (Py_ssize_t)self->rows;
    self->rows_before = self->rows;
    self->rows = self->rows_room = self->pairs = self->pairs_room = 0;
    memset(self->missing, 0, sizeof self->missing);
    return list ? Py_BuildValue("(nN)", rows, list) : NULL;
}

static PyObject *columns_size(columns *self, void *unused) {
    (void)unused;
    size_t total = 0, sizes[PARTS];
    for (int i = 0; self->rows && i < COLUMNS; i++) {
        if (!(self->wanted & BIT(i))) continue;
        for (int k = measure(self, i, sizes) - 1; k >= 0; k--) total += sizes[k];
    }
    return PyLong_FromSize_t(total);
}

static PyObject *columns_rows(columns *self, void *unused) { (void)unused; return PyLong_FromSize_t(self->rows); }

static PyMethodDef columns_methods[] = {
    {"run", (PyCFunction)(void (*)(void))columns_run, METH_VARARGS | METH_KEYWORDS, "run(data, at, end, topic, queue_id, first, until, tags=None, base=-1, without=None) -> at"},
    {"gather", (PyCFunction)(void (*)(void))columns_gather, METH_VARARGS | METH_KEYWORDS,
     "gather(data, base, entries, at, topic, queue_id, first_offset, tags=None) -> at"},
    {"add", (PyCFunction)(void (*)(void))columns_add, METH_VARARGS | METH_KEYWORDS, "One row of the plain road."},
    {"take", (PyCFunction)columns_take, METH_NOARGS, "take() -> rows, the buffers of every column wanted; it is empty then"},
    {NULL}};
static PyGetSetDef columns_getset[] = {
    {"rows", (getter)columns_rows, NULL, "gathered so far", NULL},
    {"size", (getter)columns_size, NULL, "bytes of what was gathered so far", NULL},
    {NULL}};

PyTypeObject hf_columns_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.Columns",
    .tp_basicsize = sizeof(columns),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Gathers records as the columns of Arrow.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)columns_init,
    .tp_dealloc = (destructor)columns_dealloc,
    .tp_methods = columns_methods,
    .tp_getset = columns_getset,
};

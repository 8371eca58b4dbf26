/* Ids of rows, made of what is in them: the same rows have the same ids whenever they come again, in whatever order.
   The specification is plain_rows.py. An id is SipHash-2-4 of 128 bits (Aumasson and Bernstein) over the row's cells, under a
   key that stands for where the rows belong; of rows that are alike the second has another id than the first. Where ids are
   made of keys alone a second row of a key is refused: nobody could tell which of them came first. Four bytes of an id are
   not the hash's: there RocketMQ's ids have a time. */
#include "arrow.h"
#include <stdlib.h>

#define ID_BYTES 16
#define TIME_AT 10 /* the time's place in an id */
#define TIME_BYTES 4
#define TEXTS_MAX 12
#define KEYS_TOLD_MAX 100 /* bytes of a key in an error */
#define TOGETHER_MAX 32

/* ---- SipHash ---- */

typedef struct { uint64_t v0, v1, v2, v3, tail; uint32_t kept; uint64_t size; } sip;

static inline uint64_t turn(uint64_t v, int by) { return v << by | v >> (64 - by); }

static inline void mix(sip *s, int rounds) {
    while (rounds--) {
        s->v0 += s->v1; s->v1 = turn(s->v1, 13); s->v1 ^= s->v0; s->v0 = turn(s->v0, 32);
        s->v2 += s->v3; s->v3 = turn(s->v3, 16); s->v3 ^= s->v2;
        s->v0 += s->v3; s->v3 = turn(s->v3, 21); s->v3 ^= s->v0;
        s->v2 += s->v1; s->v1 = turn(s->v1, 17); s->v1 ^= s->v2; s->v2 = turn(s->v2, 32);
    }
}

static inline void take(sip *s, uint64_t word) {
    s->v3 ^= word;
    mix(s, 2);
    s->v0 ^= word;
}

static sip sip_begin(const uint64_t key[2]) {
    return (sip){key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull ^ 0xee, key[0] ^ 0x6c7967656e657261ull,
                 key[1] ^ 0x7465646279746573ull, 0, 0, 0};
}

static inline uint64_t load_le(const uint8_t *p, uint32_t n) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static inline uint64_t load64_le(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static void sip_add(sip *s, const uint8_t *p, size_t n) {
    s->size += n;
    if (s->kept) {
        uint32_t fill = 8 - s->kept < n ? 8 - s->kept : (uint32_t)n;
        s->tail |= load_le(p, fill) << 8 * s->kept;
        s->kept += fill;
        p += fill;
        n -= fill;
        if (s->kept < 8) return;
        take(s, s->tail);
    }
    for (; n >= 8; p += 8, n -= 8) take(s, load64_le(p));
    s->tail = load_le(p, (uint32_t)n);
    s->kept = (uint32_t)n;
}

static void sip_end(sip *s, uint8_t out[ID_BYTES]) {
    take(s, s->tail | s->size << 56);
    s->v2 ^= 0xee;
    mix(s, 4);
    uint64_t low = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    s->v1 ^= 0xdd;
    mix(s, 4);
    uint64_t high = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    for (int i = 0; i < 8; i++) { out[i] = (uint8_t)(low >> 8 * i); out[8 + i] = (uint8_t)(high >> 8 * i); }
}

static void add_number(sip *s, uint32_t v) {
    uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    sip_add(s, bytes, 4);
}

static int add_cell(sip *s, const hf_texts *column, int64_t row) {
    hf_slice cell;
    int found = hf_text_cell(column, row, &cell);
    if (found == HF_UNSOUND) return 0;
    add_number(s, found == HF_MISSING ? UINT32_MAX : cell.size); /* what is not there is not what is empty */
    sip_add(s, cell.p, cell.size);
    return 1;
}

/* ---- how often a row came already: a mark of each, and a count of the few that came again ---- */

typedef struct { uint64_t *places; size_t room, used; } marks; /* 0: a free place */
typedef struct { uint64_t mark; uint32_t count; } seen;
typedef struct { seen *places; size_t room, used; } tally;

static inline size_t first_place(uint64_t mark, size_t room) { return mark * 0x9e3779b97f4a7c15ull & (room - 1); }

static size_t mark_place(const marks *m, uint64_t mark) {
    size_t i = first_place(mark, m->room);
    while (m->places[i] && m->places[i] != mark) i = (i + 1) & (m->room - 1);
    return i;
}

static size_t seen_place(const tally *t, uint64_t mark) {
    size_t i = first_place(mark, t->room);
    while (t->places[i].mark && t->places[i].mark != mark) i = (i + 1) & (t->room - 1);
    return i;
}

static int grow_marks(marks *m) {
    marks larger = {NULL, m->room ? 2 * m->room : 1024, m->used};
    if (!(larger.places = calloc(larger.room, sizeof *larger.places))) return 0;
    for (size_t i = 0; i < m->room; i++)
        if (m->places[i]) larger.places[mark_place(&larger, m->places[i])] = m->places[i];
    free(m->places);
    *m = larger;
    return 1;
}

static int grow_tally(tally *t) {
    tally larger = {NULL, t->room ? 2 * t->room : 64, t->used};
    if (!(larger.places = calloc(larger.room, sizeof *larger.places))) return 0;
    for (size_t i = 0; i < t->room; i++)
        if (t->places[i].mark) larger.places[seen_place(&larger, t->places[i].mark)] = t->places[i];
    free(t->places);
    *t = larger;
    return 1;
}

static inline int is_filled(size_t used, size_t room) { return used * 3 >= room * 2; }

static inline uint64_t mark_of(const uint8_t *digest) {
    uint64_t mark = load64_le(digest);
    return mark ? mark : 1;
}

/* How many with this mark there were, this one counted; 0 without memory. */
static uint32_t count_on(marks *once, tally *more, uint64_t mark) {
    if (is_filled(once->used, once->room) && !grow_marks(once)) return 0;
    uint64_t *first = &once->places[mark_place(once, mark)];
    if (!*first) { *first = mark; once->used++; return 1; }
    if (is_filled(more->used, more->room) && !grow_tally(more)) return 0;
    seen *place = &more->places[seen_place(more, mark)];
    if (!place->mark) { *place = (seen){mark, 1}; more->used++; }
    return ++place->count;
}

/* ---- the type ---- */

typedef struct {
    PyObject_HEAD
    uint64_t key[2];
    uint8_t time[TIME_BYTES];
    marks once;
    tally more;
    int busy;
} ids_object;

static int ids_init(ids_object *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"key", "time", NULL};
    Py_buffer key, time;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*", names, &key, &time)) return -1;
    int ok = key.len == ID_BYTES && time.len == TIME_BYTES;
    if (ok) {
        self->key[0] = load64_le(key.buf);
        self->key[1] = load64_le((const uint8_t *)key.buf + 8);
        memcpy(self->time, time.buf, TIME_BYTES);
    } else PyErr_SetString(PyExc_ValueError, "ids take a key of 16 bytes and a time of 4");
    PyBuffer_Release(&key);
    PyBuffer_Release(&time);
    return ok ? 0 : -1;
}

static void ids_dealloc(ids_object *self) {
    free(self->once.places);
    free(self->more.places);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

typedef struct { hf_texts texts[TEXTS_MAX]; int texts_count, keyed; hf_maps map; hf_rows rows; uint8_t *out; } run;

static const char no_memory[] = "there is no memory to count it", same_keys[] = "its keys came before";

/* The hash of what is in the row; `has_id` 0 for one without keys where ids are made of keys. */
static const char *digest_row(const ids_object *self, const run *r, int64_t row, uint8_t digest[ID_BYTES], int *has_id) {
    hf_slice key;
    *has_id = 1;
    if (r->keyed) {
        int found = hf_text_cell(&r->texts[0], row, &key);
        if (found == HF_UNSOUND) return HF_UNSOUND_TEXT;
        if (!key.size) { *has_id = 0; return NULL; }
    }
    sip s = sip_begin(self->key);
    for (int i = 0; i < r->texts_count; i++) if (!add_cell(&s, &r->texts[i], row)) return HF_UNSOUND_TEXT;
    if (r->map.offsets) {
        int32_t from, to;
        int found = hf_map_cell(&r->map, row, &from, &to);
        if (found == HF_UNSOUND) return HF_UNSOUND_TEXT;
        add_number(&s, found == HF_MISSING ? UINT32_MAX : (uint32_t)(to - from));
        for (int32_t i = from; i < to; i++)
            if (!add_cell(&s, &r->map.names, i) || !add_cell(&s, &r->map.values, i)) return HF_UNSOUND_TEXT;
    }
    sip_end(&s, digest);
    return NULL;
}

static const char *give_id(ids_object *self, const run *r, uint8_t digest[ID_BYTES], uint8_t *out) {
    uint32_t nth = count_on(&self->once, &self->more, mark_of(digest));
    if (!nth) return no_memory;
    if (nth > 1 && r->keyed) return same_keys;
    if (nth > 1) {
        sip again = sip_begin(self->key);
        sip_add(&again, digest, ID_BYTES);
        add_number(&again, nth);
        sip_end(&again, digest);
    }
    memcpy(out, digest, ID_BYTES);
    memcpy(out + TIME_AT, self->time, TIME_BYTES);
    return NULL;
}

/* Ids of places `at` to `end`, at most TOGETHER_MAX: all are hashed first, and where each will be counted is fetched into
   the cache meanwhile. A table of many rows is in memory, and waiting for it would take longer than the hashes. */
static hf_refusal identify(ids_object *self, const run *r, int64_t at, int64_t end) {
    struct { uint8_t digest[ID_BYTES]; int64_t row; int has_id; } those[TOGETHER_MAX];
    const char *unsound = NULL;
    int64_t row = at, count = 0;
    for (; at + count < end; count++) {
        row = hf_row_at(&r->rows, at + count);
        if (row < 0) { unsound = HF_NO_ROW; row = at + count; break; }
        those[count].row = row;
        if ((unsound = digest_row(self, r, row, those[count].digest, &those[count].has_id))) break;
        if (self->once.room && those[count].has_id) __builtin_prefetch(&self->once.places[first_place(mark_of(those[count].digest), self->once.room)], 1);
    }
    for (int64_t i = 0; i < count; i++) {
        uint8_t *out = r->out + ID_BYTES * those[i].row;
        if (!those[i].has_id) { memset(out, 0, ID_BYTES); continue; }
        const char *problem = give_id(self, r, those[i].digest, out);
        if (problem) return (hf_refusal){those[i].row, problem};
    }
    return (hf_refusal){row, unsound};
}

static void refuse_keys(const run *r, int64_t row) {
    hf_slice keys = {0};
    hf_text_cell(&r->texts[0], row, &keys);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)keys.p, keys.size < KEYS_TOLD_MAX ? keys.size : KEYS_TOLD_MAX, "replace");
    PyObject *problem = text ? PyUnicode_FromFormat("a row with the same keys, %U, came before it, and rows are told apart by keys alone: "
                                                    "tell them apart by all that is in them (uniqueBy=row)", text) : NULL;
    PyObject *args = problem ? Py_BuildValue("(LO)", (long long)row, problem) : NULL;
    if (args) PyErr_SetObject(PyExc_ValueError, args);
    Py_XDECREF(text);
    Py_XDECREF(problem);
    Py_XDECREF(args);
}

static int read_texts(hf_pins *held, PyObject *texts, int64_t count, run *r) {
    if (PyTuple_GET_SIZE(texts) > TEXTS_MAX) { PyErr_Format(PyExc_ValueError, "at most %d columns make an id", TEXTS_MAX); return 0; }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(texts); i++)
        if (!hf_read_text(held, PyTuple_GET_ITEM(texts, i), count, &r->texts[r->texts_count++])) return 0;
    if (r->keyed && !r->texts_count) { PyErr_SetString(PyExc_ValueError, "ids of keyed rows only need the keys"); return 0; }
    return 1;
}

/* run(count, texts, map, rows, at, end, keyed, out): fills 16 bytes of `out` for each of the rows, at its own number */
static PyObject *ids_run(ids_object *self, PyObject *args) {
    PyObject *texts, *map, *rows, *out;
    long long count, at, end;
    hf_pins held;
    run r;
    hf_refusal refused = {0, NULL};
    held.count = 0;
    memset(&r, 0, sizeof r);
    if (!PyArg_ParseTuple(args, "LO!OOLLpO", &count, &PyTuple_Type, &texts, &map, &rows, &at, &end, &r.keyed, &out)) return NULL;
    if (self->busy) { PyErr_SetString(PyExc_RuntimeError, "these ids are being made already"); return NULL; }
    if (!hf_read_selection(&held, rows, count, at, end, &r.rows) || !read_texts(&held, texts, count, &r)) goto out;
    if (map != Py_None && !hf_read_map(&held, map, count, &r.map)) goto out;
    Py_buffer *view = hf_pin(&held, out, PyBUF_WRITABLE);
    if (!view) goto out;
    if (view->len / ID_BYTES < count) { PyErr_SetString(PyExc_ValueError, "less room for ids than rows"); goto out; }
    r.out = view->buf;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = at; i < end && !refused.problem; i += TOGETHER_MAX)
        refused = identify(self, &r, i, end - i < TOGETHER_MAX ? end : i + TOGETHER_MAX);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (refused.problem == no_memory) PyErr_NoMemory();
    else if (refused.problem == same_keys) refuse_keys(&r, refused.row);
    else if (refused.problem) hf_refuse_row(&refused);
out:
    hf_unpin(&held);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef ids_methods[] = {
    {"run", (PyCFunction)ids_run, METH_VARARGS, "run(count, texts, map, rows, at, end, keyed, out)"},
    {NULL}};

PyTypeObject hf_rowids_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.RowIds",
    .tp_basicsize = sizeof(ids_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Ids made of what is in rows.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)ids_init,
    .tp_dealloc = (destructor)ids_dealloc,
    .tp_methods = ids_methods,
};

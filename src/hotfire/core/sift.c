/* Messages by a condition: which of a queue's pass, looked at where they lie in memory. Most do not pass, and of those
   only heads and properties are read: nothing is copied, no checksum is looked at. What passes is fetched and checked by
   whoever asked, as in any other pull. Specification: sift_records in plain_sql92.py, and Reading._sift in
   store/reading.py, which goes on where this is stuck. */
#include "sql92.h"

#define AT_ONCE 64            /* entries looked at before the kernel is asked again whether what they mean is in memory */
#define ASKED_COST 3072       /* what it takes to ask, and to touch what nobody has touched before: a system call and a page fault, */
#define PAGE_COST 96          /* which far from the last one makes tables of its own; and of a stretch, a fault for some of its pages */
#define PAGE_BYTES 4096

typedef struct {
    program program;
    int is_program;           /* else nothing passes */
    int64_t count, bytes;     /* of what passes, so far */
    int64_t count_max, bytes_max, cost_max;
} sieve;
enum { STRANGE, REFUSED, PASSES };

static void begin(sieve *v, hf_slice code, int64_t count_max, int64_t bytes_max, int64_t cost_max) {
    v->program.cost = v->count = v->bytes = 0;
    v->is_program = hf_program_load(&v->program, code);
    v->count_max = count_max;
    v->bytes_max = bytes_max;
    v->cost_max = cost_max;
}

static int is_full(const sieve *v) {
    return v->count >= v->count_max || (v->count && v->bytes >= v->bytes_max) || v->program.cost >= v->cost_max;
}

/* STRANGE: the record is not what its piece says. */
static int look(sieve *v, const uint8_t *p, const hf_piece *piece) {
    hf_scanned s;
    if (hf_scan_one(p, (size_t)piece->size, 0, INT64_MAX, &s)) return STRANGE;
    if (s.size != (uint32_t)piece->size || s.physical != piece->physical || s.queue_offset != piece->index) return STRANGE;
    return v->is_program && hf_program_verdict(&v->program, s.properties) == IS_TRUE ? PASSES : REFUSED;
}

/* 0 when it is too large for what is left; the first never is. */
static int keep(sieve *v, const hf_piece *piece) {
    if (v->count && v->bytes + piece->size > v->bytes_max) return 0;
    v->count++;
    v->bytes += piece->size;
    return 1;
}

/* ---- records in a buffer ---- */
static int read_piece(PyObject *object, hf_piece *out) {
    long long physical, index;
    int size;
    if (!PyArg_ParseTuple(object, "LiL", &physical, &size, &index)) return 0;
    *out = (hf_piece){physical, index, size};
    return 1;
}

/* sift_records(program, data, pieces, count_max, bytes_max, cost_max) -> (kept, looked, cost)
   The pieces' records lie one behind the other in `data`. kept: positions in `pieces` of those the condition is TRUE of.
   looked: how many were looked at before enough was found, the cost reached its limit, or a record is not what its piece
   says; then `looked` is its position. The first is always looked at. */
PyObject *hf_sift_records(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer code, data;
    PyObject *pieces;
    Py_ssize_t count_max;
    long long bytes_max, cost_max;
    if (!PyArg_ParseTuple(args, "y*y*O!nLL", &code, &data, &PyList_Type, &pieces, &count_max, &bytes_max, &cost_max)) return NULL;
    const uint8_t *p = data.buf, *end = p + data.len;
    sieve v;
    begin(&v, (hf_slice){code.buf, (uint32_t)code.len}, count_max, bytes_max, cost_max);
    PyObject *kept = PyList_New(0);
    Py_ssize_t i = 0;
    for (; kept && i < PyList_GET_SIZE(pieces); i++) {
        hf_piece piece;
        if (!read_piece(PyList_GET_ITEM(pieces, i), &piece)) { Py_CLEAR(kept); break; }
        if (i && is_full(&v)) break;
        if (piece.size <= 0 || piece.size > end - p) break;
        int verdict = look(&v, p, &piece);
        if (verdict == STRANGE || (verdict == PASSES && !keep(&v, &piece))) break;
        if (verdict == PASSES) {
            PyObject *position = PyLong_FromSsize_t(i);
            if (!position || PyList_Append(kept, position)) Py_CLEAR(kept);
            Py_XDECREF(position);
        }
        p += piece.size;
    }
    PyBuffer_Release(&code);
    PyBuffer_Release(&data);
    return kept ? Py_BuildValue("(NnL)", kept, i, (long long)v.program.cost) : NULL;
}

/* ---- records of a queue ---- */

enum { GOES_ON, FULL, STUCK };

/* Looks at records of one stretch of the log, *done of them; those that pass are kept. */
static int look_at(sieve *v, const uint8_t *first, const hf_piece *pieces, int count, hf_piece *kept, int *done) {
    for (*done = 0; *done < count; ++*done) {
        const hf_piece *piece = &pieces[*done];
        if (is_full(v)) return FULL;
        int verdict = look(v, first + (piece->physical - pieces->physical), piece);
        if (verdict == STRANGE) return STUCK;
        if (verdict == PASSES && !keep(v, piece)) return FULL;
        if (verdict == PASSES) kept[v->count - 1] = *piece;
    }
    return GOES_ON;
}

static int64_t cost_of_asking(const hf_piece *pieces, int count) {
    const hf_piece *last = &pieces[count - 1];
    return ASKED_COST + (last->physical + last->size - pieces->physical) / PAGE_BYTES * PAGE_COST;
}

/* The pieces that lie in the log as far as it is written, in one stretch of it after the other. */
static int look_through(sieve *v, hf_journal *j, const hf_piece *pieces, int count, hf_piece *kept, int *looked) {
    int sane = 0, state = GOES_ON, done;
    while (sane < count && pieces[sane].physical >= 0 && pieces[sane].physical <= j->written - pieces[sane].size) sane++;
    for (*looked = 0; state == GOES_ON && *looked < sane; *looked += done) {
        const uint8_t *first;
        int near = hf_journal_look(j, pieces + *looked, sane - *looked, &first);
        if (near <= 0) return STUCK; /* cold, not in the log any more, or nobody knows */
        v->program.cost += cost_of_asking(pieces + *looked, near);
        state = look_at(v, first, pieces + *looked, near, kept, &done);
    }
    return state == GOES_ON && sane < count ? STUCK : state;
}

void hf_queue_sift(hf_queue *q, hf_journal *j, const hf_sought *sought, int64_t from, int64_t stop, hf_piece *kept, hf_sifted *out) {
    hf_limits each = {.count_max = AT_ONCE, .memory_count_max = AT_ONCE, .disk_count_max = AT_ONCE, .bytes_max = INT64_MAX,
                      .memory_bytes_max = INT64_MAX, .disk_bytes_max = INT64_MAX};
    hf_piece pieces[AT_ONCE];
    hf_selection s;
    sieve v;
    int state = GOES_ON, looked;
    begin(&v, sought->program, sought->count_max, sought->bytes_max, sought->cost_max);
    *out = (hf_sifted){.next = from};
    if (stop > q->max) stop = q->max;
    while (state == GOES_ON && out->next < stop) {
        each.scan_max = stop - out->next < AT_ONCE ? (int32_t)(stop - out->next) : AT_ONCE;
        hf_queue_select(q, out->next, &each, NULL, -1, pieces, &s);
        state = look_through(&v, j, pieces, s.count, kept, &looked);
        out->looked += looked;
        out->next = looked < s.count ? pieces[looked].index : s.next;
        if (state == GOES_ON && s.missing) state = STUCK;
    }
    out->is_done = state != STUCK;
    out->count = (int)v.count;
    out->bytes = v.bytes;
    out->cost = v.program.cost;
}

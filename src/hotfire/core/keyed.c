/* Which records of the log have a key: found by the index, read and judged without the interpreter lock, so that any number
   of queries leave the loop alone. Its plain twin is Looker.by_key_plain in store/queries.py. */
#include "store.h"
#include <errno.h>
#include <unistd.h>

#define FIRST_BYTES_MAX 4096        /* of a record of unknown size: most are smaller, */
#define FIRST_BYTES_MIN 512         /* and as a rule about as large as the one before */
#define ROOM_BYTES (16 << 10)
#define TOGETHER_BYTES_MAX (256 << 10) /* found by one call, beyond which no other question is begun */
#define TOGETHER_NS_MAX 2000000     /* likewise: who waits behind a slow disk is not to keep back what was found before */
#define COUNT_MAX 1024

typedef struct { int64_t start; int fd; } segment;
typedef struct {
    Py_buffer *views;               /* of the files, held while we look */
    hf_index **files;               /* of the index, newest first */
    segment *segments;              /* of the log, in its order */
    Py_ssize_t files_count, segments_count;
    long long segment_bytes, readable, summed_from, record_bytes_max, candidates_max, bytes_max;
} place;
typedef struct { int64_t physical; size_t at, size; } piece;
typedef struct {
    hf_slice topic, key;
    long long begin, end;
    Py_ssize_t count_max, count;
    piece *found;                   /* where the records lie in `data` */
    uint8_t *data;
    size_t used, room, first;       /* first: bytes to be read of a record at first */
    int error;
} question;

static ssize_t read_whole(int fd, uint8_t *out, size_t size, int64_t position) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = pread(fd, out + done, size - done, (off_t)(position + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (!n) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* Room for so many bytes behind those that are used; NULL without memory. */
static uint8_t *room_for(question *q, size_t size) {
    if (q->used + size > q->room) {
        size_t room = q->room ? q->room : ROOM_BYTES;
        while (room < q->used + size) room *= 2;
        uint8_t *grown = realloc(q->data, room);
        if (!grown) { q->error = ENOMEM; return NULL; }
        q->data = grown;
        q->room = room;
    }
    return q->data + q->used;
}

static const segment *segment_at(const place *in, int64_t start) {
    Py_ssize_t low = 0, high = in->segments_count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (in->segments[middle].start < start) low = middle + 1;
        else high = middle;
    }
    return low < in->segments_count && in->segments[low].start == start ? &in->segments[low] : NULL;
}

/* Bytes of what begins at a log offset, read to behind what is used; 0 when it can be no record. */
static size_t read_record(const place *in, question *q, int64_t physical) {
    if (physical < 0 || physical >= in->readable) return 0;
    int64_t position = physical % in->segment_bytes, most = in->readable - physical;
    const segment *s = segment_at(in, physical - position);
    if (most > in->record_bytes_max) most = in->record_bytes_max;
    if (most > in->segment_bytes) most = in->segment_bytes;
    size_t size_max = (size_t)most, first = q->first < size_max ? q->first : size_max;
    uint8_t *p = s ? room_for(q, first) : NULL;
    if (!p) return 0;
    ssize_t got = read_whole(s->fd, p, first, position);
    if (got < 0) q->error = errno;
    if (got < 8) return 0;
    size_t size = get32(p);
    if (!size || size > size_max) return 0;
    if (size <= (size_t)got) return size;
    if (!(p = room_for(q, size))) return 0;
    ssize_t rest = read_whole(s->fd, p + got, size - (size_t)got, position + got);
    if (rest < 0) q->error = errno;
    return rest == (ssize_t)size - got ? size : 0;
}

/* Keeps the record that begins there if it is sound, of the topic and with the key. */
static void look_at(const place *in, question *q, int64_t physical) {
    for (Py_ssize_t i = 0; i < q->count; i++) if (q->found[i].physical == physical) return; /* two of its keys have one hash */
    size_t size = read_record(in, q, physical);
    hf_scanned s;
    if (!size || hf_scan_one(q->data + q->used, size, 1, in->summed_from, &s) || s.size != size || s.physical != physical) return;
    if (s.topic.size != q->topic.size || memcmp(s.topic.p, q->topic.p, s.topic.size) || !hf_record_has_key(s.properties, q->key)) return;
    Py_ssize_t i = q->count++; /* oldest first */
    for (; i && q->found[i - 1].physical > physical; i--) q->found[i] = q->found[i - 1];
    q->found[i] = (piece){physical, q->used, size};
    q->used += size;
    q->first = size + size / 8;
    if (q->first < FIRST_BYTES_MIN) q->first = FIRST_BYTES_MIN;
    if (q->first > FIRST_BYTES_MAX) q->first = FIRST_BYTES_MAX;
}

static int is_answered(const place *in, const question *q) {
    return q->error || q->count >= q->count_max || (long long)q->used > in->bytes_max;
}

static void answer(const place *in, question *q) {
    uint32_t hash = hf_key_hash(q->topic, HF_KEY, q->key);
    q->first = FIRST_BYTES_MAX;
    if (q->count_max > 0 && !(q->found = malloc((size_t)q->count_max * sizeof *q->found))) q->error = ENOMEM;
    for (Py_ssize_t f = 0; f < in->files_count && !is_answered(in, q); f++) {
        hf_chain chain = hf_chain_of(in->files[f], hash, q->begin, q->end);
        int64_t physical;
        for (long long n = 0; n < in->candidates_max && !is_answered(in, q) && hf_chain_next(&chain, &physical); n++) look_at(in, q, physical);
    }
}

/* How many of the questions are answered: all, or those before the others would have to wait too long. */
static Py_ssize_t answer_some(const place *in, question *questions, Py_ssize_t count) {
    int64_t until = hf_clock_ns() + TOGETHER_NS_MAX;
    size_t bytes = 0;
    Py_ssize_t i = 0;
    while (i < count) {
        answer(in, &questions[i]);
        bytes += questions[i++].used;
        if (bytes >= TOGETHER_BYTES_MAX || hf_clock_ns() >= until) break;
    }
    return i;
}

/* ---- Python face ---- */
static int take_questions(PyObject *given, question *out) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); i++) {
        question *q = &out[i];
        Py_ssize_t topic_size, key_size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(given, i), "y#y#nLL", &q->topic.p, &topic_size, &q->key.p, &key_size, &q->count_max, &q->begin, &q->end)) return 0;
        if (q->count_max > COUNT_MAX || topic_size > INT32_MAX || key_size > INT32_MAX) { PyErr_SetString(PyExc_ValueError, "count_max: 1024 at most"); return 0; }
        q->topic.size = (uint32_t)topic_size;
        q->key.size = (uint32_t)key_size;
    }
    return 1;
}

static int take_place(PyObject *files, PyObject *segments, place *in) {
    PyObject *start, *fd;
    for (Py_ssize_t at = 0; PyDict_Next(segments, &at, &start, &fd); in->segments_count++)
        in->segments[in->segments_count] = (segment){PyLong_AsLongLong(start), (int)PyLong_AsLong(fd)};
    if (PyErr_Occurred()) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(files); i++) {
        hf_index *x = (hf_index *)PyList_GET_ITEM(files, i);
        if (!PyObject_TypeCheck(x, &hf_index_type) || !x->view.obj) { PyErr_SetString(PyExc_ValueError, "files: indexes that are open"); return 0; }
        if (PyObject_GetBuffer(x->view.obj, &in->views[i], PyBUF_SIMPLE)) return 0; /* it stays while we look */
        in->files[in->files_count++] = x;
    }
    return 1;
}

static PyObject *answer_of(const question *q) {
    if (q->error) return PyObject_CallFunction(PyExc_OSError, "is", q->error, strerror(q->error));
    PyObject *all = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)q->used);
    if (!all) return NULL;
    uint8_t *p = (uint8_t *)PyBytes_AS_STRING(all);
    for (Py_ssize_t i = 0; i < q->count; i++) p = put_bytes(p, q->data + q->found[i].at, q->found[i].size);
    return all;
}

/* records_by_key(files, segments, bounds, questions) -> [records or OSError] of the first questions, one at least
   files: of the key index, newest first; segments: first offset -> descriptor, oldest first; bounds: (segment_bytes, readable,
   summed_from, record_bytes_max, candidates_max, bytes_max); questions: [(topic, key, count_max, begin_ms, end_ms)]. The records
   lie one behind the other, oldest first; of more than so many the newest, and so many bytes and one record more.
   One call for all: to give the interpreter up and want it back for each would hold up the loop as often. */
PyObject *hf_records_by_key(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *files, *segments, *given, *result = NULL;
    place in = {0};
    if (!PyArg_ParseTuple(args, "O!O!(LLLLLL)O!", &PyList_Type, &files, &PyDict_Type, &segments, &in.segment_bytes, &in.readable, &in.summed_from,
                          &in.record_bytes_max, &in.candidates_max, &in.bytes_max, &PyList_Type, &given)) return NULL;
    if (in.segment_bytes < 1) return PyErr_Format(PyExc_ValueError, "segment_bytes: 1 or more");
    Py_ssize_t count = PyList_GET_SIZE(given), answered = 0;
    in.files = PyMem_Calloc((size_t)PyList_GET_SIZE(files) + 1, sizeof *in.files);
    in.views = PyMem_Calloc((size_t)PyList_GET_SIZE(files) + 1, sizeof *in.views);
    in.segments = PyMem_Calloc((size_t)PyDict_GET_SIZE(segments) + 1, sizeof *in.segments);
    question *questions = PyMem_Calloc((size_t)count + 1, sizeof *questions);
    if (!in.files || !in.views || !in.segments || !questions) PyErr_NoMemory();
    else if (take_place(files, segments, &in) && take_questions(given, questions)) {
        Py_BEGIN_ALLOW_THREADS
        answered = answer_some(&in, questions, count);
        Py_END_ALLOW_THREADS
        result = PyList_New(answered);
    }
    for (Py_ssize_t i = 0; i < answered; i++) {
        PyObject *one = result ? answer_of(&questions[i]) : NULL;
        if (one) PyList_SET_ITEM(result, i, one);
        else Py_CLEAR(result);
        free(questions[i].found);
        free(questions[i].data);
    }
    for (Py_ssize_t i = 0; i < in.files_count; i++) PyBuffer_Release(&in.views[i]);
    PyMem_Free(in.files);
    PyMem_Free(in.views);
    PyMem_Free(in.segments);
    PyMem_Free(questions);
    return result;
}

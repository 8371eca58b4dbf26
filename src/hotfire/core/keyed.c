/* Which records of the log have a key: read and judged without the interpreter lock, so that any number of queries leave
   the loop alone. Its plain twin is Looker.keyed_plain in store/queries.py. */
#include "store.h"
#include <errno.h>
#include <unistd.h>

#define FIRST_BYTES 4096 /* of a record of unknown size: most are smaller */

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

/* The record at the place if it is sound, of the topic and with the key; NULL otherwise. May be `first`, else to be freed. */
static uint8_t *find(int fd, int64_t position, int64_t physical, size_t size_max, int64_t summed_from, hf_slice topic,
                     hf_slice key, uint8_t *first, size_t *size, int *error) {
    ssize_t got = read_whole(fd, first, FIRST_BYTES < size_max ? FIRST_BYTES : size_max, position);
    if (got < 0) *error = errno;
    if (got < 8) return NULL;
    *size = get32(first);
    if (!*size || *size > size_max) return NULL;
    uint8_t *data = first;
    if (*size > (size_t)got) {
        if (!(data = malloc(*size))) { *error = ENOMEM; return NULL; }
        got = read_whole(fd, data, *size, position);
        if (got < 0) *error = errno;
    }
    hf_scanned s;
    int found = got >= (ssize_t)*size && !hf_scan_one(data, *size, 1, summed_from, &s) && s.size == *size && s.physical == physical &&
                s.topic.size == topic.size && !memcmp(s.topic.p, topic.p, topic.size) && hf_record_has_key(s.properties, key);
    if (found) return data;
    if (data != first) free(data);
    return NULL;
}

typedef struct { int fd; int64_t position, physical; size_t size_max, size; uint8_t *data; } candidate;

static int take_places(PyObject *places, candidate *out, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        long long position, physical, size_max;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "iLLL", &out[i].fd, &position, &physical, &size_max)) return 0;
        out[i].position = position;
        out[i].physical = physical;
        out[i].size_max = size_max > 0 ? (size_t)size_max : 0;
    }
    return 1;
}

/* Looks at the candidates in order, without the interpreter lock, until enough are found. */
static int find_some(candidate *candidates, Py_ssize_t count, int64_t summed_from, hf_slice topic, hf_slice key, Py_ssize_t count_max,
                     Py_ssize_t bytes_max) {
    uint8_t first[FIRST_BYTES];
    int error = 0;
    for (Py_ssize_t i = 0; i < count && count_max > 0 && bytes_max >= 0 && !error; i++) {
        candidate *c = &candidates[i];
        uint8_t *data = c->size_max ? find(c->fd, c->position, c->physical, c->size_max, summed_from, topic, key, first, &c->size, &error) : NULL;
        if (data == first) {
            if ((data = malloc(c->size))) memcpy(data, first, c->size);
            else error = ENOMEM;
        }
        if (!data) continue;
        c->data = data;
        count_max--;
        bytes_max -= (Py_ssize_t)c->size;
    }
    return error;
}

/* keyed_records(places, summed_from, topic, key, count_max, bytes_max) -> [(physical, bytes)] of the records at these
   places, given as (fd, position, physical, size_max), that have the key; at most so many, and so many bytes and one more.
   One call for all: to give the interpreter up and want it back for each would hold up the loop as often. */
PyObject *hf_keyed_records(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *places, *result = NULL;
    long long summed_from;
    Py_buffer topic, key;
    Py_ssize_t count_max, bytes_max;
    if (!PyArg_ParseTuple(args, "O!Ly*y*nn", &PyList_Type, &places, &summed_from, &topic, &key, &count_max, &bytes_max)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(places);
    int error = 0;
    candidate *candidates = PyMem_Calloc((size_t)count + 1, sizeof *candidates);
    if (!candidates) PyErr_NoMemory();
    else if (take_places(places, candidates, count)) {
        Py_BEGIN_ALLOW_THREADS
        error = find_some(candidates, count, summed_from, (hf_slice){topic.buf, (uint32_t)topic.len},
                          (hf_slice){key.buf, (uint32_t)key.len}, count_max, bytes_max);
        Py_END_ALLOW_THREADS
        if (error) { errno = error; PyErr_SetFromErrno(PyExc_OSError); }
        else result = PyList_New(0);
    }
    for (Py_ssize_t i = 0; candidates && i < count; i++) {
        candidate *c = &candidates[i];
        if (!c->data) continue;
        PyObject *pair = result ? Py_BuildValue("(Ly#)", (long long)c->physical, (const char *)c->data, (Py_ssize_t)c->size) : NULL;
        if (result && (!pair || PyList_Append(result, pair))) Py_CLEAR(result);
        Py_XDECREF(pair);
        free(c->data);
    }
    PyMem_Free(candidates);
    PyBuffer_Release(&topic);
    PyBuffer_Release(&key);
    return result;
}

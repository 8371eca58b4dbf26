/* Whether the record at a place of the log has a key: read and judged without the interpreter lock, so that any number
   of queries leave the loop alone. Its plain twin is Looker.keyed in store/queries.py. */
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

/* keyed_record(fd, position, physical, size_max, summed_from, topic, key) -> its bytes or None */
PyObject *hf_keyed_record(PyObject *module, PyObject *args) {
    (void)module;
    int fd, error = 0;
    long long position, physical, size_max, summed_from;
    Py_buffer topic, key;
    if (!PyArg_ParseTuple(args, "iLLLLy*y*", &fd, &position, &physical, &size_max, &summed_from, &topic, &key)) return NULL;
    uint8_t first[FIRST_BYTES], *data = NULL;
    size_t size = 0;
    if (size_max > 0) {
        Py_BEGIN_ALLOW_THREADS
        data = find(fd, position, physical, (size_t)size_max, summed_from, (hf_slice){topic.buf, (uint32_t)topic.len},
                    (hf_slice){key.buf, (uint32_t)key.len}, first, &size, &error);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&topic);
    PyBuffer_Release(&key);
    if (error) { errno = error; return PyErr_SetFromErrno(PyExc_OSError); }
    if (!data) Py_RETURN_NONE;
    PyObject *result = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    if (data != first) free(data);
    return result;
}

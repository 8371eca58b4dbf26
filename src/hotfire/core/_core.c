/* The compiled core's front door. */
#include "store.h"
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef HOTFIRE_SOURCE_HASH
#define HOTFIRE_SOURCE_HASH ""
#endif

static PyObject *py_crc32(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I", &data, &crc)) return NULL;
    uint32_t result = hf_crc32(crc, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(result);
}

static PyObject *py_java_hash(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    int32_t result = hf_java_hash(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromLong(result);
}

static PyObject *py_key_hash(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer topic, key;
    if (!PyArg_ParseTuple(args, "y*y*", &topic, &key)) return NULL;
    uint32_t hash = hf_key_hash((hf_slice){topic.buf, (uint32_t)topic.len}, HF_KEY, (hf_slice){key.buf, (uint32_t)key.len});
    PyBuffer_Release(&topic);
    PyBuffer_Release(&key);
    return PyLong_FromUnsignedLong(hash);
}

static PyObject *slice_bytes(hf_slice s) { return PyBytes_FromStringAndSize((const char *)s.p, s.size); }

/* read_frame(data, frame_max) -> (code, flag, opaque, {key: value}, body), or a word: partial, strange, length */
static PyObject *py_read_frame(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    unsigned int frame_max;
    if (!PyArg_ParseTuple(args, "y*I", &data, &frame_max)) return NULL;
    hf_frame f;
    size_t frame_bytes;
    static const char *const words[] = {"", "partial", "strange", "length"};
    int verdict = hf_frame_read(data.buf, (size_t)data.len, frame_max, &f, &frame_bytes);
    PyObject *fields = NULL, *result = NULL;
    if (verdict != HF_FRAME_OK) { result = PyUnicode_FromString(words[verdict]); goto out; }
    fields = PyDict_New();
    for (int i = 0; fields && i < f.fields_count; i++) {
        hf_slice v = f.fields[i].value;
        PyObject *key = slice_bytes(f.fields[i].key), *value = NULL;
        if (f.fields[i].escaped) {
            uint8_t *plain = PyMem_Malloc(v.size ? v.size : 1);
            int64_t n = plain ? hf_unescape(v, plain) : -1;
            if (n >= 0) value = slice_bytes((hf_slice){plain, (uint32_t)n});
            else if (plain) { PyMem_Free(plain); Py_XDECREF(key); result = PyUnicode_FromString("strange"); goto out; }
            PyMem_Free(plain);
        } else value = slice_bytes(v);
        if (!key || !value || PyDict_SetItem(fields, key, value)) Py_CLEAR(fields);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (fields) result = Py_BuildValue("(iiiON)", f.code, f.flag, f.opaque, fields, slice_bytes(f.body));
out:
    Py_XDECREF(fields);
    PyBuffer_Release(&data);
    return result;
}

/* encode_record(...): the compiled twin of protocol.record.encode_record, for comparing the two */
static PyObject *py_encode_record(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    static char *names[] = {"topic", "body", "properties", "suffix", "born_host", "store_host", "queue_id", "flag", "sys_flag",
                            "reconsume_times", "queue_offset", "physical_offset", "born_timestamp", "store_timestamp",
                            "prepared_offset", "append_crc", NULL};
    Py_buffer topic, body, properties, suffix, born, stored;
    hf_record r = {0};
    long long queue_offset, physical, born_at, stored_at, prepared;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*y*y*y*y*iiiiLLLLLp", names, &topic, &body, &properties, &suffix, &born, &stored,
                                     &r.queue_id, &r.flag, &r.sys_flag, &r.reconsume_times, &queue_offset, &physical, &born_at,
                                     &stored_at, &prepared, &r.append_crc)) return NULL;
#define SLICE(b) ((hf_slice){b.buf, (uint32_t)b.len})
    r.topic = SLICE(topic); r.body = SLICE(body); r.properties = SLICE(properties); r.suffix = SLICE(suffix);
    r.born_host = SLICE(born); r.store_host = SLICE(stored);
#undef SLICE
    r.queue_offset = queue_offset; r.physical_offset = physical; r.born_timestamp = born_at;
    r.store_timestamp = stored_at; r.prepared_offset = prepared;
    PyObject *out = NULL;
    size_t size = hf_record_size(&r);
    if (!size) PyErr_SetString(PyExc_ValueError, "properties over 32767 bytes or topic over 255");
    else if ((out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size))) hf_record_write(&r, size, (uint8_t *)PyBytes_AS_STRING(out));
    PyBuffer_Release(&topic); PyBuffer_Release(&body); PyBuffer_Release(&properties);
    PyBuffer_Release(&suffix); PyBuffer_Release(&born); PyBuffer_Release(&stored);
    return out;
}

static PyObject *py_sync_map(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    Py_ssize_t start, size;
    if (!PyArg_ParseTuple(args, "y*nn", &view, &start, &size)) return NULL;
    int failed = start < 0 || size < 0 || start > view.len - size ? EINVAL : 0;
    if (!failed) {
        uintptr_t first = ((uintptr_t)view.buf + (uintptr_t)start) & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
        size_t bytes = (uintptr_t)view.buf + (uintptr_t)(start + size) - first;
        Py_BEGIN_ALLOW_THREADS
        if (msync((void *)first, bytes, MS_SYNC)) failed = errno;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    if (failed) { errno = failed; return PyErr_SetFromErrno(PyExc_OSError); }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"crc32", py_crc32, METH_VARARGS, "crc32(data, crc=0)"},
    {"java_hash", py_java_hash, METH_VARARGS, "java_hash(utf8) -> signed 32-bit hash of the string"},
    {"key_hash", py_key_hash, METH_VARARGS, "key_hash(topic, key) -> what the key index files it under"},
    {"read_frame", py_read_frame, METH_VARARGS, "The lane's view of one frame."},
    {"encode_record", (PyCFunction)(void (*)(void))py_encode_record, METH_VARARGS | METH_KEYWORDS, "One stored record."},
    {"scan_records", hf_scan_records, METH_VARARGS, "scan_records(buffer, base, verify, summed_from, count_max) -> (entries, consumed, reason)"},
    {"derive_records", hf_derive_records, METH_VARARGS, "derive_records(buffer, base, summed_from, last_timestamp, queues, index) -> (records, consumed, last_timestamp)"},
    {"sync_map", py_sync_map, METH_VARARGS, "sync_map(mapped, start, size)"},
    {NULL}};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "hotfire.core._core", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__core(void) {
    PyTypeObject *const types[] = {&hf_queue_type, &hf_journal_type, &hf_reader_type, &hf_lane_type, &hf_index_type};
    const char *const names[] = {"Queue", "Journal", "Reader", "Lane", "KeyIndex"};
    PyObject *module = PyModule_Create(&module_def);
    if (!module) return NULL;
    for (int i = 0; i < 5; i++) {
        if (PyType_Ready(types[i])) return NULL;
        Py_INCREF(types[i]);
        if (PyModule_AddObject(module, names[i], (PyObject *)types[i])) return NULL;
    }
    PyModule_AddStringConstant(module, "SOURCE_HASH", HOTFIRE_SOURCE_HASH);
    return module;
}

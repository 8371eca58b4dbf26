/* The compiled core's front door. */
#include "loadgen.h"
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

static int read_bytes(PyObject *value, hf_slice *out) {
    char *p;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(value, &p, &size)) return 0;
    *out = (hf_slice){(const uint8_t *)p, (uint32_t)size};
    return 1;
}

static int read_int32(PyObject *value, int32_t *out) {
    long v = PyLong_AsLong(value);
    if (v == -1 && PyErr_Occurred()) return 0;
    if (v < INT32_MIN || v > INT32_MAX) { PyErr_SetString(PyExc_OverflowError, "more than 32 bits"); return 0; }
    *out = (int32_t)v;
    return 1;
}

static int read_int64(PyObject *value, int64_t *out) {
    *out = PyLong_AsLongLong(value);
    return *out != -1 || !PyErr_Occurred();
}

/* encode_record(topic, body, properties, suffix, born_host, store_host, queue_id, flag, sys_flag, reconsume_times, queue_offset,
   physical_offset, born_timestamp, store_timestamp, prepared_offset, append_crc): protocol.record.encode_record, compiled */
static PyObject *py_encode_record(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    hf_record r = {0};
    if (count != 16) return PyErr_Format(PyExc_TypeError, "encode_record: 16 arguments, %zd given", count);
    hf_slice *const bytes[] = {&r.topic, &r.body, &r.properties, &r.suffix, &r.born_host, &r.store_host};
    int32_t *const small[] = {&r.queue_id, &r.flag, &r.sys_flag, &r.reconsume_times};
    int64_t *const large[] = {&r.queue_offset, &r.physical_offset, &r.born_timestamp, &r.store_timestamp, &r.prepared_offset};
    for (int i = 0; i < 6; i++) if (!read_bytes(args[i], bytes[i])) return NULL;
    for (int i = 0; i < 4; i++) if (!read_int32(args[6 + i], small[i])) return NULL;
    for (int i = 0; i < 5; i++) if (!read_int64(args[10 + i], large[i])) return NULL;
    if ((r.append_crc = PyObject_IsTrue(args[15])) < 0) return NULL;
    size_t size = hf_record_size(&r);
    if (!size) return PyErr_Format(PyExc_ValueError, "properties over 32767 bytes or topic over 255");
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (out) hf_record_write(&r, size, (uint8_t *)PyBytes_AS_STRING(out));
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

PyObject *hf_encode_rows(PyObject *module, PyObject *args);
PyObject *hf_spread_rows(PyObject *module, PyObject *args);

static PyMethodDef functions[] = {
    {"crc32", py_crc32, METH_VARARGS, "crc32(data, crc=0)"},
    {"java_hash", py_java_hash, METH_VARARGS, "java_hash(utf8) -> signed 32-bit hash of the string"},
    {"key_hash", py_key_hash, METH_VARARGS, "key_hash(topic, key) -> what the key index files it under"},
    {"read_frame", py_read_frame, METH_VARARGS, "The lane's view of one frame."},
    {"encode_record", (PyCFunction)(void (*)(void))py_encode_record, METH_FASTCALL, "One stored record."},
    {"scan_records", hf_scan_records, METH_VARARGS, "scan_records(buffer, base, verify, summed_from, count_max) -> (entries, consumed, reason)"},
    {"records_by_key", hf_records_by_key, METH_VARARGS, "records_by_key(files, segments, bounds, questions) -> [records or OSError]"},
    {"sound_records", hf_sound_records, METH_VARARGS, "sound_records(data, pieces, topic, queue_id, summed_from) -> how many before the first that is harmed"},
    {"derive_records", hf_derive_records, METH_VARARGS, "derive_records(buffer, base, summed_from, last_timestamp, queues, index) -> (records, consumed, last_timestamp)"},
    {"encode_rows", hf_encode_rows, METH_VARARGS, "encode_rows(columns, rows, at, end, ids, prefix, counter, dropped, bytes_max, count_max) -> (messages, next, counter)"},
    {"spread_rows", hf_spread_rows, METH_VARARGS, "spread_rows(count, text, rows, at, end, queues) -> a queue for each row"},
    {"sql_verdict", hf_sql_verdict, METH_VARARGS, "sql_verdict(program, properties) -> 1, 0, -1 for NULL or -2 for an error"},
    {"sift_records", hf_sift_records, METH_VARARGS, "sift_records(program, data, pieces, count_max, bytes_max, cost_max) -> (kept, looked, cost)"},
    {"timer_units", hf_timer_units, METH_VARARGS, "timer_units(data, wheel, now_ms, read_s, window_ms, end, file_bytes) -> (consumed, units, heads, topics, record end, next queue offset)"},
    {"sync_map", py_sync_map, METH_VARARGS, "sync_map(mapped, start, size)"},
    {NULL}};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "hotfire.core._core", .m_size = -1, .m_methods = functions};

extern PyTypeObject hf_sent_type, hf_sendpipe_type, hf_unpacker_type, hf_columns_type, hf_memory_type, hf_rowids_type;
int hf_sendpipe_ready(void);

PyMODINIT_FUNC PyInit__core(void) {
    PyTypeObject *const types[] = {&hf_queue_type, &hf_journal_type, &hf_reader_type, &hf_lane_type, &hf_index_type, &hf_link_type,
                                   &hf_replies_type, &hf_sockets_type, &hf_sent_type, &hf_sendpipe_type, &hf_load_type,
                                   &hf_unpacker_type, &hf_columns_type, &hf_memory_type, &hf_rowids_type, &hf_halves_type};
    const char *const names[] = {"Queue", "Journal", "Reader", "Lane", "KeyIndex", "Link", "Replies", "Sockets", "Sent", "SendPipe", "Load",
                                 "Unpacker", "Columns", "Memory", "RowIds", "Halves"};
    PyObject *module = PyModule_Create(&module_def);
    if (!module || !hf_sendpipe_ready()) return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i])) return NULL;
        Py_INCREF(types[i]);
        if (PyModule_AddObject(module, names[i], (PyObject *)types[i])) return NULL;
    }
    PyModule_AddIntConstant(module, "BULK_BYTES", HF_BULK_BYTES);
    PyModule_AddStringConstant(module, "SOURCE_HASH", HOTFIRE_SOURCE_HASH);
    return module;
}

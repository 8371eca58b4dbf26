/* Recovery's ordinary records in one pass: sound, of a queue whose next entry has its place in memory, its keys with
   room in the index. It is store/deriving.py's `derive`, compiled; the first record that asks for anything else is left to it. */
#include "store.h"

#define KEYS_MAX 64                /* of one record */
#define TRANSACTION_OPEN 0x4       /* in the flags of a prepared message and of a rollback, which get no queue entry */
#define INNER_BATCH 0x80

/* The queue of this record, borrowed; NULL, perhaps with an exception, when it is not in the table. */
static hf_queue *queue_of(PyObject *queues, const hf_scanned *s) {
    PyObject *name = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)s->topic.size + 4);
    if (!name) return NULL;
    put32(put_bytes((uint8_t *)PyBytes_AS_STRING(name), s->topic.p, s->topic.size), (uint32_t)s->queue_id);
    PyObject *queue = PyDict_GetItemWithError(queues, name);
    Py_DECREF(name);
    return queue && PyObject_TypeCheck(queue, &hf_queue_type) ? (hf_queue *)queue : NULL;
}

/* Queue entry and keys of one record; 0, and nothing changed, when it is not an ordinary one. */
static int derive_one(const hf_scanned *s, PyObject *queues, hf_index *index) {
    if (s->sys_flag & (TRANSACTION_OPEN | INNER_BATCH)) return 0;
    hf_queue *q = queue_of(queues, s);
    if (!q || (q->extend && q->extend != Py_None) || s->queue_offset > q->max) return 0;
    uint8_t *entry = NULL; /* stays so for one that is there already */
    if (s->queue_offset == q->max && !(entry = hf_queue_entry(q, s->queue_offset))) return 0;
    if (index) {
        uint32_t hashes[KEYS_MAX];
        int count = hf_record_keys(s->topic, s->properties, hashes, KEYS_MAX);
        int32_t room = (index->entries < index->reserved ? index->entries : index->reserved) - index->next;
        if (count > KEYS_MAX || count > room) return 0;
        for (int i = 0; i < count; i++) hf_index_put(index, hashes[i], s->physical, s->store_timestamp);
    }
    if (entry) {
        put64(put32(put64(entry, (uint64_t)s->physical), s->size), (uint64_t)hf_tags_code(s->properties));
        q->max = s->queue_offset + 1;
    }
    return 1;
}

/* derive_records(buffer, base, summed_from, last_timestamp, queues, index) -> (records, consumed, last_timestamp)
   queues: topic and four bytes of queue id -> Queue, those whose entries hold plain tags only; index: a KeyIndex or None.
   Stops, with everything before it done, at the first record that is not ordinary. */
PyObject *hf_derive_records(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    long long base, summed_from, last;
    PyObject *queues, *index;
    if (!PyArg_ParseTuple(args, "y*LLLO!O", &view, &base, &summed_from, &last, &PyDict_Type, &queues, &index)) return NULL;
    Py_ssize_t records = 0;
    size_t at = 0, size = (size_t)view.len;
    if (index != Py_None && !PyObject_TypeCheck(index, &hf_index_type)) PyErr_SetString(PyExc_TypeError, "index: a KeyIndex or None");
    else if (index != Py_None && !((hf_index *)index)->view.obj) PyErr_SetString(PyExc_ValueError, "index is closed");
    else for (;;) {
        hf_scanned s;
        if (hf_scan_one((uint8_t *)view.buf + at, size - at, 1, summed_from, &s)) break;
        if (s.physical != base + (int64_t)at || s.store_timestamp < last) break;
        if (!derive_one(&s, queues, index == Py_None ? NULL : (hf_index *)index)) break;
        last = s.store_timestamp;
        at += s.size;
        records++;
    }
    PyBuffer_Release(&view);
    if (PyErr_Occurred()) return NULL;
    return Py_BuildValue("(nnL)", records, (Py_ssize_t)at, last);
}

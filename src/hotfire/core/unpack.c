/* The records of a pull's answer -> messages for the application. client/unpacking.py is the specification: this
   takes the run of ordinary records from a place on, and stops before the first other one, which goes that road. */
#include "store.h"

#define MAGIC_V1 0xDAA320A7u
#define BODY_AT 88              /* all before the body of a record with IPv4 hosts */
#define RECORD_MIN 91           /* and the topic's length, and that of the properties */
#define UNUSUAL (0x1 | 0x10 | 0x20 | 0x40 | 0x80) /* compressed, IPv6 hosts, batches */
#define NAMES_MAX 64            /* names of properties that are remembered */
#define NAME_BYTES_MAX 32

enum { TOPIC, BODY, TAG, KEYS, PROPERTIES, FLAG, QUEUE, QUEUE_OFFSET, MESSAGE_ID, PLACE_ID, BORN_MS, BORN_HOST, STORE_MS,
       STORE_HOST, RECONSUME_TIMES, COMPRESSION, FIELDS };
static const char *const field_names[FIELDS] = {
    "topic", "body", "tag", "keys", "properties", "flag", "queue", "queue_offset", "message_id", "offset_message_id",
    "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "compression"};

typedef struct { uint8_t size; char bytes[NAME_BYTES_MAX]; PyObject *text; } name;
typedef struct { uint8_t bytes[8]; PyObject *text; } host;

typedef struct {
    PyObject_HEAD
    PyTypeObject *type;
    Py_ssize_t places[FIELDS];  /* of the fields in an instance */
    PyObject *no_keys, *tags, *keys, *unique; /* names of properties that are fields, too */
    host born, store;           /* the last ones: clients and brokers are few, messages are many */
    name names[NAMES_MAX];      /* by a hash of the first and last byte and the size; the newest stays */
} unpacker;

static PyObject *new_ref(PyObject *object) { Py_INCREF(object); return object; }

/* --- its making --------------------------------------------------------------------------------------------- */

static int find_places(unpacker *self, PyTypeObject *type) {
    for (int i = 0; i < FIELDS; i++) {
        PyObject *found = PyObject_GetAttrString((PyObject *)type, field_names[i]);
        if (!found) return -1;
        int is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type);
        if (is_slot) self->places[i] = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (!is_slot) { PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, field_names[i]); return -1; }
    }
    return 0;
}

static int unpacker_init(unpacker *self, PyObject *args, PyObject *kwargs) {
    PyObject *type;
    if (kwargs && PyDict_GET_SIZE(kwargs)) { PyErr_SetString(PyExc_TypeError, "Unpacker: no keywords"); return -1; }
    if (!PyArg_ParseTuple(args, "O!", &PyType_Type, &type)) return -1;
    if (self->type || self->no_keys) { PyErr_SetString(PyExc_TypeError, "Unpacker: made already"); return -1; }
    self->no_keys = PyTuple_New(0);
    self->tags = PyUnicode_InternFromString("TAGS");
    self->keys = PyUnicode_InternFromString("KEYS");
    self->unique = PyUnicode_InternFromString("UNIQ_KEY");
    if (!self->no_keys || !self->tags || !self->keys || !self->unique || find_places(self, (PyTypeObject *)type)) return -1;
    self->type = (PyTypeObject *)new_ref(type);
    return 0;
}

static void unpacker_dealloc(unpacker *self) {
    Py_XDECREF(self->type);
    Py_XDECREF(self->no_keys);
    Py_XDECREF(self->tags);
    Py_XDECREF(self->keys);
    Py_XDECREF(self->unique);
    Py_XDECREF(self->born.text);
    Py_XDECREF(self->store.text);
    for (int i = 0; i < NAMES_MAX; i++) Py_XDECREF(self->names[i].text);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* --- parts of a message ------------------------------------------------------------------------------------- */

static PyObject *text_of(const uint8_t *p, size_t size) { return PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)size, "replace"); }

/* A property's name; most are seen again and again. */
static PyObject *name_of(unpacker *self, const uint8_t *p, size_t size) {
    if (size > NAME_BYTES_MAX) return text_of(p, size);
    name *kept = &self->names[(p[0] * 7u + p[size - 1] * 3u + size) % NAMES_MAX];
    if (!kept->text || kept->size != size || memcmp(kept->bytes, p, size)) {
        PyObject *text = text_of(p, size);
        if (!text) return NULL;
        Py_XSETREF(kept->text, text);
        kept->size = (uint8_t)size;
        memcpy(kept->bytes, p, size);
    }
    return new_ref(kept->text);
}

static PyObject *properties_of(unpacker *self, const uint8_t *p, const uint8_t *end) {
    PyObject *properties = PyDict_New();
    while (properties && p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const uint8_t *cut = memchr(p, 1, (size_t)(stop - p));
        if (cut && cut > p && cut + 1 < stop) {
            PyObject *key = name_of(self, p, (size_t)(cut - p)), *value = key ? text_of(cut + 1, (size_t)(stop - cut - 1)) : NULL;
            if (!value || PyDict_SetItem(properties, key, value)) Py_CLEAR(properties);
            Py_XDECREF(key);
            Py_XDECREF(value);
        }
        p = stop + 1;
    }
    return properties;
}

static PyObject *host_of(host *last, const uint8_t *p) {
    if (!last->text || memcmp(last->bytes, p, 8)) {
        PyObject *text = PyUnicode_FromFormat("%d.%d.%d.%d:%d", p[0], p[1], p[2], p[3], (int)(int32_t)get32(p + 4));
        if (!text) return NULL;
        Py_XSETREF(last->text, text);
        memcpy(last->bytes, p, 8);
    }
    return new_ref(last->text);
}

static PyObject *place_id_of(const uint8_t *record) {
    static const char digits[] = "0123456789ABCDEF";
    PyObject *text = PyUnicode_New(32, 127);
    if (!text) return NULL;
    Py_UCS1 *out = PyUnicode_1BYTE_DATA(text);
    for (int i = 0; i < 16; i++) {
        uint8_t byte = i < 8 ? record[64 + i] : record[28 + i - 8]; /* the store's address, then the place in the log */
        *out++ = (Py_UCS1)digits[byte >> 4];
        *out++ = (Py_UCS1)digits[byte & 15];
    }
    return text;
}

static PyObject *keys_of(unpacker *self, PyObject *text) {
    if (!text) return new_ref(self->no_keys);
    PyObject *words = PyUnicode_Split(text, NULL, -1), *keys = words ? PyList_AsTuple(words) : NULL;
    Py_XDECREF(words);
    return keys;
}

/* --- a message ---------------------------------------------------------------------------------------------- */

typedef struct { const uint8_t *p, *body, *properties, *properties_end, *end; } found;

/* 1 when an ordinary, unharmed record of the topic and queue begins at p. */
static int find_record(const uint8_t *p, size_t left, hf_slice topic, int32_t queue_id, found *out) {
    if (left < RECORD_MIN) return 0;
    size_t size = get32(p), body = get32(p + 84);
    if (get32(p + 4) != MAGIC_V1 || (get32(p + 36) & UNUSUAL) || (int32_t)get32(p + 12) != queue_id) return 0;
    if (size > left || body > left || BODY_AT + body + 1 + topic.size + 2 > size) return 0;
    const uint8_t *at = p + BODY_AT + body;
    if (at[0] != topic.size || memcmp(at + 1, topic.p, topic.size)) return 0;
    at += 1 + topic.size;
    if (at + 2 + get16(at) != p + size) return 0;
    if ((hf_crc32(0, p + BODY_AT, body) & 0x7fffffff) != get32(p + 8)) return 0;
    *out = (found){p, p + BODY_AT, at + 2, p + size, p + size};
    if (out->end - out->properties >= HF_CRC_BYTES && !memcmp(out->end - HF_CRC_BYTES, "__CRC32#\x01", 9)) out->properties_end -= HF_CRC_BYTES;
    return 1;
}

static PyObject *message_of(unpacker *self, const found *f, PyObject *properties, PyObject *topic, PyObject *queue) {
    PyObject *message = self->type->tp_alloc(self->type, 0);
    if (!message) return NULL;
    PyObject *tag = PyDict_GetItemWithError(properties, self->tags), *id = PyDict_GetItemWithError(properties, self->unique), *place = place_id_of(f->p);
    PyObject *values[FIELDS] = {
        [TOPIC] = new_ref(topic),
        [BODY] = PyBytes_FromStringAndSize((const char *)f->body, (Py_ssize_t)get32(f->p + 84)),
        [TAG] = new_ref(tag ? tag : Py_None),
        [KEYS] = keys_of(self, PyDict_GetItemWithError(properties, self->keys)),
        [PROPERTIES] = new_ref(properties),
        [FLAG] = PyLong_FromLong((int32_t)get32(f->p + 16)),
        [QUEUE] = new_ref(queue),
        [QUEUE_OFFSET] = PyLong_FromLongLong((int64_t)get64(f->p + 20)),
        [MESSAGE_ID] = id ? new_ref(id) : (Py_XINCREF(place), place),
        [PLACE_ID] = place,
        [BORN_MS] = PyLong_FromLongLong((int64_t)get64(f->p + 40)),
        [BORN_HOST] = host_of(&self->born, f->p + 48),
        [STORE_MS] = PyLong_FromLongLong((int64_t)get64(f->p + 56)),
        [STORE_HOST] = host_of(&self->store, f->p + 64),
        [RECONSUME_TIMES] = PyLong_FromLong((int32_t)get32(f->p + 72)),
        [COMPRESSION] = new_ref(Py_None),
    };
    int failed = 0;
    for (int i = 0; i < FIELDS; i++) {
        failed |= !values[i];
        *(PyObject **)((char *)message + self->places[i]) = values[i]; /* its own now; an empty slot was NULL */
    }
    if (failed) Py_CLEAR(message);
    return message;
}

/* run(data, at, topic, topic_utf8, queue, queue_id, tags, messages) -> where the first record begins that is not ordinary */
static PyObject *unpacker_run(unpacker *self, PyObject *args) {
    Py_buffer data;
    Py_ssize_t at;
    PyObject *topic, *topic_bytes, *queue, *tags, *messages;
    int queue_id;
    if (!self->type) return PyErr_Format(PyExc_TypeError, "Unpacker: not made with a type");
    if (!PyArg_ParseTuple(args, "y*nUO!OiOO!", &data, &at, &topic, &PyBytes_Type, &topic_bytes, &queue, &queue_id, &tags,
                          &PyList_Type, &messages)) return NULL;
    hf_slice name = {(const uint8_t *)PyBytes_AS_STRING(topic_bytes), (uint32_t)PyBytes_GET_SIZE(topic_bytes)};
    int all = PyObject_IsTrue(tags) ? 0 : 1, failed = at < 0 || at > data.len || PyErr_Occurred() != NULL;
    if (failed && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "run: a place outside the data");
    found f;
    while (!failed && find_record((const uint8_t *)data.buf + at, (size_t)(data.len - at), name, queue_id, &f)) {
        PyObject *properties = properties_of(self, f.properties, f.properties_end);
        PyObject *tag = properties ? PyDict_GetItemWithError(properties, self->tags) : NULL;
        int wanted = !properties ? -1 : all ? 1 : PySequence_Contains(tags, tag ? tag : Py_None);
        PyObject *message = wanted > 0 ? message_of(self, &f, properties, topic, queue) : NULL;
        failed = wanted < 0 || (wanted && (!message || PyList_Append(messages, message)));
        Py_XDECREF(message);
        Py_XDECREF(properties);
        at += f.end - f.p;
    }
    PyBuffer_Release(&data);
    return failed ? NULL : PyLong_FromSsize_t(at);
}

static PyMethodDef unpacker_methods[] = {
    {"run", (PyCFunction)unpacker_run, METH_VARARGS, "run(data, at, topic, topic_utf8, queue, queue_id, tags, messages) -> at"},
    {NULL}};

PyTypeObject hf_unpacker_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.Unpacker",
    .tp_basicsize = sizeof(unpacker),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Makes messages of a given type, whose fields are slots, of ordinary records.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)unpacker_init,
    .tp_dealloc = (destructor)unpacker_dealloc,
    .tp_methods = unpacker_methods,
};

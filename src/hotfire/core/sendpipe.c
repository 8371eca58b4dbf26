/* Many sends under way on one connection: frames written into one buffer, answers read in one call per read.
   plain_send.py is the specification, and a test holds the two equal. */
#include "store.h"
#include "header.h"

#define OPAQUE_FIRST 0x40000000u
#define OPAQUE_MASK 0x3fffffffu
#define SPAN_MAX 65536u
#define TEXT_MAX 1024
#define ID_MAX 56
#define PLACE_MAX 64

/* --- what a sender gets ------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *queue, *transaction; /* transaction NULL: none, unless it is the message's id */
    int64_t queue_offset;
    int32_t code;
    uint8_t id_size, place_size, transaction_is_id;
    char id[ID_MAX], place[PLACE_MAX];
    PyObject *long_id, *long_place; /* of results made in Python, whatever their size */
} sent;

static void sent_dealloc(sent *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->queue);
    Py_XDECREF(self->transaction);
    Py_XDECREF(self->long_id);
    Py_XDECREF(self->long_place);
    Py_TYPE(self)->tp_free((PyObject *)self); /* a subclass lets go of its type by itself */
}

static int sent_traverse(sent *self, visitproc visit, void *arg) {
    Py_VISIT(self->queue);
    Py_VISIT(self->transaction);
    return 0;
}

static int sent_clear(sent *self) {
    Py_CLEAR(self->queue);
    Py_CLEAR(self->transaction);
    return 0;
}

static int sent_init(sent *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"code", "message_id", "offset_message_id", "queue", "queue_offset", "transaction_id", NULL};
    PyObject *id, *place, *queue, *transaction = Py_None;
    int code;
    long long offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iUUOL|O", names, &code, &id, &place, &queue, &offset, &transaction)) return -1;
    self->code = code;
    self->queue_offset = offset;
    Py_INCREF(id);
    Py_XSETREF(self->long_id, id);
    Py_INCREF(place);
    Py_XSETREF(self->long_place, place);
    Py_INCREF(queue);
    Py_XSETREF(self->queue, queue);
    self->transaction_is_id = 0;
    Py_INCREF(transaction);
    Py_XSETREF(self->transaction, transaction);
    return 0;
}

static PyObject *new_ref(PyObject *object) { Py_INCREF(object); return object; }

static PyObject *sent_code(sent *self, void *closure) { (void)closure; return PyLong_FromLong(self->code); }
static PyObject *sent_offset(sent *self, void *closure) { (void)closure; return PyLong_FromLongLong(self->queue_offset); }
static PyObject *sent_queue(sent *self, void *closure) { (void)closure; return new_ref(self->queue ? self->queue : Py_None); }
static PyObject *sent_id(sent *self, void *closure) {
    (void)closure;
    return self->long_id ? new_ref(self->long_id) : PyUnicode_FromStringAndSize(self->id, self->id_size);
}
static PyObject *sent_place(sent *self, void *closure) {
    (void)closure;
    return self->long_place ? new_ref(self->long_place) : PyUnicode_FromStringAndSize(self->place, self->place_size);
}
static PyObject *sent_transaction(sent *self, void *closure) {
    if (self->transaction_is_id) return sent_id(self, closure);
    return new_ref(self->transaction ? self->transaction : Py_None);
}

static PyGetSetDef sent_getset[] = {
    {"code", (getter)sent_code, NULL, "The answer's code.", NULL},
    {"message_id", (getter)sent_id, NULL, "The id the producer gave it.", NULL},
    {"offset_message_id", (getter)sent_place, NULL, "The id of its place in the log.", NULL},
    {"queue", (getter)sent_queue, NULL, "The queue it lies in.", NULL},
    {"queue_offset", (getter)sent_offset, NULL, "Its place in the queue.", NULL},
    {"transaction_id", (getter)sent_transaction, NULL, "The broker's id of the transaction, if any.", NULL},
    {NULL}};

PyTypeObject hf_sent_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.Sent",
    .tp_basicsize = sizeof(sent),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Where a message was stored.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)sent_init,
    .tp_dealloc = (destructor)sent_dealloc,
    .tp_traverse = (traverseproc)sent_traverse,
    .tp_clear = (inquiry)sent_clear,
    .tp_getset = sent_getset,
};

/* --- sends under way ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject *future, *message, *target; /* future NULL: answered */
    double deadline;
    uint8_t id_size;
    char id[ID_MAX];
} entry;

typedef struct {
    PyObject_HEAD
    PyObject *message_type;
    PyTypeObject *result_type;
    char prefix[ID_MAX];
    int prefix_size;
    Py_ssize_t body_max;
    uint32_t frame_max;
    uint16_t counter;
    uint64_t first, next; /* numbers of sends: the oldest not yet past, and the next */
    uint32_t capacity;    /* of the ring, a power of two */
    entry *ring;
    Py_ssize_t in_flight;
    uint8_t *out, *pending;
    size_t out_size, out_room, pending_size, pending_room;
} pipe_object;

static PyObject *name_body, *name_flag, *name_delay, *name_delay_ms, *name_deliver_at, *name_properties, *name_tag, *name_keys, *name_wait, *name_set_result;

static int make_room(uint8_t **buffer, size_t *room, size_t need) {
    if (need <= *room) return 1;
    size_t wanted = *room ? *room : 4096;
    while (wanted < need) wanted *= 2;
    uint8_t *grown = PyMem_Realloc(*buffer, wanted);
    if (!grown) { PyErr_NoMemory(); return 0; }
    *buffer = grown;
    *room = wanted;
    return 1;
}

static entry *at_number(pipe_object *self, uint64_t number) { return &self->ring[number & (self->capacity - 1)]; }

static int make_place(pipe_object *self) {
    if (self->next - self->first < self->capacity) return 1;
    uint32_t wanted = self->capacity ? self->capacity * 2 : 256;
    entry *grown = PyMem_Calloc(wanted, sizeof *grown);
    if (!grown) { PyErr_NoMemory(); return 0; }
    for (uint64_t number = self->first; number < self->next; number++)
        grown[number & (wanted - 1)] = *at_number(self, number);
    PyMem_Free(self->ring);
    self->ring = grown;
    self->capacity = wanted;
    return 1;
}

/* Moves the entry out, so that nothing that runs because of it finds it again. */
static entry take_entry(pipe_object *self, uint64_t number) {
    entry *slot = at_number(self, number), taken = *slot;
    memset(slot, 0, sizeof *slot);
    self->in_flight--;
    while (self->first < self->next && !at_number(self, self->first)->future) self->first++;
    return taken;
}

static void drop_entry(entry *taken) {
    Py_XDECREF(taken->future);
    Py_XDECREF(taken->message);
    Py_XDECREF(taken->target);
}

static entry *find_opaque(pipe_object *self, int32_t opaque, uint64_t *number) {
    if (opaque < (int32_t)OPAQUE_FIRST) return NULL;
    uint32_t step = ((uint32_t)opaque - OPAQUE_FIRST - (uint32_t)self->first) & OPAQUE_MASK;
    *number = self->first + step;
    if (*number >= self->next) return NULL;
    entry *slot = at_number(self, *number);
    return slot->future ? slot : NULL;
}

static int pipe_init(pipe_object *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"message_type", "result_type", "id_prefix", "body_max", "frame_max", NULL};
    PyObject *message_type, *result_type;
    const char *prefix;
    Py_ssize_t prefix_size, body_max;
    unsigned int frame_max;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!s#nI", names, &PyType_Type, &message_type, &PyType_Type, &result_type,
                                     &prefix, &prefix_size, &body_max, &frame_max)) return -1;
    if (!PyType_IsSubtype((PyTypeObject *)result_type, &hf_sent_type) || prefix_size > ID_MAX - 12 || self->message_type) {
        PyErr_SetString(PyExc_ValueError, "a result type is a Sent, a prefix has 44 characters at most, and a pipe is made once");
        return -1;
    }
    self->message_type = new_ref(message_type);
    self->result_type = (PyTypeObject *)new_ref(result_type);
    memcpy(self->prefix, prefix, (size_t)prefix_size);
    self->prefix_size = (int)prefix_size;
    self->body_max = body_max;
    self->frame_max = frame_max;
    return 0;
}

static int pipe_gc_clear(pipe_object *self) {
    while (self->in_flight) {
        entry taken = take_entry(self, self->first);
        drop_entry(&taken);
    }
    return 0;
}

static void pipe_dealloc(pipe_object *self) {
    PyObject_GC_UnTrack(self);
    pipe_gc_clear(self);
    PyMem_Free(self->ring);
    PyMem_Free(self->out);
    PyMem_Free(self->pending);
    Py_XDECREF(self->message_type);
    Py_XDECREF(self->result_type);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int pipe_traverse(pipe_object *self, visitproc visit, void *arg) {
    for (uint64_t number = self->first; number < self->next; number++) {
        entry *slot = at_number(self, number);
        Py_VISIT(slot->future);
        Py_VISIT(slot->message);
        Py_VISIT(slot->target);
    }
    Py_VISIT(self->message_type);
    Py_VISIT(self->result_type);
    return 0;
}

/* --- writing -------------------------------------------------------------------------------------------------- */

typedef struct { const char *p; Py_ssize_t size; } text;

/* Printable ASCII without quote and backslash: the same bytes in JSON. */
static int is_plain(const char *p, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++)
        if (p[i] < 0x20 || p[i] > 0x7e || p[i] == '"' || p[i] == '\\') return 0;
    return 1;
}

static int plain_text(PyObject *value, text *out) {
    if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_COMPACT_ASCII(value)) return 0;
    *out = (text){(const char *)PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value)};
    return out->size <= TEXT_MAX && is_plain(out->p, out->size);
}

static int is_zero(PyObject *value) {
    return PyLong_CheckExact(value) && PyLong_AsLong(value) == 0 && !PyErr_Occurred();
}

static int joined_keys(PyObject *keys, char *out, Py_ssize_t *size) {
    *size = 0;
    if (!PyTuple_CheckExact(keys)) return 0;
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    for (Py_ssize_t i = 0; i < count; i++) {
        text key;
        if (!plain_text(PyTuple_GET_ITEM(keys, i), &key) || *size + key.size + (i > 0) > TEXT_MAX) return 0;
        if (!key.size || memchr(key.p, ' ', (size_t)key.size)) return 0; /* it would not be found */
        if (i) out[(*size)++] = ' ';
        memcpy(out + *size, key.p, (size_t)key.size);
        *size += key.size;
    }
    return 1;
}

/* Tags that hold what separates tags in subscriptions reach nobody. */
static int holds_bars(text tag) {
    for (Py_ssize_t i = 1; i < tag.size; i++)
        if (tag.p[i] == '|' && tag.p[i - 1] == '|') return 1;
    return 0;
}

static uint8_t *put_property(uint8_t *p, const char *name, const char *value, size_t size) {
    p = put_bytes(p, name, strlen(name));
    p = put_bytes(p, "\\u0001", 6);
    p = put_bytes(p, value, size);
    return put_bytes(p, "\\u0002", 6);
}

static void put_hex(char *out, uint32_t value, int digits) {
    static const char hex[] = "0123456789ABCDEF";
    for (int i = digits - 1; i >= 0; i--, value >>= 4) out[i] = hex[value & 15];
}

/* The attributes of one message, owned. */
enum { BODY, FLAG, DELAY, DELAY_MS, DELIVER_AT, PROPERTIES, TAG, KEYS, WAIT, PARTS };

static int plain_message(pipe_object *self, PyObject **part, text *tag, char *keys, Py_ssize_t *keys_size) {
    if (!PyBytes_CheckExact(part[BODY]) || PyBytes_GET_SIZE(part[BODY]) < 1 || PyBytes_GET_SIZE(part[BODY]) > self->body_max) return 0;
    if (!is_zero(part[FLAG]) || !is_zero(part[DELAY]) || !is_zero(part[DELAY_MS]) || part[DELIVER_AT] != Py_None) return 0;
    if (!PyDict_CheckExact(part[PROPERTIES]) || PyDict_GET_SIZE(part[PROPERTIES])) return 0;
    if (part[TAG] != Py_None && (!plain_text(part[TAG], tag) || !tag->size || holds_bars(*tag))) return 0;
    return (part[WAIT] == Py_True || part[WAIT] == Py_False) && joined_keys(part[KEYS], keys, keys_size);
}

static int write_frame(pipe_object *self, PyObject **part, PyObject *target, text tag, text keys, entry *made, uint64_t now_ms) {
    hf_slice piece[4];
    for (int i = 0; i < 4; i++) {
        PyObject *bytes = PyTuple_GET_ITEM(target, 2 + i);
        if (!PyBytes_CheckExact(bytes)) { PyErr_SetString(PyExc_TypeError, "a target's frame is four pieces of bytes"); return 0; }
        piece[i] = (hf_slice){(const uint8_t *)PyBytes_AS_STRING(bytes), (uint32_t)PyBytes_GET_SIZE(bytes)};
    }
    size_t body_size = (size_t)PyBytes_GET_SIZE(part[BODY]);
    size_t most = 8 + piece[0].size + piece[1].size + piece[2].size + piece[3].size + 20 + 10 + 160 + ID_MAX
                  + (size_t)tag.size + (size_t)keys.size + body_size;
    if (!make_room(&self->out, &self->out_room, self->out_size + most)) return 0;
    uint8_t *start = self->out + self->out_size, *header = start + 8, *p = header;
    int wait = part[WAIT] == Py_True;
    p = put_bytes(p, piece[0].p, piece[0].size);
    p += hf_decimal((char *)p, now_ms);
    p = put_bytes(p, piece[1].p, piece[1].size);
    if (keys.size) p = put_property(p, "KEYS", keys.p, (size_t)keys.size);
    p = put_property(p, "UNIQ_KEY", made->id, made->id_size);
    p = put_property(p, "WAIT", wait ? "true" : "false", wait ? 4 : 5);
    if (tag.size) p = put_property(p, "TAGS", tag.p, (size_t)tag.size);
    p = put_bytes(p, piece[2].p, piece[2].size);
    p += hf_decimal((char *)p, OPAQUE_FIRST + (uint32_t)(self->next & OPAQUE_MASK));
    p = put_bytes(p, piece[3].p, piece[3].size);
    size_t header_size = (size_t)(p - header);
    p = put_bytes(p, PyBytes_AS_STRING(part[BODY]), body_size);
    put32(start, (uint32_t)(4 + header_size + body_size));
    put32(start + 4, (uint32_t)header_size);
    self->out_size += (size_t)(p - start);
    return 1;
}

static PyObject *pipe_send(pipe_object *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) { PyErr_SetString(PyExc_TypeError, "send(message, target, future, now_ms, month_ms, deadline)"); return NULL; }
    PyObject *message = args[0], *target = args[1];
    if (!PyTuple_CheckExact(target) || PyTuple_GET_SIZE(target) != 6) { PyErr_SetString(PyExc_TypeError, "a target is a tuple of six"); return NULL; }
    uint64_t now_ms = PyLong_AsUnsignedLongLong(args[3]), month_ms = PyLong_AsUnsignedLongLong(args[4]);
    double deadline = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (self->next - self->first >= SPAN_MAX || (PyObject *)Py_TYPE(message) != self->message_type) Py_RETURN_FALSE;
    PyObject *const names[PARTS] = {name_body, name_flag, name_delay, name_delay_ms, name_deliver_at, name_properties, name_tag, name_keys, name_wait};
    PyObject *part[PARTS] = {0}, *result = NULL;
    text tag = {NULL, 0};
    char keys[TEXT_MAX];
    Py_ssize_t keys_size = 0;
    for (int i = 0; i < PARTS; i++)
        if (!(part[i] = PyObject_GetAttr(message, names[i]))) goto out;
    if (!plain_message(self, part, &tag, keys, &keys_size)) {
        if (!PyErr_Occurred()) result = new_ref(Py_False);
        goto out;
    }
    entry made = {.deadline = deadline, .id_size = (uint8_t)(self->prefix_size + 12)};
    memcpy(made.id, self->prefix, (size_t)self->prefix_size);
    put_hex(made.id + self->prefix_size, (uint32_t)(now_ms - month_ms), 8);
    put_hex(made.id + self->prefix_size + 8, (uint16_t)(self->counter + 1), 4);
    if (!make_place(self) || !write_frame(self, part, target, tag, (text){keys, keys_size}, &made, now_ms)) goto out;
    made.future = new_ref(args[2]);
    made.message = new_ref(message);
    made.target = new_ref(target);
    self->counter++;
    *at_number(self, self->next++) = made;
    self->in_flight++;
    result = new_ref(Py_True);
out:
    for (int i = 0; i < PARTS; i++) Py_XDECREF(part[i]);
    return result;
}

static PyObject *pipe_take(pipe_object *self, PyObject *unused) {
    (void)unused;
    PyObject *out = PyBytes_FromStringAndSize((const char *)self->out, (Py_ssize_t)self->out_size);
    if (out) self->out_size = 0;
    return out;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

static int is_stored(int32_t code) { return code == 0 || (code >= 10 && code <= 12); }

/* The answer as a result; NULL without an error when it is not of the plain kind. */
static sent *read_result(pipe_object *self, const hf_frame *f, const entry *slot) {
    hf_slice queue_id = {0}, offset = {0}, place = {0}, transaction = {0};
    int64_t id, number;
    for (int i = 0; i < f->fields_count; i++) {
        const hf_field *field = &f->fields[i];
        if (field->escaped) return NULL;
        if (hf_slice_is(field->key, "queueId")) queue_id = field->value;
        else if (hf_slice_is(field->key, "queueOffset")) offset = field->value;
        else if (hf_slice_is(field->key, "msgId")) place = field->value;
        else if (hf_slice_is(field->key, "transactionId")) transaction = field->value;
    }
    if (!hf_parse_int(queue_id.p, queue_id.size, 0, INT32_MAX, &id) || *queue_id.p == '-' || (queue_id.size > 1 && *queue_id.p == '0')) return NULL;
    if (offset.size > 18 || !hf_parse_int(offset.p, offset.size, 0, INT64_MAX, &number) || (offset.size > 1 && *offset.p == '0') || *offset.p == '-') return NULL;
    if (!place.size || place.size > PLACE_MAX || !is_plain((const char *)place.p, place.size)) return NULL;
    if (id != PyLong_AsLong(PyTuple_GET_ITEM(slot->target, 1)) || PyErr_Occurred()) return NULL;
    sent *made = (sent *)self->result_type->tp_alloc(self->result_type, 0);
    if (!made) return NULL;
    made->code = f->code;
    made->queue_offset = number;
    made->queue = new_ref(PyTuple_GET_ITEM(slot->target, 0));
    made->id_size = slot->id_size;
    memcpy(made->id, slot->id, slot->id_size);
    made->place_size = (uint8_t)place.size;
    memcpy(made->place, place.p, place.size);
    if (transaction.p && transaction.size == slot->id_size && !memcmp(transaction.p, slot->id, slot->id_size)) made->transaction_is_id = 1;
    else if (transaction.p && !(made->transaction = PyUnicode_DecodeUTF8((const char *)transaction.p, transaction.size, "replace"))) Py_CLEAR(made);
    return made;
}

/* 1 when the frame answered a send of ours, 0 when it is somebody else's, -1 on an error. */
static int resolve(pipe_object *self, const hf_frame *f) {
    uint64_t number;
    entry *slot = f->flag == 1 && is_stored(f->code) && !f->body.size ? find_opaque(self, f->opaque, &number) : NULL;
    if (!slot) return 0;
    sent *result = read_result(self, f, slot);
    if (!result) return PyErr_Occurred() ? -1 : 0;
    entry taken = take_entry(self, number);
    PyObject *done = PyObject_CallMethodOneArg(taken.future, name_set_result, (PyObject *)result);
    if (!done) PyErr_Clear(); /* nobody waits for it any more */
    Py_XDECREF(done);
    Py_DECREF(result);
    drop_entry(&taken);
    return 1;
}

static PyObject *pipe_receive(pipe_object *self, PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) return NULL;
    const uint8_t *p = view.buf;
    size_t size = (size_t)view.len, at = 0, rest_size = 0, rest_room = 0;
    uint8_t *rest = NULL;
    Py_ssize_t resolved = 0;
    PyObject *result = NULL;
    if (self->pending_size) {
        if (!make_room(&self->pending, &self->pending_room, self->pending_size + size)) goto out;
        memcpy(self->pending + self->pending_size, p, size);
        p = self->pending;
        size += self->pending_size;
    }
    while (at < size) {
        hf_frame f;
        size_t frame_bytes = 0, give;
        int verdict = hf_frame_read(p + at, size - at, self->frame_max, &f, &frame_bytes);
        if (verdict == HF_FRAME_PARTIAL) break;
        int ours = verdict == HF_FRAME_OK && p[at + 4] == 0 ? resolve(self, &f) : 0; /* 0: JSON */
        if (ours < 0) goto out;
        give = verdict == HF_FRAME_BAD_LENGTH ? size - at : frame_bytes; /* nobody finds a frame in there again */
        if (!ours) {
            if (!make_room(&rest, &rest_room, rest_size + give)) goto out;
            memcpy(rest + rest_size, p + at, give);
            rest_size += give;
        } else resolved++;
        at += give;
    }
    if (p != self->pending && !make_room(&self->pending, &self->pending_room, size - at + 1)) goto out;
    memmove(self->pending, p + at, size - at);
    self->pending_size = size - at;
    result = Py_BuildValue("(y#n)", rest ? (const char *)rest : "", (Py_ssize_t)rest_size, resolved);
out:
    PyMem_Free(rest);
    PyBuffer_Release(&view);
    return result;
}

/* --- what stays unanswered ------------------------------------------------------------------------------------ */

static PyObject *left_of(pipe_object *self, uint64_t number) {
    entry taken = take_entry(self, number);
    PyObject *left = Py_BuildValue("(OOs#Od)", taken.future, taken.message, taken.id, (Py_ssize_t)taken.id_size,
                                   PyTuple_GET_ITEM(taken.target, 0), taken.deadline);
    drop_entry(&taken);
    return left;
}

static PyObject *pipe_pop(pipe_object *self, PyObject *arg) {
    long opaque = PyLong_AsLong(arg);
    uint64_t number;
    if (opaque == -1 && PyErr_Occurred()) return NULL;
    if (opaque < INT32_MIN || opaque > INT32_MAX || !find_opaque(self, (int32_t)opaque, &number)) Py_RETURN_NONE;
    return left_of(self, number);
}

static PyObject *take_out(pipe_object *self, int all, double now) {
    PyObject *list = PyList_New(0);
    while (list && self->in_flight && (all || at_number(self, self->first)->deadline <= now)) {
        PyObject *left = left_of(self, self->first);
        if (!left || PyList_Append(list, left)) Py_CLEAR(list);
        Py_XDECREF(left);
    }
    return list;
}

static PyObject *pipe_expire(pipe_object *self, PyObject *arg) {
    double now = PyFloat_AsDouble(arg);
    return now == -1.0 && PyErr_Occurred() ? NULL : take_out(self, 0, now);
}

static PyObject *pipe_clear(pipe_object *self, PyObject *unused) {
    (void)unused;
    self->out_size = self->pending_size = 0;
    return take_out(self, 1, 0);
}

static PyObject *pipe_in_flight(pipe_object *self, void *closure) { (void)closure; return PyLong_FromSsize_t(self->in_flight); }
static PyObject *pipe_unsent(pipe_object *self, void *closure) { (void)closure; return PyLong_FromSize_t(self->out_size); }
static PyObject *pipe_next_deadline(pipe_object *self, void *closure) {
    (void)closure;
    if (!self->in_flight) Py_RETURN_NONE;
    return PyFloat_FromDouble(at_number(self, self->first)->deadline);
}

static PyMethodDef pipe_methods[] = {
    {"send", (PyCFunction)(void (*)(void))pipe_send, METH_FASTCALL, "send(message, target, future, now_ms, month_ms, deadline) -> whether it was plain enough"},
    {"take", (PyCFunction)pipe_take, METH_NOARGS, "Everything written since the last time."},
    {"receive", (PyCFunction)pipe_receive, METH_O, "receive(data) -> (frames not for us, sends answered)"},
    {"pop", (PyCFunction)pipe_pop, METH_O, "pop(opaque) -> (future, message, message id, queue, deadline) or None"},
    {"expire", (PyCFunction)pipe_expire, METH_O, "expire(now) -> those whose time is over"},
    {"clear", (PyCFunction)pipe_clear, METH_NOARGS, "Take out all."},
    {NULL}};

static PyGetSetDef pipe_getset[] = {
    {"in_flight", (getter)pipe_in_flight, NULL, "Sends under way.", NULL},
    {"unsent", (getter)pipe_unsent, NULL, "Bytes that take() would give.", NULL},
    {"next_deadline", (getter)pipe_next_deadline, NULL, "Of the oldest send under way.", NULL},
    {NULL}};

PyTypeObject hf_sendpipe_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.SendPipe",
    .tp_basicsize = sizeof(pipe_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Sends under way on one connection.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)pipe_init,
    .tp_dealloc = (destructor)pipe_dealloc,
    .tp_traverse = (traverseproc)pipe_traverse,
    .tp_clear = (inquiry)pipe_gc_clear,
    .tp_methods = pipe_methods,
    .tp_getset = pipe_getset,
};

int hf_sendpipe_ready(void) {
    struct { PyObject **at; const char *text; } const names[] = {
        {&name_body, "body"}, {&name_flag, "flag"}, {&name_delay, "delay_level"}, {&name_delay_ms, "delay_ms"},
        {&name_deliver_at, "deliver_at"}, {&name_properties, "properties"},
        {&name_tag, "tag"}, {&name_keys, "keys"}, {&name_wait, "wait_stored"}, {&name_set_result, "set_result"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].at && !(*names[i].at = PyUnicode_InternFromString(names[i].text))) return 0;
    return 1;
}

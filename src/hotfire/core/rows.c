/* Rows of Arrow columns -> messages of a batch, without an object for any of them. The specification is plain_rows.py; the
   layout of a batch is drawn in protocol/batch.py, and which property comes where is client/messages.py's. */
#include "arrow.h"
#include <stdlib.h>

#define FIXED_BYTES 22
#define PROPERTIES_MAX 32767
#define ENTRIES_MAX (PROPERTIES_MAX / 4 + 8) /* a name, a value and two marks */
#define ID_BYTES 16
#define PREFIX_MAX 64
#define DROPPED_MAX 256

/* ---- properties, in the order of Java's HashMap ---- */

typedef struct { hf_slice name, value; uint32_t spread; } entry;
typedef struct {
    entry *entries;
    uint32_t *order; /* bucket and place of each: small, and quickly moved about */
    int count;
    size_t bytes;
    const uint32_t *dropped_hashes;
    const hf_slice *dropped;
    uint64_t dropped_marks[16]; /* one of 1024 bits for each hash: most names are told from all of them by one look */
    int dropped_count;
} property_list;

static uint32_t spread_of(hf_slice name) {
    uint32_t h = (uint32_t)hf_java_hash(name.p, name.size);
    return h ^ h >> 16;
}

static inline int has_mark(hf_slice s) {
    const uint8_t *p = s.p, *end = p + s.size;
    for (; end - p >= 8; p += 8) { /* eight at once: bytes below 3 borrow from their high bit, those above 127 are none */
        uint64_t v;
        memcpy(&v, p, 8);
        if ((v - 0x0303030303030303ull) & ~v & 0x8080808080808080ull) break;
    }
    for (; p < end; p++) if (*p == 1 || *p == 2) return 1;
    return 0;
}

static const char *add_property(property_list *l, hf_slice name, uint32_t spread, hf_slice value) {
    if (!name.size || !value.size || has_mark(name) || has_mark(value)) return "a property needs a name and a value, without bytes 1 and 2";
    l->bytes += (size_t)name.size + value.size + 2;
    if (l->bytes > PROPERTIES_MAX) return "its properties take more than the 32767 bytes that fit";
    l->entries[l->count++] = (entry){name, value, spread};
    return NULL;
}

static int is_dropped(const property_list *l, hf_slice name, uint32_t spread) {
    if (!(l->dropped_marks[spread >> 6 & 15] >> (spread & 63) & 1)) return 0;
    for (int i = 0; i < l->dropped_count; i++)
        if (l->dropped_hashes[i] == spread && l->dropped[i].size == name.size && !memcmp(l->dropped[i].p, name.p, name.size)) return 1;
    return 0;
}

static const char *add_map(property_list *l, const hf_maps *map, int64_t row) {
    int32_t from, to;
    if (hf_map_cell(map, row, &from, &to) == HF_UNSOUND) return HF_UNSOUND_TEXT;
    for (int32_t i = from; i < to; i++) {
        hf_slice name, value;
        int has_name = hf_text_cell(&map->names, i, &name), has_value = hf_text_cell(&map->values, i, &value);
        if (has_name == HF_UNSOUND || has_value == HF_UNSOUND) return HF_UNSOUND_TEXT;
        if (has_value == HF_MISSING) continue;
        uint32_t spread = spread_of(name);
        if (is_dropped(l, name, spread)) continue;
        const char *problem = add_property(l, name, spread, value);
        if (problem) return problem;
    }
    return NULL;
}

#define PLACE_BITS 14
#define PLACE(key) ((key) & ((1u << PLACE_BITS) - 1))

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static const char *order_properties(property_list *l) {
    uint32_t buckets = 16, *order = l->order;
    while ((uint32_t)l->count > buckets * 3 / 4) buckets *= 2;
    for (int i = 0; i < l->count; i++) order[i] = (l->entries[i].spread & (buckets - 1)) << PLACE_BITS | (uint32_t)i;
    if (l->count > 24) qsort(order, (size_t)l->count, sizeof *order, by_number);
    else for (int i = 1; i < l->count; i++) {
        uint32_t moved = order[i];
        int j = i;
        for (; j && order[j - 1] > moved; j--) order[j] = order[j - 1];
        order[j] = moved;
    }
    for (int i = 1; i < l->count; i++)
        for (int j = i; j-- && order[j] >> PLACE_BITS == order[i] >> PLACE_BITS;) {
            const hf_slice one = l->entries[PLACE(order[i])].name, other = l->entries[PLACE(order[j])].name;
            if (one.size == other.size && !memcmp(one.p, other.p, one.size)) return "a property comes twice";
        }
    return NULL;
}

/* ---- messages of a batch ---- */

typedef struct {
    hf_texts body, keys, tags;
    hf_maps properties;
    hf_rows rows;
    const uint8_t *ids;
    const char *prefix;
    Py_ssize_t prefix_size;
    uint32_t counter;
    Py_ssize_t bytes_max, count_max;
    property_list list;
    uint32_t tags_spread, keys_spread, wait_spread, id_spread;
} encoder;

static const char hex_digits[] = "0123456789ABCDEF";
#define NAME(text) ((hf_slice){(const uint8_t *)text, sizeof text - 1})

/* The row's id as text: the one given, or the next of our own for 16 zeros. */
static hf_slice write_id(encoder *x, int64_t row, char *out) {
    static const uint8_t none[ID_BYTES];
    const uint8_t *id = x->ids ? x->ids + ID_BYTES * row : none;
    uint32_t size = 0;
    if (memcmp(id, none, ID_BYTES)) {
        for (int i = 0; i < ID_BYTES; i++) { out[size++] = hex_digits[id[i] >> 4]; out[size++] = hex_digits[id[i] & 15]; }
    } else {
        size = (uint32_t)x->prefix_size;
        memcpy(out, x->prefix, size);
        x->counter = (x->counter + 1) & 0xffff;
        for (int shift = 12; shift >= 0; shift -= 4) out[size++] = hex_digits[x->counter >> shift & 15];
    }
    return (hf_slice){(const uint8_t *)out, size};
}

static int has_separator(hf_slice tag) {
    for (uint32_t i = 1; i < tag.size; i++) if (tag.p[i - 1] == '|' && tag.p[i] == '|') return 1;
    return 0;
}

/* Body and properties of one row; NULL, or why it cannot be a message. */
static const char *gather(encoder *x, int64_t row, hf_slice *body, char *id_text) {
    hf_slice keys, tags;
    int has_body = hf_text_cell(&x->body, row, body), has_keys = hf_text_cell(&x->keys, row, &keys), has_tags = hf_text_cell(&x->tags, row, &tags);
    if (has_body == HF_UNSOUND || has_keys == HF_UNSOUND || has_tags == HF_UNSOUND) return HF_UNSOUND_TEXT;
    if (has_body == HF_MISSING) return "its body is null";
    if (!body->size) return "its body is empty";
    if (has_separator(tags)) return "its tag holds '||', which separates tags in subscriptions";
    property_list *l = &x->list;
    const char *problem = NULL;
    l->count = 0;
    l->bytes = 0;
    if (tags.size) problem = add_property(l, NAME("TAGS"), x->tags_spread, tags);
    if (!problem && keys.size) problem = add_property(l, NAME("KEYS"), x->keys_spread, keys);
    if (!problem) problem = add_property(l, NAME("WAIT"), x->wait_spread, NAME("true"));
    if (!problem) problem = add_map(l, &x->properties, row);
    if (!problem) problem = add_property(l, NAME("UNIQ_KEY"), x->id_spread, write_id(x, row, id_text));
    return problem ? problem : order_properties(l);
}

static uint8_t *write_message(uint8_t *p, const encoder *x, hf_slice body, size_t size) {
    p = put32(p, (uint32_t)size);
    p = put64(p, 0); /* magic, checksum */
    p = put32(p, 0); /* flag */
    p = put32(p, body.size);
    p = put_bytes(p, body.p, body.size);
    p = put16(p, (uint16_t)x->list.bytes);
    for (int i = 0; i < x->list.count; i++) {
        const entry *e = &x->list.entries[PLACE(x->list.order[i])];
        p = put_bytes(p, e->name.p, e->name.size);
        *p++ = 1;
        p = put_bytes(p, e->value.p, e->value.size);
        *p++ = 2;
    }
    return p;
}

/* As many rows as fit; how many bytes they make. `next`: the first that was not taken. */
static size_t encode_run(encoder *x, uint8_t *out, int64_t *next, hf_refusal *refused) {
    uint8_t *p = out;
    int64_t i = x->rows.at;
    char id_text[PREFIX_MAX + 8];
    for (; i < x->rows.end && i - x->rows.at < x->count_max; i++) {
        int64_t row = hf_row_at(&x->rows, i);
        hf_slice body;
        uint32_t counter = x->counter;
        refused->row = row < 0 ? i : row;
        refused->problem = row < 0 ? HF_NO_ROW : gather(x, row, &body, id_text);
        if (refused->problem) break;
        size_t size = FIXED_BYTES + (size_t)body.size + x->list.bytes;
        if (size > (size_t)x->bytes_max - (size_t)(p - out)) { x->counter = counter; break; }
        p = write_message(p, x, body, size);
    }
    *next = i;
    return (size_t)(p - out);
}

static int read_dropped(PyObject *names, hf_slice *slices, uint32_t *hashes, property_list *out) {
    if (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) > DROPPED_MAX) {
        PyErr_Format(PyExc_ValueError, "names to drop: a tuple of at most %d", DROPPED_MAX);
        return 0;
    }
    out->dropped_count = (int)PyTuple_GET_SIZE(names);
    for (int i = 0; i < out->dropped_count; i++) {
        char *p;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(names, i), &p, &size)) return 0;
        slices[i] = (hf_slice){(const uint8_t *)p, (uint32_t)size};
        hashes[i] = spread_of(slices[i]);
        out->dropped_marks[hashes[i] >> 6 & 15] |= 1ull << (hashes[i] & 63);
    }
    out->dropped = slices;
    out->dropped_hashes = hashes;
    return 1;
}

/* encode_rows((count, body, keys, tags, properties), rows, at, end, ids, prefix, counter, dropped, bytes_max, count_max)
   -> (the messages, the first place not taken, the counter) */
PyObject *hf_encode_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *columns, *rows, *ids, *dropped, *body, *keys, *tags, *properties, *out = NULL, *result = NULL;
    hf_slice dropped_slices[DROPPED_MAX];
    uint32_t dropped_hashes[DROPPED_MAX];
    long long at, end, count;
    hf_pins held;
    encoder x;
    held.count = 0;
    memset(&x, 0, sizeof x);
    if (!PyArg_ParseTuple(args, "O!OLLOy#IO!nn", &PyTuple_Type, &columns, &rows, &at, &end, &ids, &x.prefix, &x.prefix_size, &x.counter,
                          &PyTuple_Type, &dropped, &x.bytes_max, &x.count_max) ||
        !PyArg_ParseTuple(columns, "LOOOO;columns", &count, &body, &keys, &tags, &properties)) return NULL;
    if (x.prefix_size > PREFIX_MAX || x.bytes_max < 0 || x.bytes_max > INT32_MAX || x.count_max < 0) {
        PyErr_SetString(PyExc_ValueError, "encode_rows: a limit is out of range");
        return NULL;
    }
    if (!hf_read_selection(&held, rows, count, at, end, &x.rows) || !hf_read_text(&held, body, count, &x.body)) goto out;
    if (keys != Py_None && !hf_read_text(&held, keys, count, &x.keys)) goto out;
    if (tags != Py_None && !hf_read_text(&held, tags, count, &x.tags)) goto out;
    if (properties != Py_None && !hf_read_map(&held, properties, count, &x.properties)) goto out;
    if (!read_dropped(dropped, dropped_slices, dropped_hashes, &x.list)) goto out;
    if (ids != Py_None) {
        Py_buffer *view = hf_pin(&held, ids, PyBUF_SIMPLE);
        if (!view) goto out;
        if (view->len / ID_BYTES < count) { PyErr_SetString(PyExc_ValueError, "fewer ids than rows"); goto out; }
        x.ids = view->buf;
    }
    x.tags_spread = spread_of(NAME("TAGS"));
    x.keys_spread = spread_of(NAME("KEYS"));
    x.wait_spread = spread_of(NAME("WAIT"));
    x.id_spread = spread_of(NAME("UNIQ_KEY"));
    x.list.entries = PyMem_Malloc(ENTRIES_MAX * sizeof *x.list.entries);
    x.list.order = PyMem_Malloc(ENTRIES_MAX * sizeof *x.list.order);
    out = x.list.entries && x.list.order ? PyBytes_FromStringAndSize(NULL, x.bytes_max) : PyErr_NoMemory();
    if (!out) goto out;
    int64_t next;
    size_t size;
    hf_refusal refused = {0, NULL};
    Py_BEGIN_ALLOW_THREADS
    size = encode_run(&x, (uint8_t *)PyBytes_AS_STRING(out), &next, &refused);
    Py_END_ALLOW_THREADS
    if (refused.problem) { hf_refuse_row(&refused); goto out; }
    if (_PyBytes_Resize(&out, (Py_ssize_t)size)) goto out;
    result = Py_BuildValue("(OLI)", out, (long long)next, x.counter);
out:
    Py_XDECREF(out);
    PyMem_Free(x.list.entries);
    PyMem_Free(x.list.order);
    hf_unpin(&held);
    return result;
}

/* spread_rows(count, text, rows, at, end, queues) -> for each of the rows, in 32 bits, the queue Java's clients choose by the
   text's hash; -1 for a row without one */
PyObject *hf_spread_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *text, *rows, *out = NULL;
    long long count, at, end;
    int queues;
    hf_pins held;
    hf_texts column;
    hf_rows s;
    held.count = 0;
    if (!PyArg_ParseTuple(args, "LOOLLi", &count, &text, &rows, &at, &end, &queues)) return NULL;
    if (queues < 1) return PyErr_Format(PyExc_ValueError, "%d queues", queues);
    if (!hf_read_selection(&held, rows, count, at, end, &s) || !hf_read_text(&held, text, count, &column)) goto out;
    out = PyBytes_FromStringAndSize(NULL, 4 * (Py_ssize_t)(end - at));
    for (int64_t i = at; out && i < end; i++) {
        int64_t row = hf_row_at(&s, i);
        hf_slice key;
        int found = row < 0 ? HF_UNSOUND : hf_text_cell(&column, row, &key);
        if (found == HF_UNSOUND) {
            Py_CLEAR(out);
            hf_refuse_row(&(hf_refusal){row < 0 ? i : row, row < 0 ? HF_NO_ROW : HF_UNSOUND_TEXT});
            break;
        }
        int64_t hash = found ? hf_java_hash(key.p, key.size) : 0;
        int32_t code = found ? (int32_t)((hash < 0 ? -hash : hash) % queues) : -1;
        memcpy(PyBytes_AS_STRING(out) + 4 * (i - at), &code, 4);
    }
out:
    hf_unpin(&held);
    return out;
}

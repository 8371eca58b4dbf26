/* The stored record: encode one, scan many. The layout is drawn in protocol/record.py, its plain twin. */
#include "store.h"

#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define MAGIC_BLANK 0xCBD43194u
#define PROPERTIES_MAX 32767
#define KEYS_FEW 32
#define FIXED_BYTES 72 /* everything but hosts, body, topic and properties, with their lengths counted apart */

static int needs_separator(const hf_record *r) {
    return r->properties.size && r->properties.p[r->properties.size - 1] != 2 && (r->suffix.size || r->append_crc);
}

static size_t properties_size(const hf_record *r) {
    return r->properties.size + (size_t)needs_separator(r) + r->suffix.size + (r->append_crc ? HF_CRC_BYTES : 0);
}

size_t hf_record_size(const hf_record *r) {
    size_t properties = properties_size(r);
    if (properties > PROPERTIES_MAX || r->topic.size > 255) return 0;
    size_t topic_length = r->topic.size > 127 ? 2 : 1;
    return FIXED_BYTES + r->born_host.size + r->store_host.size + r->body.size + topic_length + r->topic.size + 2 + properties;
}

void hf_record_write(const hf_record *r, size_t size, uint8_t *out) {
    uint8_t *p = out;
    p = put32(p, (uint32_t)size);
    p = put32(p, r->topic.size > 127 ? MAGIC_V2 : MAGIC_V1);
    p = put32(p, hf_crc32(0, r->body.p, r->body.size) & 0x7fffffff);
    p = put32(p, (uint32_t)r->queue_id);
    p = put32(p, (uint32_t)r->flag);
    p = put64(p, (uint64_t)r->queue_offset);
    p = put64(p, (uint64_t)r->physical_offset);
    p = put32(p, (uint32_t)r->sys_flag);
    p = put64(p, (uint64_t)r->born_timestamp);
    p = put_bytes(p, r->born_host.p, r->born_host.size);
    p = put64(p, (uint64_t)r->store_timestamp);
    p = put_bytes(p, r->store_host.p, r->store_host.size);
    p = put32(p, (uint32_t)r->reconsume_times);
    p = put64(p, (uint64_t)r->prepared_offset);
    p = put32(p, r->body.size);
    p = put_bytes(p, r->body.p, r->body.size);
    if (r->topic.size > 127) p = put16(p, (uint16_t)r->topic.size);
    else *p++ = (uint8_t)r->topic.size;
    p = put_bytes(p, r->topic.p, r->topic.size);
    p = put16(p, (uint16_t)properties_size(r));
    p = put_bytes(p, r->properties.p, r->properties.size);
    if (needs_separator(r)) *p++ = 2;
    p = put_bytes(p, r->suffix.p, r->suffix.size);
    if (r->append_crc) {
        uint32_t crc = hf_crc32(0, out, size - HF_CRC_BYTES) & 0x7fffffff;
        p = put_bytes(p, "__CRC32#\x01", 9);
        for (int i = 0; i < 10; i++) { *p++ = (uint8_t)('0' + crc % 10); crc /= 10; } /* least significant digit first */
        *p++ = 2;
    }
}

/* ---- scan ---- */
int64_t hf_tags_code(hf_slice properties) {
    const uint8_t *p = properties.p, *end = p + properties.size;
    int64_t code = 0;
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        if (stop - p > 5 && !memcmp(p, "TAGS\x01", 5)) code = hf_java_hash(p + 5, (size_t)(stop - p) - 5);
        p = stop + 1;
    }
    return code;
}

static int appended_crc_ok(const uint8_t *record, uint32_t size, hf_slice properties) {
    uint32_t tail_size = properties.size < HF_CRC_BYTES ? properties.size : HF_CRC_BYTES;
    const uint8_t *tail = record + size - tail_size;
    if (tail_size < 9 || memcmp(tail, "__CRC32#\x01", 9)) return -1; /* carries none */
    if (tail_size < HF_CRC_BYTES || tail[19] != 2) return 0;
    uint64_t said = 0; /* read rather than written, so that it need not wait for the sum */
    unsigned strange = 0;
    for (int i = 9; i >= 0; i--) {
        unsigned digit = tail[9 + i] - (unsigned)'0';
        strange |= digit > 9;
        said = said * 10 + digit;
    }
    return !strange && said == (hf_crc32(0, record, size - HF_CRC_BYTES) & 0x7fffffff);
}

const char *hf_scan_one(const uint8_t *p, size_t available, int verify, int64_t summed_from, hf_scanned *out) {
    if (available < 8) return "partial";
    uint32_t size = get32(p), magic = get32(p + 4);
    if (magic == MAGIC_BLANK) { out->size = size; return size < HF_BLANK_BYTES ? "blank size" : "blank"; }
    if (magic != MAGIC_V1 && magic != MAGIC_V2) return magic == 0 && size == 0 ? "end" : "magic";
    if (size < FIXED_BYTES + 16 + 1 + 2 || size > 0x7fffffff) return "size";
    if (available < size) return "partial";
    out->size = size;
    out->queue_id = (int32_t)get32(p + 12);
    out->queue_offset = (int64_t)get64(p + 20);
    out->physical = (int64_t)get64(p + 28);
    out->sys_flag = (int32_t)get32(p + 36);
    size_t born = out->sys_flag & 0x10 ? 20 : 8, stored = out->sys_flag & 0x20 ? 20 : 8;
    size_t at = 48 + born;
    if (at + 8 + stored + 16 > size) return "hosts";
    out->store_timestamp = (int64_t)get64(p + at);
    at += 8 + stored + 12;
    uint32_t body = get32(p + at);
    at += 4;
    if (body > size - at) return "body length";
    const uint8_t *body_at = p + at;
    at += body;
    size_t topic_length = magic == MAGIC_V2 ? 2 : 1;
    if (at + topic_length > size) return "topic length";
    uint32_t topic = topic_length == 2 ? get16(p + at) : p[at];
    at += topic_length;
    if (topic > size - at || topic > (topic_length == 2 ? 0x7fffu : 0x7fu)) return "topic length"; /* signed in Java */
    if (!hf_utf8_ok(p + at, topic)) return "topic";
    out->topic = (hf_slice){p + at, topic};
    at += topic;
    if (at + 2 > size) return "properties length";
    uint32_t properties = get16(p + at);
    at += 2;
    if (properties != size - at || properties > PROPERTIES_MAX) return "properties length";
    out->properties = (hf_slice){p + at, properties};
    if (verify) {
        int sum = appended_crc_ok(p, size, out->properties); /* a tear that wiped it leaves a record that seems never to have had one */
        if (sum == 0 || (sum < 0 && out->physical >= summed_from)) return "record checksum";
        if (sum < 0 && (hf_crc32(0, body_at, body) & 0x7fffffff) != get32(p + 8)) return "body checksum";
    }
    return NULL;
}

int hf_record_sound(const uint8_t *p, const hf_piece *piece, hf_slice topic, int32_t queue_id, int64_t summed_from) {
    hf_scanned s;
    if (hf_scan_one(p, (size_t)piece->size, 1, summed_from, &s)) return 0;
    if (s.size != (uint32_t)piece->size || s.physical != piece->physical || s.queue_offset != piece->index) return 0;
    return s.queue_id == queue_id && s.topic.size == topic.size && !memcmp(s.topic.p, topic.p, topic.size);
}

typedef struct { hf_slice unique, words, tags; } key_texts;

static key_texts find_keys(hf_slice properties) {
    key_texts found = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    const uint8_t *p = properties.p, *end = p + properties.size;
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        if (stop - p > 9 && !memcmp(p, "UNIQ_KEY\x01", 9)) found.unique = (hf_slice){p + 9, (uint32_t)(stop - p - 9)};
        else if (stop - p > 5 && !memcmp(p, "KEYS\x01", 5)) found.words = (hf_slice){p + 5, (uint32_t)(stop - p - 5)};
        else if (stop - p > 5 && !memcmp(p, "TAGS\x01", 5)) found.tags = (hf_slice){p + 5, (uint32_t)(stop - p - 5)};
        p = stop + 1;
    }
    return found;
}

/* The first word of the text, which then begins behind it; empty at its end. */
static hf_slice next_word(hf_slice *text) {
    const uint8_t *p = text->p, *end = p + text->size;
    while (p < end && *p == ' ') p++;
    const uint8_t *stop = p < end ? memchr(p, ' ', (size_t)(end - p)) : NULL;
    if (!stop) stop = end;
    *text = (hf_slice){stop, (uint32_t)(end - stop)};
    return (hf_slice){p, (uint32_t)(stop - p)};
}

int hf_record_keys(hf_slice topic, hf_slice properties, uint32_t *out, int room) {
    key_texts found = find_keys(properties);
    int count = 0;
    if (found.unique.size && count++ < room) out[count - 1] = hf_key_hash(topic, HF_KEY, found.unique);
    for (hf_slice word; (word = next_word(&found.words)).size;)
        if (count++ < room) out[count - 1] = hf_key_hash(topic, HF_KEY, word);
    if (!hf_blank(found.tags) && count++ < room) out[count - 1] = hf_key_hash(topic, HF_TAG, found.tags);
    return count;
}

static int same(hf_slice a, hf_slice b) { return a.size == b.size && !memcmp(a.p, b.p, a.size); }

int hf_record_has_key(hf_slice properties, hf_slice key) {
    key_texts found = find_keys(properties);
    if (!key.size) return 0;
    if (found.unique.size && same(found.unique, key)) return 1;
    for (hf_slice word; (word = next_word(&found.words)).size;)
        if (same(word, key)) return 1;
    uint32_t kind = sizeof HF_TAG - 1;
    return key.size > kind && !memcmp(key.p, HF_TAG, kind) && !hf_blank(found.tags) && same(found.tags, (hf_slice){key.p + kind, key.size - kind});
}

static PyObject *key_hashes(hf_slice topic, hf_slice properties) {
    uint32_t few[KEYS_FEW], *hashes = few;
    int count = hf_record_keys(topic, properties, few, KEYS_FEW);
    if (count > KEYS_FEW) {
        if (!(hashes = PyMem_Malloc((size_t)count * sizeof *hashes))) return PyErr_NoMemory();
        hf_record_keys(topic, properties, hashes, count);
    }
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *hash = PyLong_FromUnsignedLong(hashes[i]);
        if (!hash) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, hash);
    }
    if (hashes != few) PyMem_Free(hashes);
    return tuple;
}

/* scan_records(buffer, base, verify, summed_from = never, count_max = all) -> (entries, consumed, reason)
   Records at or behind log offset summed_from must end in their checksum.
   entries: (physical, size, topic, queue_id, queue_offset, tags_code, store_timestamp, sys_flag, key_hashes)
   in log order.
   reason: why it stopped before the buffer's end ("partial", "blank", "end", "enough", or what is wrong). */
PyObject *hf_scan_records(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    long long base, summed_from = INT64_MAX;
    int verify;
    Py_ssize_t count_max = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "y*Lp|Ln", &view, &base, &verify, &summed_from, &count_max)) return NULL;
    PyObject *entries = PyList_New(0);
    const uint8_t *p = view.buf;
    size_t at = 0, size = (size_t)view.len;
    const char *reason = "partial";
    while (entries) {
        hf_scanned s;
        if (PyList_GET_SIZE(entries) >= count_max) { reason = "enough"; break; }
        reason = hf_scan_one(p + at, size - at, verify, summed_from, &s);
        if (reason) break;
        if (s.physical != base + (int64_t)at) { reason = "physical offset"; break; }
        PyObject *entry = Py_BuildValue("(LIy#iLLLiN)", (long long)s.physical, s.size, (const char *)s.topic.p,
                                        (Py_ssize_t)s.topic.size, s.queue_id, (long long)s.queue_offset,
                                        (long long)hf_tags_code(s.properties), (long long)s.store_timestamp, s.sys_flag, key_hashes(s.topic, s.properties));
        if (!entry || PyList_Append(entries, entry)) { Py_XDECREF(entry); Py_CLEAR(entries); break; }
        Py_DECREF(entry);
        at += s.size;
    }
    PyBuffer_Release(&view);
    if (!entries) return NULL;
    return Py_BuildValue("(Nns)", entries, (Py_ssize_t)at, reason);
}

/* sound_records(data, pieces, topic, queue_id, summed_from) -> how many of the pieces' records, which lie one behind
   the other in `data`, are whole, unharmed and what their entries mean, before the first that is not. */
PyObject *hf_sound_records(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, topic;
    PyObject *pieces;
    int queue_id;
    long long summed_from;
    if (!PyArg_ParseTuple(args, "y*O!y*iL", &data, &PyList_Type, &pieces, &topic, &queue_id, &summed_from)) return NULL;
    const uint8_t *p = data.buf, *end = p + data.len;
    hf_slice name = {topic.buf, (uint32_t)topic.len};
    Py_ssize_t i = 0;
    for (; i < PyList_GET_SIZE(pieces); i++) {
        long long physical, index;
        int size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pieces, i), "LiL", &physical, &size, &index)) { i = -1; break; }
        hf_piece piece = {physical, index, size};
        if (size <= 0 || size > end - p || !hf_record_sound(p, &piece, name, queue_id, summed_from)) break;
        p += size;
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&topic);
    return i < 0 ? NULL : PyLong_FromSsize_t(i);
}

/* A batch: the body of one send that holds several messages. Measured first, every length held against what is
   there; only then written, as records one behind the other in one place of the log.
   The layout is drawn in protocol/batch.py; what is stored is broker/handlers/batch.py's, compiled. */
#include "store.h"

#define HEAD_BYTES 20   /* total size, magic, checksum, flag, body size */
#define FIXED_BYTES 22  /* and two bytes of the properties' size */
#define KEYS_AT_ONCE 64

/* The message at p of so many bytes; its size, or 0 when its lengths do not agree. */
static size_t read_message(const uint8_t *p, size_t left, hf_record *r) {
    if (left < FIXED_BYTES) return 0;
    uint32_t size = get32(p), body = get32(p + 16);
    if (size > left || size < FIXED_BYTES || body > size - FIXED_BYTES) return 0;
    uint32_t properties = get16(p + HEAD_BYTES + body);
    if (properties > INT16_MAX || FIXED_BYTES + (size_t)body + properties != size) return 0;
    r->flag = (int32_t)get32(p + 12);
    r->body = (hf_slice){p + HEAD_BYTES, body};
    r->properties = (hf_slice){p + FIXED_BYTES + body, properties};
    return size;
}

/* How many keys the properties can have at most; -1 when they name something the handler has to look at. */
static int64_t keys_of(hf_slice properties) {
    const uint8_t *p = properties.p, *end = p + properties.size;
    int64_t keys = 2; /* the unique one and the tag */
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        size_t size = (size_t)(stop - p);
        if (size > 5 && !memcmp(p, "KEYS\x01", 5)) keys = 2 + (int64_t)size / 2;
        else if (size >= 6 && (!memcmp(p, "DELAY\x01", 6) || !memcmp(p, "TIMER_", 6))) return -1;
        else if (size >= 9 && !memcmp(p, "__CRC32#\x01", 9)) return -1;
        p = stop + 1;
    }
    return keys;
}

int hf_batch_measure(hf_slice body, const hf_record *common, hf_batch *out) {
    hf_record r = *common;
    *out = (hf_batch){0, 0, 0};
    for (size_t at = 0; at < body.size;) {
        size_t size = read_message(body.p + at, body.size - at, &r);
        int64_t keys = size ? keys_of(r.properties) : -1;
        size_t record = keys < 0 ? 0 : hf_record_size(&r);
        if (!record || out->count == HF_BATCH_MAX) return 0;
        out->bytes += record;
        out->keys += (size_t)keys;
        out->count++;
        at += size;
    }
    return out->count > 0;
}

void hf_batch_write(hf_journal *j, hf_queue *queue, hf_slice body, const hf_record *common, uint8_t *out) {
    hf_record r = *common;
    for (size_t at = 0; at < body.size;) {
        at += read_message(body.p + at, body.size - at, &r);
        size_t size = hf_record_size(&r);
        r.queue_offset = queue->next++;
        hf_record_write(&r, size, out);
        hf_journal_derive_later(j, queue, r.physical_offset, (int32_t)size, r.queue_offset, hf_tags_code(r.properties), r.store_timestamp);
        if (j->grow_index) {
            uint32_t few[KEYS_AT_ONCE], *hashes = few;
            int count = hf_record_keys(r.topic, r.properties, few, KEYS_AT_ONCE);
            if (count > KEYS_AT_ONCE) hashes = PyMem_Malloc((size_t)count * sizeof *hashes);
            if (hashes && hashes != few) hf_record_keys(r.topic, r.properties, hashes, count);
            /* without memory the first ones are found, the others missed: the index is a help, the log the truth */
            int kept = hashes ? count : KEYS_AT_ONCE;
            for (int i = 0; i < kept; i++) hf_journal_index_later(j, r.physical_offset, r.store_timestamp, (hashes ? hashes : few)[i]);
            if (hashes && hashes != few) PyMem_Free(hashes);
        }
        r.physical_offset += (int64_t)size;
        out += size;
    }
}

/* Frame and header parsing for the fast lane: both header serialisations, strict, no allocation.
   Every length is compared with what is really there before it is used. */
#include "header.h"

#define HEADER_BYTES_MAX (1u << 20) /* as in protocol/command.py: larger ones are the full decoder's to refuse */
#define BINARY_FIXED_BYTES 21 /* code 2, language 1, version 2, opaque 4, flag 4, remark length 4, fields length 4 */

typedef struct { const uint8_t *p, *end; } cursor;

static void skip_space(cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')) c->p++;
}

static inline int take(cursor *c, uint8_t ch) {
    if (c->p < c->end && *c->p == ch) { c->p++; return 1; } /* hardly anyone writes spaces */
    skip_space(c);
    if (c->p < c->end && *c->p == ch) { c->p++; return 1; }
    return 0;
}

/* Of eight characters, a bit for each quote, backslash and control character; the lowest one is exact. */
static inline uint64_t specials(const uint8_t *p) {
    const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
    uint64_t v;
    memcpy(&v, p, 8);
    uint64_t quote = v ^ ones * '"', backslash = v ^ ones * '\\';
    return (((v - ones * 0x20) & ~v) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash)) & tops;
}

/* A string token; escapes are noted, not resolved. Raw control characters are not JSON. */
static int take_string(cursor *c, hf_slice *out, uint8_t *escaped) {
    if (!take(c, '"')) return 0;
    const uint8_t *start = c->p, *p = start, *end = c->end;
    *escaped = 0;
    while (p < end) {
        if (end - p >= 8) {
            uint64_t found = specials(p);
            if (!found) { p += 8; continue; }
            p += __builtin_ctzll(found) >> 3;
        }
        if (*p == '"') {
            *out = (hf_slice){start, (uint32_t)(p - start)};
            c->p = p + 1;
            return 1;
        }
        if (*p < 0x20) return 0;
        if (*p == '\\') {
            *escaped = 1;
            if (++p >= end) return 0;
        }
        p++;
    }
    return 0;
}

static int take_int32(cursor *c, int32_t *out) {
    skip_space(c);
    const uint8_t *start = c->p;
    while (c->p < c->end && (*c->p == '-' || (*c->p >= '0' && *c->p <= '9'))) c->p++;
    size_t n = (size_t)(c->p - start);
    int64_t v;
    size_t digits = n && *start == '-' ? n - 1 : n;
    if (digits > 1 && start[n - digits] == '0') return 0; /* a leading zero is not JSON */
    if (!hf_parse_int(start, n, INT32_MIN, INT32_MAX, &v)) return 0;
    *out = (int32_t)v;
    return 1;
}

/* Keys are short and mostly differ in their first character. */
static inline int is_same(hf_slice a, hf_slice b) {
    return a.size == b.size && (!a.size || (*a.p == *b.p && !memcmp(a.p, b.p, a.size)));
}

static int take_fields(cursor *c, hf_frame *f) {
    if (!take(c, '{')) return 0;
    if (take(c, '}')) return 1;
    do {
        uint8_t key_escaped;
        if (f->fields_count == HF_FIELDS_MAX) return 0;
        hf_field *field = &f->fields[f->fields_count];
        if (!take_string(c, &field->key, &key_escaped) || key_escaped || !take(c, ':')) return 0;
        if (!take_string(c, &field->value, &field->escaped)) return 0;
        for (int i = 0; i < f->fields_count; i++) /* a repeated key: let the full decoder decide which one counts */
            if (is_same(f->fields[i].key, field->key)) return 0;
        f->fields_count++;
    } while (take(c, ','));
    return take(c, '}');
}

enum { SAW_CODE = 1, SAW_FLAG = 2, SAW_OPAQUE = 4, SAW_FIELDS = 8 };

static int read_json(hf_slice header, hf_frame *f) {
    cursor c = {header.p, header.p + header.size};
    int saw = 0;
    if (!take(&c, '{')) return 0;
    do {
        hf_slice key, text;
        uint8_t escaped;
        int32_t number;
        int this = 0;
        if (!take_string(&c, &key, &escaped) || escaped || !take(&c, ':')) return 0;
        if (hf_slice_is(key, "code")) { this = SAW_CODE; if (!take_int32(&c, &f->code)) return 0; }
        else if (hf_slice_is(key, "flag")) { this = SAW_FLAG; if (!take_int32(&c, &f->flag)) return 0; }
        else if (hf_slice_is(key, "opaque")) { this = SAW_OPAQUE; if (!take_int32(&c, &f->opaque)) return 0; }
        else if (hf_slice_is(key, "extFields")) { this = SAW_FIELDS; if (!take_fields(&c, f)) return 0; }
        else if (hf_slice_is(key, "version")) { if (!take_int32(&c, &number)) return 0; }
        else if (hf_slice_is(key, "language") || hf_slice_is(key, "serializeTypeCurrentRPC")) {
            if (!take_string(&c, &text, &escaped) || escaped) return 0;
        } else return 0;
        if (saw & this) return 0;
        saw |= this;
    } while (take(&c, ','));
    if (!take(&c, '}')) return 0;
    skip_space(&c);
    return c.p == c.end && saw == (SAW_CODE | SAW_FLAG | SAW_OPAQUE | SAW_FIELDS) && hf_utf8_ok(header.p, header.size);
}

static int read_binary(hf_slice header, hf_frame *f) {
    if (header.size < BINARY_FIXED_BYTES) return 0;
    const uint8_t *p = header.p;
    f->code = (int16_t)get16(p);
    f->opaque = (int32_t)get32(p + 5);
    f->flag = (int32_t)get32(p + 9);
    uint32_t remark = get32(p + 13);
    if (remark != 0) return 0;
    uint32_t fields_size = get32(p + 17);
    if (fields_size != header.size - BINARY_FIXED_BYTES) return 0;
    const uint8_t *end = p + header.size;
    p += BINARY_FIXED_BYTES;
    while (p < end) {
        if (f->fields_count == HF_FIELDS_MAX || end - p < 2) return 0;
        hf_field *field = &f->fields[f->fields_count];
        uint32_t n = get16(p);
        p += 2;
        if (n == 0 || n > 0x7fff || (size_t)(end - p) < n + 4 || !hf_utf8_ok(p, n)) return 0;
        field->key = (hf_slice){p, n};
        p += n;
        n = get32(p);
        p += 4;
        if (n == 0 || (size_t)(end - p) < n || !hf_utf8_ok(p, n)) return 0;
        field->value = (hf_slice){p, n};
        field->escaped = 0;
        p += n;
        for (int i = 0; i < f->fields_count; i++)
            if (is_same(f->fields[i].key, field->key)) return 0;
        f->fields_count++;
    }
    return 1;
}

int hf_frame_read(const uint8_t *p, size_t available, uint32_t frame_max, hf_frame *out, size_t *frame_bytes) {
    if (available < 4) return HF_FRAME_PARTIAL;
    uint32_t length = get32(p);
    if (length < 4 || length > frame_max) return HF_FRAME_BAD_LENGTH;
    *frame_bytes = 4 + (size_t)length;
    if (available < *frame_bytes) return HF_FRAME_PARTIAL;
    uint32_t mark = get32(p + 4), header_size = mark & 0xffffff;
    if (header_size > length - 4 || header_size > HEADER_BYTES_MAX) return HF_FRAME_STRANGE;
    hf_slice header = {p + 8, header_size};
    out->fields_count = 0;
    out->body = (hf_slice){p + 8 + header_size, length - 4 - header_size};
    int ok = (mark >> 24) == 0 ? read_json(header, out) : (mark >> 24) == 1 ? read_binary(header, out) : 0;
    return ok ? HF_FRAME_OK : HF_FRAME_STRANGE;
}

static int hex4(const uint8_t *p, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i];
        uint32_t d;
        if (c >= '0' && c <= '9') d = c - '0';
        else if (c >= 'a' && c <= 'f') d = c - 'a' + 10u;
        else if (c >= 'A' && c <= 'F') d = c - 'A' + 10u;
        else return 0;
        v = v << 4 | d;
    }
    *out = v;
    return 1;
}

int64_t hf_unescape(hf_slice s, uint8_t *out) {
    uint8_t *o = out;
    for (uint32_t i = 0; i < s.size;) {
        const uint8_t *stop = memchr(s.p + i, '\\', s.size - i);
        uint32_t plain = stop ? (uint32_t)(stop - (s.p + i)) : s.size - i;
        o = put_bytes(o, s.p + i, plain);
        i += plain;
        if (!stop) break;
        if (s.size - i < 2) return -1;
        uint8_t kind = s.p[i + 1];
        if (kind == 'u') {
            uint32_t c;
            if (s.size - i < 6 || !hex4(s.p + i + 2, &c)) return -1;
            i += 6;
            if (c < 0x80) *o++ = (uint8_t)c;
            else if (c < 0x800) { *o++ = (uint8_t)(0xc0 | c >> 6); *o++ = (uint8_t)(0x80 | (c & 0x3f)); }
            else if (c >= 0xd800 && c < 0xe000) return -1; /* surrogates: rare, left to the full decoder */
            else { *o++ = (uint8_t)(0xe0 | c >> 12); *o++ = (uint8_t)(0x80 | (c >> 6 & 0x3f)); *o++ = (uint8_t)(0x80 | (c & 0x3f)); }
            continue;
        }
        static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        const char *at = memchr(names, kind, 8);
        if (!at) return -1;
        *o++ = (uint8_t)values[at - names];
        i += 2;
    }
    return o - out;
}

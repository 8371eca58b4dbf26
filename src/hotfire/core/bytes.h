/* Big-endian loads and stores, and Java's string hash over UTF-8. Knows bytes only. */
#ifndef HOTFIRE_BYTES_H
#define HOTFIRE_BYTES_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline uint8_t *put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); return p + 2; }
static inline uint8_t *put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); return p + 4; }
static inline uint8_t *put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); return p + 8; }
static inline uint8_t *put_bytes(uint8_t *p, const void *src, size_t n) { if (n) memcpy(p, src, n); return p + n; }

/* CRC-32 (IEEE, as zlib), continuing from `crc`. */
uint32_t hf_crc32(uint32_t crc, const uint8_t *data, size_t size);

/* 1 when the bytes are well-formed UTF-8 (no surrogates, no overlong forms). */
int hf_utf8_ok(const uint8_t *p, size_t size);

/* Java's String.hashCode of UTF-8: over UTF-16 code units, 32-bit wrap. Bytes that are not UTF-8 count as U+FFFD,
   one for each stretch that could have begun a character, as Python and Java decode them. */
uint32_t hf_java_hash_on(uint32_t h, const uint8_t *p, size_t size); /* of a text that began with hash h */
int32_t hf_java_hash(const uint8_t *p, size_t size);

/* Decimal text of v into out (at least 20 bytes); returns the length. */
size_t hf_decimal(char *out, uint64_t v);

/* Strict decimal in [min, max] with an optional '-'; returns 0 when the text is anything else. */
int hf_parse_int(const uint8_t *p, size_t size, int64_t min, int64_t max, int64_t *out);

#endif

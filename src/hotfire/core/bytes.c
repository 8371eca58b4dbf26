/* Checksums, hashes and decimal text: the leaves every other part stands on. */
#include "bytes.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t table[8][256];

__attribute__((constructor)) static void fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
        table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++) table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 0xff];
}

/* Eight bytes a step. `crc` is the running register, already inverted by the caller. */
static uint32_t crc_tables(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        v ^= crc;
        crc = table[7][v & 0xff] ^ table[6][(v >> 8) & 0xff] ^ table[5][(v >> 16) & 0xff] ^ table[4][(v >> 24) & 0xff] ^
              table[3][(v >> 32) & 0xff] ^ table[2][(v >> 40) & 0xff] ^ table[1][(v >> 48) & 0xff] ^ table[0][v >> 56];
        p += 8;
        n -= 8;
    }
    while (n--) crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
/* Folding by carry-less multiplication; the constants are powers of x modulo the reflected polynomial. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_fold(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i by_64_bytes = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16_bytes = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i to_64_bits = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_set_epi32(0, ~0, 0, ~0);
    __m128i a = _mm_loadu_si128((const void *)p), b = _mm_loadu_si128((const void *)(p + 16));
    __m128i c = _mm_loadu_si128((const void *)(p + 32)), d = _mm_loadu_si128((const void *)(p + 48));
    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)crc));
    p += 64;
    n -= 64;
#define FOLD(x, k, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
    while (n >= 64) {
        a = FOLD(a, by_64_bytes, _mm_loadu_si128((const void *)p));
        b = FOLD(b, by_64_bytes, _mm_loadu_si128((const void *)(p + 16)));
        c = FOLD(c, by_64_bytes, _mm_loadu_si128((const void *)(p + 32)));
        d = FOLD(d, by_64_bytes, _mm_loadu_si128((const void *)(p + 48)));
        p += 64;
        n -= 64;
    }
    a = FOLD(a, by_16_bytes, b);
    a = FOLD(a, by_16_bytes, c);
    a = FOLD(a, by_16_bytes, d);
    while (n >= 16) {
        a = FOLD(a, by_16_bytes, _mm_loadu_si128((const void *)p));
        p += 16;
        n -= 16;
    }
#undef FOLD
    __m128i t = _mm_clmulepi64_si128(a, by_16_bytes, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), t);
    t = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), to_64_bits, 0x00), t);
    t = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10), low_words);
    t = _mm_clmulepi64_si128(t, barrett, 0x00);
    crc = (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    return n ? crc_tables(crc, p, n) : crc;
}
#endif

uint32_t hf_crc32(uint32_t crc, const uint8_t *data, size_t size) {
#if defined(__x86_64__)
    static int can_fold = -1;
    if (can_fold < 0) can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    if (size >= 64 && can_fold) return ~crc_fold(~crc, data, size);
#endif
    return ~crc_tables(~crc, data, size);
}

/* Length of the well-formed sequence at p (1..4), or 0. */
static size_t utf8_step(const uint8_t *p, size_t n) {
    uint8_t a = p[0];
    if (a < 0x80) return 1;
    if (a < 0xc2 || n < 2) return 0;
    if (a < 0xe0) return (p[1] & 0xc0) == 0x80 ? 2 : 0;
    if (a < 0xf0) {
        if (n < 3 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80) return 0;
        if ((a == 0xe0 && p[1] < 0xa0) || (a == 0xed && p[1] > 0x9f)) return 0;
        return 3;
    }
    if (a > 0xf4 || n < 4 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80) return 0;
    if ((a == 0xf0 && p[1] < 0x90) || (a == 0xf4 && p[1] > 0x8f)) return 0;
    return 4;
}

/* Length of what Python and Java replace by one U+FFFD at p, where utf8_step found no character. */
static size_t utf8_bad(const uint8_t *p, size_t n) {
    uint8_t a = p[0], low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (a < 0xe0 || a > 0xf4 || n < 2 || p[1] < low || p[1] > high) return 1;
    return a >= 0xf0 && n > 2 && (p[2] & 0xc0) == 0x80 ? 3 : 2;
}

int hf_utf8_ok(const uint8_t *p, size_t n) {
    while (n) {
        if (n >= 8) {
            uint64_t v;
            memcpy(&v, p, 8);
            if (!(v & 0x8080808080808080ull)) { p += 8; n -= 8; continue; }
        }
        size_t k = utf8_step(p, n);
        if (!k) return 0;
        p += k;
        n -= k;
    }
    return 1;
}

int32_t hf_java_hash(const uint8_t *p, size_t n) { return (int32_t)hf_java_hash_on(0, p, n); }

uint32_t hf_java_hash_on(uint32_t h, const uint8_t *p, size_t n) {
    while (n) {
        for (; n && *p < 0x80; p++, n--) h = 31 * h + *p;
        if (!n) break;
        size_t k = utf8_step(p, n);
        if (k == 0) { h = 31 * h + 0xfffd; k = utf8_bad(p, n); }
        else if (k == 2) h = 31 * h + (((p[0] & 0x1fu) << 6) | (p[1] & 0x3fu));
        else if (k == 3) h = 31 * h + (((p[0] & 0x0fu) << 12) | ((p[1] & 0x3fu) << 6) | (p[2] & 0x3fu));
        else {
            uint32_t c = ((p[0] & 0x07u) << 18) | ((p[1] & 0x3fu) << 12) | ((p[2] & 0x3fu) << 6) | (p[3] & 0x3fu);
            c -= 0x10000;
            h = 31 * h + (0xd800 | (c >> 10));
            h = 31 * h + (0xdc00 | (c & 0x3ff));
        }
        p += k;
        n -= k;
    }
    return h;
}

size_t hf_decimal(char *out, uint64_t v) {
    char back[20];
    size_t n = 0;
    do { back[n++] = (char)('0' + v % 10); v /= 10; } while (v);
    for (size_t i = 0; i < n; i++) out[i] = back[n - 1 - i];
    return n;
}

int hf_parse_int(const uint8_t *p, size_t n, int64_t min, int64_t max, int64_t *out) {
    int negative = n && *p == '-';
    if (negative) { p++; n--; }
    if (!n || n > 18) return 0; /* 18 digits fit int64 whatever they are; nothing we read is longer */
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') return 0;
        v = v * 10 + (p[i] - '0');
    }
    if (negative) v = -v;
    if (v < min || v > max) return 0;
    *out = v;
    return 1;
}

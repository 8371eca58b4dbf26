/* One remoting frame, split into the few facts the fast lane acts upon. */
#ifndef HOTFIRE_HEADER_H
#define HOTFIRE_HEADER_H
#include "bytes.h"

#define HF_FIELDS_MAX 24

typedef struct { const uint8_t *p; uint32_t size; } hf_slice;
typedef struct { hf_slice key, value; uint8_t escaped; } hf_field; /* escaped: value holds JSON escapes */

typedef struct {
    int32_t code, flag, opaque;
    int fields_count;
    hf_field fields[HF_FIELDS_MAX];
    hf_slice body;
} hf_frame;

enum { HF_FRAME_OK, HF_FRAME_PARTIAL, HF_FRAME_STRANGE, HF_FRAME_BAD_LENGTH };

/* Reads the frame at p. `*frame_bytes` is set to its whole size when the length word is there and possible.
   STRANGE: whole, but outside the plain dialect the lane understands; the Python decoder has the last word. */
int hf_frame_read(const uint8_t *p, size_t available, uint32_t frame_max, hf_frame *out, size_t *frame_bytes);

/* Copies a JSON string's value with its escapes resolved; returns the size, or -1 when it is not plain enough.
   `out` must hold value.size bytes. */
int64_t hf_unescape(hf_slice value, uint8_t *out);

/* The text's own length in both places: of a constant text the compiler makes a comparison or two. */
static inline int hf_slice_is(hf_slice s, const char *text) { return s.size == strlen(text) && !memcmp(s.p, text, strlen(text)); }

#endif

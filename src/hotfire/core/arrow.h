/* Columns of Arrow's layout. A text column is (validity bits or None, offsets of 32 bits, bytes or None, first row); a map is
   (validity, offsets, first row, count of entries, names, values), the last two text columns.
   Every length is held against its buffer before it is believed; buffers stay pinned until hf_unpin, so that the
   interpreter's lock may be let go meanwhile. */
#ifndef HOTFIRE_ARROW_H
#define HOTFIRE_ARROW_H
#include "store.h"

#define HF_PINS_MAX 64

typedef struct { Py_buffer views[HF_PINS_MAX]; int count; } hf_pins; /* count = 0 is all there is to begin with */
typedef struct { const uint8_t *valid, *offsets, *data; int64_t data_size, first, count; } hf_texts; /* offsets NULL: no such column */
typedef struct { const uint8_t *valid, *offsets; int64_t first, count; hf_texts names, values; } hf_maps;
typedef struct { const uint8_t *p; int64_t count, at, end; } hf_rows; /* p: row numbers of 32 bits, or NULL: the rows themselves */
typedef struct { int64_t row; const char *problem; } hf_refusal;

Py_buffer *hf_pin(hf_pins *held, PyObject *object, int flags);
void hf_unpin(hf_pins *held);
/* 1, or 0 with an exception */
int hf_read_text(hf_pins *held, PyObject *object, int64_t count, hf_texts *out);
int hf_read_map(hf_pins *held, PyObject *object, int64_t count, hf_maps *out);
int hf_read_selection(hf_pins *held, PyObject *rows, int64_t count, int64_t at, int64_t end, hf_rows *out);
PyObject *hf_refuse_row(const hf_refusal *r); /* ValueError(row, problem) */

enum { HF_UNSOUND = -1, HF_MISSING, HF_PRESENT };
#define HF_NO_ROW "it is no row of its columns"
#define HF_UNSOUND_TEXT "its column's offsets contradict each other"

static inline int32_t hf_load32(const uint8_t *p, int64_t i) { int32_t v; memcpy(&v, p + 4 * i, 4); return v; }

static inline int64_t hf_row_at(const hf_rows *s, int64_t i) { /* -1: none of ours */
    int64_t row = s->p ? hf_load32(s->p, i) : i;
    return row >= 0 && row < s->count ? row : -1;
}

static inline int hf_is_valid(const uint8_t *bits, int64_t i) { return !bits || (bits[i >> 3] >> (i & 7) & 1); }

static inline int hf_text_cell(const hf_texts *c, int64_t row, hf_slice *out) {
    *out = (hf_slice){NULL, 0};
    if (!c->offsets || !hf_is_valid(c->valid, c->first + row)) return HF_MISSING;
    int32_t from = hf_load32(c->offsets, c->first + row), to = hf_load32(c->offsets, c->first + row + 1);
    if (from < 0 || to < from || to > c->data_size) return HF_UNSOUND;
    *out = (hf_slice){c->data + from, (uint32_t)(to - from)};
    return HF_PRESENT;
}

static inline int hf_map_cell(const hf_maps *c, int64_t row, int32_t *from, int32_t *to) {
    *from = *to = 0;
    if (!c->offsets || !hf_is_valid(c->valid, c->first + row)) return HF_MISSING;
    *from = hf_load32(c->offsets, c->first + row);
    *to = hf_load32(c->offsets, c->first + row + 1);
    return *from < 0 || *to < *from || *to > c->names.count ? HF_UNSOUND : HF_PRESENT;
}
#endif

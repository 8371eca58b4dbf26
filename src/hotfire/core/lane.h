/* What the files of the fast lane share: how a frame ends, and the steps of a send that others take too. */
#ifndef HOTFIRE_LANE_H
#define HOTFIRE_LANE_H
#include "store.h"

enum { NEXT_PARTIAL = HF_LANE_PARTIAL, NEXT_HANDLER, NEXT_BAD_LENGTH, NEXT_FULL, NEXT_SEGMENT, NEXT_MUCH, NEXT_DONE, NEXT_ERROR };

/* The times that a message asks for, as it spells them; empty when it does not. */
typedef struct { hf_slice seconds, milliseconds, at; } hf_timed;

/* What a message's properties say to the broker. */
typedef struct {
    hf_slice unique, tags, keys, group;
    int is_half;
    hf_timed timed;
} hf_known;

static inline size_t hf_keys_max(const hf_known *known) { return 3 + known->keys.size / 2; }
/* Store time never goes back, whatever the clock does. */
static inline int64_t hf_lane_stamp(const hf_lane *l, int64_t now) { return now < l->journal->last_timestamp ? l->journal->last_timestamp : now; }
int hf_lane_room(uint8_t **buffer, size_t *room, size_t size); /* 0 without memory, and an exception is set */
PyObject *hf_lane_topic(hf_lane *l, hf_slice name);            /* its entry, borrowed; NULL without error when it is not in the table */
hf_queue *hf_lane_queue(PyObject *queues, int64_t id);
/* Where a record of this size, and so many keys, can be placed: NEXT_DONE, or why it cannot be. All is done that may fail for long. */
int hf_lane_reserve(hf_lane *l, size_t size, size_t keys, int64_t *physical);
/* After reserve: written, its entry and its keys follow the log. NULL without memory, and nothing is done then */
const uint8_t *hf_lane_place(hf_lane *l, hf_queue *queue, hf_record *r, size_t size, const hf_known *known);
int hf_lane_reply_plain(hf_lane *l, int32_t opaque); /* code 0 and nothing else, once the log is safe; 0 without memory */

/* ---- halves.c ---- */
#define HF_HALF_TOPIC "RMQ_SYS_TRANS_HALF_TOPIC"
#define HF_SYS_FLAG_TRANSACTION 0xC
#define HF_SYS_FLAG_COMMIT 0x8
int hf_lane_half_suffix(hf_lane *l, hf_slice topic, int64_t queue_id, hf_slice unique, hf_slice *suffix); /* 0 without memory */
void hf_lane_half_stored(hf_lane *l, int64_t offset);
int hf_lane_serve_end(hf_lane *l, hf_frame *f, int64_t now);

/* ---- timers.c ---- */
#define HF_TIMER_TOPIC "rmq_sys_wheel_timer"
int hf_timed_name(hf_slice name, hf_slice value, hf_timed *out); /* whether it asks for a time, and is noted */
int hf_is_timed(const hf_timed *timed);
/* What a message parked has behind its properties, and the handle by which it is taken back: NEXT_DONE, or why it is not parked here */
int hf_lane_park(hf_lane *l, const hf_known *known, hf_slice properties, hf_slice topic, int64_t queue_id, int64_t now, hf_slice *suffix, hf_slice *handle);
PyObject *hf_lane_take_timers(hf_lane *l, PyObject *args);
PyObject *hf_lane_deliver(hf_lane *l, PyObject *args);
#endif

/* What the generator of load keeps: connections, their requests under way, and what came of them. */
#ifndef HOTFIRE_LOADGEN_H
#define HOTFIRE_LOADGEN_H
#include "store.h"

#define LOAD_KEY_DIGITS 32
#define LOAD_TIME_DIGITS 13
#define LOAD_OFFSET_DIGITS 18
#define LOAD_LATENCY_BITS 42       /* over an hour counts as an hour */
#define LOAD_BUCKETS ((LOAD_LATENCY_BITS - 7) * 64 + 128)
#define LOAD_CODES_MAX 16
#define LOAD_PEERS_MAX 4096
#define LOAD_WINDOW_MAX 65536
#define LOAD_FRAMES_MAX 65536      /* of one connection */
#define LOAD_PLACES_MAX 4096       /* of keys or clocks in a frame */

typedef struct { uint8_t *bytes; size_t size, done, capacity; } load_buffer;
typedef struct { uint64_t sent_ns; int is_busy; } load_slot;
typedef struct { int64_t offset, again_at; int is_over; } load_cursor;
typedef struct { int32_t code; uint64_t count; } load_code;

typedef struct {
    uint8_t *bytes;
    size_t size, opaque_at, time_at, offset_at; /* 0: it has none */
    size_t *keys_at, *clocks_at;
    int keys_count, clocks_count;
} load_frame;

typedef struct {
    int fd, is_reader, is_lost, wants_out;
    load_buffer in, out;
    load_frame *frames;
    int frames_count;
    load_cursor *cursors;          /* of a reader: one for each frame, with the slot of the same number */
    load_slot *slots;
    int slots_count;
    int *free;                     /* of a writer: slots that may be used */
    int free_count;
    uint64_t busy, turn, messages; /* messages: in each request */
} load_peer;

typedef struct {
    PyObject_HEAD
    int epoll, is_running, is_stopped, is_interrupted;
    load_peer *peers;
    int peers_count, peers_room;
    uint32_t frame_bytes_max;
    double rate;                   /* messages a second; 0: as fast as they are answered */
    uint64_t began_ns, due_ns, scheduled, next_peer, numbered;
    uint8_t mark[8];               /* the first bytes of the bodies that are this run's */
    uint64_t sends_max, deliveries_max;
    uint64_t asked, answered, acked, in_flight, unanswered, stray, lost;
    uint64_t delivered, delivered_own, delivered_bytes, missed, repeated;
    load_code codes[LOAD_CODES_MAX];
    int codes_count;
    uint8_t *refusal;              /* the first frame that said no */
    size_t refusal_bytes;
    uint64_t answer[LOAD_BUCKETS], delivery[LOAD_BUCKETS];
} hf_load;

int load_run(hf_load *l, double seconds);
int load_is_over(const hf_load *l); /* nothing is under way, and nothing more will be */
extern PyTypeObject hf_load_type;
#endif

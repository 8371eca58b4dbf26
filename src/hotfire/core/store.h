/* The shared shapes of the compiled core: queues of entries, the journal that fills and flushes turns. */
#ifndef HOTFIRE_STORE_H
#define HOTFIRE_STORE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#ifndef Py_T_LONGLONG /* names of 3.12 for 3.11 */
#define Py_T_LONGLONG T_LONGLONG
#define Py_T_INT T_INT
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_READONLY READONLY
#endif
#include "header.h"

#define HF_ENTRY_BYTES 20          /* consume-queue entry: physical offset 8, size 4, tags code 8 */
#define HF_FILLER_SIZE 0x7fffffff  /* an entry that only keeps a place */
#define HF_CRC_BYTES 20            /* "__CRC32#" 0x01 ten digits 0x02 */
#define HF_BLANK_BYTES 8           /* least left at a segment's end: size of the rest, magic */
#define HF_PIECES_MAX 4096

/* ---- record ---- */
typedef struct { int64_t physical, index; int32_t size; } hf_piece; /* index: of the queue entry */
typedef struct {
    hf_slice topic, body, properties, suffix; /* suffix: properties the broker adds, already encoded */
    hf_slice born_host, store_host;           /* address and port: 8 or 20 bytes */
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int64_t queue_offset, physical_offset, born_timestamp, store_timestamp, prepared_offset;
    int append_crc;
} hf_record;

size_t hf_record_size(const hf_record *r);       /* 0 when the properties do not fit their 16-bit length */
int hf_record_sound(const uint8_t *p, const hf_piece *piece, hf_slice topic, int32_t queue_id, int64_t summed_from); /* whole, unharmed, and the one its entry means */
void hf_record_write(const hf_record *r, size_t size, uint8_t *out);
PyObject *hf_scan_records(PyObject *module, PyObject *args);
PyObject *hf_sound_records(PyObject *module, PyObject *args);

typedef struct {
    int64_t physical, queue_offset, store_timestamp;
    uint32_t size;
    int32_t queue_id, sys_flag;
    hf_slice topic, properties;
} hf_scanned;
/* NULL when the bytes at p are a whole, sound record; else the reason. `available` may be short: "partial". */
const char *hf_scan_one(const uint8_t *p, size_t available, int verify, int64_t summed_from, hf_scanned *out);
int64_t hf_tags_code(hf_slice properties);
/* Hashes of the unique key, of every word of the keys and of the tag, as the index files them: how many there are, whatever the room */
int hf_record_keys(hf_slice topic, hf_slice properties, uint32_t *out, int room);
int hf_record_has_key(hf_slice properties, hf_slice key); /* as the index files it: a tag behind its kind */
PyObject *hf_derive_records(PyObject *module, PyObject *args);
PyObject *hf_records_by_key(PyObject *module, PyObject *args);
PyObject *hf_sql_verdict(PyObject *module, PyObject *args);
PyObject *hf_sift_records(PyObject *module, PyObject *args);
PyObject *hf_timer_units(PyObject *module, PyObject *args);

/* ---- queue ---- */
typedef struct { int64_t base, count; Py_buffer view; } hf_window;
typedef struct {
    PyObject_HEAD
    int64_t next, max, min;        /* next to claim, next to become visible, first still there */
    int64_t shown, shown_bytes;    /* entries that became visible since they were last counted, and their records' bytes */
    int watched, marked;
    int extended;                  /* entries may hold addresses in place of tags codes */
    int windows_count, windows_room;
    hf_window *windows;
    PyObject *grow, *key;
    PyObject *extend;              /* extend(tags, store time, log offset, size) -> what the entry holds instead; NULL or None: the tags */
} hf_queue;
extern PyTypeObject hf_queue_type;

typedef struct {
    int32_t count_max, memory_count_max, disk_count_max, scan_max;
    int64_t bytes_max, memory_bytes_max, disk_bytes_max, memory_from;
} hf_limits;
typedef struct { int count; int64_t next, bytes; int missing; } hf_selection; /* missing: a window is not attached */

int hf_queue_extend(hf_queue *q, int64_t tags, int64_t timestamp, int64_t physical, int32_t size, int64_t *out);
uint8_t *hf_queue_entry(hf_queue *q, int64_t index);
int32_t *hf_codes_sorted(PyObject *codes, int *count); /* of a tuple; to be freed */
void hf_queue_select(hf_queue *q, int64_t from, const hf_limits *limits, const int32_t *codes, int codes_count,
                     hf_piece *pieces, hf_selection *out);

/* ---- key index ---- */
typedef struct {
    PyObject_HEAD
    Py_buffer view;
    uint32_t slots;
    int32_t entries, reserved, next; /* places in all, places with blocks on disk, next to use */
    int64_t end_offset, end_timestamp; /* of the newest record indexed */
} hf_index;
extern PyTypeObject hf_index_type;
int hf_index_full(hf_index *x);
void hf_index_expect(hf_index *x, uint32_t hash); /* one that is put soon */
void hf_index_put(hf_index *x, uint32_t hash, int64_t physical, int64_t timestamp);
/* The entries of a hash whose records were stored in a span of time, newest first: the next one's log offset, or 0 at the end */
typedef struct { hf_index *index; int64_t begin, end, base; int32_t at, next; uint32_t hash; } hf_chain;
hf_chain hf_chain_of(hf_index *x, uint32_t hash, int64_t begin, int64_t end);
int hf_chain_next(hf_chain *c, int64_t *physical);
#define HF_KEY ""                  /* kinds of keys: given by users, */
#define HF_TAG "T#"                /* or a tag */
uint32_t hf_key_hash(hf_slice topic, const char *kind, hf_slice key);
int hf_blank(hf_slice text);

/* ---- journal ---- */
static inline int64_t hf_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
typedef struct { int fd; int64_t position; size_t start, size; } hf_chunk;
typedef struct { uint8_t *data; size_t size, room; hf_chunk *chunks; int chunks_count, chunks_room; int64_t end; int pooled; } hf_turn;
typedef struct { int64_t start, size; int fd, unmappable; const uint8_t *map; } hf_segment; /* map: NULL before the first read */
typedef struct { hf_queue *queue; int64_t physical, index, tags, timestamp; int32_t size; } hf_derivation;
typedef struct { int64_t physical, timestamp; uint32_t hash; } hf_keyed;

typedef struct {
    PyObject_HEAD
    hf_turn turns[2];
    int filling;
    hf_segment *segments;
    int segments_count, segments_room;
    int64_t end, written;          /* next byte to assign; first byte not yet written (or synced) */
    int64_t summed_from;           /* records from here on end in their checksum */
    int64_t last_timestamp;        /* store time of the newest record; it never goes back */
    size_t turn_bytes_max;
    hf_derivation *derivations;    /* ring of entries that follow the log */
    size_t derivations_head, derivations_count, derivations_room;
    hf_keyed *keyed;               /* ring of keys to be indexed after their records' queue entries */
    size_t keyed_head, keyed_count, keyed_room;
    PyObject *shown;               /* list of queues to be counted; NULL: none yet */
    PyObject *index, *grow_index;  /* the KeyIndex being filled or NULL; what to call when it is full. NULL: no index */
    /* flusher thread, which never takes the interpreter lock */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int running, job, done, stop, job_sync, error, event_fd;
    _Atomic int64_t turn_at_ns;    /* when it was last done with one, by hf_clock_ns; the reader looks too */
    _Atomic int64_t turned_bytes;  /* written so far */
    _Atomic int is_writing;        /* it has a turn in its hands now */
    const char *error_step;
    int blank_fd;                  /* the flusher's own: the file it wrote zeros to, ahead of the log, up to where, its size, */
    int64_t blank_until, blank_limit, blank_seen; /* and where the log was then */
    uint8_t *pool;                 /* locked memory of both turns, if any */
    size_t pool_bytes;
    int mark_fd;                   /* where the flusher says how far the log is synced */
    int64_t mark_position;
    uint8_t mark_magic[8];
    int busy;                      /* loop side: a turn is in the flusher's hands */
    int is_full;                   /* loop side: the turn being filled had no room for a record */
    int stalled;                   /* loop side: it found no room on the disk and waits to be tried again */
} hf_journal;
extern PyTypeObject hf_journal_type;

enum { HF_WRITE, HF_SYNC, HF_SYNC_MARK }; /* what the flusher does with a turn */
#define HF_MARK_BYTES 20           /* magic 8, log offset 8, CRC-32 of these 4 */
enum { HF_RESERVED, HF_NEED_SEGMENT, HF_TURN_FULL };
int hf_journal_reserve(hf_journal *j, size_t size, int64_t *offset);
uint8_t *hf_journal_space(hf_journal *j, size_t size); /* after reserve: room for the record; NULL without memory */
int hf_journal_derive_room(hf_journal *j, size_t records); /* before space is taken: a record without its entry would be lost */
void hf_journal_derive_later(hf_journal *j, hf_queue *q, int64_t physical, int32_t size, int64_t index, int64_t tags, int64_t timestamp);
int hf_journal_index_room(hf_journal *j, size_t keys); /* likewise */
void hf_journal_index_later(hf_journal *j, int64_t physical, int64_t timestamp, uint32_t hash);
int hf_journal_fetch(hf_journal *j, const hf_piece *pieces, int count, uint8_t *out); /* 0, EAGAIN: cold, or errno */
hf_segment *hf_journal_segment(hf_journal *j, int64_t offset);
/* Whether turns are being written: who stored something so lately is taken to go on with it, and feels what is slow. */
#define HF_TURN_RECENT_NS 20000000
static inline int hf_journal_is_written(hf_journal *j) {
    if (atomic_load_explicit(&j->is_writing, memory_order_relaxed)) return 1; /* a slow disk most of all */
    return hf_clock_ns() - atomic_load_explicit(&j->turn_at_ns, memory_order_relaxed) <= HF_TURN_RECENT_NS;
}
int hf_journal_copy(hf_journal *j, const hf_piece *pieces, int count, uint8_t *out); /* 0, EAGAIN: cold, EOPNOTSUPP: not known */
/* Where the first of the pieces lies in memory, the others as far behind it as in the log: how many of them are there; 0: cold, -1: not known */
int hf_journal_look(hf_journal *j, const hf_piece *pieces, int count, const uint8_t **first);
void hf_segment_unmap(hf_segment *s);

/* ---- by a condition ---- */
typedef struct { hf_slice program; int64_t bytes_max, cost_max; int32_t count_max; } hf_sought;
typedef struct { int count, is_done; int64_t next, bytes, looked, cost; } hf_sifted; /* not done: stuck at `next`, which the plain road has to look at */
/* Entries [from, stop) whose records the condition is TRUE of, as many as there is room for: `kept` holds count_max */
void hf_queue_sift(hf_queue *q, hf_journal *j, const hf_sought *sought, int64_t from, int64_t stop, hf_piece *kept, hf_sifted *out);

/* ---- batch ---- */
#define HF_BATCH_MAX 32767 /* messages; the reference counts them in 16 bits */
typedef struct { size_t bytes, keys, count; } hf_batch; /* of all records; at most so many keys; messages */
/* 0 when the handler has to look at it: lengths that do not agree, or messages that are not ordinary */
int hf_batch_measure(hf_slice body, const hf_record *common, hf_batch *out);
/* After measure, reserve and room: one record for each message, from common's physical offset on */
void hf_batch_write(hf_journal *j, hf_queue *queue, hf_slice body, const hf_record *common, uint8_t *out);

/* ---- halves ---- */
typedef struct {
    PyObject_HEAD
    hf_queue *queue;
    PyObject *queue_ref;
    int64_t next;                  /* the first place not passed over */
    int64_t serves_from;           /* the lane ends transactions from this place on */
    int64_t stored;                /* the first place the lane gave to a half since it was asked, or -1 */
    int64_t base;                  /* place of the first bit, a multiple of 64 */
    uint64_t *bits;                /* set: dealt with */
    size_t words;
    int64_t ended;                 /* bits set from `next` on */
    int64_t *owed;                 /* places dealt with that no op in the log names */
    size_t owed_count, owed_room;
    long long committed, rolled_back; /* by the lane */
    int promised;                  /* one who waits was told of an end: its op must be safe before that answer leaves */
} hf_halves;
extern PyTypeObject hf_halves_type;

/* ---- lane ---- */
#define HF_TEXT_MAX 255            /* unique key, region: longer ones take the slow road */
#define HF_LANE_PARTIAL 0          /* why the lane stopped: every whole frame is served */
typedef struct {
    PyObject_HEAD
    PyObject *topics, *grants;
    hf_journal *journal;
    hf_halves *halves;
    PyObject *journal_ref, *halves_ref, *suffix, *store_host;
    char reply_mid[2 * HF_TEXT_MAX + 64];  /* the constant text between msgId and queueOffset */
    char id_prefix[48];
    int id_prefix_size, reply_mid_size, version, append_crc, takes_halves;
    uint32_t frame_max, body_max, batch_max;
    int64_t memory_window;
    hf_limits limits;
    uint8_t *scratch, *waiting, *half;
    PyObject *ready;                    /* bytes being filled; NULL while there are none */
    size_t scratch_room, waiting_size, waiting_room, half_room, ready_size;
    size_t fetched;                     /* bytes of halves read in this call */
    int64_t cost, cost_max;             /* of conditions run in this call, and of one pull at most */
    PyObject *cached_name, *cached_topic;
    struct {
        hf_queue *queue;                /* where messages with a time wait; NULL: they are left to the handler */
        PyObject *queue_ref, *wheel, *broker_name;
        int64_t most_ms, congest_max;   /* the longest delay; messages due in one second */
    } timers;
    long long sends, pulls, evaluated, delivered;
} hf_lane;
void hf_lane_begin(hf_lane *l);
/* Serves whole frames; why it stopped, or -1 with an exception. Replies are left in `waiting` and `ready`, behind what is there */
int hf_lane_serve(hf_lane *l, const uint8_t *p, size_t size, hf_slice born_host, int64_t now, PyObject *pulls, size_t *consumed);

#define HF_BULK_BYTES (32u << 10) /* a reply that makes its peer one who takes long */
extern PyTypeObject hf_reader_type;
extern PyTypeObject hf_lane_type;
extern PyTypeObject hf_link_type, hf_replies_type, hf_sockets_type;
#endif

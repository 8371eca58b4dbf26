/* The journal: turns of the log. One turn fills while the flusher, a native thread that never takes the
   interpreter lock, writes and syncs the one before; an eventfd tells the loop when it is done.
   The order is the whole point: pwrite every chunk, fdatasync every file touched, only then say so. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define TURN_ROOM_FIRST (256u << 10)
#define TURN_ROOM_KEPT (4u << 20)   /* a larger buffer is given back after its turn */
#define GAP_READ_THROUGH 8192       /* copying so much costs about as much as one more system call */
#define IOV_MAX_USED 128
#define BLANK_MAGIC 0xCBD43194u
#define STEP_WRITE "pwrite"
#define KEYS_AHEAD 12
#define PAGE_BYTES 4096
#define BLANK_BYTES (1 << 20)       /* written ahead at once */
#define BLANK_LEFT (BLANK_BYTES / 4) /* when there is less than that ahead */
#define BLANK_TURN_MAX (384 << 10)  /* with larger turns the disk's time goes into bytes, and these would be twice as many */

/* ---- the flusher's side ---- */
static int write_chunk(const uint8_t *data, hf_chunk *c) {
    size_t done = 0;
    while (done < c->size) {
        ssize_t n = pwrite(c->fd, data + c->start + done, c->size - done, c->position + (int64_t)done);
        if (n < 0) { if (errno == EINTR) continue; return errno; }
        if (n == 0) return ENOSPC;
        done += (size_t)n;
    }
    return 0;
}

/* Says in the checkpoint how far the log is synced. Not synced itself, and an error is no harm: it only lags. */
static void write_mark(hf_journal *j, int64_t durable) {
    uint8_t mark[HF_MARK_BYTES];
    uint8_t *p = put64(put_bytes(mark, j->mark_magic, sizeof j->mark_magic), (uint64_t)durable);
    put32(p, hf_crc32(0, mark, (size_t)(p - mark)));
    ssize_t ignored = pwrite(j->mark_fd, mark, sizeof mark, j->mark_position);
    (void)ignored;
}

/* The first write to a block that was only allocated changes the file's own records too, and its sync waits for those to
   be written one after the other: two thirds of what it takes. So zeros are written ahead of the log, much of it at once,
   with a turn that is synced anyway; the turns that follow find their blocks written before. What is there already is
   beyond the log's end, so nobody's; bytes that never get there are no harm. */
static void blank_ahead(hf_journal *j, const hf_turn *t) {
    static uint8_t blanks[BLANK_BYTES];
    const hf_chunk *last = &t->chunks[t->chunks_count - 1];
    int64_t end = last->position + (int64_t)last->size;
    if (last->fd != j->blank_fd || end < j->blank_seen) { /* another file, be it under the same number */
        struct stat file;
        j->blank_until = 0;
        j->blank_fd = last->fd;
        j->blank_limit = fstat(last->fd, &file) ? 0 : file.st_size;
    }
    j->blank_seen = end;
    if (t->size > BLANK_TURN_MAX || j->blank_until >= end + BLANK_LEFT) return;
    int64_t from = (end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (from < j->blank_until) from = j->blank_until;
    int64_t size = j->blank_limit - from < BLANK_BYTES ? j->blank_limit - from : BLANK_BYTES;
    if (size <= 0) return;
    ssize_t n = pwrite(last->fd, blanks, (size_t)size, from);
    j->blank_until = n == size ? from + size : j->blank_limit; /* a disk that will not have it is not asked again */
}

static int write_turn(hf_journal *j, hf_turn *t, int sync, const char **step) {
    *step = STEP_WRITE;
    for (int i = 0; i < t->chunks_count; i++) {
        int error = write_chunk(t->data, &t->chunks[i]);
        if (error) return error;
    }
    if (sync) blank_ahead(j, t);
    *step = "fdatasync";
    for (int i = 0; sync && i < t->chunks_count; i++) {
        if (i + 1 < t->chunks_count && t->chunks[i + 1].fd == t->chunks[i].fd) continue;
        /* not retried, not even on EINTR: after a failed sync the kernel may call lost pages clean */
        if (fdatasync(t->chunks[i].fd)) return errno;
    }
    return 0;
}

static void *flusher(void *arg) {
    hf_journal *j = arg;
    pthread_mutex_lock(&j->lock);
    for (;;) {
        while (!j->job && !j->stop) pthread_cond_wait(&j->wake, &j->lock);
        if (!j->job) break;
        hf_turn *turn = &j->turns[!j->filling];
        int sync = j->job_sync;
        pthread_mutex_unlock(&j->lock);
        atomic_store_explicit(&j->is_writing, 1, memory_order_relaxed);
        const char *step;
        int error = write_turn(j, turn, sync != HF_WRITE, &step);
        atomic_store_explicit(&j->turn_at_ns, hf_clock_ns(), memory_order_relaxed);
        atomic_store_explicit(&j->is_writing, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&j->turned_bytes, (int64_t)turn->size, memory_order_relaxed);
        if (!error && sync == HF_SYNC_MARK && j->mark_fd >= 0) write_mark(j, turn->end);
        pthread_mutex_lock(&j->lock);
        j->job = 0;
        j->done = 1;
        j->error = error;
        j->error_step = step;
        uint64_t one = 1;
        ssize_t ignored = write(j->event_fd, &one, 8);
        (void)ignored;
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* ---- the loop's side ---- */
hf_segment *hf_journal_segment(hf_journal *j, int64_t offset) {
    int low = 0, high = j->segments_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (j->segments[middle].start <= offset) low = middle + 1;
        else high = middle;
    }
    if (!low) return NULL;
    hf_segment *s = &j->segments[low - 1];
    return offset < s->start + s->size ? s : NULL;
}

static int make_room(hf_turn *t, size_t size) {
    if (t->size + size <= t->room) return 1;
    if (t->pooled) return 0;
    size_t room = t->room ? t->room : TURN_ROOM_FIRST;
    while (room < t->size + size) room *= 2;
    uint8_t *grown = PyMem_RawRealloc(t->data, room);
    if (!grown) return 0;
    t->data = grown;
    t->room = room;
    return 1;
}

static uint8_t *place(hf_journal *j, hf_segment *s, size_t size) {
    hf_turn *t = &j->turns[j->filling];
    if (!make_room(t, size)) return NULL;
    int64_t position = j->end - s->start;
    hf_chunk *last = t->chunks_count ? &t->chunks[t->chunks_count - 1] : NULL;
    if (!last || last->fd != s->fd || last->position + (int64_t)last->size != position) {
        if (t->chunks_count == t->chunks_room) {
            int room = t->chunks_room ? t->chunks_room * 2 : 4;
            hf_chunk *grown = PyMem_RawRealloc(t->chunks, (size_t)room * sizeof *grown);
            if (!grown) return NULL;
            t->chunks = grown;
            t->chunks_room = room;
        }
        last = &t->chunks[t->chunks_count++];
        *last = (hf_chunk){s->fd, position, t->size, 0};
    }
    uint8_t *at = t->data + t->size;
    t->size += size;
    last->size += size;
    j->end += (int64_t)size;
    t->end = j->end;
    return at;
}

int hf_journal_reserve(hf_journal *j, size_t size, int64_t *offset) {
    hf_turn *t = &j->turns[j->filling];
    if (t->size >= j->turn_bytes_max || (t->pooled && t->size + size + HF_BLANK_BYTES > t->room)) { j->is_full = 1; return HF_TURN_FULL; }
    hf_segment *s = hf_journal_segment(j, j->end);
    if (!s) return HF_NEED_SEGMENT;
    int64_t left = s->start + s->size - j->end;
    if ((int64_t)size + HF_BLANK_BYTES <= left) { *offset = j->end; return HF_RESERVED; }
    hf_segment *following = hf_journal_segment(j, s->start + s->size);
    if (!following || (int64_t)size + HF_BLANK_BYTES > following->size) return HF_NEED_SEGMENT;
    uint8_t *blank = place(j, s, HF_BLANK_BYTES);
    if (!blank) return HF_TURN_FULL;
    put32(put32(blank, (uint32_t)left), BLANK_MAGIC);
    j->end = j->turns[j->filling].end = following->start;
    *offset = j->end;
    return HF_RESERVED;
}

uint8_t *hf_journal_space(hf_journal *j, size_t size) {
    hf_segment *s = hf_journal_segment(j, j->end);
    return s ? place(j, s, size) : NULL;
}

int hf_journal_derive_room(hf_journal *j, size_t records) {
    if (j->derivations_count + records <= j->derivations_room) return 1;
    size_t room = j->derivations_room ? j->derivations_room : 1024;
    while (room < j->derivations_count + records) room *= 2;
    hf_derivation *grown = PyMem_Malloc(room * sizeof *grown);
    if (!grown) return 0;
    for (size_t i = 0; i < j->derivations_count; i++)
        grown[i] = j->derivations[(j->derivations_head + i) & (j->derivations_room - 1)];
    PyMem_Free(j->derivations);
    j->derivations = grown;
    j->derivations_head = 0;
    j->derivations_room = room;
    return 1;
}

void hf_journal_derive_later(hf_journal *j, hf_queue *q, int64_t physical, int32_t size, int64_t index, int64_t tags, int64_t timestamp) {
    Py_INCREF(q);
    j->derivations[(j->derivations_head + j->derivations_count++) & (j->derivations_room - 1)] =
        (hf_derivation){q, physical, index, tags, timestamp, size};
}

int hf_journal_index_room(hf_journal *j, size_t keys) {
    if (!j->grow_index || j->keyed_count + keys <= j->keyed_room) return 1;
    size_t room = j->keyed_room ? j->keyed_room : 1024;
    while (room < j->keyed_count + keys) room *= 2;
    hf_keyed *grown = PyMem_Malloc(room * sizeof *grown);
    if (!grown) return 0;
    for (size_t i = 0; i < j->keyed_count; i++) grown[i] = j->keyed[(j->keyed_head + i) & (j->keyed_room - 1)];
    PyMem_Free(j->keyed);
    j->keyed = grown;
    j->keyed_head = 0;
    j->keyed_room = room;
    return 1;
}

void hf_journal_index_later(hf_journal *j, int64_t physical, int64_t timestamp, uint32_t hash) {
    j->keyed[(j->keyed_head + j->keyed_count++) & (j->keyed_room - 1)] = (hf_keyed){physical, timestamp, hash};
}

/* Indexes the keys of records before `limit`; 0 with an exception when the index could not grow. Their slots are anywhere
   in the index: those of the ones to come are fetched into the cache meanwhile. */
static int derive_keys(hf_journal *j, int64_t limit) {
    while (j->keyed_count) {
        hf_keyed k = j->keyed[j->keyed_head];
        if (k.physical >= limit) break;
        hf_index *x = (hf_index *)j->index;
        if (x && j->keyed_count > KEYS_AHEAD) hf_index_expect(x, j->keyed[(j->keyed_head + KEYS_AHEAD) & (j->keyed_room - 1)].hash);
        if (j->grow_index && (!x || k.physical >= x->end_offset)) { /* those before it are in the index already */
            if (!x || hf_index_full(x)) {
                PyObject *grown = PyObject_CallFunction(j->grow_index, "L", (long long)k.timestamp);
                if (!grown) return 0;
                Py_DECREF(grown);
                x = (hf_index *)j->index;
                if (!x || hf_index_full(x)) { PyErr_SetString(PyExc_RuntimeError, "the key index did not grow"); return 0; }
            }
            hf_index_put(x, k.hash, k.physical, k.timestamp);
        }
        j->keyed_head = (j->keyed_head + 1) & (j->keyed_room - 1);
        j->keyed_count--;
    }
    return 1;
}

int hf_journal_fetch(hf_journal *j, const hf_piece *pieces, int count, uint8_t *out) {
    static uint8_t trash[GAP_READ_THROUGH]; /* contents never looked at; only the loop's thread reads here */
    int copied = hf_journal_copy(j, pieces, count, out);
    if (copied != EOPNOTSUPP) return copied;
    int i = 0;
    while (i < count) {
        struct iovec iov[IOV_MAX_USED];
        int used = 0;
        hf_segment *s = hf_journal_segment(j, pieces[i].physical);
        if (!s) return ENOENT;
        int64_t from = pieces[i].physical, at = from;
        while (i < count && used + 2 <= IOV_MAX_USED) {
            int64_t gap = pieces[i].physical - at;
            if (gap < 0 || gap > GAP_READ_THROUGH || pieces[i].physical + pieces[i].size > s->start + s->size) break;
            if (gap) iov[used++] = (struct iovec){trash, (size_t)gap};
            iov[used++] = (struct iovec){out, (size_t)pieces[i].size};
            out += pieces[i].size;
            at += gap + pieces[i].size;
            i++;
        }
        if (at == from) return ENOENT; /* a record that leaves its segment */
        ssize_t n = preadv2(s->fd, iov, used, from - s->start, RWF_NOWAIT);
        if (n < 0 && errno != EAGAIN && errno != EOPNOTSUPP) return errno;
        if (n != at - from) return EAGAIN; /* not all of it in memory */
    }
    return 0;
}

/* ---- Python face ---- */
static int journal_init(hf_journal *j, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"end", "turn_bytes_max", NULL};
    long long end;
    Py_ssize_t turn_bytes_max = 32 << 20;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|n", names, &end, &turn_bytes_max)) return -1;
    if (j->running) { PyErr_SetString(PyExc_RuntimeError, "journal is already running"); return -1; }
    j->end = j->written = end;
    j->mark_fd = -1;
    j->summed_from = INT64_MAX;
    j->turn_bytes_max = (size_t)turn_bytes_max;
    j->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (j->event_fd < 0) { PyErr_SetFromErrno(PyExc_OSError); return -1; }
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->wake, NULL);
    int error = pthread_create(&j->thread, NULL, flusher, j);
    if (error) { errno = error; PyErr_SetFromErrno(PyExc_OSError); return -1; }
    j->running = 1;
    return 0;
}

static void stop_flusher(hf_journal *j) {
    if (!j->running) return;
    pthread_mutex_lock(&j->lock);
    j->stop = 1;
    pthread_cond_signal(&j->wake);
    pthread_mutex_unlock(&j->lock);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(j->thread, NULL);
    Py_END_ALLOW_THREADS
    pthread_cond_destroy(&j->wake);
    pthread_mutex_destroy(&j->lock);
    close(j->event_fd);
    j->event_fd = -1;
    j->running = 0;
}

static void drop_derivations(hf_journal *j) {
    while (j->derivations_count) {
        hf_queue *q = j->derivations[j->derivations_head].queue;
        j->derivations_head = (j->derivations_head + 1) & (j->derivations_room - 1);
        j->derivations_count--;
        Py_DECREF(q);
    }
}

static void drop_maps(hf_journal *j) {
    for (int i = 0; i < j->segments_count; i++) hf_segment_unmap(&j->segments[i]);
}

/* The flusher's thread knows no objects: these are changed by whoever holds the interpreter lock alone. */
static int journal_traverse(hf_journal *j, visitproc visit, void *arg) {
    Py_VISIT(j->index);
    Py_VISIT(j->grow_index);
    Py_VISIT(j->shown);
    for (size_t i = 0; i < j->derivations_count; i++) Py_VISIT(j->derivations[(j->derivations_head + i) & (j->derivations_room - 1)].queue);
    return 0;
}

static int journal_clear(hf_journal *j) {
    drop_derivations(j);
    Py_CLEAR(j->index);
    Py_CLEAR(j->grow_index);
    Py_CLEAR(j->shown);
    return 0;
}

static void journal_dealloc(hf_journal *j) {
    PyObject_GC_UnTrack(j);
    stop_flusher(j);
    journal_clear(j);
    PyMem_Free(j->derivations);
    PyMem_Free(j->keyed);
    drop_maps(j);
    PyMem_Free(j->segments);
    for (int i = 0; i < 2; i++) { if (!j->pool) PyMem_RawFree(j->turns[i].data); PyMem_RawFree(j->turns[i].chunks); }
    if (j->pool) munmap(j->pool, j->pool_bytes);
    Py_TYPE(j)->tp_free((PyObject *)j);
}

/* set_pool(bytes) -> 0, or the errno of locking it: turns are filled in memory that is never swapped, half of it each */
static PyObject *journal_set_pool(hf_journal *j, PyObject *arg) {
    size_t bytes = PyLong_AsSize_t(arg);
    if (bytes == (size_t)-1 && PyErr_Occurred()) return NULL;
    if (j->pool || j->busy || j->turns[0].size || j->turns[1].size || bytes < 2) return PyErr_Format(PyExc_ValueError, "a pool is set once, before the first record");
    uint8_t *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    int locked = mlock(pool, bytes) ? errno : 0;
    for (int i = 0; i < 2; i++) {
        PyMem_RawFree(j->turns[i].data);
        j->turns[i].data = pool + (size_t)i * (bytes / 2);
        j->turns[i].room = bytes / 2;
        j->turns[i].pooled = 1;
    }
    j->turn_bytes_max = bytes / 2;
    j->pool = pool;
    j->pool_bytes = bytes;
    return PyLong_FromLong(locked);
}

static PyObject *journal_add_segment(hf_journal *j, PyObject *args) {
    long long start, size;
    int fd;
    if (!PyArg_ParseTuple(args, "LLi", &start, &size, &fd)) return NULL;
    if (j->segments_count && start < j->segments[j->segments_count - 1].start + j->segments[j->segments_count - 1].size)
        return PyErr_Format(PyExc_ValueError, "segment %lld overlaps the one before", start);
    if (j->segments_count == j->segments_room) {
        int room = j->segments_room ? j->segments_room * 2 : 8;
        hf_segment *grown = PyMem_Realloc(j->segments, (size_t)room * sizeof *grown);
        if (!grown) return PyErr_NoMemory();
        j->segments = grown;
        j->segments_room = room;
    }
    j->segments[j->segments_count++] = (hf_segment){start, size, fd, 0, NULL};
    Py_RETURN_NONE;
}

static PyObject *journal_drop_segment(hf_journal *j, PyObject *arg) {
    long long start = PyLong_AsLongLong(arg);
    if (start == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < j->segments_count; i++) {
        if (j->segments[i].start != start) continue;
        hf_segment_unmap(&j->segments[i]);
        memmove(&j->segments[i], &j->segments[i + 1], (size_t)(j->segments_count - i - 1) * sizeof(hf_segment));
        j->segments_count--;
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

/* reserve(size) -> physical offset, or None: a segment is needed (end), or the turn is full (is_full) */
static PyObject *journal_reserve(hf_journal *j, PyObject *arg) {
    Py_ssize_t size = PyLong_AsSsize_t(arg);
    if (size < 0) { if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "size below 0"); return NULL; }
    int64_t offset;
    if (hf_journal_reserve(j, (size_t)size, &offset) != HF_RESERVED) Py_RETURN_NONE;
    return PyLong_FromLongLong(offset);
}

/* append(record, queue, index, tags, timestamp, hashes): the bytes whose place reserve() gave; the queue entry and
   the keys, given by their hashes, follow the log */
static PyObject *journal_append(hf_journal *j, PyObject *args) {
    Py_buffer record;
    PyObject *queue;
    long long index, tags, timestamp = 0;
    PyObject *hashes = NULL;
    if (!PyArg_ParseTuple(args, "y*OLL|LO!", &record, &queue, &index, &tags, &timestamp, &PyTuple_Type, &hashes)) return NULL;
    PyObject *result = NULL;
    Py_ssize_t keys = j->grow_index && hashes ? PyTuple_GET_SIZE(hashes) : 0;
    int64_t physical = j->end;
    uint8_t *at;
    if (queue != Py_None && !PyObject_TypeCheck(queue, &hf_queue_type)) PyErr_SetString(PyExc_TypeError, "queue: a Queue or None");
    else if (!hf_journal_derive_room(j, 1) || !hf_journal_index_room(j, (size_t)keys) || !(at = hf_journal_space(j, (size_t)record.len))) PyErr_NoMemory();
    else {
        memcpy(at, record.buf, (size_t)record.len);
        if (queue != Py_None) hf_journal_derive_later(j, (hf_queue *)queue, physical, (int32_t)record.len, index, tags, timestamp);
        for (Py_ssize_t i = 0; i < keys; i++)
            hf_journal_index_later(j, physical, timestamp, (uint32_t)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(hashes, i)));
        if (!PyErr_Occurred()) result = PyLong_FromLongLong(j->end);
    }
    PyBuffer_Release(&record);
    return result;
}

/* set_mark(fd, position, magic): where the flusher says how far the log is synced, after each turn that marks */
static PyObject *journal_set_mark(hf_journal *j, PyObject *args) {
    int fd;
    long long position;
    const char *magic;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iLy#", &fd, &position, &magic, &size)) return NULL;
    if (size != sizeof j->mark_magic || j->busy) return PyErr_Format(PyExc_ValueError, "magic: 8 bytes, while no turn is written");
    memcpy(j->mark_magic, magic, sizeof j->mark_magic);
    j->mark_position = position;
    j->mark_fd = fd;
    Py_RETURN_NONE;
}

/* submit(how) -> bool: hands the filled turn to the flusher if it is idle and there is anything to write.
   how: 0 write, 1 write and sync, 2 write, sync and mark, when all before it was synced too */
static PyObject *journal_submit(hf_journal *j, PyObject *arg) {
    int sync = (int)PyLong_AsLong(arg);
    if (sync == -1 && PyErr_Occurred()) return NULL;
    if (!j->running || j->busy || j->error || !j->turns[j->filling].size) Py_RETURN_FALSE;
    pthread_mutex_lock(&j->lock);
    j->filling = !j->filling;
    j->is_full = 0;
    j->job = 1;
    j->job_sync = sync;
    pthread_cond_signal(&j->wake);
    pthread_mutex_unlock(&j->lock);
    j->busy = 1;
    Py_RETURN_TRUE;
}

/* retry() -> bool: writes the turn again that found no room on the disk */
static PyObject *journal_retry(hf_journal *j, PyObject *ignored) {
    (void)ignored;
    if (!j->running || !j->stalled) Py_RETURN_FALSE;
    pthread_mutex_lock(&j->lock);
    j->stalled = 0;
    j->job = 1;
    pthread_cond_signal(&j->wake);
    pthread_mutex_unlock(&j->lock);
    Py_RETURN_TRUE;
}

/* complete() -> first byte not yet written and synced; raises OSError(errno, step) once a turn has failed */
static PyObject *journal_complete(hf_journal *j, PyObject *ignored) {
    (void)ignored;
    if (!j->running) return PyLong_FromLongLong(j->written);
    uint64_t count;
    ssize_t n = read(j->event_fd, &count, 8);
    (void)n;
    pthread_mutex_lock(&j->lock);
    int done = j->done, error = j->error;
    const char *step = j->error_step;
    j->done = 0;
    if (done && (error == ENOSPC || error == EDQUOT) && !strcmp(step, STEP_WRITE)) {
        j->error = error = done = 0; /* nothing of it was synced, so all of it can be written again */
        j->stalled = 1;
    }
    pthread_mutex_unlock(&j->lock);
    if (error) {
        char text[160];
        snprintf(text, sizeof text, "%s: %s", step, strerror(error));
        PyObject *args = Py_BuildValue("(is)", error, text);
        if (args) { PyErr_SetObject(PyExc_OSError, args); Py_DECREF(args); }
        return NULL;
    }
    if (done && j->busy) {
        hf_turn *t = &j->turns[!j->filling];
        j->written = t->end;
        t->size = 0;
        t->chunks_count = 0;
        if (t->room > TURN_ROOM_KEPT && !t->pooled) { PyMem_RawFree(t->data); t->data = NULL; t->room = 0; }
        j->busy = 0;
    }
    return PyLong_FromLongLong(j->written);
}

/* derive(limit) -> watched queues that advanced: entries of records that end at or before limit become visible */
static PyObject *journal_derive(hf_journal *j, PyObject *arg) {
    long long limit = PyLong_AsLongLong(arg);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    PyObject *woken = NULL;
    while (j->derivations_count) {
        hf_derivation *d = &j->derivations[j->derivations_head];
        if (d->physical + d->size > limit) break;
        hf_queue *q = d->queue;
        uint8_t *entry = hf_queue_entry(q, d->index);
        if (!entry) {
            PyObject *grown = PyObject_CallFunction(q->grow, "L", (long long)d->index);
            if (!grown) goto failed;
            Py_DECREF(grown);
            entry = hf_queue_entry(q, d->index);
            if (!entry) { PyErr_Format(PyExc_RuntimeError, "queue %R did not grow to entry %lld", q->key, (long long)d->index); goto failed; }
            d = &j->derivations[j->derivations_head];
        }
        int64_t tags;
        if (!hf_queue_extend(q, d->tags, d->timestamp, d->physical, d->size, &tags)) goto failed;
        put64(put32(put64(entry, (uint64_t)d->physical), (uint32_t)d->size), (uint64_t)tags);
        if (!q->shown) {
            if (!j->shown && !(j->shown = PyList_New(0))) goto failed;
            if (PyList_Append(j->shown, (PyObject *)q)) goto failed;
        }
        q->shown++;
        q->shown_bytes += d->size;
        q->max = d->index + 1;
        if (q->watched && !q->marked) {
            if (!woken && !(woken = PyList_New(0))) goto failed;
            if (PyList_Append(woken, (PyObject *)q)) goto failed;
            q->marked = 1;
        }
        j->derivations_head = (j->derivations_head + 1) & (j->derivations_room - 1);
        j->derivations_count--;
        Py_DECREF(q);
    }
    if (!derive_keys(j, limit)) goto failed;
    if (!woken) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(woken); i++) ((hf_queue *)PyList_GET_ITEM(woken, i))->marked = 0;
    return woken;
failed:
    if (woken) for (Py_ssize_t i = 0; i < PyList_GET_SIZE(woken); i++) ((hf_queue *)PyList_GET_ITEM(woken, i))->marked = 0;
    Py_XDECREF(woken);
    return NULL;
}

/* take_shown() -> [(key, entries, bytes), ...]: what became visible since the last call, by queue */
static PyObject *journal_take_shown(hf_journal *j, PyObject *ignored) {
    (void)ignored;
    Py_ssize_t count = j->shown ? PyList_GET_SIZE(j->shown) : 0;
    PyObject *taken = PyList_New(count);
    if (!taken) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        hf_queue *q = (hf_queue *)PyList_GET_ITEM(j->shown, i);
        PyObject *one = Py_BuildValue("(OLL)", q->key, (long long)q->shown, (long long)q->shown_bytes);
        if (!one) { Py_DECREF(taken); return NULL; }
        PyList_SET_ITEM(taken, i, one);
    }
    for (Py_ssize_t i = 0; i < count; i++) { /* all or none: a count is taken once */
        hf_queue *q = (hf_queue *)PyList_GET_ITEM(j->shown, i);
        q->shown = q->shown_bytes = 0;
    }
    Py_CLEAR(j->shown);
    return taken;
}

/* fetch([(physical, size), ...]) -> bytes, or None when not all of it is in memory */
static PyObject *journal_fetch(hf_journal *j, PyObject *arg) {
    if (!PyList_Check(arg) || PyList_GET_SIZE(arg) > HF_PIECES_MAX) return PyErr_Format(PyExc_ValueError, "pieces: a list of at most %d", HF_PIECES_MAX);
    int count = (int)PyList_GET_SIZE(arg);
    hf_piece *pieces = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *pieces);
    if (!pieces) return PyErr_NoMemory();
    int64_t total = 0;
    PyObject *result = NULL;
    for (int i = 0; i < count; i++) {
        long long physical;
        int size;
        long long index = 0;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(arg, i), "Li|L", &physical, &size, &index)) goto out;
        if (size <= 0) { PyErr_SetString(PyExc_ValueError, "piece without bytes"); goto out; }
        pieces[i] = (hf_piece){physical, index, size};
        total += size;
    }
    result = PyBytes_FromStringAndSize(NULL, total);
    if (!result) goto out;
    int error = hf_journal_fetch(j, pieces, count, (uint8_t *)PyBytes_AS_STRING(result));
    if (error) {
        Py_CLEAR(result);
        if (error == EAGAIN) { Py_INCREF(Py_None); result = Py_None; }
        else { errno = error; PyErr_SetFromErrno(PyExc_OSError); }
    }
out:
    PyMem_Free(pieces);
    return result;
}

/* set_index(index or None, grow): keys go into `index`; grow(timestamp) is called when it is full or not there yet */
static PyObject *journal_set_index(hf_journal *j, PyObject *args) {
    PyObject *index, *grow;
    if (!PyArg_ParseTuple(args, "OO", &index, &grow)) return NULL;
    if (index != Py_None && !PyObject_TypeCheck(index, &hf_index_type)) return PyErr_Format(PyExc_TypeError, "index: a KeyIndex or None");
    Py_INCREF(grow);
    Py_XSETREF(j->grow_index, grow);
    if (index == Py_None) index = NULL;
    Py_XINCREF(index);
    Py_XSETREF(j->index, index);
    Py_RETURN_NONE;
}

static PyObject *journal_fileno(hf_journal *j, PyObject *ignored) { (void)ignored; return PyLong_FromLong(j->event_fd); }
static PyObject *journal_close(hf_journal *j, PyObject *ignored) {
    (void)ignored;
    stop_flusher(j);
    drop_derivations(j);
    drop_maps(j);
    j->segments_count = 0; /* their descriptors are closed next, and may then be anybody's */
    Py_RETURN_NONE;
}
static PyObject *journal_stalled(hf_journal *j, void *closure) { (void)closure; return PyBool_FromLong(j->stalled); }
static PyObject *journal_is_written(hf_journal *j, void *closure) { (void)closure; return PyBool_FromLong(hf_journal_is_written(j)); }
static PyObject *journal_busy(hf_journal *j, void *closure) { (void)closure; return PyBool_FromLong(j->busy); }
static PyObject *journal_full(hf_journal *j, void *closure) { (void)closure; return PyBool_FromLong(j->is_full || j->turns[j->filling].size >= j->turn_bytes_max); }
static PyObject *journal_pending(hf_journal *j, void *closure) { (void)closure; return PyLong_FromSize_t(j->turns[j->filling].size); }

static PyMethodDef journal_methods[] = {
    {"add_segment", (PyCFunction)journal_add_segment, METH_VARARGS, "add_segment(start, size, fd)"},
    {"drop_segment", (PyCFunction)journal_drop_segment, METH_O, "drop_segment(start) -> bool"},
    {"reserve", (PyCFunction)journal_reserve, METH_O, "reserve(size) -> physical offset or None"},
    {"append", (PyCFunction)journal_append, METH_VARARGS, "append(record, queue, index, tags) -> end"},
    {"set_index", (PyCFunction)journal_set_index, METH_VARARGS, "set_index(index, grow)"},
    {"set_pool", (PyCFunction)journal_set_pool, METH_O, "set_pool(bytes) -> errno of locking it, or 0"},
    {"set_mark", (PyCFunction)journal_set_mark, METH_VARARGS, "set_mark(fd, position, magic)"},
    {"submit", (PyCFunction)journal_submit, METH_O, "submit(how) -> bool"},
    {"retry", (PyCFunction)journal_retry, METH_NOARGS, "retry() -> bool"},
    {"complete", (PyCFunction)journal_complete, METH_NOARGS, "complete() -> written end"},
    {"derive", (PyCFunction)journal_derive, METH_O, "derive(limit) -> watched queues that advanced, or None"},
    {"take_shown", (PyCFunction)journal_take_shown, METH_NOARGS, "take_shown() -> [(key, entries, bytes)] that became visible since the last call"},
    {"fetch", (PyCFunction)journal_fetch, METH_O, "fetch(pieces) -> bytes or None when cold"},
    {"fileno", (PyCFunction)journal_fileno, METH_NOARGS, "The eventfd that rings when a turn is done."},
    {"close", (PyCFunction)journal_close, METH_NOARGS, "Ends the flusher after the turn in its hands."},
    {NULL}};
static PyMemberDef journal_members[] = {
    {"end", Py_T_LONGLONG, offsetof(hf_journal, end), Py_READONLY, NULL},
    {"written", Py_T_LONGLONG, offsetof(hf_journal, written), Py_READONLY, NULL},
    {"last_timestamp", Py_T_LONGLONG, offsetof(hf_journal, last_timestamp), 0, "Store time of the newest record."},
    {"summed_from", Py_T_LONGLONG, offsetof(hf_journal, summed_from), 0, "Records from here on end in their checksum."},
    {NULL}};
static PyGetSetDef journal_getset[] = {
    {"is_written", (getter)journal_is_written, NULL, "Turns were written within the last moments, and will be.", NULL},
    {"stalled", (getter)journal_stalled, NULL, "The turn found no room on the disk; retry() tries again.", NULL},
    {"busy", (getter)journal_busy, NULL, "A turn is in the flusher's hands.", NULL},
    {"is_full", (getter)journal_full, NULL, "The turn being filled takes no more.", NULL},
    {"pending", (getter)journal_pending, NULL, "Bytes in the turn being filled.", NULL},
    {NULL}};
PyTypeObject hf_journal_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Journal", .tp_basicsize = sizeof(hf_journal), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)journal_init, .tp_dealloc = (destructor)journal_dealloc,
    .tp_traverse = (traverseproc)journal_traverse, .tp_clear = (inquiry)journal_clear,
    .tp_methods = journal_methods, .tp_members = journal_members, .tp_getset = journal_getset};

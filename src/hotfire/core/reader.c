/* Cold reads beside the loop: a native thread reads log bytes that are not in memory while the pull waits.
   What has come into memory meanwhile does not wait for the disk: a job goes as far as it can without, then stands in line.
   How far ahead to read is decided here and not by the kernel, which asks the disk for megabytes at a time (8 MiB on
   many cloud machines): a sync of the log that came meanwhile would wait for all of them. Here each step is small, a turn
   of the log goes before it, and while turns are written steps keep to a pace. What was read ahead is found in memory by
   the pulls that follow, which the lane then serves. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define BLOCK_BYTES (64 << 10)      /* for one who reads on: records of other queues between his come along */
#define AHEAD_BYTES_MAX (128 << 10)
#define STREAMS 16                  /* who read on are told from who do not, so many of them */
#define NS_PER_S 1000000000
#define PACE_OVER_NS 100000000      /* how much is written is counted over so long */
#define PACE_BEHIND_NS 10000000     /* what was not read in time is made up for, so much of it */
#define LET_PASS_NS 2000000         /* readers go on too, whatever the disk takes for a sync */
#define LOOK_NS 30000               /* how often it is asked whether the turn is written */
#define TAKE_BYTES (256 << 10)      /* handed to the loop at once; the rest when it has looked around */

typedef struct { int fd; int64_t position; hf_piece piece; } part;
typedef struct job {
    struct job *next;
    PyObject *token, *bytes, *topic; /* touched by the loop's thread only; the reader fills the bytes' memory */
    uint8_t *out;
    hf_journal *journal;
    hf_slice topic_text;             /* of `topic`; without one the records are not looked at */
    int64_t summed_from;
    int queue_id, error, count, at, harmed, sound; /* at: the next part */
    part parts[];
} job;
typedef struct { job *first, **tail; } line;

/* One who reads a file on from where he was: up to where the disk was asked, and how far ahead of him. */
typedef struct { int fd; int64_t until, ahead; uint64_t used; } stream;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    line todo, cold, done;           /* not looked at yet, waiting for the disk, read */
    int running, stop, event_fd, queued;
    long long pace_least;            /* bytes a second while turns are written, or twice what is written in them; 0: any */
    /* the reader's own */
    stream streams[STREAMS];
    uint64_t brought;                /* times it asked the disk for something */
    int64_t next_ns;                 /* when the disk may be asked again */
    int from_disk;                   /* the job in hand is the disk's */
    int64_t pace, paced_at_ns, paced_at_bytes; /* bytes a second now, and since when and from what it is counted */
} hf_reader;

static void join_line(line *l, job *j) {
    j->next = NULL;
    *l->tail = j;
    l->tail = &j->next;
}

static job *leave_line(line *l) {
    job *j = l->first;
    if (j && !(l->first = j->next)) l->tail = &l->first;
    return j;
}

static void open_line(line *l) {
    l->first = NULL;
    l->tail = &l->first;
}

/* ---- the disk ---- */
static int64_t pace_of(hf_reader *r, hf_journal *journal, int64_t now) {
    int64_t since = now - r->paced_at_ns;
    if (since > PACE_OVER_NS) {
        int64_t bytes = atomic_load_explicit(&journal->turned_bytes, memory_order_relaxed);
        int64_t twice = (int64_t)(2.0 * (double)(bytes - r->paced_at_bytes) * NS_PER_S / (double)since);
        r->pace = r->paced_at_ns && twice > r->pace_least ? twice : r->pace_least; /* who is behind catches up */
        r->paced_at_ns = now;
        r->paced_at_bytes = bytes;
    }
    return r->pace;
}

/* A turn in the flusher's hands goes before what is read: people wait for it, and the disk does one after the other.
   But not if we are late ourselves: with turns all the time nothing would be read. */
static void let_turn_pass(hf_reader *r, hf_journal *journal) {
    struct timespec pause = {0, LOOK_NS};
    for (int64_t now = hf_clock_ns(), until = now + LET_PASS_NS; now < until && now < r->next_ns + PACE_BEHIND_NS; now = hf_clock_ns()) {
        if (!atomic_load_explicit(&journal->is_writing, memory_order_relaxed)) return;
        nanosleep(&pause, NULL);
    }
}

/* Those who send feel each read twice, on the disk and when the loop hands its bytes out: while turns are written there
   is a pace, with nobody sending all comes as fast as the disk gives it. */
static void ask_disk(hf_reader *r, hf_journal *journal, int fd, int64_t from, int64_t until) {
    int is_paced = r->pace_least > 0 && hf_journal_is_written(journal);
    if (is_paced) let_turn_pass(r, journal);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* nothing beyond what is asked for; advice, so an error is no harm */
    posix_fadvise(fd, from, until - from, POSIX_FADV_WILLNEED);
    if (!is_paced) return;
    int64_t now = hf_clock_ns();
    if (r->next_ns < now - PACE_BEHIND_NS) r->next_ns = now - PACE_BEHIND_NS;
    r->next_ns += (int64_t)((double)(until - from) * NS_PER_S / (double)pace_of(r, journal, now));
}

static stream *stream_of(hf_reader *r, const part *p) {
    stream *oldest = &r->streams[0];
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &r->streams[i];
        if (s->used && s->fd == p->fd && p->position < s->until + BLOCK_BYTES && p->position >= s->until - AHEAD_BYTES_MAX - BLOCK_BYTES) return s;
        if (s->used < oldest->used) oldest = s;
    }
    *oldest = (stream){p->fd, 0, 0, 0};
    return oldest;
}

/* The part is not in memory. One who has just come gets its pages; one who reads on gets what he will want next. */
static void bring(hf_reader *r, hf_journal *journal, const part *p) {
    stream *s = stream_of(r, p);
    int64_t end = p->position + p->piece.size;
    int is_new = !s->used;
    s->used = ++r->brought;
    if (is_new) {
        int64_t from = p->position / PAGE_BYTES * PAGE_BYTES;
        s->until = (end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        ask_disk(r, journal, p->fd, from, s->until);
        return;
    }
    if (end <= s->until) return; /* asked for already, and on its way */
    s->ahead = s->ahead ? AHEAD_BYTES_MAX : BLOCK_BYTES;
    int64_t from = s->until < p->position ? s->until : p->position / PAGE_BYTES * PAGE_BYTES;
    int64_t until = (end + s->ahead + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    ask_disk(r, journal, p->fd, from > s->until ? from : s->until, until);
    s->until = until;
}

/* ---- a job ---- */
static uint8_t *place_of(const job *j) {
    uint8_t *out = j->out;
    for (int i = 0; i < j->at; i++) out += j->parts[i].piece.size;
    return out;
}

static int read_whole(const part *p, uint8_t *out) {
    int32_t done = 0;
    while (done < p->piece.size) {
        ssize_t n = pread(p->fd, out + done, (size_t)(p->piece.size - done), p->position + done);
        if (n < 0) { if (errno == EINTR) continue; return errno; }
        if (n == 0) return EIO;
        done += (int32_t)n;
    }
    return 0;
}

/* 0, an errno, or EAGAIN: not in memory. Where the kernel cannot tell it is read as if it were. */
static int read_now(const part *p, uint8_t *out) {
    struct iovec whole = {out, (size_t)p->piece.size};
    ssize_t n = preadv2(p->fd, &whole, 1, p->position, RWF_NOWAIT);
    if (n == p->piece.size) return 0;
    return n < 0 && errno == EOPNOTSUPP ? read_whole(p, out) : EAGAIN;
}

/* Goes on with the parts that are in memory, after one from the disk if `from_disk`; 1 when the job is done. Records are
   counted up to the first harmed one, which would take the loop as long as reading them. */
static int go_on(hf_reader *r, job *j, int from_disk) {
    uint8_t *out = place_of(j);
    for (; j->at < j->count && !j->error; j->at++) {
        const part *p = &j->parts[j->at];
        int error = from_disk ? EAGAIN : read_now(p, out);
        if (error == EAGAIN) {
            if (!from_disk) return 0;
            from_disk = 0;
            bring(r, j->journal, p);
            error = read_whole(p, out);
        }
        j->error = error;
        j->harmed = j->harmed || error || !hf_record_sound(out, &p->piece, j->topic_text, j->queue_id, j->summed_from);
        j->sound += !j->harmed;
        out += p->piece.size;
    }
    return 1;
}

/* The next job, out of its line; NULL when it is time to stop. What needs no disk waits for one step of the disk at most,
   and what does for one job that needs none. */
static job *next_job(hf_reader *r) {
    for (;;) {
        int is_due = r->cold.first && (r->stop || r->next_ns <= hf_clock_ns());
        if (is_due && !(r->from_disk && r->todo.first)) {
            r->from_disk = 1;
            return leave_line(&r->cold);
        }
        r->from_disk = 0;
        if (r->todo.first) return leave_line(&r->todo);
        if (r->stop && !r->cold.first) return NULL;
        struct timespec until = {r->next_ns / NS_PER_S, r->next_ns % NS_PER_S};
        if (r->cold.first) pthread_cond_timedwait(&r->wake, &r->lock, &until);
        else pthread_cond_wait(&r->wake, &r->lock);
    }
}

static void *serve(void *arg) {
    hf_reader *r = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* rests are short here: 50 us more would double them */
    pthread_mutex_lock(&r->lock);
    job *j;
    while ((j = next_job(r))) {
        if (r->stop) j->error = ECANCELED;
        pthread_mutex_unlock(&r->lock);
        int done = go_on(r, j, r->from_disk);
        pthread_mutex_lock(&r->lock);
        join_line(done ? &r->done : &r->cold, j);
        uint64_t one = 1;
        ssize_t ignored = done ? write(r->event_fd, &one, 8) : 0;
        (void)ignored;
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int reader_init(hf_reader *r, PyObject *args, PyObject *kwargs) {
    (void)args; (void)kwargs;
    if (r->running) { PyErr_SetString(PyExc_RuntimeError, "reader is already running"); return -1; }
    open_line(&r->todo);
    open_line(&r->cold);
    open_line(&r->done);
    r->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->event_fd < 0) { PyErr_SetFromErrno(PyExc_OSError); return -1; }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int error = pthread_create(&r->thread, NULL, serve, r);
    if (error) { errno = error; PyErr_SetFromErrno(PyExc_OSError); return -1; }
    r->running = 1;
    return 0;
}

/* submit(journal, pieces, token, topic=None, queue_id=0): the bytes of the pieces, later, through take(). With a topic
   their records are judged: those before the first that is harmed, or not what its queue entry means, are counted. */
static PyObject *reader_submit(hf_reader *r, PyObject *args) {
    hf_journal *journal;
    PyObject *pieces, *token, *topic = Py_None;
    int queue_id = 0;
    if (!PyArg_ParseTuple(args, "O!O!O|Oi", &hf_journal_type, &journal, &PyList_Type, &pieces, &token, &topic, &queue_id)) return NULL;
    if (topic != Py_None && !PyBytes_Check(topic)) return PyErr_Format(PyExc_TypeError, "topic: bytes or None");
    if (!r->running) return PyErr_Format(PyExc_RuntimeError, "reader is closed");
    Py_ssize_t count = PyList_GET_SIZE(pieces);
    job *j = PyMem_Calloc(1, sizeof *j + (size_t)count * sizeof(part));
    if (!j) return PyErr_NoMemory();
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long physical, index = 0;
        int size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pieces, i), "Li|L", &physical, &size, &index)) { PyMem_Free(j); return NULL; }
        hf_segment *s = hf_journal_segment(journal, physical);
        if (!s || size <= 0 || physical + size > s->start + s->size) {
            PyMem_Free(j);
            return PyErr_Format(PyExc_LookupError, "no log segment holds %d bytes at %lld", size, physical);
        }
        /* the descriptor must outlive the read: a segment is closed only while nothing is queued */
        j->parts[i] = (part){s->fd, physical - s->start, {physical, index, size}};
        total += size;
    }
    j->count = (int)count;
    j->bytes = PyBytes_FromStringAndSize(NULL, total);
    if (!j->bytes) { PyMem_Free(j); return NULL; }
    j->out = (uint8_t *)PyBytes_AS_STRING(j->bytes);
    Py_INCREF(journal);
    j->journal = journal;
    j->summed_from = journal->summed_from;
    j->harmed = topic == Py_None;
    j->sound = topic == Py_None ? -1 : 0;
    if (topic != Py_None) {
        Py_INCREF(topic);
        j->topic = topic;
        j->topic_text = (hf_slice){(const uint8_t *)PyBytes_AS_STRING(topic), (uint32_t)PyBytes_GET_SIZE(topic)};
        j->queue_id = queue_id;
    }
    Py_INCREF(token);
    j->token = token;
    pthread_mutex_lock(&r->lock);
    join_line(&r->todo, j);
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    r->queued++;
    Py_RETURN_NONE;
}

/* take(all=False) -> [(token, bytes or errno, sound records, -1 when nobody looked at them)]: some of what is read; if
   more is there the eventfd stays ready, so that others of the loop have their turn between */
static PyObject *reader_take(hf_reader *r, PyObject *args) {
    int all = 0;
    if (!PyArg_ParseTuple(args, "|p", &all)) return NULL;
    uint64_t counter = 1;
    ssize_t n = read(r->event_fd, &counter, 8);
    PyObject *list = PyList_New(0);
    if (!list) return NULL;
    int64_t bytes = 0;
    while (all || bytes < TAKE_BYTES) {
        pthread_mutex_lock(&r->lock);
        job *j = leave_line(&r->done);
        pthread_mutex_unlock(&r->lock);
        if (!j) return list;
        bytes += PyBytes_GET_SIZE(j->bytes);
        PyObject *one = j->error ? Py_BuildValue("(Nii)", j->token, j->error, 0) : Py_BuildValue("(NOi)", j->token, j->bytes, j->sound);
        Py_DECREF(j->bytes);
        Py_DECREF(j->journal);
        Py_XDECREF(j->topic);
        if (one) { PyList_Append(list, one); Py_DECREF(one); }
        PyMem_Free(j);
        r->queued--;
    }
    counter = 1;
    n = write(r->event_fd, &counter, 8);
    (void)n;
    return list;
}

static PyObject *reader_close(hf_reader *r, PyObject *ignored) {
    (void)ignored;
    if (!r->running) Py_RETURN_NONE;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(r->thread, NULL);
    Py_END_ALLOW_THREADS
    r->running = 0;
    PyObject *everything = Py_BuildValue("(i)", 1), *rest = everything ? reader_take(r, everything) : NULL;
    Py_XDECREF(everything);
    Py_XDECREF(rest);
    close(r->event_fd);
    r->event_fd = -1;
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    Py_RETURN_NONE;
}

static void reader_dealloc(hf_reader *r) {
    PyObject *done = reader_close(r, NULL);
    Py_XDECREF(done);
    Py_TYPE(r)->tp_free((PyObject *)r);
}

static PyObject *reader_fileno(hf_reader *r, PyObject *ignored) { (void)ignored; return PyLong_FromLong(r->event_fd); }

static PyMethodDef reader_methods[] = {
    {"submit", (PyCFunction)reader_submit, METH_VARARGS, "submit(journal, pieces, token, topic, queue_id)"},
    {"take", (PyCFunction)reader_take, METH_VARARGS, "take(all=False) -> [(token, bytes or errno, sound)]"},
    {"fileno", (PyCFunction)reader_fileno, METH_NOARGS, "The eventfd that rings when a read is done."},
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Ends the thread; reads not yet begun are dropped."},
    {NULL}};
static PyMemberDef reader_members[] = {
    {"queued", Py_T_INT, offsetof(hf_reader, queued), Py_READONLY, NULL},
    {"pace_least", Py_T_LONGLONG, offsetof(hf_reader, pace_least), 0, "Before the first read: bytes a second while turns are written."},
    {NULL}};
PyTypeObject hf_reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Reader", .tp_basicsize = sizeof(hf_reader), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)reader_init, .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods, .tp_members = reader_members};

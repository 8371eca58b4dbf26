/* Cold reads beside the loop: a native thread reads log bytes that are not in memory while the pull is parked.
   How far ahead to read is decided here and not by the kernel, which asks the disk for megabytes at a time (8 MiB on
   many cloud machines): a sync of the log that came meanwhile would wait for all of them. Here it is one block after the
   other, a turn of the log goes before each, and while turns are written blocks keep to a pace. What is read ahead is
   found in memory by the pulls that follow, which the lane then serves: the farther ahead, the fewer come here at all. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK_BYTES (64 << 10)     /* asked of the disk at once: records of other queues between ours come along */
#define AHEAD_BYTES_MAX (128 << 10) /* for one who reads on; one who has just come gets a block */
#define STREAMS 8                  /* who read on are told from who do not, so many of them */
#define PACE_OVER_NS 100000000      /* how much is written is counted over so long */
#define NS_PER_S 1000000000
#define LET_PASS_NS 50000          /* how often it is asked whether the turn is written */
#define LET_PASS_MAX 40            /* 2 ms: readers go on too, whatever the disk takes for a sync */

typedef struct { int fd; int64_t position; hf_piece piece; } part;
typedef struct job {
    struct job *next;
    PyObject *token, *bytes, *topic; /* touched by the loop's thread only; the reader fills the bytes' memory */
    uint8_t *out;
    hf_journal *journal;
    hf_slice topic_text;             /* of `topic`; without one the records are not looked at */
    int64_t summed_from;
    int queue_id, error, count, sound;
    part parts[];
} job;

/* One who reads a file on from where he was: up to where its blocks were asked for, and how far ahead of him. */
typedef struct { int fd; int64_t until, ahead; uint64_t used; } stream;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    job *todo, **todo_tail, *done, **done_tail;
    int running, stop, event_fd, queued;
    stream streams[STREAMS];         /* the reader's own */
    uint64_t brought;                /* times it asked the disk for something */
    long long pace_least;            /* bytes a second while turns are written, or twice what is written in them; 0: any */
    int64_t pace, paced_at_ns, paced_at_bytes; /* bytes a second now, and since when and from what it is counted */
} hf_reader;

static void rest(int64_t ns) {
    struct timespec pause = {ns / NS_PER_S, ns % NS_PER_S};
    nanosleep(&pause, NULL);
}

/* A turn in the flusher's hands goes before what is read: people wait for it, and the disk does one after the other. */
static void let_turn_pass(hf_journal *journal) {
    for (int i = 0; i < LET_PASS_MAX && atomic_load_explicit(&journal->is_writing, memory_order_relaxed); i++) rest(LET_PASS_NS);
}

static int64_t pace_of(hf_reader *r, hf_journal *journal) {
    int64_t now = hf_clock_ns(), since = now - r->paced_at_ns;
    if (since > PACE_OVER_NS) {
        int64_t bytes = atomic_load_explicit(&journal->turned_bytes, memory_order_relaxed);
        int64_t twice = (int64_t)(2.0 * (double)(bytes - r->paced_at_bytes) * NS_PER_S / (double)since);
        r->pace = r->paced_at_ns && twice > r->pace_least ? twice : r->pace_least; /* who is behind catches up */
        r->paced_at_ns = now;
        r->paced_at_bytes = bytes;
    }
    return r->pace;
}

/* Asks the disk for the blocks from..until. Those who send feel each read twice, on the disk and when the loop hands its
   bytes out: while turns are written blocks come at a pace, with nobody sending as fast as the disk gives them.
   All of it is advice: an error is no harm. */
static void bring_blocks(hf_reader *r, hf_journal *journal, int fd, int64_t from, int64_t until) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* nothing beyond what is asked for */
    for (; from < until; from += BLOCK_BYTES) {
        let_turn_pass(journal);
        posix_fadvise(fd, from, BLOCK_BYTES, POSIX_FADV_WILLNEED);
        if (r->pace_least > 0 && hf_journal_is_written(journal)) rest((int64_t)BLOCK_BYTES * NS_PER_S / pace_of(r, journal));
    }
}

static stream *stream_of(hf_reader *r, const part *p, int64_t from, int64_t until) {
    stream *oldest = &r->streams[0];
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &r->streams[i];
        if (s->used && s->fd == p->fd && from <= s->until && until >= s->until - AHEAD_BYTES_MAX) return s;
        if (s->used < oldest->used) oldest = s;
    }
    *oldest = (stream){p->fd, from, 0, 0};
    return oldest;
}

/* The part is not in memory: it, and what will be wanted next by one who reads on. */
static void bring(hf_reader *r, hf_journal *journal, const part *p) {
    int64_t from = p->position / BLOCK_BYTES * BLOCK_BYTES;
    int64_t until = (p->position + p->piece.size - 1) / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
    stream *s = stream_of(r, p, from, until);
    s->used = ++r->brought;
    if (until <= s->until) return; /* asked for already, and on its way */
    s->ahead = !s->ahead ? BLOCK_BYTES : s->ahead < AHEAD_BYTES_MAX ? 2 * s->ahead : AHEAD_BYTES_MAX;
    bring_blocks(r, journal, p->fd, s->until, until + s->ahead);
    s->until = until + s->ahead;
}

/* 0 or an errno. */
static int read_part(hf_reader *r, hf_journal *journal, const part *p, uint8_t *out) {
    struct iovec whole = {out, (size_t)p->piece.size};
    ssize_t n = preadv2(p->fd, &whole, 1, p->position, RWF_NOWAIT);
    int32_t done = n > 0 ? (int32_t)n : 0;
    if (done < p->piece.size) bring(r, journal, p);
    while (done < p->piece.size) {
        n = pread(p->fd, out + done, (size_t)(p->piece.size - done), p->position + done);
        if (n < 0) { if (errno == EINTR) continue; return errno; }
        if (n == 0) return EIO;
        done += (int32_t)n;
    }
    return 0;
}

/* Reads all parts, and counts the records before the first harmed one, which would take the loop as long again. */
static void do_job(hf_reader *r, job *j) {
    uint8_t *out = j->out;
    int harmed = !j->topic_text.p;
    for (int i = 0; i < j->count && !j->error; i++) {
        const part *p = &j->parts[i];
        j->error = read_part(r, j->journal, p, out);
        harmed = harmed || j->error || !hf_record_sound(out, &p->piece, j->topic_text, j->queue_id, j->summed_from);
        j->sound += !harmed;
        out += p->piece.size;
    }
}

static void *serve(void *arg) {
    hf_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->todo && !r->stop) pthread_cond_wait(&r->wake, &r->lock);
        job *j = r->todo;
        if (!j) break;
        r->todo = j->next;
        if (!r->todo) r->todo_tail = &r->todo;
        if (r->stop) j->error = ECANCELED;
        pthread_mutex_unlock(&r->lock);
        do_job(r, j);
        pthread_mutex_lock(&r->lock);
        j->next = NULL;
        *r->done_tail = j;
        r->done_tail = &j->next;
        uint64_t one = 1;
        ssize_t ignored = write(r->event_fd, &one, 8);
        (void)ignored;
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int reader_init(hf_reader *r, PyObject *args, PyObject *kwargs) {
    (void)args; (void)kwargs;
    if (r->running) { PyErr_SetString(PyExc_RuntimeError, "reader is already running"); return -1; }
    r->todo_tail = &r->todo;
    r->done_tail = &r->done;
    r->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->event_fd < 0) { PyErr_SetFromErrno(PyExc_OSError); return -1; }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
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
    *r->todo_tail = j;
    r->todo_tail = &j->next;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    r->queued++;
    Py_RETURN_NONE;
}

/* take() -> [(token, bytes or errno, sound records, -1 when nobody looked at them)] */
static PyObject *reader_take(hf_reader *r, PyObject *ignored) {
    (void)ignored;
    uint64_t counter;
    ssize_t n = read(r->event_fd, &counter, 8);
    (void)n;
    PyObject *list = PyList_New(0);
    if (!list) return NULL;
    pthread_mutex_lock(&r->lock);
    job *j = r->done;
    r->done = NULL;
    r->done_tail = &r->done;
    pthread_mutex_unlock(&r->lock);
    while (j) {
        job *next = j->next;
        PyObject *one = j->error ? Py_BuildValue("(Nii)", j->token, j->error, 0) : Py_BuildValue("(NOi)", j->token, j->bytes, j->sound);
        Py_DECREF(j->bytes);
        Py_DECREF(j->journal);
        Py_XDECREF(j->topic);
        if (one) { PyList_Append(list, one); Py_DECREF(one); }
        PyMem_Free(j);
        r->queued--;
        j = next;
    }
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
    PyObject *rest = reader_take(r, NULL);
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
    {"take", (PyCFunction)reader_take, METH_NOARGS, "take() -> [(token, bytes or errno, sound)]"},
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

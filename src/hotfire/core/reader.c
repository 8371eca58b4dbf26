/* Cold reads beside the loop: a native thread reads log bytes that are not in memory while the pull is parked.
   How far ahead to read is decided here and not by the kernel, which asks the disk for megabytes at a time (8 MiB on
   many cloud machines): a sync of the log that came meanwhile would wait for all of them. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK_BYTES (128 << 10)    /* asked of the disk at once: records of other queues between ours come along */
#define PACE_BYTES_PER_S (192 << 20)
#define NS_PER_S 1000000000
#define TURN_RECENT_NS 20000000    /* who stored something so lately is taken to go on with it */

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

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    job *todo, **todo_tail, *done, **done_tail;
    int running, stop, event_fd, queued;
    int brought_fd;                  /* the reader's: up to where it has asked the disk for blocks, and of which file */
    int64_t brought_until;
} hf_reader;

/* Asks for the blocks the part lies in and the one behind them, without waiting; how many bytes of them had not been
   asked for before. Advice: an error is no harm. */
static int64_t bring_blocks(hf_reader *r, const part *p) {
    int64_t from = p->position / BLOCK_BYTES * BLOCK_BYTES;
    int64_t until = (p->position + p->piece.size - 1) / BLOCK_BYTES * BLOCK_BYTES + 2 * BLOCK_BYTES;
    if (p->fd == r->brought_fd && from < r->brought_until && until >= r->brought_until) from = r->brought_until;
    r->brought_fd = p->fd;
    r->brought_until = until;
    if (from >= until) return 0;
    posix_fadvise(p->fd, 0, 0, POSIX_FADV_RANDOM);
    posix_fadvise(p->fd, from, until - from, POSIX_FADV_WILLNEED);
    return until - from;
}

/* 0 or an errno. What is in memory is taken from there; else the disk is asked, and `cold` grows by what it has to bring. */
static int read_part(hf_reader *r, const part *p, uint8_t *out, int64_t *cold) {
    struct iovec whole = {out, (size_t)p->piece.size};
    ssize_t n = preadv2(p->fd, &whole, 1, p->position, RWF_NOWAIT);
    int32_t done = n > 0 ? (int32_t)n : 0;
    if (done < p->piece.size) *cold += bring_blocks(r, p);
    while (done < p->piece.size) {
        n = pread(p->fd, out + done, (size_t)(p->piece.size - done), p->position + done);
        if (n < 0) { if (errno == EINTR) continue; return errno; }
        if (n == 0) return EIO;
        done += (int32_t)n;
    }
    return 0;
}

/* Those who send feel each read twice, on the disk and when the loop hands its bytes out: while turns are written, what
   is cold comes no faster than this. With nobody sending it comes as fast as the disk gives it. */
static int64_t rest_ns(hf_journal *journal, int64_t cold) {
    int64_t since_turn = hf_clock_ns() - atomic_load_explicit(&journal->turn_at_ns, memory_order_relaxed);
    return since_turn > TURN_RECENT_NS ? 0 : cold * NS_PER_S / PACE_BYTES_PER_S;
}

/* Reads all parts, and counts the records before the first harmed one, which would take the loop as long again. */
static int64_t do_job(hf_reader *r, job *j) {
    uint8_t *out = j->out;
    int64_t cold = 0;
    int harmed = !j->topic_text.p;
    for (int i = 0; i < j->count && !j->error; i++) {
        const part *p = &j->parts[i];
        j->error = read_part(r, p, out, &cold);
        harmed = harmed || j->error || !hf_record_sound(out, &p->piece, j->topic_text, j->queue_id, j->summed_from);
        j->sound += !harmed;
        out += p->piece.size;
    }
    return cold ? rest_ns(j->journal, cold) : 0;
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
        int64_t rest = do_job(r, j);
        pthread_mutex_lock(&r->lock);
        j->next = NULL;
        *r->done_tail = j;
        r->done_tail = &j->next;
        uint64_t one = 1;
        ssize_t ignored = write(r->event_fd, &one, 8);
        (void)ignored;
        if (!rest || r->stop) continue;
        pthread_mutex_unlock(&r->lock); /* from here on the job may be gone */
        struct timespec pause = {rest / NS_PER_S, rest % NS_PER_S};
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int reader_init(hf_reader *r, PyObject *args, PyObject *kwargs) {
    (void)args; (void)kwargs;
    if (r->running) { PyErr_SetString(PyExc_RuntimeError, "reader is already running"); return -1; }
    r->brought_fd = -1;
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
static PyMemberDef reader_members[] = {{"queued", Py_T_INT, offsetof(hf_reader, queued), Py_READONLY, NULL}, {NULL}};
PyTypeObject hf_reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Reader", .tp_basicsize = sizeof(hf_reader), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)reader_init, .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods, .tp_members = reader_members};

/* Cold reads beside the loop: a native thread reads log bytes that are not in memory while the pull is parked. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct { int fd; int64_t position; int32_t size; } part;
typedef struct job {
    struct job *next;
    PyObject *token, *bytes; /* touched by the loop's thread only; the reader fills the bytes' memory */
    uint8_t *out;
    int error, count;
    part parts[];
} job;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    job *todo, **todo_tail, *done, **done_tail;
    int running, stop, event_fd, queued;
} hf_reader;

static int read_part(const part *p, uint8_t *out) {
    int32_t done = 0;
    while (done < p->size) {
        ssize_t n = pread(p->fd, out + done, (size_t)(p->size - done), p->position + done);
        if (n < 0) { if (errno == EINTR) continue; return errno; }
        if (n == 0) return EIO;
        done += (int32_t)n;
    }
    return 0;
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
        int stop = r->stop;
        pthread_mutex_unlock(&r->lock);
        uint8_t *out = j->out;
        for (int i = 0; i < j->count && !j->error; i++) {
            j->error = stop ? ECANCELED : read_part(&j->parts[i], out);
            out += j->parts[i].size;
        }
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

/* submit(journal, pieces, token): the bytes of the pieces, later, through take() */
static PyObject *reader_submit(hf_reader *r, PyObject *args) {
    hf_journal *journal;
    PyObject *pieces, *token;
    if (!PyArg_ParseTuple(args, "O!O!O", &hf_journal_type, &journal, &PyList_Type, &pieces, &token)) return NULL;
    if (!r->running) return PyErr_Format(PyExc_RuntimeError, "reader is closed");
    Py_ssize_t count = PyList_GET_SIZE(pieces);
    job *j = PyMem_Calloc(1, sizeof *j + (size_t)count * sizeof(part));
    if (!j) return PyErr_NoMemory();
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long physical;
        int size;
        long long index;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pieces, i), "Li|L", &physical, &size, &index)) { PyMem_Free(j); return NULL; }
        hf_segment *s = hf_journal_segment(journal, physical);
        if (!s || size <= 0 || physical + size > s->start + s->size) {
            PyMem_Free(j);
            return PyErr_Format(PyExc_LookupError, "no log segment holds %d bytes at %lld", size, physical);
        }
        /* the descriptor must outlive the read: a segment is closed only while nothing is queued */
        j->parts[i] = (part){s->fd, physical - s->start, size};
        total += size;
    }
    j->count = (int)count;
    j->bytes = PyBytes_FromStringAndSize(NULL, total);
    if (!j->bytes) { PyMem_Free(j); return NULL; }
    j->out = (uint8_t *)PyBytes_AS_STRING(j->bytes);
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

/* take() -> [(token, bytes or errno)] */
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
        PyObject *pair = j->error ? Py_BuildValue("(Ni)", j->token, j->error) : Py_BuildValue("(NO)", j->token, j->bytes);
        Py_DECREF(j->bytes);
        if (pair) { PyList_Append(list, pair); Py_DECREF(pair); }
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
    {"submit", (PyCFunction)reader_submit, METH_VARARGS, "submit(journal, pieces, token)"},
    {"take", (PyCFunction)reader_take, METH_NOARGS, "take() -> [(token, bytes or errno)]"},
    {"fileno", (PyCFunction)reader_fileno, METH_NOARGS, "The eventfd that rings when a read is done."},
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Ends the thread; reads not yet begun are dropped."},
    {NULL}};
static PyMemberDef reader_members[] = {{"queued", Py_T_INT, offsetof(hf_reader, queued), Py_READONLY, NULL}, {NULL}};
PyTypeObject hf_reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Reader", .tp_basicsize = sizeof(hf_reader), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)reader_init, .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods, .tp_members = reader_members};

/* Load, the generator of load as Python sees it. Everything is checked here, before loadgen.c relies on it. */
#include "loadgen.h"
#include <sys/epoll.h>
#include <unistd.h>

static int refuse_while_running(hf_load *l) {
    if (l->epoll >= 0 && !l->is_running) return 0;
    PyErr_SetString(PyExc_RuntimeError, l->epoll < 0 ? "the load is closed" : "the load is running");
    return -1;
}

static int load_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    hf_load *l = (hf_load *)self;
    static char *names[] = {"mark", "rate", "frame_bytes_max", NULL};
    Py_buffer mark;
    unsigned int frame_bytes_max = 16 << 20;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|dI", names, &mark, &l->rate, &frame_bytes_max)) return -1;
    int is_right = mark.len == 8;
    if (is_right) memcpy(l->mark, mark.buf, 8);
    PyBuffer_Release(&mark);
    if (!is_right || l->rate < 0 || frame_bytes_max > 64u << 20) { PyErr_SetString(PyExc_ValueError, "a mark of 8 bytes, a rate of 0 or more, frames of 64 MiB at most"); return -1; }
    l->frame_bytes_max = frame_bytes_max;
    if (l->epoll < 0 && (l->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0) { PyErr_SetFromErrno(PyExc_OSError); return -1; }
    return 0;
}

static PyObject *load_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    hf_load *l = (hf_load *)type->tp_alloc(type, 0);
    if (l) l->epoll = -1;
    return (PyObject *)l;
}

static void free_peer(load_peer *p) {
    for (int i = 0; i < p->frames_count; i++) {
        free(p->frames[i].bytes);
        free(p->frames[i].keys_at);
        free(p->frames[i].clocks_at);
    }
    free(p->frames);
    free(p->cursors);
    free(p->slots);
    free(p->free);
    free(p->in.bytes);
    free(p->out.bytes);
}

static void let_go(hf_load *l) {
    for (int i = 0; i < l->peers_count; i++) free_peer(&l->peers[i]);
    free(l->peers);
    l->peers = NULL;
    l->peers_count = l->peers_room = 0;
    if (l->epoll >= 0) close(l->epoll);
    l->epoll = -1;
}

static void load_dealloc(PyObject *self) {
    hf_load *l = (hf_load *)self;
    let_go(l);
    free(l->refusal);
    Py_TYPE(self)->tp_free(self);
}

/* ---- frames ---- */

static size_t *read_places(PyObject *places, size_t size, size_t width, int *count) {
    Py_ssize_t n = PyTuple_Check(places) ? PyTuple_GET_SIZE(places) : -1;
    if (n < 0 || n > LOAD_PLACES_MAX) { PyErr_SetString(PyExc_ValueError, "places: a tuple of 4096 at most"); return NULL; }
    size_t *at = calloc((size_t)n + 1, sizeof *at);
    if (!at) { PyErr_NoMemory(); return NULL; }
    for (Py_ssize_t i = 0; i < n; i++) {
        at[i] = PyLong_AsSize_t(PyTuple_GET_ITEM(places, i));
        if (PyErr_Occurred()) { free(at); return NULL; }
        if (width > size || at[i] > size - width) { PyErr_SetString(PyExc_ValueError, "a place is behind the frame's end"); free(at); return NULL; }
    }
    *count = (int)n;
    return at;
}

/* (frame, opaque_at, time_at, offset_at, keys_at, clocks_at); places of 0 are none */
static int read_frame(PyObject *given, load_frame *f) {
    Py_buffer bytes;
    Py_ssize_t opaque_at, time_at, offset_at;
    PyObject *keys, *clocks;
    if (!PyTuple_Check(given)) { PyErr_SetString(PyExc_TypeError, "a frame is a tuple"); return 0; }
    if (!PyArg_ParseTuple(given, "y*nnnOO", &bytes, &opaque_at, &time_at, &offset_at, &keys, &clocks)) return 0;
    Py_ssize_t size = bytes.len;
    int is_right = size >= 32 && size <= 64 << 20 && opaque_at >= 8 && time_at >= 0 && offset_at >= 0 &&
                   opaque_at <= size - 10 && time_at <= size - LOAD_TIME_DIGITS && offset_at <= size - LOAD_OFFSET_DIGITS;
    if (is_right && (f->bytes = malloc((size_t)size))) {
        memcpy(f->bytes, bytes.buf, (size_t)size);
        *f = (load_frame){f->bytes, (size_t)size, (size_t)opaque_at, (size_t)time_at, (size_t)offset_at, NULL, NULL, 0, 0};
    }
    PyBuffer_Release(&bytes);
    if (!is_right) { PyErr_SetString(PyExc_ValueError, "a place is behind the frame's end"); return 0; }
    if (!f->bytes) { PyErr_NoMemory(); return 0; }
    if (!(f->keys_at = read_places(keys, f->size, LOAD_KEY_DIGITS, &f->keys_count))) return 0;
    return (f->clocks_at = read_places(clocks, f->size, 8, &f->clocks_count)) != NULL;
}

static int read_frames(PyObject *given, load_peer *p) {
    Py_ssize_t n = PyList_Check(given) ? PyList_GET_SIZE(given) : 0;
    if (n < 1 || n > LOAD_FRAMES_MAX) { PyErr_SetString(PyExc_ValueError, "frames: a list of 1 to 65536"); return 0; }
    if (!(p->frames = calloc((size_t)n, sizeof *p->frames))) { PyErr_NoMemory(); return 0; }
    for (Py_ssize_t i = 0; i < n; i++) {
        p->frames_count = (int)i + 1; /* what is half read is let go of, too */
        if (!read_frame(PyList_GET_ITEM(given, i), &p->frames[i])) return 0;
    }
    return 1;
}

/* ---- connections ---- */

/* Peers are given to epoll by address, so that their table has its full size from the first on. */
static int keep_peer(hf_load *l, load_peer *p) {
    if (!l->peers) {
        l->peers = calloc(LOAD_PEERS_MAX, sizeof *l->peers);
        l->peers_room = l->peers ? LOAD_PEERS_MAX : 0;
    }
    if (l->peers_count == l->peers_room) { PyErr_SetString(PyExc_ValueError, "more than 4096 connections"); return 0; }
    load_peer *kept = &l->peers[l->peers_count];
    *kept = *p;
    struct epoll_event wanted = {EPOLLIN, {.ptr = kept}};
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, p->fd, &wanted)) { PyErr_SetFromErrno(PyExc_OSError); return 0; }
    l->peers_count++;
    return 1;
}

static PyObject *load_add_writer(PyObject *self, PyObject *args) {
    hf_load *l = (hf_load *)self;
    load_peer p = {0};
    PyObject *frames;
    int window, messages;
    if (refuse_while_running(l) || !PyArg_ParseTuple(args, "iiiO", &p.fd, &window, &messages, &frames)) return NULL;
    if (window < 1 || window > LOAD_WINDOW_MAX || messages < 1 || messages > LOAD_PLACES_MAX) return PyErr_Format(PyExc_ValueError, "a window of 1 to 65536 requests, each of 1 to 4096 messages");
    p.messages = (uint64_t)messages;
    p.slots_count = p.free_count = window;
    p.slots = calloc((size_t)window, sizeof *p.slots);
    p.free = calloc((size_t)window, sizeof *p.free);
    if (!p.slots || !p.free) PyErr_NoMemory();
    for (int i = 0; p.free && i < window; i++) p.free[i] = window - 1 - i;
    if (PyErr_Occurred() || !read_frames(frames, &p) || !keep_peer(l, &p)) { free_peer(&p); return NULL; }
    Py_RETURN_NONE;
}

static PyObject *load_add_reader(PyObject *self, PyObject *args) {
    hf_load *l = (hf_load *)self;
    load_peer p = {.is_reader = 1, .messages = 1};
    PyObject *frames, *places;
    if (refuse_while_running(l) || !PyArg_ParseTuple(args, "iOO!", &p.fd, &frames, &PyList_Type, &places)) return NULL;
    if (!read_frames(frames, &p)) goto fail;
    if (PyList_GET_SIZE(places) != p.frames_count) { PyErr_SetString(PyExc_ValueError, "a place for each frame"); goto fail; }
    p.slots_count = p.frames_count;
    p.slots = calloc((size_t)p.slots_count, sizeof *p.slots);
    p.cursors = calloc((size_t)p.slots_count, sizeof *p.cursors);
    if (!p.slots || !p.cursors) { PyErr_NoMemory(); goto fail; }
    for (int i = 0; i < p.frames_count; i++) {
        long long offset, again_at;
        if (!p.frames[i].offset_at) { PyErr_SetString(PyExc_ValueError, "a pull without the place of its offset"); goto fail; }
        if (!PyTuple_Check(PyList_GET_ITEM(places, i))) { PyErr_SetString(PyExc_TypeError, "a place is a tuple"); goto fail; }
        if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "LL", &offset, &again_at)) goto fail;
        if (offset < 0) { PyErr_SetString(PyExc_ValueError, "an offset below 0"); goto fail; }
        p.cursors[i] = (load_cursor){offset, again_at, 0};
    }
    if (keep_peer(l, &p)) Py_RETURN_NONE;
fail:
    free_peer(&p);
    return NULL;
}

/* ---- running, and what came of it ---- */

static PyObject *load_py_run(PyObject *self, PyObject *args) {
    hf_load *l = (hf_load *)self;
    double seconds;
    int ok;
    if (refuse_while_running(l) || !PyArg_ParseTuple(args, "d", &seconds)) return NULL;
    if (!(seconds >= 0 && seconds <= 3600)) return PyErr_Format(PyExc_ValueError, "a run of 0 to 3600 seconds");
    l->is_running = 1;
    Py_BEGIN_ALLOW_THREADS
    ok = load_run(l, seconds);
    Py_END_ALLOW_THREADS
    l->is_running = 0;
    if (!ok) return PyErr_NoMemory();
    if (PyErr_CheckSignals()) return NULL;
    return PyBool_FromLong(!load_is_over(l));
}

static PyObject *load_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    ((hf_load *)self)->is_stopped = 1;
    Py_RETURN_NONE;
}

static PyObject *load_clear(PyObject *self, PyObject *unused) {
    (void)unused;
    hf_load *l = (hf_load *)self;
    if (refuse_while_running(l)) return NULL;
    memset(l->answer, 0, sizeof l->answer);
    memset(l->delivery, 0, sizeof l->delivery);
    Py_RETURN_NONE;
}

static PyObject *load_close(PyObject *self, PyObject *unused) {
    (void)unused;
    if (((hf_load *)self)->is_running) return PyErr_Format(PyExc_RuntimeError, "the load is running");
    let_go((hf_load *)self);
    Py_RETURN_NONE;
}

static PyObject *load_codes(PyObject *self, void *unused) {
    (void)unused;
    hf_load *l = (hf_load *)self;
    PyObject *codes = PyDict_New();
    for (int i = 0; codes && i < l->codes_count; i++) {
        PyObject *code = PyLong_FromLong(l->codes[i].code), *count = PyLong_FromUnsignedLongLong(l->codes[i].count);
        if (!code || !count || PyDict_SetItem(codes, code, count)) Py_CLEAR(codes);
        Py_XDECREF(code);
        Py_XDECREF(count);
    }
    return codes;
}

static PyObject *load_refusal(PyObject *self, void *unused) {
    (void)unused;
    hf_load *l = (hf_load *)self;
    return PyBytes_FromStringAndSize((const char *)l->refusal, (Py_ssize_t)l->refusal_bytes);
}

static PyObject *load_answer(PyObject *self, void *unused) {
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)((hf_load *)self)->answer, sizeof ((hf_load *)self)->answer);
}

static PyObject *load_delivery(PyObject *self, void *unused) {
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)((hf_load *)self)->delivery, sizeof ((hf_load *)self)->delivery);
}

#define COUNTER(name, flags) {#name, T_ULONGLONG, offsetof(hf_load, name), flags, NULL}
static PyMemberDef members[] = {
    COUNTER(sends_max, 0), COUNTER(deliveries_max, 0),
    COUNTER(asked, READONLY), COUNTER(answered, READONLY), COUNTER(acked, READONLY), COUNTER(in_flight, READONLY),
    COUNTER(unanswered, READONLY), COUNTER(stray, READONLY), COUNTER(lost, READONLY),
    COUNTER(delivered, READONLY), COUNTER(delivered_own, READONLY), COUNTER(delivered_bytes, READONLY),
    COUNTER(missed, READONLY), COUNTER(repeated, READONLY),
    {NULL}};

static PyGetSetDef views[] = {
    {"codes", load_codes, NULL, "requests, or messages sent, by the code of their reply", NULL},
    {"refusal", load_refusal, NULL, "the first frame that said no", NULL},
    {"answer_latencies", load_answer, NULL, "counts by bucket, 64 bits each", NULL},
    {"delivery_latencies", load_delivery, NULL, "likewise, from send to arrival", NULL},
    {NULL}};

static PyMethodDef methods[] = {
    {"add_writer", load_add_writer, METH_VARARGS, "add_writer(fd, window, messages, frames)"},
    {"add_reader", load_add_reader, METH_VARARGS, "add_reader(fd, frames, [(offset, again_at)])"},
    {"run", load_py_run, METH_VARARGS, "run(seconds) -> whether there is more to do"},
    {"stop", load_stop, METH_NOARGS, "send no more"},
    {"clear", load_clear, METH_NOARGS, "forget the latencies so far"},
    {"close", load_close, METH_NOARGS, NULL},
    {NULL}};

PyTypeObject hf_load_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotfire.core._core.Load",
    .tp_basicsize = sizeof(hf_load),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Load(mark, rate=0, frame_bytes_max=16 MiB)",
    .tp_new = load_new,
    .tp_init = load_init,
    .tp_dealloc = load_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = views,
};

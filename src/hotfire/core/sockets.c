/* One pass over the sockets in one call: receive from all that are ready, let the lane serve, send its replies.
   An epoll set of our own, whose descriptor the loop watches. Each peer stays the transport's, which accepted it, writes what
   the kernel does not take at once, and closes it; here is only what needs nobody's judgement. Two conditions keep the
   streams whole: the lane sees bytes only where nothing is kept aside before them (`whole`), and we send only while
   the transport has nothing left to write (`sends`). */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define PASS_BYTES_MAX (1u << 18)  /* received or sent, beyond which others of the loop have their turn */
#define COST_PER_BYTE 2            /* what a condition costs, for a byte moved in the same time */
#define PASS_ANSWERS_SHARED (1u << 16) /* answered at once while turns are written: more would take longer than a sync does */
#define READY_KEPT (1 << 20)       /* a larger buffer of replies is given back after its use */

/* ---- link: one peer ---- */
typedef struct {
    PyObject_HEAD
    PyObject *owner;               /* the connection: write(bytes), is_drained; NULL once it is gone */
    long long active_ms;
    int fd;                        /* -1 once it is left to the transport for good */
    int reading, whole, sends;
    int bulk;                      /* what it last got was long: those who ask for little go before it */
    int listed;                    /* its turn is to come */
    uint8_t host[20];
    uint32_t host_size;
} hf_link;

static int link_traverse(hf_link *k, visitproc visit, void *arg) { Py_VISIT(k->owner); return 0; }
static int link_clear(hf_link *k) { Py_CLEAR(k->owner); return 0; }
static void link_dealloc(hf_link *k) {
    PyObject_GC_UnTrack(k);
    link_clear(k);
    PyObject_GC_Del(k);
}

static PyMemberDef link_members[] = {
    {"active_ms", Py_T_LONGLONG, offsetof(hf_link, active_ms), 0, "When something was last received or sent."},
    {"whole", Py_T_INT, offsetof(hf_link, whole), 0, "Nothing received is kept aside: the next bytes begin a frame."},
    {"sends", Py_T_INT, offsetof(hf_link, sends), 0, "The transport has nothing left to write."},
    {"bulk", Py_T_INT, offsetof(hf_link, bulk), 0, "What it last got was long: those who ask for little go before it."},
    {"reading", Py_T_INT, offsetof(hf_link, reading), Py_READONLY, NULL},
    {NULL}};
PyTypeObject hf_link_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Link", .tp_basicsize = sizeof(hf_link), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)link_dealloc, .tp_traverse = (traverseproc)link_traverse, .tp_clear = (inquiry)link_clear,
    .tp_members = link_members};

static int may_send(hf_link *k) {
    if (k->sends || k->fd < 0 || !k->owner) return k->sends && k->fd >= 0;
    PyObject *drained = PyObject_GetAttrString(k->owner, "is_drained");
    if (!drained) { PyErr_WriteUnraisable(k->owner); return 0; }
    k->sends = drained == Py_True && k->fd >= 0;
    Py_DECREF(drained);
    return k->sends;
}

/* To the kernel, and what it does not take, or any error there is, to the transport. */
static void deliver(hf_link *k, const uint8_t *p, size_t size, int is_bulk, int64_t now) {
    size_t sent = 0;
    k->active_ms = now;
    while (sent < size && may_send(k)) {
        ssize_t n = send(k->fd, p + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        sent += (size_t)n;
    }
    k->bulk = is_bulk;
    if (sent == size || !k->owner) return;
    k->sends = 0;
    PyObject *rest = PyBytes_FromStringAndSize((const char *)p + sent, (Py_ssize_t)(size - sent));
    PyObject *done = rest ? PyObject_CallMethod(k->owner, "write", "O", rest) : NULL;
    if (!done) PyErr_WriteUnraisable(k->owner); /* the end of this peer; others want their replies */
    k->bulk = is_bulk; /* by all of it, not by what was left */
    Py_XDECREF(done);
    Py_XDECREF(rest);
}

/* ---- replies: what a pass over the sockets has to send once the log is safe ---- */
typedef struct { hf_link *link; size_t start, size; } item;
typedef struct {
    PyObject_HEAD
    uint8_t *data;
    item *items;
    int count, room;
} hf_replies;

static int replies_add(hf_replies *r, hf_link *k, size_t start, size_t size) {
    if (r->count == r->room) {
        int room = r->room ? r->room * 2 : 16;
        item *grown = PyMem_Realloc(r->items, (size_t)room * sizeof *grown);
        if (!grown) { PyErr_NoMemory(); return 0; }
        r->items = grown;
        r->room = room;
    }
    Py_INCREF(k);
    r->items[r->count++] = (item){k, start, size};
    return 1;
}

static void replies_dealloc(hf_replies *r) {
    for (int i = 0; i < r->count; i++) Py_DECREF(r->items[i].link);
    PyMem_Free(r->items);
    PyMem_Free(r->data);
    Py_TYPE(r)->tp_free((PyObject *)r);
}

static PyObject *replies_send(hf_replies *r, PyObject *arg) {
    long long now = PyLong_AsLongLong(arg);
    if (now == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < r->count; i++) deliver(r->items[i].link, r->data + r->items[i].start, r->items[i].size, 0, now); /* however many sends they answer */
    Py_RETURN_NONE;
}

/* pairs() -> [(connection, bytes)], for when they are not to be sent as they are */
static PyObject *replies_pairs(hf_replies *r, PyObject *ignored) {
    (void)ignored;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < r->count; i++) {
        item *m = &r->items[i];
        if (!m->link->owner) continue;
        PyObject *pair = Py_BuildValue("(Oy#)", m->link->owner, (const char *)r->data + m->start, (Py_ssize_t)m->size);
        if (!pair || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static Py_ssize_t replies_length(hf_replies *r) { return r->count; }
static PyMethodDef replies_methods[] = {
    {"send", (PyCFunction)replies_send, METH_O, "send(now_ms): to every peer that is still there"},
    {"pairs", (PyCFunction)replies_pairs, METH_NOARGS, "pairs() -> [(connection, bytes)]"},
    {NULL}};
static PySequenceMethods replies_sequence = {.sq_length = (lenfunc)replies_length};
PyTypeObject hf_replies_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Replies", .tp_basicsize = sizeof(hf_replies), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)replies_dealloc, .tp_methods = replies_methods, .tp_as_sequence = &replies_sequence};

/* ---- sockets: the set ---- */
typedef struct {
    PyObject_HEAD
    int epoll_fd;
    Py_buffer buffer;
    hf_link **links;                     /* by descriptor */
    int links_room;
    struct epoll_event events[EVENTS_MAX];
    int events_count, events_at, served; /* served: peers that were ready in this pass */
    size_t moved, answered;              /* bytes received and sent in this pass, and those of them sent */
    int clock;                           /* store times are the clock's after each receive, not the pass's */
} hf_sockets;

static int sockets_init(hf_sockets *s, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "clock", NULL};
    PyObject *buffer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", names, &buffer, &s->clock)) return -1;
    if (s->buffer.obj) { PyErr_SetString(PyExc_RuntimeError, "a set of sockets is made once"); return -1; }
    s->epoll_fd = -1;
    if (PyObject_GetBuffer(buffer, &s->buffer, PyBUF_WRITABLE)) return -1;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0) { PyErr_SetFromErrno(PyExc_OSError); return -1; }
    return 0;
}

static int watch(hf_sockets *s, hf_link *k) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = k->fd};
    if (k->reading || k->fd < 0) return 1;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, k->fd, &e)) return 0;
    return k->reading = 1;
}

static void unwatch(hf_sockets *s, hf_link *k) {
    struct epoll_event e = {0};
    if (k->reading && k->fd >= 0) epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, k->fd, &e);
    k->reading = 0;
}

/* Its descriptor is about to be closed, and may then be anybody's. */
static void leave(hf_sockets *s, hf_link *k) {
    unwatch(s, k);
    int fd = k->fd;
    k->fd = -1;
    k->sends = 0;
    if (fd >= 0 && fd < s->links_room && s->links[fd] == k) Py_CLEAR(s->links[fd]);
}

/* add(fd, connection, born_host) -> Link, read from at once */
static PyObject *sockets_add(hf_sockets *s, PyObject *args) {
    int fd;
    PyObject *owner;
    const uint8_t *host;
    Py_ssize_t host_size;
    if (!PyArg_ParseTuple(args, "iOy#", &fd, &owner, &host, &host_size)) return NULL;
    if (fd < 0 || (host_size != 8 && host_size != 20)) return PyErr_Format(PyExc_ValueError, "fd: 0 or more; born_host: 8 or 20 bytes");
    if (fd >= s->links_room) {
        int room = s->links_room ? s->links_room : 64;
        while (room <= fd) room *= 2;
        hf_link **grown = PyMem_Realloc(s->links, (size_t)room * sizeof *grown);
        if (!grown) return PyErr_NoMemory();
        memset(grown + s->links_room, 0, (size_t)(room - s->links_room) * sizeof *grown);
        s->links = grown;
        s->links_room = room;
    }
    hf_link *k = PyObject_GC_New(hf_link, &hf_link_type);
    if (!k) return NULL;
    Py_INCREF(owner);
    k->owner = owner;
    k->fd = fd;
    k->active_ms = 0;
    k->reading = 0;
    k->whole = k->sends = 1;
    k->bulk = k->listed = 0;
    memcpy(k->host, host, (size_t)host_size);
    k->host_size = (uint32_t)host_size;
    PyObject_GC_Track(k);
    if (s->links[fd]) leave(s, s->links[fd]); /* closed behind our back: the set has forgotten it already */
    if (!watch(s, k)) { PyErr_SetFromErrno(PyExc_OSError); Py_DECREF(k); return NULL; }
    Py_INCREF(k);
    s->links[fd] = k;
    return (PyObject *)k;
}

static hf_link *link_of(PyObject *arg) {
    if (Py_TYPE(arg) == &hf_link_type) return (hf_link *)arg;
    PyErr_SetString(PyExc_TypeError, "a Link");
    return NULL;
}

static PyObject *sockets_pause(hf_sockets *s, PyObject *arg) {
    hf_link *k = link_of(arg);
    if (!k) return NULL;
    unwatch(s, k);
    Py_RETURN_NONE;
}

static PyObject *sockets_resume(hf_sockets *s, PyObject *arg) {
    hf_link *k = link_of(arg);
    if (!k) return NULL;
    if (!watch(s, k)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* leave(link, gone): neither read nor sent here any more; with `gone` its connection is forgotten too */
static PyObject *sockets_leave(hf_sockets *s, PyObject *args) {
    PyObject *arg;
    int gone;
    if (!PyArg_ParseTuple(args, "Op", &arg, &gone)) return NULL;
    hf_link *k = link_of(arg);
    if (!k) return NULL;
    leave(s, k);
    if (gone) Py_CLEAR(k->owner);
    Py_RETURN_NONE;
}

/* What the lane has made for this peer: sent now, or added to the replies that wait. */
static int take_replies(hf_sockets *s, hf_lane *l, hf_link *k, hf_replies **replies, size_t waited, int64_t now) {
    s->moved += l->fetched + (size_t)l->cost / COST_PER_BYTE;
    if (l->ready_size) {
        size_t size = l->ready_size;
        PyObject *ready = l->ready; /* ours while Python code runs, which might ask the lane for something */
        l->ready = NULL;
        l->ready_size = 0;
        deliver(k, (const uint8_t *)PyBytes_AS_STRING(ready), size, size >= HF_BULK_BYTES, now);
        s->moved += size;
        s->answered += size;
        if (!l->ready && PyBytes_GET_SIZE(ready) <= READY_KEPT) l->ready = ready;
        else Py_DECREF(ready);
    }
    if (l->waiting_size == waited) return 1;
    if (!*replies && !(*replies = (hf_replies *)PyType_GenericAlloc(&hf_replies_type, 0))) return 0;
    return replies_add(*replies, k, waited, l->waiting_size - waited);
}

static int64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One peer that is ready. 1: all that came is served, 0: its connection has to look at it, from *at to *count. */
static int serve_link(hf_sockets *s, hf_lane *l, hf_link *k, hf_replies **replies, PyObject *pulls, int64_t now, Py_ssize_t *at, Py_ssize_t *count) {
    ssize_t n;
    do n = recv(k->fd, s->buffer.buf, (size_t)s->buffer.len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    *at = 0;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 1;
    *count = n < 0 ? 0 : n;
    if (n <= 0) { unwatch(s, k); return 0; }
    k->active_ms = now;
    s->moved += (size_t)n;
    if (!l || !k->whole || !may_send(k)) return 0;
    size_t waited = l->waiting_size, consumed;
    int64_t received = s->clock ? clock_ms() : now; /* what came while the pass went on was not stored before it was sent */
    int next = hf_lane_serve(l, s->buffer.buf, (size_t)n, (hf_slice){k->host, k->host_size}, received, pulls, &consumed);
    if (next < 0 || !take_replies(s, l, k, replies, waited, now)) {
        PyErr_WriteUnraisable(k->owner);
        l->waiting_size = waited;
        l->ready_size = 0;
        *at = -1;
        return 0;
    }
    hf_lane_begin(l);
    *at = (Py_ssize_t)consumed;
    return consumed == (size_t)n;
}

static hf_link *link_at(hf_sockets *s, int i) {
    int fd = s->events[i].data.fd;
    return fd < s->links_room ? s->links[fd] : NULL;
}

/* Who asks for little waits for one of those who ask for much and waited before it, and for no other: those are the last. */
static void bulk_last(hf_sockets *s, int waited) {
    struct epoll_event later[EVENTS_MAX];
    int kept = 0, moved = 0, first = 1;
    for (int i = 0; i < s->events_count; i++) {
        hf_link *k = link_at(s, i);
        int its_turn = !k || !k->bulk || (i < waited && first);
        if (k && k->bulk && its_turn) first = 0;
        if (its_turn) s->events[kept++] = s->events[i];
        else later[moved++] = s->events[i];
    }
    memcpy(s->events + kept, later, (size_t)moved * sizeof *later);
}

/* Those whose turn has not come yet, and whoever else is ready now. */
static int look(hf_sockets *s) {
    int waited = s->events_count - s->events_at;
    memmove(s->events, s->events + s->events_at, (size_t)waited * sizeof *s->events);
    s->events_at = 0;
    s->events_count = waited;
    int ready = waited < EVENTS_MAX ? epoll_wait(s->epoll_fd, s->events + waited, EVENTS_MAX - waited, 0) : 0;
    for (int i = waited; i < waited + ready; i++) {
        hf_link *k = link_at(s, i);
        if (!k || k->listed) continue;
        k->listed = 1;
        s->events[s->events_count++] = s->events[i];
    }
    s->served += s->events_count - waited;
    bulk_last(s, waited);
    return s->events_count;
}

/* receive(lane or None, now_ms, again) -> (replies or None, pulls, connection or None, at, count)
   One pass, as far as nobody else has to look: then `connection` is to be given the buffer's bytes from `at` to `count`, none
   at its end, or to be closed when `at` is -1; and receive is called `again`, until there is no connection left. */
static PyObject *sockets_receive(hf_sockets *s, PyObject *args) {
    PyObject *lane;
    long long now;
    int again;
    if (!PyArg_ParseTuple(args, "OLp", &lane, &now, &again)) return NULL;
    if (lane != Py_None && !PyObject_TypeCheck(lane, &hf_lane_type)) return PyErr_Format(PyExc_TypeError, "lane: a Lane or None");
    hf_lane *l = lane == Py_None ? NULL : (hf_lane *)lane;
    PyObject *pulls = PyList_New(0), *owner = NULL;
    if (!pulls) return NULL;
    hf_replies *replies = NULL;
    Py_ssize_t at = 0, count = 0;
    if (l) hf_lane_begin(l);
    if (!again) {
        s->moved = s->answered = 0;
        s->served = s->events_count - s->events_at;
        look(s);
    }
    int is_shared = l && hf_journal_is_written(l->journal);
    size_t answers_max = is_shared ? PASS_ANSWERS_SHARED : PASS_BYTES_MAX;
    while (!owner && s->events_at < s->events_count && s->moved < PASS_BYTES_MAX && s->answered < answers_max) {
        hf_link *k = link_at(s, s->events_at);
        if (k && k->bulk && replies && is_shared) break; /* what waits for the log is to be written first */
        s->events_at++;
        if (k) k->listed = 0;
        if (k && k->reading && k->owner) { /* else gone or held since the set was asked */
            Py_INCREF(k);
            if (!serve_link(s, l, k, &replies, pulls, now, &at, &count)) { owner = k->owner; Py_XINCREF(owner); }
            Py_DECREF(k);
        }
        /* who was answered at once may have asked again; what waits for the log is to be written first */
        if (s->events_at == s->events_count && !owner && !replies && s->served < EVENTS_MAX) look(s);
    }
    if (replies) {
        replies->data = l->waiting;
        l->waiting = NULL;
        l->waiting_size = l->waiting_room = 0;
    }
    return Py_BuildValue("(NNNnn)", replies ? (PyObject *)replies : Py_NewRef(Py_None), pulls, owner ? owner : Py_NewRef(Py_None), at, count);
}

static PyObject *sockets_close(hf_sockets *s, PyObject *ignored) {
    (void)ignored;
    for (int i = 0; i < s->links_room; i++) if (s->links[i]) leave(s, s->links[i]);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    s->epoll_fd = -1;
    s->events_count = s->events_at = 0;
    Py_RETURN_NONE;
}

static void sockets_dealloc(hf_sockets *s) {
    if (s->buffer.obj) { Py_XDECREF(sockets_close(s, NULL)); PyBuffer_Release(&s->buffer); }
    PyMem_Free(s->links);
    Py_TYPE(s)->tp_free((PyObject *)s);
}

static PyObject *sockets_fileno(hf_sockets *s, PyObject *ignored) { (void)ignored; return PyLong_FromLong(s->epoll_fd); }

static PyMethodDef sockets_methods[] = {
    {"add", (PyCFunction)sockets_add, METH_VARARGS, "add(fd, connection, born_host) -> Link"},
    {"pause", (PyCFunction)sockets_pause, METH_O, "pause(link): read no more from it"},
    {"resume", (PyCFunction)sockets_resume, METH_O, "resume(link): read on"},
    {"leave", (PyCFunction)sockets_leave, METH_VARARGS, "leave(link, gone): before its descriptor is closed"},
    {"receive", (PyCFunction)sockets_receive, METH_VARARGS, "receive(lane, now_ms, again) -> (replies, pulls, connection, at, count)"},
    {"fileno", (PyCFunction)sockets_fileno, METH_NOARGS, "Readable when a peer has something to read."},
    {"close", (PyCFunction)sockets_close, METH_NOARGS, "Leave every peer to its transport."},
    {NULL}};
PyTypeObject hf_sockets_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Sockets", .tp_basicsize = sizeof(hf_sockets), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)sockets_init, .tp_dealloc = (destructor)sockets_dealloc,
    .tp_methods = sockets_methods};

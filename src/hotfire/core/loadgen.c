/* A generator of load: many requests under way on many connections, on an epoll loop of its own, without the interpreter.

   It is given connected sockets and frames that differ from one request to the next only in digits of a fixed width, which it
   writes over: the opaque, a time, keys. So it knows where replies tell their code, opaque and next offset, and where a
   record has its offset and body, and nothing else of the protocol. Every length a peer announces is held against a bound
   before it is believed; a peer that breaks one has its connection closed and counted. plain_load.py tells the same story. */
#include "loadgen.h"
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OPAQUE_FIRST 1000000000u   /* ten digits, as all after it: a slot's opaque never changes its width */
#define HEADER_BYTES_MAX (2u << 20)
#define READ_BYTES (1u << 18)
#define REMEMBERED_BYTES_MAX (1u << 16)
#define EVENTS_MAX 256
#define FOUND 0
#define NOT_FOUND 19               /* codes of replies to pulls */
#define OFFSET_MOVED 21
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20
#define NS_PER_S 1000000000ull

typedef struct { int32_t code; uint32_t opaque; int64_t next; const uint8_t *body; size_t body_size; } reply;

static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * NS_PER_S + (uint64_t)at.tv_nsec;
}

static uint64_t wall_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME_COARSE, &at);
    return (uint64_t)at.tv_sec * 1000 + (uint64_t)at.tv_nsec / 1000000;
}

/* ---- latencies: buckets as wide as 1/64 of what they hold ---- */

static void count_latency(uint64_t *buckets, uint64_t ns) {
    if (ns >> LOAD_LATENCY_BITS) ns = (1ull << LOAD_LATENCY_BITS) - 1;
    int above = ns >> 7 ? 63 - __builtin_clzll(ns) - 6 : 0;
    buckets[above * 64 + (int)(ns >> above)]++;
}

/* ---- buffers ---- */

static uint8_t *room(load_buffer *b, size_t more) {
    if (b->done && b->size + more > b->capacity) {
        memmove(b->bytes, b->bytes + b->done, b->size - b->done);
        b->size -= b->done;
        b->done = 0;
    }
    if (b->size + more > b->capacity) {
        size_t capacity = b->capacity * 2 > b->size + more ? b->capacity * 2 : b->size + more;
        uint8_t *bytes = realloc(b->bytes, capacity);
        if (!bytes) return NULL;
        b->bytes = bytes;
        b->capacity = capacity;
    }
    return b->bytes + b->size;
}

static void hang_up(hf_load *l, load_peer *p) {
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    p->is_lost = 1;
    l->lost++;
    l->unanswered += p->busy * p->messages;
    if (!p->is_reader) l->in_flight -= p->busy;
    p->busy = 0;
}

/* ---- asking ---- */

static void write_digits(uint8_t *at, int digits, uint64_t value) {
    while (digits--) { at[digits] = (uint8_t)('0' + value % 10); value /= 10; }
}

static void write_key(uint8_t *at, uint64_t number) { /* the last 16 of 32 digits; the first are the run's own */
    static const char names[] = "0123456789ABCDEF";
    for (int i = LOAD_KEY_DIGITS; i-- > LOAD_KEY_DIGITS - 16; number >>= 4) at[i] = (uint8_t)names[number & 15];
}

/* One request into the connection's buffer, in the slot given; 0 when there is no memory for it. */
static int ask(hf_load *l, load_peer *p, const load_frame *f, int slot, int64_t offset, uint64_t at_ns) {
    uint8_t *out = room(&p->out, f->size);
    if (!out) return 0;
    memcpy(out, f->bytes, f->size);
    uint32_t opaque = OPAQUE_FIRST + (uint32_t)slot;
    if (f->bytes[4] == 0) write_digits(out + f->opaque_at, 10, opaque);
    else put32(out + f->opaque_at, opaque);
    if (f->time_at) write_digits(out + f->time_at, LOAD_TIME_DIGITS, wall_ms());
    if (f->offset_at) write_digits(out + f->offset_at, LOAD_OFFSET_DIGITS, (uint64_t)offset);
    for (int i = 0; i < f->keys_count; i++) write_key(out + f->keys_at[i], l->numbered++);
    for (int i = 0; i < f->clocks_count; i++) put64(out + f->clocks_at[i], at_ns);
    p->out.size += f->size;
    p->slots[slot] = (load_slot){at_ns, 1};
    p->busy++;
    return 1;
}

static int send_next(hf_load *l, load_peer *p, uint64_t at_ns) {
    int slot = p->free[--p->free_count];
    const load_frame *f = &p->frames[p->turn++ % (uint64_t)p->frames_count];
    if (!ask(l, p, f, slot, 0, at_ns)) return 0;
    l->asked += p->messages;
    l->in_flight++;
    return 1;
}

static int may_send(const hf_load *l) {
    return !l->is_stopped && (!l->sends_max || l->asked < l->sends_max);
}

/* Without a rate every free slot is filled at once; with one, a send has its time, and its latency counts from then. */
static int fill(hf_load *l, uint64_t now) {
    if (l->rate <= 0) {
        for (int i = 0; i < l->peers_count; i++) {
            load_peer *p = &l->peers[i];
            while (!p->is_reader && !p->is_lost && p->free_count && may_send(l))
                if (!send_next(l, p, now)) return 0;
        }
        return 1;
    }
    while (l->due_ns <= now && may_send(l)) {
        load_peer *p = NULL;
        for (int tried = 0; tried < l->peers_count && !p; tried++) {
            load_peer *next = &l->peers[l->next_peer++ % (uint64_t)l->peers_count];
            if (!next->is_reader && !next->is_lost && next->free_count) p = next;
        }
        if (!p) return 1; /* all windows are full: it goes out later, and counts from when it was due */
        if (!send_next(l, p, l->due_ns)) return 0;
        l->scheduled++;
        l->due_ns = l->began_ns + (uint64_t)((double)l->scheduled * (double)p->messages / l->rate * 1e9);
    }
    return 1;
}

static int ask_cursors(hf_load *l, load_peer *p) {
    uint64_t now = now_ns();
    for (int i = 0; i < p->frames_count; i++)
        if (!p->slots[i].is_busy && !p->cursors[i].is_over && !ask(l, p, &p->frames[i], i, p->cursors[i].offset, now)) return 0;
    return 1;
}

/* ---- answers ---- */

static int number_after(const uint8_t *p, size_t size, const char *name, int64_t *out) {
    const uint8_t *at = memmem(p, size, name, strlen(name)), *end = p + size;
    if (!at) return 0;
    at += strlen(name);
    const uint8_t *start = at;
    while (at < end && at - start < 20 && ((*at >= '0' && *at <= '9') || *at == '-')) at++;
    return hf_parse_int(start, (size_t)(at - start), INT64_MIN, INT64_MAX, out);
}

static int read_binary_reply(const uint8_t *p, size_t size, reply *r) {
    if (size < 21) return 0;
    r->code = (int16_t)get16(p);
    r->opaque = get32(p + 5);
    const uint8_t *at = memmem(p, size, "\0\017nextBeginOffset", 17), *end = p + size;
    if (at && end - at >= 21) {
        uint32_t digits = get32(at + 17);
        if (digits > 20 || digits > (size_t)(end - at - 21) || !hf_parse_int(at + 21, digits, 0, INT64_MAX, &r->next)) r->next = -1;
    }
    return 1;
}

static int read_reply(const uint8_t *frame, uint32_t length, reply *r) {
    uint32_t mark = get32(frame + 4), header_size = mark & 0xffffff;
    if (header_size > length - 4 || header_size > HEADER_BYTES_MAX) return 0;
    const uint8_t *header = frame + 8;
    *r = (reply){.next = -1, .body = header + header_size, .body_size = length - 4 - header_size};
    if (mark >> 24 == 1) return read_binary_reply(header, header_size, r);
    int64_t code, opaque;
    /* a quote inside a text is escaped, so that no text holds these */
    if (mark >> 24 || !number_after(header, header_size, "\"code\":", &code) || !number_after(header, header_size, "\"opaque\":", &opaque)) return 0;
    if (code < INT32_MIN || code > INT32_MAX || opaque < 0 || opaque > UINT32_MAX) return 0;
    r->code = (int32_t)code;
    r->opaque = (uint32_t)opaque;
    if (!number_after(header, header_size, "\"nextBeginOffset\":\"", &r->next) || r->next < 0) r->next = -1;
    return 1;
}

static void count_code(hf_load *l, int32_t code, uint64_t messages) {
    int i = 0;
    while (i < l->codes_count && l->codes[i].code != code) i++;
    if (i == LOAD_CODES_MAX) i--; /* the last stands for all others */
    else if (i == l->codes_count) l->codes[l->codes_count++] = (load_code){code, 0};
    l->codes[i].count += messages;
}

static void remember(hf_load *l, const uint8_t *frame, size_t size) {
    if (l->refusal || size > REMEMBERED_BYTES_MAX) return;
    l->refusal = malloc(size);
    if (l->refusal) { memcpy(l->refusal, frame, size); l->refusal_bytes = size; }
}

/* The records of a pull: each whole, in place, and if it is this run's, how late it is. 0 when they are no records. */
static int read_records(hf_load *l, load_cursor *c, const reply *r) {
    const uint8_t *p = r->body, *end = p + r->body_size;
    uint64_t now = now_ns();
    while (p < end) {
        if (end - p < 48) return 0;
        uint32_t size = get32(p), flags = get32(p + 36);
        if (size < 91 || size > (size_t)(end - p)) return 0;
        size_t body_at = 48 + (flags & BORN_HOST_V6 ? 20 : 8) + 8 + (flags & STORE_HOST_V6 ? 20 : 8) + 4 + 8;
        if (body_at + 4 > size) return 0;
        uint32_t body_size = get32(p + body_at);
        if (body_size > size - body_at - 4) return 0;
        int64_t offset = (int64_t)get64(p + 20);
        if (offset < c->offset) l->repeated++;
        else {
            l->missed += (uint64_t)(offset - c->offset);
            c->offset = offset + 1;
        }
        const uint8_t *body = p + body_at + 4;
        if (body_size >= 16 && !memcmp(body, l->mark, 8)) {
            uint64_t sent = get64(body + 8);
            count_latency(l->delivery, now > sent ? now - sent : 0);
            l->delivered_own++;
        }
        l->delivered++;
        l->delivered_bytes += body_size;
        p += size;
    }
    return 1;
}

static int take_pull(hf_load *l, load_peer *p, int slot, const reply *r) {
    load_cursor *c = &p->cursors[slot];
    if (r->code == FOUND && !read_records(l, c, r)) return 0;
    if (r->code == FOUND) { if (r->next > c->offset) c->offset = r->next; return 1; }
    if (r->code < NOT_FOUND || r->code > OFFSET_MOVED) { c->is_over = 1; return 1; }
    if (r->code == NOT_FOUND && c->again_at >= 0) c->offset = c->again_at;
    else if (r->next >= 0) c->offset = r->next;
    return 1;
}

static int take_reply(hf_load *l, load_peer *p, const uint8_t *frame, uint32_t length) {
    reply r;
    if (!read_reply(frame, length, &r)) return 0;
    uint32_t slot = r.opaque - OPAQUE_FIRST;
    if (slot >= (uint32_t)p->slots_count || !p->slots[slot].is_busy) { l->stray++; return 1; } /* a question, or one reply too many */
    if (p->is_reader || r.code == FOUND) count_latency(l->answer, now_ns() - p->slots[slot].sent_ns); /* a no is quickly said */
    p->slots[slot].is_busy = 0;
    p->busy--;
    l->answered++;
    count_code(l, r.code, p->is_reader ? 1 : p->messages);
    int is_pull_code = p->is_reader && r.code >= NOT_FOUND && r.code <= OFFSET_MOVED;
    if (r.code != FOUND && !is_pull_code) remember(l, frame, 4 + (size_t)length);
    if (p->is_reader) return take_pull(l, p, (int)slot, &r);
    if (r.code == FOUND) l->acked += p->messages;
    l->in_flight--;
    p->free[p->free_count++] = (int)slot;
    return 1;
}

/* What has arrived; 0 when the connection is of no more use. */
static int take(hf_load *l, load_peer *p) {
    uint8_t *at = room(&p->in, READ_BYTES);
    if (!at) return 0;
    ssize_t n = recv(p->fd, at, READ_BYTES, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return 0;
    p->in.size += (size_t)n;
    while (p->in.size - p->in.done >= 8) {
        const uint8_t *frame = p->in.bytes + p->in.done;
        uint32_t length = get32(frame);
        if (length < 4 || length > l->frame_bytes_max) return 0;
        if (p->in.size - p->in.done < 4 + (size_t)length) break;
        if (!take_reply(l, p, frame, length)) return 0;
        p->in.done += 4 + (size_t)length;
    }
    if (p->in.done == p->in.size) p->in.done = p->in.size = 0;
    return 1;
}

static int push(hf_load *l, load_peer *p) {
    while (p->out.done < p->out.size) {
        ssize_t n = send(p->fd, p->out.bytes + p->out.done, p->out.size - p->out.done, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return 0;
        if (n < 0) break;
        p->out.done += (size_t)n;
    }
    if (p->out.done == p->out.size) p->out.done = p->out.size = 0;
    int wants_out = p->out.size > 0;
    if (wants_out == p->wants_out) return 1;
    struct epoll_event wanted = {EPOLLIN | (wants_out ? EPOLLOUT : 0), {.ptr = p}};
    p->wants_out = wants_out;
    return !epoll_ctl(l->epoll, EPOLL_CTL_MOD, p->fd, &wanted);
}

/* ---- the loop ---- */

int load_is_over(const hf_load *l) {
    if (l->deliveries_max && l->delivered >= l->deliveries_max) return 1;
    int readers = 0, writers = 0;
    for (int i = 0; i < l->peers_count; i++)
        if (!l->peers[i].is_lost) {
            if (!l->peers[i].is_reader) writers++;
            else if (l->peers[i].busy) readers++;
        }
    return !readers && !l->in_flight && (!writers || !may_send(l));
}

static void wait_for_events(hf_load *l, uint64_t until, uint64_t now) {
    uint64_t next = until;
    if (l->rate > 0 && may_send(l) && l->due_ns < next && l->due_ns > now) next = l->due_ns;
    uint64_t ns = next > now ? next - now : 0;
    struct timespec timeout = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    struct pollfd one = {l->epoll, POLLIN, 0};
    if (ppoll(&one, 1, &timeout, NULL) < 0) l->is_interrupted = errno == EINTR;
}

/* Until the time given, or all is done, or a signal came. 0 for no memory. */
int load_run(hf_load *l, double seconds) {
    uint64_t now = now_ns(), until = now + (uint64_t)(seconds * 1e9);
    struct epoll_event events[EVENTS_MAX];
    l->is_interrupted = 0;
    if (!l->began_ns) l->began_ns = l->due_ns = now;
    for (;;) {
        if (!fill(l, now)) return 0;
        for (int i = 0; i < l->peers_count; i++) {
            load_peer *p = &l->peers[i];
            if (p->is_lost) continue;
            if (p->is_reader && p->busy < (uint64_t)p->frames_count && !ask_cursors(l, p)) return 0;
            if (p->out.size > p->out.done && !p->wants_out && !push(l, p)) hang_up(l, p);
        }
        if (load_is_over(l) || now >= until || l->is_interrupted) return 1;
        wait_for_events(l, until, now);
        int ready = epoll_wait(l->epoll, events, EVENTS_MAX, 0);
        for (int i = 0; i < ready; i++) {
            load_peer *p = events[i].data.ptr;
            if (p->is_lost) continue;
            if (events[i].events & ~(uint32_t)EPOLLOUT && !take(l, p)) hang_up(l, p);
            else if (events[i].events & EPOLLOUT && !push(l, p)) hang_up(l, p);
        }
        now = now_ns();
    }
}

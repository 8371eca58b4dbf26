// What our load generators share: connections with buffers, frames with JSON headers, a latency histogram.
// Loopback tools: a peer that misbehaves ends the run with a sentence and a status, nothing is retried.
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_USAGE = 2, STATUS_CONNECT = 3, STATUS_PEER = 4, STATUS_REFUSED = 5 };
enum { HEADER_BYTES_MAX = 2048, FRAME_BYTES_MAX = 64 << 20, COMPLAINTS_MAX = 3 };
#define NS_PER_S 1000000000ull

typedef struct { char *bytes; size_t size, done, capacity; } buffer;
typedef struct { int fd; buffer in, out; uint32_t opaque; uint64_t *sent_at; } peer;
typedef struct { char *header, *body; size_t header_size, body_size; int code; uint32_t opaque; } reply;

static void fail(int status, const char *what) { fprintf(stderr, "%s: %s\n", what, strerror(errno)); exit(status); }

static uint64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * NS_PER_S + (uint64_t)at.tv_nsec;
}

static long long wall_ms(void) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME_COARSE, &at);
  return (long long)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

static void put32(char *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }
static uint32_t get32(const char *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }

// Room for `more` bytes behind what is there; what was already taken is moved out of the way first.
static char *room(buffer *b, size_t more) {
  if (b->done && b->size + more > b->capacity) {
    memmove(b->bytes, b->bytes + b->done, b->size - b->done);
    b->size -= b->done;
    b->done = 0;
  }
  if (b->size + more > b->capacity) {
    b->capacity = b->capacity * 2 + more;
    b->bytes = realloc(b->bytes, b->capacity);
    if (!b->bytes) fail(STATUS_PEER, "realloc");
  }
  return b->bytes + b->size;
}

static void join(peer *p, const char *host, int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int one = 1;
  memset(p, 0, sizeof *p);
  if (inet_pton(AF_INET, host, &to.sin_addr) != 1) { fprintf(stderr, "no IPv4 address: %s\n", host); exit(STATUS_USAGE); }
  p->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (p->fd < 0 || connect(p->fd, (struct sockaddr *)&to, sizeof to)) fail(STATUS_CONNECT, "connect");
  setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(p->fd, F_SETFL, O_NONBLOCK);
  p->sent_at = calloc(65536, sizeof *p->sent_at);
}

// A frame is begun with room for any header and `body_size` bytes, its header printed at `+ 8`, then ended.
static char *begin_frame(peer *p, size_t body_size) { return room(&p->out, 8 + HEADER_BYTES_MAX + body_size); }

static void end_frame(peer *p, char *frame, int header_size, const char *body, size_t body_size) {
  if (header_size < 0 || header_size >= HEADER_BYTES_MAX) { fprintf(stderr, "header too long\n"); exit(STATUS_USAGE); }
  put32(frame, (uint32_t)(4 + (size_t)header_size + body_size));
  put32(frame + 4, (uint32_t)header_size);
  if (body_size) memcpy(frame + 8 + header_size, body, body_size);
  p->out.size += 8 + (size_t)header_size + body_size;
  p->sent_at[p->opaque++ & 65535] = now_ns();
}

static void push(peer *p) {
  while (p->out.done < p->out.size) {
    ssize_t n = send(p->fd, p->out.bytes + p->out.done, p->out.size - p->out.done, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) fail(STATUS_PEER, "send");
    p->out.done += (size_t)n;
  }
  p->out.done = p->out.size = 0;
}

// Takes what has arrived; false when there was nothing.
static int take(peer *p) {
  char *at = room(&p->in, 1 << 18);
  ssize_t n = recv(p->fd, at, (1 << 18) - 1, 0);  // a byte is left: headers are ended with a zero while read
  if (n < 0 && errno == EAGAIN) return 0;
  if (n < 0) fail(STATUS_PEER, "recv");
  if (n == 0) { fprintf(stderr, "the broker hung up\n"); exit(STATUS_PEER); }
  p->in.size += (size_t)n;
  return 1;
}

static long long number_after(const char *text, const char *name, long long otherwise) {
  const char *at = strstr(text, name);
  if (!at) return otherwise;
  at += strlen(name);
  at += strspn(at, "\": ");
  return atoll(at);
}

// The next whole frame, its header ended with a zero by `keep`, which the caller puts back with `pass`.
static int next_reply(peer *p, reply *r, char *keep) {
  size_t there = p->in.size - p->in.done;
  char *frame = p->in.bytes + p->in.done;
  if (there < 8) return 0;
  uint32_t size = get32(frame), header = get32(frame + 4) & 0xffffff;
  if (size < 4 || size > FRAME_BYTES_MAX || header > size - 4) { fprintf(stderr, "frame of %u bytes, header of %u\n", size, header); exit(STATUS_PEER); }
  if (there < 4 + (size_t)size) { room(&p->in, 4 + size); return 0; }
  r->header = frame + 8;
  r->header_size = header;
  r->body = r->header + header;
  r->body_size = size - 4 - header;
  *keep = *r->body;
  *r->body = 0;
  r->code = (int)number_after(r->header, "\"code\"", -1);
  r->opaque = (uint32_t)number_after(r->header, "\"opaque\"", 0);
  return 1;
}

static void pass(peer *p, reply *r, char keep) {
  *r->body = keep;
  p->in.done = (size_t)(r->body + r->body_size - p->in.bytes);
  if (p->in.done == p->in.size) p->in.done = p->in.size = 0;
}

static void complain(const reply *r, uint64_t *refused) {
  if ((*refused)++ < COMPLAINTS_MAX) fprintf(stderr, "reply code %d: %.400s\n", r->code, r->header);
}

// Latencies in buckets of 10 us up to 4 s.
enum { BUCKETS = 400000, BUCKET_NS = 10000 };
static uint64_t buckets[BUCKETS];

static void count_latency(uint64_t ns) { ns /= BUCKET_NS; buckets[ns < BUCKETS ? ns : BUCKETS - 1]++; }

static double percentile_ms(double share) {
  uint64_t total = 0, seen = 0;
  for (int i = 0; i < BUCKETS; i++) total += buckets[i];
  for (int i = 0; i < BUCKETS; i++) {
    seen += buckets[i];
    if (total && (double)seen >= share * (double)total) return (i + 1) * (BUCKET_NS / 1e6);
  }
  return -1;
}

static void print_result(double rate, uint64_t acked, uint64_t refused) {
  printf("%.0f msg/s acked=%llu bad=%llu p50=%.2fms p90=%.2fms p99=%.2fms p99.9=%.2fms", rate,
         (unsigned long long)acked, (unsigned long long)refused, percentile_ms(.5), percentile_ms(.9),
         percentile_ms(.99), percentile_ms(.999));
}

#endif

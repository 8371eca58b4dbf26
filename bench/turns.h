// Some connections with so many pieces of work under way on each, for so long or so many of them. What a piece of
// work is, the generator says: `begin` queues its first request, `answered` looks at a reply and may queue the next.
// After the end no work is begun; what is under way is waited for, so that the broker can be asked what it has.
#ifndef BENCH_TURNS_H
#define BENCH_TURNS_H
#include "wire.h"

enum { DRAIN_S = 10, CONNS_MAX = 1024, WINDOW_MAX = 4096 };
static uint64_t acked, refused, wrong;
static int measuring;

static void begin(peer *p);
static int answered(peer *p, reply *r);  // 1: that piece of work is over. The header ends with a zero, the body is whole

// Finished pieces a second over the last three quarters of the time, or over all of it when `wanted` are to be done.
static double drive(const char *host, int port, int conns, int window, double seconds, uint64_t wanted) {
  if (conns < 1 || conns > CONNS_MAX || window < 1 || window > WINDOW_MAX || seconds <= 0) { fprintf(stderr, "a count is out of its range\n"); exit(STATUS_USAGE); }
  peer *peers = calloc((size_t)conns, sizeof *peers);
  struct pollfd *polls = calloc((size_t)conns, sizeof *polls);
  char *header = malloc(FRAME_BYTES_MAX);
  for (int i = 0; i < conns; i++) join(&peers[i], host, port);
  uint64_t start = now_ns(), until = start + (uint64_t)(seconds * 1e9), from = wanted ? start : start + (uint64_t)(seconds * .25 * 1e9);
  uint64_t now = start, begun = 0, under_way = 0, done = 0, done_before = 0, done_at_end = 0, ended = 0;
  measuring = wanted > 0;
  for (int i = 0; i < conns; i++) {
    for (int k = 0; k < window && (!wanted || begun < wanted); k++, begun++, under_way++) begin(&peers[i]);
    push(&peers[i]);
  }
  while (under_way && now < until + DRAIN_S * NS_PER_S) {
    for (int i = 0; i < conns; i++) polls[i] = (struct pollfd){peers[i].fd, (short)(POLLIN | (peers[i].out.done < peers[i].out.size ? POLLOUT : 0)), 0};
    poll(polls, (nfds_t)conns, 100);
    now = now_ns();
    if (!measuring && !ended && now >= from) { measuring = 1; from = now; done_before = done; }
    if (!ended && now >= until) { measuring = 0; ended = now; done_at_end = done; }
    for (int i = 0; i < conns; i++) {
      peer *p = &peers[i];
      reply r;
      char keep;
      if (polls[i].revents & ~POLLOUT) take(p);
      while (next_reply(p, &r, &keep)) {
        char *in_place = r.header;
        memcpy(header, in_place, r.header_size + 1);
        *r.body = keep;
        r.header = header;
        if (answered(p, &r)) {
          under_way--;
          done++;
          if (now < until && (!wanted || begun < wanted)) { begin(p); begun++; under_way++; }
        }
        r.header = in_place;
        pass(p, &r, keep);
      }
      push(p);
    }
  }
  if (!ended) { ended = now; done_at_end = done; }
  if (under_way) fprintf(stderr, "%llu were never answered\n", (unsigned long long)under_way);
  wrong += under_way + (wanted && !under_way ? wanted - begun : 0);
  return (double)(done_at_end - done_before) / ((double)(ended - from) / 1e9);
}

#endif

// timergen: messages with a time of delivery, sent as fast as they are taken, and a reader at the tail of each queue.
// usage: timergen HOST PORT TOPIC CONNS WINDOW BODY COUNT AHEAD_MS SPREAD_MS QUEUES BURST
// Each is due AHEAD_MS after it is sent, or with BURST 1 after the start, and up to SPREAD_MS later. TOPIC must be new.
// With BURST 2 they are not waited for: the run ends when all are taken.
// The latency is from when a message is due until a reader has it. A message that comes twice, not at all within
// GRACE_S of the last one's time, or more than EARLY_MAX_MS early (the reference rounds times down to the second)
// counts as bad. The rate is that of the intake; with BURST 1 of the delivery, from the first arrival to the last.
#include "records.h"

enum { CONNS_MAX = 64, QUEUES_MAX = 64, WINDOW_MAX = 1024, BODY_MIN = 24, BODY_MAX = 1 << 20, COUNT_MAX = 1 << 24 };
enum { EARLY_MAX_MS = 1000, GRACE_S = 60, BATCH = 32 };
static const char *topic;
static char *body, *came;
static size_t body_size;
static uint64_t acked, refused, delivered, wrong, count, first_came_at, last_came_at;
static long long ahead_ms, spread_ms, began_ms, last_due_ms;
static int queues, is_burst, is_left;

static void write_one(peer *p, uint64_t n) {
  char *frame = begin_frame(p, body_size);
  // 7919 is prime: times go all over the spread, and neighbours in time are not neighbours in the log
  long long due = (is_burst ? began_ms : wall_ms()) + ahead_ms + (long long)(n * 7919 % (uint64_t)(spread_ms + 1));
  if (due > last_due_ms) last_due_ms = due;
  memcpy(body, &n, sizeof n);
  memcpy(body + 8, &due, sizeof due);
  int header = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":310,\"extFields\":{\"a\":\"timergen\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\","
    "\"i\":\"UNIQ_KEY\\u0001%016X%016llX\\u0002WAIT\\u0001true\\u0002TIMER_DELIVER_MS\\u0001%lld\\u0002\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},"
    "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, (int)(n % (uint64_t)queues), wall_ms(), (unsigned)getpid(), (unsigned long long)n, due, p->opaque);
  end_frame(p, frame, header, body, body_size);
}

static void ask(peer *p, int queue, long long offset) {
  char *frame = begin_frame(p, 0);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":11,\"extFields\":{\"consumerGroup\":\"timergen\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\",\"maxMsgNums\":\"%d\","
    "\"sysFlag\":\"6\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"15000\",\"subscription\":\"*\",\"subVersion\":\"1\",\"expressionType\":\"TAG\"},"
    "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, queue, offset, BATCH, p->opaque);
  end_frame(p, frame, size, 0, 0);
  push(p);
}

// How many records a reply has, each of them checked; -1 when it is damaged.
static int read_records(const reply *r, int queue) {
  long long now = wall_ms(), due;
  int records = 0;
  uint64_t n;
  last_came_at = now_ns();
  if (!first_came_at) first_came_at = last_came_at;
  for (size_t o = 0, size; o < r->body_size; o += size, records++) {
    if (!(size = record_size(r->body + o, r->body_size - o, body_size))) return -1;
    memcpy(&n, r->body + o + RECORD_BODY, sizeof n);
    memcpy(&due, r->body + o + RECORD_BODY + 8, sizeof due);
    if (n >= count || n % (uint64_t)queues != (uint64_t)queue || memcmp(r->body + o + RECORD_BODY + 16, body + 16, body_size - 16)) return -1;
    wrong += came[n] || now < due - EARLY_MAX_MS;
    delivered += !came[n];
    came[n] = 1;
    count_latency(now > due ? (uint64_t)(now - due) * 1000000 : 0);
  }
  return records;
}

int main(int words_count, char **words) {
  if (words_count < 12) { fprintf(stderr, "usage: timergen HOST PORT TOPIC CONNS WINDOW BODY COUNT AHEAD_MS SPREAD_MS QUEUES BURST\n"); return STATUS_USAGE; }
  topic = words[3];
  int port = atoi(words[2]), conns = atoi(words[4]), window = atoi(words[5]);
  body_size = (size_t)atoi(words[6]), count = strtoull(words[7], 0, 10), ahead_ms = atoll(words[8]), spread_ms = atoll(words[9]);
  queues = atoi(words[10]), is_burst = atoi(words[11]) == 1, is_left = atoi(words[11]) == 2;
  if (conns < 1 || conns > CONNS_MAX || window < 1 || window > WINDOW_MAX || body_size < BODY_MIN || body_size > BODY_MAX || count < 1 ||
      count > COUNT_MAX || ahead_ms < 0 || spread_ms < 0 || queues < 1 || queues > QUEUES_MAX) {
    fprintf(stderr, "timergen: a count is out of its range\n");
    return STATUS_USAGE;
  }
  came = calloc(count, 1);
  body = malloc(body_size);
  for (size_t k = 0; k < body_size; k++) body[k] = (char)('a' + k * 7 % 26);
  peer writers[CONNS_MAX], readers[QUEUES_MAX];
  long long next[QUEUES_MAX] = {0};
  struct pollfd polls[CONNS_MAX + QUEUES_MAX];
  for (int i = 0; i < queues; i++) { join(&readers[i], words[1], port); ask(&readers[i], i, 0); }
  for (int i = 0; i < conns; i++) join(&writers[i], words[1], port);
  uint64_t began = now_ns(), sent = 0, taken_at = 0;
  last_due_ms = began_ms = wall_ms();
  for (int i = 0; i < conns; i++) {
    for (int k = 0; k < window && sent < count; k++) write_one(&writers[i], sent++);
    push(&writers[i]);
  }
  while ((acked + refused < count || (delivered < acked && !is_left)) && wall_ms() < last_due_ms + GRACE_S * 1000) {
    for (int i = 0; i < conns + queues; i++) {
      peer *p = i < conns ? &writers[i] : &readers[i - conns];
      polls[i] = (struct pollfd){p->fd, (short)(POLLIN | (p->out.done < p->out.size ? POLLOUT : 0)), 0};
    }
    poll(polls, (nfds_t)(conns + queues), 100);
    for (int i = 0; i < conns + queues; i++) {
      int queue = i - conns;
      peer *p = queue < 0 ? &writers[i] : &readers[queue];
      reply r;
      char keep;
      if (polls[i].revents & ~POLLOUT) take(p);
      while (next_reply(p, &r, &keep)) {
        int is_pull_empty = queue >= 0 && (r.code == 19 || r.code == 20), records = 0;
        if (r.code != 0 && !is_pull_empty) { complain(&r, &refused); if (queue >= 0) return STATUS_PEER; }
        else if (queue < 0) acked++;
        *r.body = keep;
        if (queue >= 0 && r.code == 0) records = read_records(&r, queue);
        if (records < 0) { fprintf(stderr, "queue %d, offset %lld: what came was not sent\n", queue, next[queue]); return STATUS_PEER; }
        pass(p, &r, keep);
        if (queue >= 0) ask(p, queue, next[queue] += records);
        else if (sent < count) write_one(p, sent++);
      }
      push(p);
    }
    if (!taken_at && acked + refused == count) taken_at = now_ns();
  }
  double intake_s = (double)((taken_at ? taken_at : now_ns()) - began) / 1e9, delivery_s = (double)(last_came_at - first_came_at) / 1e9;
  if (delivered < acked && !is_left) { fprintf(stderr, "%llu of %llu came\n", (unsigned long long)delivered, (unsigned long long)acked); wrong += acked - delivered; }
  print_result((double)acked / (is_burst ? (delivery_s > 0 ? delivery_s : 1) : intake_s), acked, refused);
  printf(" delivered=%llu intake=%.0f/s\n", (unsigned long long)delivered, (double)acked / intake_s);
  return wrong ? STATUS_PEER : refused ? STATUS_REFUSED : 0;
}

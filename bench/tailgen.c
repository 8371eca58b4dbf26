// tailgen: one writer, and groups that wait at the tail of its queue with long polls; how late each message is.
// usage: tailgen HOST PORT TOPIC GROUPS RATE WINDOW BODY SECONDS FIRST [WARM]
// Queue 0 of TOPIC is written and read from offset FIRST on. RATE 0: as fast as WINDOW in flight are answered;
// otherwise so many a second. The latency is from a message's sending to its arrival in a group, over the time
// after WARM seconds, a quarter of it unless told. SIGTERM is an early end, but not before WARM is over. A gap or a repetition in a group's offsets counts as bad, and so does what had
// not arrived within GRACE_S of the end. With 0 GROUPS nobody reads, and the latency is that of the answers.
#include "wire.h"
#include <signal.h>

enum { GROUPS_MAX = 64, WINDOW_MAX = 1024, BODY_MIN = 8, BODY_MAX = 1 << 20, GRACE_S = 5, BATCH = 32 };
enum { RECORD_QUEUE_OFFSET = 20, RECORD_BODY_SIZE = 84, RECORD_BODY = 88 };
static const char *topic;
static uint64_t acked, refused, delivered, wrong, measured_from;
static volatile sig_atomic_t told_to_end;

static void end_early(int signal_number) { told_to_end = signal_number; }

static void ask(peer *p, int group, long long offset) {
  char *frame = begin_frame(p, 0);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":11,\"extFields\":{\"consumerGroup\":\"tail-%d\",\"topic\":\"%s\",\"queueId\":\"0\","
    "\"queueOffset\":\"%lld\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"6\",\"commitOffset\":\"0\","
    "\"suspendTimeoutMillis\":\"15000\",\"subscription\":\"*\",\"subVersion\":\"1\",\"expressionType\":\"TAG\"},"
    "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    group, topic, offset, BATCH, p->opaque);
  end_frame(p, frame, size, 0, 0);
  push(p);
}

static void write_one(peer *p, char *body, size_t size) {
  static uint64_t number;
  char *frame = begin_frame(p, size);
  uint64_t at = now_ns();
  memcpy(body, &at, sizeof at);
  int header = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":310,\"extFields\":{\"a\":\"tailgen\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"1\",\"e\":\"0\",\"f\":\"0\","
    "\"g\":\"%lld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%016X%016llX\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002\","
    "\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
    "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, wall_ms(), (unsigned)getpid(), (unsigned long long)number++, p->opaque);
  end_frame(p, frame, header, body, size);
  push(p);
}

// The records of one reply; the next offset to ask for.
static long long read_records(const reply *r, char keep, long long expected) {
  uint64_t now = now_ns(), at;
  *r->body = keep;
  for (size_t o = 0; o < r->body_size;) {
    const char *record = r->body + o;
    uint32_t size = r->body_size - o < RECORD_BODY + BODY_MIN ? 0 : get32(record);
    if (size < RECORD_BODY + BODY_MIN || size > r->body_size - o) { wrong++; break; }
    long long offset = (long long)(((uint64_t)get32(record + RECORD_QUEUE_OFFSET) << 32) | get32(record + RECORD_QUEUE_OFFSET + 4));
    wrong += offset != expected;
    memcpy(&at, record + RECORD_BODY, sizeof at);
    if (at >= measured_from) count_latency(now - at);
    expected = offset + 1;
    delivered++;
    o += size;
  }
  return expected;
}

int main(int count, char **words) {
  signal(SIGTERM, end_early);
  if (count < 10) { fprintf(stderr, "usage: tailgen HOST PORT TOPIC GROUPS RATE WINDOW BODY SECONDS FIRST [WARM]\n"); return STATUS_USAGE; }
  topic = words[3];
  int groups = atoi(words[4]), window = atoi(words[6]), body_size = atoi(words[7]), port = atoi(words[2]);
  double rate = atof(words[5]), seconds = atof(words[8]), warm = count > 10 ? atof(words[10]) : seconds * .25;
  if (groups < 0 || groups > GROUPS_MAX || window < 1 || window > WINDOW_MAX || body_size < BODY_MIN || body_size > BODY_MAX || warm < 0 || seconds <= warm) {
    fprintf(stderr, "tailgen: a count is out of its range\n");
    return STATUS_USAGE;
  }
  char *body = malloc((size_t)body_size);
  memset(body, 'a', (size_t)body_size);
  peer writer, readers[GROUPS_MAX];
  long long next[GROUPS_MAX];
  struct pollfd polls[GROUPS_MAX + 1];
  join(&writer, words[1], port);
  for (int i = 0; i < groups; i++) { join(&readers[i], words[1], port); ask(&readers[i], i, next[i] = atoll(words[9])); }
  usleep(300000);  // the groups are waiting before the first message comes
  uint64_t began = now_ns(), until = began + (uint64_t)(seconds * 1e9), acked_before = 0, now = began, sent = 0;
  uint64_t stopped = 0;
  measured_from = began + (uint64_t)(warm * 1e9);
  int in_flight = 0, measuring = 0;
  while (now < until || ((in_flight || delivered < acked * (uint64_t)groups) && now < until + GRACE_S * NS_PER_S)) {
    if (!measuring && now >= measured_from) { measuring = 1; acked_before = acked; }
    if (told_to_end && now > measured_from && now < until) until = now;
    if (!stopped && now >= until) stopped = acked;
    uint64_t due = rate > 0 ? (uint64_t)((double)(now - began) / 1e9 * rate) + 1 : UINT64_MAX;
    for (; now < until && in_flight < window && sent < due; sent++, in_flight++) write_one(&writer, body, (size_t)body_size);
    uint64_t wait = 100000000;
    if (rate > 0 && in_flight < window && now < until) {
      uint64_t at = began + (uint64_t)((double)sent / rate * 1e9);
      now = now_ns();
      wait = at > now ? at - now : 0;
    }
    for (int i = 0; i <= groups; i++) polls[i] = (struct pollfd){i < groups ? readers[i].fd : writer.fd, POLLIN, 0};
    struct timespec pause = {(time_t)(wait / NS_PER_S), (long)(wait % NS_PER_S)};
    ppoll(polls, (nfds_t)groups + 1, &pause, 0);
    for (int i = 0; i <= groups; i++) {
      peer *p = i < groups ? &readers[i] : &writer;
      reply r;
      char keep;
      if (!polls[i].revents || !take(p)) continue;
      while (next_reply(p, &r, &keep)) {
        int again = i < groups;
        if (i == groups) {
          in_flight--;
          if (r.code == 0) acked++; else complain(&r, &refused);
          uint64_t at = p->sent_at[r.opaque & 65535];
          if (!groups && at >= measured_from) count_latency(now_ns() - at);
        }
        else if (r.code == 0) next[i] = read_records(&r, keep, next[i]);
        else if (r.code != 19 && r.code != 20) { complain(&r, &refused); again = 0; }
        if (i == groups || r.code != 0) *r.body = keep;
        pass(p, &r, *r.body);
        if (again) ask(p, i, next[i]);
      }
    }
    now = now_ns();
  }
  wrong += acked * (uint64_t)groups > delivered ? acked * (uint64_t)groups - delivered : 0;
  print_result((double)((stopped ? stopped : acked) - acked_before) / ((double)(until - measured_from) / 1e9), acked, refused + wrong);
  printf(" delivered=%llu\n", (unsigned long long)delivered);
  return refused || wrong ? STATUS_REFUSED : 0;
}

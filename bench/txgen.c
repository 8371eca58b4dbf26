// txgen: transactions, so many under way on each of some connections: a half message (310), then its commit (37).
// usage: txgen HOST PORT TOPIC CONNS WINDOW BODY SECONDS QUEUES
// The commit is asked for with an answer, which Java's producer does not wait for: one is counted when it has come.
// Prints transactions per second over the last three quarters of the time; the latency is from the half to that answer.
#include "turns.h"

enum { BODY_MAX = 1 << 20, MESSAGE_ID_DIGITS = 32 };
typedef struct { uint64_t number, began; int is_end; } work;
static const char *topic;
static int queues;
static char *body;
static size_t body_size;
static work *table;  // of all connections, by descriptor and opaque

static work *work_of(const peer *p, uint32_t opaque) { return &table[((size_t)p->fd % CONNS_MAX) * (2 * WINDOW_MAX) + opaque % (2 * WINDOW_MAX)]; }

static void begin(peer *p) {
  static uint64_t number;
  char *frame = begin_frame(p, body_size);
  *work_of(p, p->opaque) = (work){number, now_ns(), 0};
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":310,\"extFields\":{\"a\":\"txgen\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"4\",\"g\":\"%lld\",\"h\":\"0\","
    "\"i\":\"TRAN_MSG\\u0001true\\u0002PGROUP\\u0001txgen\\u0002UNIQ_KEY\\u0001%016X%016llX\\u0002WAIT\\u0001true\\u0002\",\"j\":\"0\","
    "\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, (int)(number % (uint64_t)queues), wall_ms(), (unsigned)getpid(), (unsigned long long)number, p->opaque);
  number++;
  end_frame(p, frame, size, body, body_size);
}

// The id in the answer ends with the half's place in the log, in hexadecimal.
static int commit(peer *p, const reply *r, const work *half) {
  const char *id = strstr(r->header, "\"msgId\":\"");
  long long queue_offset = number_after(r->header, "\"queueOffset\"", -1);
  char place[17] = "";
  if (id && strcspn(id += strlen("\"msgId\":\""), "\"") == MESSAGE_ID_DIGITS) memcpy(place, id + MESSAGE_ID_DIGITS - 16, 16);
  if (!*place || queue_offset < 0) return 0;
  char *frame = begin_frame(p, 0);
  *work_of(p, p->opaque) = (work){half->number, half->began, 1};
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":37,\"extFields\":{\"topic\":\"%s\",\"producerGroup\":\"txgen\",\"tranStateTableOffset\":\"%lld\",\"commitLogOffset\":\"%llu\","
    "\"commitOrRollback\":\"8\",\"fromTransactionCheck\":\"false\",\"msgId\":\"%016X%016llX\",\"transactionId\":\"%016X%016llX\"},"
    "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, queue_offset, strtoull(place, 0, 16), (unsigned)getpid(), (unsigned long long)half->number, (unsigned)getpid(),
    (unsigned long long)half->number, p->opaque);
  end_frame(p, frame, size, 0, 0);
  return 1;
}

static int answered(peer *p, reply *r) {
  work found = *work_of(p, r->opaque);
  if (r->code != 0) { complain(r, &refused); return 1; }
  if (!found.is_end) {
    if (commit(p, r, &found)) return 0;
    complain(r, &wrong);
    return 1;
  }
  acked++;
  if (measuring) count_latency(now_ns() - found.began);
  return 1;
}

int main(int count, char **words) {
  if (count < 9) { fprintf(stderr, "usage: txgen HOST PORT TOPIC CONNS WINDOW BODY SECONDS QUEUES\n"); return STATUS_USAGE; }
  topic = words[3];
  queues = atoi(words[8]);
  body_size = (size_t)atoi(words[6]);
  if (queues < 1 || body_size < 1 || body_size > BODY_MAX) { fprintf(stderr, "txgen: a count is out of its range\n"); return STATUS_USAGE; }
  body = malloc(body_size);
  for (size_t k = 0; k < body_size; k++) body[k] = (char)('a' + k * 7 % 26);
  table = calloc((size_t)CONNS_MAX * 2 * WINDOW_MAX, sizeof *table);
  double rate = drive(words[1], atoi(words[2]), atoi(words[4]), atoi(words[5]), atof(words[7]), 0);
  print_result(rate, acked, refused);
  printf("\n");
  return wrong ? STATUS_PEER : refused ? STATUS_REFUSED : 0;
}

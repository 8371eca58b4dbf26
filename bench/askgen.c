// askgen: messages that can be told apart, and questions for some of them: pulls by a condition, queries by a key.
// usage: askgen HOST PORT TOPIC fill COUNT BODY QUEUES KEYS
//        askgen HOST PORT TOPIC sql COUNT BODY QUEUES READERS BATCH SECONDS GROUP VERSION
//        askgen HOST PORT TOPIC keys COUNT BODY KEYS CONNS WINDOW SECONDS
// Message n is in queue n % QUEUES, its body begins with n, and it has the properties a = n % 20, s = x or y, twenty of
// each in turn, and KEYS = key-(n % KEYS). The condition is the group's, known to the broker by its heartbeat:
// `a BETWEEN 0 AND 3 AND s = 'x'`, true of four in forty. READERS read each queue from its beginning again and again;
// whoever comes to its end must have had exactly what the condition is true of. A query asks for 32 at most and must
// bring 32, all of that key, or all there are. Rates are of messages that came by the condition, and of queries.
#include "records.h"
#include "turns.h"

enum { BODY_MIN = 16, BODY_MAX = 1 << 20, PERIOD = 40, MATCHING = 4, QUERY_MAX = 32, SYSTEM_BUSY = 2, PULL_NOT_FOUND = 19, PULL_AGAIN = 20 };
typedef struct { int queue; long long next; uint64_t matched, sum; } reader;
static const char *topic, *group, *version;
static int is_fill, is_sql, queues, readers, keys, batch;
static uint64_t count, fetched, rounds;
static char *body;
static size_t body_size;
static reader *table;

static reader *reader_of(const peer *p) { return &table[p->fd % CONNS_MAX]; }

// What a request is about, the number of a message or of a key, is in its opaque's place of this table.
static int *about(const peer *p, uint32_t opaque) {
  static int *asked;
  if (!asked) asked = calloc((size_t)CONNS_MAX * WINDOW_MAX, sizeof *asked);
  return &asked[(size_t)(p->fd % CONNS_MAX) * WINDOW_MAX + opaque % WINDOW_MAX];
}

static void fill(peer *p, uint64_t n) {
  char *frame = begin_frame(p, body_size), number[17];
  *about(p, p->opaque) = (int)n;
  snprintf(number, sizeof number, "%016llu", (unsigned long long)n);
  memcpy(body, number, 16);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":310,\"extFields\":{\"a\":\"askgen\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\","
    "\"i\":\"UNIQ_KEY\\u0001%016X%016llX\\u0002WAIT\\u0001true\\u0002a\\u0001%d\\u0002s\\u0001%s\\u0002KEYS\\u0001key-%d\\u0002\",\"j\":\"0\","
    "\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, (int)(n % (uint64_t)queues), wall_ms(), (unsigned)getpid(), (unsigned long long)n, (int)(n % 20),
    n / 20 % 2 ? "y" : "x", (int)(n % (uint64_t)keys), p->opaque);
  end_frame(p, frame, size, body, body_size);
}

static void pull(peer *p) {
  reader *at = reader_of(p);
  char *frame = begin_frame(p, 0);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":11,\"extFields\":{\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\",\"maxMsgNums\":\"%d\","
    "\"sysFlag\":\"0\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"15000\",\"subVersion\":\"%s\",\"expressionType\":\"SQL92\"},"
    "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    group, topic, at->queue, at->next, batch, version, p->opaque);
  end_frame(p, frame, size, 0, 0);
}

static void query(peer *p) {
  static uint64_t seed = 88172645463325252ull;
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  int key = *about(p, p->opaque) = (int)(seed % (uint64_t)keys);
  char *frame = begin_frame(p, 0);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":12,\"extFields\":{\"topic\":\"%s\",\"key\":\"key-%d\",\"maxNum\":\"%d\",\"beginTimestamp\":\"0\",\"endTimestamp\":\"%lld\","
    "\"_UNIQUE_KEY_QUERY\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    topic, key, QUERY_MAX, wall_ms() + 86400000, p->opaque);
  end_frame(p, frame, size, 0, 0);
}

static void begin(peer *p) {
  static int joined;
  static uint64_t number;
  if (is_fill) { fill(p, number++); return; }
  if (!is_sql) { query(p); return; }
  *reader_of(p) = (reader){.queue = joined++ % queues};
  pull(p);
}

// The number a record's body begins with; -1 when the rest of it is not what was sent.
static long long number_of(const char *record) {
  char digits[17] = "";
  memcpy(digits, record + RECORD_BODY, 16);
  if (memcmp(record + RECORD_BODY + 16, body + 16, body_size - 16)) return -1;
  return atoll(digits);
}

static void check_round(reader *at) {
  uint64_t each = count / PERIOD, in_queue = 0, sum = 0;
  for (int i = 0; i < MATCHING; i++)
    if (i % queues == at->queue) { in_queue += each; sum += each * (uint64_t)i + PERIOD * (each * (each - 1) / 2); }
  if (at->matched != in_queue || at->sum != sum) {
    if (wrong++ < COMPLAINTS_MAX) fprintf(stderr, "queue %d: %llu came by the condition, not %llu\n", at->queue, (unsigned long long)at->matched, (unsigned long long)in_queue);
  }
  at->next = 0;
  at->matched = at->sum = 0;
  rounds++;
}

static int pulled(peer *p, reply *r) {
  reader *at = reader_of(p);
  long long next = number_after(r->header, "\"nextBeginOffset\"", -1);
  if (measuring) count_latency(now_ns() - p->sent_at[r->opaque & 65535]);
  if (r->code == PULL_NOT_FOUND) check_round(at);
  else if ((r->code == 0 || r->code == PULL_AGAIN) && next > at->next) at->next = next;
  else { complain(r, &refused); return 1; }
  for (size_t o = 0, size; r->code == 0 && o < r->body_size; o += size) {
    long long n = (size = record_size(r->body + o, r->body_size - o, body_size)) ? number_of(r->body + o) : -1;
    if (n < 0 || n % PERIOD >= MATCHING || n % queues != at->queue) { complain(r, &wrong); return 1; }
    at->matched++;
    at->sum += (uint64_t)n;
    acked++;
    fetched += (uint64_t)measuring;
  }
  return 0;
}

static int found(peer *p, reply *r) {
  uint64_t there = (count + (uint64_t)keys - 1) / (uint64_t)keys, seen = 0, records = 0;
  int key = *about(p, r->opaque);
  if (r->code != 0) { complain(r, &refused); return 1; }
  for (size_t o = 0, size; o < r->body_size; o += size, records++) {
    long long n = (size = record_size(r->body + o, r->body_size - o, body_size)) ? number_of(r->body + o) : -1;
    if (n < 0 || n % keys != key || n / keys >= 64 || seen >> (n / keys) & 1) { complain(r, &wrong); return 1; }
    seen |= 1ull << (n / keys);
  }
  if (records != (there < QUERY_MAX ? there : QUERY_MAX)) { complain(r, &wrong); return 1; }
  if (measuring) count_latency(now_ns() - p->sent_at[r->opaque & 65535]);
  acked++;
  return 1;
}

// A reader never ends by itself: it goes on while there is time, and is over with its first answer after that.
static uint64_t reading_until;
static int answered(peer *p, reply *r) {
  if (!is_fill && !is_sql) return found(p, r);
  if (is_fill && r->code == 0) { acked++; return 1; }
  if (is_fill && r->code == SYSTEM_BUSY) { fill(p, (uint64_t)*about(p, r->opaque)); return 0; }
  if (is_fill) { complain(r, &wrong); return 1; }
  if (pulled(p, r) || now_ns() >= reading_until) return 1;
  pull(p);
  return 0;
}

int main(int words_count, char **words) {
  const char *kind = words_count > 8 ? words[4] : "";
  is_fill = !strcmp(kind, "fill"), is_sql = !strcmp(kind, "sql");
  if (!(is_fill || (is_sql && words_count > 12) || (!strcmp(kind, "keys") && words_count > 10))) { fprintf(stderr, "usage: askgen HOST PORT TOPIC fill|sql|keys COUNT BODY ...\n"); return STATUS_USAGE; }
  topic = words[3];
  count = strtoull(words[5], 0, 10);
  body_size = (size_t)atoi(words[6]);
  queues = is_fill || is_sql ? atoi(words[7]) : 1;
  keys = is_sql ? 1 : atoi(words[is_fill ? 8 : 7]);
  if (body_size < BODY_MIN || body_size > BODY_MAX || queues < 1 || keys < 1 || !count || count > 1 << 30 || count % PERIOD || PERIOD % queues || (!is_sql && count / (uint64_t)keys > 64)) {
    fprintf(stderr, "askgen: a count is out of its range\n");
    return STATUS_USAGE;
  }
  body = malloc(body_size);
  for (size_t k = 0; k < body_size; k++) body[k] = (char)('a' + k * 7 % 26);
  table = calloc(CONNS_MAX, sizeof *table);
  int port = atoi(words[2]);
  double rate;
  if (is_fill) rate = drive(words[1], port, 8, 16, 20 + (double)count / 2000, count);
  else if (is_sql) {
    readers = atoi(words[8]), batch = atoi(words[9]), group = words[11], version = words[12];
    double seconds = atof(words[10]);
    reading_until = now_ns() + (uint64_t)(seconds * 1e9);
    drive(words[1], port, queues * readers, 1, seconds, 0);
    rate = (double)fetched / (seconds * .75);
    if (!rounds) { fprintf(stderr, "no reader came to the end of a queue: more seconds, or fewer messages\n"); wrong++; }
  } else rate = drive(words[1], port, atoi(words[8]), atoi(words[9]), atof(words[10]), 0);
  print_result(rate, acked, refused);
  printf("\n");
  return wrong ? STATUS_PEER : refused ? STATUS_REFUSED : 0;
}

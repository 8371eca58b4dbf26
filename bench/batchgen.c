// batchgen: batches of messages (SEND_BATCH_MESSAGE, 320), so many in flight on each of some connections.
// usage: batchgen HOST PORT TOPIC CONNS WINDOW BATCH BODY SECONDS QUEUES [COUNT [TOPICS [KEYED]]]
// A batch of one is an ordinary send (310). With COUNT other than 0 it ends after so many messages, and SECONDS
// is the most it may take. With TOPICS they are named TOPIC-0, TOPIC-1 ..., each of QUEUES queues, in turn. With KEYED 1
// ordinary sends have a user's key, too. Prints messages per second over the last three quarters of the time, and
// the latency of whole batches. Every message has a key of its own, as a Java producer gives it one.
#include "wire.h"

enum { KEY_DIGITS = 32, BATCH_MAX = 1024, BODY_MAX = 1 << 20, WINDOW_MAX = 65535, CONNS_MAX = 1024, TOPICS_MAX = 1000 };
static const char PROPERTIES[] = "UNIQ_KEY\001%032X\002WAIT\001true\002TAGS\001TagA\002";
static const char *topic;
static int batch, queues, topics, keyed;
static char *body;
static size_t body_size, key_at, step;  // where the first key's digits are, and from one message to the next
static uint64_t numbered, acked, refused;

// Sixteen digits are enough to tell messages apart; the process's number keeps runs apart.
static void number_key(char *at, uint64_t number) {
  static const char digits[] = "0123456789ABCDEF";
  for (int i = KEY_DIGITS; i-- > KEY_DIGITS - 16; number >>= 4) at[i] = digits[number & 15];
}

// One message of a batch: size, magic 0, checksum 0, flag 0, body with its size, properties with theirs.
static void build(size_t each) {
  char properties[128];
  int size = snprintf(properties, sizeof properties, PROPERTIES, 0);
  step = 20 + each + 2 + (size_t)size;
  body_size = batch == 1 ? each : step * (size_t)batch;
  body = malloc(body_size);
  for (int i = 0; i < batch; i++) {
    char *at = body + step * (size_t)i, *text = batch == 1 ? body : at + 20;
    for (size_t k = 0; k < each; k++) text[k] = (char)('a' + k * 7 % 26);
    if (batch == 1) break;
    memset(at, 0, 20);
    put32(at, (uint32_t)step);
    put32(at + 16, (uint32_t)each);
    at[20 + each] = (char)(size >> 8);
    at[21 + each] = (char)size;
    memcpy(at + 22 + each, properties, (size_t)size);
  }
  key_at = 22 + each + strlen("UNIQ_KEY\001");
}

static void queue_batch(peer *p) {
  static uint64_t turn;
  char named[8] = "";
  if (topics) snprintf(named, sizeof named, "-%d", (int)(turn / (uint64_t)queues % (uint64_t)topics));
  char key[KEY_DIGITS + 1] = "00000000000000000000000000000000", *frame = begin_frame(p, body_size);
  for (int i = 0; i < batch && batch > 1; i++) number_key(body + step * (size_t)i + key_at, numbered++);
  number_key(key, numbered++);
  char keys[48] = "";
  if (keyed) snprintf(keys, sizeof keys, "KEYS\\u0001%s\\u0002", key + KEY_DIGITS - 16);
  int size = snprintf(frame + 8, HEADER_BYTES_MAX,
    "{\"code\":%d,\"extFields\":{\"a\":\"batchgen\",\"b\":\"%s%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\","
    "\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true\\u0002%s%s\","
    "\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
    "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
    batch == 1 ? 310 : 320, topic, named, (int)(turn++ % (uint64_t)queues), wall_ms(), key,
    batch == 1 ? "TAGS\\u0001TagA\\u0002" : "", keys, batch == 1 ? "false" : "true", p->opaque);
  end_frame(p, frame, size, body, body_size);
}

int main(int count, char **words) {
  if (count < 10) { fprintf(stderr, "usage: batchgen HOST PORT TOPIC CONNS WINDOW BATCH BODY SECONDS QUEUES [COUNT [TOPICS [KEYED]]]\n"); return STATUS_USAGE; }
  topic = words[3];
  int conns = atoi(words[4]), window = atoi(words[5]), each = atoi(words[7]);
  double seconds = atof(words[8]);
  uint64_t wanted = count > 10 ? strtoull(words[10], 0, 10) : 0, asked = 0;
  batch = atoi(words[6]);
  queues = atoi(words[9]);
  topics = count > 11 ? atoi(words[11]) : 0;
  keyed = count > 12 && atoi(words[12]) && batch == 1;
  if (conns < 1 || conns > CONNS_MAX || window < 1 || window > WINDOW_MAX || batch < 1 || batch > BATCH_MAX ||
      each < 1 || each > BODY_MAX || queues < 1 || topics < 0 || topics > TOPICS_MAX || seconds <= 0) {
    fprintf(stderr, "batchgen: a count is out of its range\n");
    return STATUS_USAGE;
  }
  numbered = (uint64_t)getpid() << 40;
  build((size_t)each);
  peer *peers = calloc((size_t)conns, sizeof *peers);
  struct pollfd *polls = calloc((size_t)conns, sizeof *polls);
  for (int i = 0; i < conns; i++) join(&peers[i], words[1], atoi(words[2]));
  uint64_t began = now_ns(), measured_from = began + (uint64_t)(seconds * .25 * 1e9), acked_before = 0;
  uint64_t until = began + (uint64_t)(seconds * 1e9), in_flight = 0, now = began;
  int measuring = wanted > 0;  // a run by count is measured from its start
  if (measuring) measured_from = began;
  for (int i = 0; i < conns; i++) {
    for (int k = 0; k < window && (!wanted || asked < wanted); k++, in_flight++, asked += (uint64_t)batch) queue_batch(&peers[i]);
    push(&peers[i]);
  }
  while (now < until && in_flight) {
    for (int i = 0; i < conns; i++) {
      short writable = peers[i].out.done < peers[i].out.size ? POLLOUT : 0;
      polls[i] = (struct pollfd){peers[i].fd, (short)(POLLIN | writable), 0};
    }
    poll(polls, (nfds_t)conns, 100);
    now = now_ns();
    if (!measuring && now >= measured_from) { measuring = 1; measured_from = now; acked_before = acked; }
    for (int i = 0; i < conns; i++) {
      peer *p = &peers[i];
      reply r;
      char keep;
      if (polls[i].revents & ~POLLOUT) take(p);
      while (next_reply(p, &r, &keep)) {
        if (r.code == 0) acked += (uint64_t)batch; else complain(&r, &refused);
        if (measuring) count_latency(now_ns() - p->sent_at[r.opaque & 65535]);
        pass(p, &r, keep);
        in_flight--;
        if (!wanted || asked < wanted) { queue_batch(p); in_flight++; asked += (uint64_t)batch; }
      }
      push(p);
    }
  }
  print_result((double)(acked - acked_before) / ((double)(now_ns() - measured_from) / 1e9), acked, refused);
  printf("\n");
  if (wanted && acked < wanted && !refused) { fprintf(stderr, "batchgen: %llu of %llu in %.0f s\n", (unsigned long long)acked, (unsigned long long)wanted, seconds); return STATUS_PEER; }
  return refused ? STATUS_REFUSED : 0;
}

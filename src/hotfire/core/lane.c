/* The fast lane: one call takes the leading run of ordinary sends and pulls out of a read buffer.
   It is the journey of broker/handlers/send.py and pull.py, compiled. Policy stays in Python, which fills two tables:
     topics  name -> (write queues, read queues, topic sys flag)
     grants  group 0 topic [0 expression] -> (sub version or -1, sorted tag hashes, a condition's program or None,
             group sys flag, token)
   The first frame that is not plainly ordinary is left to the handler; both answer byte for byte alike. */
#include "lane.h"
#include <errno.h>

#define CODE_SEND_V2 310
#define CODE_SEND_BATCH 320     /* reads like the one before; what makes a batch is a field */
#define CODE_PULL 11
#define CODE_END_TRANSACTION 37
#define REPLY_ROOM 768          /* an upper bound of a send or pull reply's header, checked below */
#define TEXT_MAX HF_TEXT_MAX
#define PULL_COMMIT 1
#define PULL_SUSPEND 2
#define PULL_SUBSCRIPTION 4
#define SYS_FLAG_TRANSACTION HF_SYS_FLAG_TRANSACTION
#define SYS_FLAG_PLAIN 0x703    /* compression and multi-tag bits; anything else is not ordinary */
#define CODES_MAX 64
#define REPLY_BYTES_MAX (64 << 20) /* more than any pull may have; an entry that says so is harmed */
#define READY_MUCH (512u << 10) /* replies to pulls made in one call, beyond which others have their turn */
#define FETCHED_MUCH (4u << 20) /* likewise, bytes of halves read */
#define COST_MUCH (1 << 20)     /* likewise, of conditions: about a millisecond at most, and one pull more */

int hf_lane_room(uint8_t **buffer, size_t *room, size_t size) {
    if (size <= *room) return 1;
    size_t wanted = *room ? *room : 4096;
    while (wanted < size) wanted *= 2;
    uint8_t *grown = PyMem_Realloc(*buffer, wanted);
    if (!grown) { PyErr_NoMemory(); return 0; }
    *buffer = grown;
    *room = wanted;
    return 1;
}

/* Room for so many bytes more in `ready`, which is handed to the peer as it is: pulls are large, and a copy dear. */
static int ready_room_for(hf_lane *l, size_t size) {
    size_t room = l->ready ? (size_t)PyBytes_GET_SIZE(l->ready) : 0;
    if (l->ready_size + size <= room) return 1;
    if (l->ready) return !_PyBytes_Resize(&l->ready, (Py_ssize_t)(2 * room + size));
    return (l->ready = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)) != NULL;
}

static uint8_t *put_text(uint8_t *p, const char *text) { return put_bytes(p, text, strlen(text)); }
static uint8_t *put_number(uint8_t *p, int64_t v) {
    if (v < 0) { *p++ = '-'; v = -v; }
    return p + hf_decimal((char *)p, (uint64_t)v);
}

PyObject *hf_lane_topic(hf_lane *l, hf_slice name) {
    if (l->cached_name && PyBytes_GET_SIZE(l->cached_name) == (Py_ssize_t)name.size &&
        !memcmp(PyBytes_AS_STRING(l->cached_name), name.p, name.size)) return l->cached_topic;
    PyObject *key = PyBytes_FromStringAndSize((const char *)name.p, name.size);
    if (!key) return NULL;
    PyObject *topic = PyDict_GetItemWithError(l->topics, key);
    if (!topic || !PyTuple_Check(topic) || PyTuple_GET_SIZE(topic) != 3) { Py_DECREF(key); return NULL; }
    Py_XSETREF(l->cached_name, key);
    l->cached_topic = topic;
    return topic;
}

hf_queue *hf_lane_queue(PyObject *queues, int64_t id) {
    if (!PyTuple_Check(queues) || id < 0 || id >= PyTuple_GET_SIZE(queues)) return NULL;
    PyObject *queue = PyTuple_GET_ITEM(queues, id);
    return PyObject_TypeCheck(queue, &hf_queue_type) ? (hf_queue *)queue : NULL;
}

/* ---- send ---- */
/* Names the broker gives a meaning to; a message that carries one is not ordinary. */
static int reserved_name(hf_slice name) {
    static const char *const names[] = {
        "DELAY", "POP_CK", "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC",
        "MSG_TYPE", "REDIRECT", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DUP_INFO", "__CRC32#",
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "__transactionId__", NULL};
    if (name.size >= 6 && (!memcmp(name.p, "TIMER_", 6) || !memcmp(name.p, "INNER_", 6))) return 1;
    for (int i = 0; names[i]; i++) if (hf_slice_is(name, names[i])) return 1;
    return 0;
}

/* 1 when every pair is well formed and none has a meaning the lane does not serve. The last of equal names counts. */
static int plain_properties(hf_slice text, hf_known *out) {
    *out = (hf_known){0};
    const uint8_t *p = text.p, *end = p + text.size;
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const uint8_t *equals = memchr(p, 1, (size_t)(stop - p));
        if (!equals || equals == p || equals + 1 == stop || memchr(equals + 1, 1, (size_t)(stop - equals - 1))) return 0;
        hf_slice name = {p, (uint32_t)(equals - p)}, value = {equals + 1, (uint32_t)(stop - equals - 1)};
        if (hf_slice_is(name, "UNIQ_KEY")) out->unique = value;
        else if (hf_slice_is(name, "TAGS")) out->tags = value;
        else if (hf_slice_is(name, "KEYS")) out->keys = value;
        else if (hf_slice_is(name, "WAIT")) { if (!hf_slice_is(value, "true")) return 0; }
        else if (hf_slice_is(name, "PGROUP")) out->group = value;
        else if (hf_slice_is(name, "TRAN_MSG")) { if (!(out->is_half = hf_slice_is(value, "true"))) return 0; }
        else if (hf_timed_name(name, value, &out->timed)) ;
        else if (reserved_name(name)) return 0;
        p = stop + 1;
    }
    return out->is_half || !out->group.size;
}

/* Text that is its own JSON form. */
static int plain_text(hf_slice s) {
    if (s.size > TEXT_MAX) return 0;
    for (uint32_t i = 0; i < s.size; i++)
        if (s.p[i] < 0x20 || s.p[i] > 0x7e || s.p[i] == '"' || s.p[i] == '\\') return 0;
    return 1;
}

static uint8_t *begin_reply(uint8_t *at, const char *code_and_fields) { return put_text(at + 8, code_and_fields); }

static uint8_t *end_reply(hf_lane *l, uint8_t *at, uint8_t *p, int32_t opaque, const char *remark, size_t body_size) {
    p = put_text(p, ",\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
    p = put_number(p, opaque);
    p = put_text(p, remark);
    p = put_text(p, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    p = put_number(p, l->version);
    *p++ = '}';
    uint32_t header = (uint32_t)(p - at - 8);
    put32(at, 4 + header + (uint32_t)body_size);
    put32(at + 4, header);
    return p;
}

static size_t reply_room(hf_lane *l, size_t count) { return 2 * REPLY_ROOM + count * ((size_t)l->id_prefix_size + 17); }

static uint8_t *put_id(hf_lane *l, uint8_t *p, int64_t physical) {
    p = put_bytes(p, l->id_prefix, (size_t)l->id_prefix_size);
    for (int shift = 60; shift >= 0; shift -= 4) *p++ = (uint8_t)"0123456789ABCDEF"[((uint64_t)physical >> shift) & 15];
    return p;
}

/* Needs reply_room(count) bytes of room in `waiting`. The ids are those of `count` records that lie at `records`. */
static void reply_to_send(hf_lane *l, int32_t opaque, int64_t queue_id, const hf_record *first, hf_slice unique, hf_slice handle, const uint8_t *records, size_t count) {
    uint8_t *at = l->waiting + l->waiting_size;
    uint8_t *p = begin_reply(at, "{\"code\":0,\"extFields\":{\"queueId\":\"");
    p = put_number(p, queue_id);
    if (unique.size) {
        p = put_text(p, "\",\"transactionId\":\"");
        p = put_bytes(p, unique.p, unique.size);
    }
    p = put_text(p, "\",\"msgId\":\"");
    int64_t physical = first->physical_offset;
    for (size_t i = 0; i < count; i++) {
        if (i) *p++ = ',';
        p = put_id(l, p, physical);
        uint32_t size = get32(records);
        records += size;
        physical += size;
    }
    p = put_bytes(p, l->reply_mid, (size_t)l->reply_mid_size);
    if (handle.size) p = put_text(put_bytes(put_text(p, "recallHandle\":\""), handle.p, handle.size), "\",\"");
    p = put_text(p, "queueOffset\":\"");
    p = put_number(p, first->queue_offset);
    p = end_reply(l, at, put_text(p, "\"}"), opaque, "", 0);
    l->waiting_size = (size_t)(p - l->waiting);
}

int hf_lane_reply_plain(hf_lane *l, int32_t opaque) {
    if (!hf_lane_room(&l->waiting, &l->waiting_room, l->waiting_size + REPLY_ROOM)) return 0;
    uint8_t *at = l->waiting + l->waiting_size;
    uint8_t *p = end_reply(l, at, begin_reply(at, "{\"code\":0"), opaque, "", 0);
    l->waiting_size = (size_t)(p - l->waiting);
    return 1;
}

/* The unique key, every word of the keys and the tag, by their hashes. Needs room for keys_max of them. */
static void index_keys(hf_lane *l, hf_slice topic, const hf_known *known, int64_t physical, int64_t timestamp) {
    if (!l->journal->grow_index) return;
    hf_journal_index_later(l->journal, physical, timestamp, hf_key_hash(topic, HF_KEY, known->unique));
    const uint8_t *p = known->keys.p, *end = p + known->keys.size;
    while (p < end) {
        const uint8_t *stop = memchr(p, ' ', (size_t)(end - p));
        if (!stop) stop = end;
        hf_slice key = {p, (uint32_t)(stop - p)};
        if (key.size) hf_journal_index_later(l->journal, physical, timestamp, hf_key_hash(topic, HF_KEY, key));
        p = stop + 1;
    }
    if (!hf_blank(known->tags)) hf_journal_index_later(l->journal, physical, timestamp, hf_key_hash(topic, HF_TAG, known->tags));
}

int hf_lane_reserve(hf_lane *l, size_t size, size_t keys, int64_t *physical) {
    switch (hf_journal_reserve(l->journal, size, physical)) {
        case HF_NEED_SEGMENT: return NEXT_SEGMENT;
        case HF_TURN_FULL: return NEXT_FULL;
        default: break;
    }
    if (hf_journal_index_room(l->journal, keys)) return NEXT_DONE;
    PyErr_NoMemory();
    return NEXT_ERROR;
}

/* Room in the turn, taken: what may fail comes before this, for bytes taken and not written would end the log. */
static uint8_t *space_for(hf_lane *l, size_t size, size_t records) {
    uint8_t *space = hf_journal_derive_room(l->journal, records) ? hf_journal_space(l->journal, size) : NULL;
    if (!space) PyErr_NoMemory();
    return space;
}

const uint8_t *hf_lane_place(hf_lane *l, hf_queue *queue, hf_record *r, size_t size, const hf_known *known) {
    uint8_t *space = space_for(l, size, 1);
    if (!space) return NULL;
    int64_t tags = known->tags.size ? hf_java_hash(known->tags.p, known->tags.size) : 0;
    r->queue_offset = queue->next++;
    hf_journal_derive_later(l->journal, queue, r->physical_offset, (int32_t)size, r->queue_offset, tags, r->store_timestamp);
    index_keys(l, r->topic, known, r->physical_offset, r->store_timestamp);
    hf_record_write(r, size, space);
    l->journal->last_timestamp = r->store_timestamp;
    return space;
}

static const uint8_t *place_batch(hf_lane *l, hf_queue *queue, hf_record *r, const hf_batch *sizes, hf_slice body) {
    uint8_t *space = space_for(l, sizes->bytes, sizes->count);
    if (!space) return NULL;
    r->queue_offset = queue->next;
    hf_batch_write(l->journal, queue, body, r, space);
    l->journal->last_timestamp = r->store_timestamp;
    return space;
}

static int serve_send(hf_lane *l, hf_frame *f, hf_slice born_host, int64_t now) {
    hf_slice topic = {NULL, 0}, properties = {NULL, 0};
    int64_t queue_id = 0, sys_flag = 0, born = 0, flag = 0, reconsume = 0;
    unsigned seen = 0;
    int is_batch = 0;
    if ((f->flag != 0 && f->flag != 2) || !f->body.size || f->body.size > l->body_max) return NEXT_HANDLER;
    for (int i = 0; i < f->fields_count; i++) {
        hf_field *field = &f->fields[i];
        if (field->key.size != 1 || field->key.p[0] < 'a' || field->key.p[0] > 'n') return NEXT_HANDLER;
        char name = (char)field->key.p[0];
        hf_slice v = field->value;
        if (field->escaped && name != 'i') return NEXT_HANDLER;
        seen |= 1u << (name - 'a');
        switch (name) {
            case 'b': topic = v; break;
            case 'e': if (!hf_parse_int(v.p, v.size, 0, INT32_MAX, &queue_id)) return NEXT_HANDLER; break;
            case 'f': if (!hf_parse_int(v.p, v.size, 0, INT32_MAX, &sys_flag)) return NEXT_HANDLER; break;
            case 'g': if (!hf_parse_int(v.p, v.size, 0, INT64_MAX, &born)) return NEXT_HANDLER; break;
            case 'h': if (!hf_parse_int(v.p, v.size, INT32_MIN, INT32_MAX, &flag)) return NEXT_HANDLER; break;
            case 'j': if (!hf_parse_int(v.p, v.size, 0, INT32_MAX, &reconsume)) return NEXT_HANDLER; break;
            case 'd': { int64_t ignored; if (!hf_parse_int(v.p, v.size, INT32_MIN, INT32_MAX, &ignored)) return NEXT_HANDLER; break; }
            case 'l': return NEXT_HANDLER;
            case 'm': if (!(is_batch = hf_slice_is(v, "true")) && !hf_slice_is(v, "false")) return NEXT_HANDLER; break;
            case 'i': {
                if (field->escaped) {
                    if (!hf_lane_room(&l->scratch, &l->scratch_room, v.size)) return NEXT_ERROR;
                    int64_t n = hf_unescape(v, l->scratch);
                    if (n < 0) return NEXT_HANDLER;
                    v = (hf_slice){l->scratch, (uint32_t)n};
                }
                properties = v;
                break;
            }
            default: break; /* a producer group, c default topic, k unit mode, n broker name */
        }
    }
    hf_known known;
    if ((seen & 0xff) != 0xff || !plain_properties(properties, &known) || !plain_text(known.unique)) return NEXT_HANDLER;
    if (sys_flag & ~(known.is_half ? SYS_FLAG_PLAIN | SYS_FLAG_TRANSACTION : SYS_FLAG_PLAIN)) return NEXT_HANDLER;
    if (!known.unique.size && !is_batch) return NEXT_HANDLER; /* which makes one up */
    if (known.is_half && (is_batch || !l->takes_halves)) return NEXT_HANDLER;
    int is_timed = hf_is_timed(&known.timed);
    if (is_timed && (is_batch || known.is_half)) return NEXT_HANDLER;
    PyObject *entry = hf_lane_topic(l, topic);
    if (!entry) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
    hf_queue *queue = hf_lane_queue(PyTuple_GET_ITEM(entry, 0), queue_id);
    if (!queue) return NEXT_HANDLER;

    hf_slice store_host = {(uint8_t *)PyBytes_AS_STRING(l->store_host), (uint32_t)PyBytes_GET_SIZE(l->store_host)};
    hf_record r = {
        .topic = topic, .body = f->body, .properties = properties,
        .suffix = {(uint8_t *)PyBytes_AS_STRING(l->suffix), (uint32_t)PyBytes_GET_SIZE(l->suffix)},
        .born_host = born_host, .store_host = store_host, .queue_id = (int32_t)queue_id, .flag = (int32_t)flag,
        .sys_flag = (int32_t)sys_flag | (born_host.size == 20 ? 0x10 : 0) | (store_host.size == 20 ? 0x20 : 0),
        .reconsume_times = (int32_t)reconsume, .born_timestamp = born,
        .store_timestamp = hf_lane_stamp(l, now), .append_crc = l->append_crc};
    if (known.is_half) {
        if (!hf_lane_half_suffix(l, topic, queue_id, known.unique, &r.suffix)) return NEXT_ERROR;
        r.topic = (hf_slice){(const uint8_t *)HF_HALF_TOPIC, sizeof HF_HALF_TOPIC - 1};
        r.queue_id = 0;
        r.sys_flag &= ~SYS_FLAG_TRANSACTION;
        queue = l->halves->queue;
    }
    hf_slice handle = {NULL, 0};
    if (is_timed) {
        int parked = hf_lane_park(l, &known, properties, topic, queue_id, now, &r.suffix, &handle);
        if (parked != NEXT_DONE) return parked;
        r.topic = (hf_slice){(const uint8_t *)HF_TIMER_TOPIC, sizeof HF_TIMER_TOPIC - 1};
        r.queue_id = 0;
        queue = l->timers.queue;
    }
    hf_batch sizes = {0, hf_keys_max(&known), 1};
    if (is_batch) {
        r.suffix.size = 0; /* messages of a batch are stored as they came */
        if (topic.size > INT8_MAX || !hf_batch_measure(f->body, &r, &sizes) || sizes.bytes > l->batch_max) return NEXT_HANDLER;
    } else if (!(sizes.bytes = hf_record_size(&r))) return NEXT_HANDLER;
    int next = hf_lane_reserve(l, sizes.bytes, sizes.keys, &r.physical_offset);
    if (next != NEXT_DONE) return next;
    if (!hf_lane_room(&l->waiting, &l->waiting_room, l->waiting_size + reply_room(l, sizes.count) + handle.size)) return NEXT_ERROR;
    const uint8_t *space = is_batch ? place_batch(l, queue, &r, &sizes, f->body) : hf_lane_place(l, queue, &r, sizes.bytes, &known);
    if (!space) return NEXT_ERROR;
    if (known.is_half) hf_lane_half_stored(l, r.queue_offset);
    l->sends += (long long)sizes.count;
    if (f->flag == 0) reply_to_send(l, f->opaque, queue_id, &r, known.unique, handle, space, sizes.count);
    return NEXT_DONE;
}

/* ---- pull ---- */
typedef struct {
    hf_slice group, topic, expression;
    int64_t queue_id, offset, count, sys_flag, commit, version, bytes;
    int has_expression, by_condition;
} pull_fields;

static int read_pull(hf_frame *f, pull_fields *out) {
    static const char *const mandatory[] = {"consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag",
                                            "commitOffset", "suspendTimeoutMillis", "subVersion"};
    unsigned seen = 0;
    int64_t ignored;
    *out = (pull_fields){0};
    for (int i = 0; i < f->fields_count; i++) {
        hf_field *field = &f->fields[i];
        hf_slice k = field->key, v = field->value;
        if (field->escaped) return 0;
        int which = -1;
        for (int m = 0; m < 9 && which < 0; m++) if (hf_slice_is(k, mandatory[m])) which = m;
        if (which >= 0) seen |= 1u << which;
        int ok = 1;
        switch (which) {
            case 0: out->group = v; break;
            case 1: out->topic = v; break;
            case 2: ok = hf_parse_int(v.p, v.size, 0, INT32_MAX, &out->queue_id); break;
            case 3: ok = hf_parse_int(v.p, v.size, 0, INT64_MAX, &out->offset); break;
            case 4: ok = hf_parse_int(v.p, v.size, 1, INT32_MAX, &out->count); break;
            case 5: ok = hf_parse_int(v.p, v.size, 0, 7, &out->sys_flag); break;
            case 6: ok = hf_parse_int(v.p, v.size, INT64_MIN, INT64_MAX, &out->commit); break;
            case 7: ok = hf_parse_int(v.p, v.size, INT64_MIN, INT64_MAX, &ignored); break;
            case 8: ok = hf_parse_int(v.p, v.size, INT64_MIN, INT64_MAX, &out->version); break;
            default:
                if (hf_slice_is(k, "subscription")) { out->expression = v; out->has_expression = 1; }
                else if (hf_slice_is(k, "expressionType")) ok = (out->by_condition = hf_slice_is(v, "SQL92")) || hf_slice_is(v, "TAG");
                else if (hf_slice_is(k, "maxMsgBytes")) ok = hf_parse_int(v.p, v.size, 1, INT32_MAX, &out->bytes);
                else ok = hf_slice_is(k, "bname");
        }
        if (!ok) return 0;
    }
    return seen == 0x1ff;
}

/* The grant for this pull, borrowed; NULL when the handler has to look. */
static PyObject *find_grant(hf_lane *l, const pull_fields *q) {
    int by_header = (q->sys_flag & PULL_SUBSCRIPTION) != 0;
    if (by_header && (!q->has_expression || q->by_condition)) return NULL;
    if (q->group.size && memchr(q->group.p, 0, q->group.size)) return NULL; /* it would read as another key */
    size_t size = q->group.size + 1 + q->topic.size + (by_header ? 1 + q->expression.size : 0);
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!key) return NULL;
    uint8_t *p = (uint8_t *)PyBytes_AS_STRING(key);
    p = put_bytes(p, q->group.p, q->group.size);
    *p++ = 0;
    p = put_bytes(p, q->topic.p, q->topic.size);
    if (by_header) { *p++ = 0; put_bytes(p, q->expression.p, q->expression.size); }
    PyObject *grant = PyDict_GetItemWithError(l->grants, key);
    Py_DECREF(key);
    if (!grant || !PyTuple_Check(grant) || PyTuple_GET_SIZE(grant) != 4) return NULL;
    if (!by_header) {
        long long version = PyLong_AsLongLong(PyTuple_GET_ITEM(grant, 0));
        if (version < q->version) return NULL;
    }
    return grant;
}

enum { PIECES_MAX = 64 };

/* 0 when the handler has to look. */
static int choose_by_tags(hf_lane *l, PyObject *wanted, hf_queue *queue, const pull_fields *q, hf_piece *pieces, hf_selection *chosen) {
    int32_t codes[CODES_MAX];
    int codes_count = -1;
    if (wanted != Py_None) {
        if (!PyTuple_Check(wanted) || PyTuple_GET_SIZE(wanted) > CODES_MAX) return 0;
        codes_count = (int)PyTuple_GET_SIZE(wanted);
        for (int i = 0; i < codes_count; i++) codes[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(wanted, i));
    }
    hf_limits limits = l->limits;
    limits.count_max = (int32_t)q->count;
    limits.bytes_max = INT32_MAX;
    limits.memory_from = l->journal->written - l->memory_window;
    hf_queue_select(queue, q->offset, &limits, codes, codes_count, pieces, chosen);
    return !chosen->missing && chosen->count;
}

/* Likewise. Unlike tags, which are all in the entries, what it took to find nothing is not to be spent twice: that is an answer. */
static int choose_by_condition(hf_lane *l, PyObject *code, hf_queue *queue, const pull_fields *q, hf_piece *pieces, hf_selection *chosen) {
    int64_t stop = queue->max - q->offset > l->limits.scan_max ? q->offset + l->limits.scan_max : queue->max;
    hf_sought sought = {
        .program = {(const uint8_t *)PyBytes_AS_STRING(code), (uint32_t)PyBytes_GET_SIZE(code)}, .bytes_max = l->limits.memory_bytes_max,
        .count_max = q->count < l->limits.memory_count_max ? (int32_t)q->count : l->limits.memory_count_max, .cost_max = l->cost_max};
    hf_sifted found;
    hf_queue_sift(queue, l->journal, &sought, q->offset, stop, pieces, &found);
    l->cost += found.cost;
    l->evaluated += found.looked;
    *chosen = (hf_selection){found.count, found.next, found.bytes, 0};
    return found.is_done;
}

static int serve_pull(hf_lane *l, hf_frame *f, PyObject *pulls) {
    pull_fields q;
    if (f->flag != 0 || f->body.size || !read_pull(f, &q)) return NEXT_HANDLER;
    PyObject *topic = hf_lane_topic(l, q.topic);
    if (!topic) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
    hf_queue *queue = hf_lane_queue(PyTuple_GET_ITEM(topic, 1), q.queue_id);
    if (!queue || q.offset < queue->min || q.offset >= queue->max) return NEXT_HANDLER;
    PyObject *grant = find_grant(l, &q);
    if (!grant) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
    if (q.bytes > l->limits.memory_bytes_max || q.count > PIECES_MAX) return NEXT_HANDLER; /* bulk */
    PyObject *wanted = PyTuple_GET_ITEM(grant, 1);
    if (wanted != Py_None && queue->extended) return NEXT_HANDLER; /* whose entries do not tell their tags by themselves, and more than tags */
    hf_piece pieces[PIECES_MAX];
    hf_selection chosen;
    int is_chosen = PyBytes_Check(wanted) ? choose_by_condition(l, wanted, queue, &q, pieces, &chosen)
                                          : choose_by_tags(l, wanted, queue, &q, pieces, &chosen);
    if (!is_chosen || chosen.bytes > REPLY_BYTES_MAX) return NEXT_HANDLER;

    if (!ready_room_for(l, REPLY_ROOM + (size_t)chosen.bytes)) return NEXT_ERROR;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(l->ready) + l->ready_size;
    uint8_t *p = begin_reply(at, chosen.count ? "{\"code\":0" : "{\"code\":20");
    p = put_text(p, ",\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"groupSysFlag\":\"");
    p = put_number(p, PyLong_AsLong(PyTuple_GET_ITEM(grant, 2)));
    p = put_text(p, "\",\"nextBeginOffset\":\"");
    p = put_number(p, chosen.next);
    p = put_text(p, "\",\"maxOffset\":\"");
    p = put_number(p, queue->max);
    p = put_text(p, "\",\"minOffset\":\"");
    p = put_number(p, queue->min);
    p = put_text(p, "\",\"topicSysFlag\":\"");
    p = put_number(p, PyLong_AsLong(PyTuple_GET_ITEM(topic, 2)));
    const char *remark = chosen.count ? ",\"remark\":\"FOUND\"" : ",\"remark\":\"NO_MATCHED_MESSAGE\"";
    p = end_reply(l, at, put_text(p, "\"}"), f->opaque, remark, (size_t)chosen.bytes);
    if (PyErr_Occurred()) return NEXT_ERROR;
    if (hf_journal_fetch(l->journal, pieces, chosen.count, p)) return NEXT_HANDLER; /* cold or gone: not our case */
    for (int i = 0; i < chosen.count; p += pieces[i++].size)
        if (!hf_record_sound(p, &pieces[i], q.topic, (int32_t)q.queue_id, l->journal->summed_from)) return NEXT_HANDLER; /* which tells the harmed from the rest */
    l->ready_size += (size_t)(p - at);
    l->pulls++;
    int is_known = q.commit <= queue->max; /* else it is of messages that this log has lost */
    PyObject *pull = Py_BuildValue("(OLLLiL)", PyTuple_GET_ITEM(grant, 3), (long long)q.queue_id,
                                   (long long)(q.sys_flag & PULL_COMMIT && is_known ? q.commit : -1), (long long)chosen.next,
                                   chosen.count, (long long)chosen.bytes);
    if (!pull || PyList_Append(pulls, pull)) { Py_XDECREF(pull); return NEXT_ERROR; }
    Py_DECREF(pull);
    return NEXT_DONE;
}

/* ---- Python face ---- */
void hf_lane_begin(hf_lane *l) { Py_XSETREF(l->cached_name, NULL); } /* the tables may have changed since the last call */

static int lane_init(hf_lane *l, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"journal", "topics", "grants", "store_host", "id_prefix", "suffix", "region", "trace_on", "version",
                            "append_crc", "frame_max", "body_max", "batch_max", "memory_window", "pull_limits", "cost_max", "halves", NULL};
    PyObject *journal, *topics, *grants, *store_host, *suffix, *halves;
    const char *prefix, *region;
    int trace_on;
    unsigned int frame_max, body_max, batch_max;
    long long window, memory_bytes, disk_bytes, cost_max;
    hf_limits limits = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!SsSspipIIIL(iiLLi)LO!", names, &hf_journal_type, &journal, &PyDict_Type, &topics,
                                     &PyDict_Type, &grants, &store_host, &prefix, &suffix, &region, &trace_on, &l->version,
                                     &l->append_crc, &frame_max, &body_max, &batch_max, &window, &limits.memory_count_max,
                                     &limits.disk_count_max, &memory_bytes, &disk_bytes, &limits.scan_max, &cost_max, &hf_halves_type, &halves)) return -1;
    Py_ssize_t host_size = PyBytes_GET_SIZE(store_host);
    if ((host_size != 8 && host_size != 20) || strlen(prefix) >= sizeof l->id_prefix || strlen(region) > TEXT_MAX ||
        !plain_text((hf_slice){(const uint8_t *)region, (uint32_t)strlen(region)})) {
        PyErr_SetString(PyExc_ValueError, "store_host: 8 or 20 bytes; id_prefix, region: short plain text");
        return -1;
    }
    limits.memory_bytes_max = memory_bytes;
    limits.disk_bytes_max = disk_bytes;
    l->limits = limits;
    l->frame_max = frame_max;
    l->body_max = body_max;
    l->batch_max = batch_max;
    l->memory_window = window;
    l->cost_max = cost_max;
    l->id_prefix_size = (int)strlen(prefix);
    memcpy(l->id_prefix, prefix, strlen(prefix));
    l->reply_mid_size = snprintf(l->reply_mid, sizeof l->reply_mid, "\",\"TRACE_ON\":\"%s\",\"MSG_REGION\":\"%s\",\"",
                                 trace_on ? "true" : "false", region);
#define KEEP(slot, object) do { Py_INCREF(object); Py_XSETREF(slot, object); } while (0)
    KEEP(l->journal_ref, journal);
    KEEP(l->topics, topics);
    KEEP(l->grants, grants);
    KEEP(l->store_host, store_host);
    KEEP(l->suffix, suffix);
    KEEP(l->halves_ref, halves);
#undef KEEP
    l->journal = (hf_journal *)journal;
    l->halves = (hf_halves *)halves;
    return 0;
}

/* Nothing to clear: its tables clear themselves, and a lane without them could not be called any more. */
static int lane_traverse(hf_lane *l, visitproc visit, void *arg) { Py_VISIT(l->journal_ref); Py_VISIT(l->halves_ref); Py_VISIT(l->topics); Py_VISIT(l->grants); Py_VISIT(l->timers.queue_ref); Py_VISIT(l->timers.wheel); return 0; }

static void lane_dealloc(hf_lane *l) {
    PyObject_GC_UnTrack(l);
    Py_CLEAR(l->journal_ref); Py_CLEAR(l->halves_ref); Py_CLEAR(l->topics); Py_CLEAR(l->grants); Py_CLEAR(l->store_host); Py_CLEAR(l->suffix);
    Py_CLEAR(l->cached_name);
    Py_CLEAR(l->timers.queue_ref); Py_CLEAR(l->timers.wheel); Py_CLEAR(l->timers.broker_name);
    Py_CLEAR(l->ready);
    PyMem_Free(l->scratch); PyMem_Free(l->waiting); PyMem_Free(l->half);
    Py_TYPE(l)->tp_free((PyObject *)l);
}

static PyObject *take_waiting(hf_lane *l) {
    if (!l->waiting_size) Py_RETURN_NONE;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)l->waiting, (Py_ssize_t)l->waiting_size);
    if (l->waiting_room > (1u << 20)) { PyMem_Free(l->waiting); l->waiting = NULL; l->waiting_room = 0; }
    l->waiting_size = 0;
    return bytes;
}

static PyObject *take_ready(hf_lane *l) {
    PyObject *bytes = l->ready;
    size_t size = l->ready_size;
    l->ready = NULL;
    l->ready_size = 0;
    if (bytes && size && _PyBytes_Resize(&bytes, (Py_ssize_t)size)) return NULL;
    if (bytes && size) return bytes;
    Py_XDECREF(bytes);
    Py_RETURN_NONE;
}

int hf_lane_serve(hf_lane *l, const uint8_t *p, size_t size, hf_slice born_host, int64_t now, PyObject *pulls, size_t *consumed) {
    int next = NEXT_DONE;
    size_t at = 0;
    l->fetched = 0;
    l->cost = 0;
    while (next == NEXT_DONE) {
        hf_frame f;
        size_t frame_bytes = 0;
        if (at >= size) { next = NEXT_PARTIAL; break; }
        switch (hf_frame_read(p + at, size - at, l->frame_max, &f, &frame_bytes)) {
            case HF_FRAME_PARTIAL: next = NEXT_PARTIAL; break;
            case HF_FRAME_BAD_LENGTH: next = NEXT_BAD_LENGTH; break;
            case HF_FRAME_STRANGE: next = NEXT_HANDLER; break;
            default:
                if (f.code == CODE_SEND_V2 || f.code == CODE_SEND_BATCH) next = serve_send(l, &f, born_host, now);
                else if (f.code == CODE_PULL) next = serve_pull(l, &f, pulls);
                else if (f.code == CODE_END_TRANSACTION) next = hf_lane_serve_end(l, &f, now);
                else next = NEXT_HANDLER;
        }
        if (next == NEXT_DONE) {
            at += frame_bytes;
            if (l->ready_size > READY_MUCH || l->fetched > FETCHED_MUCH || l->cost > COST_MUCH) next = NEXT_MUCH; /* let the peer take this first */
        }
    }
    *consumed = at;
    return next == NEXT_ERROR ? -1 : next;
}

/* serve(data, start, born_host, now_ms) -> (consumed, next, waiting, ready, pulls)
   waiting: replies that may leave once the log is durable up to the journal's end; ready: replies that may leave now.
   pulls: (token, queue id, offset to commit or -1, next offset, messages, bytes) of each one served.
   next: why it stopped, see NEXT. */
static PyObject *lane_serve(hf_lane *l, PyObject *args) {
    Py_buffer data, host;
    Py_ssize_t start;
    long long now;
    if (!PyArg_ParseTuple(args, "y*ny*L", &data, &start, &host, &now)) return NULL;
    size_t size = (size_t)data.len, from = start < 0 || (size_t)start > size ? size : (size_t)start, consumed = 0;
    hf_slice born_host = {host.buf, (uint32_t)host.len};
    int next = -1;
    PyObject *pulls = PyList_New(0);
    hf_lane_begin(l);
    if (host.len != 8 && host.len != 20) PyErr_SetString(PyExc_ValueError, "born_host: 8 or 20 bytes");
    else if (pulls) next = hf_lane_serve(l, (const uint8_t *)data.buf + from, size - from, born_host, now, pulls, &consumed);
    PyBuffer_Release(&data);
    PyBuffer_Release(&host);
    if (next < 0) { Py_XDECREF(pulls); Py_CLEAR(l->ready); l->waiting_size = l->ready_size = 0; return NULL; }
    PyObject *waiting = take_waiting(l), *ready = take_ready(l);
    if (!waiting || !ready) { Py_XDECREF(waiting); Py_XDECREF(ready); Py_DECREF(pulls); return NULL; }
    return Py_BuildValue("(niNNN)", (Py_ssize_t)consumed, next, waiting, ready, pulls);
}

static PyMethodDef lane_methods[] = {
    {"serve", (PyCFunction)lane_serve, METH_VARARGS, "serve(data, start, born_host, now_ms) -> (consumed, next, waiting, ready, pulls)"},
    {"take_timers", (PyCFunction)hf_lane_take_timers, METH_VARARGS, "take_timers(queue or None, wheel, broker_name, most_ms, congest_max): park messages there, or leave them"},
    {"deliver", (PyCFunction)hf_lane_deliver, METH_VARARGS, "deliver(entries, start, deleted, now_ms, doubt_end, doubt_ms, far_ms, shifted_below) -> (at, [(topic, messages)])"},
    {NULL}};
static PyMemberDef lane_members[] = {
    {"sends", Py_T_LONGLONG, offsetof(hf_lane, sends), Py_READONLY, "Sends served."},
    {"takes_halves", Py_T_INT, offsetof(hf_lane, takes_halves), 0, "Whether half messages are taken."},
    {"pulls", Py_T_LONGLONG, offsetof(hf_lane, pulls), Py_READONLY, "Pulls served."},
    {"evaluated", Py_T_LONGLONG, offsetof(hf_lane, evaluated), Py_READONLY, "Messages that conditions were run over."},
    {"delivered", Py_T_LONGLONG, offsetof(hf_lane, delivered), Py_READONLY, "Messages copied to their topics when they were due."},
    {NULL}};
PyTypeObject hf_lane_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotfire.core._core.Lane", .tp_basicsize = sizeof(hf_lane), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew, .tp_init = (initproc)lane_init, .tp_dealloc = (destructor)lane_dealloc,
    .tp_traverse = (traverseproc)lane_traverse,
    .tp_methods = lane_methods, .tp_members = lane_members};

/* Messages with a time of their own, compiled where nothing is in doubt: parked by the fast lane as handlers/send.py
   parks them, taken up into units of the timer log as broker/timers.py takes them up, and copied to their real topics as
   broker/timerdelivery.py copies them. What asks for anything else is left to those three, which are the specification:
   messages that delete or were put into the wheel before, times beyond the window, properties that are not plain. */
#include "lane.h"

#define PROPERTIES_COUNT_MAX 40
#define SECOND_MS 1000
#define TIME_MAX ((1ll << 53) - 1)     /* as protocol/recall.py reads numbers */
#define UNIT_BYTES 52                  /* store/timerlog.py draws it */
#define UNIT_BLANK_BYTES 16
#define SLOT_BYTES 32                  /* store/timerwheel.py */
#define HEADS_MAX 1024                 /* seconds that one call takes messages up for */
#define PLACES 4096                    /* of their table: a power of two, and far more */
#define LEAD_MS_MAX 60000              /* broker/timerwindow.py */
#define RECORD_BYTES_BESIDE_BODY 36000
#define CRC_NAME "__CRC32#"

static int same(hf_slice a, hf_slice b) { return a.size == b.size && !memcmp(a.p, b.p, a.size); }
static int64_t second_of(int64_t ms) { return ms / SECOND_MS * SECOND_MS; } /* of times that are not below 0 */
static int64_t slot_ms_of(int64_t due) { return second_of(due - 1); }

int hf_timed_name(hf_slice name, hf_slice value, hf_timed *out) {
    if (hf_slice_is(name, "TIMER_DELAY_SEC")) out->seconds = value;
    else if (hf_slice_is(name, "TIMER_DELAY_MS")) out->milliseconds = value;
    else if (hf_slice_is(name, "TIMER_DELIVER_MS")) out->at = value;
    else return 0;
    return 1;
}

int hf_is_timed(const hf_timed *t) { return t->seconds.size || t->milliseconds.size || t->at.size; }

/* When it is due, by the first property that asks; 0 when that is no plain number. */
static int asked_ms(const hf_timed *t, int64_t now, int64_t *due) {
    int64_t value;
    hf_slice text = t->seconds.size ? t->seconds : t->milliseconds.size ? t->milliseconds : t->at;
    if (!hf_parse_int(text.p, text.size, 0, TIME_MAX, &value)) return 0;
    *due = t->seconds.size ? now + value * 1000 : t->milliseconds.size ? now + value : value;
    return 1;
}

/* The pair at *p, which then lies behind it; 0 when there is none, or it is not well formed. */
static int next_pair(const uint8_t **p, const uint8_t *end, hf_slice *name, hf_slice *value) {
    const uint8_t *stop = memchr(*p, 2, (size_t)(end - *p));
    if (!stop) stop = end;
    const uint8_t *equals = memchr(*p, 1, (size_t)(stop - *p));
    if (!equals || equals == *p || equals + 1 == stop) return 0;
    *name = (hf_slice){*p, (uint32_t)(equals - *p)};
    *value = (hf_slice){equals + 1, (uint32_t)(stop - equals - 1)};
    *p = stop < end ? stop + 1 : end;
    return 1;
}

/* ---- parked by the lane ---- */
static int names_differ(hf_slice text) {
    hf_slice names[PROPERTIES_COUNT_MAX], value;
    const uint8_t *p = text.p, *end = p + text.size;
    for (int count = 0; p < end; count++) {
        if (count == PROPERTIES_COUNT_MAX || !next_pair(&p, end, &names[count], &value)) return 0;
        for (int i = 0; i < count; i++) if (same(names[i], names[count])) return 0;
    }
    return 1;
}

/* The slot that lies in the place of a second: NULL of a wheel that has none. */
static const uint8_t *slot_place(const Py_buffer *wheel, int64_t time_s) {
    int64_t slots = wheel->len / SLOT_BYTES;
    return slots > 0 ? (const uint8_t *)wheel->buf + time_s % slots * SLOT_BYTES : NULL;
}

/* Whether one more may be due in that second; -1 with an exception. Without a wheel nothing waits yet. */
static int slot_has_room(hf_lane *l, int64_t time_s) {
    PyObject *mapped = PyObject_GetAttrString(l->timers.wheel, "mapped");
    if (!mapped) return -1;
    int has_room = 1;
    if (mapped != Py_None) {
        Py_buffer wheel;
        if (PyObject_GetBuffer(mapped, &wheel, PyBUF_SIMPLE)) has_room = -1;
        else {
            const uint8_t *slot = slot_place(&wheel, time_s);
            if (slot && (int64_t)get64(slot) == time_s) has_room = (int32_t)get32(slot + 24) < l->timers.congest_max;
            PyBuffer_Release(&wheel);
        }
    }
    Py_DECREF(mapped);
    return has_room;
}

static uint8_t *put_number_pair(uint8_t *p, const char *name, int64_t value) {
    p = put_bytes(p, name, strlen(name));
    *p++ = 1;
    p += hf_decimal((char *)p, (uint64_t)value);
    *p++ = 2;
    return p;
}

static uint8_t *put_base64(uint8_t *o, const uint8_t *p, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (; size >= 3; p += 3, size -= 3) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        for (int shift = 18; shift >= 0; shift -= 6) *o++ = (uint8_t)digits[v >> shift & 63];
    }
    if (size) {
        uint32_t v = (uint32_t)p[0] << 16 | (size == 2 ? (uint32_t)p[1] << 8 : 0);
        *o++ = (uint8_t)digits[v >> 18 & 63];
        *o++ = (uint8_t)digits[v >> 12 & 63];
        *o++ = size == 2 ? (uint8_t)digits[v >> 6 & 63] : '=';
        *o++ = '=';
    }
    return o;
}

int hf_lane_park(hf_lane *l, const hf_known *known, hf_slice properties, hf_slice topic, int64_t queue_id, int64_t now, hf_slice *suffix, hf_slice *handle) {
    int64_t due;
    if (!l->timers.queue || !names_differ(properties)) return NEXT_HANDLER;
    if (!asked_ms(&known->timed, now, &due) || due <= now || due - now > l->timers.most_ms) return NEXT_HANDLER;
    int64_t slot_ms = slot_ms_of(due);
    int has_room = slot_has_room(l, slot_ms / SECOND_MS);
    if (has_room <= 0) return has_room ? NEXT_ERROR : NEXT_HANDLER;
    hf_slice broker = {(const uint8_t *)PyBytes_AS_STRING(l->timers.broker_name), (uint32_t)PyBytes_GET_SIZE(l->timers.broker_name)};
    size_t text_max = (size_t)topic.size + broker.size + known->unique.size + 32;
    if (!hf_lane_room(&l->half, &l->half_room, suffix->size + topic.size + 128 + text_max + text_max / 3 * 4 + 8)) return NEXT_ERROR;
    uint8_t *p = put_bytes(l->half, suffix->p, suffix->size);
    p = put_number_pair(p, "TIMER_OUT_MS", slot_ms);
    p = put_bytes(p, "REAL_TOPIC\x01", 11);
    p = put_bytes(p, topic.p, topic.size);
    *p++ = 2;
    p = put_number_pair(p, "REAL_QID", queue_id);
    *suffix = (hf_slice){l->half, (uint32_t)(p - l->half)};
    uint8_t *text = p; /* as protocol/recall.py spells it */
    p = put_bytes(put_bytes(p, "v1 ", 3), topic.p, topic.size);
    *p++ = ' ';
    p = put_bytes(p, broker.p, broker.size);
    *p++ = ' ';
    p += hf_decimal((char *)p, (uint64_t)(slot_ms + 1));
    *p++ = ' ';
    p = put_bytes(p, known->unique.p, known->unique.size);
    *handle = (hf_slice){p, (uint32_t)(put_base64(p, text, (size_t)(p - text)) - p)};
    return NEXT_DONE;
}

PyObject *hf_lane_take_timers(hf_lane *l, PyObject *args) {
    PyObject *queue, *wheel, *name;
    long long most_ms, congest_max;
    if (!PyArg_ParseTuple(args, "OOSLL", &queue, &wheel, &name, &most_ms, &congest_max)) return NULL;
    if (queue != Py_None && !PyObject_TypeCheck(queue, &hf_queue_type)) return PyErr_Format(PyExc_TypeError, "queue: a Queue or None");
    Py_INCREF(queue);
    Py_XSETREF(l->timers.queue_ref, queue);
    Py_INCREF(wheel);
    Py_XSETREF(l->timers.wheel, wheel);
    Py_INCREF(name);
    Py_XSETREF(l->timers.broker_name, name);
    l->timers.queue = queue == Py_None || PyBytes_GET_SIZE(name) > HF_TEXT_MAX ? NULL : (hf_queue *)queue;
    l->timers.most_ms = most_ms;
    l->timers.congest_max = congest_max;
    Py_RETURN_NONE;
}

/* ---- parked records, read ---- */
typedef struct {
    hf_timed timed;
    hf_known known;
    hf_slice topic, queue, kept; /* kept: its properties without a checksum */
    int64_t slot_ms;
} parked;

/* 0 when its properties are not plain: a name that comes twice, one that asks for more than a time, or none that must be there. */
static int read_parked(hf_slice text, parked *out) {
    hf_slice names[PROPERTIES_COUNT_MAX], value;
    *out = (parked){.slot_ms = -1};
    if (text.size >= HF_CRC_BYTES && !memcmp(text.p + text.size - HF_CRC_BYTES, CRC_NAME "\x01", sizeof CRC_NAME)) text.size -= HF_CRC_BYTES;
    if (!text.size || text.p[text.size - 1] != 2 || !hf_utf8_ok(text.p, text.size)) return 0;
    out->kept = text;
    const uint8_t *p = text.p, *end = p + text.size;
    for (int count = 0; p < end; count++) {
        if (count == PROPERTIES_COUNT_MAX || !next_pair(&p, end, &names[count], &value)) return 0;
        hf_slice name = names[count];
        for (int i = 0; i < count; i++) if (same(names[i], name)) return 0;
        if (hf_slice_is(name, "UNIQ_KEY")) out->known.unique = value;
        else if (hf_slice_is(name, "TAGS")) out->known.tags = value;
        else if (hf_slice_is(name, "KEYS")) out->known.keys = value;
        else if (hf_slice_is(name, "REAL_TOPIC")) out->topic = value;
        else if (hf_slice_is(name, "REAL_QID")) out->queue = value;
        else if (hf_slice_is(name, "TIMER_OUT_MS")) { if (!hf_parse_int(value.p, value.size, 1, TIME_MAX, &out->slot_ms)) return 0; }
        else if (hf_timed_name(name, value, &out->timed)) continue;
        else if (hf_slice_is(name, CRC_NAME) || (name.size >= 6 && !memcmp(name.p, "TIMER_", 6))) return 0;
    }
    return out->slot_ms > 0 && out->topic.size && hf_is_timed(&out->timed);
}

/* When it is due, to the millisecond: within its slot's second, whatever it asks for. 0 when that is no plain number. */
static int64_t parked_due(const parked *m, int64_t stored) {
    int64_t due, latest = m->slot_ms + SECOND_MS;
    if (!asked_ms(&m->timed, stored, &due)) return 0;
    if (due > latest) due = latest;
    return due > m->slot_ms ? due : m->slot_ms + 1;
}

/* How many messages of each topic in turn: a list of (topic, count), the last of which is counted on. */
static int count_topic(PyObject *counts, hf_slice topic, hf_slice *last, Py_ssize_t *count) {
    if (*count && (last->size != topic.size || memcmp(last->p, topic.p, topic.size))) {
        PyObject *one = Py_BuildValue("(y#n)", (const char *)last->p, (Py_ssize_t)last->size, *count);
        if (!one || PyList_Append(counts, one)) { Py_XDECREF(one); return 0; }
        Py_DECREF(one);
        *count = 0;
    }
    *last = topic;
    ++*count;
    return 1;
}

static int end_counts(PyObject *counts, hf_slice last, Py_ssize_t count) {
    PyObject *one = count ? Py_BuildValue("(y#n)", (const char *)last.p, (Py_ssize_t)last.size, count) : NULL;
    int failed = count && (!one || PyList_Append(counts, one));
    Py_XDECREF(one);
    return !failed;
}

/* ---- delivered ---- */
/* The record at p as its copy begins. */
static hf_record copy_of(const uint8_t *p) {
    hf_record r = {.flag = (int32_t)get32(p + 16), .sys_flag = (int32_t)get32(p + 36), .born_timestamp = (int64_t)get64(p + 40)};
    uint32_t born = r.sys_flag & 0x10 ? 20 : 8, stored = r.sys_flag & 0x20 ? 20 : 8;
    p += 48;
    r.born_host = (hf_slice){p, born};
    r.store_host = (hf_slice){p += born + 8, stored};
    r.reconsume_times = (int32_t)get32(p += stored);
    r.body = (hf_slice){p + 16, get32(p + 12)};
    return r;
}

/* What is to be known of a batch. */
typedef struct {
    PyObject *deleted;              /* set of topic + '+' + unique key: those that were taken back */
    long long now, doubt_end, doubt_ms, far_ms, shifted_below;
} delivering;

/* Whether it was taken back; -1 with an exception. */
static int is_deleted(const delivering *d, const parked *m) {
    if (!PySet_GET_SIZE(d->deleted)) return 0;
    uint8_t text[2 * HF_TEXT_MAX + 1];
    if (m->topic.size > HF_TEXT_MAX || m->known.unique.size > HF_TEXT_MAX) return 1; /* let the handler look */
    uint8_t *p = put_bytes(text, m->topic.p, m->topic.size);
    *p++ = '+';
    p = put_bytes(p, m->known.unique.p, m->known.unique.size);
    PyObject *key = PyUnicode_DecodeUTF8((const char *)text, p - text, "replace");
    int found = key ? PySet_Contains(d->deleted, key) : -1;
    Py_XDECREF(key);
    return found;
}

/* Whether the clock was set forward while it waited for as long as it asked for. */
static int is_shifted(const delivering *d, const parked *m, const hf_scanned *s) {
    return s->queue_offset < d->shifted_below && (m->timed.seconds.size || m->timed.milliseconds.size);
}

/* Whether a copy of it, or it itself put into the wheel again, may be in the log from before the start. */
static int is_doubtful(const delivering *d, const uint8_t *record, const hf_scanned *s, int64_t due) {
    if (s->physical >= d->doubt_end) return 0;
    int64_t born = (int64_t)get64(record + 40), since = born < s->store_timestamp ? born : s->store_timestamp;
    return due <= d->doubt_ms || since < 0 || due - since >= d->far_ms;
}

/* Copies one message to its real topic: NEXT_DONE, NEXT_ERROR, or it is left to whoever asked. */
static int deliver_one(hf_lane *l, const delivering *d, int64_t physical, int32_t size, hf_slice *topic) {
    int64_t now = d->now;
    hf_journal *j = l->journal;
    if (size <= 0 || (uint32_t)size > l->body_max + RECORD_BYTES_BESIDE_BODY || physical < 0 || physical > j->written - size) return NEXT_HANDLER;
    if (!hf_lane_room(&l->half, &l->half_room, (size_t)size + 128)) return NEXT_ERROR;
    hf_piece piece = {physical, 0, size};
    if (hf_journal_fetch(j, &piece, 1, l->half)) return NEXT_HANDLER;
    hf_scanned s;
    parked m;
    if (hf_scan_one(l->half, (size_t)size, 1, j->summed_from, &s) || s.size != (uint32_t)size || s.physical != physical) return NEXT_HANDLER;
    if (!hf_slice_is(s.topic, HF_TIMER_TOPIC) || !read_parked(s.properties, &m) || !m.known.unique.size) return NEXT_HANDLER;
    int64_t due = parked_due(&m, s.store_timestamp), queue_id;
    if (!due || due > now || s.store_timestamp < 0 || is_doubtful(d, l->half, &s, due) || is_shifted(d, &m, &s)) return NEXT_HANDLER;
    int deleted = is_deleted(d, &m);
    if (deleted) return deleted < 0 ? NEXT_ERROR : NEXT_HANDLER;
    PyObject *entry = hf_lane_topic(l, m.topic);
    if (!entry) return PyErr_Occurred() ? NEXT_ERROR : NEXT_HANDLER;
    if (!m.queue.size || *m.queue.p == '-' || !hf_parse_int(m.queue.p, m.queue.size, 0, INT32_MAX, &queue_id)) return NEXT_HANDLER;
    hf_queue *queue = hf_lane_queue(PyTuple_GET_ITEM(entry, 0), queue_id);
    if (!queue) return NEXT_HANDLER;
    hf_record r = copy_of(l->half);
    uint8_t *stamps = l->half + size;
    uint8_t *p = put_number_pair(stamps, "TIMER_ENQUEUE_MS", second_of(s.store_timestamp));
    p = put_number_pair(p, "TIMER_DEQUEUE_MS", now);
    r.topic = m.topic;
    r.queue_id = (int32_t)queue_id;
    r.properties = m.kept;
    r.suffix = (hf_slice){stamps, (uint32_t)(p - stamps)};
    r.append_crc = l->append_crc;
    r.store_timestamp = hf_lane_stamp(l, now);
    size_t bytes = hf_record_size(&r);
    if (!bytes) return NEXT_HANDLER;
    int next = hf_lane_reserve(l, bytes, hf_keys_max(&m.known), &r.physical_offset);
    if (next != NEXT_DONE) return next;
    if (!hf_lane_place(l, queue, &r, bytes, &m.known)) return NEXT_ERROR;
    l->delivered++;
    *topic = m.topic;
    return NEXT_DONE;
}

/* deliver(entries, start, deleted, now_ms, doubt_end, doubt_ms, far_ms, shifted_below) -> (at, [(topic, messages), ...])
   entries: [(log offset, size), ...] of messages that are due. The ones from `start` up to `at` are copied; that one is left
   to timerdelivery.py. Those below doubt_end may have been copied before if they were due by doubt_ms, or put into the wheel
   again if they waited for far_ms; delays of those below shifted_below in the queue may have been moved. */
PyObject *hf_lane_deliver(hf_lane *l, PyObject *args) {
    PyObject *entries;
    Py_ssize_t at;
    long long physical;
    delivering d;
    if (!PyArg_ParseTuple(args, "O!nO!LLLLL", &PyList_Type, &entries, &at, &PySet_Type, &d.deleted, &d.now, &d.doubt_end, &d.doubt_ms, &d.far_ms, &d.shifted_below)) return NULL;
    PyObject *counts = PyList_New(0);
    if (!counts) return NULL;
    hf_lane_begin(l);
    uint8_t name[HF_TEXT_MAX];
    hf_slice topic, last = {name, 0};
    Py_ssize_t count = 0, begun = at;
    int size, next = NEXT_DONE;
    while (next == NEXT_DONE && at >= 0 && at < PyList_GET_SIZE(entries)) {
        if (!PyArg_ParseTuple(PyList_GET_ITEM(entries, at), "Li", &physical, &size)) next = NEXT_ERROR;
        else next = deliver_one(l, &d, physical, size, &topic);
        if (next != NEXT_DONE) break;
        at++;
        if (!count_topic(counts, topic, &last, &count)) { next = NEXT_ERROR; break; }
        last = (hf_slice){name, (uint32_t)(put_bytes(name, topic.p, topic.size) - name)}; /* the record is read over */
    }
    if (next == NEXT_ERROR && at == begun) { Py_DECREF(counts); return NULL; }
    PyErr_Clear(); /* what was copied has to be known, or it is copied again; what failed fails again */
    if (!end_counts(counts, last, count)) PyErr_Clear(); /* of counts, which are for people, one may be short then */
    return Py_BuildValue("(nN)", at, counts);
}

/* ---- taken up ---- */
typedef struct { int64_t time_s, first, last, count; } head;
typedef struct {
    Py_buffer data, wheel;
    long long now, read_s, window_ms, end, file_bytes, record_end, queue_offset;
    head heads[HEADS_MAX];
    int heads_count;
    int16_t places[PLACES];            /* by the slot's place in the wheel: which head, and one; 0: none */
} taking;

/* The chain's head of this second, as it is or as it will be; NULL when its place is another's, or there is no room for more. */
static head *head_of(taking *t, int64_t time_s) {
    int64_t slots = t->wheel.len / SLOT_BYTES;
    size_t place = (size_t)(time_s % slots) % PLACES;
    for (; t->places[place]; place = (place + 1) % PLACES) {
        head *h = &t->heads[t->places[place] - 1];
        if (h->time_s == time_s) return h;
        if (h->time_s % slots == time_s % slots) return NULL;
    }
    const uint8_t *slot = slot_place(&t->wheel, time_s);
    int64_t holder = (int64_t)get64(slot);
    if (t->heads_count == HEADS_MAX || (holder > 0 && holder != time_s && holder >= t->read_s)) return NULL;
    head *h = &t->heads[t->heads_count++];
    t->places[place] = (int16_t)t->heads_count;
    if (holder > 0 && holder == time_s) *h = (head){time_s, (int64_t)get64(slot + 8), (int64_t)get64(slot + 16), (int32_t)get32(slot + 24)};
    else *h = (head){time_s, t->end, -1, 0};
    return h;
}

/* Its unit, written at `out`; 0 when it is left to whoever asked. As broker/timerwindow.py makes it, and timerfiles.py chains it. */
static int take_one(taking *t, const hf_scanned *s, uint8_t *out, hf_slice *topic) {
    parked m;
    if (t->file_bytes - t->end % t->file_bytes < UNIT_BYTES + UNIT_BLANK_BYTES) return 0;
    if (!read_parked(s->properties, &m) || s->store_timestamp < 0 || s->size > INT32_MAX) return 0;
    int64_t due = parked_due(&m, s->store_timestamp);
    if (!due) return 0;
    int64_t now = t->now, lead = s->store_timestamp < t->now + LEAD_MS_MAX ? s->store_timestamp : t->now + LEAD_MS_MAX;
    if (lead > now) now = lead;
    int64_t written = second_of(now), time_ms = due - 1;
    if (time_ms - written >= t->window_ms) return 0;
    if (time_ms / SECOND_MS < t->read_s) time_ms = t->read_s * SECOND_MS;
    if (written > second_of(time_ms)) written = second_of(time_ms);
    if (time_ms - written > INT32_MAX) return 0;
    head *h = head_of(t, time_ms / SECOND_MS);
    if (!h) return 0;
    out = put32(out, UNIT_BYTES);
    out = put64(out, (uint64_t)h->last);
    out = put32(out, 1);
    out = put64(out, (uint64_t)written);
    out = put32(out, (uint32_t)(time_ms - written));
    out = put64(out, (uint64_t)s->physical);
    out = put32(out, s->size);
    out = put32(out, (uint32_t)hf_java_hash(m.topic.p, m.topic.size));
    put64(out, 0);
    h->last = t->end;
    if (h->count < INT32_MAX) h->count++;
    t->end += UNIT_BYTES;
    t->record_end = s->physical + s->size;
    t->queue_offset = s->queue_offset;
    *topic = m.topic;
    return 1;
}

static PyObject *heads_list(const taking *t) {
    PyObject *list = PyList_New(t->heads_count);
    for (int i = 0; list && i < t->heads_count; i++) {
        const head *h = &t->heads[i];
        PyObject *one = Py_BuildValue("(LLLL)", (long long)h->time_s, (long long)h->first, (long long)h->last, (long long)h->count);
        if (!one) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, one);
    }
    return list;
}

/* timer_units(data, wheel, now_ms, read_s, window_ms, end, file_bytes)
       -> (consumed, units, heads, topics, record end, next queue offset)
   The leading records of the timer topic's queue in `data` as units one behind the other at `end` of the timer log, up to the
   first that is not plain. heads: (second, first, last, count) of each slot as it is then; topics: [(topic, messages), ...]. */
PyObject *hf_timer_units(PyObject *module, PyObject *args) {
    (void)module;
    taking *t = PyMem_Calloc(1, sizeof *t);
    if (!t) return PyErr_NoMemory();
    if (!PyArg_ParseTuple(args, "y*y*LLLLL", &t->data, &t->wheel, &t->now, &t->read_s, &t->window_ms, &t->end, &t->file_bytes)) { PyMem_Free(t); return NULL; }
    t->queue_offset = t->record_end = -1;
    size_t at = 0, size = (size_t)t->data.len, room = 0, used = 0;
    uint8_t *units = NULL;
    hf_slice topic, last = {NULL, 0};
    Py_ssize_t count = 0;
    PyObject *counts = PyList_New(0), *heads = NULL, *result = NULL;
    if (!counts) goto out;
    if (t->wheel.len < SLOT_BYTES || t->now < 0 || t->read_s < 0 || t->end < 0 || t->file_bytes <= 0) { PyErr_SetString(PyExc_ValueError, "timer_units: no wheel, or a number below 0"); goto out; }
    for (hf_scanned s; !hf_scan_one((const uint8_t *)t->data.buf + at, size - at, 0, INT64_MAX, &s); at += s.size) {
        if (!hf_lane_room(&units, &room, used + UNIT_BYTES)) goto out;
        if (!take_one(t, &s, units + used, &topic)) break;
        used += UNIT_BYTES;
        if (!count_topic(counts, topic, &last, &count)) goto out;
    }
    if (!end_counts(counts, last, count) || !(heads = heads_list(t))) goto out;
    result = Py_BuildValue("(ny#OOLL)", (Py_ssize_t)at, units ? (const char *)units : "", (Py_ssize_t)used, heads, counts, t->record_end, t->queue_offset + 1);
out:
    Py_XDECREF(heads);
    Py_XDECREF(counts);
    PyMem_Free(units);
    PyBuffer_Release(&t->data);
    PyBuffer_Release(&t->wheel);
    PyMem_Free(t);
    return result;
}

"""Questions over the wire: by id, by key, by time. Found, not found and why, too many at once."""

import itertools
import threading
from concurrent import futures

import pytest

from hotfire.broker.broker import Broker
from hotfire.broker.call import HANDLERS, Call, Outcome
from hotfire.broker.handlers.beside import answer_beside
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records, key_hash, offset_message_id
from hotfire.protocol.requests import (
    GetBrokerRuntimeInfo,
    QueryMessage,
    SearchOffsetByTimestamp,
    SendReply,
    ViewMessageById,
)
from hotfire.store import queries
from tests.unit.broker.conftest import Make
from tests.unit.broker.damage import inquire
from tests.unit.broker.harness import START_MS, STORE_HOST, Harness, bodies, pull_request, send_request

SECOND_MS = 1000
EVER = 1 << 60


def send(heart: Harness, body: bytes, queue_id: int = 0, **named: str) -> SendReply:
    reply = heart.send(topic="T", queue_id=queue_id, body=body, named=named)
    assert reply.code == 0
    return SendReply.from_command(reply)


def by_key(heart: Harness, key: str, begin: int = 0, end: int = EVER, **fields: object) -> Command:
    asked = {
        "topic": "T",
        "key": key,
        "max_num": 64,
        "begin_timestamp": begin,
        "end_timestamp": end,
        **fields,
    }
    return inquire(heart, QueryMessage(**asked))  # type: ignore[arg-type]


def by_time(heart: Harness, timestamp: int, queue_id: int = 0, boundary: str | None = None) -> int:
    request = SearchOffsetByTimestamp(
        topic="T", queue_id=queue_id, timestamp=timestamp, boundary_type=boundary
    )
    reply = inquire(heart, request)
    assert (reply.code, reply.fields and set(reply.fields)) == (0, {"offset"})
    return int((reply.fields or {})["offset"])


# --- by id ---


@pytest.mark.promise(156)
def test_the_id_of_a_send_result_leads_to_its_message(heart: Harness) -> None:
    """16 bytes, store host and log offset: VIEW_MESSAGE_BY_ID with that offset gives the same message."""
    replies = [send(heart, b"body %d" % n, n % 4, KEYS=f"k{n}") for n in range(10)]
    for n, reply in enumerate(replies):
        raw = bytes.fromhex(reply.msg_id)
        address, port, offset = raw[:4], int.from_bytes(raw[4:8]), int.from_bytes(raw[8:])
        assert (address, port, len(raw)) == (STORE_HOST.address, STORE_HOST.port, 16)
        found = inquire(heart, ViewMessageById(offset=offset))
        assert found.code == 0
        (record,) = iter_records(found.body)
        assert (record.body, record.queue_id, record.queue_offset) == (b"body %d" % n, n % 4, n // 4)
        assert offset_message_id(address, port, record.physical_offset) == reply.msg_id == record.message_id


@pytest.mark.promise(156)
def test_an_id_without_a_message_is_an_error(heart: Harness) -> None:
    """Between records, behind the end, before the beginning: code 1, and the offset is named."""
    send(heart, b"only")
    for offset in (1, heart.store.end, heart.store.end + 1, 1 << 62, -1, -(1 << 63)):
        reply = inquire(heart, ViewMessageById(offset=offset))
        assert (reply.code, reply.body) == (1, b"")
        assert reply.remark == f"can not find message by the offset, {offset}"


def test_a_size_that_a_peer_made_up_is_not_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset into a body finds whatever was put there: a record of so many bytes is none."""
    heart = make()
    heart.create_topic("T")
    monkeypatch.setattr(queries, "RECORD_BYTES_MAX", 4096)
    heart.send(body=(5000).to_bytes(4) * 1000)
    heart.send(body=bytes(8000))
    (record, _) = heart.log_records()
    asked: list[int] = []
    read = heart.disk.read

    def counted(fd: int, size: int, position: int) -> bytes:
        asked.append(size)
        return read(fd, size, position)

    monkeypatch.setattr(heart.disk, "read", counted)
    offset = record.physical_offset + 200 - 200 % 4
    for at in range(offset, offset + 4):
        assert inquire(heart, ViewMessageById(offset=at)).code == 1
    assert max(asked) == 4


def test_an_answer_no_client_takes_is_said_and_others_go_on(
    heart: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large for a frame: its asker is told, and whoever asked beside it has his answer."""
    send(heart, b"only")

    def huge(broker: Broker, call: Call[GetBrokerRuntimeInfo]) -> Outcome:
        return answer_beside(broker, call, lambda look: bytes(17 << 20))

    monkeypatch.setitem(HANDLERS, GetBrokerRuntimeInfo, huge)
    first, second = heart.receive(GetBrokerRuntimeInfo(), ViewMessageById(offset=0))
    done, _ = futures.wait([question.answer for question in heart.store.queries._asked], timeout=10)
    assert len(done) == 2
    heart.ring()
    replies = {reply.opaque: reply for reply in heart.connection.take()}
    assert (replies[first].code, replies[second].code) == (1, 0)
    assert "send less at once" in (replies[first].remark or "")


# --- by key ---


@pytest.mark.promise(157)
def test_a_key_finds_its_messages_within_the_span(make: Make) -> None:
    """Three with the key, one of them outside: two, over several index files. The reply says how far the
    index goes."""
    heart = make(max_hash_slot_num=8, max_index_num=5)
    heart.create_topic("T")
    for n in range(3):
        heart.now_ms = START_MS + n * 10 * SECOND_MS
        last = send(heart, b"%d" % n, KEYS="order-7", UNIQ_KEY=f"u{n}")
    assert len(list((heart.root / "index").iterdir())) > 1
    reply = by_key(heart, "order-7", START_MS + 5 * SECOND_MS, START_MS + 60 * SECOND_MS)
    assert (reply.code, bodies(reply)) == (0, [b"1", b"2"])
    offset = int(last.msg_id[-16:], 16)
    expected = {
        "indexLastUpdateTimestamp": str(heart.now_ms),
        "indexLastUpdatePhyoffset": str(offset),
    }
    assert reply.fields == expected
    assert bodies(by_key(heart, "order-7", max_num=1)) == [b"2"], "of more than so many the newest"
    assert by_key(heart, "order-7", max_num=0).code == 22
    refused = by_key(heart, "order-7", max_num=-1)
    assert (refused.code, refused.remark) == (1, "maxNum is -1, ask for 1 message or more")


@pytest.mark.promise(30)
def test_every_word_of_the_keys_the_unique_key_and_the_tag(heart: Harness) -> None:
    """KEYS="a b": found by a, by b and by the unique key; by its tag when that is asked for."""
    send(heart, b"one", KEYS="a b", UNIQ_KEY="unique-1", TAGS="red")
    send(heart, b"other", KEYS="c", UNIQ_KEY="unique-2")
    for key in ("a", "b", "unique-1"):
        assert bodies(by_key(heart, key)) == [b"one"]
    assert bodies(by_key(heart, "unique-1", unique=True, max_num=0)) == [b"one"]
    assert bodies(by_key(heart, "red", index_type="T")) == [b"one"]
    assert by_key(heart, "red").code == 22


@pytest.mark.promise(29, 159)
def test_keys_of_one_hash_or_of_one_slot_each_find_their_own(make: Make) -> None:
    """`Aa` and `BB` have one hash; others share their slot: no query returns another's message."""
    heart = make(max_hash_slot_num=8, max_index_num=1000)
    heart.create_topic("T")
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    slot = key_hash("T", "Aa") % 8
    twins = list(itertools.islice((f"k{i}" for i in range(999) if key_hash("T", f"k{i}") % 8 == slot), 4))
    keys = ["Aa", "BB", *twins]
    for round_ in range(2):
        for key in keys:
            send(heart, f"{key} {round_}".encode(), KEYS=key)
    for key in keys:
        assert bodies(by_key(heart, key)) == [f"{key} {round_}".encode() for round_ in range(2)]


def test_a_key_without_messages_says_so(heart: Harness) -> None:
    """Unknown key, another topic, a span before it: code 22 and the reference's remark."""
    send(heart, b"one", KEYS="a")
    for reply in (
        by_key(heart, "b"),
        by_key(heart, "a", topic="U"),
        by_key(heart, "a", end=START_MS - SECOND_MS),
        by_key(heart, "a", begin=START_MS + SECOND_MS),
    ):
        assert (reply.code, reply.body) == (22, b"")
        assert reply.remark == "can not find message, maybe time range not correct"
        assert reply.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


@pytest.mark.promise(31)
def test_without_an_index_a_key_query_says_why(make: Make) -> None:
    """messageIndexEnable=false: no file under index/, pulls as ever, and the setting is named."""
    heart = make(message_index_enable=False)
    heart.create_topic("T")
    reply = send(heart, b"one", KEYS="a")
    assert not (heart.root / "index").exists()
    assert bodies(heart.ask(pull_request())) == [b"one"]
    refused = by_key(heart, "a")
    assert refused.code == 22
    assert "messageIndexEnable is false" in (refused.remark or "")
    found = inquire(heart, ViewMessageById(offset=int(reply.msg_id[-16:], 16)))
    assert bodies(found) == [b"one"]


# --- by time ---


@pytest.mark.promise(158)
def test_a_span_of_time_is_read_from_every_queue(heart: Harness) -> None:
    """Both ends searched in each queue, and what lies between them pulled: exactly the span's messages."""
    for n in range(40):
        heart.now_ms = START_MS + n * SECOND_MS
        send(heart, b"%d" % n, n % 4)
    begin, end = START_MS + 9 * SECOND_MS, START_MS + 27 * SECOND_MS
    found = []
    for queue_id in range(4):
        low, high = by_time(heart, begin, queue_id), by_time(heart, end, queue_id, "UPPER")
        reply = heart.ask(pull_request(low, queue_id=queue_id, max_msg_nums=high - low + 1))
        found += [int(body) for body in bodies(reply)]
    assert sorted(found) == list(range(9, 28))


def test_times_outside_a_queue_have_their_offsets(heart: Harness) -> None:
    """Lower: 0 before all, the maximum after all. Upper: 0 before all, the last after all. Empty: 0."""
    for n in range(3):
        heart.now_ms = START_MS + n * SECOND_MS
        send(heart, b"%d" % n)
    assert [by_time(heart, START_MS + at) for at in (-1, 0, 1, 2000, 2001)] == [0, 0, 1, 2, 3]
    upper = [by_time(heart, START_MS + at, boundary="upper") for at in (-1, 0, 1, 2000, 2001)]
    assert upper == [0, 0, 0, 2, 2]
    assert [by_time(heart, START_MS, 3), by_time(heart, START_MS, 3, "upper")] == [0, 0]
    assert by_time(heart, -(1 << 63)) == 0
    assert by_time(heart, (1 << 63) - 1) == 3


# --- beside the loop ---


@pytest.mark.promise(70, 161)
def test_a_hundred_questions_under_way_hold_nobody_up(heart: Harness) -> None:
    """While queries, views and searches all wait for a disk that does not answer, sends and pulls go on."""
    first = send(heart, b"first", KEYS="a")
    view = ViewMessageById(offset=int(first.msg_id[-16:], 16))
    key = QueryMessage(topic="T", key="a", max_num=1, begin_timestamp=0, end_timestamp=EVER)
    time = SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=START_MS)
    asker, disk_answers = heart.connect(50_200), threading.Event()
    heart.store.queries.disk.aside(disk_answers.wait, rests=False)
    heart.receive(*itertools.islice(itertools.cycle([view, key, time]), 100), to=asker)
    try:
        for number in range(50):
            for request in (
                send_request(topic="T", queue_id=0, body=b"%d" % number),
                pull_request(topic="T", queue_id=0, queue_offset=number + 1),
            ):
                heart.receive(request)
                heart.settle()
                reply = heart.connection.take_one()
                assert reply.code == 0
            assert bodies(reply) == [b"%d" % number]
        assert asker.take() == []
    finally:
        disk_answers.set()
    answered: list[Command] = []
    while len(answered) < 100:
        heart.ring()
        answered += asker.take()
    assert {reply.code for reply in answered} == {0}


@pytest.mark.parametrize("asked", [1, 300])
def test_the_brokers_own_work_stands_in_no_line_with_clients(heart: Harness, asked: int) -> None:
    """However many slow questions of clients wait, a timer's slot is read, and its message comes on time."""
    first = send(heart, b"first", KEYS="a")
    view = ViewMessageById(offset=int(first.msg_id[-16:], 16))
    asker, disk_answers = heart.connect(50_200), threading.Event()
    heart.store.queries.disk.aside(disk_answers.wait, rests=False)
    heart.receive(*[view] * asked, to=asker)
    try:
        heart.receive(send_request(body=b"timed", named={"TIMER_DELAY_MS": "5000"}))
        heart.settle()
        assert heart.connection.take_one().code == 0
        waiting = heart.store.queries.waiting
        assert waiting == asked
        for _ in range(100):
            heart.now_ms += 50
            heart.tick()
            heart.settle()
            while heart.store.queries.waiting > waiting:
                heart.ring()
                heart.settle()
        heart.receive(pull_request(topic="T", queue_id=0, queue_offset=1))
        reply = heart.connection.take_one()
        assert bodies(reply) == [b"timed"]
        assert asker.take() == []
    finally:
        disk_answers.set()
    while heart.store.queries.waiting:
        heart.ring()
    assert [reply.code for reply in asker.take()] == [0] * asked


# --- limits ---


def test_more_questions_than_wait_are_turned_away(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 2 and a word to try again, for each kind; those before are answered, and then there is room."""
    monkeypatch.setattr(queries, "WAITING_MAX", 3)
    first = send(heart, b"one", KEYS="a")
    offset = int(first.msg_id[-16:], 16)
    view = ViewMessageById(offset=offset)
    key = QueryMessage(topic="T", key="a", max_num=1, begin_timestamp=0, end_timestamp=EVER)
    time = SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=START_MS)
    opaques = heart.receive(view, key, time, view, key, time)
    refused = heart.connection.take()
    assert [reply.code for reply in refused] == [2, 2, 2]
    assert {reply.remark for reply in refused} == {"too many queries wait already; try again later"}
    assert [reply.opaque for reply in refused] == opaques[3:]
    answered: list[Command] = []
    while len(answered) < 3:
        heart.ring()
        answered += heart.connection.take()
    assert [(reply.code, reply.opaque) for reply in answered] == [(0, opaque) for opaque in opaques[:3]]
    assert inquire(heart, view).code == 0


def test_a_question_whose_asker_has_left_is_dropped(heart: Harness) -> None:
    """Nothing is written to a closed connection, and others are answered."""
    reply = send(heart, b"one")
    view = ViewMessageById(offset=int(reply.msg_id[-16:], 16))
    leaver = heart.connect(50_100)
    heart.receive(view, to=leaver)
    heart.disconnect(leaver)
    assert bodies(inquire(heart, view)) == [b"one"]
    assert leaver.take() == []

"""The generator of load, compiled and plain: what it sends, what it counts, and whom it does not believe."""

import socket
import struct
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.cli.benchframes import pull_frames, send_frames
from hotfire.cli.latencies import Latencies, bucket_ns
from hotfire.core import plain_load
from hotfire.core.load import Load
from hotfire.model import MessageQueue
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, decode, encode, frame_size
from hotfire.protocol.record import Host, Record, encode_record, parse_properties
from hotfire.protocol.requests import PullMessage, SendBatchMessage, SendMessageV2

pytestmark = pytest.mark.core

MARK = b"run-mark"
REPLY = b'{"code":0,"opaque":1000000000}'
QUEUES = [MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)]
KINDS = [Serialization.JSON, Serialization.ROCKETMQ]
TWINS = list(dict.fromkeys([plain_load.Load, Load]))


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__module__.rpartition(".")[2])
def twin(request: pytest.FixtureRequest) -> Any:
    return request.param


class Broker:
    """The other end of a connection, played by the test."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.theirs.setblocking(False)
        self.ours.settimeout(10)
        self._received = b""

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()

    def take(self, count: int) -> list[Command]:
        """The next requests."""
        taken: list[Command] = []
        while len(taken) < count:
            size = frame_size(self._received)
            if size and len(self._received) >= size:
                taken.append(decode(self._received[:size]))
                self._received = self._received[size:]
            else:
                self._received += self.ours.recv(1 << 20)
        return taken

    def has_more(self) -> bool:
        self.ours.setblocking(False)
        try:
            self._received += self.ours.recv(1 << 20)
        except BlockingIOError:
            pass
        finally:
            self.ours.settimeout(10)
        return bool(self._received)

    def answer(self, requests: list[Command], code: int = 0, **more: Any) -> None:
        self.say(b"".join(encode(one.reply(code, **more)) for one in requests))

    def say(self, data: bytes) -> None:
        self.ours.sendall(data)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def add_writer(load: Any, broker: Broker, window: int, **more: Any) -> None:
    given_ = {"size": 32, "batch": 1, "mark": MARK, "group": "g", **more}
    load.add_writer(broker.theirs.fileno(), window, given_["batch"], send_frames(QUEUES, **given_))


def add_reader(load: Any, broker: Broker, *places: tuple[int, int], **more: Any) -> None:
    frames = pull_frames(QUEUES[: len(places)], count=32, group="g", wait=True, **more)
    load.add_reader(broker.theirs.fileno(), frames, list(places))


def record(offset: int, body: bytes) -> bytes:
    host = Host.parse("127.0.0.1", 10911)
    made = Record(
        topic="T", body=body, properties=b"", queue_id=0, queue_offset=offset, physical_offset=offset * 200,
        born_host=host, store_host=host, born_timestamp=1, store_timestamp=2,
    )  # fmt: skip
    return encode_record(made, append_crc=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_window_is_kept_full_until_all_is_sent(twin: Any, broker: Broker, kind: Serialization) -> None:
    """Never more under way than the window, queues in turn, a key for each message, and exactly so many."""
    load = twin(MARK)
    add_writer(load, broker, 4, kind=kind)
    load.sends_max = 10
    assert load.run(0.0)
    keys, queues = set(), []
    for count in (4, 4, 2):
        requests = broker.take(count)
        assert not broker.has_more()
        for one in requests:
            send = SendMessageV2.from_command(one)
            keys.add(parse_properties((send.properties or "").encode())["UNIQ_KEY"])
            queues.append(send.queue_id)
            assert send.born_timestamp > 1_600_000_000_000
        broker.answer(requests[::-1], serialization=kind)  # in any order
        is_going = load.run(0.02)
    assert not is_going
    assert len(keys) == 10
    assert queues == [0, 1] * 5
    assert (load.asked, load.answered, load.acked, load.in_flight, load.codes) == (10, 10, 10, 0, {0: 10})
    assert Latencies.of(load.answer_latencies).count == 10
    load.clear()
    assert Latencies.of(load.answer_latencies).count == 0


def test_batches_count_every_message(twin: Any, broker: Broker) -> None:
    """A batch is one request and many messages, each with a key and a clock of its own."""
    load = twin(MARK)
    add_writer(load, broker, 1, batch=5)
    load.sends_max = 5
    load.run(0.0)
    requests = broker.take(1)
    messages = decode_batch(SendBatchMessage.from_command(requests[0]).body)
    assert len({parse_properties(one.properties)["UNIQ_KEY"] for one in messages}) == 5
    assert all(one.body[:8] == MARK and one.body[8:16] != bytes(8) for one in messages)
    broker.answer(requests)
    assert not load.run(0.02)
    assert (load.asked, load.acked, load.answered) == (5, 5, 1)


def test_a_refusal_is_counted_and_kept(twin: Any, broker: Broker) -> None:
    """Codes are counted, the first frame that said no can be read, and its latency is not one of a send."""
    load = twin(MARK)
    add_writer(load, broker, 2)
    load.sends_max = 2
    load.run(0.0)
    first, second = broker.take(2)
    broker.answer([first], 2, remark='busy, "opaque":1000000000, try later')
    broker.answer([second])
    assert not load.run(0.02)
    assert (load.acked, load.codes) == (1, {0: 1, 2: 1})
    assert decode(load.refusal).code == 2
    assert Latencies.of(load.answer_latencies).count == 1


def test_a_rate_is_not_exceeded(twin: Any, broker: Broker) -> None:
    """With one message in a thousand seconds there is one, however wide the window is."""
    load = twin(MARK, 0.001)
    add_writer(load, broker, 8)
    assert load.run(0.02)
    assert (load.asked, load.in_flight) == (1, 1)


def test_who_stops_sends_no_more(twin: Any, broker: Broker) -> None:
    """After stop answers are still taken."""
    load = twin(MARK)
    add_writer(load, broker, 3)
    load.run(0.0)
    load.stop()
    broker.answer(broker.take(3))
    assert not load.run(0.02)
    assert (load.asked, load.acked) == (3, 3)
    assert not broker.has_more()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">iI", 1 << 25, 0), id="a frame over the limit"),
        pytest.param(struct.pack(">iI", -1, 0), id="a negative length"),
        pytest.param(struct.pack(">iI", 3, 0), id="a frame without its mark"),
        pytest.param(struct.pack(">iI", 12, len(REPLY)) + REPLY, id="a header longer than its frame"),
        pytest.param(struct.pack(">iI", 12, 2 << 24 | 8) + b"x" * 8, id="a serialisation nobody knows"),
        pytest.param(struct.pack(">iI", 12, 1 << 24 | 8) + b"x" * 8, id="a binary header too short"),
        pytest.param(struct.pack(">iI", 14, 10) + b'{"code":0}', id="a reply to nobody"),
        pytest.param(struct.pack(">iI", 6, 2) + b"{}", id="a reply without a code"),
    ],
)
def test_what_is_no_reply_ends_the_connection(twin: Any, broker: Broker, data: bytes) -> None:
    """No length and no header is believed beyond its bounds: the connection is given up, and that is told."""
    load = twin(MARK)
    add_writer(load, broker, 2)
    load.run(0.0)
    broker.say(data)
    assert not load.run(0.02)
    assert (load.lost, load.unanswered, load.in_flight) == (1, 2, 0)


def test_a_peer_that_hangs_up_is_counted(twin: Any, broker: Broker) -> None:
    """What it had not answered is told; the other connection goes on."""
    other = Broker()
    load = twin(MARK)
    add_writer(load, broker, 2)
    add_writer(load, other, 1)
    load.run(0.0)
    broker.ours.close()
    other.answer(other.take(1))
    assert load.run(0.02)
    assert (load.lost, load.unanswered, load.acked, load.in_flight) == (1, 2, 1, 1)
    load.close()
    other.close()


def test_a_stray_reply_changes_nothing(twin: Any, broker: Broker) -> None:
    """Questions of the broker and replies that come twice are passed over."""
    load = twin(MARK)
    add_writer(load, broker, 1)
    load.sends_max = 1
    load.run(0.0)
    requests = broker.take(1)
    broker.say(encode(Command(40, opaque=7)))
    broker.answer([*requests, *requests])
    assert not load.run(0.02)
    assert (load.stray, load.acked, load.answered) == (2, 1, 1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_reader_goes_on_where_records_end(twin: Any, broker: Broker, kind: Serialization) -> None:
    """Offsets follow what was delivered; messages of this run are timed; gaps and repetitions are counted."""
    load = twin(MARK)
    add_reader(load, broker, (5, -1), kind=kind)
    load.run(0.0)
    requests = broker.take(1)
    assert PullMessage.from_command(requests[0]).queue_offset == 5
    own, strange = MARK + bytes(8), b"somebody else's"
    body = b"".join([record(5, own), record(6, strange), record(6, strange), record(9, own)])
    broker.answer(requests, fields={"nextBeginOffset": "10"}, body=body, serialization=kind, remark="FOUND")
    assert load.run(0.02)
    assert (load.delivered, load.delivered_own, load.repeated, load.missed) == (4, 2, 1, 2)
    assert Latencies.of(load.delivery_latencies).count == 2
    requests = broker.take(1)
    assert PullMessage.from_command(requests[0]).queue_offset == 10
    broker.answer(requests, 21, fields={"nextBeginOffset": "100"}, serialization=kind)  # the offset moved
    load.run(0.02)
    assert PullMessage.from_command(broker.take(1)[0]).queue_offset == 100


def test_a_reader_begins_again_at_the_end(twin: Any, broker: Broker) -> None:
    """Nothing there: it goes back to where it may; one that is refused asks no more; enough is enough."""
    load = twin(MARK)
    add_reader(load, broker, (7, 3), (0, -1))
    load.deliveries_max = 1
    load.run(0.0)
    first, second = broker.take(2)
    broker.answer([first], 19, fields={"nextBeginOffset": "7"})
    broker.answer([second], 24, remark="no such group")
    assert load.run(0.02)
    again = broker.take(1)
    assert PullMessage.from_command(again[0]).queue_offset == 3
    assert not broker.has_more()
    broker.answer(again, body=record(3, b"x"), fields={"nextBeginOffset": "4"})
    assert not load.run(0.02)
    assert (load.delivered, load.codes) == (1, {0: 1, 19: 1, 24: 1})


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda whole: whole[:-1], id="cut short"),
        pytest.param(lambda whole: struct.pack(">i", -5) + whole[4:], id="a negative size"),
        pytest.param(lambda whole: struct.pack(">i", 40) + whole[4:], id="smaller than any record"),
        pytest.param(lambda whole: whole[:84] + b"\x7f" + whole[85:], id="a body longer than its record"),
        pytest.param(lambda whole: whole[:39] + b"\x30" + whole[40:], id="flags that shift the body's size"),
    ],
)
def test_records_are_held_against_their_bounds(twin: Any, broker: Broker, spoil: Any) -> None:
    """A record whose sizes do not agree ends the connection, before anything behind it is read."""
    load = twin(MARK)
    add_reader(load, broker, (0, -1))
    load.run(0.0)
    broker.answer(broker.take(1), body=spoil(record(0, b"y" * 4)))
    assert not load.run(0.02)
    assert (load.lost, load.delivered) == (1, 0)


def test_wrong_plans_are_refused(twin: Any, broker: Broker) -> None:
    """A place outside its frame, a window of nothing, a mark of another size: all refused at once."""
    frame = send_frames(QUEUES, size=32, batch=1, mark=MARK, group="g")[0]
    size, fd = len(frame[0]), broker.theirs.fileno()
    load = twin(MARK)
    for place in range(1, 4):
        wrong = (*frame[:place], size - 5, *frame[place + 1 :])
        with pytest.raises(ValueError, match="behind the frame's end"):
            load.add_writer(fd, 1, 1, [wrong])
    for place in (4, 5):
        wrong = (*frame[:place], (size - 7,), *frame[place + 1 :])
        with pytest.raises(ValueError, match="behind the frame's end"):
            load.add_writer(fd, 1, 1, [wrong])
    with pytest.raises(ValueError, match="window"):
        load.add_writer(fd, 0, 1, [frame])
    with pytest.raises(ValueError, match="frames"):
        load.add_writer(fd, 1, 1, [])
    with pytest.raises(ValueError, match="place"):
        load.add_reader(fd, [frame], [(0, -1)])
    with pytest.raises(ValueError, match="mark"):
        twin(b"short")
    load.close()
    with pytest.raises(RuntimeError, match="closed"):
        load.run(0.0)


@given(st.integers(0, (1 << 42) - 1))
def test_a_latency_is_told_within_two_hundredths(ns: int) -> None:
    """The bucket a latency is counted in holds it, and is no wider than 1/64 of it."""
    low, high = bucket_ns(plain_load.bucket_of(ns))
    assert low <= ns < high
    assert high - low <= max(1, ns // 64)


def test_percentiles_are_those_of_the_counts() -> None:
    """Of a thousand latencies from 1 to 1000 ms, each percentile is the one that many are not above."""
    counts = array("Q", bytes(8 * plain_load.BUCKETS))
    for ms in range(1, 1001):
        counts[plain_load.bucket_of(ms * 1_000_000)] += 1
    found = Latencies.of(counts.tobytes())
    assert found.count == 1000
    for percent, ms in ((50, 500), (90, 900), (99, 990), (99.9, 999)):
        assert found.percentile_ms(percent) == pytest.approx(ms, rel=0.02)
    assert found.mean_ms == pytest.approx(500.5, rel=0.01)
    assert Latencies.of(bytes(8 * plain_load.BUCKETS)).figures()["p50"] is None

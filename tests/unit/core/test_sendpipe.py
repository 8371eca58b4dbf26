"""The compiled pipe of sends does what its plain twin does: the same bytes out, the same results in."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire import core
from hotfire.core import plain_send
from hotfire.model import Message, MessageQueue
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, decode, encode

pytestmark = [pytest.mark.core, pytest.mark.skipif(not core.COMPILED, reason="nothing to compare with")]

NOW_MS, MONTH_MS = 1_794_771_400_000, 1_793_491_200_000
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]
TARGETS = [
    (queue, queue.queue_id, b'{"x":{"e":"%d","g":"' % queue.queue_id, b'","i":"', b'"},"opaque":', b',"v":1}')
    for queue in QUEUES
]


class CompiledResult(core.Sent):
    __slots__ = ()


class PlainResult(plain_send.Sent):
    __slots__ = ()


class Waiting:
    """A future, as far as a pipe knows."""

    def __init__(self, name: int, is_cancelled: bool) -> None:
        self.name, self.is_cancelled = name, is_cancelled
        self.results: list[Any] = []

    def set_result(self, result: Any) -> None:
        if self.is_cancelled:
            raise RuntimeError
        self.results.append(
            [
                getattr(result, name)
                for name in (
                    "code",
                    "message_id",
                    "offset_message_id",
                    "queue",
                    "queue_offset",
                    "transaction_id",
                )
            ]
        )


class Twins:
    """Both pipes, driven alike and compared at every step."""

    def __init__(self, body_max: int = 4095, frame_max: int = 1 << 20) -> None:
        kinds = ((core.SendPipe, CompiledResult), (plain_send.SendPipe, PlainResult))
        self.pipes = [pipe(Message, result, "0A" * 10, body_max, frame_max) for pipe, result in kinds]
        self.waiting: list[tuple[Waiting, Waiting]] = []

    def both(self, name: str, *arguments: Any) -> Any:
        compiled, plain = (getattr(pipe, name)(*arguments) for pipe in self.pipes)
        assert compiled == plain
        self.compare()
        return compiled

    def left(self, name: str, *arguments: Any) -> Any:
        """As `both`, for what names futures: each pipe has its own."""
        compiled, plain = (getattr(pipe, name)(*arguments) for pipe in self.pipes)

        def named(value: Any) -> Any:
            if isinstance(value, list):
                return [named(one) for one in value]
            return value if value is None else (value[0].name, *value[1:])

        assert named(compiled) == named(plain)
        self.compare()
        return named(compiled)

    def send(self, message: Any, target: int, deadline: float, *, is_cancelled: bool = False) -> bool:
        pair = tuple(Waiting(len(self.waiting), is_cancelled) for _ in self.pipes)
        sent = [
            pipe.send(message, TARGETS[target], future, NOW_MS + target, MONTH_MS, deadline)
            for pipe, future in zip(self.pipes, pair, strict=True)
        ]
        assert sent[0] == sent[1]
        self.waiting.append(pair)  # type: ignore[arg-type]
        self.compare()
        return sent[0]

    def compare(self) -> None:
        compiled, plain = self.pipes
        assert compiled.in_flight == plain.in_flight
        assert compiled.unsent == plain.unsent
        assert compiled.next_deadline == plain.next_deadline
        for one, other in self.waiting:
            assert one.results == other.results


texts = st.text(alphabet=st.sampled_from('ab Z~!"\\\x01é/'), max_size=6)
messages = st.builds(
    Message,
    topic=st.just("T"),
    body=st.one_of(st.binary(max_size=40), st.just(bytes(4095)), st.just(bytes(4096)), st.just("text")),
    tag=st.one_of(st.none(), texts, st.sampled_from(["t" * 1025, 7, "a|b", "||", "a || b", "a||"])),
    keys=st.one_of(
        st.lists(texts, max_size=3).map(tuple),
        st.just(["k"]),
        st.sampled_from([("k" * 700, "l" * 400), ("a b",), (" ",), ("k", "")]),
    ),
    properties=st.one_of(st.just({}), st.just({"a": "b"})),
    flag=st.sampled_from([0, 0, 0, 1, False]),
    delay_level=st.sampled_from([0, 0, 0, 1]),
    wait_stored=st.sampled_from([True, True, False, 1]),
)


def answer(opaque: int, **changes: Any) -> bytes:
    fields = {
        "queueId": "0", "TRACE_ON": "true", "MSG_REGION": "R", "msgId": "0A" * 16, "queueOffset": "7"
    } | changes.pop("fields", {})  # fmt: skip
    return encode(Command(**({"code": 0, "opaque": opaque, "flag": 1, "fields": fields} | changes)))


@given(messages, st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_what_is_sent_is_equal(message: Message, target: int) -> None:
    """Plain messages make the same frame, all others are refused by both and leave nothing behind."""
    twins = Twins()
    for _ in range(2):
        if twins.send(message, target, 1.0):
            opaque = plain_send.OPAQUE_FIRST + twins.pipes[0].in_flight - 1
            frame = twins.both("take")
            header_size = int.from_bytes(frame[4:8], "big")
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            assert json.loads(frame[8 : 8 + header_size].partition(b',"opaque"')[0] + b"}")
            assert frame[8 + header_size :] == message.body
            assert b'"opaque":%d,' % opaque in frame
        else:
            assert twins.both("take") == b""


changes = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from([0, 10, 11, 12, 1, 2, 14, 13]),
        "flag": st.sampled_from([1, 1, 1, 0, 3]),
        "remark": st.sampled_from([None, None, "busy"]),
        "body": st.sampled_from([b"", b"", b"x"]),
        "serialization": st.sampled_from(Serialization),
        "fields": st.dictionaries(
            st.sampled_from(["queueId", "queueOffset", "msgId", "transactionId", "more"]),
            st.sampled_from(["0", "1", "00", "-0", "-1", "", "9" * 18, "9" * 19, "x", 'a"b', "é", "a" * 65]),
            max_size=3,
        ),
    },
)


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_what_is_received_is_equal(seed: int) -> None:
    """Sends, answers plain and odd, in any order and cut anywhere, late ones, and ends: both do the same."""
    rng = random.Random(seed)
    twins = Twins(frame_max=1 << 16)
    opaque, stream, deadline = plain_send.OPAQUE_FIRST, b"", 1.0
    odd = [answer, lambda o: answer(o, code=2, remark="busy"), lambda o: answer(o, fields={"queueId": "1"})]
    for _ in range(rng.randrange(1, 60)):
        step = rng.random()
        if step < 0.5:
            deadline += rng.random()
            is_cancelled = rng.random() < 0.1
            if twins.send(
                Message("T", b"x", keys=("k",)), rng.randrange(3), deadline, is_cancelled=is_cancelled
            ):
                opaque += 1
        elif step < 0.8:
            which = rng.randrange(plain_send.OPAQUE_FIRST - 1, opaque + 2)
            transaction = rng.choice([{}, {"transactionId": "0A" * 10 + "X"}, {"transactionId": "t"}])
            frame = rng.choice(odd)(which)
            if rng.random() < 0.5:
                frame = answer(which, fields={"queueId": str(rng.randrange(3)), **transaction})
            stream += frame
        elif step < 0.9:
            cut = rng.randrange(len(stream) + 1)
            lent = bytearray(stream[:cut])  # as from a connection: others receive there next
            twins.both("receive", memoryview(lent))
            lent[:] = bytes(cut)
            stream = stream[cut:]
        elif step < 0.95:
            twins.left("pop", rng.randrange(plain_send.OPAQUE_FIRST - 1, opaque + 2))
        else:
            twins.left("expire", deadline * rng.random())
    twins.both("receive", stream)
    twins.both("take")
    twins.left("clear")
    assert twins.both("receive", b"") == (b"", 0)


@given(changes, st.integers(0, 200))
@settings(max_examples=400, deadline=None)
def test_odd_answers_are_left_to_others(change: dict[str, Any], cut: int) -> None:
    """Whatever is not a plain answer comes out as it came in, and its send waits on."""
    twins = Twins()
    twins.send(Message("T", b"x"), 0, 1.0)
    frame = answer(plain_send.OPAQUE_FIRST, **change)
    cut = min(cut, len(frame))
    rest = twins.both("receive", frame[:cut])[0] + twins.both("receive", frame[cut:])[0]
    if twins.pipes[0].in_flight:
        assert rest == frame
        assert decode(rest).opaque == plain_send.OPAQUE_FIRST
        assert twins.left("pop", plain_send.OPAQUE_FIRST)[0] == 0


@given(st.binary(max_size=60), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_survived(data: bytes, cut: int) -> None:
    """Noise in front of or inside of frames: both hand it on alike."""
    twins = Twins(frame_max=1 << 16)
    twins.send(Message("T", b"x"), 0, 1.0)
    frame = answer(plain_send.OPAQUE_FIRST)
    twins.both("receive", frame[:cut] + data + frame[cut:])
    twins.left("clear")


@pytest.mark.parametrize("header", [
    b'{"code":0,"flag":1,"opaque":1073741824}',
    b'{"code":0,"code":0,"flag":1,"opaque":1073741824,"extFields":{}}',
    b'{"code":0,"flag":1,"opaque":1073741824,"extFields":{"queueId":"0","queueId":"0"}}',
    b'{"code":00,"flag":1,"opaque":1073741824,"extFields":{}}',
    b'{"code":0,"flag":1,"opaque":1073741824,"version":"x","extFields":{}}',
    b'{"code":0,"flag":1,"opaque":1073741824,"language":5,"extFields":{}}',
    b'[]', b'', b'nonsense', b'{"code":99999999999,"flag":1,"opaque":1073741824,"extFields":{}}',
    b' {"code" : 0 , "flag":1,"opaque":1073741824,'
    b'"extFields":{"queueId":"0","queueOffset":"1","msgId":"a"} } ',
])  # fmt: skip
def test_headers_made_by_hand(header: bytes) -> None:
    """Corners of JSON: both read the same from them."""
    twins = Twins()
    twins.send(Message("T", b"x"), 0, 1.0)
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    twins.both("receive", frame)


def test_many_under_way() -> None:
    """65536 from the oldest to the newest, not one more; the oldest's end makes room; opaques go round."""
    for pipe in Twins().pipes:
        first = Waiting(0, is_cancelled=False)
        assert pipe.send(Message("T", b"x"), TARGETS[0], first, NOW_MS, MONTH_MS, 1.0)
        for _ in range(65_535):
            assert pipe.send(
                Message("T", b"x"), TARGETS[0], Waiting(1, is_cancelled=False), NOW_MS, MONTH_MS, 2.0
            )
        assert not pipe.send(Message("T", b"x"), TARGETS[0], first, NOW_MS, MONTH_MS, 1.0)
        assert pipe.pop(plain_send.OPAQUE_FIRST + 5) is not None
        assert not pipe.send(Message("T", b"x"), TARGETS[0], first, NOW_MS, MONTH_MS, 1.0)
        assert [left[0] for left in pipe.expire(1.0)] == [first]
        assert pipe.send(Message("T", b"x"), TARGETS[0], first, NOW_MS, MONTH_MS, 1.0)
        assert pipe.in_flight == 65_535
        assert len(pipe.clear()) == 65_535
        assert pipe.next_deadline is None

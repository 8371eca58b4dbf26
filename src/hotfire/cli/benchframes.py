"""The requests of a load: frames that differ only in digits of a fixed width, and where those digits are.

Owns what `core.load.Load` is given, which writes opaque, time, offset, keys and clocks over what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfire.model import AUTO_CREATE_TOPIC, MessageQueue
from hotfire.protocol.batch import BatchMessage, encode_batch
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import encode
from hotfire.protocol.request import Request
from hotfire.protocol.requests import PullMessage, SendBatchMessage, SendMessageV2

Frame = tuple[bytes, int, int, int, tuple[int, ...], tuple[int, ...]]

OPAQUE = 1_000_000_000
BINARY_OPAQUE_AT = 13
"""Length 4, mark 4, code 2, language 1, version 2."""
TIME = 1_111_111_111_111
OFFSET = 222_222_222_222_222_222
MARK_BYTES = 8
MARKED_BYTES = 16
"""A body of this size or more says in its first bytes whose it is and when it was sent."""

SUSPEND_FLAG, SUBSCRIPTION_FLAG = 2, 4
SUSPEND_MS = 15_000


def send_frames(
    queues: Sequence[MessageQueue],
    *,
    size: int,
    batch: int,
    mark: bytes,
    group: str,
    kind: Serialization = Serialization.JSON,
) -> list[Frame]:
    """One for each queue: a message, or a batch of them, of `size` bytes each."""
    assert len(mark) == MARK_BYTES
    key = mark.hex().upper() + "0" * 16
    properties = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01bench\x02"
    body = body_of(size, mark)
    if batch > 1:
        body = encode_batch([BatchMessage(body, properties.encode())] * batch)
    request = SendMessageV2 if batch == 1 else SendBatchMessage
    return [
        _send_frame(
            request(
                producer_group=group,
                topic=queue.topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=4,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp=TIME,
                flag=0,
                properties=properties if batch == 1 else f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
                batch=batch > 1,
                broker_name=queue.broker_name,
                body=body,
            ),
            kind,
            key.encode(),
            mark,
        )
        for queue in queues
    ]


def body_of(size: int, mark: bytes) -> bytes:
    """Letters, behind the mark and room for a clock where both fit."""
    letters = bytes(ord("a") + at * 7 % 26 for at in range(26))
    body = (letters * (size // 26 + 1))[:size]
    return body if size < MARKED_BYTES else mark + bytes(8) + body[MARKED_BYTES:]


def pull_frames(
    queues: Sequence[MessageQueue],
    *,
    count: int,
    group: str,
    wait: bool,
    kind: Serialization = Serialization.JSON,
) -> list[Frame]:
    """One for each queue; with `wait` the broker holds a pull back until there is a message."""
    frames: list[Frame] = []
    for queue in queues:
        request = PullMessage(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=OFFSET,
            max_msg_nums=count,
            sys_flag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if wait else 0),
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS,
            subscription="*",
            sub_version=1,
            expression_type="TAG",
            broker_name=queue.broker_name,
        )
        frame = _encode(request, kind)
        frames.append((frame, _opaque_at(frame, kind), 0, _only(frame, b"%d" % OFFSET), (), ()))
    return frames


def _send_frame(request: Request, kind: Serialization, key: bytes, mark: bytes) -> Frame:
    frame = _encode(request, kind)
    clocks = tuple(at + MARK_BYTES for at in _all(frame, mark + bytes(8)))
    time_at = _only(frame, b"%d" % TIME)
    return frame, _opaque_at(frame, kind), time_at, 0, tuple(_all(frame, key)), clocks


def _encode(request: Request, kind: Serialization) -> bytes:
    return encode(request.to_command(opaque=OPAQUE, serialization=kind))


def _opaque_at(frame: bytes, kind: Serialization) -> int:
    if kind is not Serialization.JSON:
        return BINARY_OPAQUE_AT
    name = b'"opaque":'
    return _only(frame, name + b"%d" % OPAQUE) + len(name)


def _only(frame: bytes, text: bytes) -> int:
    at = frame.find(text)
    assert at > 0
    assert frame.find(text, at + 1) < 0, "what is to be written over stands in one place only"
    return at


def _all(frame: bytes, text: bytes) -> list[int]:
    found, at = [], frame.find(text)
    while at >= 0:
        found.append(at)
        at = frame.find(text, at + len(text))
    return found

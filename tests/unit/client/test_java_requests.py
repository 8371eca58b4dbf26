"""What a producer writes, beside what Java's producers wrote."""

import json
from collections import Counter
from collections.abc import Iterator

from hotfire import Message, MessageQueue
from hotfire.client.batches import prepare_batches
from hotfire.client.messages import prepare, send_request
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.record import SysFlag, parse_properties
from hotfire.protocol.requests import SendMessage, decode_request
from tests.wire.golden import frames

OURS = ("KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY")


def again(properties: dict[str, str], topic: str, body: bytes, flag: int) -> Message:
    """The message an application would have given us."""
    return Message(
        topic,
        body,
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties={name: value for name, value in properties.items() if name not in OURS},
        flag=flag,
        delay_level=int(properties.get("DELAY", 0)),
        wait_stored=properties.get("WAIT") == "true",
    )


def sends(*, batch: bool) -> Iterator[tuple[Command, SendMessage, dict[str, str]]]:
    """What Java's newest producer sent by itself, with its properties: no frame made by hand."""
    for frame in frames():
        if frame.facts["from"] != "client-5.5.0" or frame.facts["scenario"] == "send-auto-batch":
            continue  # what Java gathers into batches by itself has the header of a single message
        if frame.facts["code"] != (320 if batch else 310):
            continue
        command = decode(frame.data)
        fields = set(command.fields or {})
        if not {*"abcdefghijkmn"} <= fields <= {*"abcdefghijklmn"}:  # a trace or signature of its own
            continue
        request = decode_request(command)
        assert isinstance(request, SendMessage)
        properties = parse_properties((request.properties or "").encode())
        if {"UNIQ_KEY", "WAIT"} <= set(properties):
            yield command, request, properties


def test_a_send_is_the_frame_java_would_write() -> None:
    """The same message through our producer: every byte as Java's, in both serialisations. Compressed bodies
    are compared as they came: their bytes are the library's."""
    seen: Counter[str] = Counter()
    for command, request, properties in sends(batch=False):
        message = again(properties, request.topic, request.body or b"-", request.flag)
        outgoing = prepare(message, properties["UNIQ_KEY"], compression=None, is_ours=True)
        flag = outgoing.sys_flag | request.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        outgoing = outgoing._replace(sys_flag=flag, body=request.body)
        queue = MessageQueue(request.topic, request.broker_name or "", request.queue_id)
        ours = send_request(outgoing, queue, group=request.producer_group, now_ms=request.born_timestamp)
        made = ours.to_command(opaque=command.opaque, serialization=command.serialization)
        made.flag = command.flag
        assert encode(made) == encode(command), json.dumps(command.fields)
        seen[Serialization(command.serialization).name] += 1
    assert seen["JSON"] > 50
    assert seen["ROCKETMQ"] > 50


def test_a_batch_is_the_body_java_would_write() -> None:
    """Batches of Java's producer, taken apart and made again: body and header fields are equal."""
    count = 0
    for command, request, whole in sends(batch=True):
        parts = decode_batch(request.body)
        inside = [parse_properties(part.properties) for part in parts]
        ids = iter([*(one["UNIQ_KEY"] for one in inside), whole["UNIQ_KEY"]])
        messages = [
            again(one, request.topic, part.body, part.flag) for one, part in zip(inside, parts, strict=True)
        ]
        (outgoing,) = prepare_batches(messages, lambda ids=ids: next(ids), body_bytes_max=1 << 22)
        queue = MessageQueue(request.topic, request.broker_name or "", request.queue_id)
        ours = send_request(outgoing, queue, group=request.producer_group, now_ms=request.born_timestamp)
        made = ours.to_command(opaque=command.opaque, serialization=command.serialization)
        made.flag = command.flag
        assert encode(made) == encode(command)
        count += 1
    assert count == 3

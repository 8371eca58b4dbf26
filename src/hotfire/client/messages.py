"""Messages <-> what travels: a send request one way, stored records the other.

Owns the checks before a message leaves, its properties, and compression of bodies.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from hotfire.errors import BrokerRefused, LocalProtocolError, RemoteProtocolError
from hotfire.model import (
    AUTO_CREATE_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    Message,
    MessageQueue,
    ReceivedMessage,
    check_topic_name,
)
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import (
    PROPERTIES_BYTES_MAX,
    Record,
    SysFlag,
    iter_records,
    parse_properties,
    without_crc,
)
from hotfire.protocol.requests import SendMessageV2

BODY_BYTES_MAX = 4 * 1024 * 1024
COMPRESS_FROM_BYTES = 4096
COMPRESS_LEVEL = 5
INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""A stored body may inflate to this; the largest a Java producer accepts by default has 4 MiB."""

_COMPRESSIONS = {SysFlag.LZ4: "LZ4", SysFlag.ZSTD: "ZSTD"}
_SEPARATORS = ("\x01", "\x02")


class Outgoing(NamedTuple):
    """A checked message, ready to be sent to any queue."""

    message: Message
    message_id: str
    properties: str
    body: bytes
    sys_flag: int


def check_message(message: Message, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise LocalProtocolError for what every broker would refuse; nothing is sent."""
    topic, body = message.topic, message.body
    try:
        check_topic_name(topic)
    except BrokerRefused as refused:
        raise LocalProtocolError(refused.remark) from None
    if topic in SEND_FORBIDDEN_TOPICS:
        raise LocalProtocolError(f"topic {topic} belongs to the broker; nobody else may send to it")
    if not isinstance(body, bytes):
        raise LocalProtocolError(f"message to {topic}: its body is {type(body).__name__}, not bytes")
    if not body:
        raise LocalProtocolError(f"message to {topic}: its body is empty")
    if len(body) > body_bytes_max:
        raise LocalProtocolError(
            f"message to {topic}: its body has {len(body)} bytes, at most {body_bytes_max} fit"
        )


def prepare(message: Message, message_id: str, *, body_bytes_max: int = BODY_BYTES_MAX) -> Outgoing:
    """Check the message, write its properties and compress its body if that is worth it."""
    check_message(message, body_bytes_max=body_bytes_max)
    properties = dict(message.properties)
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    message_id = properties.setdefault("UNIQ_KEY", message_id)
    properties["WAIT"] = "true" if message.wait_stored else "false"
    if message.delay_level:
        properties["DELAY"] = str(message.delay_level)
    if message.tag:
        properties["TAGS"] = message.tag
    text = _property_string(message.topic, properties)
    body, sys_flag = message.body, 0
    if len(body) >= COMPRESS_FROM_BYTES:
        body, sys_flag = zlib.compress(body, COMPRESS_LEVEL), SysFlag.COMPRESSED | SysFlag.ZLIB
    return Outgoing(message, message_id, text, body, sys_flag)


def _property_string(topic: str, properties: dict[str, str]) -> str:
    for name, value in properties.items():
        if not name or not value or any(mark in name + value for mark in _SEPARATORS):
            raise LocalProtocolError(
                f"message to {topic}: property {name!r:.60} needs a name and a value, without bytes 1 and 2"
            )
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    size = len(text.encode("utf-8", "replace"))
    if size > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"message to {topic}: its properties take {size} bytes, at most {PROPERTIES_BYTES_MAX} fit"
        )
    return text


def send_request(outgoing: Outgoing, queue: MessageQueue, *, group: str, now_ms: int) -> SendMessageV2:
    return SendMessageV2(
        producer_group=group,
        topic=outgoing.message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=now_ms,
        flag=outgoing.message.flag,
        properties=outgoing.properties,
        broker_name=queue.broker_name,
        body=outgoing.body,
    )


def received_messages(body: Buffer, broker_name: str) -> Iterator[ReceivedMessage]:
    """The messages in the body of a pull reply, batches unpacked."""
    for record in iter_records(body):
        if record.sys_flag & SysFlag.INNER_BATCH and record.sys_flag & SysFlag.NEED_UNWRAP:
            yield from _unpack(record, broker_name)
        else:
            properties = parse_properties(without_crc(record.properties))
            yield _received(record, broker_name, record.body, properties, 0)


def _unpack(record: Record, broker_name: str) -> Iterator[ReceivedMessage]:
    for index, one in enumerate(decode_batch(record.body)):
        yield _received(record, broker_name, one.body, parse_properties(one.properties), index)


def _received(
    record: Record, broker_name: str, body: bytes, properties: dict[str, str], index: int
) -> ReceivedMessage:
    place = record.message_id
    compression = None
    if record.sys_flag & SysFlag.COMPRESSED:
        compression = _COMPRESSIONS.get(record.sys_flag & SysFlag.COMPRESSION_MASK)
        if compression is None:
            body = _inflate(body, place)
    return ReceivedMessage(
        topic=record.topic,
        body=body,
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties=properties,
        flag=record.flag,
        queue=MessageQueue(record.topic, broker_name, record.queue_id),
        queue_offset=record.queue_offset + index,
        message_id=properties.get("UNIQ_KEY", place),
        offset_message_id=place,
        born_timestamp_ms=record.born_timestamp,
        born_host=f"{record.born_host.ip}:{record.born_host.port}",
        store_timestamp_ms=record.store_timestamp,
        store_host=f"{record.store_host.ip}:{record.store_host.port}",
        reconsume_times=record.reconsume_times,
        compression=compression,
    )


def _inflate(body: bytes, message_id: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"message {message_id}: its body does not inflate: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError(
            f"message {message_id}: its body ends early or inflates beyond {INFLATED_BYTES_MAX} bytes"
        )
    return data

"""Messages <-> what travels: a send request one way, stored records the other.

Owns a message's properties; what may be in it is looked at by `checks`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hotfire.client.checks import BODY_BYTES_MAX, check_message, check_sendable, deliver_ms
from hotfire.client.compression import Compression, compress, decompress
from hotfire.errors import LocalProtocolError, RemoteProtocolError
from hotfire.model import AUTO_CREATE_TOPIC, RETRY_PREFIX, Message, MessageQueue, ReceivedMessage
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import (
    PROPERTIES_BYTES_MAX,
    Record,
    SysFlag,
    iter_records,
    java_hash,
    parse_properties,
    without_crc,
)
from hotfire.protocol.requests import SendBatchMessage, SendMessage, SendMessageV2, SendReplyMessageV2

log = logging.getLogger("hotfire.client")

COMPRESS_FROM_BYTES = 4096
_BATCH = "BATCH"
MESSAGE_KIND, REPLY = "MSG_TYPE", "reply"
"""A property, and what it says of a message that answers a request; no application may set it."""

_SEPARATORS = ("\x01", "\x02")


class Outgoing(NamedTuple):
    """A checked message, or several in one body, ready to be sent to any queue."""

    messages: tuple[Message, ...]
    message_id: str
    properties: str
    body: bytes
    sys_flag: int = 0
    ids: tuple[str, ...] = ()
    """Of the messages of a batch."""

    @property
    def topic(self) -> str:
        return self.messages[0].topic

    @property
    def is_batch(self) -> bool:
        return bool(self.ids)


def prepare(
    message: Message,
    message_id: str,
    *,
    body_bytes_max: int = BODY_BYTES_MAX,
    compression: Compression | None = "zlib",
    compress_from_bytes: int = COMPRESS_FROM_BYTES,
    is_ours: bool = False,
) -> Outgoing:
    """Check the message, write its properties and compress its body if that is worth it.

    One that is the client's own may have properties that no application may set.
    """
    (check_sendable if is_ours else check_message)(message, body_bytes_max=body_bytes_max)
    properties = message_properties(message, message_id)
    body, sys_flag = message.body, 0
    if compression is not None and len(body) >= compress_from_bytes:
        body, sys_flag = compress(compression, body)
    if properties.get("TRAN_MSG", "").lower() == "true":
        sys_flag |= SysFlag.TRANSACTION_PREPARED
    text = property_string(message.topic, properties)
    return Outgoing((message,), properties["UNIQ_KEY"], text, body, sys_flag)


def message_properties(message: Message, message_id: str) -> dict[str, str]:
    """Everything about the message that travels as a property, in the order Java writes it."""
    properties: dict[str, str] = {}
    # The order in which a Java application fills its map decides between names of one bucket only.
    if message.tag:
        properties["TAGS"] = message.tag
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    properties["WAIT"] = "true" if message.wait_stored else "false"
    if message.delay_level:
        properties["DELAY"] = str(message.delay_level)
    if message.delay_ms:
        properties["TIMER_DELAY_MS"] = str(message.delay_ms)
    if message.deliver_at is not None:
        properties["TIMER_DELIVER_MS"] = str(deliver_ms(message.deliver_at))
    properties.update(message.properties)
    properties.setdefault("UNIQ_KEY", message_id)
    buckets = 16
    while len(properties) > buckets * 3 // 4:
        buckets *= 2
    return {
        name: properties[name] for name in sorted(properties, key=lambda name: _spread(name) & buckets - 1)
    }


@lru_cache(maxsize=1024)
def _spread(name: str) -> int:
    """What Java's HashMap makes of a name's hash before it chooses a bucket by its low bits."""
    value = java_hash(name) & 0xFFFF_FFFF
    return value ^ value >> 16


def property_string(topic: str, properties: dict[str, str]) -> str:
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


def send_request(outgoing: Outgoing, queue: MessageQueue, *, group: str, now_ms: int) -> SendMessage:
    message = outgoing.messages[0]
    request: type[SendMessage] = SendBatchMessage if outgoing.is_batch else SendMessageV2
    if message.properties.get(MESSAGE_KIND) == REPLY:
        request = SendReplyMessageV2
    # What a consumer sends back by itself tells its tries in the header.
    counts = message.properties if message.topic.startswith(RETRY_PREFIX) else {}
    limit = counts.get("MAX_RECONSUME_TIMES")
    return request(
        producer_group=group,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=now_ms,
        flag=0 if outgoing.is_batch else message.flag,
        properties=outgoing.properties,
        reconsume_times=int(counts.get("RECONSUME_TIME", 0)),
        max_reconsume_times=None if limit is None else int(limit),
        batch=outgoing.is_batch,
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
    try:
        batch = decode_batch(record.body)
    except RemoteProtocolError as error:
        log.warning("message=%s topic=%s keeps its stored body: %s", record.message_id, record.topic, error)
        properties = parse_properties(without_crc(record.properties))
        yield replace(_received(record, broker_name, record.body, properties, 0), compression=_BATCH)
        return
    for index, one in enumerate(batch):
        yield _received(record, broker_name, one.body, parse_properties(one.properties), index)


def _received(
    record: Record, broker_name: str, body: bytes, properties: dict[str, str], index: int
) -> ReceivedMessage:
    place = record.message_id
    body, compression = decompress(body, record.sys_flag, place)
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

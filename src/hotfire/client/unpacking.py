"""The records of a pull's answer -> messages, in one pass: what most of a consumer's time goes into.

Ordinary records are taken apart by the compiled core, or here with a single read of their fixed part; all
others (compressed, batches, IPv6, long topics) go to `messages`, whose results these equal, which a test
holds them to.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from zlib import crc32

from hotfire import core
from hotfire.client.damage import Damage
from hotfire.client.messages import received_messages
from hotfire.errors import RecordInvalid
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import (
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    Host,
    SysFlag,
    decode_record,
    parse_properties,
)

_FIXED = struct.Struct(">iIIiiqqiq8sq8siqi")  # all before the body of a record with IPv4 hosts
_UNUSUAL = (
    SysFlag.COMPRESSED
    | SysFlag.BORN_HOST_V6
    | SysFlag.STORE_HOST_V6
    | SysFlag.NEED_UNWRAP
    | SysFlag.INNER_BATCH
)
_CRC_PREFIX = CRC_PROPERTY.encode() + b"\x01"
_HOSTS_MAX = 4096
_hosts: dict[bytes, str] = {}
_compiled = None if core.Unpacker is None else core.Unpacker(ReceivedMessage)


def unpack_messages(
    body: Buffer, queue: MessageQueue, tags: Collection[str] = (), damages: list[Damage] | None = None
) -> list[ReceivedMessage]:
    """The messages in `body`, pulled from `queue`; with `tags`, only those that have one of them.

    Records that cannot be read are left out and put into `damages`; without it RecordInvalid is raised.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    messages: list[ReceivedMessage] = []
    topic, at, end = queue.topic.encode(), 0, len(data)
    while at < end:
        if _compiled is None:
            at = ordinary_run(data, at, topic, queue, tags, messages)
        else:
            at = _compiled.run(data, at, queue.topic, topic, queue, queue.queue_id, tags, messages)
        if at == end:
            break
        # The plain road takes this one, and says what is wrong with it if anything is.
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        following = at + size if RECORD_BYTES_MIN <= size < end - at else end
        try:
            messages += [
                message
                for message in received_messages(data[at:following], queue.broker_name)
                if not tags or message.tag in tags
            ]
        except RecordInvalid as error:
            if damages is None:
                raise
            is_rest = not _has_layout(data, at)
            declared_offset = int.from_bytes(data[at + 20 : at + 28], "big", signed=True)
            damages.append(Damage(len(messages), declared_offset, str(error), is_rest))
            if is_rest:
                break
        at = following
    return messages


def ordinary_run(
    data: bytes,
    at: int,
    topic_bytes: bytes,
    queue: MessageQueue,
    tags: Collection[str],
    messages: list[ReceivedMessage],
) -> int:
    """Add the messages of the ordinary records from `at` on; where the first other one begins."""
    topic, own_id = queue.topic, queue.queue_id
    end = len(data)
    while end - at >= RECORD_BYTES_MIN:
        (
            size, magic, body_crc, queue_id, flag, queue_offset, _, sys_flag, born_ms,
            born, store_ms, stored, reconsume_times, _, body_size,
        ) = _FIXED.unpack_from(data, at)  # fmt: skip
        topic_at = at + _FIXED.size + body_size
        is_ordinary = magic == MAGIC_V1 and not sys_flag & _UNUSUAL and queue_id == own_id
        if not is_ordinary or not topic_at < at + size <= end or body_size < 0:
            break
        payload = data[at + _FIXED.size : topic_at]
        following = at + size
        properties_at = topic_at + 3 + len(topic_bytes)
        if (
            crc32(payload) & 0x7FFFFFFF != body_crc
            or data[topic_at] != len(topic_bytes)
            or not data.startswith(topic_bytes, topic_at + 1)
            or properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != following
        ):
            break
        tail = following - CRC_PROPERTY_BYTES
        has_crc = tail >= properties_at and data.startswith(_CRC_PREFIX, tail)
        properties = parse_properties(data[properties_at : tail if has_crc else following])
        tag = properties.get("TAGS")
        if not tags or tag in tags:
            place = (stored + data[at + 28 : at + 36]).hex().upper()
            keys = properties.get("KEYS")
            messages.append(
                ReceivedMessage(
                    topic,
                    payload,
                    tag,
                    tuple(keys.split()) if keys else (),
                    properties,
                    flag,
                    queue,
                    queue_offset,
                    properties.get("UNIQ_KEY", place),
                    place,
                    born_ms,
                    _hosts.get(born) or _host(born),
                    store_ms,
                    _hosts.get(stored) or _host(stored),
                    reconsume_times,
                )
            )
        at = following
    return at


def _has_layout(data: bytes, at: int) -> bool:
    """Whether only its checksum is wrong, so that the record ends where it says."""
    try:
        decode_record(data, at, check_crc=False)
    except RecordInvalid:
        return False
    return True


def _host(data: bytes) -> str:
    """`address:port`, remembered: clients and brokers are few, messages are many."""
    if len(_hosts) >= _HOSTS_MAX:
        _hosts.clear()
    host = Host(data[:4], int.from_bytes(data[4:], "big", signed=True))
    text = _hosts[data] = f"{host.ip}:{host.port}"
    return text

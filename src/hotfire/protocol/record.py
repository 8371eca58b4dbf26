"""One stored message: the same bytes on disk and in a pull reply.

    at   size  field                      at   size   field
     0      4  total size                 56      8   store timestamp, ms
     4      4  magic                      64      8   store host            (20 when IPv6)
     8      4  CRC-32 of body, 31 bits    72      4   reconsume times
    12      4  queue id                   76      8   prepared transaction offset
    16      4  flag                       84      4   body size, then body
    20      8  queue offset                       1   topic size, then topic (2 in version 2)
    28      8  physical offset                    2   properties size, then properties
    36      4  system flag
    40      8  born timestamp, ms
    48      8  born host                  (20 when IPv6; all that follows then moves by 12)

Everything is big-endian. A host is its address (4 or 16 bytes) and a 4-byte port; bits of the system
flag say which. Version 2 only exists for topics of more than 127 bytes. The rest of a log file that
cannot hold the next record starts with a blank: the space left and its own magic.

Optionally the properties end in a checksum of the whole record, written as one more property:
`__CRC32#` 0x01, ten decimal digits with the least significant first, 0x02. It covers everything
before those twenty bytes, sizes already counting them.

Owns that layout, property strings, message ids and Java's string hash. Must not know files or frames.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hotfire.errors import LocalProtocolError, RecordInvalid
from hotfire.protocol.command import Buffer as Buffer

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_BYTES = 8

PROPERTIES_BYTES_MAX = 32767
TOPIC_BYTES_MAX_V1 = 127

RECORD_BYTES_MIN = 91
"""A version 1 record with IPv4 hosts and nothing in it."""


class SysFlag:
    """Bits of a record's system flag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300
    COMPRESSION_MASK = 0x700


class Host(NamedTuple):
    """An address in network bytes (4 or 16 of them) and a port."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, ip: str, port: int) -> Host:
        """An IPv4 address that arrived in IPv6 clothes is undressed, as Java does."""
        address = ipaddress.ip_address(ip)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return cls(address.packed, port)

    @property
    def ip(self) -> str:
        return str(ipaddress.ip_address(self.address))

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16


@dataclass(slots=True, frozen=True)
class Record:
    """A message with everything the broker knows of it. `properties` are the raw stored bytes.

    `body_crc`, `size` and `magic` are what decoding found; encoding computes them anew.
    """

    topic: str
    queue_id: int
    body: bytes
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)
    magic: int = field(default=0, compare=False)

    @property
    def message_id(self) -> str:
        """The id that says where the record lies."""
        return offset_message_id(*self.store_host, self.physical_offset)


_HEAD = struct.Struct(">iIIiiqqiq")  # total size .. born timestamp
_PORT = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_BEFORE_BODY = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body size
_PROPERTIES_SIZE = struct.Struct(">h")
_BLANK = struct.Struct(">iI")
_RECORD_BYTES_FIXED = _HEAD.size + 2 * _PORT.size + _INT64.size + _BEFORE_BODY.size + _PROPERTIES_SIZE.size
"""All but hosts, body, topic with its size, and properties."""
_TOPIC_SIZE = {MAGIC_V1: struct.Struct(">b"), MAGIC_V2: struct.Struct(">h")}


# --- encode ----------------------------------------------------------------------------------------


def encode_record(record: Record, *, append_crc: bool) -> bytes:
    """The record's bytes; with `append_crc` its properties end in the checksum of the whole."""
    assert record.born_host.is_v6 == bool(record.sys_flag & SysFlag.BORN_HOST_V6), record.sys_flag
    assert record.store_host.is_v6 == bool(record.sys_flag & SysFlag.STORE_HOST_V6), record.sys_flag
    topic = record.topic.encode("utf-8")
    magic = MAGIC_V1 if len(topic) <= TOPIC_BYTES_MAX_V1 else MAGIC_V2
    properties = record.properties
    if append_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties_size = _properties_size(record, append_crc)
    middle = b"".join(
        (
            record.born_host.address,
            _PORT.pack(record.born_host.port),
            _INT64.pack(record.store_timestamp),
            record.store_host.address,
            _PORT.pack(record.store_host.port),
            _BEFORE_BODY.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
            record.body,
            _TOPIC_SIZE[magic].pack(len(topic)),
            topic,
            _PROPERTIES_SIZE.pack(properties_size),
            properties,
        )
    )
    head = _HEAD.pack(
        _HEAD.size + len(middle) + properties_size - len(properties),
        magic,
        crc31(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
    )
    if not append_crc:
        return head + middle
    return b"".join((head, middle, _crc_property(crc31(middle, zlib.crc32(head)))))


def encoded_size(record: Record, *, append_crc: bool) -> int:
    """How many bytes `encode_record` makes of it, or the error it raises."""
    topic_size = len(record.topic.encode("utf-8"))
    return (
        _RECORD_BYTES_FIXED
        + len(record.born_host.address)
        + len(record.store_host.address)
        + len(record.body)
        + (1 if topic_size <= TOPIC_BYTES_MAX_V1 else 2)
        + topic_size
        + _properties_size(record, append_crc)
    )


def _properties_size(record: Record, append_crc: bool) -> int:
    properties = record.properties
    size = len(properties)
    if append_crc:
        size += CRC_PROPERTY_BYTES + (1 if properties and not properties.endswith(b"\x02") else 0)
    if size > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"topic {record.topic}: properties of {size} bytes, at most {PROPERTIES_BYTES_MAX} fit"
        )
    return size


def encode_blank(space: int) -> bytes:
    """What marks the last `space` bytes of a log file as unused."""
    return _BLANK.pack(space, MAGIC_BLANK)


# --- decode ----------------------------------------------------------------------------------------


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Record:
    """The record at `position`; RecordInvalid if there is none or, with `check_crc`, its body is damaged."""
    size, magic = _size_and_magic(buffer, position)
    data = bytes(memoryview(buffer)[position : position + size])
    _, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = _HEAD.unpack_from(data)
    at = _HEAD.size
    try:
        born_host, at = _host(data, at, sys_flag & SysFlag.BORN_HOST_V6)
        (stored,) = _INT64.unpack_from(data, at)
        store_host, at = _host(data, at + 8, sys_flag & SysFlag.STORE_HOST_V6)
        reconsume_times, prepared_offset, body_size = _BEFORE_BODY.unpack_from(data, at)
        body, at = _part(data, at + _BEFORE_BODY.size, body_size, "body")
        (topic_size,) = _TOPIC_SIZE[magic].unpack_from(data, at)
        topic, at = _part(data, at + _TOPIC_SIZE[magic].size, topic_size, "topic")
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(data, at)
        properties, at = _part(data, at + 2, properties_size, "properties")
        topic_name = topic.decode("utf-8")
    except struct.error as error:
        raise RecordInvalid(f"record of {size} bytes at {position} ends early: {error}") from None
    except UnicodeDecodeError as error:
        raise RecordInvalid(f"record of {size} bytes at {position}: topic: {error}") from None
    if at != size:
        raise RecordInvalid(f"record at {position} says {size} bytes, its parts make {at}")
    if check_crc and crc31(body) != body_crc:
        raise RecordInvalid(
            f"record of {size} bytes at {position}: body CRC {crc31(body)}, stored is {body_crc}"
        )
    return Record(
        topic=topic_name,
        queue_id=queue_id,
        body=body,
        born_timestamp=born,
        born_host=born_host,
        store_timestamp=stored,
        store_host=store_host,
        properties=properties,
        flag=flag,
        sys_flag=sys_flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=body_crc,
        size=size,
        magic=magic,
    )


def iter_records(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Iterator[Record]:
    """The records that follow each other from `position`, up to the end or a blank."""
    while position < len(buffer) and not is_blank(buffer, position):
        record = decode_record(buffer, position, check_crc=check_crc)
        yield record
        position += record.size


def is_blank(buffer: Buffer, position: int) -> bool:
    """Whether the rest of the log file from `position` is unused."""
    return len(buffer) - position >= BLANK_BYTES and _BLANK.unpack_from(buffer, position)[1] == MAGIC_BLANK


def _size_and_magic(buffer: Buffer, position: int) -> tuple[int, int]:
    left = len(buffer) - position
    if left < RECORD_BYTES_MIN:
        raise RecordInvalid(f"{left} bytes at {position}, a record has at least {RECORD_BYTES_MIN}")
    size, magic = _BLANK.unpack_from(buffer, position)
    if magic not in _TOPIC_SIZE:
        raise RecordInvalid(f"magic {magic:#010x} at {position} is not a record's")
    if not RECORD_BYTES_MIN <= size <= left:
        raise RecordInvalid(f"record at {position} says {size} bytes, {left} are left")
    return size, magic


def _host(data: bytes, at: int, is_v6: int) -> tuple[Host, int]:
    end = at + (16 if is_v6 else 4)
    (port,) = _PORT.unpack_from(data, end)
    return Host(data[at:end], port), end + 4


def _part(data: bytes, at: int, size: int, what: str) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise RecordInvalid(f"{what} of {size} bytes at {at} in a record of {len(data)}")
    return data[at:end], end


# --- checksums -------------------------------------------------------------------------------------

CRC_PROPERTY = "__CRC32#"
CRC_PROPERTY_BYTES = len(CRC_PROPERTY) + 1 + 10 + 1
_CRC_PREFIX = CRC_PROPERTY.encode() + b"\x01"


def crc31(data: Buffer, start: int = 0) -> int:
    """CRC-32 without its sign bit, the way Java keeps it in an int."""
    return zlib.crc32(data, start) & 0x7FFFFFFF


def _crc_property(crc: int) -> bytes:
    return _CRC_PREFIX + f"{crc:010d}"[::-1].encode() + b"\x02"


def record_checksum_ok(record: Buffer, *, require_crc: bool = False) -> bool:
    """Whether the one record in `record` is whole: layout and record CRC, or body CRC where it has none.

    A tear that wiped the record CRC leaves a record without one; who always writes it must require it.
    """
    try:
        decoded = decode_record(record, check_crc=False)
        if decoded.size != len(record):
            return False
        tail = decoded.properties[-CRC_PROPERTY_BYTES:]
        if not tail.startswith(_CRC_PREFIX):
            decode_record(record)
            return not require_crc
    except RecordInvalid:
        return False
    return tail == _crc_property(crc31(memoryview(record)[: decoded.size - CRC_PROPERTY_BYTES]))


# --- properties ------------------------------------------------------------------------------------


def parse_properties(properties: bytes) -> dict[str, str]:
    """Names and values of a property string. Pairs without a name or a value are not pairs.

    >>> parse_properties(b"TAGS" + bytes([1]) + b"a" + bytes([2]) + b"KEYS" + bytes([1]) + b"k")
    {'TAGS': 'a', 'KEYS': 'k'}
    """
    pairs = {}
    for pair in properties.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            pairs[name] = value
    return pairs


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string, every pair closed by its separator."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode("utf-8", "replace")


def without_crc(properties: bytes) -> bytes:
    """The properties without a record CRC: it belongs to the record it was computed for."""
    if not properties[-CRC_PROPERTY_BYTES:].startswith(_CRC_PREFIX):
        return properties
    return properties[:-CRC_PROPERTY_BYTES]


def tags_code(properties: Mapping[str, str]) -> int:
    """What a queue entry keeps of the message's tag, for filtering without reading the message."""
    return java_hash(properties.get("TAGS", ""))


TAG_KEY = "T#"
"""In front of a tag, which is indexed among the keys."""


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """What a message is found by: its unique key, every word of its keys, its tag.

    >>> keys_of({"KEYS": "a b", "TAGS": "new"})
    ['a', 'b', 'T#new']
    """
    keys = [word for word in properties.get("KEYS", "").split(" ") if word]
    if unique := properties.get("UNIQ_KEY"):
        keys.insert(0, unique)
    if (tags := properties.get("TAGS", "")).strip(_JAVA_SPACE):
        keys.append(TAG_KEY + tags)
    return keys


_JAVA_SPACE = " \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"


def key_hash(topic: str, key: str) -> int:
    """What a key is filed under: Java's hash of `topic#key` without its sign.

    >>> key_hash("TopicTest", "key1")
    1655984460
    """
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value  # the one hash without an absolute value in 32 bits


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in signed 32 bits.

    >>> java_hash("TagA")
    2598919
    """
    value = 0
    for character in text:
        code = ord(character)
        if code > 0xFFFF:
            value = 31 * value + (0xD7C0 + (code >> 10))
            code = 0xDC00 + (code & 0x3FF)
        value = (31 * value + code) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


# --- message ids -----------------------------------------------------------------------------------


def offset_message_id(address: bytes, port: int, offset: int) -> str:
    """The id that names a record by its broker's address and its physical offset.

    >>> offset_message_id(bytes([192, 168, 0, 1]), 10911, 1234567)
    'C0A8000100002A9F000000000012D687'
    """
    return b"".join((address, _PORT.pack(port), _INT64.pack(offset))).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Host and physical offset of an id; ValueError when it is none."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise ValueError(f"message id {message_id!r:.80} is not 32 or 56 hexadecimal digits")
    (port,) = _PORT.unpack_from(data, len(data) - 12)
    (offset,) = _INT64.unpack_from(data, len(data) - 8)
    return Host(data[:-12], port), offset

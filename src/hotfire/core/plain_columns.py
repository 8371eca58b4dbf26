"""Plain-Python twin of the compiled columns: records -> the buffers of Arrow columns, and its specification.

Both take ordinary records and stop before the first other one: harmed, compressed, a batch, prepared or
rolled back, with text that is not UTF-8, one property twice or more of them than usual. The caller takes that
one apart himself and comes back with `add`. The columns and their order are those of hotfire.spark.schema; of
those not asked for nothing is kept, nor looked at. The record's layout is drawn in protocol/record.py.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

Buffers = tuple[Any, ...]

(
    TOPIC, BROKER_NAME, QUEUE_ID, QUEUE_OFFSET, MSG_ID, KEYS, TAGS, BODY, PROPERTIES, BORN, STORED,
    RECONSUMED, SYS_FLAG, LOG_OFFSET,
) = range(14)  # fmt: skip
COLUMNS = 14
_VALUES = {
    QUEUE_ID: "i",
    QUEUE_OFFSET: "q",
    BORN: "q",
    STORED: "q",
    RECONSUMED: "i",
    SYS_FLAG: "i",
    LOG_OFFSET: "q",
}
_MISSABLE = (KEYS, TAGS)
_FOUND_IN_PROPERTIES = 1 << MSG_ID | 1 << KEYS | 1 << TAGS | 1 << PROPERTIES

PAIRS_MAX = 64  # properties of an ordinary record
DATA_MAX = 0x7FFFFFFF  # bytes, rows or pairs: Arrow counts them in 32 bits
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_MAGIC_V1, _MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
_RECORD_BYTES_MIN, _PROPERTIES_MAX = 91, 32767
_HEAD = struct.Struct(">iIIiiqqiq")  # total size .. born timestamp
_BEFORE_BODY = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body size
_ENTRY = struct.Struct(">qiq")
_BORN_V6, _STORE_V6, _BATCH = 0x10, 0x20, 0x40 | 0x80
_UNUSUAL = _BATCH | 0x1 | 0x4  # compressed, prepared or rolled back
_CRC_PREFIX, _CRC_BYTES = b"__CRC32#\x01", 20

Pair = tuple[bytes, bytes]


class _Record(NamedTuple):
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_ms: int
    store_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    properties: bytes


class _Texts:
    """One text after the other, and where each ends."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.valid = bytearray()
        self.missing = 0

    def put(self, text: bytes) -> None:
        self.data += text
        self.offsets.append(len(self.data))

    def put_missable(self, text: bytes | None) -> None:
        at = len(self.offsets) - 1
        if at % 8 == 0:
            self.valid.append(0)
        if text is not None:
            self.valid[-1] |= 1 << at % 8
        self.missing += text is None
        self.put(text or b"")

    def buffers(self) -> Buffers:
        return bytes(self.valid) if self.missing else None, self.offsets.tobytes(), bytes(self.data)

    @property
    def size(self) -> int:
        return (len(self.valid) if self.missing else 0) + len(self.offsets) * 4 + len(self.data)

    def fits(self, size: int) -> bool:
        return len(self.data) + size <= DATA_MAX


class Columns:
    """Rows gathered until they are taken.

    Only records of a store time in [stored_from, stored_until) and of one of the `queues` (None: of any) are;
    those at or behind log offset `summed_from` must end in their checksum.
    """

    def __init__(
        self,
        wanted: int,
        broker_name: bytes,
        stored_from: int = INT64_MIN,
        stored_until: int = INT64_MAX,
        summed_from: int = INT64_MAX,
        queues: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= wanted < 1 << COLUMNS:
            raise ValueError(f"Columns: {COLUMNS} columns, bits {wanted} wanted")
        if len(broker_name) > 32767 or not _is_utf8(broker_name):
            raise ValueError("Columns: a broker's name is UTF-8 of at most 32767 bytes")
        self._wanted, self._broker_name = wanted, broker_name
        self._stored_from, self._stored_until = stored_from, stored_until
        self._summed_from = summed_from
        self._queues = None if queues is None else frozenset(queues)
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._values = {i: array(kind) for i, kind in _VALUES.items() if self._wants(i)}
        self._texts = {
            i: _Texts() for i in range(COLUMNS) if i not in _VALUES and i != PROPERTIES and self._wants(i)
        }
        self._pair_offsets, self._names, self._contents = array("i", [0]), _Texts(), _Texts()

    def _wants(self, column: int) -> bool:
        return bool(self._wanted >> column & 1)

    @property
    def size(self) -> int:
        """Bytes of what was gathered so far."""
        if not self.rows:
            return 0
        pairs = len(self._pair_offsets) * 4 + self._names.size + self._contents.size
        return (
            sum(len(values) * values.itemsize for values in self._values.values())
            + sum(texts.size for texts in self._texts.values())
            + (pairs if self._wants(PROPERTIES) else 0)
        )

    def run(
        self,
        data: Any,
        at: int,
        end: int,
        topic: bytes | None,
        queue_id: int,
        first: int,
        until: int,
        tags: bytes | None = None,
        base: int = -1,
        without: bytes | None = None,
    ) -> int:
        """Add the ordinary records of data[at:end] that are wanted; where the first other one begins.

        Wanted are those of the topic (or of several, joined by byte 1; None: of any) and the queue (-1: any)
        with an offset in [first, until), a store time within that of these columns and, where `tags` are
        given (joined likewise), one of them. What is not wanted is stepped over, and so are topics `without`.
        With `base`, the data is the log from there on, and each record says itself where it lies.
        """
        view = memoryview(data).cast("B")
        if not -1 <= base <= INT64_MAX - len(view):
            raise ValueError("run: data outside every log")
        if not 0 <= at <= end <= len(view):
            raise ValueError("run: a place outside the data")
        topics = None if topic is None else topic.split(b"\x01")
        excluded = () if without is None else without.split(b"\x01")
        chosen = None if tags is None else tags.split(b"\x01")
        while at < end:
            record = _find_record(view[at:end], self._summed_from)
            if record is None or base not in (-1, record.log_offset - at):
                break
            is_wanted = record.topic not in excluded
            if is_wanted and not self._add_record(record, topics, queue_id, first, until, chosen):
                break
            at += record.size
        return at

    def gather(
        self,
        data: Any,
        base: int,
        entries: Any,
        at: int,
        topic: bytes,
        queue_id: int,
        first_offset: int,
        tags: bytes | None = None,
    ) -> int:
        """Add the records of a queue's entries from entry number `at` on; the number of the first not taken.

        `data` is the log from offset `base` on, the entry numbered 0 has queue offset `first_offset`. Not
        taken is what is not wholly in `data`, not ordinary, or not the record its entry means.
        """
        view, all_entries = memoryview(data).cast("B"), memoryview(entries).cast("B")
        count = len(all_entries) // _ENTRY.size
        if not 0 <= at <= count or base < 0 or not 0 <= first_offset <= INT64_MAX - count:
            raise ValueError("gather: a place outside the entries, or below 0")
        if queue_id < 0:
            raise ValueError("gather: a queue below 0")
        chosen = None if tags is None else tags.split(b"\x01")
        for number in range(at, count):
            physical, size, _ = _ENTRY.unpack_from(all_entries, number * _ENTRY.size)
            offset, place = first_offset + number, physical - base
            if size <= 0 or place < 0 or place + size > len(view):
                return number
            record = _find_record(view[place : place + size], self._summed_from)
            if record is None or (record.size, record.log_offset, record.queue_offset) != (
                size,
                physical,
                offset,
            ):
                return number
            if (record.topic, record.queue_id) != (topic, queue_id):
                return number
            if not self._add_record(record, None, -1, INT64_MIN, INT64_MAX, chosen):
                return number
        return count

    def _add_record(
        self,
        record: _Record,
        topics: list[bytes] | None,
        queue_id: int,
        first: int,
        until: int,
        tags: list[bytes] | None,
    ) -> bool:
        """False: it is not ordinary, or there is no more room."""
        if (topics is not None and record.topic not in topics) or queue_id not in (-1, record.queue_id):
            return True
        if self._queues is not None and record.queue_id not in self._queues:
            return True
        if record.sys_flag & _BATCH:  # of several offsets
            return False
        if not first <= record.queue_offset < until:
            return True
        if not self._stored_from <= record.store_ms < self._stored_until:
            return True
        if record.sys_flag & _UNUSUAL:
            return False
        pairs: dict[bytes, bytes] = {}
        if self._wanted & _FOUND_IN_PROPERTIES or tags is not None:
            found = _find_pairs(record.properties)
            if found is None:
                return False
            if tags is not None and found.get(b"TAGS") not in tags:
                return True
            pairs = found
        place = record.store_host + record.log_offset.to_bytes(8, signed=True)
        try:
            self.add(
                record.topic,
                record.queue_id,
                record.queue_offset,
                pairs.get(b"UNIQ_KEY") or place.hex().upper().encode(),
                pairs.get(b"KEYS"),
                pairs.get(b"TAGS"),
                record.body,
                list(pairs.items()),
                record.born_ms,
                record.store_ms,
                record.reconsume_times,
                record.sys_flag,
                record.log_offset,
            )
        except OverflowError:
            return False
        return True

    def add(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        msg_id: bytes,
        keys: bytes | None,
        tags: bytes | None,
        body: bytes,
        properties: Sequence[Pair],
        born_ms: int,
        store_ms: int,
        reconsume_times: int,
        sys_flag: int,
        log_offset: int,
    ) -> None:
        """One row of the plain road."""
        texts = {
            TOPIC: topic, BROKER_NAME: self._broker_name, MSG_ID: msg_id, KEYS: keys, TAGS: tags, BODY: body
        }  # fmt: skip
        if not all(_is_utf8(text) for i, text in texts.items() if text and i != BODY):
            raise ValueError("add: text that is not UTF-8")
        if not all(_is_utf8(name) and _is_utf8(value) for name, value in properties):
            raise ValueError("add: properties are pairs of UTF-8")
        names = sum(len(name) for name, _ in properties)
        values = sum(len(value) for _, value in properties)
        if (
            not all(kept.fits(len(texts[i] or b"")) for i, kept in self._texts.items())
            or not self._names.fits(names)
            or not self._contents.fits(values)
        ):
            raise OverflowError("add: the columns are full, take them first")
        numbers = {
            QUEUE_ID: queue_id,
            QUEUE_OFFSET: queue_offset,
            BORN: _microseconds(born_ms),
            STORED: _microseconds(store_ms),
            RECONSUMED: reconsume_times,
            SYS_FLAG: sys_flag,
            LOG_OFFSET: log_offset,
        }
        for i, column in self._values.items():
            column.append(numbers[i])
        for i, kept in self._texts.items():
            if i in _MISSABLE:
                kept.put_missable(texts[i])
            else:
                kept.put(texts[i] or b"")
        if self._wants(PROPERTIES):
            for name, value in properties:
                self._names.put(name)
                self._contents.put(value)
            self._pair_offsets.append(len(self._names.offsets) - 1)
        self.rows += 1

    def take(self) -> tuple[int, list[Buffers]]:
        """How many rows, and the buffers of every column wanted; it is empty then.

        Of numbers (values,); of texts and bytes (validity or None, offsets, data); of properties (offsets,
        name offsets, names, value offsets, values).
        """
        taken: list[Buffers] = []
        for i in range(COLUMNS):
            if not self._wants(i):
                continue
            if i in self._values:
                taken.append((self._values[i].tobytes(),))
            elif i in self._texts:
                taken.append(self._texts[i].buffers())
            else:
                names, values = self._names.buffers()[1:], self._contents.buffers()[1:]
                taken.append((self._pair_offsets.tobytes(), *names, *values))
        rows = self.rows
        self._clear()
        return rows, taken


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _microseconds(ms: int) -> int:
    """What is too far away for microseconds is as far as they go."""
    return max(INT64_MIN, min(ms * 1000, INT64_MAX))


def _find_record(view: memoryview, summed_from: int) -> _Record | None:
    """The record that begins the view, if it is whole and unharmed.

    The checksum of the whole, or where there is none that of the body, is held against it before anything it
    says is believed; from log offset `summed_from` on there is one, or it was torn.
    """
    if len(view) < _RECORD_BYTES_MIN:
        return None
    size, magic, body_crc, queue_id, _, queue_offset, log_offset, sys_flag, born_ms = _HEAD.unpack_from(view)
    if magic not in (_MAGIC_V1, _MAGIC_V2) or not _RECORD_BYTES_MIN <= size <= len(view):
        return None
    data = bytes(view[:size])
    store_at = _HEAD.size + (20 if sys_flag & _BORN_V6 else 8)
    body_at = store_at + 8 + (20 if sys_flag & _STORE_V6 else 8) + _BEFORE_BODY.size
    if body_at > size:
        return None
    reconsume_times, _, body_size = _BEFORE_BODY.unpack_from(data, body_at - _BEFORE_BODY.size)
    topic_at = body_at + body_size + (2 if magic == _MAGIC_V2 else 1)
    if body_size < 0 or topic_at > size:
        return None
    topic_size = int.from_bytes(data[body_at + body_size : topic_at], signed=True)
    properties_at = topic_at + topic_size + 2
    if topic_size < 0 or properties_at > size:
        return None
    properties_size = int.from_bytes(data[properties_at - 2 : properties_at])
    topic, body = data[topic_at : properties_at - 2], data[body_at : body_at + body_size]
    if properties_at + properties_size != size or properties_size > _PROPERTIES_MAX or not _is_utf8(topic):
        return None
    properties = data[properties_at:]
    if properties[-_CRC_BYTES:].startswith(_CRC_PREFIX):
        digits = f"{crc32(data[:-_CRC_BYTES]) & 0x7FFFFFFF:010d}"[::-1].encode()
        if properties[-_CRC_BYTES:] != _CRC_PREFIX + digits + b"\x02":
            return None
        properties = properties[:-_CRC_BYTES]
    elif log_offset >= summed_from or crc32(body) & 0x7FFFFFFF != body_crc:
        return None
    return _Record(
        size,
        topic,
        queue_id,
        queue_offset,
        log_offset,
        sys_flag,
        born_ms,
        int.from_bytes(data[store_at : store_at + 8], signed=True),
        data[store_at + 8 : body_at - _BEFORE_BODY.size],
        reconsume_times,
        body,
        properties,
    )


def _find_pairs(properties: bytes) -> dict[bytes, bytes] | None:
    """Names and values; None when they are not ordinary."""
    if not _is_utf8(properties):
        return None
    pairs: dict[bytes, bytes] = {}
    for text in properties.split(b"\x02"):
        name, _, value = text.partition(b"\x01")
        if not name or not value:
            continue
        if name in pairs or len(pairs) == PAIRS_MAX:
            return None
        pairs[name] = value
    return pairs

"""Rows of Arrow columns -> messages of a batch, and the rows' ids. The specification of rows.c and rowids.c.

Columns come as Arrow lays them out. A text column is (validity bits or None, offsets of 32 bits, bytes or
None, first row), a map (validity, offsets, first row, count of entries, names, values). `rows` are numbers of
rows in 32 bits, in the machine's order of bytes, of which places `at` to `end` are meant; None means all.
What cannot be a message is refused by ValueError(row, problem).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

FIXED_BYTES = 22
PROPERTIES_BYTES_MAX = 32_767
ID_BYTES = 16
TIME_AT, TIME_BYTES = 10, 4
"""Where RocketMQ's ids have a time."""
PREFIX_BYTES_MAX = 64
TEXTS_MAX = 12
KEYS_TOLD_MAX = 100
"""Bytes of a key in an error."""
UNSOUND = "its column's offsets contradict each other"
NO_ROW = "it is no row of its columns"
_NULL = 0xFFFF_FFFF
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_HEAD = struct.Struct(">iiiii")
_NO_ID = bytes(ID_BYTES)


# --- columns -------------------------------------------------------------------------------------------


class Texts:
    """One text column, held against the sizes of its buffers."""

    def __init__(self, column: Any, count: int) -> None:
        if not isinstance(column, tuple):
            raise TypeError("a text column is a tuple of four")
        valid, offsets, data, self.first = column
        self.count = count
        self.offsets = _offsets(offsets, self.first, count)
        self.valid = _validity(valid, self.first + count)
        self.data = b"" if data is None else bytes(data)

    def cell(self, row: int) -> bytes | None:
        """None where there is nothing; LookupError where the offsets contradict each other."""
        at = self.first + row
        if self.valid is not None and not self.valid[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = self.offsets[at], self.offsets[at + 1]
        if not 0 <= begin <= end <= len(self.data):
            raise LookupError
        return self.data[begin:end]


class Maps:
    """One column of names and values."""

    def __init__(self, column: Any, count: int) -> None:
        if not isinstance(column, tuple):
            raise TypeError("a map column is a tuple of six")
        valid, offsets, self.first, entries, names, values = column
        self.offsets = _offsets(offsets, self.first, count)
        self.valid = _validity(valid, self.first + count)
        self.names, self.values = Texts(names, entries), Texts(values, entries)

    def cell(self, row: int) -> list[tuple[bytes | None, bytes | None]] | None:
        at = self.first + row
        if self.valid is not None and not self.valid[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = self.offsets[at], self.offsets[at + 1]
        if not 0 <= begin <= end <= self.names.count:
            raise LookupError
        return [(self.names.cell(place), self.values.cell(place)) for place in range(begin, end)]


def _offsets(buffer: Any, first: int, count: int) -> Sequence[int]:
    whole = bytes(buffer)
    if first < 0 or count < 0 or len(whole) // 4 < first + count + 1:
        raise ValueError("a column's offsets are fewer than its rows")
    return struct.unpack_from(f"={first + count + 1}i", whole)


def _validity(buffer: Any, rows: int) -> bytes | None:
    if buffer is None:
        return None
    bits = bytes(buffer)
    if len(bits) < (rows + 7) // 8:
        raise ValueError("a column's validity is shorter than its rows")
    return bits


def _selected(rows: Any, count: int, at: int, end: int) -> Sequence[int]:
    whole = None if rows is None else bytes(rows)
    there = count if whole is None else len(whole) // 4
    if count < 0 or not 0 <= at <= end <= there:
        raise ValueError(f"rows {at} to {end} of {there}")
    return range(at, end) if whole is None else struct.unpack_from(f"={end - at}i", whole, 4 * at)


def _checked(row: int, place: int, count: int) -> int:
    if not 0 <= row < count:
        raise ValueError(place, NO_ROW)
    return row


# --- messages ------------------------------------------------------------------------------------------


def encode_rows(
    columns: tuple[int, Any, Any, Any, Any],
    rows: Any,
    at: int,
    end: int,
    ids: Any,
    prefix: bytes,
    counter: int,
    dropped: tuple[bytes, ...],
    bytes_max: int,
    count_max: int,
) -> tuple[bytes, int, int]:
    """As many messages as fit into the limits, the first place not taken, and the counter.

    Columns are the count of rows, body, keys, tags and properties, the last three or None. `ids` has 16 bytes
    for each row; where they are zeros, or for None, a row has the next of our own ids: prefix and counter.
    """
    count, body, keys, tags, properties = columns
    if len(prefix) > PREFIX_BYTES_MAX or not 0 <= bytes_max < 1 << 31 or count_max < 0:
        raise ValueError("encode_rows: a limit is out of range")
    numbers = _selected(rows, count, at, end)
    texts = [None if one is None else Texts(one, count) for one in (body, keys, tags)]
    maps = None if properties is None else Maps(properties, count)
    if ids is not None and len(ids := bytes(ids)) < ID_BYTES * count:
        raise ValueError("fewer ids than rows")
    out, place = bytearray(), at
    for row in numbers[:count_max]:
        _checked(row, place, count)
        id_text, next_counter = _id_text(ids, row, prefix, counter)
        try:
            message = _message(texts, maps, row, id_text, dropped)
        except LookupError:
            raise ValueError(row, UNSOUND) from None
        if len(out) + len(message) > bytes_max:
            break
        out += message
        counter, place = next_counter, place + 1
    return bytes(out), place, counter


def _id_text(ids: bytes | None, row: int, prefix: bytes, counter: int) -> tuple[bytes, int]:
    given = _NO_ID if ids is None else ids[ID_BYTES * row : ID_BYTES * (row + 1)]
    if given != _NO_ID:
        return given.hex().upper().encode(), counter
    counter = (counter + 1) & 0xFFFF
    return prefix + b"%04X" % counter, counter


def _message(
    texts: list[Texts | None], maps: Maps | None, row: int, id_text: bytes, dropped: tuple[bytes, ...]
) -> bytes:
    body, keys, tag = (None if column is None else column.cell(row) for column in texts)
    if body is None:
        raise ValueError(row, "its body is null")
    if not body:
        raise ValueError(row, "its body is empty")
    if tag and b"||" in tag:
        raise ValueError(row, "its tag holds '||', which separates tags in subscriptions")
    # the order in which Java's client puts them decides between names of one bucket
    pairs = [(b"TAGS", tag)] if tag else []
    pairs += [(b"KEYS", keys)] if keys else []
    pairs.append((b"WAIT", b"true"))
    for name, value in (maps.cell(row) or ()) if maps is not None else ():
        if value is not None and (name or b"") not in dropped:
            pairs.append((name or b"", value))
    pairs.append((b"UNIQ_KEY", id_text))
    text = _property_string(row, pairs)
    size = FIXED_BYTES + len(body) + len(text)
    return _HEAD.pack(size, 0, 0, 0, len(body)) + body + len(text).to_bytes(2, "big") + text


def _property_string(row: int, pairs: list[tuple[bytes, bytes]]) -> bytes:
    size = 0
    for name, value in pairs:
        if not name or not value or any(mark in name + value for mark in (b"\x01", b"\x02")):
            raise ValueError(row, "a property needs a name and a value, without bytes 1 and 2")
        size += len(name) + len(value) + 2
        if size > PROPERTIES_BYTES_MAX:
            raise ValueError(row, "its properties take more than the 32767 bytes that fit")
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(row, "a property comes twice")
    buckets = 16
    while len(pairs) > buckets * 3 // 4:
        buckets *= 2
    pairs.sort(key=lambda pair: _spread(pair[0]) & buckets - 1)
    return b"".join(b"%s\x01%s\x02" % pair for pair in pairs)


def _java_hash(text: bytes) -> int:
    value = 0
    units = text.decode("utf-8", "replace").encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        value = 31 * value + unit & 0xFFFF_FFFF
    return value


def _spread(name: bytes) -> int:
    value = _java_hash(name)
    return value ^ value >> 16


def spread_rows(count: int, text: Any, rows: Any, at: int, end: int, queues: int) -> bytes:
    """For each of the rows the queue that Java's clients choose by the text's hash; -1 for one without."""
    if queues < 1:
        raise ValueError(f"{queues} queues")
    numbers, column = _selected(rows, count, at, end), Texts(text, count)
    codes = []
    for place, row in enumerate(numbers, start=at):
        _checked(row, place, count)
        try:
            key = column.cell(row)
        except LookupError:
            raise ValueError(row, UNSOUND) from None
        value = 0 if key is None else _java_hash(key)
        codes.append(-1 if key is None else min(value, (1 << 32) - value) % queues)
    return struct.pack(f"={len(codes)}i", *codes)


# --- ids -----------------------------------------------------------------------------------------------


def siphash_128(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 128 bits (Aumasson and Bernstein)."""
    low, high = struct.unpack("<QQ", key)
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        _mix(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    _mix(v, 4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _mix(v, 4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def _mix(v: list[int], rounds: int) -> None:
    for _ in range(rounds):
        for one, other, by, then in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
            v[one] = v[one] + v[other] & _MASK
            v[other] = _turned(v[other], by) ^ v[one]
            v[one] = _turned(v[one], then)


def _turned(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


class RowIds:
    """Ids made of what is in the rows: the same rows have the same ids, in whatever order they come again.

    `key` stands for where the rows belong. Of rows that are alike the second has another id than the first;
    of rows with the same keys it is refused, where ids are made of keys alone: nobody could tell which of
    them came first.
    """

    def __init__(self, key: bytes, time: bytes) -> None:
        if len(key) != ID_BYTES or len(time) != TIME_BYTES:
            raise ValueError("ids take a key of 16 bytes and a time of 4")
        self._key, self._time = bytes(key), bytes(time)
        self._counts: dict[bytes, int] = {}

    def run(
        self,
        count: int,
        texts: tuple[Any, ...],
        map: Any,
        rows: Any,
        at: int,
        end: int,
        keyed: bool,
        out: Any,
    ) -> None:
        """Fill 16 bytes of `out` for each of the rows, at its own number; `keyed`: zeros for one whose first
        text is not there."""
        numbers = _selected(rows, count, at, end)
        if len(texts) > TEXTS_MAX:
            raise ValueError(f"at most {TEXTS_MAX} columns make an id")
        columns = [Texts(one, count) for one in texts]
        if keyed and not columns:
            raise ValueError("ids of keyed rows only need the keys")
        maps = None if map is None else Maps(map, count)
        room = memoryview(out)
        if room.nbytes // ID_BYTES < count:
            raise ValueError("less room for ids than rows")
        for place, row in enumerate(numbers, start=at):
            _checked(row, place, count)
            try:
                keys = columns[0].cell(row) if keyed else None
                given = _NO_ID if keyed and not keys else self._id(columns, maps, row, keys)
            except LookupError:
                raise ValueError(row, UNSOUND) from None
            room[ID_BYTES * row : ID_BYTES * (row + 1)] = given

    def _id(self, columns: list[Texts], maps: Maps | None, row: int, keys: bytes | None) -> bytes:
        cells = [column.cell(row) for column in columns]
        if maps is not None:
            entries = maps.cell(row)
            content = b"".join(map(_measured, cells)) + _number(_NULL if entries is None else len(entries))
            content += b"".join(_measured(name) + _measured(value) for name, value in entries or ())
        else:
            content = b"".join(map(_measured, cells))
        digest = siphash_128(self._key, content)
        mark = digest[:8] if any(digest[:8]) else b"\x01" + bytes(7)
        nth = self._counts[mark] = self._counts.get(mark, 0) + 1
        if nth > 1 and keys:
            told = keys[:KEYS_TOLD_MAX].decode("utf-8", "replace")
            raise ValueError(
                row,
                f"a row with the same keys, {told}, came before it, and rows are told apart by keys alone: "
                "tell them apart by all that is in them (uniqueBy=row)",
            )
        if nth > 1:
            digest = siphash_128(self._key, digest + _number(nth))
        return digest[:TIME_AT] + self._time + digest[TIME_AT + TIME_BYTES :]


def _measured(cell: bytes | None) -> bytes:
    # what is not there is not what is empty
    return _number(_NULL) if cell is None else _number(len(cell)) + cell


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")

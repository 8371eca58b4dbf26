"""A store with known contents, damaged bit by bit, and everything a broker hands out held against them.

Owns the list of what was stored and the questions asked after each damage. Promises are the tests' own.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hotfire.protocol.command import Command
from hotfire.protocol.record import Record, iter_records, keys_of, parse_properties
from hotfire.protocol.requests import QueryMessage, Request, SearchOffsetByTimestamp, ViewMessageById
from tests.unit.broker.harness import FOUND, MOVED, NOT_FOUND, RETRY, Harness, next_offset

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 80,
    "auto_create_topic_enable": True,
}
"""Files so small that there are several of each kind."""
QUEUES = [("T", 0), ("T", 1), ("U", 0), ("U", 1)]
RECORD_BYTES = 256
"""Of the first records: a wrong bit in where an entry points then leads to another whole record."""
HEADER_BYTES, INDEX_HEADER_BYTES, ENTRY_BYTES = 88, 40, 20
NOT_IN_ANY_QUEUE = -1


class Stored(NamedTuple):
    """One message, and its bytes in the log."""

    record: Record
    raw: bytes

    @property
    def place(self) -> tuple[str, int, int]:
        return self.record.topic, self.record.queue_id, self.record.queue_offset

    @property
    def keys(self) -> list[str]:
        return list(keys_of(parse_properties(self.record.properties)))

    @property
    def tag(self) -> str:
        return parse_properties(self.record.properties).get("TAGS", "")


@dataclass
class Stores:
    """The same messages in a store closed cleanly and in one whose broker was killed."""

    clean: Path
    unclean: Path
    stored: list[Stored]
    by_place: dict[tuple[str, int, int], Stored] = field(default_factory=dict)
    by_offset: dict[int, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_place = {one.place: one for one in self.stored}
        self.by_offset = {one.record.physical_offset: one for one in self.stored}


def write_stores(root: Path, count: int = 160, **settings: Any) -> Stores:
    """Four queues in turn, keys, tags and times; the last third came after the last checkpoint."""
    heart = Harness(root / "clean", **SETTINGS, **settings)
    for topic in ("T", "U"):
        heart.create_topic(topic, 2)
    random_ = random.Random(4)
    for n in range(count):
        topic, queue_id = QUEUES[n % len(QUEUES)]
        named = {"UNIQ_KEY": f"unique-{n:06d}", "KEYS": f"key{n % 9}", "TAGS": f"tag{n % 3}"}
        overhead = RECORD_BYTES - _body_room(heart, topic, queue_id, named, n)
        size = RECORD_BYTES - overhead if n < count // 2 else random_.randrange(1, 300)
        body = random_.randbytes(size)
        assert heart.send(topic=topic, queue_id=queue_id, body=body, named=named).code == FOUND
        heart.now_ms += 400
        if n == count * 2 // 3:
            heart.pass_time(3000)
            heart.store._flushing.settle(heart.now_ms, wait=True)
    records = heart.log_records()
    assert records[1].physical_offset == RECORD_BYTES, "records of one size were wanted"
    shutil.copytree(root / "clean", root / "unclean")
    log = b"".join(path.read_bytes() for path in sorted((root / "clean" / "commitlog").iterdir()))
    heart.close()
    stored = [Stored(one, log[one.physical_offset : one.physical_offset + one.size]) for one in records]
    assert (len(stored), heart.store.fault) == (count, None)
    return Stores(root / "clean", root / "unclean", stored)


_rooms: dict[bool, int] = {}


def _body_room(heart: Harness, topic: str, queue_id: int, named: dict[str, str], n: int) -> int:
    """Bytes of body with which the record has RECORD_BYTES; found out by storing the first."""
    checksum = heart.config.enabled_append_prop_crc
    if n == 0:
        with_one = Harness(heart.root.parent / "scratch", **SETTINGS, enabled_append_prop_crc=checksum)
        with_one.send(topic=topic, queue_id=queue_id, body=b"x", named=named)
        _rooms[checksum] = RECORD_BYTES - with_one.log_records()[0].size + 1
        with_one.close()
    return _rooms[checksum]


# --- where a bit may be wrong ---


class Part(NamedTuple):
    """A stretch of a file, and the log offset of the only message its damage may cost."""

    file: str
    start: int
    size: int
    costs: int = NOT_IN_ANY_QUEUE


def record_parts(stores: Stores, pick: Callable[[Stored], tuple[int, int]]) -> Iterator[Part]:
    segment = SETTINGS["mapped_file_size_commit_log"]
    for one in stores.stored:
        offset = one.record.physical_offset
        start, size = pick(one)
        file = f"commitlog/{offset - offset % segment:020d}"
        yield Part(file, offset % segment + start, size, offset)


def queue_parts(stores: Stores) -> Iterator[Part]:
    for (topic, queue_id, queue_offset), one in stores.by_place.items():
        at = queue_offset * ENTRY_BYTES
        base = at - at % SETTINGS["mapped_file_size_consume_queue"]
        file = f"consumequeue/{topic}/{queue_id}/{base:020d}"
        yield Part(file, at - base, ENTRY_BYTES, one.record.physical_offset)


def index_parts(stores: Stores, *, slots: bool) -> Iterator[Part]:
    slots_bytes = SETTINGS["max_hash_slot_num"] * 4
    for path in sorted((stores.clean / "index").iterdir()):
        (following,) = struct.unpack_from(">i", path.read_bytes(), 36)
        name = f"index/{path.name}"
        if slots:
            yield Part(name, INDEX_HEADER_BYTES, slots_bytes)
        else:
            first = INDEX_HEADER_BYTES + slots_bytes + ENTRY_BYTES
            yield Part(name, first, (following - 1) * ENTRY_BYTES)


def index_headers(stores: Stores) -> Iterator[Part]:
    for path in sorted((stores.clean / "index").iterdir()):
        yield Part(f"index/{path.name}", 0, INDEX_HEADER_BYTES)


def _body(one: Stored) -> tuple[int, int]:
    return HEADER_BYTES, len(one.record.body)


def _properties(one: Stored) -> tuple[int, int]:
    return len(one.raw) - len(one.record.properties), len(one.record.properties)


PARTS: dict[str, Callable[[Stores], Iterator[Part]]] = {
    "record header": lambda stores: record_parts(stores, lambda one: (0, HEADER_BYTES)),
    "body": lambda stores: record_parts(stores, _body),
    "properties": lambda stores: record_parts(stores, _properties),
    "queue entry": queue_parts,
    "index slot": lambda stores: index_parts(stores, slots=True),
    "index entry": lambda stores: index_parts(stores, slots=False),
    "index header": index_headers,
}


def flip(root: Path, file: str, position: int, bit: int) -> None:
    with (root / file).open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ 1 << bit]))


# --- what a broker hands out ---


def inquire(heart: Harness, request: Request) -> Command:
    """A question that is answered beside the loop, and its answer."""
    heart.receive(request)
    while not heart.connection._unread:
        heart.ring()
    return heart.connection.take_one()


class Inquest:
    """Everything asked of a broker over a damaged store. Bytes are compared whole."""

    def __init__(self, heart: Harness, stores: Stores, lost: Collection[int], *, index_harmed: bool) -> None:
        """`lost`: log offsets of the messages that need not be found."""
        self._heart, self._stores, self._lost = heart, stores, set(lost)
        self._index_harmed = index_harmed

    def hold(self) -> None:
        for topic, queue_id in QUEUES:
            self._pulls(topic, queue_id, "*", lambda one: True)
            self._pulls(topic, queue_id, "tag1", lambda one: one.tag == "tag1")
            self._times(topic, queue_id)
        self._ids()
        for n in (0, 4, 8):
            self._key(f"key{n}")
        for offset in list(self._lost)[:1] or [self._stores.stored[7].record.physical_offset]:
            self._key(self._stores.by_offset[offset].keys[0])

    def _pulls(self, topic: str, queue_id: int, expression: str, wanted: Callable[[Stored], bool]) -> None:
        offset, seen = 0, set()
        for _ in range(200):
            reply = self._heart.pull(offset=offset, topic=topic, queue_id=queue_id, expression=expression)
            if reply.code == FOUND:
                for one in _whole(reply.body):
                    place = topic, queue_id, one.record.queue_offset
                    assert one.raw == self._stores.by_place[place].raw, f"not what was stored at {place}"
                    assert one.record.queue_offset >= offset
                    seen.add(one.record.physical_offset)
            elif reply.code == NOT_FOUND:
                break
            else:
                assert reply.code in (RETRY, MOVED), reply
            assert next_offset(reply) > offset, f"no way forward from {topic} {queue_id} {offset}: {reply}"
            offset = next_offset(reply)
        else:
            raise AssertionError("pulled without end")
        due = {
            one.record.physical_offset
            for place, one in self._stores.by_place.items()
            if place[:2] == (topic, queue_id) and wanted(one)
        }
        assert due - seen <= self._lost, f"not delivered: {sorted(due - seen - self._lost)}"
        assert {one for one in seen - due if one not in self._lost} == set(), "delivered against the filter"

    def _ids(self) -> None:
        chosen = {one.record.physical_offset for one in self._stores.stored[::19]} | self._lost
        for offset in chosen:
            reply = inquire(self._heart, ViewMessageById(offset=offset))
            if reply.code == FOUND:
                assert reply.body == self._stores.by_offset[offset].raw
            else:
                assert offset in self._lost, f"not found by its id: {offset}"

    def _key(self, key: str) -> None:
        for topic in ("T", "U"):
            reply = inquire(
                self._heart,
                QueryMessage(topic=topic, key=key, max_num=64, begin_timestamp=0, end_timestamp=1 << 60),
            )
            found = [one.record.physical_offset for one in _whole(reply.body)] if reply.code == FOUND else []
            for one in _whole(reply.body) if found else []:
                assert one.raw == self._stores.by_offset[one.record.physical_offset].raw
            due = [
                offset
                for offset, one in self._stores.by_offset.items()
                if one.record.topic == topic and key in one.keys
            ]
            assert set(found) <= set(due), f"found by a key it does not have: {key}"
            assert found == sorted(found)
            if not self._index_harmed:
                assert set(due) - set(found) <= self._lost

    def _times(self, topic: str, queue_id: int) -> None:
        """Neither end leaves out a sound message of the span, nor takes in more than the harmed one."""
        mine = [one for one in self._stores.stored if one.place[:2] == (topic, queue_id)]
        harmed = {one.record.queue_offset for one in mine if one.record.physical_offset in self._lost}
        for one in (mine[0], mine[len(mine) // 2], mine[-1]):
            exact = one.record.queue_offset
            lower = {exact, *(exact - 1 for at in harmed if at == exact - 1)}
            upper = {exact, *(exact + 1 for at in harmed if at == exact + 1)}
            either = {exact - 1, exact, exact + 1} if exact in harmed else set()
            for boundary, near in (("lower", lower | either), ("upper", upper | either)):
                request = SearchOffsetByTimestamp(
                    topic=topic,
                    queue_id=queue_id,
                    timestamp=one.record.store_timestamp,
                    boundary_type=boundary,
                )
                reply = inquire(self._heart, request)
                assert reply.code == FOUND, reply
                found = int((reply.fields or {})["offset"])
                assert found in near, f"{boundary} time of {one.place}: offset {found}"


def _whole(data: bytes) -> list[Stored]:
    found, at = [], 0
    for record in iter_records(data):
        found.append(Stored(record, data[at : at + record.size]))
        at += record.size
    return found

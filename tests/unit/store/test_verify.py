"""One wrong bit anywhere in a store is found, and found where it is."""

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotfire.protocol.record import decode_record, is_blank
from hotfire.store.disk import Disk
from hotfire.store.findings import Damage, Findings
from hotfire.store.layout import look
from hotfire.store.verify import verify
from tests.unit.store.driven import Driven

SLOTS, ENTRIES = 16, 60
SEGMENT_BYTES = 8192
FLIPS_EACH = 40
ENTRY_BYTES = 20
INDEX_BASE = 40 + SLOTS * 4


def check(root: Path) -> tuple[Findings, list[Damage]]:
    damages: list[Damage] = []
    return verify(look(Disk(root)), damages.append), damages


def write_store(root: Path, *, count: int = 150) -> Driven:
    """Several topics and queues, keys and tags, rolled files of every kind; closed cleanly."""
    with Driven(root, segment_bytes=SEGMENT_BYTES, index_slots=SLOTS, index_entries=ENTRIES) as driven:
        for n in range(count):
            properties = {"UNIQ_KEY": f"unique-{n}"} if n % 5 else {}
            if n % 3:
                properties["KEYS"] = f"key{n} key{n % 7}"
            if n % 4:
                properties["TAGS"] = f"tag{n % 6}"
            driven.send(f"topic-{n % 3}", n % 2, b"%d " % n * (n % 60 + 1), **properties)
            if n % 10 == 9:
                driven.turn()
                driven.now_ms += 700
        driven.turn()
    return driven


@dataclass(frozen=True)
class Part:
    """A stretch of a file in which a bit may be wrong, and how far off its finding may lie."""

    file: str
    start: int
    size: int
    told_from: int
    """The first byte the finding may name: a record is named by where it begins."""


def record_parts(root: Path, pick: Callable[[bytes, int], tuple[int, int]]) -> list[Part]:
    """A stretch of every record; `pick` gives (start, size) within it, for its bytes and its size."""
    parts = []
    for path in sorted((root / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data) and any(data[at : at + 8]) and not is_blank(data, at):
            (size,) = struct.unpack_from(">i", data, at)
            start, length = pick(data[at : at + size], size)
            if length:
                parts.append(Part(f"commitlog/{path.name}", at + start, length, at))
            at += size
    return parts


def header_of(data: bytes, size: int) -> tuple[int, int]:
    return 0, 88


def body_of(data: bytes, size: int) -> tuple[int, int]:
    return 88, len(decode_record(data).body)


def properties_of(data: bytes, size: int) -> tuple[int, int]:
    length = len(decode_record(data).properties)
    return size - length, length


def queue_parts(root: Path) -> list[Part]:
    parts = []
    for path in sorted((root / "consumequeue").rglob("0*")):
        if path.is_file():
            data = path.read_bytes()
            for at in range(0, len(data), ENTRY_BYTES):
                if any(data[at : at + ENTRY_BYTES]):
                    parts.append(Part(str(path.relative_to(root)), at, ENTRY_BYTES, at))
    return parts


def index_parts(root: Path, *, slots: bool) -> list[Part]:
    parts = []
    for path in sorted((root / "index").iterdir()):
        name, data = f"index/{path.name}", path.read_bytes()
        (following,) = struct.unpack_from(">i", data, 36)
        if slots:
            parts += [Part(name, 40 + n * 4, 4, 40 + n * 4) for n in range(SLOTS)]
        else:
            places = (INDEX_BASE + n * ENTRY_BYTES for n in range(1, following))
            parts += [Part(name, at, ENTRY_BYTES, at) for at in places]
    return parts


PARTS: dict[str, Callable[[Path], list[Part]]] = {
    "record header": lambda root: record_parts(root, header_of),
    "body": lambda root: record_parts(root, body_of),
    "properties": lambda root: record_parts(root, properties_of),
    "queue entry": queue_parts,
    "index slot": lambda root: index_parts(root, slots=True),
    "index entry": lambda root: index_parts(root, slots=False),
}


@pytest.fixture(scope="module")
def pristine(memory_directory: Path) -> Path:
    root = memory_directory / "pristine"
    write_store(root)
    return root


def flip(root: Path, file: str, position: int, bit: int) -> None:
    path = root / file
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_a_store_of_ours_is_sound(pristine: Path) -> None:
    """Nothing is found in a store that was closed cleanly, and everything in it was looked at."""
    findings, damages = check(pristine)
    assert (damages, findings.notes) == ([], [])
    keys = sum(bool(n % 5) + 2 * bool(n % 3) + bool(n % 4) for n in range(150))
    assert (findings.records, findings.entries, findings.keys) == (150, 150, keys)
    assert len(list((pristine / "commitlog").iterdir())) > 3
    assert len(list((pristine / "index").iterdir())) > 3


@pytest.mark.parametrize("what", PARTS)
def test_one_wrong_bit_is_found(what: str, pristine: Path) -> None:
    """Forty bits at random in each kind of place: each is damage, in the right file at the right thing."""
    chance = random.Random(what)
    parts = PARTS[what](pristine)
    missed = []
    for _ in range(FLIPS_EACH):
        part = chance.choice(parts)
        position, bit = part.start + chance.randrange(part.size), chance.randrange(8)
        flip(pristine, part.file, position, bit)
        try:
            findings, damages = check(pristine)
        finally:
            flip(pristine, part.file, position, bit)
        first = damages[0] if damages else None
        is_named = first and first.file == part.file and part.told_from <= first.position <= position
        if findings.is_sound or not is_named:
            missed.append(f"{part.file} byte {position} bit {bit}: {[str(one) for one in damages[:3]]}")
    assert not missed, "\n".join(missed)


# --- other places ---


def test_a_wrong_bit_in_an_index_header_is_found(pristine: Path) -> None:
    """Every bit of its times, offsets and counts, in the first file, one in the middle and the last."""
    names = [path.name for path in sorted((pristine / "index").iterdir())]
    for name in (names[0], names[1], names[-1]):
        for position in range(0, 40, 3):
            flip(pristine, f"index/{name}", position, position % 8)
            findings, damages = check(pristine)
            flip(pristine, f"index/{name}", position, position % 8)
            assert not findings.is_sound, (name, position)
            assert damages[0].file == f"index/{name}"
            assert damages[0].position <= position


def test_a_wrong_bit_in_the_checkpoint_is_found(pristine: Path) -> None:
    """Of what the checkpoint says, no bit can change unseen; beyond its checksum it says nothing."""
    for position in [*range(40), *range(64, 116), *range(512, 532)]:
        flip(pristine, "checkpoint", position, position % 8)
        _, damages = check(pristine)
        flip(pristine, "checkpoint", position, position % 8)
        ((file, found),) = [(damage.file, damage.position) for damage in damages]
        assert (file, found) == ("checkpoint", position if position < 512 else 512)


def test_bytes_where_nothing_is_are_found(pristine: Path) -> None:
    """Behind the end of log, blank, queue and index there are zeros."""
    segments = sorted((pristine / "commitlog").iterdir())
    index = sorted((pristine / "index").iterdir())[-1]
    queue = sorted((pristine / "consumequeue" / "topic-1" / "0").iterdir())[-1]
    for path, position in (
        (segments[-1], SEGMENT_BYTES - 1),
        (segments[0], SEGMENT_BYTES - 1),
        (queue, queue.stat().st_size - 1),
        (index, index.stat().st_size - 1),
    ):
        file = str(path.relative_to(pristine))
        flip(pristine, file, position, 0)
        _, damages = check(pristine)
        flip(pristine, file, position, 0)
        assert [damage.file for damage in damages] == [file]
        assert position - ENTRY_BYTES < damages[0].position <= position


def test_a_wrong_bit_in_a_blank_is_found(pristine: Path) -> None:
    """Its size and its magic."""
    data = sorted((pristine / "commitlog").iterdir())[0].read_bytes()
    at = data.index(bytes.fromhex("cbd43194")) - 4
    for position in range(at, at + 8):
        flip(pristine, "commitlog/" + "0" * 20, position, 2)
        _, damages = check(pristine)
        flip(pristine, "commitlog/" + "0" * 20, position, 2)
        assert [(damage.file, damage.position) for damage in damages] == [("commitlog/" + "0" * 20, at)]


# --- things that are gone ---


@pytest.fixture
def copy(pristine: Path, in_memory: Path) -> Path:
    return Path(shutil.copytree(pristine, in_memory / "copy"))


@pytest.mark.parametrize("gone", ["consumequeue/topic-1/0", "consumequeue", "index/2", "index"])
def test_what_is_gone_is_missed(gone: str, copy: Path) -> None:
    """A lost queue, all of them, the newest index file, and all of them."""
    if gone == "index/2":
        sorted((copy / "index").iterdir())[-1].unlink()
    else:
        shutil.rmtree(copy / gone)
    _, damages = check(copy)
    assert damages
    assert all(damage.file.startswith(gone) for damage in damages)


def test_keys_from_before_the_index_are_told(copy: Path) -> None:
    """The oldest index file may have been deleted: no damage, but worth a line."""
    sorted((copy / "index").iterdir())[0].unlink()
    findings, damages = check(copy)
    assert damages == []
    assert [note.split(" before")[0] for note in findings.notes] == ["59 keys"]


def test_a_lost_segment_is_named(copy: Path) -> None:
    """The records in it are gone and their entries lead nowhere; the finding is the segment, once."""
    lost = sorted((copy / "commitlog").iterdir())[2]
    lost.unlink()
    _, damages = check(copy)
    assert [(damage.file, damage.position) for damage in damages] == [(f"commitlog/{lost.name}", 0)]


def test_a_log_whose_beginning_was_deleted_is_sound(copy: Path) -> None:
    """Entries of queues and index that lead to records from before the log are no damage; a wrong one is."""
    for path in sorted((copy / "commitlog").iterdir())[:3]:
        path.unlink()
    findings, damages = check(copy)
    assert (damages, findings.notes) == ([], [])
    assert 0 < findings.records < 150
    for file, position in (
        ("consumequeue/topic-1/0/" + "0" * 20, 0),
        (f"index/{sorted((copy / 'index').iterdir())[0].name}", INDEX_BASE + 2 * ENTRY_BYTES + 19),
    ):
        flip(copy, file, position, 3)
        _, damages = check(copy)
        flip(copy, file, position, 3)
        assert {damage.file for damage in damages} == {file}


def test_a_file_in_the_log_that_is_no_segment_is_named(copy: Path) -> None:
    """No broker starts with it. Elsewhere a strange file is only worth a line."""
    (copy / "commitlog" / "copy-of-0").write_bytes(b"")
    (copy / "notes.txt").write_bytes(b"")
    findings, damages = check(copy)
    assert [damage.file for damage in damages] == ["commitlog/copy-of-0"]
    assert findings.notes == ["notes.txt: not a file of a store"]


def test_a_damaged_table_is_named(copy: Path) -> None:
    """A table that is no JSON object."""
    (copy / "config").mkdir()
    (copy / "config" / "topics.json").write_bytes(b'{"a":{0:1}}')
    (copy / "config" / "consumerOffset.json").write_bytes(b'{"a":')
    _, damages = check(copy)
    assert [damage.file for damage in damages] == ["config/consumerOffset.json"]


# --- what a crash leaves ---


def test_a_torn_tail_is_no_damage(in_memory: Path) -> None:
    """After a crash: the last record half there, entries not made yet. The next start mends it."""
    with Driven(in_memory / "store", segment_bytes=SEGMENT_BYTES) as driven:
        for n in range(30):
            driven.send("t", 0, b"x" * 90, KEYS=f"k{n}")
        driven.turn()
        last = driven.send("t", 0, b"torn" * 30)
        driven.turn()
        image = driven.crash_image(in_memory / "image")
        image.forget_mark()
    segment = image.root / "commitlog" / f"{last.physical // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    data = bytearray(segment.read_bytes())
    end = last.end % SEGMENT_BYTES
    data[end - 60 : end] = bytes(60)
    segment.write_bytes(data)
    findings, damages = check(image.root)
    assert damages == []
    assert findings.records == 30
    assert any("torn tail" in note for note in findings.notes)
    with image:
        pass
    findings, damages = check(image.root)
    assert (damages, findings.notes, findings.records) == ([], [], 30)

"""The files as other programs see them: names, sizes, records, blanks, queue entries."""

import struct
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hotfire import core
from hotfire.protocol.record import (
    BLANK_BYTES,
    decode_record,
    encode_record,
    is_blank,
    java_hash,
    parse_properties,
)
from tests.unit.store.driven import Driven, message

ENTRY = struct.Struct(">qiq")
GIB = 1 << 30
MIB = 1 << 20


def segments(driven: Driven) -> list[Path]:
    return sorted((driven.root / "commitlog").iterdir())


# --- the log ---


@pytest.mark.promise(20)
def test_one_log_for_all_topics_in_files_of_one_gib(tmp_path: Path) -> None:
    """More than 1 GiB over three topics: two files, named by their first offset, the topics mixed in them."""
    driven = Driven(
        tmp_path / "store", segment_bytes=GIB, queue_file_bytes=6_000_000, sync_flush=False
    ).open()
    body = bytes(4 * MIB)
    while driven.store.end <= GIB:
        driven.send(f"topic-{len(driven.sent) % 3}", 0, body)
        driven.turn()
    names = [path.name for path in segments(driven)]
    sizes = {path.stat().st_size for path in segments(driven)}
    found = [topic_at(driven, sent.physical, len(body)) for sent in driven.sent]
    for path in segments(driven):
        path.unlink()  # before anything else can fail: this is 2 GiB
    assert names == ["00000000000000000000", "00000000001073741824"]
    assert sizes == {GIB}
    assert found == [f"topic-{i % 3}" for i in range(len(found))]
    assert driven.sent[-1].physical >= GIB
    driven.store.fail("its files are gone")
    driven.store.close()


@pytest.mark.promise(21)
def test_a_record_starts_with_its_length_and_holds_what_was_sent(in_memory: Path) -> None:
    """The first int32 leads from record to record; queue, offset, topic, keys and tags are in each."""
    with Driven(in_memory / "store") as driven:
        for i in range(9):
            driven.send(f"t{i % 2}", i % 3, b"x" * i, KEYS=f"key{i} other", TAGS=f"tag{i}")
        driven.turn()
        log = driven.log_bytes()
    at = 0
    for i, sent in enumerate(driven.sent):
        (size,) = struct.unpack_from(">i", log, at)
        record = decode_record(log, at)
        properties = parse_properties(record.properties)
        assert (at, at + size) == (sent.physical, sent.end)
        assert (record.topic, record.queue_id, record.queue_offset) == (f"t{i % 2}", i % 3, sent.queue_offset)
        assert (properties["KEYS"], properties["TAGS"]) == (f"key{i} other", f"tag{i}")
        assert record.body == b"x" * i
        at += size
    assert not any(log[at:])


@pytest.mark.core
@pytest.mark.promise(22)
def test_what_does_not_fit_goes_to_the_next_file(in_memory: Path) -> None:
    """The rest of a full file is one blank; the record comes first in the next file; readers cross over."""
    with Driven(in_memory / "store", segment_bytes=4096) as driven:
        for i in range(40):
            driven.send("t", 0, bytes([i]) * (300 + 7 * i))
        driven.turn()
        files = [path.read_bytes() for path in segments(driven)]
        driven.check(driven.sent)
        image = driven.crash_image(in_memory / "image")
        with image:
            image.check(driven.sent)
    crossings = [(a, b) for a, b in pairwise(driven.sent) if a.physical // 4096 != b.physical // 4096]
    assert len(crossings) >= 4
    for last, first in crossings:
        file, at = files[last.physical // 4096], last.end % 4096
        left = 4096 - at
        assert first.physical == (last.physical // 4096 + 1) * 4096
        assert is_blank(file, at)
        assert struct.unpack_from(">i", file, at) == (left,)
        assert first.end - first.physical + BLANK_BYTES > left, "it would have fitted"
        assert decode_record(files[first.physical // 4096], 0).body == first.body


@pytest.mark.core
@pytest.mark.parametrize("spare", [0, 1, 7, 8, 9, 90, 91])
def test_a_record_fits_if_a_blank_still_does(in_memory: Path, spare: int) -> None:
    """A file keeps 8 bytes for its blank, to the byte."""
    with Driven(in_memory / "store", segment_bytes=4096) as driven:
        size = len(encode_record(message("t", 0, b""), append_crc=True))
        driven.send("t", 0, bytes(4096 - 2 * size - spare))
        second = driven.send("t", 0, b"")
        assert second.physical == (4096 - size - spare if spare >= 8 else 4096)
        driven.turn()
        with driven.crash_image(in_memory / "image") as image:
            image.check(driven.sent)


# --- queues ---


@pytest.mark.promise(24)
def test_queue_files_hold_twenty_bytes_a_message(in_memory: Path) -> None:
    """Entries are log position, length and tag hash; a file of the default settings has 6 000 000 bytes."""
    with Driven(in_memory / "store", queue_file_bytes=6_000_000) as driven:
        for i in range(20):
            driven.send("t", i % 2, b"body", **({"TAGS": f"tag{i}"} if i % 3 else {}))
        driven.turn()
        for queue_id in range(2):
            (file,) = (driven.root / "consumequeue" / "t" / str(queue_id)).iterdir()
            assert file.name == "0" * 20
            data = file.read_bytes()
            assert len(data) == 6_000_000
            mine = [(i, sent) for i, sent in enumerate(driven.sent) if sent.queue_id == queue_id]
            for n, (i, sent) in enumerate(mine):
                tags = java_hash(f"tag{i}") if i % 3 else 0
                assert ENTRY.unpack_from(data, n * 20) == (sent.physical, sent.end - sent.physical, tags)
            assert not any(data[len(mine) * 20 :])


@pytest.mark.core
def test_queue_files_are_named_by_their_first_byte(in_memory: Path) -> None:
    """The n-th entry lies at byte n x 20 of the files put after each other, over restarts too."""
    driven = Driven(in_memory / "store", queue_file_bytes=140).open()
    for i in range(30):
        driven.send("t", 0, b"%d" % i)
        driven.turn()
        if i in (6, 7, 20, 27):
            driven = driven.reopened()
    files = sorted((driven.root / "consumequeue" / "t" / "0").iterdir())
    assert [path.name for path in files] == [f"{n * 140:020d}" for n in range(5)]
    assert {path.stat().st_size for path in files} == {140}
    entries = list(ENTRY.iter_unpack(b"".join(path.read_bytes() for path in files)))
    assert [entry[0] for entry in entries[:30]] == [sent.physical for sent in driven.sent]
    assert not any(size for _, size, _ in entries[30:])
    driven.store.close()


@pytest.mark.core
@pytest.mark.promise(25)
def test_a_queue_is_an_array(in_memory: Path) -> None:
    """Offsets 299 999 and 300 000 lie in two files of the default size; each is found at once, as is 0."""
    driven = Driven(in_memory / "store", segment_bytes=64 * MIB, queue_file_bytes=6_000_000).open()
    last = fill(driven, 300_002)
    assert last == 300_002
    names = sorted(path.name for path in (driven.root / "consumequeue" / "t" / "0").iterdir())
    assert names == ["00000000000000000000", "00000000000006000000"]
    driven.store.close()
    for again in (driven.on(driven.root), driven.on(driven.root)):
        with again:
            for offset in (299_999, 300_000, 0, 299_998, 300_001, 150_000):
                records, _ = again.pull("t", 0, offset, count_max=1)
                assert [(r.queue_offset, r.body) for r in records] == [(offset, b"%06d" % offset)]
            quickest = {offset: quickest_pull(again, offset) for offset in (0, 150_000, 299_999, 300_000)}
            assert max(quickest.values()) < 10 * quickest[0], f"not found at once: {quickest}"
            across, following = again.pull("t", 0, 299_998)
            assert [r.queue_offset for r in across] == list(range(299_998, following))
            rest, _ = again.pull("t", 0, following)
            assert [r.queue_offset for r in across + rest] == [299_998, 299_999, 300_000, 300_001]


@pytest.mark.core
def test_old_windows_are_opened_when_asked_for(in_memory: Path) -> None:
    """A consumer anywhere in a long queue reads through every file of it, while others are elsewhere."""
    with Driven(in_memory / "store", queue_file_bytes=100) as driven:
        for i in range(60):
            driven.send("t", 0, b"%d" % i, TAGS="even" if i % 2 == 0 else "odd")
        driven.turn()
        positions = [0, 13, 31, 47]
        seen: dict[int, list[int]] = {start: [] for start in positions}
        offsets = dict(zip(positions, positions, strict=True))
        while any(offset < 60 for offset in offsets.values()):
            for start, offset in offsets.items():
                if offset < 60:
                    records, offsets[start] = driven.pull("t", 0, offset, count_max=3)
                    assert offsets[start] > offset
                    seen[start] += [r.queue_offset for r in records]
        assert seen == {start: list(range(start, 60)) for start in positions}
        even, offset = [], 0
        while offset < 60:
            records, following = driven.pull("t", 0, offset, codes=(java_hash("even"),))
            assert following > offset
            even += [int(r.body) for r in records]
            offset = following
        assert even == list(range(0, 60, 2))


def quickest_pull(driven: Driven, offset: int) -> float:
    """Seconds the quickest of many selections takes; the others waited for something else."""
    times = []
    for _ in range(30):
        begin = time.perf_counter()
        driven.store.read("t", 0, offset, count_max=1, bytes_max=1)
        times.append(time.perf_counter() - begin)
    return min(times)


def topic_at(driven: Driven, physical: int, body_size: int) -> str:
    """The topic of a record with IPv4 hosts, without reading its body."""
    start = physical - physical % GIB
    with (driven.root / "commitlog" / f"{start:020d}").open("rb") as file:
        file.seek(physical - start + 88 + body_size)
        return file.read(file.read(1)[0]).decode()


def fill(driven: Driven, count: int) -> int:
    """Append `count` tiny records to one queue; by the compiled encoder where there is one."""
    store, journal, queue = driven.store, driven.store.journal, driven.store.queue("t", 0)
    template = message("t", 0, b"000000")
    host = template.born_host.address + template.born_host.port.to_bytes(4)
    size = len(encode_record(template, append_crc=True))
    for i in range(count):
        physical = store._log.reserve(size)
        body = b"%06d" % i
        if core.COMPILED:
            data = core.encode_record(
                b"t", body, b"", b"", host, host, 0, 0, 0, 0, i, physical, 1, 1, 0, True
            )
        else:
            record = replace(message("t", 0, body), queue_offset=i, physical_offset=physical)
            data = encode_record(record, append_crc=True)
        journal.append(data, queue, queue.claim(), 0)
        if i % 50_000 == 0:
            driven.turn()
    driven.turn()
    return queue.max

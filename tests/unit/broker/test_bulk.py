"""Pulls of those who take more in one answer: thousands of messages, megabytes; everyone else as ever."""

import shutil
from pathlib import Path

import pytest

from hotfire import core
from hotfire.store.reading import BULK_BYTES_MAX, BULK_COUNT_MAX, BYTES_MAX_MEMORY, Read
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import FOUND, Harness, bodies, next_offset, pull_request, send_request

MESSAGES = 5000
SEGMENT_BYTES = 8 << 20


@pytest.fixture(scope="module")
def written(memory_directory: Path) -> Path:
    """A closed store: five thousand messages of a few bytes in queue 0, thirty of 160 KiB in queue 1.

    However it is served, the same bytes are stored; that is shown elsewhere.
    """
    heart = Harness(memory_directory / "bulk", mapped_file_size_commit_log=SEGMENT_BYTES)
    heart.create_topic("T")
    for start in range(0, MESSAGES, 1000):
        heart.receive(*(send_request(body=b"%d" % number) for number in range(start, start + 1000)))
        heart.settle()
    for _ in range(30):
        heart.receive(send_request(queue_id=1, body=bytes(160 << 10)))
        heart.settle()
    heart.close()
    return heart.root


@pytest.fixture
def full(make: Make, written: Path, in_memory: Path) -> Harness:
    """A broker over a copy of it."""
    return make(shutil.copytree(written, in_memory / "full"), mapped_file_size_commit_log=SEGMENT_BYTES)


def test_without_a_word_of_bytes_limits_are_the_references(full: Harness) -> None:
    """However many messages are asked for: 32, and 256 KiB; a client's usual maxMsgBytes changes nothing."""
    for bytes_max in (None, BYTES_MAX_MEMORY):
        for count in (32, 64, 4096):
            assert len(bodies(full.pull(max_msg_nums=count, max_msg_bytes=bytes_max))) == 32
        large = full.pull(queue_id=1, max_msg_bytes=bytes_max)
        assert (large.code, len(bodies(large))) == (FOUND, 1)


def test_more_bytes_asked_for_mean_more_messages(full: Harness) -> None:
    """Above 256 KiB: as many messages as asked for, 4096 at most, and they are the next ones in order."""
    for count in (1, 100, 4096, 100_000):
        for bytes_max in (BYTES_MAX_MEMORY + 1, BULK_BYTES_MAX, 1 << 30):
            reply = full.pull(offset=7, max_msg_nums=count, max_msg_bytes=bytes_max)
            found = bodies(reply)
            assert len(found) <= min(count, BULK_COUNT_MAX)
            if bytes_max >= BULK_BYTES_MAX:
                assert len(found) == min(count, BULK_COUNT_MAX)
            else:
                assert len(reply.body) <= bytes_max
            assert found == [b"%d" % number for number in range(7, 7 + len(found))]
            assert next_offset(reply) == 7 + len(found)


def test_bytes_of_a_bulk_pull_are_bounded(full: Harness) -> None:
    """4 MiB whatever is asked for, and no more than is asked for."""
    for bytes_max, count in ((300 << 10, 1), (1 << 20, 6), (BULK_BYTES_MAX, 25), (1 << 30, 25)):
        reply = full.pull(queue_id=1, max_msg_bytes=bytes_max)
        assert len(bodies(reply)) == count
        assert len(reply.body) <= min(bytes_max, BULK_BYTES_MAX)


def test_a_large_first_message_is_never_in_the_way(full: Harness) -> None:
    """One message is always given, however few bytes are asked for."""
    assert len(bodies(full.pull(queue_id=1, max_msg_bytes=1))) == 1


def test_bulk_filters_like_any_other(full: Harness) -> None:
    """As many entries are looked at as could be taken; nothing wanted among them says where to go on."""
    reply = full.pull(expression="wanted", max_msg_nums=4096, max_msg_bytes=1 << 20)
    assert (reply.code, next_offset(reply)) == (20, BULK_COUNT_MAX)
    assert full.ask(pull_request(0, max_msg_nums=4096, max_msg_bytes=1 << 20)).code == FOUND


def test_one_call_gives_what_record_by_record_gives(full: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk pulls out of memory make no object for a record; bytes, offsets and counts are the same."""
    asked = [
        (offset, count, bytes_max, codes)
        for offset in (0, 7, MESSAGES - 1, MESSAGES)
        for count, bytes_max in ((1, BULK_BYTES_MAX), (4096, BULK_BYTES_MAX), (4096, 300 << 10))
        for codes in (None, (0,), (1, 2))
    ]
    reading = full.store._reading

    def read_all() -> list[Read]:
        return [
            full.store.read("T", 0, at, count_max=count, bytes_max=size, codes=codes, bulk=True)
            for at, count, size, codes in asked
        ]

    at_once = read_all()
    assert any(found.bulk for found in at_once) == core.COMPILED
    monkeypatch.setattr(reading, "_is_compiled", False)
    one_by_one = read_all()
    assert not any(found.bulk for found in one_by_one)
    for one, other in zip(at_once, one_by_one, strict=True):
        assert (one.status, one.next_offset, one.data) == (other.status, other.next_offset, other.data)
        assert (one.count, one.last) == (other.count, other.last)


def test_a_harmed_record_is_not_among_those_of_a_bulk_pull(full: Harness) -> None:
    """What lies before it comes, it does not, and what lies behind it comes with the next pull."""
    entry = full.store.queue("T", 0).entry(100)
    assert entry is not None
    offset = entry[0]
    segment = sorted((full.disk.root / "commitlog").iterdir())[0]
    with segment.open("r+b") as file:
        file.seek(offset + 90)
        byte = file.read(1)
        file.seek(offset + 90)
        file.write(bytes([byte[0] ^ 1]))
    before = full.pull(max_msg_nums=4096, max_msg_bytes=BULK_BYTES_MAX)
    assert bodies(before) == [b"%d" % number for number in range(100)]
    harmed = full.pull(offset=next_offset(before), max_msg_nums=4096, max_msg_bytes=BULK_BYTES_MAX)
    assert (harmed.body, next_offset(harmed)) == (b"", 101)
    behind = full.pull(offset=101, max_msg_nums=10, max_msg_bytes=BULK_BYTES_MAX)
    assert bodies(behind) == [b"%d" % number for number in range(101, 111)]

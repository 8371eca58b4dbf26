"""What leaves a store, when, and what stays readable meanwhile."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import StoreFull
from hotfire.store.config import RetentionConfig
from hotfire.store.reading import ReadStatus
from tests.unit.store.driven import NOW_MS, Driven, ring

HOUR_MS = 3_600_000
SEGMENT = 4096
NEVER = RetentionConfig(hours=())


def filled(root: Path, **retention: Any) -> Driven:
    """Six segments of one queue, each message with a key; their files written at NOW_MS."""
    config = RetentionConfig(**{"hours": (), **retention})
    driven = Driven(root, segment_bytes=SEGMENT, index_entries=12, retention=config).open()
    while driven.store.end < 5 * SEGMENT:
        driven.send("t", 0, bytes(700), KEYS=f"k{len(driven.sent)}")
        driven.turn()
    touch(driven, NOW_MS)
    return driven


def touch(driven: Driven, at_ms: int, *names: int) -> None:
    for path in (driven.root / "commitlog").iterdir():
        if not names or int(path.name) in names:
            os.utime(path, (at_ms / 1000, at_ms / 1000))


def segments(driven: Driven) -> list[int]:
    return [int(path.name) for path in sorted((driven.root / "commitlog").iterdir())]


def run(driven: Driven, ms: int = 30_000) -> None:
    for _ in range(ms // 50):
        driven.tick(50)


def use_of_disk(driven: Driven, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    monkeypatch.setattr(driven.store._disk, "used_ratio", lambda: ratio)


def hour_of(at_ms: int) -> int:
    return time.localtime(at_ms / 1000).tm_hour


@pytest.mark.promise(180)
def test_at_the_hour_expired_segments_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older than they are kept, at the configured hour and at no other; the last one stays."""
    for hours, gone in (((hour_of(NOW_MS),), True), (((hour_of(NOW_MS) + 2) % 24,), False)):
        driven = filled(tmp_path / str(hours), hours=hours, reserved_hours=1)
        use_of_disk(driven, monkeypatch, 0.5)
        touch(driven, NOW_MS - 2 * HOUR_MS, 0, SEGMENT, 2 * SEGMENT)
        run(driven)
        assert segments(driven)[0] == (3 * SEGMENT if gone else 0)
        driven.store.close()


@pytest.mark.promise(180)
@pytest.mark.parametrize(
    ("ratio", "first"), [(0.74, 0), (0.76, 2 * SEGMENT), (0.86, 5 * SEGMENT), (0.95, 5 * SEGMENT)]
)
def test_a_filling_disk_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, first: int
) -> None:
    """Above 75 % what is expired goes at any hour, above 85 % the oldest of any age, but for the last."""
    driven = filled(tmp_path, reserved_hours=1)
    use_of_disk(driven, monkeypatch, ratio)
    touch(driven, NOW_MS - 2 * HOUR_MS, 0, SEGMENT)
    run(driven)
    assert segments(driven)[0] == first
    driven.store.close()


@pytest.mark.promise(180)
def test_on_demand_expired_segments_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, at any hour, only what is expired."""
    driven = filled(tmp_path, reserved_hours=1)
    use_of_disk(driven, monkeypatch, 0.5)
    touch(driven, NOW_MS - 2 * HOUR_MS, 0)
    run(driven)
    assert segments(driven)[0] == 0
    driven.store.delete_expired()
    run(driven)
    assert segments(driven)[0] == SEGMENT
    driven.store.close()


def test_no_more_than_a_batch_goes_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many in one go, a moment apart, so that removing does not starve the rest."""
    driven = filled(tmp_path, batch_max=2, pause_ms=1000)
    use_of_disk(driven, monkeypatch, 0.86)
    driven.tick(50)
    assert segments(driven)[0] == 0
    run(driven, 500)
    assert segments(driven)[0] == SEGMENT
    run(driven, 5000)
    assert segments(driven)[0] == 2 * SEGMENT
    run(driven, 10_000)
    assert segments(driven)[0] == 4 * SEGMENT
    driven.store.close()


@pytest.mark.promise(180)
def test_a_full_disk_refuses_and_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 90 % nothing is stored, the error names space and limit, reads go on; below it all is well."""
    driven = filled(tmp_path, may_force=False)
    use_of_disk(driven, monkeypatch, 0.93)
    monkeypatch.setattr(driven.store._disk, "free_bytes", lambda: 12_345)
    driven.tick(1000)
    assert not driven.store.is_writeable
    with pytest.raises(
        StoreFull, match=r"93\.0% used, 12345 bytes free below .*, sends are refused above 90%"
    ):
        driven.send("t", 0, b"no")
    assert len(driven.pull_all("t", 0)) == len(driven.sent)
    use_of_disk(driven, monkeypatch, 0.89)
    driven.tick(1000)
    driven.send("t", 0, b"yes")
    driven.turn()
    driven.check(driven.sent)
    driven.store.close()


@pytest.mark.promise(183)
def test_queues_and_index_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minimum offsets rise, files that speak only of what is gone are removed, and a restart agrees."""
    driven = filled(tmp_path)
    before = len(list((tmp_path / "index").iterdir())), len(list((tmp_path / "consumequeue/t/0").iterdir()))
    use_of_disk(driven, monkeypatch, 0.86)
    run(driven)
    kept = [sent for sent in driven.sent if sent.physical >= segments(driven)[0]]
    after = len(list((tmp_path / "index").iterdir())), len(list((tmp_path / "consumequeue/t/0").iterdir()))
    assert after[0] < before[0]
    assert after[1] < before[1]
    for _ in range(2):
        queue = driven.store.find_queue("t", 0)
        assert queue is not None
        assert (queue.min, queue.max) == (kept[0].queue_offset, len(driven.sent))
        assert driven.store.read("t", 0, 0, count_max=1, bytes_max=1).status is ReadStatus.OFFSET_TOO_SMALL
        found, _ = driven.pull("t", 0, queue.min)
        assert [record.physical_offset for record in found] == [sent.physical for sent in kept]
        driven = driven.reopened()
    driven.store.close()


@pytest.mark.promise(181)
def test_a_segment_being_read_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing goes on while it goes; a read under way finishes, and then the file is gone."""
    driven = filled(tmp_path)
    use_of_disk(driven, monkeypatch, 0.86)
    found = driven.store.read("t", 0, 0, count_max=4, bytes_max=1 << 20)
    driven.store.fetch_beside(found, ("t", 0), "slow")
    run(driven, 60_000)
    assert segments(driven)[0] == 0
    assert driven.store.min_offset == SEGMENT, "no longer part of the log, and no other goes before it"
    driven.send("t", 0, b"meanwhile")
    driven.turn()
    ring(driven.store.reader_fileno())
    assert driven.store.fetched() == [("slow", 0)]
    assert found.data is not None
    assert len(found.data) == sum(size for _, size, _ in found.pieces) > 0
    driven.tick(50)
    assert segments(driven)[0] == SEGMENT
    driven.store.close()


@pytest.mark.promise(182)
def test_a_segment_nobody_lets_go_of_goes_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that never ends keeps its bytes, but the file's name is gone after the forced interval."""
    driven = filled(tmp_path, forced_after_ms=120_000)
    use_of_disk(driven, monkeypatch, 0.86)
    found = driven.store.read("t", 0, 0, count_max=1, bytes_max=1 << 20)
    driven.store.fetch_beside(found, ("t", 0), "hung")
    run(driven, 100_000)
    assert segments(driven)[0] == 0
    run(driven, 60_000)
    assert segments(driven)[0] > 0
    ring(driven.store.reader_fileno())
    assert driven.store.fetched() == [("hung", 0)]
    assert found.data
    driven.store.close()


def test_what_is_not_yet_synced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ASYNC_FLUSH: a segment whose bytes may not be on the disk is no candidate."""
    config = RetentionConfig(hours=(), pause_ms=0)
    driven = Driven(
        tmp_path, segment_bytes=SEGMENT, sync_flush=False, retention=config,
        flush_interval_ms=1 << 60, queue_flush_interval_ms=1 << 60, flush_thorough_interval_ms=1 << 60,
    ).open()  # fmt: skip
    while driven.store.end < 3 * SEGMENT:
        driven.send("t", 0, bytes(700))
        driven.turn()
    use_of_disk(driven, monkeypatch, 0.86)
    run(driven, 12_000)
    assert segments(driven)[0] == 0
    driven.store.close()


def test_a_pull_of_what_was_just_removed_moves_on(tmp_path: Path) -> None:
    """Queues follow some ticks later, but whoever asks for what has just left is told where they begin."""
    driven = filled(tmp_path)
    kept = [sent for sent in driven.sent if sent.physical >= SEGMENT]
    driven.store._log.let_go()
    found = driven.store.read("t", 0, 0, count_max=32, bytes_max=1 << 20)
    assert (found.status, found.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, kept[0].queue_offset)
    assert driven.pull("t", 0, found.next_offset)[0][0].physical_offset == kept[0].physical
    driven.store.close()

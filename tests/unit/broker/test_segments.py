"""The log's next segment lies ready before it is needed."""

import threading
from concurrent.futures import wait

import pytest

from hotfire.store.commitlog import CommitLog
from hotfire.store.disk import Disk
from tests.unit.broker.conftest import Make

SEGMENT_BYTES = 16_384


@pytest.mark.promise(225)
def test_the_next_segment_is_made_ahead_beside_the_loop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rolls under load: each file was made on another thread while there was still room before it, and no
    message had to wait for one."""
    made: list[tuple[str, bool, int]] = []
    taken_in: list[str] = []
    place = ["open"]
    allocate, add_segment = Disk.allocate, CommitLog.add_segment

    def noted(disk: Disk, relative: str, size: int) -> int:
        here = threading.current_thread() is threading.main_thread()
        made.append((relative, here, heart.store.end if place[0] != "open" else 0))
        return allocate(disk, relative, size)

    def counted(log: CommitLog) -> None:
        taken_in.append(place[0])
        add_segment(log)

    monkeypatch.setattr(Disk, "allocate", noted)
    monkeypatch.setattr(CommitLog, "add_segment", counted)
    heart = make(mapped_file_size_commit_log=SEGMENT_BYTES)
    heart.create_topic("T")
    made.clear()
    while heart.store.end < 10 * SEGMENT_BYTES:
        place[0] = "send"
        assert heart.send(body=bytes(1000)).code == 0
        place[0] = "tick"
        heart.now_ms += 50
        heart.tick()
        coming = heart.store._log._coming
        if coming is not None:  # a disk that makes 16 KiB within the time of a few sends
            wait([coming], timeout=10)
    assert set(taken_in) == {"tick"}, "a message waited for its segment"
    segments = [one for one in made if one[0].startswith("commitlog/")]
    assert len(segments) >= 10
    for file, on_loop, end in segments:
        assert not on_loop
        assert end < int(file[-20:]), f"{file} was made when the log was at {end}"

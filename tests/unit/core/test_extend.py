"""Queues whose entries hold something in place of their tags: asked for once each, in order, by both."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.core.made import TWINS
from tests.unit.core.test_journal import Log

pytestmark = pytest.mark.core


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return TWINS[request.param]


def test_what_an_entry_holds_is_asked_for_in_order(twin: ModuleType, tmp_path: Path) -> None:
    """Tags and store time go in; what comes out is in the entry. Other queues keep their tags."""
    log = Log(twin, tmp_path / "log", segments=2)
    asked: list[tuple[int, int]] = []

    def extend(tags: int, timestamp: int, physical: int, size: int) -> int:
        asked.append((tags, timestamp))
        return -(1 << 63) + len(asked)

    queue = log.queues[1]
    assert queue.extend is None
    queue.extend = extend
    for number in range(6):
        data = b"x" * 100
        assert log.journal.reserve(len(data)) is not None
        chosen = log.queues[number % 2]
        log.journal.append(data, chosen, chosen.claim(), number, 1000 + number)
    log.journal.derive(log.flush())
    assert asked == [(1, 1001), (3, 1003), (5, 1005)]
    assert [queue.entry(index)[2] for index in range(3)] == [-(1 << 63) + n for n in (1, 2, 3)]
    assert [log.queues[0].entry(index)[2] for index in range(3)] == [0, 2, 4]
    queue.extend = None
    log.close()


def test_an_entry_waits_until_it_is_told_what_to_hold(twin: ModuleType, tmp_path: Path) -> None:
    """A full disk: the entry does not become visible, and is made when asking succeeds."""
    log = Log(twin, tmp_path / "log", segments=1)
    queue = log.queues[0]
    log.append(100, 0, 7)
    end = log.flush()

    def refuse(tags: int, timestamp: int, physical: int, size: int) -> int:
        raise OSError(28, "full")

    queue.extend = refuse
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            log.journal.derive(end)
    assert queue.max == 0
    queue.extend = lambda tags, timestamp, physical, size: tags - 100
    log.journal.derive(end)
    assert (queue.max, queue.entry(0)[2]) == (1, -93)
    log.close()

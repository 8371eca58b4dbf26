"""A queue of entries: the compiled one and its specification, moved in step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hotfire.core import _core as compiled
from hotfire.core import plain
from tests.unit.core.made import int32, int64

pytestmark = pytest.mark.core
ENTRY_BYTES = 20
FILLER = 0x7FFFFFFF
CODES = (-(2**31), -1, 0, 1, 7, 2**31 - 1)
limits = st.integers(-1, 6)
small = st.integers(0, 40)


class Queues(RuleBasedStateMachine):
    """Two queues over equal buffers; whatever is asked of both, both say the same."""

    @initialize()
    def start(self) -> None:
        self.fast = compiled.Queue("key", None)
        self.slow = plain.Queue("key", None)
        self.buffers: list[tuple[bytearray, bytearray]] = []
        self.bases: set[int] = set()

    @rule(base=small, count=st.integers(0, 12), spare=st.integers(0, ENTRY_BYTES - 1))
    def attach(self, base: int, count: int, spare: int) -> None:
        """A window; part of an entry at its end is no entry. Of two over one place the later counts."""
        pair = bytearray(count * ENTRY_BYTES + spare), bytearray(count * ENTRY_BYTES + spare)
        self.buffers.append(pair)
        self.bases.add(base)
        self.fast.attach(base, pair[0])
        self.slow.attach(base, pair[1])

    @rule(base=small)
    def detach(self, base: int) -> None:
        assert self.fast.detach(base) is self.slow.detach(base)

    @rule(
        index=small,
        physical=st.integers(0, 2000) | int64,
        size=st.integers(1, 30) | st.just(FILLER) | int32,
        tags=st.sampled_from(CODES) | int64,
    )
    def put(self, index: int, physical: int, size: int, tags: int) -> None:
        try:
            self.slow.put(index, physical, size, tags)
        except IndexError:
            with pytest.raises(IndexError):
                self.fast.put(index, physical, size, tags)
        else:
            self.fast.put(index, physical, size, tags)

    @rule(start=small, sizes=st.lists(st.integers(1, 30) | st.sampled_from((FILLER, 0)), max_size=12))
    def put_run(self, start: int, sizes: list[int]) -> None:
        """Neighbours, as a log leaves them, some of them only keeping a place."""
        for index, size in enumerate(sizes, start):
            self.put(index, index * 50, size, CODES[index % len(CODES)])

    @rule(index=small | st.integers(-3, 100))
    def entry(self, index: int) -> None:
        assert self.fast.entry(index) == self.slow.entry(index)

    @rule(value=small)
    def see(self, value: int) -> None:
        self.fast.max = self.slow.max = value

    @rule(value=small)
    def forget(self, value: int) -> None:
        self.fast.min = self.slow.min = value

    @rule()
    def claim(self) -> None:
        assert self.fast.claim() == self.slow.claim()

    @rule(
        start=small | st.integers(-2, 50),
        count_max=limits | st.just(5000),
        bytes_max=st.integers(-1, 200) | st.just(2**31 - 1),
        memory_from=st.integers(-10, 2100),
        codes=st.none() | st.lists(st.sampled_from(CODES), max_size=4).map(tuple),
        counts=st.tuples(limits, limits),
        sizes=st.tuples(st.integers(0, 200), st.integers(0, 200)),
        scan_max=st.integers(-1, 30) | st.just(800),
    )
    def select(
        self,
        start: int,
        count_max: int,
        bytes_max: int,
        memory_from: int,
        codes: tuple[int, ...] | None,
        counts: tuple[int, int],
        sizes: tuple[int, int],
        scan_max: int,
    ) -> None:
        asked = start, count_max, bytes_max, memory_from, codes, (*counts, *sizes, scan_max)
        assert self.fast.select(*asked) == self.slow.select(*asked)

    @rule()
    def close(self) -> None:
        """Buffers are let go: they can change size again."""
        self.fast.close()
        self.slow.close()
        for pair in self.buffers:
            for buffer in pair:
                buffer.append(0)
                buffer.pop()
        self.buffers.clear()

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "fast"):
            assert all(left == right for left, right in self.buffers)
            for name in ("next", "max", "min", "watched"):
                assert getattr(self.fast, name) == getattr(self.slow, name)


class TestQueues(Queues.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("size", [FILLER, 0, -5])
def test_an_entry_that_only_keeps_a_place_is_passed_over(size: int) -> None:
    """It is no message, wherever it stands, and the pull goes on behind it."""
    for queue in (compiled.Queue("key"), plain.Queue("key")):
        queue.attach(0, bytearray(4 * ENTRY_BYTES))
        for index, each in enumerate((size, 10, size, size)):
            queue.put(index, index * 100, each, 0)
        queue.max = 4
        assert queue.select(0, 9, 999, 0, None, (9, 9, 999, 999, 9)) == ([(100, 10, 1)], 4, 10, False)


def test_a_selection_has_an_end_whatever_its_limits() -> None:
    """More pieces than one reply could ever hold are cut at the same number by both."""
    count, wide = 5000, 2**31 - 1
    chosen = []
    for queue in (compiled.Queue("key"), plain.Queue("key")):
        queue.attach(0, bytearray(count * ENTRY_BYTES))
        for index in range(count):
            queue.put(index, index * 10, 10, 0)
        queue.max = count
        chosen.append(queue.select(0, wide, 2**40, 0, None, (wide, wide, 2**40, 2**40, wide)))
    assert chosen[0] == chosen[1]
    assert len(chosen[0][0]) == 4096


def test_a_buffer_that_cannot_be_written_is_no_window() -> None:
    """An entry that could not be stored is refused when the file is attached, not when the entry comes."""
    for queue in (compiled.Queue("key"), plain.Queue("key")):
        with pytest.raises(BufferError):
            queue.attach(0, bytes(200))
        assert queue.entry(0) is None

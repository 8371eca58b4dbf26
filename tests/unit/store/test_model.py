"""The store as a state machine against a plain list: in whatever order, what was readable stays."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.store.driven import Driven, Sent, tree

QUEUES = st.tuples(st.sampled_from(["orders", "stock", "a-topic-with-a-longer-name"]), st.integers(0, 2))
BODIES = st.integers(0, 900).map(lambda size: bytes((size + i) & 0xFF for i in range(size)))
TAGS = st.sampled_from(["", "red", "blue"])


class StoreMachine(RuleBasedStateMachine):
    """`driven.sent` is the list; `self.readable` of its first entries must be there for good."""

    home: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=self.home))
        self.images = 0
        self.readable = 0

    @initialize(sync=st.booleans(), crc=st.booleans())
    def start(self, sync: bool, crc: bool) -> None:
        root = self.directory / "0"
        self.driven = Driven(root, segment_bytes=4096, sync_flush=sync, append_crc=crc).open()

    @rule(queue=QUEUES, body=BODIES, tags=TAGS)
    def append(self, queue: tuple[str, int], body: bytes, tags: str) -> None:
        self.driven.send(*queue, body, **({"TAGS": tags} if tags else {}))

    @rule()
    def turn(self) -> None:
        self.driven.turn()
        self.readable = len(self.driven.sent)

    @rule()
    def submit(self) -> None:
        """Leave a turn in the flusher's hands: a crash may find it anywhere."""
        self.driven.store.submit()

    @rule(advance_ms=st.sampled_from([1, 500, 1000]))
    def tick(self, advance_ms: int) -> None:
        self.driven.tick(advance_ms)

    @rule()
    def close_and_open(self) -> None:
        self.driven = self.driven.reopened()
        self.readable = len(self.driven.sent)

    @rule()
    def crash(self) -> None:
        self.images += 1
        image = self.driven.crash_image(self.directory / str(self.images)).open()
        self.driven.store.close()
        shutil.rmtree(self.driven.root)
        self.driven = image
        kept = [sent for sent in image.sent if sent.end <= image.store.recovered.end]
        assert len(kept) >= self.readable, "a record that was readable is gone"
        assert image.store.recovered.end <= max((sent.end for sent in image.sent), default=0)
        assert not any(image.log_bytes()[image.store.recovered.end :]), "stale bytes behind the end"
        image.sent[:] = kept
        self.readable = len(kept)

    @precondition(lambda self: self.driven.sent)
    @rule()
    def lose_the_queues(self) -> None:
        self.driven.store.close()
        before = tree(self.driven.root, below="consumequeue")
        shutil.rmtree(self.driven.root / "consumequeue")
        self.driven = self.driven.on(self.driven.root).open()
        self.readable = len(self.driven.sent)
        assert tree(self.driven.root, below="consumequeue") == before

    @invariant()
    def what_was_readable_is_there(self) -> None:
        if hasattr(self, "driven"):
            expected: list[Sent] = self.driven.sent[: self.readable]
            self.driven.check(expected)
            assert self.driven.store.dispatch_behind == 0

    def teardown(self) -> None:
        if hasattr(self, "driven"):
            self.driven.store.close()
        shutil.rmtree(self.directory)


@pytest.mark.core
def test_whatever_happens_in_whatever_order(in_memory: Path) -> None:
    """Appends, turns, reads, clean restarts, crashes and lost queues in any order lose nothing readable."""
    machine = type("Machine", (StoreMachine,), {"home": in_memory})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )

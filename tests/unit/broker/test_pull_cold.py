"""A pull of what is not in memory: fetched beside the loop, answered when it is there."""

import os
from pathlib import Path

import pytest

from hotfire.protocol.command import Command
from tests.unit.broker.conftest import sync_for_real
from tests.unit.broker.harness import (
    FOUND,
    NOT_FOUND,
    FakeConnection,
    Harness,
    bodies,
    next_offset,
    pull_request,
)
from tests.unit.broker.test_pull import fill

pytestmark = pytest.mark.core


@pytest.fixture
def stores_directory(tmp_path: Path) -> Path:
    """On a disk: what lies in memory is never cold."""
    return tmp_path


def make_cold(heart: Harness) -> None:
    """Push the log out of the page cache, as time and other programs would."""
    for fd in heart.store._log.segments.values():
        sync_for_real(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def pull_cold(heart: Harness, to: FakeConnection) -> None:
    """A pull that met the log cold. Now and then the kernel keeps or fetches pages on its own: ask again."""
    for _ in range(50):
        make_cold(heart)
        heart.receive(pull_request(), to=to)
        if not to.take():
            return
    raise AssertionError("answered from the disk inside the loop, every time")


def test_cold_messages_are_fetched_beside_the_loop(heart: Harness) -> None:
    """What is not in memory is not waited for: others are served first, then the cold pull is answered."""
    sent = fill(heart, 20, body_size=4000)
    cold = heart.connect(50_100)
    pull_cold(heart, cold)
    heart.receive(Command(9999), to=cold)
    assert cold.take_one().code == 3
    heart.settle()
    reply = cold.take_one()
    assert (reply.code, bodies(reply), next_offset(reply)) == (FOUND, sent, 20)
    make_cold(heart)
    assert bodies(heart.pull()) == sent, "the lane met it cold"


def test_cold_read_that_fails_says_where(heart: Harness) -> None:
    """An unreadable log is an answer with the offset in it, not a silent gap and not a hang."""
    fill(heart, 20, body_size=4000)
    make_cold(heart)
    os.truncate(heart.root / "commitlog" / f"{0:020d}", 0)
    reply = heart.pull()
    assert (reply.code, reply.body) == (1, b"")
    assert "offset 0" in (reply.remark or ""), reply.remark
    assert heart.pull(offset=20).code == NOT_FOUND, "the broker goes on"


def test_cold_pull_of_a_closed_connection_is_forgotten(heart: Harness) -> None:
    """The peer went while the disk was read: nobody is written to, nothing breaks."""
    fill(heart, 20, body_size=4000)
    cold = heart.connect(50_100)
    pull_cold(heart, cold)
    heart.disconnect(cold)
    heart.settle()
    assert cold.take() == []
    assert heart.pull().code == FOUND

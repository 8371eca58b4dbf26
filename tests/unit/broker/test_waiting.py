"""Replies that wait for the log: each leaves when its record is safe, those of one peer together."""

from typing import cast

from hotfire import core
from hotfire.broker.waiting import One, Waiting
from tests.unit.broker.harness import FakeConnection


class Noting(FakeConnection):
    """Keeps what it is told to write, write by write, in a list it may share."""

    def __init__(self, written: list[tuple[int, bytes]], port: int) -> None:
        super().__init__(port)
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append((self.peer[1], data))


class Lanes:
    """Replies of a pass of the lane."""

    def __init__(self, written: list[tuple[int, bytes]]) -> None:
        self._written = written

    def __len__(self) -> int:
        return 3

    def send(self, now_ms: int) -> None:
        self._written.append((0, b"lane"))


def test_replies_to_one_peer_leave_in_one_write_and_in_order() -> None:
    """Only what is safe leaves; a peer gets its own in the order they came, around those of the lane too."""
    written: list[tuple[int, bytes]] = []
    waits: list[tuple[int, int]] = []
    a, b = Noting(written, 1), Noting(written, 2)
    waiting = Waiting(lambda ms, count: waits.append((ms, count)))
    for end, connection, data in ((1, a, b"1"), (2, b, b"2"), (3, a, b"3")):
        waiting.add(end, One(connection, data), 100)
    waiting.add(4, cast(core.Replies, Lanes(written)), 100)
    waiting.add(5, One(a, b"5"), 100)
    waiting.add(6, One(a, b"6"), 100)
    waiting.release(5, 107)
    assert written == [(1, b"13"), (2, b"2"), (0, b"lane"), (1, b"5")]
    assert waits == [(7, 1), (7, 1), (7, 1), (7, 3), (7, 1)]
    waiting.release(6, 108)
    assert written[4:] == [(1, b"6")]
    assert not len(waiting)

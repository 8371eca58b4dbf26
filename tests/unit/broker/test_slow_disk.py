"""A disk that is slow, stuck or full, as clients meet it."""

import errno
import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.broker.config import FlushDiskType
from hotfire.core import plain
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import SendMessage
from hotfire.store.disk import Disk
from tests.unit.broker.harness import Harness, bodies, send_request

Make = Callable[..., Harness]


class Gate:
    """Holds the flusher before its writes or before its syncs until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = False
        self._held: list[Callable[[], None]] = []
        monkeypatch.setattr(Disk, "journal", lambda disk, end, size: Held(self, end, size))

    def hold(self, work: Callable[[], None]) -> None:
        if self.is_open:
            work()
        else:
            self._held.append(work)

    def open(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work()


class Held(plain.Journal):
    """A journal whose turns wait at the gate."""

    def __init__(self, gate: Gate, end: int, size: int) -> None:
        self._gate = gate
        super().__init__(end, size)

    def _hand_over(self, turn: plain.Turn) -> None:
        self._gate.hold(lambda: super(Held, self)._hand_over(turn))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open = True  # whoever closes a store waits for its last turn
    gate.open()


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Harness] = []

    def one(**settings: Any) -> Harness:
        made.append(Harness(tmp_path / f"store{len(made)}", fast_lane_enable=False, **settings))
        return made[-1]

    yield one
    if "gate" in request.fixturenames:
        gate = request.getfixturevalue("gate")
        gate.is_open = True
        gate.open()
    for heart in made:
        heart.close()


def pass_time(heart: Harness, ms: int) -> None:
    """Ticks without waiting for the disk."""
    for _ in range(ms // 50):
        heart.now_ms += 50
        heart.broker.tick(heart.now_ms)
        heart.turn()


@pytest.mark.promise(48)
def test_a_slow_sync_is_answered_with_its_own_status(gate: Gate, make: Make) -> None:
    """After five seconds FLUSH_DISK_TIMEOUT with the message's place; it is kept, and others go on."""
    heart = make()
    (opaque,) = heart.receive(send_request(body=b"slow"))
    heart.turn()
    pass_time(heart, 4900)
    assert heart.connection.take() == []
    pass_time(heart, 200)
    reply = heart.connection.take_one()
    assert (reply.code, reply.opaque) == (ResponseCode.FLUSH_DISK_TIMEOUT, opaque)
    assert reply.fields["queueOffset"] == "0"
    gate.open()
    heart.ring()
    assert heart.connection.take() == [], "it is answered once"
    assert bodies(heart.pull()) == [b"slow"]


@pytest.mark.promise(53)
def test_who_does_not_wait_for_the_disk_is_answered_at_once(gate: Gate, make: Make) -> None:
    """WAIT=false on a disk that hangs: success now; WAIT=true waits."""
    heart = make()
    waits, hurries = heart.connect(50_100), heart.connect(50_101)
    heart.receive(send_request(body=b"waits", named={"WAIT": "true"}), to=waits)
    heart.receive(send_request(body=b"hurries", named={"WAIT": "false"}), to=hurries)
    heart.turn()
    assert hurries.take_one().code == ResponseCode.SUCCESS
    assert waits.take() == []
    gate.open()
    heart.ring()
    assert waits.take_one().code == ResponseCode.SUCCESS


def test_sends_are_turned_away_while_others_wait_too_long(gate: Gate, make: Make) -> None:
    """A disk that hangs: after two seconds code 2 with age, number and limit, nothing stored; then on."""
    heart = make()
    first, second = heart.connect(50_100), heart.connect(50_101)
    heart.receive(send_request(body=b"waits"), to=first)
    heart.turn()
    pass_time(heart, 2000)
    heart.receive(send_request(body=b"still taken"), to=first)
    end = heart.store.end
    pass_time(heart, 50)
    for v1 in (False, True):
        heart.receive(send_request(body=b"no", v1=v1), to=second)
        reply = second.take_one()
        assert (reply.code, reply.remark) == (
            ResponseCode.SYSTEM_BUSY,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 2050ms, "
            "size of queue: 2; so long have sends waited for the disk, waitTimeMillsInSendQueue is 2000ms",
        )
    assert heart.store.end == end
    gate.is_open = True
    gate.open()
    heart.settle()
    assert [reply.code for reply in first.take()] == [0, 0]
    assert heart.send(body=b"again").code == 0
    assert bodies(heart.pull()) == [b"waits", b"still taken", b"again"]


@pytest.mark.promise(36)
def test_a_page_cache_that_blocks_turns_senders_away(gate: Gate, make: Make) -> None:
    """ASYNC_FLUSH: a write under way for more than a second: code 2, the time named, nothing stored."""
    heart = make(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    heart.receive(send_request(body=b"stuck"))
    heart.turn()
    pass_time(heart, 1000)
    end = heart.store.end
    heart.connection.take()
    pass_time(heart, 100)
    heart.receive(send_request(body=b"no"))
    reply = heart.connection.take_one()
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert re.search(r"PCBUSY.* takes 1\d\d\d ms so far, 1000 are allowed", reply.remark or "")
    assert heart.store.end == end
    gate.open()
    heart.ring()
    heart.connection.take()
    heart.broker.tick(heart.now_ms)
    heart.receive(send_request(body=b"yes"))
    heart.turn()
    gate.open()
    heart.ring()
    assert heart.connection.take_one().code == ResponseCode.SUCCESS


def test_a_disk_without_room_holds_the_turn_and_refuses_the_next(make: Make) -> None:
    """ENOSPC in a turn: it is tried again, others are refused with the space left; then all are stored."""
    heart = make()
    heart.send(body=b"before")
    fds = heart.store._log.segments.values()
    keep = os.dup(next(iter(fds)))
    nowhere = os.open("/dev/full", os.O_RDWR)
    os.dup2(nowhere, next(iter(fds)))
    waiting = heart.connect(50_100)
    heart.receive(send_request(body=b"held up"), to=waiting)
    heart.turn()
    heart.ring()
    assert heart.store.journal.stalled
    reply = answered(heart, send_request(body=b"no"))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert re.search(r"is full: [0-9.]+% used, \d+ bytes free", reply.remark or "")
    assert waiting.take() == []
    os.dup2(keep, next(iter(fds)))
    os.close(keep)
    os.close(nowhere)
    heart.broker.tick(heart.now_ms)
    heart.ring()
    assert waiting.take_one().code == ResponseCode.SUCCESS
    assert heart.send(body=b"after").code == ResponseCode.SUCCESS
    assert bodies(heart.pull()) == [b"before", b"held up", b"after"]


# --- transient pool ---


@pytest.mark.promise(51)
def test_a_transient_pool_is_written_every_200_ms(make: Make) -> None:
    """Acknowledged at once, not readable before it is written, readable after 200 ms; a restart has that."""
    heart = make(flush_disk_type=FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=True)
    heart.broker.tick(heart.now_ms)
    reply = answered(heart, send_request(body=b"pooled"))
    assert reply.code == ResponseCode.SUCCESS
    heart.turn()
    assert not heart.store.journal.busy
    heart.now_ms += 150
    heart.broker.tick(heart.now_ms)
    assert heart.store.readable_end == 0
    heart.now_ms += 50
    heart.broker.tick(heart.now_ms)
    heart.ring()
    assert bodies(heart.pull()) == [b"pooled"]
    heart.reopen()
    assert bodies(heart.pull()) == [b"pooled"]


@pytest.mark.promise(52)
@pytest.mark.parametrize("twin", ["compiled", "plain"])
def test_a_transient_pool_is_locked_in_memory(make: Make, twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five buffers of a segment each are never swapped."""
    if twin == "plain":
        monkeypatch.setattr(Disk, "journal", lambda disk, end, size: plain.Journal(end, size))
    gc.collect()  # pools of stores that were closed before
    before = locked_bytes()
    heart = make(flush_disk_type=FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=True)
    assert locked_bytes() - before == 5 * heart.config.mapped_file_size_commit_log


@pytest.mark.promise(52)
def test_memory_that_cannot_be_locked_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A low limit of locked memory: one warning with the size and what to raise; the pool works."""
    monkeypatch.setattr(Disk, "journal", lambda disk, end, size: plain.Journal(end, size))
    monkeypatch.setattr(plain.Journal, "set_pool", lambda journal, size: errno.ENOMEM)
    heart = make(flush_disk_type=FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=True)
    size = 5 * heart.config.mapped_file_size_commit_log
    assert f"transient pool of {size} bytes is not locked in memory" in caplog.text
    assert "ulimit -l" in caplog.text
    assert answered(heart, send_request()).code == ResponseCode.SUCCESS


def answered(heart: Harness, request: SendMessage) -> Command:
    """The reply that comes without waiting for the disk."""
    heart.receive(request)
    return heart.connection.take_one()


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmLck:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024

"""No reply before the sync, no read past it, and no lie when the disk fails."""

import errno
import os
from pathlib import Path

import pytest

from hotfire.protocol.requests import GetMaxOffset, SendReply
from hotfire.store.disk import SyncFailed
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import (
    NOT_FOUND,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    bodies,
    codes,
    pull_request,
    send_request,
)

pytestmark = pytest.mark.core


def break_the_log(heart: Harness) -> None:
    """From now on every write to the log's file fails: its descriptor is open for reading only."""
    (fd,) = heart.store._log.segments.values()
    blocked = os.open(heart.root / "commitlog" / f"{0:020d}", os.O_RDONLY)
    os.dup2(blocked, fd)
    os.close(blocked)


def max_offset(heart: Harness) -> int:
    reply = heart.ask(GetMaxOffset(topic="T", queue_id=0))
    return int((reply.fields or {})["offset"])


@pytest.mark.parametrize("v1", [False, True])
def test_a_send_is_answered_only_once_it_is_synced(heart: Harness, v1: bool) -> None:
    """Placed, handed over, written: nothing is said and nothing is readable until the turn is done."""
    heart.receive(send_request(v1=v1))
    assert heart.connection.take() == []
    heart.turn()
    assert heart.connection.take() == []
    reply = heart.broker.store.read("T", 0, 0, count_max=1, bytes_max=1000)
    assert reply.data is None, "readable before it was safe"
    heart.ring()
    assert codes(heart.connection.take()) == [0]
    assert bodies(heart.pull()) == [b"body"]


def test_a_turn_answers_all_that_it_holds(heart: Harness) -> None:
    """Sends of many connections share one sync; what comes meanwhile waits for the next one."""
    connections = [heart.connect(50_100 + number) for number in range(20)]
    for connection in connections:
        heart.receive(send_request(), send_request(queue_id=1), to=connection)
    heart.turn()
    late = heart.connect(50_200)
    heart.receive(send_request(), to=late)
    heart.ring()
    assert all(codes(connection.take()) == [0, 0] for connection in connections)
    assert late.take() == []
    assert heart.store.journal.busy, "what arrived meanwhile is the next turn at once"
    heart.ring()
    assert codes(late.take()) == [0]


@pytest.mark.promise(53)
def test_wait_false_is_answered_before_the_sync(heart: Harness) -> None:
    """WAIT=false is answered while the disk has not even begun; WAIT=true and no WAIT are not."""
    opaques = [
        heart.receive(send_request(named=named, v1=v1))[0]
        for v1 in (False, True)
        for named in ({"WAIT": "false"}, {"WAIT": "true"}, {})
    ]
    early = [reply.opaque for reply in heart.connection.take()]
    assert early == [opaques[0], opaques[3]]
    heart.settle()
    late = heart.connection.take()
    assert [reply.opaque for reply in late] == [opaques[1], opaques[2], opaques[4], opaques[5]]
    assert len(bodies(heart.pull())) == 6, "answered early or not, all are stored"


def test_turn_that_is_full_holds_its_peers_and_serves_them_after(make: Make) -> None:
    """More than a turn takes: peers are not read from until it is written; then all is stored, in order."""
    heart = make(turn_bytes_max=2048)
    heart.create_topic("T")
    connections = [heart.connect(50_100 + number) for number in range(3)]
    for number, connection in enumerate(connections):
        heart.receive(*[send_request(queue_id=number, body=b"%03d" % i) for i in range(50)], to=connection)
    assert all(connection.is_held for connection in connections)
    assert heart.broker.held == connections
    heart.settle()
    assert not any(connection.is_held for connection in connections)
    for number, connection in enumerate(connections):
        replies = [SendReply.from_command(reply) for reply in connection.take()]
        assert [reply.queue_offset for reply in replies] == list(range(50))
        stored = bodies(heart.pull(queue_id=number)) + bodies(heart.pull(queue_id=number, offset=32))
        assert stored == [b"%03d" % i for i in range(50)]


def test_segments_follow_each_other_under_a_pipeline(make: Make) -> None:
    """A run of sends over several segments is stored and answered without a gap."""
    heart = make(mapped_file_size_commit_log=128 << 10)
    heart.create_topic("T")
    body = bytes(20_000)
    heart.receive(*[send_request(body=b"%03d" % i + body) for i in range(40)])
    heart.settle()
    assert codes(heart.connection.take()) == [0] * 40
    assert len(list((heart.root / "commitlog").iterdir())) >= 7
    received: list[bytes] = []
    while len(received) < 40:
        received.extend(bodies(heart.pull(offset=len(received))))
    assert received == [b"%03d" % i + body for i in range(40)]


# --- the disk fails ---


def test_no_reply_says_stored_once_the_log_failed(heart: Harness) -> None:
    """A write fails: whoever waits for it is hung up on, and told nothing."""
    heart.send()
    waiting = [heart.connect(50_100 + number) for number in range(3)]
    break_the_log(heart)
    for connection in waiting[:2]:
        heart.receive(send_request(), to=connection)
    heart.turn()
    heart.receive(send_request(), to=waiting[2])  # in the turn after the one that fails
    heart.ring()
    assert all(connection.closed for connection in waiting)
    assert [connection.take() for connection in waiting] == [[], [], []]
    assert not heart.connection.closed, "who did not wait keeps the connection"


@pytest.mark.parametrize("v1", [False, True])
def test_read_only_store_refuses_sends_and_serves_pulls(heart: Harness, v1: bool) -> None:
    """After the failure: code 14 that says why and what to do; what was acknowledged before is still read."""
    heart.send(body=b"safe")
    break_the_log(heart)
    heart.receive(send_request(v1=v1), to=heart.connect(50_100))
    heart.turn()
    heart.ring()
    for _ in range(3):
        heart.receive(send_request(v1=v1))
        reply = heart.connection.take_one()  # at once: no turn will ever come
        assert reply.code == 14
        for word in ("read-only", os.strerror(errno.EBADF), "restart"):
            assert word in (reply.remark or ""), reply.remark
    assert bodies(heart.pull()) == [b"safe"]
    assert max_offset(heart) == 1
    heart.tick()
    assert heart.ask(send_request(v1=v1)).code == 14


def test_failed_log_is_left_as_after_a_crash(heart: Harness) -> None:
    """`abort` stays, and the next start finds exactly what was acknowledged."""
    heart.send(body=b"safe")
    break_the_log(heart)
    heart.receive(send_request(body=b"lost"))
    heart.turn()
    heart.ring()
    heart.close()
    assert (heart.root / "abort").exists()
    heart.open()
    assert heart.store.was_unclean
    assert bodies(heart.pull()) == [b"safe"]
    assert heart.send().code == 0


def test_failure_beside_the_loop_frees_who_waits(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue files that cannot be synced stop the store too; nobody is left waiting or held for ever."""
    heart.send()

    def fail(relative: str) -> None:
        raise SyncFailed(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(heart.disk, "sync_file", fail)
    heart.now_ms += 2000
    heart.broker.tick(heart.now_ms)
    assert heart.store._flushing.background is not None
    heart.store._flushing.background.exception()  # waits for it
    waiting, held = heart.connect(50_100), heart.connect(50_101)
    heart.receive(send_request(), to=waiting)
    heart.broker._hold(held)
    heart.broker.tick(heart.now_ms)
    assert heart.store.fault is not None
    assert waiting.closed
    assert waiting.take() == []
    assert held.closed
    assert heart.broker.held == []
    heart.receive(send_request())
    assert heart.connection.take_one().code == 14


@pytest.mark.parametrize("v1", [False, True])
def test_no_room_for_a_segment_is_answered(make: Make, monkeypatch: pytest.MonkeyPatch, v1: bool) -> None:
    """No room for the next segment: code 14 with the reason for what does not fit, until there is room."""
    heart = make(mapped_file_size_commit_log=128 << 10)
    heart.create_topic("T")

    def full(relative: str, size: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(heart.disk, "allocate", full)
        heart.receive(*[send_request(body=bytes(size), v1=v1) for size in (50_000, 50_000, 50_000, 1000)])
        heart.settle()
        heart.tick()
        heart.disk.finish()  # the segment it tried to prepare meanwhile
        heart.tick()
    replies = sorted(heart.connection.take(), key=lambda reply: reply.opaque)
    assert codes(replies) == [0, 0, 14, 0]
    assert os.strerror(errno.ENOSPC) in (replies[2].remark or "")
    heart.tick()
    heart.disk.finish()  # the segment it prepares now that there is room
    heart.tick()
    assert heart.send(body=bytes(50_000), v1=v1).code == 0, "room again"
    assert len(bodies(heart.pull())) == 4


def test_close_answers_what_was_taken(heart: Harness) -> None:
    """Sends taken before the close are made safe and answered by it; parked pulls are not."""
    parked = heart.connect(50_100)
    heart.receive(pull_request(queue_id=3, flag=SUBSCRIPTION | SUSPEND), to=parked)
    heart.receive(send_request(), send_request(v1=True))
    heart.close()
    assert codes(heart.connection.take()) == [0, 0]
    assert parked.take() == []
    assert not (heart.root / "abort").exists()
    heart.open()
    assert len(bodies(heart.pull())) == 2
    assert not heart.store.was_unclean


def test_close_answers_nobody_when_the_log_cannot_be_written(heart: Harness) -> None:
    """A shutdown that could not save what was taken tells no producer that it did."""
    break_the_log(heart)
    heart.receive(send_request())
    heart.close()
    assert heart.connection.take() == []
    assert heart.store.fault is not None
    assert (heart.root / "abort").exists()


def test_close_goes_on_when_offsets_cannot_be_written(
    heart: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages matter more than offsets: the log is closed properly even if consumerOffset.json is not."""
    write_whole = heart.disk.write_whole

    def fail(relative: str, data: bytes, *, keep: str | None = None) -> None:
        if "consumerOffset" in relative:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_whole(relative, data, keep=keep)

    monkeypatch.setattr(heart.disk, "write_whole", fail)
    heart.receive(send_request())
    heart.close()
    assert codes(heart.connection.take()) == [0]
    assert not (heart.root / "abort").exists()
    assert "offsets not written" in caplog.text


# --- what was never acknowledged may still be there, what was must be ---


def test_everything_acknowledged_is_in_the_file(make: Make) -> None:
    """At the moment a reply is written, the record's bytes are in the log's file at the place it names."""
    heart = make()
    heart.create_topic("T")
    file: Path = heart.root / "commitlog" / f"{0:020d}"
    checked = 0

    def look(data: bytes) -> None:
        nonlocal checked
        with file.open("rb") as log:
            log.seek(220 * checked)
            assert b"body-%03d" % checked in log.read(300)
        checked += data.count(b"queueOffset")

    heart.connection.write = look  # type: ignore[method-assign]
    for number in range(30):
        heart.receive(send_request(body=b"body-%03d" % number))
        heart.settle()
    assert checked == 30


def test_empty_pull_before_the_sync_parks(heart: Harness) -> None:
    """A pull that comes between a send and its sync finds nothing yet, and gets it when it is safe."""
    puller = heart.connect(50_100)
    heart.receive(send_request())
    heart.receive(pull_request(), to=puller)
    assert codes(puller.take()) == [NOT_FOUND]
    heart.receive(pull_request(flag=SUBSCRIPTION | SUSPEND), to=puller)
    assert puller.take() == []
    heart.settle()
    assert bodies(puller.take_one()) == [b"body"]

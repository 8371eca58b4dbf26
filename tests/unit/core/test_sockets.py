"""One pass over many sockets: what the set leaves to a peer's connection, and to whom replies never go."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire import core
from hotfire.protocol.codes import RequestCode, ResponseCode
from hotfire.protocol.command import Command, decode, encode
from tests.unit.core.test_lane import send_fields
from tests.wire.setbench import SetBench, SetPeer
from tests.wire.transcript import frames_of

pytestmark = pytest.mark.core
NOW_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))
PASS_BYTES = 1 << 18


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SetBench]:
    made = SetBench(tmp_path / "store", NOW_MS)
    yield made
    made.close()


def peer_of(bench: SetBench, number: int) -> SetPeer:
    peer = bench.peer(number)
    assert isinstance(peer, SetPeer)
    return peer


def frame(opaque: int, body: bytes = b"body") -> bytes:
    fields = send_fields("A1")
    return encode(Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque, fields=fields, body=body))


def opaques(peer: SetPeer) -> list[int]:
    return [decode(one).opaque for one in frames_of(bytes(peer.replies))]


def warmed(bench: SetBench) -> SetPeer:
    """A peer that has made the topic, so that the lane knows it."""
    peer = peer_of(bench, 1)
    bench.receive(peer, frame(1))
    bench.settle()
    assert opaques(peer) == [1]
    return peer


def test_a_reply_never_reaches_whoever_has_the_descriptor_next(bench: SetBench) -> None:
    """A peer goes while its reply waits for the disk: the next one to get its number is told nothing."""
    peer = warmed(bench)
    bench.receive(peer, frame(2))
    number = peer.ours.fileno()
    bench.disconnect(peer)
    following = peer_of(bench, 2)
    assert following.ours.fileno() == number
    bench.settle()
    assert following.replies == b""
    bench.receive(following, frame(3))
    bench.settle()
    assert opaques(following) == [3]


def test_replies_wait_behind_what_the_transport_has_left(bench: SetBench) -> None:
    """While a peer's transport has something to write, nobody else writes: bytes keep their order."""
    peer = warmed(bench)
    peer.link.sends = False
    peer.is_drained = False
    kept: list[bytes] = []
    peer.write = kept.append  # type: ignore[method-assign, assignment]
    bench.receive(peer, frame(2))
    bench.settle()
    assert opaques(peer) == [1]
    assert [decode(one).opaque for one in frames_of(b"".join(kept))] == [2]
    peer.is_drained = True
    bench.receive(peer, frame(3))
    bench.settle()
    assert opaques(peer) == [1, 3]


def test_bytes_behind_a_part_of_a_frame_are_its_connections(bench: SetBench) -> None:
    """What goes on a frame kept aside is not taken for the beginning of one, even if it looks like one."""
    peer = warmed(bench)
    lane = bench.broker.fast.lane
    assert lane is not None
    before = lane.sends
    inner = frame(9)
    whole = frame(2, body=inner) + frame(3)
    cut = whole.index(inner)
    for part in (whole[:cut], inner, whole[cut + len(inner) :]):
        bench.receive(peer, part)
    bench.settle()
    assert opaques(peer) == [1, 2, 3]
    assert lane.sends == before + 2


def test_the_end_of_a_stream_is_told_once_and_is_its_transports(bench: SetBench) -> None:
    """No bytes, and the set reads no more from it: the transport finds the same end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        owner = object()
        link = bench.sockets.add(ours.fileno(), owner, HOST)
        assert link.reading
        theirs.close()
        assert bench.sockets.receive(None, NOW_MS, False) == (None, [], owner, 0, 0)
        assert not link.reading
        assert bench.sockets.receive(None, NOW_MS, False)[2] is None
        bench.sockets.leave(link, True)


def test_a_paused_peer_is_not_read_from(bench: SetBench) -> None:
    """Its bytes stay in the kernel until it is read from again."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        owner = object()
        link = bench.sockets.add(ours.fileno(), owner, HOST)
        bench.sockets.pause(link)
        theirs.send(b"later")
        assert bench.sockets.receive(None, NOW_MS, False)[2] is None
        bench.sockets.resume(link)
        assert bench.sockets.receive(None, NOW_MS, False)[2:] == (owner, 0, 5)
        assert bytes(bench.buffer[:5]) == b"later"
        bench.sockets.leave(link, True)


def test_one_pass_is_bounded_and_the_next_goes_on_with_the_others(bench: SetBench) -> None:
    """Peers that send without end keep neither the others of the loop waiting, nor each other."""
    pairs = [socket.socketpair() for _ in range(12)]
    links = [bench.sockets.add(ours.fileno(), number, HOST) for number, (ours, _) in enumerate(pairs)]
    seen: list[int] = []
    for _, theirs in pairs:
        theirs.setblocking(False)
    for _ in range(12):
        received, again = 0, False
        for _, theirs in pairs:
            with suppress(BlockingIOError):
                theirs.send(bytes(150_000))
        while True:
            *_, owner, _, count = bench.sockets.receive(None, NOW_MS, again)
            if owner is None:
                break
            seen.append(owner)
            received, again = received + count, True
        assert PASS_BYTES <= received < PASS_BYTES + len(bench.buffer)
    assert set(seen[:12]) == set(range(12)), "one had its second turn before another its first"
    for link, (ours, theirs) in zip(links, pairs, strict=True):
        bench.sockets.leave(link, True)
        ours.close()
        theirs.close()


def test_who_asks_for_little_goes_first(bench: SetBench) -> None:
    """Whoever got a long reply last waits for those who did not."""
    pairs = [socket.socketpair() for _ in range(6)]
    links = [bench.sockets.add(ours.fileno(), number, HOST) for number, (ours, _) in enumerate(pairs)]
    for number in (0, 3):
        links[number].bulk = 1
    for _, theirs in pairs:
        theirs.send(b"x")
    seen = []
    while (owner := bench.sockets.receive(None, NOW_MS, bool(seen))[2]) is not None:
        seen.append(owner)
    assert seen == [1, 2, 4, 5, 0, 3]
    for link, (ours, theirs) in zip(links, pairs, strict=True):
        bench.sockets.leave(link, True)
        ours.close()
        theirs.close()


def test_who_asks_for_little_later_waits_for_one_of_those_who_wait(bench: SetBench) -> None:
    """Five who take long are ready, more than a pass has room for. Another asks for little after the first
    pass: it has its turn before all of them but one, and none of them has its second before that."""
    pairs = [socket.socketpair() for _ in range(6)]
    links = [bench.sockets.add(ours.fileno(), number, HOST) for number, (ours, _) in enumerate(pairs)]
    for (_, theirs), link in zip(pairs[:5], links[:5], strict=True):
        theirs.setblocking(False)
        theirs.send(bytes(150_000))
        link.bulk = 1

    def passed() -> list[int]:
        seen: list[int] = []
        while (owner := bench.sockets.receive(None, NOW_MS, bool(seen))[2]) is not None:
            seen.append(owner)
        return seen

    first = passed()
    pairs[5][1].send(b"x")
    then = [*passed(), *passed(), *passed()]
    assert 5 in then[:2]
    assert sorted([*first, *then][:6]) == [0, 1, 2, 3, 4, 5]
    for link, (ours, theirs) in zip(links, pairs, strict=True):
        bench.sockets.leave(link, True)
        ours.close()
        theirs.close()


def test_who_is_answered_shortly_takes_long_no_more(bench: SetBench) -> None:
    """One that drained a backlog and sends now is as any other that sends."""
    peer = warmed(bench)
    peer.link.bulk = 1
    bench.receive(peer, frame(3))
    bench.settle()
    assert opaques(peer)[-1] == 3
    assert peer.link.bulk == 0


def test_nothing_is_stored_before_it_was_sent(bench: SetBench) -> None:
    """A pass takes time: what came while it went on has the time of its own receipt."""
    bench.sockets = core.Sockets(bench.buffer, clock=True)
    warmed(bench)
    sent_ms = time.time_ns() // 1_000_000
    bench.receive(bench.peer(1), frame(2))
    assert bench.store.journal.last_timestamp >= sent_ms > NOW_MS
    bench.settle()


def test_replies_of_a_pass_can_be_told_late_or_not_at_all(bench: SetBench) -> None:
    """Each peer of the pass is known by name: to hear that the disk takes too long, or to be hung up on."""
    first, second = warmed(bench), peer_of(bench, 2)
    for opaque, peer in ((2, first), (3, second)):
        bench.receive(peer, frame(opaque))
    waiting = bench.broker.waiting
    assert len(waiting) == 2
    assert waiting.time_out(NOW_MS - 1) == 0
    assert waiting.time_out(NOW_MS) == 2
    bench.settle()
    assert opaques(first) == [1, 2]
    assert opaques(second) == [3]
    (late,) = map(decode, frames_of(bytes(second.replies)))
    assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    for opaque, peer in ((4, first), (5, second)):
        bench.receive(peer, frame(opaque))
    assert list(waiting.drop()) == [first, second]
    bench.settle()
    assert opaques(first) == [1, 2]

"""What is read from the disk for peers is bounded, whether they take it or not; who does is not held up."""

import dataclasses
from collections import deque
from types import MethodType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.broker import cold
from hotfire.broker.cold import ColdReads
from hotfire.store.reading import BYTES_MAX_MEMORY
from hotfire.store.store import Store
from tests.unit.broker.harness import (
    FOUND,
    RETRY,
    FakeConnection,
    Harness,
    bodies,
    codes,
    next_offset,
    pull_request,
    send_request,
)

BODY_BYTES = 10_000
BULK = {"max_msg_nums": 4096, "max_msg_bytes": BYTES_MAX_MEMORY + 1}


@pytest.fixture
def frozen(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A message in each queue, and nothing in memory."""
    for queue_id in range(4):
        heart.send(queue_id=queue_id, body=bytes(BODY_BYTES))
    read = heart.store.read

    def from_disk(*args: Any, **kwargs: Any) -> Any:
        return dataclasses.replace(read(*args, **kwargs), data=None)

    monkeypatch.setattr(heart.store, "read", from_disk)
    heart.broker.fast.lane = None
    return heart


def reads(heart: Harness) -> int:
    """Reads under way."""
    return heart.store._reading._reader.queued


def nothing_is_kept(own: ColdReads) -> bool:
    return not (own._reading or own._bytes or own._line or own._in_line or own._ready)


# --- one connection ---


def test_cold_reads_of_one_connection_stand_in_line(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many reads in flight, so many in line, the rest sent away with the offset they came with."""
    monkeypatch.setattr(cold, "READS_PER_CONNECTION_MAX", 2)
    monkeypatch.setattr(cold, "LINE_PER_CONNECTION_MAX", 5)
    greedy, modest = frozen.connect(50_100), frozen.connect(50_101)
    opaques = frozen.receive(*[pull_request(queue_id=number % 4) for number in range(10)], to=greedy)
    assert reads(frozen) == 2
    refused = greedy.take()
    assert [(reply.opaque, reply.code, next_offset(reply)) for reply in refused] == [
        (opaque, RETRY, 0) for opaque in opaques[7:]
    ]
    frozen.receive(pull_request(), to=modest)
    frozen.settle()
    assert codes(modest.take()) == [FOUND]
    replies = greedy.take()
    assert sorted(reply.opaque for reply in replies) == opaques[:7]
    assert set(codes(replies)) == {FOUND}
    assert nothing_is_kept(frozen.broker.cold)


def test_bytes_of_one_connection_are_bounded(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads begin below the bound, however many places there are; the others follow, and all are answered."""
    monkeypatch.setattr(cold, "BYTES_PER_CONNECTION_MAX", 2 * BODY_BYTES)
    opaques = frozen.receive(*[pull_request(queue_id=number % 4) for number in range(12)])
    assert reads(frozen) == 2
    frozen.receive(pull_request(), to=frozen.connect(50_100))
    assert reads(frozen) == 3, "another connection has bytes of its own"
    frozen.settle()
    replies = frozen.connection.take()
    assert (sorted(reply.opaque for reply in replies), set(codes(replies))) == (opaques, {FOUND})
    assert nothing_is_kept(frozen.broker.cold)


@pytest.mark.parametrize("is_warm_again", [False, True])
def test_who_does_not_read_gets_nothing_more(
    frozen: Harness, monkeypatch: pytest.MonkeyPatch, is_warm_again: bool
) -> None:
    """What was under way is written, the line stands still until the peer has drained; then all are."""
    monkeypatch.setattr(cold, "READS_PER_CONNECTION_MAX", 2)
    lazy = frozen.connection
    opaques = frozen.receive(*[pull_request(queue_id=number % 4) for number in range(10)])
    lazy.is_clogged = True
    frozen.settle()
    frozen.pass_time(1000)
    assert [reply.opaque for reply in lazy.take()] == opaques[:2]
    assert reads(frozen) == 0
    if is_warm_again:
        monkeypatch.setattr(frozen.store, "read", MethodType(Store.read, frozen.store))
    lazy.is_clogged = False
    frozen.broker.drained(lazy, frozen.now_ms)
    assert is_warm_again or reads(frozen) == 2
    frozen.settle()
    assert sorted(reply.opaque for reply in lazy.take()) == opaques[2:]
    assert nothing_is_kept(frozen.broker.cold)


def test_a_held_pull_of_one_who_does_not_read_waits_for_him(frozen: Harness) -> None:
    """A message comes for a peer that is clogged, and is cold: nothing is read before it has drained."""
    lazy = frozen.connect(50_100)
    frozen.receive(pull_request(offset=1, flag=6), to=lazy)
    lazy.is_clogged = True
    frozen.send(body=b"late")
    assert (reads(frozen), lazy.take()) == (0, [])
    lazy.is_clogged = False
    frozen.broker.drained(lazy, frozen.now_ms)
    frozen.settle()
    assert bodies(lazy.take_one()) == [b"late"]


def test_who_left_loses_his_place_in_line(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection closes: its reads in flight end in nothing, those in line are never made."""
    monkeypatch.setattr(cold, "READS_PER_CONNECTION_MAX", 1)
    gone = frozen.connect(50_100)
    frozen.receive(*[pull_request() for _ in range(20)], to=gone)
    made: list[object] = []
    fetch = frozen.store.fetch_beside
    monkeypatch.setattr(frozen.store, "fetch_beside", lambda *args: (made.append(args), fetch(*args)))
    frozen.disconnect(gone)
    frozen.settle()
    assert made == []
    assert gone.take() == []
    assert nothing_is_kept(frozen.broker.cold)


# --- all of them ---


def test_bytes_of_all_are_bounded_and_shared(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of all is taken by one: the others come next, each before anyone's second."""
    monkeypatch.setattr(cold, "BYTES_MAX", 2 * BODY_BYTES)
    greedy, *modest = [frozen.connect(50_100 + number) for number in range(5)]
    order: list[int] = []
    for peer in (greedy, *modest):
        monkeypatch.setattr(peer, "write", lambda data, port=peer.peer[1]: order.append(port))
    frozen.receive(*[pull_request() for _ in range(8)], to=greedy)
    for peer in modest:
        frozen.receive(pull_request(), to=peer)
        frozen.receive(pull_request(), to=peer)
    assert reads(frozen) == 2
    frozen.settle()
    assert order[:2] == [50_100] * 2
    assert sorted(order[2:7]) == list(range(50_100, 50_105))
    assert sorted(order[7:12]) == list(range(50_100, 50_105))
    assert order[12:] == [50_100] * 4
    assert nothing_is_kept(frozen.broker.cold)


def test_the_line_of_all_is_bounded(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is beyond it asks again; a place is free when one in line was served or left."""
    monkeypatch.setattr(cold, "READS_PER_CONNECTION_MAX", 1)
    monkeypatch.setattr(cold, "LINE_MAX", 3)
    first, second = frozen.connect(50_100), frozen.connect(50_101)
    frozen.receive(*[pull_request() for _ in range(3)], to=first)
    opaques = frozen.receive(*[pull_request() for _ in range(4)], to=second)
    assert [(reply.opaque, reply.code) for reply in second.take()] == [
        (opaques[2], RETRY),
        (opaques[3], RETRY),
    ]
    frozen.disconnect(first)
    frozen.receive(pull_request(), pull_request(), to=second)
    assert second.take() == []
    frozen.settle()
    assert codes(second.take()) == [FOUND] * 4
    assert nothing_is_kept(frozen.broker.cold)


def flood(*connections: FakeConnection, on: bool = True) -> None:
    for connection in connections:
        connection.is_flooded = on


def test_nothing_is_read_while_peers_leave_too_much(frozen: Harness) -> None:
    """Nobody's cold read begins before the tick that has dealt with those who do not read."""
    peers = [frozen.connect(50_100 + number) for number in range(3)]
    flood(*peers)
    for peer in peers:
        frozen.receive(pull_request(), to=peer)
    frozen.settle()
    assert reads(frozen) == 0
    flood(*peers, on=False)
    frozen.tick()
    assert [codes(peer.take()) for peer in peers] == [[FOUND]] * 3
    assert nothing_is_kept(frozen.broker.cold)


def test_bulk_answers_wait_while_peers_leave_too_much(heart: Harness) -> None:
    """What is large waits for the tick though it is in memory, what is usual or waits anyway does not."""
    peer = heart.connection
    heart.send()
    flood(peer)
    (large,) = heart.receive(pull_request(**BULK))
    assert peer.take() == []
    (usual,) = heart.receive(pull_request())
    assert peer.take_one().opaque == usual
    heart.receive(pull_request(offset=1, flag=6, **BULK))
    flood(peer, on=False)
    heart.tick()
    reply = peer.take_one()
    assert (reply.opaque, bodies(reply)) == (large, [b"body"])
    heart.receive(send_request(body=b"awaited"), to=heart.connect(50_100))
    heart.settle()
    assert bodies(peer.take_one()) == [b"awaited"]
    assert nothing_is_kept(heart.broker.cold)


def test_bulk_pulls_queue_up_unread(frozen: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull of much behind others of its connection is not looked into before its turn, and keeps it."""
    monkeypatch.setattr(cold, "READS_PER_CONNECTION_MAX", 1)
    looks = 0
    read = frozen.store.read

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(frozen.store, "read", counted)
    opaques = frozen.receive(*[pull_request(**BULK) for _ in range(20)])
    assert looks == 2
    frozen.settle()
    assert [reply.opaque for reply in frozen.connection.take()] == opaques
    assert looks == 21
    assert nothing_is_kept(frozen.broker.cold)


def test_what_came_into_memory_is_answered_one_in_a_pass(heart: Harness) -> None:
    """A line that needs no disk any more does not hold the loop: others have their turn after each answer."""
    peer = heart.connection
    heart.send()
    flood(peer)
    heart.receive(*[pull_request(**BULK) for _ in range(5)])
    flood(peer, on=False)
    heart.broker.tick(heart.now_ms)
    for _ in range(4):
        assert (codes(peer.take()), heart.broker.wants_turn) == ([FOUND], True)
        heart.turn()
    assert (codes(peer.take()), heart.broker.wants_turn) == ([FOUND], False)


# --- any life ---

READ_BYTES_MAX = 6
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["ask", "drain", "clog", "leave"]), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["flood", "tick"]), st.just(0)),
)


class Life:
    """Connections that ask, read or not, and leave; the reads they have under way."""

    def __init__(self) -> None:
        self.own = ColdReads()
        self.peers = [FakeConnection(number) for number in range(4)]
        self.under_way: deque[tuple[FakeConnection, int]] = deque()
        self.asked = dict.fromkeys(self.peers, 0)
        self.begun = dict.fromkeys(self.peers, 0)

    def ask(self, peer: FakeConnection) -> None:
        size = 1 + self.asked[peer] % READ_BYTES_MAX
        self.asked[peer] += 1
        self.run(peer, size)

    def run(self, peer: FakeConnection, size: int) -> None:
        if not self.own.has_room(peer):
            assert self.own.stand_in_line(peer, lambda: self.run(peer, size))
            return
        assert (peer.is_clogged, peer.is_flooded, peer.closed) == (False, False, False)
        self.own.began(peer, size)
        self.under_way.append((peer, size))
        self.begun[peer] += 1

    def act(self, what: str, number: int) -> None:
        peer = self.peers[number % 4]
        if what == "ask":
            self.ask(peer)
        elif what == "end" and self.under_way:
            self.under_way.rotate(number)
            self.own.ended(*self.under_way.popleft())
        elif what == "clog":
            peer.is_clogged = True
        elif what == "drain" and peer.is_clogged:
            peer.is_clogged = False
            self.own.drained(peer)
        elif what == "leave":
            peer.closed = True
            self.own.disconnected(peer)
            self.peers[number] = peer = FakeConnection(number)
            peer.is_flooded = self.peers[number - 1].is_flooded
            self.asked[peer] = self.begun[peer] = 0
        elif what in ("flood", "tick"):
            flood(*self.peers, on=what == "flood")
        while self.own.go_on():
            pass

    def sizes(self, peer: FakeConnection) -> list[int]:
        return [size for owner, size in self.under_way if owner is peer]


@given(st.lists(ACTIONS, max_size=120))
def test_in_any_life_bytes_are_bounded_and_everyone_is_served(actions: list[tuple[str, int]]) -> None:
    """A bound is passed by one read at most; once all read and the disk is done nobody is left in line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold, "READS_PER_CONNECTION_MAX", 4)
        patch.setattr(cold, "BYTES_PER_CONNECTION_MAX", 10)
        patch.setattr(cold, "BYTES_MAX", 20)
        life = Life()
        for action in actions:
            life.act(*action)
            assert sum(size for _, size in life.under_way) < 20 + READ_BYTES_MAX
            for peer in life.peers:
                assert len(life.sizes(peer)) <= 4
                assert sum(life.sizes(peer)) < 10 + READ_BYTES_MAX
        life.act("tick", 0)
        for number in range(4):
            life.act("drain", number)
        while life.under_way:
            life.act("end", 0)
        for peer in life.peers:
            assert life.begun[peer] == life.asked[peer]
        assert nothing_is_kept(life.own)

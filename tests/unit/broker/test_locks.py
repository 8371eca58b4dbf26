"""Queues consumed in order belong to one client of a group at a time, for a minute without word of it."""

import pytest

from hotfire.broker import locks
from hotfire.broker.locks import LEASE_MS, QueueLocks
from hotfire.model import MessageQueue
from hotfire.protocol.bodies import LockBatch, LockedQueues, decode_body, encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.requests import LockBatchMq, UnlockBatchMq
from tests.unit.broker.harness import START_MS, Harness


def queues(*queue_ids: int, topic: str = "T") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, "broker-a", queue_id) for queue_id in queue_ids)


def batch(client: str, *queue_ids: int, group: str = "CG", topic: str = "T") -> bytes:
    return encode_body(LockBatch(group, client, queues(*queue_ids, topic=topic)))


def lock(heart: Harness, client: str, *queue_ids: int, group: str = "CG", topic: str = "T") -> list[int]:
    """Ids of the queues the client got."""
    reply = heart.ask(LockBatchMq(body=batch(client, *queue_ids, group=group, topic=topic)))
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    locked = decode_body(LockedQueues, reply.body).queues
    assert {(queue.topic, queue.broker_name) for queue in locked} <= {(topic, "broker-a")}
    return sorted(queue.queue_id for queue in locked)


def unlock(heart: Harness, client: str, *queue_ids: int) -> Command:
    reply = heart.ask(UnlockBatchMq(body=batch(client, *queue_ids)))
    assert (reply.code, reply.remark, reply.fields, reply.body) == (0, None, None, b"")
    return reply


def test_a_queue_is_one_clients(heart: Harness) -> None:
    """What another holds is left out of the answer; groups do not stand in each other's way."""
    assert lock(heart, "a", 0, 1) == [0, 1]
    assert lock(heart, "b", 1, 2) == [2]
    assert lock(heart, "b", 0, 1, 2, group="other") == [0, 1, 2]
    assert lock(heart, "a") == []


def test_only_the_owner_gives_a_queue_up(heart: Harness) -> None:
    """The unlock of a stranger is answered and changes nothing."""
    lock(heart, "a", 0)
    unlock(heart, "b", 0)
    assert lock(heart, "b", 0) == []
    unlock(heart, "a", 0)
    unlock(heart, "a", 0)
    assert lock(heart, "b", 0) == [0]


@pytest.mark.promise(126)
def test_the_queues_of_the_dead_are_free_after_60_s(heart: Harness) -> None:
    """No word from the owner: nobody else gets the queue for 60 s, then the next one does, at once."""
    lock(heart, "a", 0, 1)
    heart.pass_time(LEASE_MS - 1000, step_ms=500)
    assert lock(heart, "b", 0, 1) == []
    heart.pass_time(1000, step_ms=500)
    assert lock(heart, "b", 0, 1) == [], "the last millisecond is the owner's too"
    heart.now_ms += 1
    assert lock(heart, "b", 0) == [0]
    assert lock(heart, "a", 0, 1) == [1], "whoever comes first"


def test_renewed_every_20_s_it_stays(heart: Harness) -> None:
    """The owner asks again while it lives, and no other client ever gets the queue."""
    for _ in range(12):
        assert lock(heart, "a", 0) == [0]
        heart.pass_time(20_000, step_ms=1000)
        assert lock(heart, "b", 0) == []


def test_queues_that_are_not_here_are_not_given(heart: Harness) -> None:
    """A topic or a queue this broker does not have: whoever asks for any number of them fills no table."""
    assert lock(heart, "a", 3, 4, 99, -1) == [3]
    assert lock(heart, "a", 0, topic="unknown") == []
    assert len(heart.broker.locks) == 1


def test_too_many_queues_in_one_request_are_refused(heart: Harness) -> None:
    reply = heart.ask(LockBatchMq(body=batch("a", *range(16_385))))
    assert reply.code == 29
    assert reply.remark == "group[CG] asks about 16385 queues at once, at most 16384 are taken"


def test_a_group_in_order_is_known_by_its_leases() -> None:
    """Held as long as one lease is good; forgotten when all have ended, and the memory with them."""
    held = QueueLocks()
    assert not held.holds("g", START_MS)
    held.lock("g", "a", queues(0), START_MS)
    held.lock("g", "a", queues(1), START_MS + 10)
    assert held.holds("g", START_MS + LEASE_MS + 10)
    assert not held.holds("g", START_MS + LEASE_MS + 11)
    assert not held.holds("other", START_MS)
    held.expire(START_MS + LEASE_MS + 1)
    assert len(held) == 1
    held.expire(START_MS + LEASE_MS + 11)
    assert (len(held), held._groups) == (0, {})


def test_a_clock_that_was_set_ends_no_lease() -> None:
    held = QueueLocks()
    held.lock("g", "a", queues(0), START_MS)
    held.clock_moved(3_600_000)
    assert held.lock("g", "b", queues(0), START_MS + 3_600_000 + LEASE_MS) == ()


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With the table full a new queue is not given, which one line says; those held are renewed."""
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    held = QueueLocks()
    assert len(held.lock("g", "a", queues(0, 1, 2, 3, 4), START_MS)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "queues not locked group=g count=3: there are 2 leases, as many as there may be"
    ]
    assert len(held.lock("g", "a", queues(0, 1, 2), START_MS + 1)) == 2
    held.unlock("g", "a", queues(0))
    assert len(held.lock("g", "a", queues(2), START_MS + 1)) == 1

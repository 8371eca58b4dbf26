"""Pulls that wait: answered when a message arrives, when their time is up, and never twice."""

import random
from typing import Any

import pytest

from hotfire.broker.broker import RECHECK_PERIOD_MS
from hotfire.broker.parked import Parked, ParkedPull
from hotfire.core import Queue
from hotfire.protocol.command import Command
from hotfire.protocol.requests import PullReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import (
    COMMIT,
    FOUND,
    MOVED,
    NOT_FOUND,
    RETRY,
    SUBSCRIPTION,
    SUSPEND,
    FakeConnection,
    Harness,
    bodies,
    codes,
    next_offset,
    pull_request,
    send_request,
)

HOLD = SUBSCRIPTION | SUSPEND


def park(heart: Harness, to: FakeConnection | None = None, **fields: Any) -> FakeConnection:
    """A connection with one pull that is held."""
    connection = to or heart.connect(50_100)
    heart.receive(pull_request(**{"flag": HOLD, **fields}), to=connection)
    heart.settle()
    assert connection.take() == [], "not held"
    return connection


def test_nothing_new_is_held_until_a_message_arrives(heart: Harness) -> None:
    """The message is answered in the very turn that made it safe, to every pull that waits for it."""
    waiting = [park(heart) for _ in range(3)] + [park(heart, queue_id=1)]
    heart.receive(send_request(body=b"new"))
    assert [connection.take() for connection in waiting] == [[], [], [], []]
    heart.settle()
    for connection in waiting[:3]:
        reply = connection.take_one()
        assert (reply.code, bodies(reply), next_offset(reply)) == (FOUND, [b"new"], 1)
    assert waiting[3].take() == [], "another queue's pull waits on"
    heart.pass_time(20_000)
    assert codes(waiting[3].take()) == [NOT_FOUND]
    assert [connection.take() for connection in waiting[:3]] == [[], [], []], "answered twice"


def test_the_reply_carries_the_opaque_of_its_request(heart: Harness) -> None:
    """Several pulls of one connection are held at once; each answer names the pull it answers."""
    connection = heart.connect(50_100)
    opaques = {}
    for queue_id in range(4):
        opaques[queue_id] = heart.receive(pull_request(flag=HOLD, queue_id=queue_id), to=connection)[0]
    for queue_id in (2, 0, 3, 1):
        heart.send(queue_id=queue_id)
        assert connection.take_one().opaque == opaques[queue_id]


@pytest.mark.parametrize("hold_ms", [1, 1000, 15_000, 20_000, 30_000])
def test_held_as_long_as_the_client_asks(heart: Harness, hold_ms: int) -> None:
    """No message: answered NOT_FOUND when suspendTimeoutMillis are over, not before."""
    connection = park(heart, suspend_timeout_millis=hold_ms)
    heart.pass_time(hold_ms - 1, step_ms=50)
    assert connection.take() == []
    heart.pass_time(50, step_ms=1)
    reply = connection.take_one()
    assert (reply.code, reply.remark, next_offset(reply)) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0)
    heart.pass_time(31_000)
    assert connection.take() == []
    assert len(heart.broker.parked) == 0


@pytest.mark.promise(96)
def test_held_pulls_are_looked_at_every_5_s(heart: Harness) -> None:
    """Arrival answers at once; with the notice of it suppressed, the recheck finds it within 5 s."""
    prompt = park(heart)
    heart.send()
    assert bodies(prompt.take_one()) == [b"body"]
    assert RECHECK_PERIOD_MS == 5000
    forgotten = park(heart, offset=1)
    heart.store.queue("T", 0).watched = 0  # the log no longer says that this queue grew
    arrived_ms = heart.now_ms
    heart.send(body=b"unheard")
    assert forgotten.take() == []
    while not (replies := forgotten.take()):
        assert heart.now_ms - arrived_ms <= 5000
        heart.pass_time(50)
    assert bodies(replies[0]) == [b"unheard"]
    assert 0 < heart.now_ms - arrived_ms <= 5000


def test_every_recheck_is_5_s_after_the_last(heart: Harness) -> None:
    """Suppressed again and again: each time found within 5 s, without waiting for the pull's end."""
    for number in range(3):
        waiting = park(heart, offset=number, suspend_timeout_millis=60_000)
        heart.store.queue("T", 0).watched = 0
        heart.send()
        heart.pass_time(5000)
        assert len(bodies(waiting.take_one())) == 1


def test_second_run_never_waits(heart: Harness) -> None:
    """When its time is up a pull is answered with whatever there is; a moved offset says so."""
    waiting = park(heart, suspend_timeout_millis=1000)
    heart.pass_time(1000)
    assert codes(waiting.take()) == [NOT_FOUND]
    heart.receive(send_request(), send_request())
    heart.settle()
    heart.connection.take()
    overtaken = park(heart, offset=2, suspend_timeout_millis=1000)
    queue = heart.store.queue("T", 0)
    queue.min = 2
    queue.min = 3  # retention went over it while it waited
    queue.max = 3
    heart.pass_time(1000)
    reply = overtaken.take_one()
    assert (reply.code, next_offset(reply)) == (MOVED, 3)


def test_pulls_that_may_not_wait_do_not(heart: Harness) -> None:
    """Without the suspend flag, or with something to say, the answer is immediate."""
    assert heart.pull().code == NOT_FOUND
    heart.send(named={"TAGS": "A"})
    for fields, code in (
        ({"offset": 5}, MOVED),
        ({"offset": -1}, MOVED),
        ({"expression": "B"}, RETRY),
        ({"offset": 0}, FOUND),
        ({"queue_id": 1, "offset": 3}, MOVED),
        ({"queue_id": 9}, 29),
    ):
        assert heart.pull(flag=HOLD, **fields).code == code
    assert len(heart.broker.parked) == 0


def test_unwanted_arrivals_leave_a_pull_waiting(heart: Harness) -> None:
    """Messages of other tags do not end the wait; what was looked at is not looked at again."""
    waiting = park(heart, expression="A")
    for number in range(5):
        heart.send(named={"TAGS": "B"}, body=b"%d" % number)
    assert waiting.take() == []
    (pull,) = heart.broker.parked.on_queue(heart.store.queue("T", 0))
    assert pull.scanned == 5
    heart.send(named={"TAGS": "A"}, body=b"wanted")
    heart.send(named={"TAGS": "A"}, body=b"too late for this one")
    reply = waiting.take_one()
    assert (bodies(reply), next_offset(reply)) == ([b"wanted"], 6)


def test_a_wait_that_saw_only_unwanted_messages_ends_behind_them(heart: Harness) -> None:
    """At the deadline the client is told that none matched, and to go on from where the broker has looked."""
    waiting = park(heart, expression="A", suspend_timeout_millis=1000)
    for _ in range(5):
        heart.send(named={"TAGS": "B"})
    heart.pass_time(1000)
    reply = waiting.take_one()
    assert (reply.code, reply.remark, next_offset(reply)) == (RETRY, "NO_MATCHED_MESSAGE", 5)
    assert PullReply.from_command(reply).max_offset == 5


def test_each_group_waits_with_its_own_filter(heart: Harness) -> None:
    """One arrival wakes those who want it and no one else."""
    expressions = {expression: heart.connect(50_100) for expression in ("A", "B", "A || B", "*")}
    for expression, connection in expressions.items():
        park(heart, connection, expression=expression)
    heart.send(named={"TAGS": "B"})
    assert {e: codes(c.take()) for e, c in expressions.items()} == {
        "A": [],
        "B": [FOUND],
        "A || B": [FOUND],
        "*": [FOUND],
    }


def test_lost_connection_is_forgotten(heart: Harness) -> None:
    """Pulls of a peer that went are not answered and take no place; those of others are untouched."""
    gone, stays = heart.connect(50_100), heart.connect(50_101)
    for queue_id in range(4):
        park(heart, gone, queue_id=queue_id)
    park(heart, stays)
    assert len(heart.broker.parked) == 5
    heart.disconnect(gone)
    assert len(heart.broker.parked) == 1
    heart.send()
    assert gone.take() == []
    assert codes(stays.take()) == [FOUND]
    assert len(heart.broker.parked) == 0


def test_number_of_held_pulls_is_bounded(make: Make) -> None:
    """Beyond parkedPullsMax a pull is answered at once; when places are free again, held again."""
    heart = make(parked_pulls_max=3)
    heart.create_topic("T")
    waiting = [park(heart) for _ in range(3)]
    surplus = heart.connect(50_200)
    assert heart.ask(pull_request(flag=HOLD), surplus).code == NOT_FOUND
    heart.disconnect(waiting[0])
    park(heart, surplus)
    heart.send()
    assert [codes(connection.take()) for connection in (*waiting, surplus)] == [[], [FOUND], [FOUND], [FOUND]]


def test_short_polling_is_a_setting(make: Make) -> None:
    """longPollingEnable=false holds for shortPollingTimeMills, whatever the client asks."""
    heart = make(long_polling_enable=False, short_polling_time_mills=300)
    heart.create_topic("T")
    waiting = park(heart, suspend_timeout_millis=15_000)
    heart.pass_time(299, step_ms=13)
    assert waiting.take() == []
    heart.pass_time(1)
    assert codes(waiting.take()) == [NOT_FOUND]


def test_offset_is_committed_when_the_pull_begins_to_wait(heart: Harness) -> None:
    """The commit a pull carries counts at once, and once: its second run does not repeat it."""
    heart.send()
    waiting = park(heart, flag=HOLD | COMMIT, offset=1, commit_offset=1)
    assert heart.broker.offsets.get("T", "CG", 0) == 1
    heart.broker.offsets.commit("T", "CG", 0, 0)
    heart.send()
    assert codes(waiting.take()) == [FOUND]
    assert heart.broker.offsets.get("T", "CG", 0) == 0


def test_topic_closed_meanwhile_still_answers(heart: Harness) -> None:
    """A topic whose queues were taken away does not leave its pulls hanging."""
    waiting = park(heart, queue_id=3, suspend_timeout_millis=1000)
    heart.create_topic("T", 2, perm=2)
    heart.pass_time(1000)
    assert codes(waiting.take()) == [NOT_FOUND]


def test_one_that_fails_does_not_stop_the_others(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull whose second run hits an error is answered with it; those behind it are answered as usual."""
    waiting = [park(heart, group=group) for group in ("bad", "good-1", "good-2")]
    read = heart.store.read
    failures = 1

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError(5, "the disk hums")
        return read(*args, **kwargs)

    monkeypatch.setattr(heart.store, "read", fail)
    heart.send()
    replies = [connection.take_one() for connection in waiting]
    assert codes(replies) == [1, FOUND, FOUND]
    assert "the disk hums" in (replies[0].remark or "")
    failures = 0
    waiting = [park(heart, group=group, queue_id=1, expression="A") for group in ("bad", "good-1")]
    failures = 2  # the look and the second run
    heart.send(queue_id=1, named={"TAGS": "A"})
    assert codes([connection.take_one() for connection in waiting]) == [1, FOUND]


def test_oneway_pull_is_not_answered(heart: Harness) -> None:
    """Nobody waits for the answer to a oneway pull, so none is sent, now or later."""
    heart.receive(pull_request(flag=HOLD).to_command(oneway=True))
    heart.send()
    heart.pass_time(20_000)
    assert heart.connection.take() == []


# --- the three indexes ---


def test_parked_pulls_are_found_by_queue_time_and_connection() -> None:
    """Whatever comes and goes in whatever order: each index knows exactly those that are still parked."""
    rng = random.Random(20_261_116)
    queues, connections = [Queue(number) for number in range(5)], [FakeConnection(n) for n in range(5)]
    parked, alive = Parked(10_000, 10_000), set[ParkedPull]()
    now = 0
    for _ in range(5000):
        action = rng.random()
        if action < 0.5:
            pull = ParkedPull(rng.choice(connections), rng.choice(queues), 0, now + rng.randrange(100), None)
            parked.add(pull)
            alive.add(pull)
        elif action < 0.7 and alive:
            pull = rng.choice(list(alive))
            parked.remove(pull)
            parked.remove(pull)  # once more is no harm
            alive.discard(pull)
        elif action < 0.75:
            connection = rng.choice(connections)
            parked.disconnected(connection)
            alive = {pull for pull in alive if pull.connection is not connection}
        else:
            now += rng.randrange(20)
            due = list(parked.due(now))
            assert set(due) == {pull for pull in alive if pull.deadline_ms <= now}
            assert [pull.deadline_ms for pull in due] == sorted(pull.deadline_ms for pull in due)
            alive -= set(due)
        assert len(parked) == len(alive)
        for queue in queues:
            here = {pull for pull in alive if pull.queue is queue}
            assert set(parked.on_queue(queue)) == here
            assert bool(queue.watched) == bool(here)
    assert len(parked._by_time) <= max(64, 2 * len(parked) + 1), "answered pulls stay in memory"


def test_answered_pulls_take_no_memory(heart: Harness) -> None:
    """A thousand pulls with long holds, answered at once: none is kept until its far deadline."""
    for number in range(1000):
        waiting = park(heart, offset=number, suspend_timeout_millis=10**9)
        heart.receive(send_request())
        heart.settle()
        assert codes(waiting.take()) == [FOUND]
        heart.connection.take()
    assert len(heart.broker.parked._by_time) <= 64


def test_replies_of_unknown_pulls_are_no_pulls(heart: Harness) -> None:
    """A command with the response flag is never parked."""
    command = pull_request(flag=HOLD).to_command()
    heart.receive(Command(command.code, flag=1, fields=command.fields))
    assert len(heart.broker.parked) == 0


def test_a_wanted_message_behind_many_others_is_found_at_once(heart: Harness) -> None:
    """A turn brings 2000 unwanted messages and then a wanted one: the pull is answered by that very turn."""
    waiting = park(heart, expression="A")
    heart.receive(*[send_request(named={"TAGS": "B"}) for _ in range(2000)])
    heart.receive(send_request(named={"TAGS": "A"}, body=b"wanted"))
    heart.settle()
    reply = waiting.take_one()
    assert (bodies(reply), next_offset(reply)) == ([b"wanted"], 2001)

"""Each way to consume."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median

from tests.interop.checks.judging import (
    acknowledged,
    by_queue,
    checks,
    each_once,
    indexes,
    unchanged,
)
from tests.interop.checks.send import BATCH, ORDERS
from tests.interop.rowrun import Event, Facts

PULL_MESSAGE = 11
# All that a push consumer and the name server and broker have to say to each other, pulling apart.
BOOKKEEPING = {
    14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET",
    30: "GET_MAX_OFFSET",  # the row's own question
    34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT",
    38: "GET_CONSUMER_LIST_BY_GROUP",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    46: "CHECK_CLIENT_CONFIG",
    105: "GET_ROUTEINFO_BY_TOPIC",
}
HOLD_MS = 15_000  # what a push consumer asks for
RECHECK_MS = 5_000  # a broker may look at held requests this seldom
GIVEN_UP_MS = 30_000  # a push consumer waits no longer for its pull
WOKEN_MS_MAX = 4_000  # less than a re-check; on a busy machine it does take seconds
QUEUES = 4


def pulls(facts: Facts) -> list[Event]:
    """Pulls of the topic itself, each offset once: one that overtook its heartbeat comes again."""
    offsets: dict[int, Event] = {}
    for event in facts.of("request", code=PULL_MESSAGE):
        if not event["fields"]["topic"].startswith("%RETRY%"):
            offsets.setdefault(int(event["fields"]["queueOffset"]), event)
    return list(offsets.values())


@checks("push-pulls")
def push_is_pulling(facts: Facts) -> None:
    each_once(facts.of("message"), range(facts.row.count))
    codes = {event["code"] for event in facts.of("request", consumer="consumer")}
    assert codes - set(BOOKKEEPING) == {PULL_MESSAGE}
    pulled = pulls(facts)
    assert {pull["fields"]["maxMsgNums"] for pull in pulled} == {"32"}
    offsets = [int(pull["fields"]["queueOffset"]) for pull in pulled]
    assert offsets == [*range(0, facts.row.count, 32), facts.row.count]
    batches = sorted((event["count"] for event in facts.of("batch")), reverse=True)
    assert batches == [32] * (facts.row.count // 32) + [facts.row.count % 32]


@checks("pull-interval")
def pull_interval(facts: Facts) -> None:
    each_once(facts.of("message"), range(facts.row.count))
    times = {int(pull["fields"]["queueOffset"]): pull["at"] for pull in pulls(facts)}
    gaps = [later - earlier for earlier, later in pairwise(times[at] for at in range(0, facts.row.count, 32))]
    # The first may have been refused and come again.
    assert all(gap >= 990 for gap in gaps), gaps
    assert median(gaps) < 3000, gaps


@checks("pull-held")
def pull_held(facts: Facts) -> None:
    each_once(facts.of("message"), range(facts.row.count))
    acknowledged(facts, facts.row.count)
    # Not when its sender heard of it: by then the pull it woke may have been followed by the next.
    first_sent = min(message["bornAt"] for message in facts.of("message"))
    idle = [
        event
        for event in facts.of("request", code=PULL_MESSAGE)
        if not event["fields"]["topic"].startswith("%RETRY%") and event["at"] < first_sent
    ]
    gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(idle)]
    # Pulls that overtook their subscription's heartbeat were refused and came again within seconds.
    held = [gap for gap in gaps if gap > RECHECK_MS]
    assert len(held) >= 2, gaps
    assert all(HOLD_MS - 50 <= gap < GIVEN_UP_MS for gap in held), gaps
    assert len(gaps) - len(held) <= 3, gaps
    assert {event["fields"]["suspendTimeoutMillis"] for event in idle} == {str(HOLD_MS)}
    delays = [message["at"] - message["bornAt"] for message in facts.of("message")]
    # None waits for a deadline or a re-check, which would take half of one as a rule.
    assert median(delays) < RECHECK_MS / 5, delays
    assert max(delays) < WOKEN_MS_MAX, delays


@checks("push-concurrent")
def concurrent(facts: Facts) -> None:
    for group in ("red", "blue"):
        received = [message for message in facts.of("message") if message["consumer"].startswith(group)]
        each_once(received, range(facts.row.count))
        assert {message["consumer"] for message in received} == {f"{group}{member}" for member in range(3)}
        owners = {(message["queueId"], message["consumer"]) for message in received}
        assert len(owners) == 8, "a queue went to two members"


@checks("push-orderly")
def orderly(facts: Facts) -> None:
    received = facts.of("message")
    unchanged(received, but=["reconsumeTimes"])
    # What was handed over is what was handled: each message once, those that failed twice.
    assert sorted(indexes(received)) == sorted(indexes(facts.of("handled")))
    done = facts.of("handled", done=True)
    assert sorted(indexes(done)) == list(range(facts.row.count))
    assert indexes(facts.of("handled", done=False)) != []
    assert {message["consumer"] for message in received} <= {"left", "right"}
    steps: dict[int, list[int]] = {order: [] for order in range(ORDERS)}
    for event in done:
        steps[event["index"] % ORDERS].append(event["index"])
    assert all(seen == sorted(seen) and len(seen) == BATCH for seen in steps.values())
    for queue in range(QUEUES):
        # Failed ones come again before anything behind them.
        told = [event["queueOffset"] for event in received if event["queueId"] == queue]
        assert told == sorted(told), f"queue {queue}"
    failed = [index for index in range(facts.row.count) if index % 97 == 0]
    retried = {event["index"] for event in received if event["reconsumeTimes"] == 1}
    assert sorted(retried) == failed


@checks("pull")
def pulled_by_hand(facts: Facts) -> None:
    count = facts.row.count
    received = facts.of("message")
    each_once(received, range(count + 1))
    acknowledged(facts, count + 1)
    ends = {queue: len(lying) for queue, lying in by_queue(received).items()}
    woken = facts.one("woken-by")["offset"]
    ends[0] -= 1
    assert woken == ends[0]
    statuses = Counter(event["status"] for event in facts.of("pulled"))
    assert statuses["NO_NEW_MSG"] == statuses["OFFSET_ILLEGAL"] == QUEUES
    for event in facts.of("pulled"):
        end = ends[event["queueId"]]
        if event["status"] == "FOUND":
            assert event["next"] == event["offset"] + event["count"]
            assert event["count"] == min(32, end - event["offset"]) or event["offset"] == woken
        else:
            assert event["next"] == end
            assert event["count"] == 0
        assert event["min"] == 0
    (last,) = [event for event in facts.of("pulled") if event["offset"] == woken and event["count"]]
    # Held, and woken by the message rather than by a clock.
    assert last["at"] - facts.one("woken-by")["at"] < WOKEN_MS_MAX


@checks("lite-subscribe")
def lite_subscribe(facts: Facts) -> None:
    each_once(facts.of("message"), range(facts.row.count))
    first, second = (facts.of("message", consumer=name) for name in ("first", "second"))
    assert len(first) >= facts.row.count // 2
    assert len(first) < facts.row.count // 2 + 10
    for queue in range(QUEUES):
        told = [message["queueOffset"] for message in [*first, *second] if message["queueId"] == queue]
        assert told == list(range(len(told))), f"queue {queue}"
        assert facts.one("commit", queueId=queue)["offset"] == len(told)


@checks("lite-assign")
def lite_assign(facts: Facts) -> None:
    each = facts.row.count // QUEUES
    starts = {"all": dict.fromkeys(range(QUEUES), 0), "half": {0: each // 2}, "begin": {0: 0}, "end": {}}
    for name, queue_starts in starts.items():
        received = facts.of("message", consumer=name)
        unchanged(received)
        for queue, start in queue_starts.items():
            lying = [message for message in received if message["queueId"] == queue]
            assert [message["queueOffset"] for message in lying] == list(range(start, each))
            assert indexes(lying) == [QUEUES * offset + queue for offset in range(start, each)]
        assert len(received) == sum(each - start for start in queue_starts.values())
    assert facts.one("searched")["offset"] == 0


@checks("broadcasting")
def broadcast(facts: Facts) -> None:
    acknowledged(facts, facts.row.count)
    for member in ("c0", "c1", "c2"):
        each_once(facts.of("message", consumer=member), range(facts.row.count))

"""Who of a group gets which queues, and what happens when members or queues come and go."""

from __future__ import annotations

from collections import defaultdict

from tests.interop.checks.judging import acknowledged, by_queue, checks, each_once, indexes, unchanged
from tests.interop.rowrun import Event, Facts

QUERY_CONSUMER_OFFSET, HEART_BEAT, GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED = 14, 34, 38, 40
QUERY_ASSIGNMENT = 400
# Bounds tell a timer that did its work from one that did not, or from none; a busy machine adds seconds.
NOTIFIED_MS_MAX = 10_000  # half a round
UNNOTIFIED_MS_MAX = 30_000  # a round of 20 s, but not two
PAUSE_MS_MAX = 5_000
PROMPT_MS_MAX = 3_000  # less than a held pull that nobody wakes is looked at again
STOP_MS_MAX = 1_000
AROUND = 100  # events shown before and after one that is wrong
CHANGES = [
    "broker added", "queues added", "queues taken away", "cut off", "known again", "down for an upgrade",
    "upgraded", "broker removed",
]  # fmt: skip
CHANGE_MS_MAX = 35_000  # 1 s for the route, 2 s for the round, 10 s for the broker to register, and its start
TAKEN_MS_MAX = 60_000  # 30 s for the route, 20 s for the round


@checks("allocation-averagely", "allocation-circle")
def allocation(facts: Facts) -> None:
    shares = {
        "allocation-averagely": [list(range(6)), list(range(6, 11)), list(range(11, 16))],
        "allocation-circle": [list(range(member, 16, 3)) for member in range(3)],
    }[facts.row.id]
    received = facts.of("message")
    assert facts.one("settled")["held"] == {f"c{member}": share for member, share in enumerate(shares)}
    each_once(received, range(facts.row.count))
    for message in received:
        assert message["queueId"] in shares[int(message["consumer"][1:])]


@checks("allocation-broker")
def by_broker(facts: Facts) -> None:
    shares = {
        "averagely": [list(range(6)), list(range(6, 11)), list(range(11, 16))],
        "circle": [list(range(member, 16, 3)) for member in range(3)],
    }
    left = {
        "averagely": [list(range(8)), list(range(8, 16))],
        "circle": [[*range(0, 16, 2)], [*range(1, 16, 2)]],
    }
    assert [event["held"] for event in facts.of("settled")] == [
        {f"{group}{member}": share for member, share in enumerate(held[group])}
        for held in (shares, left)
        for group in sorted(held)
    ]
    for group, members in shares.items():
        received = [event for event in facts.of("message") if event["consumer"].startswith(group)]
        each_once(received, range(facts.row.count))
        for number, share in enumerate(members):
            name = f"{group}{number}"
            assert {event["queueId"] for event in received if event["consumer"] == name} == set(share)
            assert facts.of("request", consumer=name, code=QUERY_ASSIGNMENT), "the broker was not asked"
            assert not facts.of("request", consumer=name, code=GET_CONSUMER_LIST_BY_GROUP), "it shared itself"


def _load(facts: Facts) -> int:
    """Messages sent while the story lasted: all of the row's, or more."""
    sent = int(facts.one("load")["sent"])
    assert sent >= facts.row.count
    acknowledged(facts, sent)
    return sent


@checks("rebalance-join")
def join(facts: Facts) -> None:
    sent = _load(facts)
    steps = facts.of("step")
    assert [step["held"] for step in steps] == [
        {"m0": [0, 1, 2, 3, 4]},
        {"m0": [0, 1, 2], "m1": [3, 4]},
        {"m0": [1], "m1": [2], "m2": [3], "m3": [4], "m4": []},
        {f"m{queue}": [queue] for queue in range(5)},
    ]
    assert facts.of("queues", consumer="a-victim")[-1]["queues"] == [0]

    joined = min(event["at"] for event in facts.of("request", consumer="m1", code=HEART_BEAT))
    shrunk = [
        event["at"]
        for event in facts.of("queues", consumer="m0", queues=[0, 1, 2])
        if event["at"] > steps[0]["at"]
    ]
    assert shrunk[0] - joined < NOTIFIED_MS_MAX
    assert facts.of("request", consumer="m0", code=NOTIFY_CONSUMER_IDS_CHANGED) != []
    _only_the_moved_are_touched(facts, steps[1]["at"], shrunk[0])

    received = facts.of("message")
    unchanged(received)
    assert set(indexes(received)) == set(range(sent)), "lost while the group changed"
    _few_twice(received, [event["at"] for event in facts.of("queues")])


def _only_the_moved_are_touched(facts: Facts, settled: int, shrunk: int) -> None:
    """When m1 came, m0 kept queues 0 to 2: it did not begin them anew, and their messages came on at once.
    What it gave up it stopped handling, and m1 began it."""
    begun = facts.one("starting", consumer="m1")["at"]
    end = min(event["at"] for event in facts.of("starting", consumer="m2"))
    assert end - settled > PROMPT_MS_MAX + STOP_MS_MAX, "nobody looked"
    topic = facts.of("message")[0]["topic"]

    def asked(consumer: str) -> set[str]:
        """Queues whose committed offset it asked for, as is done for those that are new to it."""
        requests = facts.of("request", consumer=consumer, code=QUERY_CONSUMER_OFFSET)
        return {
            event["fields"]["queueId"]
            for event in requests
            if begun <= event["at"] < end and event["fields"]["topic"] == topic
        }

    assert asked("m0") == set()
    assert asked("m1") == {"3", "4"}
    sent = {event["index"]: event for event in facts.of("sent") if begun <= event["at"] < end - PROMPT_MS_MAX}
    kept = [event for event in sent.values() if event["queueId"] <= 2]
    assert len(kept) > 10
    arrived = {event["index"]: event["at"] for event in facts.of("message", consumer="m0")}
    late = {
        event["index"]: arrived.get(event["index"], end) - event["at"]
        for event in kept
        if arrived.get(event["index"], end) - event["at"] > PROMPT_MS_MAX
    }
    assert late == {}, "kept queues paused"
    after = [
        event for event in facts.of("message", consumer="m0") if shrunk + STOP_MS_MAX < event["at"] < end
    ]
    assert {event["queueId"] for event in after} == {0, 1, 2}


@checks("queues-change")
def change(facts: Facts) -> None:
    """Each change is followed by an assignment of exactly the queues there are now, within what the client's
    two timers and, where the broker has to register again, its own add up to."""
    sent = _load(facts)
    begun = {event["what"]: event["at"] for event in facts.of("changing")}
    taken = {event["what"]: event["at"] for event in facts.of("taken")}
    assert list(begun) == CHANGES
    assert set(taken) == {"start", *CHANGES}
    for what, at in begun.items():
        assert taken[what] - at < CHANGE_MS_MAX, f"{what}: new assignment after {taken[what] - at} ms"
    received = facts.of("message")
    unchanged(received)
    assert set(indexes(received)) == set(range(sent)), "lost while queues came and went"
    _few_twice(received, [*begun.values(), *taken.values(), *(event["at"] for event in facts.of("queues"))])


def _few_twice(received: list[Event], changes: list[int]) -> None:
    """What comes twice was in flight when its queue moved: first seen near a change of the group."""
    first: dict[int, int] = {}
    for message in received:
        if message["index"] not in first:
            first[message["index"]] = message["at"]
            continue
        near = min(abs(change - first[message["index"]]) for change in changes)
        assert near < PAUSE_MS_MAX, f"message {message['index']} came twice, {near} ms from any change"


@checks("mixed-java-dies", "mixed-python-dies")
def mixed(facts: Facts) -> None:
    """Both halves compute one allocation, in the order of their client ids. Before the death nothing came
    twice; after it only what the dead one had and did not commit."""
    sent = _load(facts)
    killing = facts.one("killing")
    shared, alone = facts.of("step")
    (survivor,) = {"java", "python"} - {killing["consumer"]}
    assert shared["held"] == {"java": [0, 1, 2, 3], "python": [4, 5, 6, 7]}
    assert alone["held"] == {survivor: list(range(8))}
    received = facts.of("message")
    unchanged(received)
    assert set(indexes(received)) == set(range(sent)), "lost when one of them died"
    dead = {message["index"] for message in received if message["consumer"] == killing["consumer"]}
    rest = indexes(message for message in received if message["consumer"] == survivor)
    assert len(rest) == len(set(rest)), "handed to the survivor twice"
    for message in received:
        if message["consumer"] != survivor:
            assert message["queueId"] in shared["held"][message["consumer"]]
        elif message["queueId"] not in shared["held"][survivor]:
            assert message["at"] > killing["at"], f"queue {message['queueId']} in two hands"
    twice = dead & set(rest)
    assert len(twice) < len(dead), "nothing the dead one did was committed"


@checks("rebalance-storm")
def storm(facts: Facts) -> None:
    sent = _load(facts)
    received = facts.of("message")
    unchanged(received, but=["reconsumeTimes"])
    assert set(indexes(received)) == set(range(sent))
    assert len({message["consumer"] for message in received}) >= 8
    in_one_hand(facts.events)


def in_one_hand(events: list[Event]) -> None:
    """Nobody begins a message of a queue while a message of it is being handled, and none is left out.

    Begin and end of each handling are in the order in which one process wrote them down. What a leaving
    member has in hand does not count: Java's shutdown interrupts the listeners, does not wait for them and
    unlocks all queues, so that the next may begin before the interrupted one has ended.
    """
    at_work: dict[int, dict[str, int]] = defaultdict(dict)
    """By queue: who handles the message at which offset."""
    handled: dict[int, int] = defaultdict(lambda: -1)
    leaving: set[str] = set()
    for number, event in enumerate(events):
        kind, member, queue = event["event"], event.get("consumer", ""), event.get("queueId", -1)
        if kind == "closing":
            leaving.add(member)
        elif kind == "message":
            busy = {other: offset for other, offset in at_work[queue].items() if other not in leaving}
            assert not busy, _told(f"{member} begins, and still busy are {busy}", events, number)
            assert event["queueOffset"] <= handled[queue] + 1, _told(
                f"{member} leaves out what follows {handled[queue]}", events, number
            )
            at_work[queue][member] = event["queueOffset"]
        elif kind in {"handled", "error"}:
            begun = at_work[queue].pop(member, None)
            assert begun == event["queueOffset"], _told(f"{member} ends, but began {begun}", events, number)
            if kind == "handled":
                handled[queue] = max(handled[queue], begun)


def _told(what: str, events: list[Event], number: int) -> str:
    """What is wrong at an event, with what happened to its queue and to the members around it."""
    kinds = {"message", "handled", "error", "closing", "queues", "started"}
    queue = events[number]["queueId"]
    near = [
        event
        for event in events[max(0, number - AROUND) : number + AROUND]
        if event["event"] in kinds and event.get("queueId", queue) == queue
    ]
    names = ("at", "event", "consumer", "queueOffset", "queues", "error")
    lines = [" ".join(f"{name}={event[name]}" for name in names if name in event) for event in near]
    return "\n".join([f"queue {queue}, offset {events[number]['queueOffset']}: {what}", *lines])


@checks("rebalance-unnotified")
def unnotified(facts: Facts) -> None:
    joined = min(event["at"] for event in facts.of("request", consumer="c1", code=HEART_BEAT))
    shrunk = [event["at"] for event in facts.of("queues", consumer="c0", queues=[0, 1, 2, 3])]
    assert shrunk[-1] - joined < UNNOTIFIED_MS_MAX
    received = facts.of("message")
    assert facts.one("settled")["held"] == {"c0": [0, 1, 2, 3], "c1": [4, 5, 6, 7]}
    each_once(received, range(facts.row.count))


@checks("queue-growth")
def growth(facts: Facts) -> None:
    sent = _load(facts)
    grown, taken = facts.one("grown")["at"], facts.one("taken")["at"]
    assert taken - grown < TAKEN_MS_MAX
    received = facts.of("message")
    unchanged(received)
    assert set(indexes(received)) == set(range(sent)), "lost while the topic grew"
    assert sorted(by_queue(received)) == list(range(32))
    _few_twice(received, [event["at"] for event in facts.of("queues")])

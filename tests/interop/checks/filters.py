"""What a subscription by tag or by a condition lets through."""

from __future__ import annotations

from tests.interop.checks.judging import acknowledged, checks, each_once
from tests.interop.rowrun import Facts

TAGS = ("Aa", "BB", "TagA", "TagB", None)
COLLISION_MS_MAX = 25_000
PULL_MESSAGE = 11


@checks("tag-filter")
def tags(facts: Facts) -> None:
    acknowledged(facts, facts.row.count)
    for name, wanted in (("one", ("Aa",)), ("two", ("BB", "TagA"))):
        received = facts.of("message", consumer=name)
        assert {message["tags"] for message in received} == set(wanted)
        each_once(
            received,
            [index for index in range(facts.row.count) if TAGS[index % len(TAGS)] in wanted],
            tags=lambda index: TAGS[index % len(TAGS)],
        )


@checks("sql-filter")
def conditions(facts: Facts) -> None:
    """Two groups, each with what its condition is true of: four of every six; texts and NULL."""
    acknowledged(facts, facts.row.count)
    every = range(facts.row.count)
    wanted = {
        "one": [index for index in every if index % 6 in (0, 1, 2, 3)],
        "two": [index for index in every if index % 6 in (2, 4, 5)],
    }
    for name, indexes in wanted.items():
        received = facts.of("message", consumer=name)
        each_once(received, indexes, ignoring=("a", "shop"))
        assert all(message["properties"]["a"] == str(message["index"] % 6) for message in received)


@checks("tag-collision")
def collision(facts: Facts) -> None:
    """Every pull brings messages of which the client keeps none; it asks again at once, to the very end."""
    acknowledged(facts, facts.row.count)
    last = facts.row.count - 1
    each_once(facts.of("message"), [last], tags=lambda index: "Aa")
    pulls = [
        event
        for event in facts.of("request", consumer="consumer")
        if event["code"] == PULL_MESSAGE and not event["fields"]["topic"].startswith("%RETRY%")
    ]
    offsets = list(dict.fromkeys(int(event["fields"]["queueOffset"]) for event in pulls))
    assert offsets == [*range(0, facts.row.count, 32), facts.row.count]
    times = {int(event["fields"]["queueOffset"]): event["at"] for event in pulls}
    # 32 pulls without an answer to wait for: a delay of a second in each would be seen.
    assert times[facts.row.count] - times[0] < COLLISION_MS_MAX
    assert list(facts.one("committed")["offsets"].values()) == [facts.row.count]

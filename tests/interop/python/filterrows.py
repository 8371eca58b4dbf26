"""What a tag or a condition lets through. `Aa` and `BB` have one hash, which is all the broker compares."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.content import content
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

TAGS = ("Aa", "BB", "TagA", "TagB", None)
SHOPS = ("x", "it's", None)
CONDITIONS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "one": ("a between 0 and 3", lambda index: index % 6 <= 3),
    "two": (
        "shop IS NULL OR shop = 'it''s' AND a > 3.5",
        lambda index: index % 3 == 2 or (index % 3 == 1 and index % 6 > 3),
    ),
}


async def tags(row: Row) -> None:
    await row.create_topic(4)
    producer = await row.producer()
    for index in range(row.count):
        row.sent(index, await producer.send(message(row.topic, index, tag=TAGS[index % len(TAGS)])))
    share = row.count // len(TAGS)
    # What comes behind the last match is passed when a held pull ends; no need to wait for that.
    tallies = []
    for name, wanted, expected in (("one", "Aa", share), ("two", "BB || TagA", 2 * share)):
        tallies.append(Tally(expected))
        await Member(row, name, name, tallies[-1], tags=wanted).start()
    for tally in tallies:
        await tally.wait()


async def collision(row: Row) -> None:
    """A queue full of the other tag, and behind all of it the one that was asked for."""
    await row.create_topic(1)
    producer = await row.producer()
    for index in range(row.count):
        tag = "Aa" if index == row.count - 1 else "BB"
        row.sent(index, await producer.send(message(row.topic, index, tag=tag)))
    tally = Tally(1)
    member = await Member(row, None, "consumer", tally, tags="Aa", capture=True).start()
    await tally.wait()
    await member.until_committed()


async def conditions(row: Row) -> None:
    """Six values of a number and three of a text, the last of which is none."""
    await row.create_topic(4)
    producer = await row.producer()
    for index in range(row.count):
        shop = SHOPS[index % len(SHOPS)]
        more = {"a": str(index % 6)} | ({} if shop is None else {"shop": shop})
        named = content(index).properties | more
        row.sent(index, await producer.send(message(row.topic, index, properties=named)))
    tallies = []
    for name, (condition, passes) in CONDITIONS.items():
        tallies.append(Tally(sum(map(passes, range(row.count)))))
        await Member(row, name, name, tallies[-1], sql=condition).start()
    for tally in tallies:
        await tally.wait()


STORIES = {"tag-filter": tags, "tag-collision": collision, "sql-filter": conditions}

"""Who of a group gets which queues, and what happens when members or queues come and go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from itertools import chain
from typing import Any

from hotfire import Producer, ReceivedMessage
from hotfire import allocation as allocations
from hotfire.allocation import AVERAGELY, BY_CIRCLE
from hotfire.client.consumersettings import Pace
from hotfire.errors import HotfireError
from tests.interop.python import sendrows
from tests.interop.python.child import Child
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

LOAD_PAUSE_S = 0.01
# A queue given up with messages in hand stays locked for this long, 20 s by default.
STORM_PACE = Pace(unlock_forced_s=0.5)


class Load:
    """Sends at a steady pace until told to stop, so that the group changes under load."""

    def __init__(self, row: Row, producer: Producer) -> None:
        self._row, self._producer = row, producer
        self._on = True
        self.sent = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        # All the row promises, and on from there while its story lasts.
        try:
            while self._on or self.sent < self._row.count:
                result = await self._producer.send(message(self._row.topic, self.sent))
                self._row.sent(self.sent, result)
                self.sent += 1
                if self._on:
                    await asyncio.sleep(LOAD_PAUSE_S)
        except HotfireError as error:
            self._row.failed(self.sent, error)

    def cancel(self) -> None:
        self._task.cancel()

    async def end(self) -> int:
        self._on = False
        await self._task
        self._row.write("load", sent=self.sent)
        return self.sent


async def loaded(row: Row) -> Load:
    load = Load(row, await row.producer())
    row.opened.callback(load.cancel)
    return load


def shares(members: Iterable[Member]) -> dict[str, list[int]]:
    return {member.name: member.held() for member in members}


async def until_shared(row: Row, members: list[Member], *sizes: int) -> None:
    """At one moment: while somebody comes or goes, one may hold as many as in the end, too."""

    def is_shared() -> bool:
        held = [member.held() for member in members]
        return [len(share) for share in held] == list(sizes) and len({*chain(*held)}) == sum(sizes)

    await row.until(f"shares of {sizes}", is_shared)


async def allocation(row: Row, strategy: str) -> None:
    """16 queues, 3 consumers."""
    await row.create_topic(16)
    tally = Tally(row.count)
    members = [
        await Member(row, None, f"c{number}", tally, allocation=strategy).start() for number in range(3)
    ]
    await until_shared(row, members, 6, 5, 5)
    row.write("settled", held=shares(members))
    await sendrows.later(row, await row.producer())
    await tally.wait()
    await members[0].until_committed(others=tuple(members[1:]))


async def by_broker(row: Row) -> None:
    """16 queues, two groups of three that let the broker share them, each by a strategy of its own."""
    await row.create_topic(16)
    groups: dict[str, list[Member]] = {}
    tallies = {}
    for group, strategy in (("averagely", AVERAGELY), ("circle", BY_CIRCLE)):
        tally = tallies[group] = Tally(row.count)
        chosen = {"capture": True, "allocation": allocations.by_broker(strategy)}
        groups[group] = [
            await Member(row, group, f"{group}{number}", tally, **chosen).start() for number in range(3)
        ]
    for members in groups.values():
        await until_shared(row, members, 6, 5, 5)
        row.write("settled", held=shares(members))
    await sendrows.later(row, await row.producer())
    for tally in tallies.values():
        await tally.wait()
    for members in groups.values():
        await members[0].until_committed(others=tuple(members[1:]))
        await members.pop().close()
        await until_shared(row, members, 8, 8)
        row.write("settled", held=shares(members))


async def _joining(row: Row, name: str, tally: Tally) -> Member:
    return await Member(row, None, name, tally, capture=True).start()


async def join(row: Row) -> None:
    """5 queues: one member, two, six of which one is idle, and five again when one is killed."""
    await row.create_topic(5)
    tally = Tally(math.inf)
    load = await loaded(row)
    members = {"m0": await _joining(row, "m0", tally)}
    await members["m0"].until_holding(5)
    row.write("step", held=shares(members.values()))
    await asyncio.sleep(1.2)  # a client looks at its group at most once a second
    members["m1"] = await _joining(row, "m1", tally)
    await members["m1"].until_holding(2)
    await members["m0"].until_holding(3)
    row.write("step", held=shares(members.values()))
    await asyncio.sleep(5)  # so long it is watched what becomes of the queues that were kept
    # First in the order of client ids, so that it holds a queue and the last of the others none.
    victim = await Child(row, "victim").start()
    for name in ("m2", "m3", "m4"):
        members[name] = await _joining(row, name, tally)
    group = members["m0"].group

    async def are_six() -> bool:
        return len((await row.admin.connections(group)).clients) == 6

    await row.until("word of all six", are_six)
    idle = {name: 0 if name == "m4" else 1 for name in members}
    await row.until(
        "four queues in five hands",
        lambda: (
            {name: len(held) for name, held in shares(members.values()).items()} == idle
            and {*chain(*shares(members.values()).values())} == {1, 2, 3, 4}
        ),
    )
    await row.until("queue of the victim", lambda: victim.wrote('"queues":[0]'))
    row.write("step", held=shares(members.values()))
    row.write("killing")
    await victim.kill()
    await until_shared(row, list(members.values()), 1, 1, 1, 1, 1)
    row.write("step", held=shares(members.values()))
    await load.end()
    everyone = tuple(members.values())
    await everyone[0].until_committed(others=everyone[1:])


async def _victim(row: Row) -> None:
    await _joining(row, "a-victim", Tally(math.inf))
    await asyncio.Event().wait()


async def storm(row: Row) -> None:
    """Orderly members come and go in turn: no queue is ever in two hands."""
    await row.create_topic(8)
    load: Load | None = None
    tally = Tally(math.inf)

    def handling(name: str) -> Callable[[ReceivedMessage], Coroutine[Any, Any, bool]]:
        async def handle(message: ReceivedMessage) -> bool:
            await asyncio.sleep(0.002)
            place = {"queueId": message.queue.queue_id, "queueOffset": message.queue_offset}
            row.write("handled", consumer=name, **place)
            return True

        return handle

    members: list[Member] = []
    for step in range(10):
        if len(members) == 4:
            await members.pop(0).close()
        name = f"c{step}"
        member = Member(row, None, name, tally, handle=handling(name), orderly=True, pace=STORM_PACE)
        members.append(await member.start())
        if load is None:
            await member.until_holding(8)
            load = await loaded(row)
        await asyncio.sleep(1.2)
    assert load is not None
    sent = await load.end()
    await row.until(f"all of {sent}", lambda: len(tally.seen) >= sent)
    await members[0].until_committed(others=tuple(members[1:]))


async def unnotified(row: Row) -> None:
    """A member that no notification reaches finds out by itself."""
    await row.create_topic(8)
    tally = Tally(row.count)
    first = await Member(row, None, "c0", tally, deaf=True).start()
    await first.until_holding(8)
    second = await Member(row, None, "c1", tally, deaf=True).start()
    await until_shared(row, [first, second], 4, 4)
    row.write("settled", held=shares([first, second]))
    await sendrows.later(row, await row.producer())
    await tally.wait()
    await first.until_committed(others=(second,))


async def growth(row: Row) -> None:
    """8 queues become 32 while messages flow; both sides take the new ones up."""
    await row.create_topic(8)
    tally = Tally(math.inf)
    members = [await Member(row, None, f"c{number}", tally).start() for number in range(2)]
    await until_shared(row, members, 4, 4)
    load = await loaded(row)
    await row.create_topic(32)
    row.write("grown")
    await until_shared(row, members, 16, 16)
    row.write("taken")

    async def are_all_used() -> bool:
        return all((await row.ends()).values())

    await row.until("sends to every queue", are_all_used)
    sent = await load.end()
    await row.until(f"all of {sent}", lambda: len(tally.seen) >= sent)
    await members[0].until_committed(others=tuple(members[1:]))


STORIES = {
    "allocation-averagely": partial(allocation, strategy="AVG"),
    "allocation-circle": partial(allocation, strategy="AVG_BY_CIRCLE"),
    "allocation-broker": by_broker,
    "rebalance-join": join,
    "rebalance-join/victim": _victim,
    "rebalance-storm": storm,
    "rebalance-unnotified": unnotified,
    "queue-growth": growth,
}

"""A group with a Java and a Python member: they share its queues; when one dies the other has them all."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from itertools import chain

from tests.interop.python.child import PYTHON, Child, java
from tests.interop.python.grouprows import loaded
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row

QUEUES = 8
PERSIST_S = 0.5
ENOUGH = 50


class Half:
    """One member in a process of its own, as its lines tell of it."""

    def __init__(self, name: str, child: Child) -> None:
        self.name, self._child = name, child
        self._read = 0
        self.held: list[int] = []
        self.indexes: list[int] = []

    def look(self) -> None:
        for line in self._child.lines[self._read :]:
            event = json.loads(line)
            if event["event"] == "queues":
                self.held = event["queues"]
            elif event["event"] == "message":
                self.indexes.append(event["index"])
        self._read = len(self._child.lines)

    async def kill(self) -> None:
        await self._child.kill()
        self.look()


async def mixed(row: Row, victim: str) -> None:
    await row.create_topic(QUEUES)
    commands = {"java": java(), "python": PYTHON}
    halves = {name: Half(name, await Child(row, name, command).start()) for name, command in commands.items()}

    def shares() -> dict[str, list[int]]:
        for half in halves.values():
            half.look()
        return {name: half.held for name, half in halves.items()}

    def are_shared() -> bool:
        return sorted(chain(*shares().values())) == list(range(QUEUES)) and all(shares().values())

    await row.until("queues shared by both", are_shared)
    row.write("step", held=shares())
    load = await loaded(row)

    def have_both() -> bool:
        shares()
        return all(len(half.indexes) >= ENOUGH for half in halves.values())

    await row.until(f"{ENOUGH} messages for each", have_both)
    row.write("killing", consumer=victim)
    await halves[victim].kill()
    (survivor,) = (half for name, half in halves.items() if name != victim)
    await row.until("all queues in one hand", lambda: len(shares()[survivor.name]) == QUEUES)
    row.write("step", held={survivor.name: survivor.held})
    sent = await load.end()

    def is_all_there() -> bool:
        shares()
        return len({index for half in halves.values() for index in half.indexes}) >= sent

    await row.until(f"all of {sent}", is_all_there)

    async def is_committed() -> bool:
        offsets = await row.admin.offsets(row.called(None), row.topic)
        return {queue.queue_id: offset for queue, offset in offsets.items()} == await row.ends()

    await row.until("commit of everything", is_committed)


async def _python(row: Row) -> None:
    member = await Member(row, None, "python", Tally(math.inf)).start()
    while True:  # as often as the Java member says how far it has come
        await asyncio.sleep(PERSIST_S)
        await member.consumer.persist_offsets()


STORIES = {
    "mixed-java-dies": partial(mixed, victim="java"),
    "mixed-java-dies/python": _python,
    "mixed-python-dies": partial(mixed, victim="python"),
    "mixed-python-dies/python": _python,
}

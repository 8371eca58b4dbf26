"""A chat room, and words for one person only.

    python examples/chat.py NAME [HOST:PORT of the name server]

A line goes to everyone who is in the room, by broadcasting; `@bert a word` goes to bert alone, by a tag. What
is said in the room is heard by those who are there; private words wait for a person who is away.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from hotfire import ConsumeFrom, Consumer, Message, Producer, ReceivedMessage
from hotfire.client.admin import Admin

ROOM, PRIVATE = "chat-room", "chat-private"
Hear = Callable[[str, str, bool], None]
"""Told who said what, and whether to us alone."""


class Member:
    """One person, while in the room.

    `directory` is where it is kept how far this member has heard the room.
    """

    def __init__(self, name_servers: str, name: str, hear: Hear, directory: Path | str) -> None:
        self.name = name
        self._hear = hear
        self._producer = Producer(name_servers, group="chat")
        # The room: every member gets everything. A name of its own, for several may be on one machine.
        self._room = Consumer(
            name_servers, group="chat", broadcasting=True, instance_name=name, offsets_directory=directory
        )
        self._room.subscribe(ROOM, self._in_room)
        # Private words: a group for each person, because members of one group must subscribe alike.
        self._private = Consumer(name_servers, group=f"chat-{name}", consume_from=ConsumeFrom.FIRST)
        self._private.subscribe(PRIVATE, self._in_private, tags=name)
        self._end = AsyncExitStack()

    async def say(self, words: str) -> None:
        await self._producer.send(Message(ROOM, words.encode(), properties={"from": self.name}))

    async def tell(self, name: str, words: str) -> None:
        await self._producer.send(Message(PRIVATE, words.encode(), tag=name, properties={"from": self.name}))

    async def _in_room(self, message: ReceivedMessage) -> None:
        self._hear(message.properties["from"], message.body.decode(), False)

    async def _in_private(self, message: ReceivedMessage) -> None:
        self._hear(message.properties["from"], message.body.decode(), True)

    async def __aenter__(self) -> Member:
        async with AsyncExitStack() as undo:
            for part in (self._producer, self._room, self._private):
                await undo.enter_async_context(part)
            await self._room.ready()
            self._end = undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end.aclose()


async def main(name: str, name_servers: str = "127.0.0.1:9876") -> None:
    def hear(who: str, words: str, is_private: bool) -> None:
        print(f"{who}, to you alone: {words}" if is_private else f"{who}: {words}")

    async with Admin(name_servers) as admin:  # who enters a room that is not there hears no first words
        for topic in (ROOM, PRIVATE):
            await admin.create_topic(topic, queues=4)
    async with Member(name_servers, name, hear, "chat-offsets") as member:
        while line := await asyncio.to_thread(sys.stdin.readline):
            to, _, words = line.strip().partition(" ")
            if to.startswith("@"):
                await member.tell(to[1:], words)
            else:
                await member.say(line.strip())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

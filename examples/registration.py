"""A registration that does not wait for the mail and the text message it causes.

    python examples/registration.py [HOST:PORT of the name server]

Writing the user, the mail and the text message take 30 ms each here. One after the other that is 90 ms for
the person who waits; with a message in place of the latter two it is 30 ms and a send.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from hotfire import ConsumeFrom, Consumer, Message, Producer, ReceivedMessage

TOPIC = "registered"
STEP_S = 0.030
Step = Callable[[str], Awaitable[None]]


async def a_step(user: str) -> None:
    """Stands for a database, or for somebody else's service."""
    await asyncio.sleep(STEP_S)


class Registration:
    """The three things to be done for a new user, and two ways to do them."""

    def __init__(self, *, write: Step = a_step, mail: Step = a_step, text: Step = a_step) -> None:
        self._write, self._mail, self._text = write, mail, text

    async def one_after_the_other(self, user: str) -> None:
        await self._write(user)
        await self._mail(user)
        await self._text(user)

    async def with_a_message(self, producer: Producer, user: str) -> None:
        await self._write(user)
        await producer.send(Message(TOPIC, user.encode(), keys=(user,)))

    def services(self, name_servers: str) -> tuple[Consumer, Consumer]:
        """What mails and what texts: two groups, for each is to get every message."""

        async def mail(message: ReceivedMessage) -> None:
            await self._mail(message.body.decode())

        async def text(message: ReceivedMessage) -> None:
            await self._text(message.body.decode())

        mailing = Consumer(name_servers, group="mailing", consume_from=ConsumeFrom.FIRST)
        mailing.subscribe(TOPIC, mail)
        texting = Consumer(name_servers, group="texting", consume_from=ConsumeFrom.FIRST)
        texting.subscribe(TOPIC, text)
        return mailing, texting


async def main(name_servers: str) -> None:
    sent = asyncio.Queue[str]()

    async def mail(user: str) -> None:
        await a_step(user)
        await sent.put(f"mail to {user}")

    async def text(user: str) -> None:
        await a_step(user)
        await sent.put(f"text to {user}")

    async def timed(what: str, work: Awaitable[None]) -> None:
        begun_s = time.perf_counter()
        await work
        print(f"{what}: {(time.perf_counter() - begun_s) * 1000:.0f} ms")

    registration = Registration(mail=mail, text=text)
    mailing, texting = registration.services(name_servers)
    async with Producer(name_servers, group="registration") as producer, mailing, texting:
        await registration.with_a_message(producer, "first")  # connections are made, queues are shared out
        for _ in range(2):
            await sent.get()
        await timed("one after the other", registration.one_after_the_other("anna"))
        await timed("with a message", registration.with_a_message(producer, "bert"))
        for _ in range(4):
            print(await sent.get())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))

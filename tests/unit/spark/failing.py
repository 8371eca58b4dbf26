"""Consumers that fail, and what comes of it: messages given back, and dead letters."""

import asyncio
from contextlib import AbstractContextManager
from unittest.mock import patch

from hotfire import Consumer, ReceivedMessage
from hotfire.client.admin import Admin
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import HotfireError

LONG_S = 30.0
POLL_S = 0.05


class Refused(Exception):
    """What the listeners here say to everything."""


def refuse_all(namesrv: str, group: str, topic: str, count: int, *, retries_max: int) -> None:
    """A consumer of the group refuses so many messages; each is given back, or with no retries laid aside."""

    async def story() -> None:
        refused, enough = 0, asyncio.Event()

        async def refuse(message: ReceivedMessage) -> None:
            nonlocal refused
            refused += 1
            if refused >= count:
                enough.set()
            raise Refused(message.message_id)

        consumer = Consumer(namesrv, group=group, retries_max=retries_max, consume_from=ConsumeFrom.FIRST)
        consumer.subscribe(topic, refuse)
        async with consumer:
            await asyncio.wait_for(enough.wait(), LONG_S)
            await asyncio.wait_for(done_with(namesrv, group, topic), LONG_S)

    with soon_persisted():
        asyncio.run(story())


def soon_persisted() -> AbstractContextManager[object]:
    """Consumers that begin here tell the broker their offsets at once, and not after ten seconds."""
    return patch.multiple("hotfire.client.instance", PERSIST_FIRST_S=POLL_S, PERSIST_INTERVAL_S=POLL_S)


async def done_with(namesrv: str, group: str, topic: str) -> None:
    """Once the group's offsets are at the end, everything refused has been taken back by the broker."""
    async with Admin(namesrv) as admin:
        while True:
            try:
                lag = await admin.lag(group, topic)
            except HotfireError:
                lag = None
            if lag is not None and lag.queues and not lag.total:
                return
            await asyncio.sleep(POLL_S)

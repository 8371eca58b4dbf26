"""A queue read from one offset up to another that is known to be there.

An answer without messages is not the end of a queue: a broker that has too much to read says the same offset
again, and one whose queue has a gap a later one. Who reads up to an end goes on until it is reached, or says
that it was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hotfire.client.pulling import Pulled
from hotfire.errors import Timeout
from hotfire.model import MessageQueue

AGAIN_S = 0.05


async def pull_below(
    end: int,
    queue: MessageQueue,
    offset: int,
    pull: Callable[[], Awaitable[Pulled]],
    *,
    patience_s: float,
) -> Pulled:
    """An answer that leads on from `offset`, which is below `end`. Timeout when none does for so long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        pulled = await pull()
        if pulled.next_offset > offset:
            return pulled
        if loop.time() >= deadline:
            raise Timeout(
                f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id}: messages from "
                f"{offset} to {end - 1} were to be read, and for {patience_s:g} s the broker gave none: it "
                f"answers {pulled.status.name}, its queue ends at {pulled.max_offset}; ask again later"
            )
        await asyncio.sleep(AGAIN_S)

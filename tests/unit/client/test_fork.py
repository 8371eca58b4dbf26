"""A client in a process forked from its own: it is told that it is not its own, its parent goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from hotfire import ConsumeFrom, Consumer, Message, Producer, PullConsumer
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, run

CHILD_S_MAX = 5.0
Use = Callable[[], Coroutine[Any, Any, Any]]


async def in_child(uses: list[Use]) -> list[str]:
    """What each use comes to in a forked process, in a loop of its own; our own loop runs meanwhile."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException), os.fdopen(writing, "w") as pipe:
            for use in uses:
                try:
                    asyncio.run(asyncio.wait_for(use(), CHILD_S_MAX))
                    pipe.write("went well\n")
                except BaseException as error:  # noqa: BLE001  # whatever it is, the parent is to hear of it
                    pipe.write(f"{type(error).__name__}: {error}\n")
        os._exit(0)  # nothing of what a process does at its end: all of it is our parent's
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = await asyncio.to_thread(pipe.read)
    await asyncio.to_thread(os.waitpid, pid, 0)
    return told.splitlines()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_told_and_its_parent_goes_on() -> None:
    """Every way to use a client, and its close, says that the client is another process's; nothing of it
    reaches the parent's connections: brokers know its members, each message is stored and comes once."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        seen = Seen()
        async with (
            Producer(cluster.namesrv) as producer,
            PullConsumer(cluster.namesrv, group="pull", consume_from=ConsumeFrom.FIRST) as pull,
            Consumer(cluster.namesrv, group="push", consume_from=ConsumeFrom.FIRST) as push,
        ):
            pull.subscribe("T")
            push.subscribe("T", seen)
            await push.ready()
            await producer.send(Message("T", b"before"))
            assert [one.body for one in await pull.poll(30)] == [b"before"]
            await seen.count(1)

            async def soon() -> None:
                await producer.send_soon(Message("T", b"a child's"))

            told = await in_child(
                [
                    lambda: producer.send(Message("T", b"a child's")),
                    soon,
                    lambda: producer.send_oneway(Message("T", b"a child's")),
                    lambda: producer.send_batch([Message("T", b"a child's")]),
                    lambda: producer.queues("T"),
                    producer.close,
                    pull.poll,
                    pull.__anext__,
                    pull.commit,
                    pull.close,
                    push.close,
                ]
            )
            kinds = ["producer"] * 6 + ["consumer"] * 5
            assert len(told) == len(kinds)
            for line, kind in zip(told, kinds, strict=True):
                assert line.startswith(f"NotRunning: the {kind} was started in process {os.getpid()}"), line
                assert "forked" in line

            broker = cluster.brokers[0].program.broker  # type: ignore[union-attr]
            assert broker.clients.consumers.keys() >= {"pull", "push"}
            await producer.send(Message("T", b"after"))
            assert [one.body for one in await pull.poll(30)] == [b"after"]
            await seen.count(2)
            assert seen.bodies == [b"before", b"after"]

    run(scenario)

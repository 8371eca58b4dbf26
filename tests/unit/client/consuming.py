"""What tests of consumers share: a cluster in the loop, messages to send, a listener that remembers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client.listening import ConsumeResult
from hotfire.model import ReceivedMessage
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.requests import Request
from hotfire.testing import Cluster

Sent = TypeVar("Sent", bound=Request)


def run(test: Callable[[Cluster], Awaitable[None]], **cluster: Any) -> None:
    """Run the test with a cluster of its own."""

    async def scenario() -> None:
        async with Cluster(**cluster) as own:
            await test(own)

    asyncio.run(scenario())


class Seen:
    """A listener that remembers its messages, and fails those `fails` says."""

    def __init__(self, fails: Callable[[ReceivedMessage], bool] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails
        self._more = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult:
        self.messages.append(message)
        self._more.set()
        failed = self._fails is not None and self._fails(message)
        return ConsumeResult.RETRY if failed else ConsumeResult.DONE

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def count(self, count: int) -> list[ReceivedMessage]:
        """Wait for so many messages."""
        while len(self.messages) < count:
            self._more.clear()
            await self._more.wait()
        return self.messages


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for something that has no event."""
    while True:
        holds = condition()
        if holds is True or (not isinstance(holds, bool) and await holds):
            return
        await asyncio.sleep(0.01)


async def turn(cluster: Cluster, seconds: float) -> None:
    """Let time pass in small steps, with a moment for the kernel to carry what was written in each."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    while (left_s := end_s - loop.time()) > 0:
        await cluster.clock.turn(min(left_s, max(0.2, seconds / 50)))
        await asyncio.sleep(0.002)
    await cluster.clock.settle()


async def settles(cluster: Cluster, condition: Callable[[], bool], within_s: float) -> None:
    """Let time pass until the condition holds; AssertionError if it does not within so many seconds of it.

    What is under way then gets some real time more: a slow machine is no broken promise.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not condition() and loop.time() < end_s:
        await turn(cluster, min(0.2, end_s - loop.time()))
    for _ in range(500):
        if condition():
            break
        await asyncio.sleep(0.01)
    assert condition()


async def send(
    cluster: Cluster, topic: str, bodies: list[bytes], *, queue_id: int | None = None, **fields: Any
) -> None:
    """One after the other, all to one queue if it is given, else in turn."""
    async with Producer(cluster.namesrv) as producer:
        for body in bodies:
            queue = None if queue_id is None else MessageQueue(topic, cluster.brokers[0].name, queue_id)
            await producer.send(Message(topic, body, **fields), queue=queue)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def committed(cluster: Cluster, topic: str, group: str, queue_id: int = 0) -> int | None:
    """What the first broker has for the group."""
    program = cluster.brokers[0].program
    assert program is not None
    return program.broker.offsets.get(topic, group, queue_id)


class Wire:
    """Every request that clients in this process send, from when it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Request] = []
        prepare = Peer._prepare

        def record(peer: Peer, request: Request | Command, flag: int) -> Command:
            if isinstance(request, Request):
                self.sent.append(request)
            return prepare(peer, request, flag)

        monkeypatch.setattr(Peer, "_prepare", record)

    def of(self, kind: type[Sent]) -> list[Sent]:
        return [request for request in self.sent if isinstance(request, kind)]


async def ask(cluster: Cluster, request: Request, broker: int = 0) -> bytes:
    async with await Peer.connect(cluster.brokers[broker].address) as peer:
        return bytes((await peer.ask(request, 15.0)).body)

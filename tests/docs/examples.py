"""Runs what documentation shows: functions of examples get a cluster, and what their parameters ask for.

An example that would go on for ever, a consumer, is let go on until it has printed something.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

import hotfire
from hotfire import App, ConsumeContext, Message, MessageQueue, Producer, ReceivedMessage, SqliteOnce
from hotfire.client.admin import Admin
from hotfire.testing.blocking import BlockingCluster
from tests.unit.client.memoryredis import MemoryRedis

ADDRESS = "127.0.0.1:9876"
"""What documentation dials; here, the cluster's own takes its place."""
TOPIC = "orders"
ENOUGH_S = 30.0
ENDLESS = re.compile(r"Event\(\)\.wait\(\)|for message in consumer:|input\(")


class Enough(Exception):
    """The example has shown what it is to show."""


class Shown:
    """Stands in for print and input of an example, and knows whether anything was printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._any = threading.Event()
        self._ends: threading.Thread | None = None

    def end_this_thread(self) -> None:
        """The next line ends the program that runs here."""
        self._ends = threading.current_thread()

    def print(self, *values: object, **_: object) -> None:
        self.lines.append(" ".join(map(str, values)))
        self._any.set()
        if self._ends is threading.current_thread():
            raise Enough

    def input(self, prompt: str = "") -> str:
        self.wait()
        return ""

    def wait(self) -> None:
        assert self._any.wait(ENOUGH_S), f"nothing was printed within {ENOUGH_S:g} s"


@contextmanager
def fed(cluster: BlockingCluster, topic: str = TOPIC) -> Iterator[None]:
    """Messages keep coming to the topic that examples read."""

    async def feed() -> None:
        async with Producer(cluster.namesrv, group="feeders") as producer:
            while True:
                await producer.send(Message(topic, b"paid", tag="pay", keys=("order-17",)))
                await asyncio.sleep(0.05)

    feeding = cluster.submit(feed())
    try:
        yield
    finally:
        feeding.cancel()


class Examples:
    """Calls the functions an example defined."""

    def __init__(self, cluster: BlockingCluster, shown: Shown) -> None:
        self._cluster = cluster
        self._shown = shown

    def names(self) -> dict[str, Any]:
        """What an example may use without saying where it comes from."""
        offered = {name: getattr(hotfire, name) for name in hotfire.__all__}
        testing = hotfire.testing
        offered |= {name: getattr(testing, name) for name in testing.__all__}
        return {**offered, "asyncio": asyncio, "print": self._shown.print, "input": self._shown.input}

    def run(self, source: str, names: dict[str, Any]) -> int:
        """Call what `source` defined and does not call itself; how many that were."""
        count = 0
        for name, made in list(names.items()):
            ours = isinstance(made, FunctionType) and made.__globals__ is names
            if ours and len(re.findall(rf"\b{name}\b", source)) == 1:
                self._call(made, endless=bool(ENDLESS.search(source)))
                count += 1
            if isinstance(made, App) and re.search(rf"\b{name} = App\(", source):
                asyncio.run(self._until_shown(self._enter(made)))
                count += 1
        for made in names.values():
            if isinstance(made, SqliteOnce):
                made.close()
        return count

    def _call(self, function: FunctionType, *, endless: bool) -> None:
        if inspect.iscoroutinefunction(function):
            asyncio.run(self._await(function, endless=endless))
        elif not endless:
            asyncio.run(self._await_thread(function))
        else:
            self._shown.end_this_thread()
            with fed(self._cluster), suppress(Enough):
                function()

    async def _await(self, function: FunctionType, *, endless: bool) -> None:
        async with Producer(self._cluster.namesrv, group="examples") as producer:
            work: Any = function(*self._arguments(function, producer))
            await (self._until_shown(work) if endless else work)

    async def _await_thread(self, function: FunctionType) -> None:
        async with Producer(self._cluster.namesrv, group="examples") as producer:
            await asyncio.to_thread(function, *self._arguments(function, producer))

    async def _enter(self, app: App) -> None:
        async with app:
            await asyncio.Event().wait()

    async def _until_shown(self, work: Any) -> None:
        with fed(self._cluster):
            task = asyncio.ensure_future(work)
            waiting = asyncio.ensure_future(asyncio.to_thread(self._shown.wait))
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task  # it was to go on: tell why it did not
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await waiting

    def _arguments(self, function: FunctionType, producer: Producer) -> list[Any]:
        """By the names and types of the function's parameters."""
        made: dict[str, Callable[[], Any]] = {
            "Producer": lambda: producer,
            "Message": lambda: Message(TOPIC, b"paid"),
            "ReceivedMessage": received,
            "ConsumeContext": lambda: ConsumeContext(MessageQueue(TOPIC, "broker-0", 0)),
            "sqlite3.Connection": lambda: sqlite3.connect(":memory:"),
            "Redis": MemoryRedis,
            "address": lambda: self._cluster.namesrv,
            "order": lambda: "order-17",
            "message_id": lambda: "7F00000100002A9F0000000000000000",
        }
        arguments = []
        for parameter in inspect.signature(function).parameters.values():
            kind = getattr(parameter.annotation, "__name__", parameter.annotation)
            make = made.get(parameter.name) or made.get(kind)
            assert make is not None, f"{function.__name__}: who is its {parameter.name}, a {kind}?"
            arguments.append(make())
        return arguments


def open_shop(cluster: BlockingCluster) -> None:
    """What examples expect to be there."""

    async def make() -> None:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
            await admin.create_group("billing")

    cluster.run(make())


def received() -> ReceivedMessage:
    queue = MessageQueue(TOPIC, "broker-0", 0)
    return ReceivedMessage(
        TOPIC,
        b"paid",
        "pay",
        ("order-17",),
        {},
        0,
        queue,
        7,
        "id",
        "place",
        0,
        "127.0.0.1:1",
        0,
        "127.0.0.1:2",
    )

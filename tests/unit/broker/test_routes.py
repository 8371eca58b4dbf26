"""Where queues are, learnt from the name servers while the loop goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hotfire.broker import routes
from hotfire.broker.routes import Queues, Routes
from hotfire.errors import BrokerRefused, Unreachable
from hotfire.model import QueueData, RouteData
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import GetRouteInfoByTopic

LONG_S = 1000.0
Scenario = Callable[["NameServers"], Awaitable[None]]


class NameServers:
    """Answers from `topics`: how many queues each has, or the error it is refused with. Holds on request."""

    def __init__(self) -> None:
        self.topics: dict[str, int | Exception] = {}
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, request: GetRouteInfoByTopic, timeout_s: float) -> Command:
        self.asked.append(request.topic)
        await self.may_answer.wait()
        found = self.topics.get(request.topic)
        if found is None:
            raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, "none")
        if isinstance(found, Exception):
            raise found
        return Command(0, body=encode_body(RouteData((QueueData("broker-a", found, found, 6),))))


def run(scenario: Scenario) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario(NameServers())

    asyncio.run(limited())


async def find(known: Routes, topic: str) -> Queues | None:
    found: asyncio.Future[Queues | None] = asyncio.get_running_loop().create_future()
    known.find(topic, found.set_result)
    return await found


async def count(known: Routes, topic: str) -> int | None:
    queues = await find(known, topic)
    return None if queues is None else len(queues)


def test_a_topic_is_asked_for_once_until_its_route_is_old() -> None:
    async def scenario(servers: NameServers) -> None:
        servers.topics["T"] = 2
        new, old = Routes(servers.ask, LONG_S), Routes(servers.ask, 0.0)
        assert [queue.queue_id for queue in await find(new, "T") or ()] == [0, 1]
        servers.topics["T"] = 3
        told: list[Any] = []
        new.find("T", told.append)
        assert len(told[0]) == 2, "at once, from what is known"
        assert servers.asked == ["T"]
        assert [await count(old, "T"), await count(old, "T")] == [3, 3]
        assert servers.asked == ["T"] * 3

    run(scenario)


def test_whoever_wants_the_same_waits_for_one_answer() -> None:
    async def scenario(servers: NameServers) -> None:
        servers.topics["T"] = 1
        servers.may_answer.clear()
        known = Routes(servers.ask, LONG_S)
        told: list[Any] = []
        for _ in range(3):
            known.find("T", told.append)
        await asyncio.sleep(0)
        assert (servers.asked, told) == (["T"], [])
        servers.may_answer.set()
        assert await count(known, "T") == 1
        assert [len(queues) for queues in told] == [1, 1, 1]

    run(scenario)


@pytest.mark.parametrize("error", [Unreachable("nobody there"), ZeroDivisionError("nobody thought of it")])
def test_without_name_servers_the_last_route_serves(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """What was never known stays unknown; the log says so once in a while."""

    async def scenario(servers: NameServers) -> None:
        servers.topics["T"] = 2
        known = Routes(servers.ask, 0.0)
        assert await count(known, "T") == 2
        servers.topics.update(T=error, U=error)
        assert await count(known, "T") == 2
        assert await find(known, "U") is None
        servers.topics["T"] = 3
        assert await count(known, "T") == 3
        quiet = Routes(servers.ask, LONG_S)
        caplog.clear()
        for topic in ("U", "U", "U"):
            assert await find(quiet, topic) is None
        assert len([one for one in caplog.records if "route not learnt" in one.message]) == 1

    run(scenario)


def test_a_deleted_topic_is_forgotten_but_for_retries() -> None:
    async def scenario(servers: NameServers) -> None:
        servers.topics.update({"T": 2, "%RETRY%G": 1})
        known = Routes(servers.ask, 0.0)
        assert [await count(known, topic) for topic in ("T", "%RETRY%G")] == [2, 1]
        servers.topics.clear()
        assert [await count(known, topic) for topic in ("T", "%RETRY%G")] == [None, 1]

    run(scenario)


def test_a_route_without_queues_is_asked_for_again() -> None:
    async def scenario(servers: NameServers) -> None:
        servers.topics["T"] = 0
        known = Routes(servers.ask, LONG_S)
        assert await find(known, "T") == ()
        servers.topics["T"] = 1
        assert await count(known, "T") == 1

    run(scenario)


def test_what_waits_and_what_is_kept_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond them the answer is what is known, at once; the oldest route goes first."""
    monkeypatch.setattr(routes, "ASKED_MAX", 1)
    monkeypatch.setattr(routes, "WAITING_MAX", 2)
    monkeypatch.setattr(routes, "QUEUES_KEPT_MAX", 5)

    async def scenario(servers: NameServers) -> None:
        servers.topics.update(T=3, U=3)
        servers.may_answer.clear()
        known = Routes(servers.ask, LONG_S)
        told: list[Any] = []
        for topic in ("T", "U", "T", "T"):
            known.find(topic, told.append)
        assert told == [None, None], "one topic too many, one member too many"
        servers.may_answer.set()
        assert await count(known, "U") is None
        await asyncio.gather(*known._tasks)
        assert [len(queues) for queues in told[2:]] == [3, 3]
        assert await count(known, "U") == 3
        assert servers.asked == ["T", "U"]
        assert await count(known, "T") == 3
        assert servers.asked == ["T", "U", "T"], "both were too many to keep"

    run(scenario)


def test_nobody_is_called_back_after_the_end() -> None:
    async def scenario(servers: NameServers) -> None:
        servers.may_answer.clear()
        known = Routes(servers.ask, LONG_S)
        told: list[Any] = []
        known.find("T", told.append)
        await asyncio.sleep(0)
        await known.close()
        assert told == []

    run(scenario)

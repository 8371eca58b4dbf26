"""A broker that cannot register says so and keeps trying."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotfire.broker import registration
from hotfire.broker.registration import Registration
from hotfire.errors import BrokerRefused, HotfireError, Timeout, TopicNotExist, Unreachable
from hotfire.protocol.bodies import ConsumerData, Heartbeat, encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.requests import GetRouteInfoByTopic, HeartBeat, UpdateAndCreateTopic
from tests.unit.broker.harness import Harness, tagged


def test_no_failure_ends_the_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host name no resolver takes, an error nobody thought of: told once, dialled again and again."""
    heart = Harness(tmp_path / "store")
    unspeakable = "x" * 64 + ".example:9876"  # a label has 63 characters at most
    dialled: list[str] = []
    enough = asyncio.Event()
    dial = registration.Peer.connect

    async def connect(address: str, *, timeout_s: float, tls: object) -> registration.Peer:
        dialled.append(address)
        if min(dialled.count(unspeakable), dialled.count("odd:1")) == 3:
            enough.set()
        if address == "odd:1":
            raise ZeroDivisionError("nobody thought of it")
        return await dial(address, timeout_s=timeout_s)

    monkeypatch.setattr(registration.Peer, "connect", connect)
    monkeypatch.setattr(registration, "REDIAL_S", 0.001)

    async def scenario() -> None:
        keeping = Registration(heart.broker, (unspeakable, "odd:1"))
        keeping.start()
        async with asyncio.timeout(10):
            await enough.wait()
        assert await keeping.wait_registered(0.01) == [unspeakable, "odd:1"]
        await keeping.close()

    asyncio.run(scenario())
    heart.close()
    told = [record.getMessage() for record in caplog.records if "not registered" in record.message]
    assert len(told) == 2, told
    assert any("UnicodeError" in line and unspeakable in line for line in told), told
    assert any("nobody thought of it" in line for line in told), told


def test_a_new_topic_is_answered_when_name_servers_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes a topic, or a group with its retry topic, and asks for the route next is told it."""
    heart = Harness(tmp_path / "store")
    asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    class NameServer:
        closed = False

        async def ask(self, request: object, timeout_s: float) -> None:
            answered = asyncio.get_running_loop().create_future()
            asked.put_nowait(answered)
            await answered

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    async def connect(address: str, *, timeout_s: float, tls: object) -> NameServer:
        if address == "away:1":
            raise OSError("nobody there")
        return NameServer()

    monkeypatch.setattr(registration.Peer, "connect", connect)

    def replies() -> list[int]:
        return [frame.code for frame in heart.connection.take() if frame.is_response]

    async def scenario() -> None:
        keeping = Registration(heart.broker, ("here:1", "away:1"))
        keeping.start()
        async with asyncio.timeout(10):
            (await asked.get()).set_result(None)
            await keeping.wait_registered(0.01)
            beat = Heartbeat("C1", consumers=(ConsumerData("G", subscriptions=(tagged("New", "*"),)),))
            for request in (
                UpdateAndCreateTopic(
                    topic="New", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
                    topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
                ),
                HeartBeat(body=encode_body(beat)),
            ):  # fmt: skip
                heart.receive(request)
                assert not replies(), "not before the name server has it"
                (await asked.get()).set_result(None)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert replies() == [0]
        for task in keeping._tasks:
            task.cancel()

    asyncio.run(scenario())
    heart.close()


def test_a_question_goes_to_the_next_name_server_when_one_is_silent(tmp_path: Path) -> None:
    """Those that are reached share the time there is; a refusal is an answer."""
    heart = Harness(tmp_path / "store")
    question = GetRouteInfoByTopic(topic="T")

    class NameServer:
        def __init__(self, answer: Command | HotfireError, closed: bool = False) -> None:
            self.closed, self.answer, self.shares_s = closed, answer, list[float]()

        async def ask(self, request: object, timeout_s: float) -> Command:
            assert request is question
            self.shares_s.append(timeout_s)
            if isinstance(self.answer, HotfireError):
                raise self.answer
            return self.answer

    async def scenario() -> None:
        keeping = Registration(heart.broker, ())
        away = NameServer(Command(0), closed=True)
        silent, ready = NameServer(Timeout("too late")), NameServer(Command(0, remark="here"))
        peers: dict[str, Any] = {"away:1": away, "silent:1": silent, "ready:1": ready}
        keeping._peers = peers
        assert (await keeping.ask(question, 2.0)).remark == "here"
        assert not away.shares_s
        assert silent.shares_s[0] <= 1.0 < ready.shares_s[0] <= 2.0
        peers["silent:1"] = NameServer(BrokerRefused(17, "no such topic"))
        with pytest.raises(TopicNotExist):
            await keeping.ask(question, 2.0)
        keeping._peers = {"away:1": away, "silent:1": silent}  # type: ignore[dict-item]
        with pytest.raises(Unreachable, match=r"1 name servers are reached, none answers: .*too late"):
            await keeping.ask(question, 2.0)

    asyncio.run(scenario())
    heart.close()


def test_a_slow_name_server_keeps_no_answer_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TELL_TIMEOUT_S", 0.01)
    heart = Harness(tmp_path / "store")

    async def scenario() -> None:
        keeping = Registration(heart.broker, ("here:1",))
        keeping._told["here:1"] = -1
        told = asyncio.Event()
        heart.broker.when_registered(told.set)
        assert not told.is_set()
        async with asyncio.timeout(10):
            await told.wait()
        monkeypatch.setattr(registration, "TELLS_MAX", 0)
        told.clear()
        heart.broker.when_registered(told.set)
        assert told.is_set(), "with too many waiting nobody waits"

    asyncio.run(scenario())
    heart.close()

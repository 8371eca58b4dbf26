"""The loop knows when it was held, and by what."""

import asyncio
import logging

import pytest

from hotfire.net import connection, lag, server
from hotfire.net.heart import CommandHeart, Connection
from hotfire.net.lag import HELD_S_MAX, LagMeter
from hotfire.protocol.command import Command
from tests.unit.net.test_server import Client, served

QUICK, SLOW = 1, 2
SLOW_S = 0.02


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Heart(CommandHeart):
    """Takes its time, by the clock of the test."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.slow_tick = False

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        self._clock.now_s += SLOW_S if command.code == SLOW else HELD_S_MAX / 2
        return command.reply(0)

    def tick(self, now_ms: int) -> None:
        if self.slow_tick:
            self.doing = "sweeping"
            self._clock.now_s += SLOW_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (server, connection):
        monkeypatch.setattr(module, "monotonic", made)
    monkeypatch.setattr(lag, "thread_time", made)  # whatever takes time works
    return made


def test_a_request_that_holds_the_loop_is_named(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """More than 5 ms in one call: counted, and said with the request's code; less is not."""
    heart = Heart(clock)

    async def scenario() -> None:
        async with served(heart) as (_, port), await Client.dial(port) as client:
            await client.ask(Command(QUICK))
            assert heart.lag.held_count == 0
            await client.ask(Command(SLOW))

    with caplog.at_level(logging.INFO, "hotfire.net"):
        asyncio.run(scenario())
    assert heart.lag.held_count == 1
    assert heart.lag.held_max_s == pytest.approx(SLOW_S)
    assert "ms=20.0 worked_ms=20.0 by=receive doing=2" in caplog.text
    assert {record.levelno for record in caplog.records if "held" in record.message} == {logging.INFO}


def test_a_slow_tick_is_named(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """What the heart said it was doing is in the line."""
    heart = Heart(clock)
    heart.slow_tick = True

    async def scenario() -> None:
        async with served(heart) as (made, _):
            made._timed("tick", made._tick)

    with caplog.at_level(logging.INFO, "hotfire.net"):
        asyncio.run(scenario())
    assert heart.lag.held_count >= 1
    assert "by=tick doing=sweeping" in caplog.text


def test_a_call_that_only_waited_is_told_when_it_was_very_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kept from running by other programs: counted, and no line for every few milliseconds of it."""
    monkeypatch.setattr(lag, "thread_time", lambda: 7.0)
    meter = LagMeter()
    meter.sample()
    with caplog.at_level(logging.INFO, "hotfire.net"):
        meter.note("tick", "offsets", 100.0, 100.02)
        assert meter.held_count == 1
        assert not caplog.text
        meter.note("tick", "offsets", 102.0, 102.0 + 2 * lag.WAITED_S_MAX)
    assert "busy with other work" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_loop_that_is_held_all_the_time_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a minute, with the number of those it stands for and the worst; all are counted."""
    monkeypatch.setattr(lag, "thread_time", lambda: 7.0)
    meter = LagMeter()
    with caplog.at_level(logging.INFO, "hotfire.net"):
        for number in range(100):
            held_s = 0.05 if number == 3 else 0.01
            meter.note("receive", 310, number * 1.5, number * 1.5 + held_s)
    assert meter.held_count == 100
    assert len(caplog.records) == 3, caplog.text
    assert "others_since=39 worst_ms=50.0" in caplog.records[1].message
    assert "others_since=39 worst_ms=10.0" in caplog.records[2].message


def test_what_clients_feel_is_told_every_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line of little weight keeps no warning from the log, and a warning stands for those before it."""
    monkeypatch.setattr(lag, "thread_time", lambda: 7.0)
    meter = LagMeter()
    with caplog.at_level(logging.INFO, "hotfire.net"):
        meter.note("receive", 310, 100.0, 100.01)
        for number in range(20):
            meter.note("receive", 310, 100.1 + number * 0.2, 100.1 + number * 0.2 + 2 * lag.WAITED_S_MAX)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, *[logging.WARNING] * 4]
    assert "others_since=4 worst_ms=200.0" in caplog.records[2].message

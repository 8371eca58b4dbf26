"""Messages with a time of their own: what travels, what is refused, what can be taken back."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hotfire import Message, Producer, SendResult
from hotfire.client.checks import check_message, deliver_ms
from hotfire.client.messages import message_properties
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.testing import Cluster


def test_what_travels() -> None:
    """A delay and a time of day are the properties that brokers know; Java writes the same."""
    assert message_properties(Message("T", b"x", delay_ms=1500), "ID")["TIMER_DELAY_MS"] == "1500"
    at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(microseconds=1500)
    assert message_properties(Message("T", b"x", deliver_at=at), "ID")["TIMER_DELIVER_MS"] == "1893456000002"
    assert (
        message_properties(Message("T", b"x", deliver_at=123456789), "ID")["TIMER_DELIVER_MS"] == "123456789"
    )
    assert not [name for name in message_properties(Message("T", b"x"), "ID") if name.startswith("TIMER")]
    assert deliver_ms(datetime.fromtimestamp(0, UTC)) == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delay_ms": -1}, "delay_ms=-1"),
        ({"delay_ms": 1.5}, "not int"),
        ({"delay_ms": True}, "not int"),
        ({"deliver_at": datetime(2030, 1, 1)}, "no zone"),  # noqa: DTZ001  # that is what is refused
        ({"deliver_at": "noon"}, "not a datetime"),
        ({"deliver_at": 0}, "deliver_at=0"),
        (
            {"deliver_at": 1_893_456_000},
            "deliver_at=1893456000 looks like seconds: give a datetime or ms since",
        ),
        ({"deliver_at": 10**11 - 1}, "looks like seconds"),
        ({"delay_ms": 5, "deliver_at": 99}, "choose one"),
        ({"delay_ms": 5, "delay_level": 1}, "choose one"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(given: dict[str, Any], told: str) -> None:
    """Each names the field and what to do."""
    with pytest.raises(LocalProtocolError, match=told):
        check_message(Message("T", b"x", **given))


def test_a_time_in_seconds_is_refused_by_every_way_to_send() -> None:
    """It would lie in January 1970, and the message come at once; the same in milliseconds is taken."""

    async def scenario() -> None:
        with Cluster() as cluster:
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("T", b"first"))  # the quick way is open from here on
                in_an_hour = deliver_ms(_in_an_hour())
                for send in (producer.send, producer.send_soon, producer.send_oneway):
                    with pytest.raises(LocalProtocolError, match="looks like seconds"):
                        await send(Message("T", b"x", deliver_at=in_an_hour // 1000))
                await producer.send(Message("T", b"x", deliver_at=in_an_hour))

    asyncio.run(scenario())


def test_a_time_without_a_zone_is_refused_by_every_way_to_send() -> None:
    """Whose noon it is cannot be known here: refused before anything is sent, with what to do."""

    async def scenario() -> None:
        noon = Message("T", b"x", deliver_at=datetime(2030, 1, 1, 12))  # noqa: DTZ001  # that is refused
        with Cluster() as cluster:
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("T", b"first"))  # the quick way is open from here on
                for send in (producer.send, producer.send_soon, producer.send_oneway):
                    with pytest.raises(LocalProtocolError, match=r"12:00:00 has no zone; use astimezone\(\)"):
                        await send(noon)

    asyncio.run(scenario())


def test_a_message_is_taken_back_and_another_comes() -> None:
    """By every way to send, the quick one too: the time is kept. A recall says whose id it was for."""

    async def scenario() -> None:
        with Cluster(recall_message_enable=True) as cluster:
            async with Producer(cluster.namesrv) as producer:
                plain = await producer.send(Message("T", b"now"))
                assert plain.recall_handle is None
                timed = await producer.send(Message("T", b"later", delay_ms=3_600_000))
                soon = await producer.send_soon(Message("T", b"soon", deliver_at=_in_an_hour()))
                for result in (timed, soon):
                    assert isinstance(result, SendResult)
                    assert await producer.recall(result) == result.message_id
                with pytest.raises(LocalProtocolError, match="does not wait"):
                    await producer.recall(plain)
                with pytest.raises(LocalProtocolError, match="no recall handle"):
                    await producer.recall("nonsense")

    asyncio.run(scenario())


def test_a_recall_that_is_forbidden_is_told() -> None:
    """Brokers allow it only where recallMessageEnable is on, and say so."""

    async def scenario() -> None:
        with Cluster() as cluster:
            async with Producer(cluster.namesrv) as producer:
                timed = await producer.send(Message("T", b"later", delay_ms=3_600_000))
                with pytest.raises(BrokerRefused, match="recallMessageEnable"):
                    await producer.recall(timed)

    asyncio.run(scenario())


def _in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)

"""What a new user gets wrong is told at once, with what to do instead; nothing is sent."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest

import hotfire
from hotfire import Consumer, Message, Producer, PullConsumer, errors, sync
from hotfire.testing import Cluster

NAMESRV = "127.0.0.1:9876"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"keys": "order-17"}, "its keys are one text, 'order-17'; give a tuple of them"),
        ({"keys": (17,)}, "key 17 is int, not str"),
        ({"tag": 7}, "tag 7 is int, not str"),
        ({"properties": {"amount": 10}}, "property 10 is int, not str"),
    ],
)
def test_what_is_no_text_does_not_leave(fields: dict[str, Any], told: str) -> None:
    """Keys given as one text would be a key for each letter: told, on every way to send."""

    async def main() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            await producer.send_soon(Message("orders", b"the quick way is open from here on"))
            message = Message("orders", b"x", **fields)
            with pytest.raises(errors.LocalProtocolError, match="message to orders") as send:
                await producer.send(message)
            assert told in str(send.value)
            with pytest.raises(errors.LocalProtocolError):
                producer.send_soon(message)
            with pytest.raises(errors.LocalProtocolError):
                await producer.send_batch([message])
            with pytest.raises(errors.LocalProtocolError):
                await producer.send_oneway(message)

    asyncio.run(main())


@pytest.mark.parametrize("given", ["orders", b"orders", None, ("orders", b"x")])
def test_what_is_no_message_does_not_leave(given: Any) -> None:
    """A text, bytes, nothing: told what to give instead, on every way to send."""

    async def main() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            await producer.send_soon(Message("orders", b"the quick way is open from here on"))
            told = r"not a Message; send Message\(topic, body\)"
            with pytest.raises(errors.LocalProtocolError, match=told):
                await producer.send(given)
            with pytest.raises(errors.LocalProtocolError, match=told):
                await producer.send_soon(given)
            with pytest.raises(errors.LocalProtocolError, match=told):
                await producer.send_batch([given])
            with pytest.raises(errors.LocalProtocolError, match=told):
                await producer.send_oneway(given)

    asyncio.run(main())


def test_a_broker_given_as_name_server_is_told() -> None:
    """The error names the address, and what is wrong with it."""

    async def main() -> None:
        async with Cluster() as cluster:
            address = cluster.brokers[0].address
            async with Producer(address) as producer:
                with pytest.raises(errors.Unreachable, match=f"{address} is no name server"):
                    await producer.send(Message("orders", b"x"))

    asyncio.run(main())


def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A topic nobody made, and a broker that is away: a warning each, not one each second and queue."""

    async def main() -> None:
        async with Cluster() as cluster:
            await cluster.create_topic("orders", queues=8)
            async with Consumer(cluster.namesrv, group="g") as consumer:
                consumer.subscribe("orders", print)
                consumer.subscribe("oders", print)
                await cluster.clock.turn(30)
                told = [record for record in caplog.records if record.levelno >= logging.WARNING]
                assert [record for record in told if "oders" in record.getMessage()], "nobody was told"
                caplog.clear()
                await cluster.brokers[0].kill()
                for _ in range(10):
                    await cluster.clock.turn(1)
                told = [record for record in caplog.records if "is pulled again" in record.getMessage()]
                assert 1 <= len([record for record in told if record.levelno >= logging.WARNING]) <= 2

    with caplog.at_level(logging.INFO, "hotfire.client"):
        asyncio.run(main())


def test_a_queue_of_another_topic_is_refused() -> None:
    """A message is stored in its own topic or not at all."""

    async def main() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            await cluster.create_topic("others")
            (queue, *_) = await producer.queues("others")
            message = Message("orders", b"x")
            for send in (producer.send(message, queue=queue), producer.send_oneway(message, queue=queue)):
                with pytest.raises(errors.LocalProtocolError, match="one of topic others"):
                    await send

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Producer(NAMESRV, retries=-1), "retries=-1"),
        (lambda: Producer(NAMESRV, retries_async=-1), "retries=-1"),
        (lambda: Producer(NAMESRV, timeout_s=0), "timeout_s=0"),
        (lambda: Producer(NAMESRV, in_flight_max=0), "in_flight_max=0"),
        (lambda: Consumer(NAMESRV, group="g", consume_from="FIRST"), "none of ConsumeFrom.LAST, "),  # type: ignore[arg-type]
        (lambda: PullConsumer(NAMESRV, group="g", consume_from="FIRST"), "none of ConsumeFrom.LAST, "),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, group="g", retries_max="many"), "retries_max='many' is not a number"),
        (lambda: PullConsumer(NAMESRV, group="g").subscribe("t", print), "neither text nor a list"),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, group="g").subscribe("t", "*", print), "listener '\\*' cannot be called"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_told_when_it_is_given(make: Callable[[], object], told: str) -> None:
    """Before anything is dialled, by a ConfigError that names it."""
    with pytest.raises(errors.ConfigError, match=told):
        make()


def test_a_closed_producer_is_not_to_be_started_again() -> None:
    """Before the start the next step is to start; afterwards, to make a new one."""

    async def main() -> None:
        producer = Producer(NAMESRV)
        with pytest.raises(errors.NotRunning, match="not started; use `async with`"):
            await producer.send(Message("orders", b"x"))
        await producer.start()
        await producer.close()
        with pytest.raises(errors.NotRunning, match="closed; make a new one"):
            await producer.send(Message("orders", b"x"))

    asyncio.run(main())


@pytest.mark.parametrize("name", sync.__all__)
def test_the_client_without_a_loop_has_all_the_other_has(name: str) -> None:
    """Each public method of the asyncio client is one of the synchronous one, with the same parameters."""
    ours, theirs = getattr(sync, name), getattr(hotfire, name)
    inner = {
        "producer_data",
        "consumer_data",
        "topics",
        "routes_changed",
        "persist_offsets",
        "rebalance",
        "asked",
    }
    for method, function in inspect.getmembers(theirs, inspect.isfunction):
        if method.startswith("_") or method in inner:
            continue
        assert hasattr(ours, method), f"sync.{name} has no {method}"
        there = set(inspect.signature(function).parameters) - {
            "on_done"
        }  # futures have callbacks of their own
        assert set(inspect.signature(getattr(ours, method)).parameters) == there, method
    for attribute, _ in inspect.getmembers(theirs, lambda value: isinstance(value, property)):
        assert attribute.startswith("_") or hasattr(ours, attribute)

"""Consumers as decorated functions."""

import asyncio
import os
import signal
import threading

import pytest

from hotfire import App, ConsumeFrom, Message, Producer, ReceivedMessage
from hotfire.errors import ConfigError
from hotfire.testing import Cluster


def test_a_second_function_for_a_topic_of_a_group_is_refused() -> None:
    """It would take the place of the first, whose messages nobody would see."""
    app = App("127.0.0.1:9876")
    app.consumer("orders", group="billing", tags="pay")(print)
    with pytest.raises(ConfigError, match="group billing has a function for topic orders already"):
        app.consumer("orders", group="billing", tags="refund")(print)
    app.consumer("orders", group="audit")(print)


def test_decorated_functions_get_their_messages() -> None:
    """Two topics of one group and a second group: each function gets what it asked for."""

    async def main() -> None:
        async with Cluster() as cluster:
            app = App(cluster.namesrv)
            seen: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

            @app.consumer("orders", group="billing", tags="pay")
            async def paid(message: ReceivedMessage) -> None:
                seen.put_nowait(("paid", message.body))

            @app.consumer("refunds", group="billing")
            async def refunded(message: ReceivedMessage) -> None:
                seen.put_nowait(("refunded", message.body))

            @app.consumer("orders", group="audit")
            async def audited(message: ReceivedMessage) -> None:
                seen.put_nowait(("audited", message.body))

            for topic in ("orders", "refunds"):
                await cluster.create_topic(topic)
            assert len(app.consumers) == 2
            async with app, Producer(cluster.namesrv) as producer:
                for consumer in app.consumers:
                    await consumer.ready()
                await producer.send(Message("orders", b"1", tag="pay"))
                await producer.send(Message("orders", b"2", tag="cancel"))
                await producer.send(Message("refunds", b"3"))
                got = {await seen.get() for _ in range(4)}
            assert got == {("paid", b"1"), ("audited", b"1"), ("audited", b"2"), ("refunded", b"3")}

    asyncio.run(main())


def test_it_runs_until_it_is_told_to_stop() -> None:
    """`run()` ends upon SIGTERM, with the consumers closed in order."""
    with Cluster() as cluster:
        cluster.create_topic("orders")
        app = App(cluster.namesrv)
        handled = threading.Event()

        @app.consumer("orders", group="billing", consume_from=ConsumeFrom.FIRST)
        async def paid(message: ReceivedMessage) -> None:
            handled.set()
            os.kill(os.getpid(), signal.SIGTERM)

        def send() -> None:
            from hotfire import sync

            with sync.Producer(cluster.namesrv) as producer:
                producer.send(Message("orders", b"paid"))

        sender = threading.Thread(target=send)
        sender.start()
        app.run()
        sender.join(10)
        assert handled.is_set()


def test_mistakes_are_told_when_they_are_made() -> None:
    """An app without a function, and a group with two sets of settings."""
    app = App("127.0.0.1:9876")
    with pytest.raises(ConfigError, match="no consumer"):
        asyncio.run(app.__aenter__())
    app.consumer("T", group="g", concurrency=2)(print)
    with pytest.raises(ConfigError, match="say them once"):
        app.consumer("U", group="g", concurrency=3)(print)

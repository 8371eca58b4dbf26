"""What a new user gets wrong is told at once, with what to do instead; nothing is sent."""

import asyncio
import inspect
import logging
import queue
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import hotfire
from hotfire import (
    App,
    ConsumeFrom,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    QueueReader,
    errors,
    sync,
)
from hotfire.client.admin import Admin
from hotfire.testing import Cluster

NAMESRV = "127.0.0.1:9876"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"keys": "order-17"}, "its keys are one text, 'order-17'; give a tuple of them"),
        ({"keys": (17,)}, "key 17 is int, not str"),
        ({"tag": 7}, "tag 7 is int, not str"),
        ({"properties": {"mine": "1", "amount": 10}}, "property amount=10 is int, not str"),
        ({"properties": {10: "amount"}}, "property name 10 is int, not str"),
        ({"properties": ["amount"]}, "its properties are list, not texts by name"),
        ({"properties": None}, "its properties are NoneType, not texts by name"),
        ({"keys": None}, "its keys are NoneType, not a tuple of texts"),
        ({"keys": iter(["order-17"])}, "its keys are list_iterator, not a tuple of texts"),
        ({"delay_level": "3"}, "delay_level='3' is str, not int"),
        ({"flag": 0.5}, "flag=0.5 is float, not int"),
        ({"topic": None}, "topic None is NoneType, not str"),
        ({"topic": ["orders"]}, "topic ['orders'] is list, not str"),
        ({"topic": b"orders"}, "topic b'orders' is bytes, not str"),
        ({"body": "paid"}, "its body is str, not bytes; send body.encode()"),
        ({"body": bytearray(b"paid")}, "its body is bytearray, not bytes; send bytes"),
    ],
)
def test_what_is_of_another_type_does_not_leave(fields: dict[str, Any], told: str) -> None:
    """Keys given as one text would be a key for each letter: told, on every way to send."""
    asyncio.run(refused_on_every_way(fields, told))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda admin: admin.create_topic(7), "topic=7 is int, not str"),
        (lambda admin: admin.create_topic("T", queues="8"), "queues='8' is str, not int"),
        (lambda admin: admin.create_topic("T", queues=2.5), "queues=2.5 is float, not int"),
        (lambda admin: admin.create_topic("T", brokers="broker-a"), "brokers='broker-a' is one text"),
        (lambda admin: admin.create_topic("T", brokers=[1]), "brokers=1 is int, not str"),
        (lambda admin: admin.create_topic("T", cluster=1), "cluster=1 is int, not str"),
        (lambda admin: admin.delete_topic(None), "topic=None is NoneType, not str"),
        (lambda admin: admin.route(b"T"), "topic=b'T' is bytes, not str"),
        (lambda admin: admin.create_group(None), "group=None is NoneType, not str"),
        (lambda admin: admin.lag(None), "group=None is NoneType, not str"),
        (lambda admin: admin.lag("g", 3), "topic=3 is int, not str"),
        (lambda admin: admin.health(["g"]), r"group=\['g'\] is list, not str"),
        (lambda admin: admin.running_info("g", 1), "client_id=1 is int, not str"),
        (lambda admin: admin.consumed_by("id"), "message='id' is str, not a ReceivedMessage"),
        (lambda admin: admin.reset_offsets("g", "T", "2h"), "timestamp_ms='2h' is str, not int"),
        (lambda admin: admin.set_offset("g", ("T", "b", 0), 3), "not a MessageQueue"),
        (lambda admin: admin.set_offset("g", MessageQueue("T", "b", 0), "3"), "offset '3' is str, not int"),
    ],
)
def test_an_administrators_argument_of_another_type_is_told(
    call: Callable[[Admin], Awaitable[object]], told: str
) -> None:
    """Before anything is asked of a broker: nobody listens at this address."""

    async def scenario() -> None:
        async with Admin(NAMESRV, timeout_s=0.01) as admin:
            with pytest.raises(errors.ConfigError, match=told):
                await call(admin)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "keys",
    [("order 17",), ("order-17", "customer 4"), ("order-17 ",), ("",), ("order-17", "")],
)
def test_a_key_that_would_not_be_found_does_not_leave(keys: tuple[str, ...]) -> None:
    """Keys travel joined by blanks: a blank within one would make two of it, and neither is found."""
    asyncio.run(refused_on_every_way({"keys": keys}, "keys travel joined by blanks"))


@pytest.mark.parametrize("tag", ["pay||refund", "pay || refund", "||", "pay||"])
def test_a_tag_that_no_subscription_can_name_does_not_leave(tag: str) -> None:
    """Two bars separate tags: a consumer that asks for this one would ask for others."""
    asyncio.run(refused_on_every_way({"tag": tag}, f"tag {tag!r} holds '||'"))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("KEYS", "set Message.keys"),
        ("TAGS", "set Message.tag"),
        ("DELAY", "set Message.delay_level"),
        ("WAIT", "set Message.wait_stored"),
        ("UNIQ_KEY", "choose another name"),
        ("TRAN_MSG", "choose another name"),
        ("TIMER_DELIVER_MS", "set Message.deliver_at"),
        ("TIMER_DELAY_MS", "set Message.delay_ms"),
        ("TIMER_OUT_MS", "choose another name"),
        ("CLUSTER", "choose another name"),
    ],
)
def test_a_property_of_the_protocol_is_not_the_applications(name: str, step: str) -> None:
    """As Java's putUserProperty: it would be overwritten, or change what the broker does with the message."""
    told = f"property {name} is the protocol's own; {step}"
    asyncio.run(refused_on_every_way({"properties": {"mine": "1", name: "1"}}, told))


@pytest.mark.parametrize("properties", [{" ": "1"}, {"mine": " "}])
def test_a_blank_property_does_not_leave(properties: dict[str, str]) -> None:
    """As Java's putUserProperty."""
    asyncio.run(refused_on_every_way({"properties": properties}, "that are not blank"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"delay_level": -1}, "delay_level=-1 is not within 0 to 2147483647"),
        ({"delay_level": 1 << 31}, "delay_level=2147483648 is not within 0 to 2147483647"),
        ({"flag": 1 << 31}, "flag=2147483648 is not within -2147483648 to 2147483647"),
    ],
)
def test_a_number_that_does_not_fit_does_not_leave(fields: dict[str, Any], told: str) -> None:
    """A delay cannot be negative; what the protocol has 32 bits for has no more."""
    asyncio.run(refused_on_every_way(fields, told))


def test_a_delay_level_above_the_highest_is_the_highest() -> None:
    """As in Java: the broker has the ladder, and takes more than its last step for the last."""

    async def main() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            await cluster.create_topic("orders")
            await producer.send(Message("orders", b"x", delay_level=99))
            async with PullConsumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST) as consumer:
                consumer.subscribe("orders")
                assert not await consumer.poll(0.5)
                await cluster.clock.turn(2 * 3600 + 1)
                assert [message.body for message in await consumer.poll(5)] == [b"x"]

    asyncio.run(main())


async def refused_on_every_way(fields: dict[str, Any], told: str) -> None:
    """The message is not sent, and its sender is told why."""
    async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
        await producer.send_soon(Message("orders", b"the quick way is open from here on"))
        message = Message(**{"topic": "orders", "body": b"x", **fields})
        for send in (
            lambda: producer.send(message),
            lambda: producer.send_soon(message),
            lambda: producer.send_oneway(message),
            lambda: producer.send_batch([message]),
        ):
            with pytest.raises(errors.LocalProtocolError) as refused:
                await send()
            assert told in str(refused.value) or "delayed messages travel alone" in str(refused.value)
        queues = await producer.queues("orders")
        async with QueueReader(cluster.namesrv) as reader:
            assert sum([await reader.max_offset(queue) for queue in queues]) == 1


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "send timeout": (
        lambda it: it.producer.send(it.message, timeout_s="3"),
        "timeout_s='3' is str, not a number",
    ),
    "later timeout": (lambda it: it.producer.send_soon(it.message, timeout_s="3"), "timeout_s='3' is str"),
    "batch timeout": (lambda it: it.producer.send_batch([it.message], timeout_s="3"), "timeout_s='3' is str"),
    "confirm timeout": (
        lambda it: it.producer.confirm("id", "orders", timeout_s="3"),
        "timeout_s='3' is str",
    ),
    "send queue": (lambda it: it.producer.send(it.message, queue=3), "queue 3 is int, not a MessageQueue"),
    "later queue": (
        lambda it: it.producer.send_soon(it.message, queue=3),
        "queue 3 is int, not a MessageQueue",
    ),
    "oneway queue": (lambda it: it.producer.send_oneway(it.message, queue=3), "not a MessageQueue"),
    "batch queue": (
        lambda it: it.producer.send_batch([it.message], queue=("orders", "b", 0)),
        "is tuple, not a",
    ),
    "selector": (
        lambda it: it.producer.send(it.message, selector="hash"),
        "selector='hash' is str, which cannot be",
    ),
    "queues": (lambda it: it.producer.queues(None), "topic None is NoneType, not str"),
    "pull queue": (lambda it: it.reader.pull("orders", 0), "queue 'orders' is str, not a MessageQueue"),
    "pull offset": (lambda it: it.reader.pull(it.queue, "0"), "offset '0' is str, not int"),
    "pull count": (lambda it: it.reader.pull(it.queue, 0, "32"), "count='32' is str, not a number"),
    "pull wait": (lambda it: it.reader.pull(it.queue, 0, wait_s="1"), "wait_s='1' is str, not a number"),
    "pull tags": (lambda it: it.reader.pull(it.queue, 0, tags=7), "tags 7 are neither text nor a list"),
    "min offset": (lambda it: it.reader.min_offset(0), "queue 0 is int, not a MessageQueue"),
    "max offset": (lambda it: it.reader.max_offset(0), "queue 0 is int, not a MessageQueue"),
    "search": (lambda it: it.reader.search(it.queue, "now"), "timestamp_ms='now' is str, not a number"),
    "boundary": (lambda it: it.reader.search(it.queue, 0, "middle"), "neither 'lower' nor 'upper'"),
    "commit": (lambda it: it.reader.commit(it.queue, None), "offset None is NoneType, not int"),
    "committed": (lambda it: it.reader.committed("orders"), "queue 'orders' is str, not a MessageQueue"),
    "reader topic": (lambda it: it.reader.queues(7), "topic 7 is int, not str"),
    "poll timeout": (lambda it: it.consumer.poll("5"), "timeout_s='5' is str, not a number"),
    "poll count": (
        lambda it: it.consumer.poll(count_max=0),
        "count_max=0: a poll asks for 1 message at least",
    ),
    "seek queue": (lambda it: it.consumer.seek(3, 0), "queue 3 is int, not a MessageQueue"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_argument_of_another_type_is_told_at_the_door(mistake: str) -> None:
    """By a ConfigError that names it, instead of what breaks on it further in."""
    wrong, told = MISTAKES[mistake]

    async def main() -> None:
        async with (
            Cluster() as cluster,
            Producer(cluster.namesrv) as producer,
            QueueReader(cluster.namesrv) as reader,
            PullConsumer(cluster.namesrv, group="g") as consumer,
        ):
            message = Message("orders", b"x")
            queue = (await producer.send(message)).queue
            there = SimpleNamespace(
                producer=producer, reader=reader, consumer=consumer, message=message, queue=queue
            )
            with pytest.raises(errors.ConfigError, match=re.escape(told)):
                await wrong(there)

    asyncio.run(main())


def test_what_is_no_batch_does_not_leave() -> None:
    """A batch is several messages, and said to be."""

    async def main() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            with pytest.raises(errors.LocalProtocolError, match="is int; a batch is a list of Messages"):
                await producer.send_batch(7)  # type: ignore[arg-type]
            with pytest.raises(errors.LocalProtocolError, match="got one Message; give it a list"):
                await producer.send_batch(Message("orders", b"x"))  # type: ignore[arg-type]

    asyncio.run(main())
    plain = sync.Producer(NAMESRV)
    for given, told in ((7, "a batch is a list of Messages"), (Message("orders", b"x"), "or use send")):
        with pytest.raises(errors.LocalProtocolError, match=told):
            plain.send_batch(given)  # type: ignore[arg-type]


def test_a_second_listener_does_not_take_the_place_of_the_first() -> None:
    """It is refused, and the first stays; the same one with other tags is a change of mind, as in Java."""
    told = r"group g has a listener for topic orders already; .* or unsubscribe"
    handled: queue.Queue[object] = queue.Queue()
    for make in (Consumer, sync.Consumer):
        consumer = make(NAMESRV, group="g")
        consumer.subscribe("orders", handled.put, tags="pay")
        consumer.subscribe("orders", handled.put, tags="refund")
        with pytest.raises(errors.ConfigError, match=told):
            consumer.subscribe("orders", print)
        consumer.subscribe("invoices", print)
        consumer.unsubscribe("orders")
        consumer.subscribe("orders", print)


def test_tags_and_a_condition_exclude_each_other() -> None:
    """A subscription has one expression: neither of two is dropped in silence."""
    told = r"tags='pay' and sql=.*leave one out"
    with pytest.raises(errors.ConfigError, match=told):
        Consumer(NAMESRV, group="g").subscribe("orders", print, tags="pay", sql="amount > 10")
    with pytest.raises(errors.ConfigError, match=told):
        PullConsumer(NAMESRV, group="g").subscribe("orders", tags="pay", sql="amount > 10")
    with pytest.raises(errors.ConfigError, match=told):
        App(NAMESRV).consumer("orders", group="g", tags="pay", sql="amount > 10")(print)
    Consumer(NAMESRV, group="g").subscribe("orders", print, sql="amount > 10")


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


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers there, no name server and no broker"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "takes TLS connections only"),
        (b"", "perhaps what listens there is no name server, or takes TLS only"),
    ],
)
def test_who_listens_in_place_of_a_name_server_is_told(says: bytes, told: str) -> None:
    """By what it says, instead of the number its first letters make."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, Producer(f"{host}:{port}") as producer:
            with pytest.raises(errors.Unreachable, match=f"{host}:{port}: .*{told}"):
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
        (lambda: Producer(NAMESRV, timeout_s="3"), "timeout_s='3' is str, not a number"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, retries=None), "retries=None is NoneType, not a number"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, group=7), "group=7 is int, not str"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, max_rate="9"), "max_rate='9' is str, not a number"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, on_limit=True), "on_limit=True is bool, which cannot be called"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, hooks=print), "hooks=.*; give a list of hooks"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, hooks=[print]), "has no before\\(\\) and after\\(\\)"),  # type: ignore[list-item]
        (lambda: Producer(NAMESRV, instance_name=7), "instance_name=7 is int, not str"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, message_bytes_max="4M"), "message_bytes_max='4M' is str"),  # type: ignore[arg-type]
        (lambda: Producer(9876), "name servers 9876 are int: expected host:port"),  # type: ignore[arg-type]
        (lambda: Producer([9876]), "name servers \\[9876\\] are list: expected host:port"),  # type: ignore[list-item]
        (lambda: Consumer(NAMESRV, group=None), "group=None is NoneType, not str"),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, group="g", hooks=[print]), "has no before"),  # type: ignore[list-item]
        (lambda: Consumer(NAMESRV, group="g").subscribe(None, print), "topic None is NoneType, not str"),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, group="g").subscribe("t", print, sql=7), "condition 7 is int, not str"),  # type: ignore[arg-type]
        (lambda: PullConsumer(NAMESRV, group="g", batch_count="1"), "batch_count='1' is str, not a number"),  # type: ignore[arg-type]
        (lambda: PullConsumer(NAMESRV, group="g", batch_count=0), "batch_count=0: a pull asks for 1 message"),
        (lambda: PullConsumer(NAMESRV, group="g", limits=7), "limits=7 are no FetchLimits"),  # type: ignore[arg-type]
        (lambda: PullConsumer(NAMESRV, group="g", on_revoked=7), "on_revoked=7 is int"),  # type: ignore[arg-type]
        (lambda: QueueReader(NAMESRV, group=7), "group=7 is int, not str"),  # type: ignore[arg-type]
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
        "run_blocking",
        "begin",
        "finish",
    }
    for method, function in inspect.getmembers(theirs, inspect.isfunction):
        if method.startswith("_") or method in inner:
            continue
        assert hasattr(ours, method), f"sync.{name} has no {method}"
        there = set(inspect.signature(function).parameters)
        assert set(inspect.signature(getattr(ours, method)).parameters) == there, method
    for attribute, _ in inspect.getmembers(theirs, lambda value: isinstance(value, property)):
        assert attribute.startswith("_") or hasattr(ours, attribute)

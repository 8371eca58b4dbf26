"""The client without an event loop: the same, call by call."""

import asyncio
import inspect
import multiprocessing
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from hotfire import Message, Once, ReceivedMessage, SendResult, SendStatus, SqliteOnce, sync
from hotfire.client.blocking import Face
from hotfire.client.bridge import Bridge
from hotfire.client.once import by_key
from hotfire.errors import ConfigError, LocalProtocolError, NotRunning, SystemBusy, Timeout, TooManyInFlight
from hotfire.model import TopicConfig
from hotfire.testing import Cluster
from tests.unit.client.cluster import SYSTEM_BUSY, Behave, ScriptedBroker, accept, run, say_nothing
from tests.unit.client.cluster import Cluster as ScriptedCluster

NAMESRV = "127.0.0.1:9876"


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with Cluster() as cluster:
        cluster.create_topic("T", queues=2)
        cluster.create_topic("one", queues=1)
        yield cluster.namesrv


def test_what_is_sent_is_handled(namesrv: str) -> None:
    """Sends of every kind from a plain program reach a plain function, each once."""
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    with sync.Producer(namesrv) as producer, sync.Consumer(namesrv, group="plain") as consumer:
        consumer.subscribe("T", handled.put)
        consumer.ready()
        assert sorted(one.queue_id for one in consumer.queues if one.topic == "T") == [0, 1]
        producer.send(Message("T", b"waited for"))
        assert producer.send_soon(Message("T", b"later")).result(10).status.name == "SEND_OK"
        producer.send_oneway(Message("T", b"oneway"))
        producer.send_batch(Message("T", b"batch %d" % n) for n in range(3))
        bodies = {handled.get(timeout=20).body for _ in range(6)}
        assert bodies == {b"waited for", b"later", b"oneway", b"batch 0", b"batch 1", b"batch 2"}
        consumer.suspend()
        producer.send(Message("T", b"kept back"))
        consumer.resume()
        assert handled.get(timeout=20).body == b"kept back"


def test_what_is_polled_is_committed_and_sought(namesrv: str) -> None:
    """Poll, iterate, commit, seek and read by hand."""
    with sync.Producer(namesrv) as producer, sync.PullConsumer(namesrv, group="polls") as consumer:
        (only,) = producer.queues("one")
        for n in range(5):
            producer.send(Message("one", b"%d" % n))
        consumer.assign([only])
        consumer.seek(only, 0)
        assert [next(iter(consumer)).body for _ in range(3)] == [b"0", b"1", b"2"]
        consumer.commit()
        assert consumer.committed(only) == consumer.position(only) == 3
        consumer.seek_to_begin(only)
        assert consumer.poll(10)[0].body == b"0"
    with sync.QueueReader(namesrv) as reader:
        assert [message.body for message in reader.pull(only, 3).messages] == [b"3", b"4"]
        assert (reader.min_offset(only), reader.max_offset(only)) == (0, 5)


# --- later sends ---------------------------------------------------------------------------------------


def beside_a_broker(program: Callable[[str, ScriptedBroker], None], behave: Behave = accept) -> None:
    """A plain program on a thread of its own, beside a broker that does as it is told."""

    async def scenario(cluster: ScriptedCluster) -> None:
        broker = await cluster.add("broker-a", TopicConfig("T", 4, 4), behave=behave)
        await asyncio.to_thread(program, cluster.namesrv, broker)

    run(scenario)


def test_a_later_send_calls_back_and_goes_the_quick_way() -> None:
    """`on_done` has the very future, with its result; once the way is known, sends take the compiled one."""

    def program(namesrv: str, broker: ScriptedBroker) -> None:
        called: queue.Queue[Future[SendResult]] = queue.Queue()
        went_quickly = []
        with sync.Producer(namesrv) as producer:
            pipelines = producer._inner._later.pipelines
            send = pipelines.send

            def watched(message: Message) -> "asyncio.Future[SendResult] | None":
                future = send(message)
                went_quickly.append(future is not None)
                return future

            pipelines.send = watched
            for body in (b"first", b"second"):
                future = producer.send_soon(Message("T", body), on_done=called.put)
                assert called.get(timeout=20) is future
                assert future.result(0).status is SendStatus.SEND_OK
        assert went_quickly == [False, True]
        assert [send.body for send in broker.sends] == [b"first", b"second"]

    beside_a_broker(program)


def test_a_refusal_ends_a_later_send() -> None:
    """It is final, as with a loop; only a send that is waited for tries again."""

    def program(namesrv: str, broker: ScriptedBroker) -> None:
        with sync.Producer(namesrv) as producer:
            with pytest.raises(SystemBusy):
                producer.send_soon(Message("T", b"x")).result(20)
            assert len(broker.sends) == 1
            with pytest.raises(SystemBusy):
                producer.send(Message("T", b"x"))
            assert len(broker.sends) == 1 + 3

    beside_a_broker(program, SYSTEM_BUSY)


def test_too_many_are_told_at_once_and_one_given_up_makes_room() -> None:
    """What is wrong before anything is sent is raised, and in no future; to cancel one gives up its send."""

    def program(namesrv: str, broker: ScriptedBroker) -> None:
        with sync.Producer(namesrv, in_flight_max=1, timeout_s=60.0) as producer:
            first = producer.send_soon(Message("T", b"x"))
            with pytest.raises(TooManyInFlight):
                producer.send_soon(Message("T", b"x"))
            with pytest.raises(LocalProtocolError, match="empty"):
                producer.send_soon(Message("T", b""))
            assert first.cancel()
            broker.behave = accept
            with pytest.raises(CancelledError):
                first.result(0)
            while producer._inner._permits.used:  # the loop hears of it in its next turn
                producer._bridge.call(asyncio.get_running_loop)
            assert producer.send_soon(Message("T", b"x")).result(20).status is SendStatus.SEND_OK

    beside_a_broker(program, say_nothing)


def test_a_later_send_that_times_out_costs_nobody_the_connection() -> None:
    """Many others may be under way on it."""

    def program(namesrv: str, broker: ScriptedBroker) -> None:
        with sync.Producer(namesrv) as producer:
            with pytest.raises(Timeout):
                producer.send_soon(Message("T", b"x"), timeout_s=0.3).result(20)
            assert broker.address in producer._inner._instance.connections.open_addresses()

    beside_a_broker(program, say_nothing)


# --- many, and mistakes --------------------------------------------------------------------------------


def test_threads_share_a_producer(namesrv: str) -> None:
    """Eight threads, one producer: every message has an offset of its own."""
    places: queue.Queue[tuple[int, int]] = queue.Queue()
    with sync.Producer(namesrv) as producer:

        def send() -> None:
            for _ in range(20):
                result = producer.send(Message("T", b"x"))
                places.put((result.queue.queue_id, result.queue_offset))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len({places.get_nowait() for _ in range(160)}) == 160


def test_errors_are_the_same(namesrv: str) -> None:
    """What the asyncio client raises is raised here."""
    producer = sync.Producer(namesrv)
    with pytest.raises(NotRunning):
        producer.send(Message("T", b"too early"))
    with producer, pytest.raises(LocalProtocolError, match="empty"):
        producer.send(Message("T", b""))


def _in_child(producer: sync.Producer, namesrv: str, told: Connection) -> None:
    try:
        producer.send(Message("T", b"from a child"))
    except NotRunning as error:
        told.send(str(error))
    with sync.Producer(namesrv) as own:
        told.send(own.send(Message("T", b"from a child's own")).status.name)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_noticed(namesrv: str) -> None:
    """A child is told that its parent's client is not its own; one it makes itself works."""
    ours, theirs = multiprocessing.Pipe()
    with sync.Producer(namesrv) as producer:
        producer.send(Message("T", b"before"))
        child = multiprocessing.get_context("fork").Process(
            target=_in_child, args=(producer, namesrv, theirs)
        )
        child.start()
        assert f"started in process {os.getpid()}" in ours.recv()
        assert ours.recv() == "SEND_OK"
        child.join(20)
        assert child.exitcode == 0
        producer.send(Message("T", b"after"))


def test_waiting_for_oneself_is_refused(namesrv: str) -> None:
    """A coroutine on the bridge's loop that calls the synchronous client hears so, and does not hang."""
    bridge = Bridge.shared()
    with sync.Producer(namesrv) as producer:

        async def mistaken() -> None:
            producer.send(Message("T", b"never"))

        with pytest.raises(NotRunning, match="its own loop"):
            bridge.run(mistaken())


@pytest.mark.parametrize(
    "use",
    [
        lambda: sync.Producer(NAMESRV).send(Message("T", b"x")),
        lambda: sync.Producer(NAMESRV).send_soon(Message("T", b"x")).result(),
        lambda: sync.Consumer(NAMESRV, group="g").suspend(),
        lambda: sync.PullConsumer(NAMESRV, group="g").poll(),
        lambda: sync.QueueReader(NAMESRV).queues("T"),
    ],
)
def test_who_forgot_to_start_is_told_in_terms_of_this_front(use: Callable[[], object]) -> None:
    """There is no loop here, so no `async with`."""
    with pytest.raises(NotRunning, match=r"use `with`,? or start") as told:
        use()
    assert "async" not in str(told.value)


def test_the_front_has_what_the_asyncio_client_has() -> None:
    """Every public method of a class is there without a loop too, but for those the loop needs, and is called
    in the same way."""
    left_out = {
        "consumer_data", "producer_data", "topics", "routes_changed", "persist_offsets", "rebalance", "asked",
        "run_blocking", "watch", "min_offset", "max_offset", "earliest_store_time_ms", "group", "settings",
        "auto_commit", "begin", "finish",
    }  # fmt: skip
    import hotfire

    assert sorted(sync.__all__) == sync.__all__
    for name in sync.__all__:
        face, behind = getattr(sync, name), getattr(hotfire, name)
        assert issubclass(face, Face) or name == "Once"  # which dials nobody
        wanted = {word for word in vars(behind) if not word.startswith("_")}
        assert wanted - set(dir(face)) <= left_out, name
        for word in wanted & set(dir(face)):
            if inspect.isfunction(method := getattr(behind, word)):
                assert parameters(getattr(face, word)) == parameters(method), (name, word)


def parameters(method: Callable[..., object]) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_a_plain_listener_has_each_effect_once(namesrv: str, tmp_path: Path) -> None:
    """In its own thread, which may send meanwhile; two sends of one order are one effect."""
    handled: queue.Queue[tuple[bool, bool]] = queue.Queue()
    store = SqliteOnce(tmp_path / "effects.db")
    store.run("table", lambda db: db.execute("CREATE TABLE paid (id TEXT)"))
    once = sync.Once(store, scope="billing", key=by_key)
    with sync.Producer(namesrv) as producer, sync.Consumer(namesrv, group="effects") as consumer:

        def handle(message: ReceivedMessage) -> None:
            threads = []

            def pay(db: sqlite3.Connection) -> None:
                threads.append(threading.current_thread())
                producer.send(Message("T", b"paid"))
                db.execute("INSERT INTO paid VALUES (?)", message.keys)

            done = once.run(message, pay)
            handled.put((done, threads == [threading.current_thread()] * done))

        consumer.subscribe("one", handle, tags="once")
        consumer.ready()
        for _ in range(2):
            producer.send(Message("one", b"x", tag="once", keys=("order-1",)))
        assert sorted(handled.get(timeout=20) for _ in range(2)) == [(False, True), (True, True)]
    with sqlite3.connect(tmp_path / "effects.db") as db:
        assert db.execute("SELECT id FROM paid").fetchall() == [("order-1",)]
    db.close()
    store.close()


def test_an_effect_that_nobody_would_await_is_told(namesrv: str) -> None:
    """The asyncio Once in a plain listener, and this one on the loop: neither loses or holds up anything."""
    told: queue.Queue[str] = queue.Queue()
    store = SqliteOnce(":memory:")
    plain, awaited = sync.Once(store), Once(store)

    async def with_a_loop_of_its_own(message: ReceivedMessage) -> bool:
        return await awaited.run(message, str)

    def forgets(message: ReceivedMessage) -> None:
        try:
            assert asyncio.run(with_a_loop_of_its_own(message))
            awaited.run(message, print)
        except ConfigError as error:
            told.put(str(error))

    async def blocks(message: ReceivedMessage) -> None:
        try:
            plain.run(message, print)
        except NotRunning as error:
            told.put(str(error))

    with sync.Producer(namesrv) as producer, sync.Consumer(namesrv, group="mistaken") as consumer:
        consumer.subscribe("one", forgets, tags="mistaken")
        consumer.subscribe("T", blocks, tags="mistaken")
        consumer.ready()
        producer.send(Message("one", b"x", tag="mistaken"))
        assert "use hotfire.sync.Once" in told.get(timeout=20)
        producer.send(Message("T", b"x", tag="mistaken"))
        assert "use the asyncio one" in told.get(timeout=20)
    store.close()

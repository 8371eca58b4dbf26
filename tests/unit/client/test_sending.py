"""Ways to send and what surrounds them: later results, selectors, hooks, slow brokers, limits."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from hotfire import Message, MessageQueue, Producer, SendResult, SendStatus, testing
from hotfire.client.choosing import by_key_hash, java_hash_code
from hotfire.client.faults import Faults
from hotfire.client.hooks import SendContext, SendHook
from hotfire.client.instance import ClientInstance
from hotfire.client.limits import RateLimit
from hotfire.errors import (
    ConfigError,
    ConnectError,
    LocalProtocolError,
    NoRoute,
    NotRunning,
    RateLimited,
    SystemBusy,
    Timeout,
    TooManyInFlight,
    Unreachable,
)
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import SendMessage, UnregisterBroker
from tests.unit.client.cluster import SYSTEM_BUSY, Cluster, ScriptedBroker, accept, refuse, run, say_nothing
from tests.unit.client.consuming import run as run_real
from tests.unit.client.consuming import turn

T = TopicConfig("T", 4, 4)


# --- start and end ------------------------------------------------------------------------------------


@pytest.mark.promise(74)
def test_start_checks_and_refuses() -> None:
    """A bad group, the default group of Java, a second start, and sends before the start, after a failed one
    and after the end: a typed error each, and each says what to do."""
    for group in ("", " ", "two words", "g" * 121, "DEFAULT_PRODUCER"):
        with pytest.raises(LocalProtocolError, match="group"):
            Producer("127.0.0.1:9876", group=group)

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        producer = Producer(cluster.namesrv, group="G", instance_name="one")
        with pytest.raises(NotRunning, match="not started"):
            await producer.send(Message("T", b"x"))
        await producer.start()
        with pytest.raises(NotRunning, match="already started"):
            await producer.start()
        twin = Producer(cluster.namesrv, group="G", instance_name="one")
        with pytest.raises(ConfigError, match="already"):
            await twin.start()
        for use in (lambda: twin.send(Message("T", b"x")), twin.start):
            with pytest.raises(NotRunning, match="start failed"):
                await use()
        await producer.send(Message("T", b"x"))
        await producer.close()
        await producer.close()
        for use in (
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.send_oneway(Message("T", b"x")),
            lambda: producer.send_batch([Message("T", b"x")]),
            lambda: producer.queues("T"),
            lambda: producer.confirm("0" * 32, "T"),
            producer.start,
        ):
            with pytest.raises(NotRunning, match="closed"):
                await use()
        with pytest.raises(NotRunning, match="closed"):
            producer.send_soon(Message("T", b"x"))

    run(scenario)


# --- later ---------------------------------------------------------------------------------------------


@pytest.mark.promise(81)
def test_send_soon_calls_back_once() -> None:
    """A broker that dies with sends under way: each is called back once, with success after a retry on the
    other broker; with nobody left, with the error after three tries."""

    async def scenario(cluster: Cluster) -> None:
        dying = await cluster.add("broker-a", T, behave=say_nothing)
        taking = await cluster.add("broker-b", T)
        calls: list[asyncio.Future[SendResult]] = []
        async with Producer(cluster.namesrv, timeout_s=20.0) as producer:
            await producer.queues("T")
            sends = [producer.send_soon(Message("T", b"%d" % n), on_done=calls.append) for n in range(40)]
            await dying.until(lambda: len(dying.sends) == 20)
            assert not [send for send in sends if send.done() and send in calls[20:]]
            await dying.server.close()
            results = await asyncio.gather(*sends)
            await asyncio.sleep(0)
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert len(calls) == len(set(calls)) == 40
            assert len({result.message_id for result in results}) == 40
            assert {send.body for send in taking.sends} == {b"%d" % n for n in range(40)}

            await taking.server.close()
            with pytest.raises(Unreachable) as caught:
                await producer.send_soon(Message("T", b"x"), on_done=calls.append)
            assert "failed 3 times" in caught.value.__notes__[0]
            await asyncio.sleep(0)
            assert len(calls) == 41

    run(scenario)


def test_refusal_ends_a_send_soon() -> None:
    """As in Java, a later send takes a broker's refusal as final; the waiting one tries another broker."""

    async def scenario(cluster: Cluster) -> None:
        brokers = [await cluster.add(name, T, behave=SYSTEM_BUSY) for name in ("broker-a", "broker-b")]
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(SystemBusy):
                await producer.send_soon(Message("T", b"x"))
            assert sum(len(broker.sends) for broker in brokers) == 1

    run(scenario)


def test_close_waits_a_little_for_sends_under_way() -> None:
    """What was begun before the end is answered, if it takes no longer than a second."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T, delay_s=0.1)
        async with Producer(cluster.namesrv) as producer:
            sends = [producer.send_soon(Message("T", b"x")) for _ in range(10)]
        assert [(await send).status for send in sends] == [SendStatus.SEND_OK] * 10

    run(scenario)


@pytest.mark.promise(82)
def test_oneway_has_no_answer_no_callback_and_no_retry() -> None:
    """To a broker that never answers it returns at once; to one that is gone it fails once, at once, without
    a try at the other; the flag says that no answer is wanted."""

    async def scenario(cluster: Cluster) -> None:
        silent = await cluster.add("broker-a", T, behave=say_nothing, delay_s=30.0)
        other = await cluster.add("broker-b", T)
        queue = MessageQueue("T", "broker-a", 0)
        async with Producer(cluster.namesrv, timeout_s=30.0) as producer:
            await producer.queues("T")
            async with asyncio.timeout(5.0):
                for _ in range(50):
                    await producer.send_oneway(Message("T", b"x"), queue=queue)
                await silent.until(lambda: len(silent.sends) == 50)
                assert set(silent.flags) == {2}
                await silent.server.close()
                await producer._instance.connections.get(other.address, 3.0)
                gone = producer._instance.connections._peers[silent.address]
                await gone.wait_closed()
                with pytest.raises(Unreachable):
                    await producer.send_oneway(Message("T", b"x"), queue=queue)
            assert not other.sends

    run(scenario)


# --- which queue ---------------------------------------------------------------------------------------


@pytest.mark.promise(85)
def test_selector_chooses_by_its_argument() -> None:
    """One key, one queue, in every way to send; many keys use them all; and none is tried twice."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        await cluster.add("broker-b", T)
        async with Producer(cluster.namesrv) as producer:
            used = set()
            for key in range(40):
                queues = {
                    (await producer.send(Message("T", b"x"), selector=by_key_hash, arg=f"order-{key}")).queue
                    for _ in range(3)
                }
                later = await producer.send_soon(Message("T", b"x"), selector=by_key_hash, arg=f"order-{key}")
                assert {later.queue} == queues
                used |= queues
            assert len(used) == 8
            with pytest.raises(LocalProtocolError, match="selector"):
                await producer.send(Message("T", b"x"), selector=lambda *_: MessageQueue("T", "b", 9))
            for one in cluster.brokers:
                one.behave = SYSTEM_BUSY
            before = sum(len(one.sends) for one in cluster.brokers)
            with pytest.raises(SystemBusy):
                await producer.send(Message("T", b"x"), selector=by_key_hash, arg="order-1")
            assert sum(len(one.sends) for one in cluster.brokers) == before + 1
        assert broker.sends

    run(scenario)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 0),
        ("order-17", 1234255109),
        ("polygenelubricants", -(2**31)),
        (7, 7),
        (-7, -7),
        (2**31, -(2**31)),
        (-(2**31) - 1, -(2**31)),
        (True, 1231),
        (False, 1237),
    ],
)
def test_hashes_are_javas(value: object, expected: int) -> None:
    """Text, Integer, Long and Boolean hash as in Java, so both clients choose one queue for one key."""
    assert java_hash_code(value) == expected
    queues = tuple(MessageQueue("T", "b", number) for number in range(7))
    assert by_key_hash(queues, Message("T", b"x"), value).queue_id == abs(expected) % 7


def test_what_has_no_java_hash_is_refused() -> None:
    """Better no queue than another one than Java's."""
    for value in (None, 1.5, b"x", ("a",), 2**63):
        with pytest.raises(LocalProtocolError):
            java_hash_code(value)


@pytest.mark.promise(90)
def test_missing_master_is_asked_for_once() -> None:
    """Master gone, slave alive: the name server is asked once more, then the broker does not exist."""

    async def scenario(cluster: Cluster) -> None:
        master = await cluster.add("broker-a", T)
        slave = ScriptedBroker("broker-a", accept)
        await slave.start(cluster.namesrv, [T, TopicConfig("U"), TopicConfig("V")], broker_id=1)
        cluster.brokers.append(slave)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await master.registration.ask(
                UnregisterBroker(
                    broker_name="broker-a", broker_addr=master.address, cluster_name="C", broker_id=0
                ),
                3.0,
            )
            routes = producer._instance.routes
            asked = 0
            fetch = routes._fetch

            async def count(topic: str, timeout_s: float) -> object:
                nonlocal asked
                asked += 1
                return await fetch(topic, timeout_s)

            await routes.refresh("T", 3.0)
            routes._fetch = count  # type: ignore[method-assign,assignment]
            for queue in (MessageQueue("T", "broker-a", 0), None):
                asked = 0
                with pytest.raises(NoRoute, match="does not exist") as caught:
                    await producer.send(Message("T", b"x"), queue=queue)
                assert asked == 1
                assert not caught.value.outcome_unknown
        assert not slave.sends
        assert len(master.sends) == 1

    run(scenario)


# --- slow brokers --------------------------------------------------------------------------------------


@pytest.mark.promise(86)
def test_slow_broker_is_left_alone_for_a_while() -> None:
    """An answer after 600 ms: that broker is not chosen for 2 s, and then it is again. By default it is."""

    async def scenario(cluster: Cluster) -> None:
        slow = await cluster.add("broker-a", T, delay_s=0.6)
        await cluster.add("broker-b", T)
        for avoid in (False, True):
            slow.delay_s = 0.6
            async with Producer(cluster.namesrv, avoid_slow_brokers=avoid, timeout_s=20.0) as producer:
                faults = producer._sender._faults
                now = asyncio.get_running_loop().time()
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 0))
                slow.delay_s = 0.0
                used = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(16)}
                assert used == ({"broker-b"} if avoid else {"broker-a", "broker-b"})
                faults._clock = lambda now=now: now + 30.0
                used = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(16)}
                assert used == {"broker-a", "broker-b"}

    run(scenario)


def test_each_class_of_latency_has_its_time() -> None:
    """The table of 5.x, a failure as 10 s; a shorter time never ends a longer one."""
    now = 100.0

    def clock() -> float:
        return now

    for latency_s, away_s in (
        (0.05, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (15.0, 30)
    ):  # fmt: skip
        faults = Faults(enabled=True, clock=clock)
        faults.answered("b", latency_s)
        assert faults.is_available("b") == (away_s == 0)
        now += away_s
        assert faults.is_available("b")
    faults = Faults(enabled=True, clock=clock)
    faults.failed("b", reachable=False)
    faults.answered("b", 0.6)
    now += 9.9
    assert not faults.is_available("b")
    assert faults.is_reachable("b")
    now += 0.1
    assert faults.is_available("b")


def test_with_all_brokers_slow_someone_is_asked_still() -> None:
    """When nobody is available, one who answered at all is taken; when nobody did, whoever's turn it is."""

    async def scenario(cluster: Cluster) -> None:
        for name in ("broker-a", "broker-b"):
            await cluster.add(name, T)
        async with Producer(cluster.namesrv, avoid_slow_brokers=True) as producer:
            faults = producer._sender._faults
            faults.failed("broker-a", reachable=False)
            faults.failed("broker-b", reachable=True)
            for _ in range(8):
                queue = producer._rotation.next(await producer._sender.route("T", 1e9), avoid=None)
                assert queue.broker_name == "broker-b"
            faults.failed("broker-b", reachable=False)
            route = await producer._sender.route("T", 1e9)
            used = {producer._rotation.next(route, avoid=None).broker_name for _ in range(8)}
            assert used == {"broker-a", "broker-b"}

    run(scenario)


# --- hooks ---------------------------------------------------------------------------------------------


class Noting(SendHook):
    def __init__(self, name: str, notes: list[tuple[str, str, SendContext]]) -> None:
        self.name, self.notes = name, notes

    def before(self, context: SendContext) -> None:
        self.notes.append((self.name, "before", replace(context)))

    def after(self, context: SendContext) -> None:
        self.notes.append((self.name, "after", replace(context)))


class Failing(SendHook):
    def before(self, context: SendContext) -> None:
        raise RuntimeError("not my day")

    after = before


@pytest.mark.promise(89)
def test_hooks_run_in_order_with_the_result(caplog: pytest.LogCaptureFixture) -> None:
    """Two hooks: both run before and after, in the order given, and see result or error. One that raises is
    logged, and neither the send nor the other hooks notice."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        notes: list[tuple[str, str, SendContext]] = []
        hooks = [Noting("1", notes), Failing(), Noting("2", notes)]
        async with Producer(cluster.namesrv, group="PG", hooks=hooks) as producer:
            message = Message("T", b"x")
            result = await producer.send(message)
            assert [note[:2] for note in notes] == [
                ("1", "before"), ("2", "before"), ("1", "after"), ("2", "after")
            ]  # fmt: skip
            before, after = notes[0][2], notes[-1][2]
            assert (before.result, before.error, after.error) == (None, None, None)
            assert after.result == result
            assert (before.group, before.messages, before.message_id, before.mode, before.broker_address) == (
                "PG", (message,), result.message_id, "sync", broker.address
            )  # fmt: skip
            assert before.queue == result.queue

            notes.clear()
            assert (await producer.send_soon(message)) == notes[-1][2].result
            await producer.send_oneway(message)
            assert [note[2].mode for note in notes] == ["async"] * 4 + ["oneway"] * 4
            notes.clear()
            broker.behave = refuse(ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(Exception, match="not today") as caught:
                await producer.send(message)
            assert notes[-1][2].error is caught.value

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "not my day" in caplog.text


# --- limits --------------------------------------------------------------------------------------------


def test_sends_under_way_are_counted() -> None:
    """One more than allowed is refused at once with an error of its own; those under way are not harmed."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, delay_s=0.2)
        async with Producer(cluster.namesrv, in_flight_max=5) as producer:
            sends = [producer.send_soon(Message("T", b"x")) for _ in range(5)]
            with pytest.raises(TooManyInFlight, match="at most 5") as caught:
                producer.send_soon(Message("T", b"x"))
            assert not caught.value.retriable
            with pytest.raises(TooManyInFlight):
                await producer.send(Message("T", b"x"))
            await asyncio.gather(*sends)
            await producer.send(Message("T", b"x"))
            broker.behave = SYSTEM_BUSY
            for _ in range(6):  # a failed one gives its place back as well
                with pytest.raises(SystemBusy):
                    await producer.send_soon(Message("T", b"x"))
        assert Producer(cluster.namesrv)._permits.count_max == 65_535

    run(scenario)


class LoopOfItsOwnTime(asyncio.SelectorEventLoop):
    """Time passes only where the loop would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def pass_time(timeout: float | None = None) -> object:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = pass_time  # type: ignore[method-assign,assignment]

    def time(self) -> float:
        return self.now


@pytest.mark.promise(203)
def test_rate_is_obeyed_and_the_callback_called() -> None:
    """2000 a second: 2000 sends take a second, within 5 %, evenly; whoever must wait is told of before."""
    waits: list[float] = []
    limit = RateLimit(2000, lambda _, wait_s: waits.append(wait_s))
    began: list[float] = []

    async def send() -> None:
        await limit.wait(Message("T", b"x"), deadline=1e9)
        began.append(asyncio.get_running_loop().time())

    async def scenario() -> None:
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(send() for _ in range(2000)))
        assert 0.95 <= began[-1] - started <= 1.05
        for index, time_s in enumerate(began):
            assert abs(time_s - started - index / 2000) <= 0.05
        for _ in range(10):  # one after the other, as they come, none has to wait
            count = len(waits)
            await asyncio.sleep(0.001)
            await send()
            assert len(waits) == count

    with asyncio.Runner(loop_factory=LoopOfItsOwnTime) as runner:
        runner.run(scenario())
    assert len(waits) > 1900
    assert max(waits) < 1.05


@pytest.mark.promise(203)
def test_producer_keeps_to_its_rate() -> None:
    """All ways to send count, and each message of a batch: within 5 % of the rate, neither more nor less; all
    that wait are told of."""

    async def scenario(cluster: testing.Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        loop = asyncio.get_running_loop()
        waits: list[float] = []
        began: list[float] = []

        class Begins:
            def before(self, context: SendContext) -> None:
                began.extend([loop.time()] * len(context.messages))

            def after(self, context: SendContext) -> None: ...

        producer = Producer(
            cluster.namesrv, max_rate=2, on_limit=lambda _, wait_s: waits.append(wait_s), timeout_s=600.0,
            hooks=[Begins()],
        )  # fmt: skip
        async with producer:
            started = loop.time()
            sends: list[Awaitable[object]] = []
            for _ in range(10):
                sends.append(producer.send(Message("T", b"x")))
                sends.append(producer.send_soon(Message("T", b"x")))
                sends.append(producer.send_oneway(Message("T", b"x")))
                sends.append(producer.send_batch([Message("T", b"x")] * 17))
            everything = asyncio.ensure_future(asyncio.gather(*sends))
            while not everything.done():
                await turn(cluster, 1.0)
            await everything
        assert len(began) == 200
        assert 95 - 17 / 2 <= began[-1] - started <= 105, "the last was a batch, or not"
        for index, time_s in enumerate(began):
            assert abs(time_s - started - index / 2) <= 5 + 17 / 2, "a batch goes at the turn of its first"
        assert len(waits) == 39

    run_real(scenario)


@pytest.mark.promise(203)
def test_callback_may_drop_or_refuse() -> None:
    """False drops the message with an error that says so; an exception of the callback reaches the sender;
    whose turn comes after its deadline is told at once."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)

        class Enough(Exception):
            pass

        def refuse_it(message: Message, wait_s: float) -> None:
            raise Enough

        for on_limit, error in ((lambda *_: False, RateLimited), (refuse_it, Enough)):
            async with Producer(cluster.namesrv, max_rate=1, on_limit=on_limit) as producer:
                await producer.send(Message("T", b"first"))
                for _ in range(3):
                    with pytest.raises(error):
                        await producer.send(Message("T", b"dropped"))
        async with Producer(cluster.namesrv, max_rate=0.1) as producer:
            await producer.send(Message("T", b"first"))
            with pytest.raises(RateLimited, match="its turn comes in"):
                await producer.send(Message("T", b"dropped"))
        assert {send.body for send in broker.sends} == {b"first"}

    run(scenario)


# --- results that are not all well ---------------------------------------------------------------------


def test_another_broker_may_be_asked_to_do_better() -> None:
    """With `retry_another_broker_when_not_ok` a message stored with reservations is sent to another broker;
    when none does better, the reservation is the result."""

    async def scenario(cluster: Cluster) -> None:
        def late(broker: ScriptedBroker, send: SendMessage) -> Command:
            return replace(accept(broker, send), code=ResponseCode.FLUSH_DISK_TIMEOUT)

        await cluster.add("broker-a", T, behave=late)
        b = await cluster.add("broker-b", T)
        async with Producer(cluster.namesrv, retry_another_broker_when_not_ok=True) as producer:
            for _ in range(4):
                result = await producer.send(Message("T", b"x"))
                assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "broker-b")
            b.behave = late
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.FLUSH_DISK_TIMEOUT

    run(scenario)


def test_error_tells_whether_the_message_may_be_stored() -> None:
    """Refused or never connected: surely not. Unanswered, even if a later attempt was refused: unknown."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=SYSTEM_BUSY)
        async with Producer(cluster.namesrv, timeout_s=0.3) as producer:
            with pytest.raises(SystemBusy) as caught:
                await producer.send(Message("T", b"x"))
            assert (caught.value.outcome_unknown, caught.value.topic) == (False, "T")
            broker.behave = say_nothing
            with pytest.raises(Timeout) as unanswered:
                await producer.send(Message("T", b"x"))
            assert unanswered.value.outcome_unknown
            assert unanswered.value.message_id in (broker.sends[-1].properties or "")

            def hang_up(one: ScriptedBroker, send: SendMessage) -> None:
                for connection in list(one.server.connections):
                    connection.close()
                one.behave = SYSTEM_BUSY

            broker.behave = hang_up
            with pytest.raises(SystemBusy) as refused:
                await producer.send(Message("T", b"x"))
            assert refused.value.outcome_unknown
            await broker.server.close()
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectError) as unconnected:
                await producer.send(Message("T", b"x"))
            assert not unconnected.value.outcome_unknown

    run(scenario)


def test_closed_connections_are_given_up_within_the_bound() -> None:
    """A silent broker that never hangs up does not hold up the end: closing takes less than 3 seconds."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        producer = Producer(cluster.namesrv, timeout_s=0.2)
        await producer.start()
        hush = asyncio.Event()

        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hush.wait()
            writer.close()

        listener = await asyncio.start_server(deaf, "127.0.0.1", 0)
        silent = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        instance: ClientInstance = producer._instance
        peer = await instance.connections.get(silent, 1.0)
        instance.connections.drop(peer)
        started = time.perf_counter()
        await producer.close()
        assert time.perf_counter() - started < 3.0
        assert peer.closed
        assert not peer.heard_out
        hush.set()
        listener.close()
        await listener.wait_closed()

    run(scenario)

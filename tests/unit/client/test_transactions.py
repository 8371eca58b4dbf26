"""A transaction's producer: the message is seen if, and only if, the local transaction succeeded."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hotfire import (
    Message,
    Producer,
    QueueReader,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
    sync,
)
from hotfire.client.connections import Connections
from hotfire.client.transactions import TRANSACTION_ID, Execute, TransactionResult
from hotfire.errors import BrokerRefused, ConfigError, LocalProtocolError, Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.codes import RequestCode
from hotfire.testing import Cluster

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
GROUP = "shop"


class Shop:
    """Local transactions that end as told, and what was asked of them."""

    def __init__(self, *answers: TransactionState | None) -> None:
        self.answers = list(answers)
        self.executed: list[tuple[Message, Any]] = []
        self.checked: list[ReceivedMessage] = []

    def producer(self, cluster: Cluster, name: str, outcome: Any = UNKNOWN) -> TransactionProducer:
        async def execute(message: Message, arg: Any) -> TransactionState:
            self.executed.append((message, arg))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return TransactionProducer(
            cluster.namesrv, group=GROUP, execute=execute, check=self.check, instance_name=name
        )

    async def check(self, message: ReceivedMessage) -> TransactionState | None:
        self.checked.append(message)
        return self.answers.pop(0) if self.answers else UNKNOWN


def run(test: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    async def bounded() -> None:
        async with Cluster(**settings) as cluster:
            await cluster.create_topic("T", queues=1)
            await test(cluster)

    asyncio.run(bounded())


async def delivered(cluster: Cluster) -> list[ReceivedMessage]:
    """All that the topic's consumers get, without waiting for more."""
    await cluster.clock.settle()
    async with QueueReader(cluster.namesrv, group="readers") as reader:
        (queue,) = await reader.queues("T")
        found: list[ReceivedMessage] = []
        while pulled := (await reader.pull(queue, len(found))).messages:
            found.extend(pulled)
        return found


@pytest.mark.promise(135, 138)
def test_both_functions_get_the_message_and_a_commit_delivers_it() -> None:
    """execute gets it with its argument, check as the broker has it; consumers get it as sent."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT)
        sent = Message("T", b"order", tag="pay", keys=("order-17",), properties={"colour": "red"})
        async with shop.producer(cluster, "one", COMMIT) as producer:
            result = await producer.send_in_transaction(sent, "argument")
            assert (result.state, result.error, result.sent.status) == (COMMIT, None, SendStatus.SEND_OK)
            ((message, argument),) = shop.executed
            assert (message.body, message.tag, message.keys, argument) == (
                b"order",
                "pay",
                ("order-17",),
                "argument",
            )
            assert message.properties == {"colour": "red", TRANSACTION_ID: result.sent.message_id}
            (got,) = await delivered(cluster)
            assert (got.body, got.tag, got.keys, got.properties["colour"]) == (
                b"order",
                "pay",
                ("order-17",),
                "red",
            )
            assert got.message_id == result.sent.message_id
        async with shop.producer(cluster, "two", UNKNOWN) as producer:
            result = await producer.send_in_transaction(sent)
            assert result.state is UNKNOWN
            await cluster.clock.turn(7)
            (checked,) = shop.checked
            assert (checked.topic, checked.body, checked.tag, checked.keys) == (
                "T",
                b"order",
                "pay",
                ("order-17",),
            )
            assert checked.message_id == checked.properties[TRANSACTION_ID] == result.sent.message_id
            assert len(await delivered(cluster)) == 2

    run(scenario)


@pytest.mark.promise(139)
def test_a_rollback_delivers_nothing() -> None:
    """Neither at once nor later, and nobody is asked."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT)
        async with shop.producer(cluster, "one", ROLLBACK) as producer:
            assert (await producer.send_in_transaction(Message("T", b"no"))).state is ROLLBACK
            await cluster.clock.turn(100)
            assert shop.checked == []
            assert await delivered(cluster) == []

    run(scenario)


@pytest.mark.promise(140)
def test_unknown_twice_then_committed() -> None:
    """The message is delivered after the question that was answered, and not before."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(UNKNOWN, None, COMMIT)
        async with shop.producer(cluster, "one") as producer:
            await producer.send_in_transaction(Message("T", b"at last"))
            for asked, wait_s in ((1, 7), (2, 31)):
                await cluster.clock.turn(wait_s)
                assert len(shop.checked) == asked
                assert await delivered(cluster) == []
            await cluster.clock.turn(31)
            assert [message.body for message in await delivered(cluster)] == [b"at last"]
            assert shop.checked[2].properties["TRANSACTION_CHECK_TIMES"] == "3"

    run(scenario)


@pytest.mark.promise(142)
def test_another_producer_of_the_group_answers_for_one_that_is_gone() -> None:
    """It dies behind the half; the other, which never sent anything, is asked and commits."""

    async def scenario(cluster: Cluster) -> None:
        dying, living = Shop(), Shop(COMMIT)
        async with living.producer(cluster, "living", ROLLBACK) as other:
            await other.send_in_transaction(Message("T", b"its own"))
            async with dying.producer(cluster, "dying") as producer:
                await producer.send_in_transaction(Message("T", b"orphan"))
            await cluster.clock.turn(8)
            assert [message.body for message in living.checked] == [b"orphan"]
            assert [message.body for message in await delivered(cluster)] == [b"orphan"]
        assert dying.checked == []

    run(scenario)


@pytest.mark.promise(144)
def test_the_loss_of_an_outcome_is_repaired() -> None:
    """Every END_TRANSACTION of the producer's own is lost: commits are delivered, rollbacks are not."""

    async def scenario(cluster: Cluster) -> None:
        (broker,) = cluster.brokers
        assert broker.proxy is not None
        answers = {b"yes": COMMIT, b"no": ROLLBACK}

        async def execute(message: Message, arg: Any) -> TransactionState:
            return answers[message.body]

        async def check(message: ReceivedMessage) -> TransactionState:
            return answers[message.body]

        broker.proxy.drop("requests", RequestCode.END_TRANSACTION, times=4)
        async with TransactionProducer(
            cluster.namesrv, group=GROUP, execute=execute, check=check
        ) as producer:
            for body in (b"yes", b"no", b"yes", b"no"):
                await producer.send_in_transaction(Message("T", body))
            assert await delivered(cluster) == []
            await cluster.clock.turn(8)
            assert [message.body for message in await delivered(cluster)] == [b"yes", b"yes"]

    run(scenario, proxied=True)


@pytest.mark.promise(137)
def test_a_half_that_is_refused_runs_nothing() -> None:
    """The broker takes no transactions: the caller is told, execute is not called."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop()
        async with shop.producer(cluster, "one", COMMIT) as producer:
            with pytest.raises(BrokerRefused, match="transaction message is forbidden"):
                await producer.send_in_transaction(Message("T", b"refused"))
            assert shop.executed == []

    run(scenario, reject_transaction_message=True)


@pytest.mark.parametrize("trouble", ["takes no connection", "answers nothing"])
def test_one_broker_in_trouble_leaves_the_transactions_of_others_alone(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the sound broker commits in time; what goes to the other was surely not sent."""

    async def scenario(cluster: Cluster) -> None:
        proxy = cluster.brokers[1].proxy
        assert proxy is not None
        dial = Connections._dial

        async def dial_others(connections: Connections, address: str) -> Peer:
            if address == proxy.address:
                await asyncio.Event().wait()
            return await dial(connections, address)

        if trouble == "takes no connection":
            monkeypatch.setattr(Connections, "_dial", dial_others)
        else:
            proxy.hold("requests")
        shop = Shop()
        async with shop.producer(cluster, "one", COMMIT) as producer:
            sends = [producer.send_in_transaction(Message("T", b"x"), timeout_s=2) for _ in range(4)]
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        failures = [one for one in outcomes if isinstance(one, Unreachable)]
        committed = [one for one in outcomes if isinstance(one, TransactionResult)]
        assert len(failures) + len(committed) == 4, outcomes
        # Two each began with either broker. Of those two that nobody answers the first whose time is up hangs
        # up; the other one's is over some microseconds later, in which it may go to the sound broker.
        assert len(failures) in ((1, 2) if trouble == "answers nothing" else (2,)), outcomes
        assert not any(failure.outcome_unknown for failure in failures)
        assert {one.sent.queue.broker_name for one in committed} == {"broker-0"}
        assert len(shop.executed) == len(committed)

    run(scenario, brokers=2, proxied=True)


def test_who_joins_a_client_is_told_of_before_its_half() -> None:
    """The broker knows the client by another's heartbeat, and asks of this group all the same."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT)
        async with Producer(cluster.namesrv, group="others", instance_name="one") as other:
            await other.send(Message("T", b"x"))
            await other._instance.greet_brokers()
            await cluster.clock.turn(2)  # past the first heartbeat of the client; the next is due at 31 s
            async with shop.producer(cluster, "one") as producer:
                await producer.send_in_transaction(Message("T", b"x"))
                await cluster.clock.turn(7)
                assert len(shop.checked) == 1

    run(scenario)


def test_what_execute_raises_is_told_and_asked_about() -> None:
    """The outcome is unknown then: the exception is in the result, and check decides."""

    async def scenario(cluster: Cluster) -> None:
        shop, failure = Shop(COMMIT), ValueError("no stock")
        async with shop.producer(cluster, "one", failure) as producer:
            result = await producer.send_in_transaction(Message("T", b"open"))
            assert (result.state, result.error) == (UNKNOWN, failure)
        async with shop.producer(cluster, "two", "yes") as producer:
            assert isinstance((await producer.send_in_transaction(Message("T", b"wrong"))).error, TypeError)
            await cluster.clock.turn(8)
            assert [message.body for message in await delivered(cluster)] == [b"open"]

    run(scenario)


def test_a_check_that_fails_leaves_it_open() -> None:
    """What check raises is no outcome; it is asked again, and a large message is shown whole."""

    async def scenario(cluster: Cluster) -> None:
        asked: list[bytes] = []

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.body)
            if len(asked) == 1:
                raise RuntimeError("the database is away")
            return COMMIT

        body = b"compressed " * 10_000
        async with TransactionProducer(
            cluster.namesrv, group=GROUP, execute=lambda message, arg: UNKNOWN, check=check
        ) as producer:
            await producer.send_in_transaction(Message("T", body))
            await cluster.clock.turn(8)
            assert await delivered(cluster) == []
            await cluster.clock.turn(31)
            assert [message.body for message in await delivered(cluster)] == [body]
            assert asked == [body, body]

    run(scenario)


@pytest.mark.promise(142)
@pytest.mark.parametrize("makes_topics", [True, False], ids=["template", "cluster"])
def test_a_producer_that_never_sent_answers_for_one_that_crashed(*, makes_topics: bool) -> None:
    """Started anew and idle, it is known to the brokers that make topics, or where none does to all."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT, COMMIT)
        async with shop.producer(cluster, "crashes") as crashes:
            sent = [(await crashes.begin(Message("T", b"open")))[1] for _ in range(2)]
            brokers = sorted(one.queue.broker_name for one in sent)
            assert brokers == ["broker-0", "broker-1"]
        async with shop.producer(cluster, "anew"):
            await cluster.clock.turn(7)
            assert sorted(message.queue.broker_name for message in shop.checked) == brokers

    run(scenario, brokers=2, auto_create_topic_enable=makes_topics)


def test_brokers_that_come_later_know_of_an_idle_producer() -> None:
    """Nobody is there at its start, which goes on all the same; who comes is greeted with the next routes."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT)
        async with shop.producer(cluster, "crashes") as crashes:
            await crashes.begin(Message("T", b"open"))
        await cluster.brokers[0].stop()
        await cluster.name_servers[0].kill()
        async with shop.producer(cluster, "idle"):
            await cluster.clock.turn(5)
            await cluster.name_servers[0].start()
            await cluster.brokers[0].start()
            await cluster.clock.turn(70)
            assert [message.body for message in shop.checked] == [b"open"]

    run(scenario)


@pytest.mark.parametrize("immunity_s", [-1, float("nan"), float("inf"), "60"])
def test_no_time_to_come_is_no_immunity(immunity_s: Any) -> None:
    """Java's -1 stands for the broker's own time, as leaving it out does here: refused, nothing is sent."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop()
        async with shop.producer(cluster, "one") as producer:
            with pytest.raises(ConfigError, match="immunity_s="):
                await producer.send_in_transaction(Message("T", b"x"), immunity_s=immunity_s)
            assert shop.executed == []

    run(scenario)


def test_immunity_is_passed_on() -> None:
    """immunity_s holds the first question back."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop(COMMIT)
        async with shop.producer(cluster, "one") as producer:
            await producer.send_in_transaction(Message("T", b"slow"), immunity_s=60)
            await cluster.clock.turn(59)
            assert shop.checked == []
            await cluster.clock.turn(35)
            assert len(shop.checked) == 1

    run(scenario)


def test_mistakes_are_told_before_anything_is_sent() -> None:
    """No functions, a delay, a reserved property: refused by name, nothing stored."""

    async def scenario(cluster: Cluster) -> None:
        shop = Shop()
        async with shop.producer(cluster, "one", COMMIT) as producer:
            with pytest.raises(LocalProtocolError, match="delay_level=3"):
                await producer.send_in_transaction(Message("T", b"x", delay_level=3))
            with pytest.raises(LocalProtocolError, match="PGROUP"):
                await producer.send_in_transaction(Message("T", b"x", properties={"PGROUP": "other"}))
            assert shop.executed == []
            await producer.send(Message("T", b"plain"))
            assert [message.body for message in await delivered(cluster)] == [b"plain"]

    run(scenario)
    with pytest.raises(ConfigError, match="execute"):
        TransactionProducer("127.0.0.1:9876", group=GROUP, execute=3, check=print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="check is None"):
        TransactionProducer("127.0.0.1:9876", group=GROUP, execute=print, check=None)  # type: ignore[arg-type]


def test_without_a_loop_execute_runs_where_it_is_called() -> None:
    """The same of hotfire.sync: in the caller's own thread, so that its database connection may be used."""
    ran_in: list[threading.Thread] = []

    def execute(message: Message, outcome: TransactionState) -> TransactionState:
        ran_in.append(threading.current_thread())
        return outcome

    with Cluster(transaction_time_out=50, transaction_check_interval=50) as cluster:
        cluster.create_topic("T", queues=1)
        asked = threading.Event()

        def check(message: ReceivedMessage) -> TransactionState:
            asked.set()
            return COMMIT

        with sync.TransactionProducer(cluster.namesrv, group=GROUP, execute=execute, check=check) as producer:
            states = [
                producer.send_in_transaction(Message("T", state.name.encode()), state).state
                for state in TransactionState
            ]
            assert states == list(TransactionState)
            assert asked.wait(10)
            assert set(ran_in) == {threading.current_thread()}
            got: list[bytes] = []
            with sync.QueueReader(cluster.namesrv, group="readers") as reader:
                (queue,) = reader.queues("T")
                while len(got) < 2:
                    got += [message.body for message in reader.pull(queue, len(got), wait_s=5).messages]
        assert sorted(got) == [b"COMMIT", b"UNKNOWN"]

    async def coroutine(message: Message, arg: Any) -> TransactionState:
        return COMMIT

    wrong: Execute = coroutine
    with pytest.raises(ConfigError, match="coroutine"):
        sync.TransactionProducer("127.0.0.1:9876", group=GROUP, execute=wrong, check=check)  # type: ignore[arg-type]

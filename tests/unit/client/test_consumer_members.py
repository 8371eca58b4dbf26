"""Members of a group come, go, die and lose their brokers: queues are shared anew, and nothing is lost."""

import asyncio
from collections import Counter

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.allocation import by_config
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom, Pace
from hotfire.model import ReceivedMessage
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.requests import GetConsumerRunningInfo, PullMessage, UpdateAndCreateTopic
from hotfire.protocol.running import ConsumerRunningInfo
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, ask, numbered, run, send, settles, turn
from tests.unit.client.test_consumer_offsets import own_queues
from tests.unit.client.test_consumer_orderly import die


def member(cluster: Cluster, listener: object, group: str = "g", **settings: object) -> Consumer:
    consumer = Consumer(cluster.namesrv, group=group, consume_from=ConsumeFrom.FIRST, **settings)  # type: ignore[arg-type]
    consumer.subscribe("T", listener)  # type: ignore[arg-type]
    return consumer


def ids(consumer: Consumer) -> list[int]:
    return sorted(queue.queue_id for queue in own_queues(consumer))


def shared(members: list[Consumer]) -> list[int]:
    """Every queue some member has, as often as it has an owner."""
    return sorted(queue_id for one in members for queue_id in ids(one))


@pytest.mark.promise(110, 115, 116)
def test_queues_move_within_a_second_when_members_come_and_go() -> None:
    """5 queues: 5, then 3 and 2; six members leave one idle, who takes over when another dies."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=5)
        members = [member(cluster, Seen()) for _ in range(6)]
        await members[0].start()
        await settles(cluster, lambda: len(ids(members[0])) == 5, within_s=1)
        await turn(cluster, 2)
        await members[1].start()
        await settles(cluster, lambda: sorted(len(ids(one)) for one in members[:2]) == [2, 3], within_s=1)
        for one in members[2:]:
            await one.start()
        await settles(cluster, lambda: shared(members) == list(range(5)), within_s=3)
        assert sorted(len(ids(one)) for one in members) == [0, 1, 1, 1, 1, 1]
        owner = next(one for one in members if ids(one))
        members.remove(owner)
        await die(owner)
        await settles(cluster, lambda: [len(ids(one)) for one in members] == [1] * 5, within_s=3)
        for one in members:
            await one.close()

    run(scenario)


@pytest.mark.promise(110)
def test_without_notifications_members_are_noticed_within_20_s() -> None:
    """The broker tells nobody: the first member finds out at its next look, 20 s later at most."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        async with member(cluster, Seen()) as first:
            first._running.instance.rebalance_soon = lambda: None  # type: ignore[method-assign]
            async with member(cluster, Seen()) as second:
                await settles(cluster, lambda: shared([first, second]) == list(range(4)), within_s=21)

    run(scenario)


@pytest.mark.promise(111, 112, 113)
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("AVG", [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]),
        ("AVG_BY_CIRCLE", [[0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13], [2, 5, 8, 11, 14]]),
    ],
)
def test_every_member_computes_the_same_shares(strategy: str, expected: list[list[int]]) -> None:
    """16 queues, 3 members: the lists are exact, disjoint and complete, as each tells the broker."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=16)
        members = [
            member(cluster, Seen(), allocation=strategy, instance_name=f"member-{number}")
            for number in range(3)
        ]
        for one in members:
            await one.start()
        await settles(cluster, lambda: [ids(one) for one in members] == expected, within_s=5)
        tables = []
        for one in members:
            client_id = one._running.instance.client_id
            body = await ask(cluster, GetConsumerRunningInfo(consumer_group="g", client_id=client_id))
            info = decode_body(ConsumerRunningInfo, body)
            tables.append(sorted(queue.queue_id for queue in info.queues if queue.topic == "T"))
        assert tables == expected
        for one in members:
            await one.close()

    run(scenario)


def test_a_strategy_may_name_the_queues() -> None:
    """CONFIG: just these queues, whoever else is there."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        chosen = MessageQueue("T", "broker-0", 2)
        async with member(cluster, Seen(), allocation=by_config([chosen])) as consumer:
            assert own_queues(consumer) == [chosen]

    run(scenario)


@pytest.mark.promise(117)
def test_kept_queues_are_not_touched_and_lost_ones_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a rebalance a kept queue has the same process queue and pull; a lost one is not pulled again."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        async with member(cluster, Seen(), instance_name="a") as first:
            await turn(cluster, 3)
            table = first._running.table
            before, pulls = dict(table.queues), dict(table._pulls)
            wire = Wire(monkeypatch)
            async with member(cluster, Seen(), instance_name="b"):
                await settles(cluster, lambda: ids(first) == [0, 1], within_s=3)
                for queue in own_queues(first):
                    assert table.queues[queue] is before[queue]
                    assert table._pulls[queue] is pulls[queue]
                    assert not pulls[queue].done()
                lost = [queue for queue in before if queue not in table.queues and queue.topic == "T"]
                assert [before[queue].dropped for queue in lost] == [True, True]
                owner_pulls = [pull for pull in wire.of(PullMessage) if pull.topic == "T"]
                assert {pull.queue_id for pull in owner_pulls} <= {2, 3}, "the first did not pull again"

    run(scenario)


@pytest.mark.promise(118)
@pytest.mark.timeout(120)
def test_a_storm_of_joins_and_leaves_never_gives_a_queue_to_two_at_once() -> None:
    """In order, under load: whoever handles a message of a queue is alone with it; all are handled."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        owners: dict[int, str] = {}
        clashes: list[tuple[int, str, str]] = []
        done: Counter[bytes] = Counter()

        def listener(name: str) -> object:
            async def handle(message: ReceivedMessage) -> None:
                queue_id = message.queue.queue_id
                if queue_id in owners:
                    clashes.append((queue_id, owners[queue_id], name))
                owners[queue_id] = name
                await asyncio.sleep(0.001)
                del owners[queue_id]
                done[message.body] += 1

            return handle

        rng_members: list[Consumer] = []
        async with Producer(cluster.namesrv) as producer:
            for number in range(200):
                await producer.send(Message("T", b"%d" % number))
                if number % 10 == 0:
                    rng_members.append(member(cluster, listener(f"m{number}"), orderly=True))
                    await rng_members[-1].start()
                if number % 10 == 5 and len(rng_members) > 2:
                    await rng_members.pop(0).close()
                if number % 20 == 0:
                    await turn(cluster, 1)
        for _ in range(30):
            await turn(cluster, 5)
            if len(done) == 200:
                break
        for one in rng_members:
            await one.close()
        assert clashes == []
        assert sorted(map(int, done)) == list(range(200))

    run(scenario)


@pytest.mark.promise(119)
def test_queues_that_appear_are_taken_up_and_those_that_vanish_are_given_up() -> None:
    """More queues, fewer, another broker, a broker that dies: each within 30 s + 20 s, nothing lost."""

    async def scenario(cluster: Cluster) -> None:
        seen = Seen()
        await resize(cluster, 0, 2)
        async with member(cluster, seen) as consumer:
            await settles(cluster, lambda: len(ids(consumer)) == 2, within_s=2)
            await send(cluster, "T", numbered(20))
            await resize(cluster, 0, 4)
            await settles(cluster, lambda: ids(consumer) == [0, 1, 2, 3], within_s=50)
            await send(cluster, "T", numbered(20, first=20))
            await seen.count(40)  # what lies in a queue that is taken away is out of reach
            await resize(cluster, 0, 3)
            await settles(cluster, lambda: ids(consumer) == [0, 1, 2], within_s=50)
            await resize(cluster, 1, 2)
            await settles(cluster, lambda: len(ids(consumer)) == 5, within_s=50)
            await send(cluster, "T", numbered(20, first=40))
            await seen.count(60)
            await cluster.brokers[1].kill()
            await settles(cluster, lambda: ids(consumer) == [0, 1, 2], within_s=50)
        assert sorted(int(body) for body in seen.bodies) == list(range(60))

    run(scenario, brokers=2)


async def resize(cluster: Cluster, broker: int, queues: int) -> None:
    request = UpdateAndCreateTopic(
        topic="T", default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    await ask(cluster, request, broker)


@pytest.mark.promise(121)
def test_a_graceful_move_pauses_briefly_and_repeats_no_more_than_was_running() -> None:
    """A member leaves under load: others go on within seconds; repeats are at most what was being handled."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        handled: Counter[bytes] = Counter()
        running: dict[str, int] = Counter()

        def listener(name: str) -> object:
            async def handle(message: ReceivedMessage) -> None:
                running[name] += 1
                await asyncio.sleep(0.002)
                running[name] -= 1
                handled[message.body] += 1

            return handle

        async with member(cluster, listener("stays")) as stays:
            leaves = member(cluster, listener("leaves"))
            await leaves.start()
            await settles(cluster, lambda: (len(ids(stays)), len(ids(leaves))) == (2, 2), within_s=3)
            async with Producer(cluster.namesrv) as producer:
                for number in range(300):
                    await producer.send(Message("T", b"%d" % number))
                    if number == 150:
                        in_flight = leaves._running.handling.running_count
                        await leaves.close()
            await settles(cluster, lambda: len(handled) == 300, within_s=5)
            assert len(ids(stays)) == 4
            assert sum(handled.values()) - 300 <= in_flight

    run(scenario)


@pytest.mark.timeout(120)
def test_brokers_and_name_servers_may_die_and_come_back() -> None:
    """The consumer needs no help: it goes on with what is there, and with what comes back."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        seen = Seen()
        broker, names = cluster.brokers[0], cluster.name_servers[0]
        async with member(cluster, seen) as consumer:
            await turn(cluster, 2)
            await names.kill()
            await turn(cluster, 120)
            async with Producer(cluster.namesrv) as producer:
                await names.start()
                await turn(cluster, 35)
                await producer.send(Message("T", b"names were away"))
            await seen.count(1)
            for number in range(2):
                await broker.kill()
                await turn(cluster, 40)
                await broker.start()
                await turn(cluster, 5)
                await send(cluster, "T", [b"again %d" % number])
                await turn(cluster, 5)
                await seen.count(number + 2)
            assert len(ids(consumer)) == 2

    run(scenario)


def test_a_consumer_may_be_there_before_everything_else() -> None:
    """Started with no broker, and then without the topic: it consumes as soon as both are there."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers[0].stop()
        seen = Seen()
        async with member(cluster, seen):
            await turn(cluster, 5)
            await cluster.brokers[0].start()
            await turn(cluster, 25)
            await cluster.create_topic("T", queues=2)
            await turn(cluster, 25)
            await send(cluster, "T", [b"x"])
            await turn(cluster, 3)
            await seen.count(1)

    run(scenario)


@pytest.mark.promise(109)
def test_a_slow_member_bounds_its_memory_and_its_queues_can_move() -> None:
    """One member never finishes, the other is quick: the slow one holds no more than its limit, and when it
    leaves the quick one has the rest, and nothing is lost."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        forever, quick = asyncio.Event(), Seen()

        async def hang(message: ReceivedMessage) -> None:
            await forever.wait()

        slow = member(cluster, hang, queue_count_max=100, pace=Pace(close_listeners_s=0.1))
        await slow.start()
        async with member(cluster, quick) as fast:
            await settles(cluster, lambda: (len(ids(slow)), len(ids(fast))) == (1, 1), within_s=3)
            await send(cluster, "T", numbered(600))
            await settles(cluster, lambda: len(quick.messages) >= 300, within_s=5)
            (one,) = [one for one in slow._running.table.held() if one.queue.topic == "T"]
            await settles(cluster, lambda: len(one) > 100, within_s=5)
            await turn(cluster, 10)
            assert 100 < len(one) <= 132
            await slow.close()
            await settles(cluster, lambda: len(quick.messages) >= 600, within_s=5)
            assert sorted(int(body) for body in quick.bodies) == list(range(600))

    run(scenario)


@pytest.mark.promise(204)
def test_more_members_handle_more_at_a_time() -> None:
    """Listeners that take 10 s each, one at a time per member: four members do four times what one does."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=8)
        await send(cluster, "T", numbered(160))
        handled: Counter[str] = Counter()

        def listener(group: str) -> object:
            async def handle(message: ReceivedMessage) -> None:
                await asyncio.sleep(10)
                handled[group] += 1

            return handle

        for count in (1, 4):
            group = f"g{count}"
            members = [member(cluster, listener(group), group=group, concurrency=1) for _ in range(count)]
            for one in members:
                await one.start()
            await turn(cluster, 3)
            handled.clear()
            await turn(cluster, 200)
            for one in members:
                await one.close()
            assert 19 * count <= handled[group] <= 21 * count

    run(scenario)

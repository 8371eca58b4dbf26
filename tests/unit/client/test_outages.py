"""Clients that run while name servers are away, and sends whose answers are lost on the way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from hotfire import ConsumeFrom, Message, NotStored, Producer, PullConsumer, ReceivedMessage, Stored
from hotfire.client.consumer import Consumer
from hotfire.client.reader import TopicReader
from hotfire.errors import HotfireError
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.requests import UpdateAndCreateTopic
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, ask, run, settles, until

AWAY_S, STEP_S = 600, 10
REFRESHED_S_MAX = 30


class Polling:
    """A polled consumer and what it got."""

    def __init__(self, consumer: PullConsumer) -> None:
        self.bodies: list[bytes] = []
        self._task = asyncio.create_task(self._poll(consumer))

    async def _poll(self, consumer: PullConsumer) -> None:
        async for message in consumer:
            self.bodies.append(message.body)

    def check(self) -> None:
        """It goes on."""
        if self._task.done():
            self._task.result()


@pytest.mark.promise(18)
@pytest.mark.timeout(180)
def test_ten_minutes_without_name_servers_are_not_noticed() -> None:
    """All name servers down for ten minutes: no send fails, every queue is consumed, by called and by polled
    consumers. Back again, they know every broker within 30 s, and clients what is new within 30 more."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        called, sent = Seen(), 0
        push = Consumer(cluster.namesrv, group="called")
        push.subscribe("T", called)
        pull = PullConsumer(cluster.namesrv, group="polled", consume_from=ConsumeFrom.FIRST)
        pull.subscribe("T")
        async with push, pull, Producer(cluster.namesrv) as producer:
            await push.ready()
            await until(lambda: len(pull.assignment()) == 4)
            await producer.queues("T")
            polling, queues = Polling(pull), Counter[object]()
            for server in cluster.name_servers:
                await server.kill()
            for _ in range(AWAY_S // STEP_S):
                for _ in range(4):
                    result = await producer.send(Message("T", b"%d" % sent))
                    queues[result.queue] += 1
                    sent += 1

                def is_consumed(count: int = sent) -> bool:
                    polling.check()
                    return len(called.messages) >= count <= len(polling.bodies)

                await settles(cluster, is_consumed, within_s=STEP_S)
                await cluster.clock.turn(STEP_S)
            assert len(queues) == 4, "each queue was sent to, and consumed"
            assert sorted(map(int, called.bodies)) == sorted(map(int, polling.bodies)) == list(range(sent))
            await return_of_the_name_servers(cluster, producer, push, pull)

    run(scenario, brokers=2, name_servers=2)


async def return_of_the_name_servers(
    cluster: Cluster, producer: Producer, push: Consumer, pull: PullConsumer
) -> None:
    request = UpdateAndCreateTopic(
        topic="T", default_topic="TBW102", read_queue_nums=3, write_queue_nums=3, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    await ask(cluster, request)
    for server in cluster.name_servers:
        await server.start()

    def known() -> list[int]:
        programs = [server.program for server in cluster.name_servers]
        return [len(one.name_server.state.routes.cluster_info().brokers) for one in programs if one]

    await settles(cluster, lambda: known() == [2, 2], within_s=REFRESHED_S_MAX)

    def routes() -> list[int]:
        known = [one.routes.known() for one in (producer._instance, push._running.instance, pull._instance)]
        return [len(route.read_queues) for each in known for route in each if route.topic == "T"]

    await settles(cluster, lambda: routes() == [5, 5, 5], within_s=REFRESHED_S_MAX)


# --- answers that do not come ------------------------------------------------------------------------

LOST = 200
SEND_CODES = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
FAULTS = "drop reply", "drop request", "cut within reply", "cut within request", "cut"


@pytest.mark.promise(197)
@pytest.mark.timeout(180)
def test_lost_answers_are_found_out_about_every_time() -> None:
    """The line fails before, while or after the broker stores the message, 200 times: `confirm` says where
    it is if it is there, that it is not if it is not, and is right each time."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        rng, said, known = random.Random(197), {}, set()
        async with Producer(cluster.namesrv, timeout_s=1.0, retries=0) as producer:
            await producer.send(Message("T", b"first"))
            number = 0
            while len(said) < LOST:
                number += 1
                body = b"%d" % number
                error = await send_badly(cluster, producer, body, rng)
                if error is None:
                    known.add(body)  # the fault came too late
                    continue
                asked = asyncio.create_task(producer.confirm(error))
                await turn_until_done(cluster, asked)
                said[body] = asked.result()
        kinds = Counter(type(answer) for answer in said.values())
        assert kinds[Stored] > LOST / 4 < kinds[NotStored], "the test tests less than it says"
        stored = await contents(cluster)
        for body, answer in said.items():
            found = [message for message in stored if message.body == body]
            if isinstance(answer, Stored):
                places = [(message.queue, message.queue_offset) for message in found]
                assert places == [(answer.queue, answer.queue_offset)], body
            else:
                assert found == [], body
        assert known <= {message.body for message in stored}

    run(scenario, proxied=True)


async def send_badly(
    cluster: Cluster, producer: Producer, body: bytes, rng: random.Random
) -> HotfireError | None:
    """Send while the line fails; what the producer was told, None where the answer came."""
    proxy = cluster.brokers[0].proxy
    assert proxy is not None
    fault = rng.choice(FAULTS)
    way = "replies" if fault.endswith("reply") else "requests"
    if fault.startswith("drop"):
        proxy.drop(way, *SEND_CODES, times=1)
    elif fault.startswith("cut within"):
        proxy.cut_within(way, *SEND_CODES)
    sending = asyncio.create_task(producer.send(Message("T", body)))
    if fault == "cut":
        for _ in range(rng.randrange(2, 16)):  # passes of the loop: anywhere on the way there and back
            await asyncio.sleep(0)
        proxy.cut()
    await turn_until_done(cluster, sending)
    proxy.clear()
    error = sending.exception()
    assert error is None or isinstance(error, HotfireError), error
    return error


async def turn_until_done(cluster: Cluster, task: asyncio.Task[object]) -> None:
    while not task.done():
        await cluster.clock.turn(0.05)
        await asyncio.sleep(0)
        if not task.done():
            await asyncio.wait({task}, timeout=0.002)


async def contents(cluster: Cluster) -> list[ReceivedMessage]:
    async with TopicReader(cluster.namesrv, "T", start="earliest", follow=False) as reader:
        return [message async for message in reader]

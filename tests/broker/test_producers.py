"""Producers and brokers that are killed under them, as processes."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client.confirm import Stored
from hotfire.client.reader import TopicReader
from hotfire.errors import HotfireError
from hotfire.protocol.requests import GetProducerConnectionList, UpdateAndCreateTopic
from tests.broker.programs import broker_config, namesrv_config, running
from tests.peers.hotfire import HotfireProcess

KILLS = 4
SENDERS = 16


@pytest.mark.promise(185)
def test_sends_go_on_when_one_of_two_masters_dies(tmp_path: Path) -> None:
    """Both brokers take sends; one is killed: no send fails, each is done within 3 s, on the other one."""

    async def scenario(namesrv: str, addresses: list[str], kill: Callable[[], object]) -> None:
        async with asyncio.timeout(50), Producer(namesrv) as producer:
            for address in addresses:
                topic = UpdateAndCreateTopic(
                    topic="T", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
                    topic_filter_type="SINGLE_TAG",
                )  # fmt: skip
                await (await producer._instance.connections.get(address, 3.0)).ask(topic, 3.0)
            while len({queue.broker_name for queue in await producer.queues("T")}) < 2:
                await producer._instance.routes.refresh("T", 3.0)
            used = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(16)}
            assert used == {"broker-a", "broker-b"}
            first_half = [producer.send(Message("T", b"x")) for _ in range(100)]
            under_way = asyncio.gather(*first_half)
            await asyncio.sleep(0)
            kill()
            results = [*await under_way, *[await producer.send(Message("T", b"y")) for _ in range(100)]]
            assert {result.queue.broker_name for result in results[100:]} == {"broker-b"}

    with ExitStack() as stack:
        names = stack.enter_context(running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="n.err"))
        brokers = [
            stack.enter_context(
                running(
                    tmp_path,
                    "broker",
                    "-c",
                    broker_config(tmp_path, name=name),
                    "-n",
                    names.namesrv,
                    log=f"{name}.err",
                )
            )
            for name in ("broker-a", "broker-b")
        ]
        asyncio.run(scenario(names.namesrv, [one.broker for one in brokers], brokers[0].process.kill))


@pytest.mark.promise(92)
def test_any_number_of_producers_in_a_group(tmp_path: Path) -> None:
    """Ten producers of one group, each its own client: the broker lists ten; none once they ended."""

    async def connections(producer: Producer, address: str) -> int:
        peer = await producer._instance.connections.get(address, 3.0)
        reply = await peer.invoke(GetProducerConnectionList(producer_group="many"), 3.0)
        return reply.body.count(b'"clientId"') if reply.code == 0 else 0

    async def scenario(server: HotfireProcess) -> None:
        async with asyncio.timeout(50), Producer(server.namesrv, group="looker") as looker:
            producers = [Producer(server.namesrv, group="many") for _ in range(10)]
            for producer in producers:
                await producer.start()
                await producer.send(Message("T", b"x"))
                await producer._instance.greet_brokers()
            assert await connections(looker, server.broker) == 10
            for producer in producers:
                await producer.close()
            assert await connections(looker, server.broker) == 0

    with HotfireProcess(tmp_path, arguments=["--set", "mappedFileSizeCommitLog=4194304"]) as server:
        asyncio.run(scenario(server))


@pytest.mark.promise(196, 197)
def test_nothing_acknowledged_is_lost_and_nothing_denied_is_there(tmp_path: Path) -> None:
    """The broker is killed again and again under producers that check every result and ask after unknown
    ones: what was acknowledged, or found stored, is there; what was found not stored is not."""
    acknowledged: set[str] = set()
    denied: set[str] = set()
    progress = asyncio.Condition()
    attempts = 0

    async def send_on(producer: Producer, stop: asyncio.Event) -> None:
        nonlocal attempts
        while not stop.is_set():
            attempts += 1
            try:
                acknowledged.add((await producer.send(Message("T", b"x"))).message_id)
            except HotfireError as error:
                stored = isinstance(await producer.confirm(error), Stored)
                (acknowledged if stored else denied).add(str(error.message_id))
            async with progress:
                progress.notify_all()

    async def scenario(server: HotfireProcess) -> None:
        async with asyncio.timeout(55), Producer(server.namesrv, retries=0, timeout_s=1.0) as producer:
            await producer.send(Message("T", b"x"))
            stop = asyncio.Event()
            senders = [asyncio.create_task(send_on(producer, stop)) for _ in range(SENDERS)]
            for _ in range(KILLS):
                goal = len(acknowledged) + 300
                async with progress:
                    await progress.wait_for(lambda goal=goal: len(acknowledged) >= goal)
                server.kill9()
                await asyncio.to_thread(server.restart)
            stop.set()
            await asyncio.gather(*senders)
            async with TopicReader(server.namesrv, "T", start="earliest", follow=False) as reader:
                stored = [message.message_id async for message in reader]
        assert acknowledged <= set(stored)
        assert not denied & set(stored)
        assert len(stored) == len(set(stored))  # no retries, so no copies
        assert attempts > KILLS * 300

    with HotfireProcess(tmp_path, arguments=["--set", "mappedFileSizeCommitLog=4194304"]) as server:
        asyncio.run(scenario(server))

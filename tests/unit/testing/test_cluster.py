"""A cluster for tests is a cluster: it stores, outlives its brokers' ends, and leaves nothing behind."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import hotfire.testing
from hotfire import Message, Producer
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError, NotRunning, Unreachable
from hotfire.testing import Cluster


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


async def bodies(namesrv: str, topic: str) -> list[bytes]:
    async with TopicReader(namesrv, topic, start="earliest", follow=False) as reader:
        return sorted([message.body async for message in reader])


def test_the_front_door_is_what_can_be_had() -> None:
    """__all__ is sorted, every name in it resolves, and dir() shows just these."""
    assert sorted(hotfire.testing.__all__) == hotfire.testing.__all__
    assert dir(hotfire.testing) == hotfire.testing.__all__
    for name in hotfire.testing.__all__:
        assert getattr(hotfire.testing, name) is not None
    assert not hasattr(hotfire.testing, "nothing")


def test_messages_go_in_and_come_out() -> None:
    """Two brokers and two name servers in the test's loop; a topic has its queues on both."""

    async def scenario() -> None:
        async with Cluster(brokers=2, name_servers=2) as cluster:
            await cluster.create_topic("orders", queues=3)
            async with Producer(cluster.namesrv) as producer:
                assert len(await producer.queues("orders")) == 6
                for number in range(12):
                    await producer.send(Message("orders", b"%02d" % number))
            assert await bodies(cluster.namesrv, "orders") == [b"%02d" % number for number in range(12)]

    run(scenario)


def test_it_is_there_within_milliseconds() -> None:
    """A broker and a name server that serve: the best of five starts takes less than a fifth of a second, ten
    times what it takes on a machine that has nothing else to do."""

    async def start_s() -> float:
        began_s = time.perf_counter()
        async with Cluster():
            return time.perf_counter() - began_s

    assert min(asyncio.run(start_s()) for _ in range(5)) < 0.2


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_broker_comes_back_with_what_it_had(how: str, sync_flush: bool) -> None:
    """Stopped or killed, a broker is not there; started again, it has its address and its messages."""

    async def scenario() -> None:
        async with (
            Cluster(sync_flush=sync_flush) as cluster,
            Producer(cluster.namesrv, retries=0) as producer,
        ):
            broker = cluster.brokers[0]
            await producer.send(Message("orders", b"before"))
            address, abort = broker.address, broker.directory / "abort"
            assert abort.exists()
            await getattr(broker, how)()
            assert abort.exists() == (how == "kill")
            assert not broker.is_running
            with pytest.raises(Unreachable):
                await producer.send(Message("orders", b"lost"))
            await broker.start()
            assert broker.address == address
            with pytest.raises(NotRunning, match="already started"):
                await broker.start()
            await producer.send(Message("orders", b"since"))
            assert await bodies(cluster.namesrv, "orders") == [b"before", b"since"]

    run(scenario)


def test_name_servers_come_and_go() -> None:
    """With one of two name servers gone everything goes on; it knows the routes again when it is back."""

    async def scenario() -> None:
        async with Cluster(name_servers=2) as cluster:
            first, second = cluster.name_servers
            await cluster.create_topic("orders")
            await first.kill()
            assert await bodies(cluster.namesrv, "orders") == []
            await first.start()
            await cluster.clock.turn(2)
            await second.stop()
            assert await bodies(cluster.namesrv, "orders") == []

    run(scenario)


def test_nothing_is_left_behind() -> None:
    """The directory is gone with the cluster, one that was given stays, and no task is left."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            directory = cluster.directory
            assert directory.is_dir()
        assert not directory.exists()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario)


def test_a_given_directory_keeps_the_stores(tmp_path: Path) -> None:
    """A second cluster on the directory of the first has its messages."""

    async def scenario() -> None:
        for number in range(2):
            async with Cluster(directory=tmp_path) as cluster, Producer(cluster.namesrv) as producer:
                await producer.send(Message("orders", b"%d" % number))
                assert len(await bodies(cluster.namesrv, "orders")) == number + 1

    run(scenario)


def test_settings_are_the_brokers() -> None:
    """Settings given are those of its brokers; nonsense is refused before anything starts."""

    async def scenario() -> None:
        async with Cluster(message_delay_level="3s 9s", sync_flush=True) as cluster:
            program = cluster.brokers[0].program
            assert program is not None
            assert program.broker.config.message_delay_level == "3s 9s"
            assert program.broker.store.flushed_end == program.broker.store.readable_end

    run(scenario)
    with pytest.raises(ConfigError, match="0 name servers"):
        Cluster(name_servers=0)
    with pytest.raises(ConfigError, match="no_such_setting"):
        Cluster(no_such_setting=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"message_delay_level": "1x"},
            "message_delay_level=1x: must be times like 1s 5m 2h, separated by spaces",
        ),
        ({"message_delay_level": None}, "message_delay_level=None: must be times like"),
        ({"transaction_time_out": 0}, "transaction_time_out=0: must be an integer of at least 1 (ms)"),
        ({"transaction_time_out": "5"}, "transaction_time_out=5: must be an integer"),
        ({"transaction_time_out": 1.5}, "transaction_time_out=1.5: must be an integer"),
        ({"trace_on": "no"}, "trace_on=no: must be true or false"),
        ({"trace_on": 1}, "trace_on=1: must be true or false"),
        ({"broker_role": "SLAVE"}, "broker_role=SLAVE: must be one of"),
        ({"brokers": "2"}, "brokers='2' is str, not int"),
        ({"name_servers": 1.5}, "name_servers=1.5 is float, not int"),
        ({"directory": 7}, "directory=7 is int, not a path"),
    ],
)
def test_arguments_of_another_kind_are_refused_as_a_file_s_are(given: dict[str, Any], told: str) -> None:
    """In the words that settings have for what may be given, before anything starts."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        Cluster(**given)


def test_code_without_a_loop_has_a_cluster_too() -> None:
    """`with Cluster()`: calls wait, other loops and other processes may use it, brokers can be killed."""
    program = (
        "import asyncio, sys\n"
        "from hotfire import Message, Producer\n"
        "async def main():\n"
        "    async with Producer(sys.argv[1]) as producer:\n"
        "        await producer.send(Message('orders', b'from afar'))\n"
        "asyncio.run(main())\n"
    )
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=1)
        subprocess.run([sys.executable, "-c", program, cluster.namesrv], check=True, timeout=50)
        cluster.brokers[0].kill()
        assert not cluster.brokers[0].is_running
        cluster.brokers[0].start()
        cluster.brokers[0].restart()
        assert asyncio.run(bodies(cluster.namesrv, "orders")) == [b"from afar"]
        directory = cluster.directory
    assert not directory.exists()


def test_a_start_that_fails_leaves_nothing() -> None:
    """A cluster that cannot start says why, and neither thread nor directory is left of it."""
    cluster = Cluster(start_accept_send_request_time_stamp=0, broker_id=1)
    with pytest.raises(ConfigError, match="brokerId=1"), cluster:
        pass
    assert not cluster.directory.exists()

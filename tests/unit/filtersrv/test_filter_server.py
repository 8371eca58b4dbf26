"""Consumers whose messages an installed function chooses; a bad function harms its own pulls alone."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotfire import Consumer, Message, MessageQueue, Producer, ReceivedMessage
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import ConfigError
from hotfire.filtersrv import server, workers
from hotfire.filtersrv.config import FilterServerConfig, installed, named
from hotfire.filtersrv.program import FilterServerProgram
from hotfire.filtersrv.workers import FilterFailed
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import PullMessage, RegisterMessageFilterClass
from hotfire.testing import Cluster
from tests.unit.client.consuming import run, turn, until

HERE = "tests.unit.filtersrv.installed"
COLOURS = ("red", "green", "red", "blue")


def places(*names: str) -> str:
    return ",".join(f"{name}={HERE}:{name}" for name in names)


@asynccontextmanager
async def filtering(cluster: Cluster, **settings: Any) -> AsyncIterator[FilterServerProgram]:
    program = FilterServerProgram(
        FilterServerConfig(
            bind_address="127.0.0.1",
            filter_server_ip="127.0.0.1",
            connect_which_broker=cluster.brokers[0].address,
            **{"filters": places("red"), **settings},
        )
    )
    await program.start()
    try:
        yield program
    finally:
        await program.close()


def pull(name: str | None, *, group: str = "g", offset: int = 0, hold_ms: int = 0) -> PullMessage:
    return PullMessage(
        consumer_group=group,
        topic="T",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=8 | (4 if name else 0) | (2 if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        subscription=name,
        sub_version=0,
        expression_type="TAG",
    )


async def filled(cluster: Cluster, bodies: list[bytes]) -> None:
    await cluster.create_topic("T", queues=1)
    async with Producer(cluster.namesrv) as producer:
        for number, body in enumerate(bodies):
            await producer.send(Message("T", body, properties={"colour": COLOURS[number % 4]}))


def bodies(reply: Command) -> list[bytes]:
    assert reply.code == 0, reply.remark
    return [record.body for record in iter_records(reply.body)]


@pytest.mark.promise(153, 6)
def test_an_installed_function_chooses_what_a_consumer_gets() -> None:
    """Two filter servers are in the route; a subscription by name gets the chosen messages, each once."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"%d" % n for n in range(100)])
        async with filtering(cluster) as one, filtering(cluster) as other:
            seen: list[ReceivedMessage] = []

            async def handle(message: ReceivedMessage) -> None:
                seen.append(message)

            consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
            consumer.subscribe("T", handle, filter="red")
            async with consumer:
                await until(lambda: len(seen) == 50)
                route = await consumer._running.instance.routes.refresh("T", 3.0)
                table = route.data.filter_servers
                assert set(table[cluster.brokers[0].address]) == {one.address, other.address}
                queue = MessageQueue("T", "broker-0", 0)
                async with Producer(cluster.namesrv) as producer:  # by a pull that is held
                    await producer.send(Message("T", b"late", properties={"colour": "red"}), queue=queue)
                await until(lambda: len(seen) == 51)
                await until(lambda: consumer._running.offsets.get(queue) == 101)
        wanted = [b"%d" % n for n in range(100) if COLOURS[n % 4] == "red"]
        assert sorted(one.body for one in seen[:50]) == sorted(wanted)
        assert seen[50].body == b"late"

    run(scenario)


def test_java_names_its_filter_first_and_its_source_is_dropped() -> None:
    """By class name and group; a class that is not installed is refused, whatever source comes with it."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"0", b"1", b"2"])
        async with filtering(cluster) as program:
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            unnamed = await peer.invoke(pull(None, group="java"), 10.0)
            assert (unnamed.code, (unnamed.remark or "")[:41]) == (
                1,
                "Find Filter class failed, not registered:",
            )

            async def register(name: str) -> Command:
                request = RegisterMessageFilterClass(
                    consumer_group="java", topic="T", class_name=name, class_crc=1, body=b"import os"
                )
                return await peer.invoke(request, 10.0)

            refused = await register("org.example.Evil")
            assert refused.code == 1
            assert "not installed here, and none is taken from clients" in (refused.remark or "")
            assert (await register("red")).code == 0
            assert bodies(await peer.invoke(pull(None, group="java"), 20.0)) == [b"0", b"2"]
            none_left = await peer.invoke(pull(None, group="java", offset=3), 10.0)
            assert none_left.code == 19
            nothing_chosen = await peer.invoke(pull("red", offset=1), 10.0)
            assert bodies(nothing_chosen) == [b"2"]
            await peer.close()

    run(scenario)


@pytest.mark.promise(153)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "filter raises failed: ValueError: no opinion on x"),
        ("hangs", "filter hangs took longer than 0.5 s for "),
        ("eats", "filter eats failed: MemoryError"),
        ("dies", "filter dies ended by itself, exit code 3"),
        ("missing", "filter 'missing' is not installed here"),
    ],
)
def test_a_bad_filter_fails_its_own_pull_with_a_reason(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another filter's pulls are served meanwhile, by the same process as before; the bad one starts anew.

    The operator finds the reason in the log, once and not at every pull.
    """
    monkeypatch.setattr(workers, "RESTART_S", workers.RESTART_S_MAX)

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x", b"y"])
        filters = places("red") if name == "missing" else places("red", name)
        async with filtering(cluster, filters=filters, filter_timeout_millis=20_000) as program:
            if name == "hangs":  # alone: a machine may be too busy for the good one to be as quick
                program.filters[name]._timeout_s = 0.5
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            assert bodies(await peer.invoke(pull("red"), 30.0)) == [b"x"]
            for _ in range(2):
                bad = asyncio.create_task(peer.invoke(pull(name), 60.0))
                good = [bodies(await peer.invoke(pull("red"), 30.0)) for _ in range(5)]
                assert good == [[b"x"]] * 5
                reply = await bad
                assert reply.code == 1
                assert (reply.remark or "").startswith(why)
            assert program.filters["red"].starts == 1
            if name in ("hangs", "eats", "dies"):  # they rest now, and say so at once
                resting = await peer.invoke(pull(name), 30.0)
                assert f"filter {name} ended 2 times in a row and is started again in" in (
                    resting.remark or ""
                )
                assert program.filters[name].starts == 2
            elif name == "raises":
                assert program.filters[name].starts == 1
            await peer.close()

    run(scenario)
    warned = [one.message for one in caplog.records if one.levelno >= logging.WARNING and name in one.message]
    assert [text[: len(why)] for text in warned] == ([] if name == "missing" else [why])


def test_a_consumer_that_goes_leaves_the_filter_to_others() -> None:
    """Its process goes on: who else waits for it is answered by the same one."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x"])
        async with filtering(cluster, filters=places("slow"), filter_timeout_millis=20_000) as program:
            going, staying = [await Peer.connect(f"127.0.0.1:{program.port}") for _ in range(2)]
            await staying.invoke(pull("slow"), 30.0)
            gone = asyncio.create_task(going.invoke(pull("slow"), 30.0))
            waiting = asyncio.create_task(staying.invoke(pull("slow"), 30.0))
            await until(lambda: program.filters["slow"]._waiting == 2)
            going.abort()
            assert bodies(await waiting) == [b"x"]
            assert program.filters["slow"].starts == 1
            await asyncio.gather(gone, return_exceptions=True)
            await staying.close()

    run(scenario)


def test_a_pull_the_broker_does_not_answer_costs_its_own_filter_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection to the broker is cut; what another filter's consumer waits for comes all the same."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"first"])
        async with (
            filtering(cluster, filters=places("red", "slow")) as program,
            Producer(cluster.namesrv) as producer,
        ):
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            assert bodies(await peer.invoke(pull("red"), 30.0)) == [b"first"]
            waiting = asyncio.create_task(peer.invoke(pull("red", offset=1, hold_ms=20_000), 40.0))
            parked = cluster.brokers[0].program
            assert parked is not None
            await until(lambda: len(parked.broker.parked) == 1)
            monkeypatch.setattr(server, "ANSWER_S", -19.9)
            late = await peer.invoke(pull("slow", offset=1, hold_ms=20_000), 30.0)
            assert (late.code, "within" in (late.remark or "")) == (1, True), late.remark
            await producer.send(Message("T", b"second", properties={"colour": "red"}))
            assert bodies(await waiting) == [b"second"]
            await peer.close()

    run(scenario)


@pytest.mark.promise(44)
def test_a_filter_server_that_fell_silent_is_forgotten() -> None:
    """Its connection stays open and says nothing: gone from the broker's table and the routes soon."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x"])
        async with filtering(cluster) as program, Producer(cluster.namesrv) as producer:
            broker = cluster.brokers[0].program
            assert broker is not None
            servers = broker.broker.clients.filter_servers
            await turn(cluster, 60)
            assert servers.addresses() == (program.address,), "it says all the time that it is there"
            assert program._keeper is not None
            program._keeper.cancel()
            await cluster.clock.turn(29)
            assert servers.addresses() == (program.address,)
            for _ in range(30):
                await cluster.clock.turn(1)
            await until(lambda: servers.addresses() == ())

            async def is_gone() -> bool:
                return not (await producer._instance.routes.refresh("T", 3.0)).data.filter_servers

            await until(is_gone)

    run(scenario)


def test_filters_are_named_by_the_operator() -> None:
    assert named("a=m:f, b.C=m.n:o.f") == {"a": "m:f", "b.C": "m.n:o.f"}
    with pytest.raises(ConfigError, match="write name=module:function"):
        named("a=m")
    with pytest.raises(ConfigError, match="no filter is installed"):
        installed(FilterServerConfig())


def test_a_package_brings_its_filters_and_the_configuration_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the entry points of its metadata, in any way those may be written."""
    metadata = tmp_path / "shop-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[hotfire.filters]\ndear = shop.filters : dear [quick]\nred=shop.filters:red\n[others]\nx=y:z\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed(FilterServerConfig()) == {"dear": "shop.filters:dear", "red": "shop.filters:red"}
    configured = installed(FilterServerConfig(filters="red=ours:red,blue=ours:blue"))
    assert configured == {"dear": "shop.filters:dear", "red": "ours:red", "blue": "ours:blue"}


def test_a_filter_does_not_begin_when_its_server_is_gone_by_then() -> None:
    """That it was killed while the filter's process started, nobody tells that."""
    words = ["math:isnan", "broker-0", str(512 << 20), str(os.getppid())]
    command = [sys.executable, "-m", "hotfire.filtersrv.worker", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(30) == 1
            assert process.stdout is not None
            assert process.stdout.read() == b""
        finally:
            process.kill()


def test_a_filter_that_cannot_be_loaded_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """Before the server is ready it is known, and in the log; its pulls say it too, others' are served."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x"])
        filters = f"{places('red', 'absent')},text={HERE}:not_a_function,gone=no.such.module:f"
        async with filtering(cluster, filters=filters) as program:
            assert (program.filters["red"].starts, sorted(program.not_loaded)) == (
                1,
                ["absent", "gone", "text"],
            )
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            for name, why in (
                ("absent", "AttributeError"),
                ("text", "TypeError"),
                ("gone", "ModuleNotFoundError"),
            ):
                told = f"filter {name} could not be loaded: {why}"
                assert told in caplog.text
                reply = await peer.invoke(pull(name), 30.0)
                assert told in (reply.remark or "")
            assert bodies(await peer.invoke(pull("red"), 30.0)) == [b"x"]
            await peer.close()

    run(scenario)


def test_a_server_none_of_whose_filters_can_be_loaded_does_not_start() -> None:
    """It would have nothing to serve; the broker does not keep it among its filter servers."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x"])
        with pytest.raises(
            FilterFailed, match=r"filter absent could not be loaded: AttributeError: .*absent"
        ):
            async with filtering(cluster, filters=places("absent")):
                pass
        broker = cluster.brokers[0].program
        assert broker is not None
        servers = broker.broker.clients.filter_servers
        await until(lambda: servers.addresses() == ())

    run(scenario)


def test_a_server_that_ends_is_no_fault_of_its_filters(caplog: pytest.LogCaptureFixture) -> None:
    """A pull under way is cut off: no warning, and no process begun for it anew."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, [b"x"])
        async with filtering(cluster, filters=places("hangs"), filter_timeout_millis=20_000) as program:
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            asked = [asyncio.create_task(peer.invoke(pull("hangs"), 30.0)) for _ in range(2)]
            await until(lambda: program.filters["hangs"]._waiting == 2)
        await until(lambda: program.filters["hangs"]._waiting == 0)
        assert program.filters["hangs"].starts == 1
        peer.abort()
        await asyncio.gather(*asked, return_exceptions=True)

    run(scenario)
    assert [
        one.message for one in caplog.records if one.name == "hotfire.filtersrv" and one.levelno > 20
    ] == []

"""Filter servers as processes of their own, killed or stopped: nobody is sent there, no filter runs on."""

import os
import re
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from hotfire import Message, sync
from hotfire.protocol.record import iter_records
from hotfire.testing import Cluster
from tests.broker.programs import Program, broker_config, namesrv_config, running, up
from tests.peers import remoting
from tests.peers.jars import ROOT
from tests.peers.process import poll_until

TOPIC = "T"
INSTALLED = "tests.unit.filtersrv.installed"
PULL_MESSAGE = 11
SUBSCRIPTION, CLASS_FILTER = 4, 8
END_S = 20.0
"""What has an end by itself has it within milliseconds; this is for a busy machine."""


def filter_server(
    directory: Path, broker: str, number: int = 0, *, path: Path = ROOT, **settings: str
) -> AbstractContextManager[Program]:
    chosen = {
        "connectWhichBroker": broker, "bindAddress": "127.0.0.1", "filterServerIP": "127.0.0.1", **settings,
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    paths = {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    return running(directory, "filtersrv", *words, env=paths, log=f"filtersrv-{number}.err")


def send(namesrv: str, *messages: Message) -> None:
    with sync.Producer(namesrv) as producer:
        for message in messages:
            producer.send(message)


def pull(program: Program, name: str) -> remoting.Answer:
    """What the filter of that name lets through."""
    fields = {
        "consumerGroup": "g", "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION | CLASS_FILTER, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": name, "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    return remoting.ask(program.told["filtersrv"], PULL_MESSAGE, fields, timeout_s=50.0)


def bodies(answer: remoting.Answer) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [record.body for record in iter_records(answer.body)]


def in_route(namesrv: str) -> list[str]:
    """The filter servers a consumer of the topic learns of."""
    route = remoting.route(namesrv, TOPIC)
    assert route is not None
    return sorted(server for servers in route["filterServerTable"].values() for server in servers)


@contextmanager
def watched(pid: int) -> Iterator[int]:
    """A descriptor that can be read when the process has ended; it has at the end, whatever happens."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        if not has_ended(descriptor, 0):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def has_ended(descriptor: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


@pytest.mark.promise(153)
def test_no_filter_outlives_its_filter_server(tmp_path: Path) -> None:
    """kill -9 while one is at a message that it never leaves, and another waits for work: both end."""
    filters = f"spins={INSTALLED}:spins,red={INSTALLED}:red"
    with running(tmp_path, *up(tmp_path)) as server:
        remoting.create_topic(server.broker, TOPIC, 1)
        send(server.namesrv, Message(TOPIC, b"x"))
        settings = {"filters": filters, "filterTimeoutMillis": "60000"}
        with (
            ThreadPoolExecutor(1) as aside,
            filter_server(tmp_path, server.broker, **settings) as program,
        ):
            pids = {
                name: int(pid) for name, pid in re.findall(r"filter=(\w+) started pid=(\d+)", program.log)
            }
            with watched(pids["spins"]) as spinning, watched(pids["red"]) as resting:
                asked = aside.submit(pull, program, "spins")
                poll_until(lambda: "\nspins\n" in program.log, what="filter at work", timeout_s=END_S)
                program.process.kill()
                assert has_ended(spinning, END_S)
                assert has_ended(resting, END_S)
            assert isinstance(asked.exception(), OSError)


def test_a_killed_filter_server_leaves_the_route(tmp_path: Path) -> None:
    """kill -9: its broker tells the name server at once, and consumers are sent to the other one alone."""
    filters = f"red={INSTALLED}:red"
    with (
        running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="namesrv.err") as names,
        running(tmp_path, "broker", "-c", broker_config(tmp_path), "-n", names.namesrv) as broker,
        filter_server(tmp_path, broker.broker, 1, filters=filters) as first,
        filter_server(tmp_path, broker.broker, 2, filters=filters) as second,
    ):
        remoting.create_topic(broker.broker, TOPIC, 1)
        both = sorted([first.told["filtersrv"], second.told["filtersrv"]])
        poll_until(lambda: in_route(names.namesrv) == both, what="both filter servers", timeout_s=END_S)
        first.process.kill()
        left = [second.told["filtersrv"]]
        poll_until(lambda: in_route(names.namesrv) == left, what="end of the killed one", timeout_s=END_S)


@pytest.mark.promise(44)
def test_a_stopped_filter_server_is_forgotten(tmp_path: Path) -> None:
    """SIGSTOP: its connection stays as it is. After half a minute it is in neither table nor route."""
    with Cluster() as cluster:
        cluster.create_topic(TOPIC, queues=1)
        (node,) = cluster.cluster.brokers
        assert node.program is not None
        known = node.program.broker.clients.filter_servers
        with filter_server(tmp_path, node.address, filters=f"red={INSTALLED}:red") as program:
            there = [program.told["filtersrv"]]
            poll_until(lambda: in_route(cluster.namesrv) == there, what="filter server", timeout_s=END_S)
            program.process.signal(signal.SIGSTOP)
            poll_until(lambda: state(program.process.pid) == "T", what="stop of it", timeout_s=END_S)
            cluster.clock.turn(15)
            assert (list(known.addresses()), in_route(cluster.namesrv)) == (there, there)
            cluster.clock.turn(30)
            poll_until(lambda: known.addresses() == (), what="end in the broker's table", timeout_s=END_S)
            poll_until(lambda: in_route(cluster.namesrv) == [], what="end of its route", timeout_s=END_S)
            assert state(program.process.pid) == "T"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_filters_of_an_installed_package_are_served(tmp_path: Path) -> None:
    """Found by its entry points, run in their processes; of two of one name the configuration's is asked."""
    package = tmp_path / "site"
    metadata = package / "shop-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[hotfire.filters]\ndear = shop_filters:dear\nred = shop_filters:never\n"
    )
    (package / "shop_filters.py").write_text(
        "def dear(message):\n    return int(message.properties['price']) > 100\n\n\n"
        "def never(message):\n    raise AssertionError('the configuration has another')\n"
    )
    with running(tmp_path, *up(tmp_path)) as server:
        remoting.create_topic(server.broker, TOPIC, 1)
        send(
            server.namesrv,
            Message(TOPIC, b"ring", properties={"price": "900", "colour": "red"}),
            Message(TOPIC, b"pen", properties={"price": "2", "colour": "red"}),
            Message(TOPIC, b"boat", properties={"price": "7000", "colour": "blue"}),
        )
        filters = f"red={INSTALLED}:red"
        with filter_server(tmp_path, server.broker, path=package, filters=filters) as program:
            assert program.told["filters"] == "dear,red"
            assert bodies(pull(program, "dear")) == [b"ring", b"boat"]
            assert bodies(pull(program, "red")) == [b"ring", b"pen"]

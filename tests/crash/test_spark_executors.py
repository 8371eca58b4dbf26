"""Spark with executors of its own: separate processes, another installation of the package, both at work."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from hotfire import sync
from hotfire.client.admin import Admin
from hotfire.core import __file__ as core_file
from hotfire.model import Message, dlq_topic
from hotfire.spark.pipelines import PIPELINES
from hotfire.spark.points import DIRECTORY
from tests.crash.sparklives import NEW, World, family, kill_together, parent, show, table
from tests.peers.jars import ROOT
from tests.peers.remoting import create_topic
from tests.peers.sparkjava import java_options

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]

MASTER = "local-cluster[2,1,1024]"
SETTINGS = (
    f"spark.executor.extraJavaOptions={java_options()}",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",
    # all stages have tasks for both executors, however little there is to do
    "spark.sql.adaptive.enabled=false",
    "spark.sql.shuffle.partitions=8",
)
SHARE_MIN = 0.3
TOPIC, GROUP, MESSAGES = "orders", "billing", 40_000
"""Two partitions' worth."""


def install(environment: Path, source: Path) -> None:
    """The package as its users have it; the libraries it stands on are those of this environment.

    A line in a .pth file adds their directory, and no .pth file there is looked at in its turn: the checkout,
    installed in place, stays unseen.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    packages = (
        environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda at, names: set() if at != str(ROOT) else {*names} - {"src", *PACKAGE_FILES},
    )
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*install, "--target", packages, source], check=True, env={**os.environ, "HOTFIRE_NO_CORE": "1"}
    )
    # compiling takes longer than all the rest, and would make what is there already
    for compiled in Path(core_file).parent.glob("_core*.so"):
        shutil.copy(compiled, packages / "hotfire" / "core")


PACKAGE_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "bin")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("installed")
    install(place / "environment", place / "source")
    return place / "environment"


@pytest.fixture(scope="module")
def world(
    environment: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    place = tmp_path_factory.mktemp("executors")
    made = World(
        place,
        *SETTINGS,
        f"spark.executorEnv.{DIRECTORY}={place / 'points'}",
        master=MASTER,
        env={
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_WORKER_DIR": str(place / "work"),
            "PYSPARK_PYTHON": str(environment / "bin" / "python"),
        },
    )
    try:
        made.start_driver()  # while it starts
        fill(made)
        yield made
    finally:
        made.close()
        if made.kills:
            show(request.config, table(made.kills))


def fill(world: World) -> None:
    """Orders, of which nothing is consumed, and dead letters of their group."""
    server = world.server
    letters = dlq_topic(GROUP)
    for topic in (TOPIC, letters):
        create_topic(server.broker, topic, 4)
    with sync.Producer(server.namesrv) as producer:
        for topic in (TOPIC, letters):
            queues = producer.queues(topic)
            for first in range(0, MESSAGES, 1000):
                producer.send_batch(
                    [
                        Message(
                            topic,
                            b'{"order": %d}' % number,
                            keys=(f"k{number % 1000}",),
                            tag="paid",
                        )
                        for number in range(first, first + 1000)
                    ],
                    queue=queues[first // 1000 % len(queues)],
                )

    async def begin() -> None:
        async with Admin(server.namesrv) as admin:
            await admin.create_group(GROUP)
            for queue in queues_of_topic:
                await admin.set_offset(GROUP, queue, 0)

    with sync.QueueReader(server.namesrv) as reader:
        queues_of_topic = reader.queues(TOPIC)
    asyncio.run(begin())


def test_tasks_have_the_installed_package(world: World, environment: Path, tmp_path: Path) -> None:
    """No task of either executor sees the checkout."""
    world.driver().begin("where", "where", place=str(tmp_path / "found"))
    world.driver().ended("where")
    found = (tmp_path / "found").read_text().split()
    assert len(found) == 16
    assert all(Path(place).is_relative_to(environment) for place in found), found


WORDS: dict[str, Callable[[Path], list[str]]] = {
    "archive": lambda place: ["--topic", TOPIC, "--to", str(place / "archive")],
    "aggregate": lambda place: ["--topic", TOPIC, "--by", "tags", "--to", str(place / "windows")],
    "sql": lambda place: ["--query", "select keys, count(*) from orders group by keys"],
    "replay": lambda place: ["--topic", TOPIC, "--into", "again"],
    "reshard": lambda place: ["--topic", TOPIC, "--group", GROUP],
    "reconcile": lambda place: ["--topic", TOPIC],
    "dlq": lambda place: ["--group", GROUP, "--drive", "--where", "queueOffset < 250", "--into", "retry"],
    "latency": lambda place: ["--topic", TOPIC, "--minutes"],
}
"""How each is run over the orders."""


@pytest.mark.promise(219)
@pytest.mark.parametrize("name", list(PIPELINES))
def test_both_executors_work_for_every_pipeline(world: World, tmp_path: Path, name: str) -> None:
    """Of a pipeline's tasks each of two executors runs three in ten or more."""
    if name == "replay":
        create_topic(world.server.broker, "again", 4)
    driver = world.driver()
    words = [*WORDS[name](tmp_path), "--namesrv", world.server.namesrv]
    driver.begin("pipeline", name, pipeline=name, words=words, place=str(tmp_path / "told"))
    driver.ended(name)
    told = json.loads((tmp_path / "told").read_text())
    assert told["code"] == 0
    tasks = sorted(told["tasks"].values())
    assert len(tasks) == 2, told
    assert tasks[0] >= SHARE_MIN * sum(tasks) > 0, told


@pytest.mark.parametrize(
    "round_",
    [
        pytest.param(0, id="once"),
        *(pytest.param(number, marks=pytest.mark.slow, id=f"again{number}") for number in (1, 2, 3)),
    ],
)
def test_executor_killed(world: World, record_property: Callable[[str, object], None], round_: int) -> None:
    """kill -9 of both executors, each with its Pythons, one while its task reads, one while its task writes:
    Spark starts others, and each message and each row with a key is there once.
    """
    reading, writing = "source.read-half", "sink.half-sent"
    driver, points = world.driver(), world.points
    archive, sending = world.archive(), world.sending(is_batch=round_ % 2 == 1)
    archive.feed(NEW)
    points.clear()
    points.stop_at(reading, writing)
    archive.begin(driver)
    sending.begin(driver)
    executors = [parent(parent(pid)) for pid in world.stand(reading, writing)]  # a daemon forks workers
    assert len({driver.pid, *executors}) == 3, "tasks of one executor, or of the driver"
    kill_together(lambda: [pid for executor in executors for pid in family(executor)])
    for point in (reading, writing):
        points.check_counts(point)
    driver.ended(archive.name)
    driver.ended(sending.name)
    record_property("killed", f"executors at {reading} and {writing}")
    world.judge(archive.outcome(reading, "executor"), sending.outcome(writing, "executor"))

"""Consumers that are killed, as processes: what they had comes again, in order, its effect happens once."""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hotfire import sync
from hotfire.model import Message, MessageQueue
from hotfire.testing import Cluster
from hotfire.testing.blocking import BlockingCluster
from tests.crash.member import EFFECTS
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT
from tests.peers.process import LineProcess
from tests.peers.redisserver import redis_server

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TOPIC, GROUP, QUEUES_MAX = "T", "g", 4
DONE_S_MAX = 120.0
"""For a machine that is busy with other things."""


class Group:
    """Members of one group and the journal they share."""

    def __init__(self, namesrv: str, directory: Path, cluster: BlockingCluster | None = None) -> None:
        self.namesrv = namesrv
        self._cluster = cluster
        self.journal = directory / "journal"
        self.journal.touch()
        self._log = directory / "members.err"
        self._members: list[LineProcess] = []

    def start(self, *options: str) -> LineProcess:
        command = [sys.executable, "-m", "tests.crash.member"]
        member = LineProcess(
            [*command, self.namesrv, GROUP, TOPIC, str(self.journal), *options],
            log=self._log,
            env={"PYTHONPATH": str(ROOT)},
        )
        self._members.append(member)
        return member

    def lines(self) -> list[str]:
        """What listeners began, by whomever, in order."""
        return self.journal.read_text().splitlines()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + DONE_S_MAX
        while not is_so():
            assert time.monotonic() < until_s, (
                f"not {what} within {DONE_S_MAX} s: {self._log.read_text()[-2000:]}"
            )
            time.sleep(0.01)

    def all_committed(self) -> bool:
        """Whether the broker believes that all is consumed."""
        assert self._cluster is not None
        program = self._cluster.cluster.brokers[0].program
        assert program is not None
        broker = program.broker
        queues = {number: broker.store.find_queue(TOPIC, number) for number in range(QUEUES_MAX)}
        return all(
            broker.offsets.get(TOPIC, GROUP, number) == queue.max
            for number, queue in queues.items()
            if queue is not None
        )

    def kill_all(self) -> None:
        for member in self._members:
            if member.alive:
                member.kill()


@contextmanager
def group(directory: Path, queues: int) -> Iterator[Group]:
    with Cluster() as cluster:
        cluster.create_topic(TOPIC, queues)
        made = Group(cluster.namesrv, directory, cluster)
        try:
            yield made
        finally:
            made.kill_all()


@pytest.mark.promise(199)
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_killed_in_the_listener_its_message_comes_again(tmp_path: Path, orderly: bool) -> None:
    """Dead before the listener returned: the next process gets the message; only then is it done with."""
    options = ["--name", "one", *(["--orderly"] if orderly else [])]
    with group(tmp_path, queues=1) as members:
        with sync.Producer(members.namesrv) as producer:
            producer.send(Message(TOPIC, b"x"))
        for count in (1, 2):
            dying = members.start(*options, "--die", "listener:1")
            assert dying.wait(DONE_S_MAX) == -signal.SIGKILL
            assert members.lines() == ["x"] * count
            assert dying.lines() == []
        last = members.start(*options)
        last.wait_line(lambda line: line == "x", what="message", timeout_s=DONE_S_MAX)
        assert last.terminate() == 0
        assert members.lines() == ["x"] * 3
        assert members.all_committed()


# --- order ---------------------------------------------------------------------------------------------


@pytest.mark.promise(124)
def test_one_queue_is_strictly_increasing_across_restarts(tmp_path: Path) -> None:
    """Members that come one after the other and end in order: each message once, in the order it was sent."""
    count, rng = 400, random.Random(124)
    with group(tmp_path, queues=1) as members:
        with sync.Producer(members.namesrv) as producer:
            for number in range(count):
                producer.send(Message(TOPIC, b"%d" % number))
        while len(members.lines()) < count:
            member, enough = members.start("--orderly"), len(members.lines()) + rng.randrange(1, 120)
            members.until(lambda enough=enough: len(members.lines()) >= min(enough, count), "consumed")
            assert member.terminate() == 0
        assert [int(line) for line in members.lines()] == list(range(count))


@pytest.mark.promise(123)
def test_steps_of_each_order_come_in_sequence_though_members_are_killed(tmp_path: Path) -> None:
    """100 orders of 10 steps, 4 queues, 4 processes, of which 13 times one is killed and started again: no
    step of an order comes before the one before it; what comes twice is a repetition from some step on."""
    orders, together, steps, rng = 100, 8, 10, random.Random(123)
    with group(tmp_path, queues=4) as members:
        running, sent = {name: members.start("--orderly", "--name", name) for name in "abcd"}, 0
        with sync.Producer(members.namesrv) as producer:
            for first in range(0, orders, together):
                for step, order in itertools.product(
                    range(steps), range(first, min(first + together, orders))
                ):
                    queue = MessageQueue(TOPIC, "broker-0", order % 4)
                    producer.send(Message(TOPIC, b"%d:%d" % (order, step)), queue=queue)
                    sent += 1
                enough = min(len(members.lines()) + rng.randrange(1, together * steps), sent)
                members.until(lambda enough=enough: len(members.lines()) >= enough, "consumed")
                name = rng.choice(sorted(running))
                running[name].kill()
                running[name] = members.start("--orderly", "--name", name)
        members.until(lambda: len(set(members.lines())) == orders * steps, "consumed")
        delivered: dict[str, list[int]] = defaultdict(list)
        for line in members.lines():
            order, _, step = line.partition(":")
            delivered[order].append(int(step))
    assert len(delivered) == orders
    for order, got in delivered.items():
        assert list(dict.fromkeys(got)) == list(range(steps)), f"order {order}: {got}"
        assert all(b <= a + 1 for a, b in itertools.pairwise(got)), f"order {order}: {got}"


# --- effects -------------------------------------------------------------------------------------------

MESSAGES, DUPLICATES, KILLS = 300, 30, 24


def send_with_duplicates(namesrv: str, rng: random.Random) -> set[str]:
    """Orders, of which every tenth is sent twice; the keys."""
    keys = [f"order-{number}" for number in range(MESSAGES)]
    sent = keys + rng.sample(keys, DUPLICATES)
    rng.shuffle(sent)
    with sync.Producer(namesrv) as producer:
        for key in sent:
            producer.send(Message(TOPIC, key.encode(), keys=(key,)))
    return set(keys)


def kill_again_and_again(members: Group, once: str, rng: random.Random, effects: Callable[[], int]) -> None:
    """Lives that end at any point: within an effect or beside it, or wherever the signal finds them."""
    for number in range(KILLS):
        where = rng.choice(("before", "within", "after", "listener", "anywhere"))
        times = rng.randrange(1, 9)
        if where == "anywhere":
            member, enough = members.start("--once", once), min(effects() + times, MESSAGES)
            members.until(lambda enough=enough: effects() >= enough, f"life {number} done")
            member.kill()
        else:
            member = members.start("--once", once, "--die", f"{where}:{times}")
            assert member.wait(DONE_S_MAX) == -signal.SIGKILL
    member = members.start("--once", once)
    members.until(members.all_committed, "consumed")
    assert member.terminate() == 0


@pytest.mark.promise(200)
def test_each_effect_once_in_sqlite(tmp_path: Path) -> None:
    """A tenth of the orders sent twice, the consumer killed 24 times: each order's effect is there once."""
    rng, path = random.Random(200), tmp_path / "effects.db"
    with closing(sqlite3.connect(path)) as db, group(tmp_path, queues=4) as members:
        db.execute(f"CREATE TABLE {EFFECTS} (key TEXT)")
        keys = send_with_duplicates(members.namesrv, rng)

        def effects() -> int:
            return int(db.execute(f"SELECT count(*) FROM {EFFECTS}").fetchone()[0])  # noqa: S608

        kill_again_and_again(members, str(path), rng, effects)
        there = Counter(key for (key,) in db.execute(f"SELECT key FROM {EFFECTS}"))  # noqa: S608
        deliveries = len(members.lines())
    assert there == Counter(keys)
    assert deliveries > MESSAGES + DUPLICATES, "nothing came again: the test tests less than it says"


@pytest.mark.promise(200)
def test_each_effect_once_in_redis(tmp_path: Path) -> None:
    """The same with effects in Redis."""
    rng = random.Random(201)
    with redis_server(tmp_path) as (client, url), group(tmp_path, queues=4) as members:
        keys = send_with_duplicates(members.namesrv, rng)
        kill_again_and_again(members, url, rng, lambda: int(client.hlen(EFFECTS)))
        there = {key.decode(): int(count) for key, count in client.hgetall(EFFECTS).items()}
    assert there == dict.fromkeys(keys, 1)


# --- a broker that is stopped ----------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_the_end_of_a_member_does_not_wait_for_a_stopped_broker(tmp_path: Path, orderly: bool) -> None:
    """SIGSTOP to the broker, SIGTERM to the consumer: it ends by itself."""
    options = ["--orderly"] if orderly else []
    with HotfireProcess(tmp_path / "server") as server:
        members = Group(server.namesrv, tmp_path)
        with sync.Producer(server.namesrv) as producer:
            producer.send(Message(TOPIC, b"x"))
        member = members.start(*options)
        try:
            member.wait_line(lambda line: line == "x", what="message", timeout_s=DONE_S_MAX)
            server.process.signal(signal.SIGSTOP)
            assert member.terminate() == 0
        finally:
            server.process.signal(signal.SIGCONT)
            members.kill_all()

"""Spark in processes of its own: where they stand, how they die, and what must be there afterwards.

Owns the stopping at named points (`hotfire.spark.points`), the killing, and the books of two kinds of
queries: a topic into Parquet, whose messages must be there exactly once, and rows into a topic, of which none
may be lost and none with a key may be there twice.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet
import pytest

from hotfire import sync
from hotfire.model import Message
from hotfire.spark.points import DIRECTORY
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT
from tests.peers.process import LineProcess, ProcessFailed
from tests.peers.remoting import create_topic

T = TypeVar("T")

NEXT = {
    "source.initial-offset": "source.latest-offset",
    "source.latest-offset": "source.planned",
    "source.commit": "source.planned",
    "source.planned": "source.read-half",
    "source.read-half": "source.read",
    "source.read": "source.commit",
    "sink.label-written": "sink.first-chunk-sent",
    "sink.first-chunk-sent": "sink.half-sent",
    "sink.half-sent": "sink.all-sent-before-return",
    "sink.all-sent-before-return": "sink.commit",
    "archive.noted": "archive.moved-half",
    "archive.moved-half": "archive.merged",
}
"""A kill at a point counts while the next one was not reached; behind the last, Spark's own log tells."""

WAIT_S_MAX = 240.0
LOCAL = "local[2,4]"
"""Two cores, and a task is tried four times."""
QUEUES = 2
OLD, NEW, MORE = 50, 9000, 100
"""Messages before a query, for it, and after a kill. Of NEW a queue has more than one answer brings."""
ROWS, ROWS_MORE, ROWS_PER_REQUEST = 3000, 50, 250


@dataclass(frozen=True, slots=True)
class Kill:
    """One row of the table."""

    point: str
    victim: str
    lost: int
    repeated: int


def table(kills: Iterable[Kill]) -> str:
    pairs: dict[tuple[str, str], list[Kill]] = {}
    for kill in kills:
        pairs.setdefault((kill.point, kill.victim), []).append(kill)
    lines = [f"{'point':28} {'victim':16} {'kills':>5} {'lost':>5} {'repeated':>8}"]
    for (point, victim), those in sorted(pairs.items()):
        lost, repeated = sum(one.lost for one in those), sum(one.repeated for one in those)
        lines.append(f"{point:28} {victim:16} {len(those):5} {lost:5} {repeated:8}")
    return "\n".join(lines)


def show(config: pytest.Config, text: str) -> None:
    """For people, whatever pytest does with output: the figures are the result."""
    capturing = config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        print(f"\n{text}")  # noqa: T201


# --- processes -----------------------------------------------------------------------------------------


def _stat(pid: int) -> list[str]:
    """From the state on; raises OSError when there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


DEAD = ("Z", "X", "gone")


def state(pid: int) -> str:
    try:
        return _stat(pid)[0]
    except OSError:
        return "gone"


def _processes(belongs: Callable[[list[str]], bool]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if belongs(_stat(int(path.name))):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def session(leader: int) -> list[int]:
    """Every process of a session: Spark's Pythons make groups of their own, not sessions."""
    return _processes(lambda stat: int(stat[3]) == leader and stat[0] not in DEAD)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:
        found += _processes(lambda stat, parent=parent: int(stat[1]) == parent)
    return found


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def kill_together(pids: Callable[[], list[int]]) -> None:
    """kill -9 to all of them, as if at once: all are stopped first, so that none notices another's death."""
    while moving := [pid for pid in pids() if state(pid) not in ("T", *DEAD)]:
        _signal(moving, signal.SIGSTOP)
    victims = pids()
    _signal(victims, signal.SIGKILL)
    until = time.monotonic() + WAIT_S_MAX
    while alive := [pid for pid in victims if state(pid) not in DEAD]:
        assert time.monotonic() < until, f"{alive} outlive kill -9"
        time.sleep(0.01)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


# --- points --------------------------------------------------------------------------------------------


class Points:
    """The directory in which Spark's processes tell where they are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def clear(self) -> None:
        for path in self.directory.iterdir():
            path.unlink(missing_ok=True)

    def stop_at(self, *points: str) -> None:
        for point in points:
            (self.directory / f"{point}.stop").touch()

    def was_reached(self, point: str) -> bool:
        return (self.directory / point).exists()

    def standing(self, point: str) -> int | None:
        """The process that stands still there."""
        if not self.was_reached(point):
            return None
        pid = int((self.directory / point).read_text())
        return pid if state(pid) == "T" else None

    def go_on(self, point: str) -> None:
        pid = self.standing(point)
        assert pid is not None, f"nobody stands at {point}"
        os.kill(pid, signal.SIGCONT)

    def check_counts(self, point: str) -> None:
        """A kill here and now is one at this point."""
        assert self.was_reached(point), f"{point} was not reached"
        after = NEXT.get(point)
        assert after is None or not self.was_reached(after), f"behind {point}, at {after} already"


class Driver:
    """`tests.crash.sparkquery` in a session of its own."""

    def __init__(
        self,
        log: Path,
        points: Points,
        *settings: str,
        master: str = LOCAL,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._process = LineProcess(
            [sys.executable, "-m", "tests.crash.sparkquery", master, *settings],
            log=log,
            env={"PYTHONPATH": str(ROOT), DIRECTORY: str(points.directory), **(env or {})},
        )
        self._counts: Counter[str] = Counter()
        self._under_way: set[str] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    def ready(self) -> None:
        self._process.wait_line(lambda line: line == "ready", what="ready line", timeout_s=WAIT_S_MAX)

    def begin(self, work: str, name: str, **told: Any) -> None:
        self._under_way.add(name)
        self._process.tell(json.dumps({"do": work, "name": name, **told}))

    def ended(self, name: str) -> None:
        """Wait for the end of the work of this name that was begun last."""
        self._under_way.discard(name)
        self._counts[name] += 1
        place = -1
        for _ in range(self._counts[name]):
            told = self._process.wait_line(
                lambda line: line.split(" ")[:2] in (["ended", name], ["failed", name]),
                what=f"end of {name}",
                timeout_s=WAIT_S_MAX,
                after=place + 1,
            )
            place = self._process.lines().index(told, place + 1)
        assert told.startswith("ended"), told

    def until(self, question: Callable[[], T | None], what: str) -> T:
        """Ask until there is an answer; work that failed meanwhile is what is told."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not (answer := question()):
            words = (line.split(" ") for line in self._process.lines())
            failed = [text for text in words if text[0] == "failed" and text[1] in self._under_way]
            assert not failed, f"no {what}: {' '.join(failed[-1])}"
            if not self.alive or time.monotonic() > deadline:
                raise ProcessFailed(f"no {what} within {WAIT_S_MAX} s; {self._process.log}")
            time.sleep(0.01)
        return answer

    def kill(self) -> None:
        """The JVM, its driver and its workers."""
        kill_together(lambda: session(self.pid))
        self._process.wait(WAIT_S_MAX)


# --- queries -------------------------------------------------------------------------------------------


class Archive:
    """A topic into Parquet."""

    def __init__(self, server: HotfireProcess, directory: Path, name: str, **options: str) -> None:
        self.name = name
        self.place = directory / name
        self._server = server
        self._topic = name
        self._options = {"nameServers": server.namesrv, "subscribe": name, "batchRows": "1000", **options}
        self.expected: Counter[bytes] = Counter()
        self._numbers = itertools.count()
        self.place.mkdir(parents=True)
        create_topic(server.broker, name, QUEUES)

    def knows_its_place(self) -> None:
        """Give the reader the query's checkpoint, too."""
        self._options["checkpointLocation"] = str(self.place / "checkpoint")

    def feed(self, count: int, *, is_expected: bool = True) -> None:
        bodies = [b"%s-%d" % (self._topic.encode(), next(self._numbers)) for _ in range(count)]
        with sync.Producer(self._server.namesrv) as producer:
            queues = producer.queues(self._topic)
            for at in range(0, count, 500):
                queue = queues[at // 500 % len(queues)]
                producer.send_batch(
                    [Message(self._topic, body) for body in bodies[at : at + 500]], queue=queue
                )
        if is_expected:
            self.expected.update(bodies)

    def begin(self, driver: Driver, *, now: bool = True) -> None:
        driver.begin("archive", self.name, place=str(self.place), now=now, options=self._options)

    def run(self, driver: Driver) -> None:
        self.begin(driver)
        driver.ended(self.name)

    def is_committed(self, batch: int) -> bool:
        """Whether Spark has noted the batch's end."""
        return (self.place / "checkpoint" / "commits" / str(batch)).exists()

    def outcome(self, point: str, victim: str) -> Kill:
        found = Counter((self.place / "bodies").read_bytes().split())
        lost, more = self.expected - found, found - self.expected
        return Kill(point, victim, lost.total(), more.total())


class Sending:
    """Rows of Parquet files into a topic, all but every tenth with a key."""

    def __init__(self, server: HotfireProcess, directory: Path, name: str, **options: str) -> None:
        self.name = name
        self.place = directory / name
        self._server = server
        self._work = "write" if "label" in options else "send"
        self._options = {
            "nameServers": server.namesrv,
            "topic": name,
            "requestRows": str(ROWS_PER_REQUEST),
            **options,
        }
        self.expected: Counter[bytes] = Counter()
        (self.place / "rows").mkdir(parents=True)
        create_topic(server.broker, name, QUEUES)

    def feed(self, count: int) -> None:
        """Another file."""
        first = self.expected.total()
        bodies = [b"%s-%d" % (self.name.encode(), number) for number in range(first, first + count)]
        keys = [
            None if number % 10 == 0 else f"{self.name}-{number}" for number in range(first, first + count)
        ]
        rows = pa.table({"keys": pa.array(keys, pa.string()), "body": pa.array(bodies, pa.binary())})
        # whole, or not at all: a stream looks at any time
        draft = self.place / f".{first}.parquet"
        pyarrow.parquet.write_table(rows, draft)
        draft.rename(self.place / "rows" / f"{first}.parquet")
        self.expected.update(bodies)

    def begin(self, driver: Driver) -> None:
        driver.begin(self._work, self.name, place=str(self.place), options=self._options)

    def run(self, driver: Driver) -> None:
        self.begin(driver)
        driver.ended(self.name)

    def is_committed(self, batch: int) -> bool:
        return (self.place / "checkpoint" / "commits" / str(batch)).exists()

    def outcome(self, point: str, victim: str) -> Kill:
        """Rows without a key may be there twice, those with one may not."""
        found: Counter[bytes] = Counter()
        with sync.QueueReader(self._server.namesrv) as reader:
            for queue in reader.queues(self.name):
                offset, end = 0, reader.max_offset(queue)
                while offset < end:
                    pulled = reader.pull(queue, offset, 1000)
                    for message in pulled.messages:
                        if message.keys or message.body not in found:
                            found[message.body] += 1
                    offset = pulled.next_offset
        lost, more = self.expected - found, found - self.expected
        return Kill(point, victim, lost.total(), more.total())


# --- all of it -----------------------------------------------------------------------------------------


class World:
    """A server, and drivers one after the other; the next one starts when one is killed."""

    def __init__(
        self, place: Path, *settings: str, master: str = LOCAL, env: Mapping[str, str] | None = None
    ) -> None:
        """`settings` are Spark's, `env` its environment."""
        self._settings, self._master, self._env = settings, master, env
        self.server = HotfireProcess(place / "server").start()
        self.points = Points(place / "points")
        self.kills: list[Kill] = []
        self._place = place
        self._names = itertools.count()
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        if self._driver is None or not self._driver.alive:
            self.start_driver()
        assert self._driver is not None
        self._driver.ready()
        return self._driver

    def start_driver(self) -> None:
        """It takes seconds; whoever wants it waits."""
        log = self._place / f"driver-{next(self._names)}.err"
        self._driver = Driver(log, self.points, *self._settings, master=self._master, env=self._env)

    def archive(self, beginning: str = "earliest", known_by: str | None = None) -> Archive:
        """A query whose beginning is known to Spark's log alone, or also by its checkpoint or its group."""
        name = f"read-{next(self._names)}"
        group = {"group": name} if known_by == "group" else {}
        made = Archive(self.server, self._place, name, startingOffsets=beginning, **group)
        if known_by == "checkpoint":
            made.knows_its_place()
        return made

    def sending(self, *, is_batch: bool = False) -> Sending:
        name = f"sent-{next(self._names)}"
        made = Sending(self.server, self._place, name, **({"label": name} if is_batch else {}))
        made.feed(ROWS)
        return made

    def stand(self, *points: str) -> list[int]:
        """Wait until a process stands at each; whether a kill there counts now."""
        driver = self.driver()
        pids = [driver.until(lambda at=at: self.points.standing(at), f"process at {at}") for at in points]
        for point in points:
            self.points.check_counts(point)
        return pids

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()
        self.server.stop()

    def judge(self, *kills: Kill) -> None:
        self.kills += kills
        wrong = [kill for kill in kills if kill.lost or kill.repeated]
        assert not wrong, f"\n{table(wrong)}"

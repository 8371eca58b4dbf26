"""One life of a broker, from its start to its end, and what must be true of its store when it is over.

Owns what a life does: sends with keys that roll segments, queue files and index files, topics and groups
made, offsets committed. And the ledger of it, which outlives every broker: what was promised must be there
after the next start, and nothing that nobody did.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hotfire.errors import Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.requests import PullMessage, UpdateConsumerOffset
from tests.crash.inject import InjectedHotfire, Point, target
from tests.crash.traffic import QUEUES, SEND_TIMEOUT_S, TOPIC, Traffic, missing, read_back
from tests.peers import remoting
from tests.peers.process import ProcessFailed
from tests.peers.pulling import SUBSCRIPTION

SEGMENT_BYTES = 65536
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 300,
    "flushIntervalConsumeQueue": 50,
    "flushConsumerOffsetInterval": 20,
}
"""Sizes and periods with which a few hundred messages do everything a store ever does."""

QUIET = SMALL | {"flushIntervalConsumeQueue": 1_000_000, "flushConsumerOffsetInterval": 1_000_000}
"""The same, with no write that a timer brings: what is written late is written by the orderly end."""

LEAVING: dict[str, int | str] = {
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "fileReservedTime": 0,
    "cleanResourceInterval": 1,
    "deleteCommitLogFilesInterval": 0,
}
"""Every segment but the last is expired at once and leaves, with what was derived from it."""

_LET_GO = re.compile(r"log segment deleted .*?start=(\d+)")
ACKS_PER_STEP, STEPS = 60, 5
END_TIMEOUT_S = 30.0


def arguments(settings: Mapping[str, int | str]) -> list[str]:
    return [f"--set={name}={value}" for name, value in settings.items()]


class Lives:
    """Broker after broker on one directory."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        settings: Mapping[str, int | str] = SMALL,
        meanwhile: Mapping[str, int | str] | None = None,
        steps: int = STEPS,
    ) -> None:
        """`meanwhile` are settings of the lives alone, not of the looks back; `steps` of work make a life."""
        self._steps = steps
        self.server = InjectedHotfire(directory, arguments=arguments(settings))
        self._meanwhile = arguments(meanwhile or {})
        self.traffic = Traffic(
            seed, connections=2, in_flight=4, body_bytes_max=2500, is_keyed=True, is_patient=True
        )
        self.where: Counter[str] = Counter()
        """Phase and file of each kill."""
        self._rng = random.Random(seed)
        self._topics: list[str] = []
        self._groups: list[str] = []
        self._rounds: dict[str, int] = {}
        self._settled: dict[str, list[int]] = {}
        self._lives = 0
        self.told_to_end_at = 0.0
        """When the last life that came to its orderly end was told to, by the clock strace reads."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With senders that outlive every broker; no broker outlives this."""
        try:
            async with self.traffic.running():
                yield
        finally:
            await asyncio.to_thread(self.server.end)

    async def live(self, injections: list[str]) -> str:
        """Until the broker dies or, when nothing strikes, until its orderly end; the phase it ended in."""
        server = self.server
        server.injections, server.more = injections, self._meanwhile
        self._lives += 1
        try:
            await asyncio.to_thread(server.start)
        except ProcessFailed:
            await asyncio.to_thread(server.process.wait, END_TIMEOUT_S)
            return "start"
        ended = asyncio.create_task(asyncio.to_thread(server.process.wait, END_TIMEOUT_S))
        self.traffic.broker_is_up(server.broker)
        work = asyncio.create_task(self._work(server.broker))
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        self.traffic.broker_goes_down()
        phase = "steady"
        if not ended.done():
            work.result()
            phase = "shutdown"
            self.told_to_end_at = time.time()
            try:  # with the senders still at it
                await asyncio.to_thread(server.terminate)
            except ProcessLookupError:
                phase = "steady"
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await ended
        return phase

    async def _work(self, broker: str) -> None:
        """Everything that writes: messages, topics, groups, offsets."""
        try:
            if TOPIC not in self._topics:
                await asyncio.to_thread(remoting.create_topic, broker, TOPIC, QUEUES)
                self._topics.append(TOPIC)
            async with await Peer.connect(broker) as peer:
                for step in range(self._steps):
                    await self._make(peer, broker, f"{self._lives}-{step}")
                    await self.traffic.acknowledged(len(self.traffic.acks) + ACKS_PER_STEP)
        except (Unreachable, OSError):
            await asyncio.Event().wait()  # it is dying; whoever waits for its end goes on

    async def _make(self, peer: Peer, broker: str, name: str) -> None:
        """A topic, a group by its first pull, and a round of commits: each queue of it in turn."""
        await asyncio.to_thread(remoting.create_topic, broker, f"topic-{name}", 2)
        self._topics.append(f"topic-{name}")
        await peer.invoke(first_pull(f"group-{name}"), SEND_TIMEOUT_S)
        self._groups.append(f"group-{name}")
        group = f"group-{self._lives}-0"
        self._rounds[group] = self._rounds.get(group, 0) + 1
        for queue_id in range(QUEUES):
            await peer.ask(commit(group, queue_id, self._rounds[group]), SEND_TIMEOUT_S)

    async def kill_at(self, point: Point, paths: Sequence[str] = ()) -> bool:
        """A life with a kill in it, at a call on the point's file or one of these; whether it died there."""
        self.server.only_paths = paths if point.path is None else [point.path]
        phase = await self.live([point.killing])
        self.server.only_paths = ()
        call = self.server.struck(point)
        if call is not None:
            self.where[f"{phase} {target(call)}"] += 1
        return call is not None

    # --- afterwards ---

    async def look_back(self) -> None:
        """Start without strace: every promise of every life so far is kept. Ends in one way or the other."""
        server = self.server
        server.injections, server.more = None, ()
        await asyncio.to_thread(server.start)
        if self._topics:
            found = await read_back(server.broker)
            first = self._first_offset()
            promised = [ack for ack in self.traffic.acks if ack.physical >= first]
            lost = missing(promised, found)
            assert not lost, f"{len(lost)} of {len(promised)} lost: {lost[:5]}; {server.directory}"
            invented = {record.body for record in found.values()} - self.traffic.bodies
            assert not invented, f"{len(invented)} messages nobody sent"
            await asyncio.to_thread(self._look_at_tables)
        if self._rng.random() < 0.5:
            await asyncio.to_thread(server.kill9)
        else:
            assert await asyncio.to_thread(server.terminate) == 0

    def _first_offset(self) -> int:
        """Where the log begins: 0, or behind the last segment of which the broker said that it lets it go."""
        let_go = [int(start) for start in _LET_GO.findall(self.server.log.read_text())]
        assert self._meanwhile or not let_go, f"segments left that were to stay: {let_go[:3]}"
        return max(let_go, default=-SEGMENT_BYTES) + SEGMENT_BYTES

    def _look_at_tables(self) -> None:
        """Topics and groups that were made exist; offsets are those of one moment, none taken back."""
        broker, namesrv = self.server.broker, self.server.namesrv
        queues = {topic: 2 for topic in self._topics[-3 * STEPS :]} | {TOPIC: QUEUES}
        assert {topic: remoting.queue_count(namesrv, topic) for topic in queues} == queues
        for group in self._groups[-3 * STEPS :]:
            fields = {"consumerGroup": group, "topic": TOPIC, "queueId": QUEUES - 1, "commitOffset": 0}
            if group not in self._rounds:
                remoting.call(broker, remoting.UPDATE_CONSUMER_OFFSET, fields)  # of no group: refused
        for group, rounds in list(self._rounds.items())[-5:]:
            offsets = remoting.committed_offsets(broker, TOPIC, group, QUEUES, default=0)
            assert offsets == sorted(offsets, reverse=True), f"not of one moment: {group} {offsets}"
            assert rounds >= offsets[0] >= offsets[-1] >= offsets[0] - 1, f"not of one moment: {offsets}"
            assert self._settled.setdefault(group, offsets) == offsets, f"taken back: {group}"


def first_pull(group: str) -> PullMessage:
    return PullMessage(
        consumer_group=group, topic=TOPIC, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=SUBSCRIPTION,
        commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
    )  # fmt: skip


def commit(group: str, queue_id: int, offset: int) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic=TOPIC, queue_id=queue_id, commit_offset=offset)

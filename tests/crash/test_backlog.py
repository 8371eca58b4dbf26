"""What a backlog costs: nothing, call by call. Counted in the kernel, where no other program's work shows.

How fast this is, beside a hundred million messages, is measured by `bench.long`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotfire.net.peer import Peer
from hotfire.protocol.batch import BatchMessage
from hotfire.protocol.record import iter_records
from tests.crash.test_durability import TracedHotfire
from tests.crash.trace import Call, parse
from tests.peers.hotfire import HotfireProcess
from tests.peers.remoting import create_topic, max_offsets
from tests.unit.broker.harness import pull_request, send_request
from tests.unit.broker.test_batch import batch_request

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SEGMENT_BYTES = 8 << 20
BODY = bytes(128)
BACKLOG, BATCH = 200_000, 1000
MESSAGES = 200
DRAINED, PULLED = 20_000, 32
SPREAD = 0.02
"""What a tick of the broker may add to so many calls."""
PAGE_BYTES = 4096
AHEAD_BYTES = 64 << 10
"""Larger writes to the log are zeros ahead of it, which come once in many turns."""
TIMEOUT_S = 10.0
CALLS = (
    "mincore,pread64,preadv,preadv2,pwrite64,pwritev,fdatasync",
    "read,recvfrom,recvmsg,write,writev,sendto,sendmsg",
)


class Counted(TracedHotfire):
    """A broker whose calls are written down, without their contents."""

    def _command(self) -> list[str]:
        trace = ["strace", "-f", "--seccomp-bpf", "-ttt", "-yy", "-s", "0", "-e", f"trace={','.join(CALLS)}"]
        return [*trace, "-o", str(self.calls), *HotfireProcess._command(self)]


@dataclass
class Phase:
    """What one connection asked for, and the calls of the broker from its first to its last word."""

    port: int
    counts: Counter[str] = field(default_factory=Counter)

    def count(self, calls: list[Call]) -> None:
        of_peer = f":{self.port}]"
        ours = [number for number, call in enumerate(calls) if call.target.endswith(of_peer)]
        for call in calls[ours[0] : ours[-1] + 1]:
            if call.target.endswith(of_peer):
                self.counts["calls of its connection"] += 1
                self.counts["bytes of its connection"] += max(call.result, 0)
            elif call.name == "mincore":
                self.counts["spans of the log looked at"] += 1
                self.counts["bytes of the log looked at"] += int(call.arguments.split(", ")[1])
            elif "/commitlog/" in call.target and call.result < AHEAD_BYTES:
                self.counts[f"{call.name} of the log"] += 1
                self.counts[f"bytes by {call.name} of the log"] += max(call.result, 0)


def check_alike(one: Phase, other: Phase) -> None:
    assert one.counts.keys() == other.counts.keys(), (one, other)
    for what, count in one.counts.items():
        assert abs(count - other.counts[what]) <= SPREAD * count, f"{what}: {count}, {other.counts[what]}"


async def send_and_read(broker: str, topic: str) -> Phase:
    """Messages one by one, each read at the tail as soon as it is acknowledged."""
    async with await Peer.connect(broker) as peer:
        phase = Phase(peer._link.transport.get_extra_info("sockname")[1])  # type: ignore[union-attr]
        for number in range(MESSAGES):
            await peer.ask(send_request(topic=topic, body=BODY), TIMEOUT_S)
            reply = await peer.ask(pull_request(number, topic=topic), TIMEOUT_S)
            assert len(list(iter_records(reply.body))) == 1
    return phase


async def fill(broker: str, topic: str) -> None:
    request = batch_request(*[BatchMessage(BODY, b"UNIQ_KEY\x01%032X" % 7)] * BATCH, topic=topic)
    async with await Peer.connect(broker) as peer:
        for _ in range(BACKLOG // BATCH):
            await peer.ask(request, TIMEOUT_S)


async def drain(broker: str, topic: str, first: int) -> tuple[Phase, int, int]:
    """So many messages from `first` on, each once; and how many bytes and pulls that were."""
    async with await Peer.connect(broker) as peer:
        phase = Phase(peer._link.transport.get_extra_info("sockname")[1])  # type: ignore[union-attr]
        offset, size, pulls = first, 0, 0
        while offset < first + DRAINED:
            reply = await peer.ask(pull_request(offset, topic=topic, max_msg_nums=PULLED), TIMEOUT_S)
            records = list(iter_records(reply.body))
            assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
            offset, size, pulls = offset + len(records), size + len(reply.body), pulls + 1
    assert offset == first + DRAINED
    return phase, size, pulls


def test_a_backlog_costs_those_beside_it_and_its_reader_nothing(tmp_path: Path) -> None:
    """Sends and reads at the tail make the same calls for as many bytes, beside nothing and beside 200 000
    messages that nobody reads. Draining these from the start is as reading the newest, each byte once."""
    server = Counted(tmp_path, arguments=["--set", f"mappedFileSizeCommitLog={SEGMENT_BYTES}"])
    with server:
        for topic in ("Empty", "Backlog", "Beside"):
            create_topic(server.broker, topic, 1)
        empty = asyncio.run(send_and_read(server.broker, "Empty"))
        asyncio.run(fill(server.broker, "Backlog"))
        assert max_offsets(server.broker, "Backlog", 1) == [BACKLOG]
        beside = asyncio.run(send_and_read(server.broker, "Beside"))
        oldest, size, pulls = asyncio.run(drain(server.broker, "Backlog", 0))
        newest, _, _ = asyncio.run(drain(server.broker, "Backlog", BACKLOG - DRAINED))
    assert len(list((server.store / "commitlog").iterdir())) > 4
    with server.calls.open() as lines:
        calls = list(parse(lines))
    for phase in (empty, beside, oldest, newest):
        phase.count(calls)
    assert empty.counts["fdatasync of the log"] == MESSAGES
    check_alike(empty, beside)
    check_alike(oldest, newest)
    assert size <= oldest.counts["bytes of the log looked at"] <= size + 2 * PAGE_BYTES * pulls

"""Messages with a time of their own, through a broker in a process of its own: how near they come to it."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from hotfire.net.peer import Peer
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import SendReply
from tests.broker.programs import running, up
from tests.broker.stalls import Stalls
from tests.peers import remoting
from tests.unit.broker.harness import FOUND, SUBSCRIPTION, SUSPEND, pull_request, send_request

COUNT, AT_ONCE, QUEUES = 1000, 100, 4
AHEAD_MS, SPREAD_MS, LATE_MS_MAX = 700, 2000, 100
TIMEOUT_S = 30.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def send_all(address: str) -> dict[bytes, int]:
    """Each message's body, and when it is due: at any millisecond of two seconds."""
    rng, due = random.Random(100), dict[bytes, int]()
    async with await Peer.connect(address) as peer:
        for first in range(0, COUNT, AT_ONCE):
            requests, began_ms = [], now_ms()
            for number in range(first, first + AT_ONCE):
                body, at = b"%d" % number, began_ms + AHEAD_MS + rng.randrange(SPREAD_MS)
                named = {"UNIQ_KEY": f"{number:032d}", "TIMER_DELIVER_MS": str(at)}
                requests.append(send_request(queue_id=number % QUEUES, body=body, named=named))
                due[body] = at
            answers = await asyncio.gather(*(peer.ask(request, TIMEOUT_S) for request in requests))
            assert all(SendReply.from_command(answer).msg_id for answer in answers)
    return due


async def read_queue(address: str, queue: int, stored: dict[bytes, int], came: dict[bytes, int]) -> None:
    """When the broker stored each message of a queue in its topic, and when a reader at its end had it."""
    offset = 0
    async with await Peer.connect(address) as peer:
        while offset < COUNT // QUEUES:
            pull = pull_request(offset, queue_id=queue, flag=SUBSCRIPTION | SUSPEND)
            reply = await peer.invoke(pull, TIMEOUT_S)
            for record in iter_records(reply.body if reply.code == FOUND else b""):
                assert record.body not in came, "delivered twice"
                stored[record.body], came[record.body] = record.store_timestamp, now_ms()
                offset += 1


@pytest.mark.timeout(120)
def test_none_is_early_and_none_100_ms_late(in_memory: Path) -> None:
    """A thousand due within two seconds: each is in its topic at its time and at most 100 ms later, by the
    broker's clock, but for what the machine itself stood still meanwhile."""
    stored, came = dict[bytes, int](), dict[bytes, int]()

    async def send_and_read(address: str) -> dict[bytes, int]:
        async with asyncio.timeout(2 * TIMEOUT_S), asyncio.TaskGroup() as readers:
            for queue in range(QUEUES):
                readers.create_task(read_queue(address, queue, stored, came))
            return await send_all(address)

    with running(in_memory, *up(in_memory)) as server, Stalls() as stalls:
        remoting.create_topic(server.broker, "T", QUEUES)
        due = asyncio.run(send_and_read(server.broker))
    assert stored.keys() == due.keys()
    assert not {body: (at, came[body]) for body, at in due.items() if not at <= stored[body] <= came[body]}
    too_late = {
        body: stored[body] - at
        for body, at in due.items()
        if stored[body] - at > LATE_MS_MAX + stalls.within_ms(at, stored[body])
    }
    assert not too_late, f"stalls: {stalls.found}"

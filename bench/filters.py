"""What a bad filter costs a good one: round trips of pulls through one filter, alone and beside others that
raise, hang and eat memory, on one filter server.

    python -m bench.filters [--seconds N]

Says the 99th percentile of each and how it compares with the good filter alone; 2 times that is the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from hotfire import Message, Producer
from hotfire.net.peer import Peer
from hotfire.protocol.requests import PullMessage
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess, executable
from tests.peers.jars import ROOT
from tests.peers.process import LineProcess

GOAL = 2.0
MESSAGES = 2000
PAUSE_S = 0.005
BESIDE_AT_A_TIME, BESIDE_PAUSE_S = 4, 0.1
"""Consumers whose pull failed wait seconds before the next, Java's and ours; these are in more of a hurry."""
PLACE = "tests.unit.filtersrv.installed"
BAD = ("raises", "hangs", "eats")


def pull(name: str, offset: int) -> PullMessage:
    return PullMessage(
        consumer_group="measuring", topic="Filtered", queue_id=0, queue_offset=offset, max_msg_nums=32,
        sys_flag=4 | 8, commit_offset=0, suspend_timeout_millis=0, subscription=name, sub_version=0,
        expression_type="TAG",
    )  # fmt: skip


async def waits_ms(address: str, seconds: float, beside: str | None) -> list[float]:
    """Round trips of pulls by the good filter, in ms, shortest first."""
    peer, other = await Peer.connect(address), await Peer.connect(address)
    done = asyncio.Event()

    async def disturb() -> None:
        assert beside is not None
        while not done.is_set():
            await other.invoke(pull(beside, 0), 60.0)
            await asyncio.sleep(BESIDE_PAUSE_S)

    disturbing = [asyncio.create_task(disturb()) for _ in range(BESIDE_AT_A_TIME if beside else 0)]
    await peer.invoke(pull("red", 0), 60.0)  # it is started by the first
    waits: list[float] = []
    until, offset = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = time.monotonic()
        reply = await peer.invoke(pull("red", offset), 60.0)
        waits.append((time.monotonic() - began) * 1e3)
        assert reply.code == 0, reply.remark
        offset = (offset + 32) % (MESSAGES - 32)
        await asyncio.sleep(PAUSE_S)
    done.set()
    await asyncio.gather(*disturbing)
    await peer.close()
    await other.close()
    return sorted(waits)


async def fill(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        sends = [
            producer.send(
                Message("Filtered", b"x" * 200, properties={"colour": "red" if n % 4 == 0 else "blue"})
            )
            for n in range(MESSAGES)
        ]
        await asyncio.gather(*sends)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as scratch, HotfireProcess(Path(scratch) / "server") as server:
        remoting.create_topic(server.broker, "Filtered", 1)
        asyncio.run(fill(server.namesrv))
        filters = ",".join(f"{name}={PLACE}:{name}" for name in ("red", *BAD))
        settings = {
            "bindAddress": "127.0.0.1", "filterServerIP": "127.0.0.1", "connectWhichBroker": server.broker,
            "filters": filters, "filterTimeoutMillis": "500",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        program = LineProcess(
            [str(executable()), "filtersrv", *words],
            log=Path(scratch) / "filtersrv.err",
            env={"PYTHONPATH": str(ROOT)},
        )
        try:
            line = program.wait_line(lambda text: "ready" in text, what="ready line", timeout_s=60)
            address = line.split("filtersrv=")[1].split()[0]
            alone, missed = 0.0, False
            for beside in (None, *BAD):
                waits = asyncio.run(waits_ms(address, seconds, beside))
                p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
                alone = alone or p99
                missed = missed or p99 > GOAL * alone
                sys.stdout.write(
                    f"beside={beside or 'nothing'} pulls={len(waits)} p50={p50:.2f}ms p99={p99:.2f}ms "
                    f"times={p99 / alone:.2f} goal={GOAL:g}\n"
                )
        finally:
            program.terminate(20)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())

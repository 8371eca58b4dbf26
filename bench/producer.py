"""How fast one Python producer is: later sends, a window of them under way, beside the C load generator.

    python -m bench.producer --flush sync --window 512 --seconds 5

Both take turns at one broker of ours. On a machine others use look at the processor time per message: a
producer alone on a core sends a million divided by it a second.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import deque
from pathlib import Path

from bench.cases import FLUSHES
from bench.drivers import LoadTools
from hotfire import Message, Producer, SendResult
from tests.peers.hotfire import HotfireProcess, cpu_seconds

BODY = bytes(128)
WARM = 64


async def produce(namesrv: str, *, window: int, seconds: float) -> tuple[int, float, float]:
    """Messages stored, and what they took: seconds by the clock and of this process."""
    async with Producer(namesrv, timeout_s=30.0) as producer:
        for _ in range(WARM):
            await producer.send_soon(Message("Bench", BODY))
        pending: deque[asyncio.Future[SendResult]] = deque()
        count, started, worked = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - started < seconds:
            for _ in range(window):
                if len(pending) >= window:
                    await pending.popleft()
                pending.append(producer.send_soon(Message("Bench", BODY)))
            count += window
        await asyncio.gather(*pending)
        return count, time.perf_counter() - started, time.process_time() - worked


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=sorted(FLUSHES), default="sync")
    parser.add_argument("--window", type=int, default=512, help="sends under way at once")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tools = LoadTools(directory)
        with HotfireProcess(directory / "broker", flush_disk_type=FLUSHES[args.flush]) as server:
            for _ in range(args.turns):
                loaded = tools.send(
                    server.broker, "Bench", connections=8, window=64, body=len(BODY), seconds=args.seconds
                )
                before = cpu_seconds(server.pid)
                run = produce(server.namesrv, window=args.window, seconds=args.seconds)
                count, took_s, worked_s = asyncio.run(run)
                broker_us = (cpu_seconds(server.pid) - before) / count * 1e6
                print(
                    f"producer {count / took_s:9,.0f} msg/s  {worked_s / count * 1e6:5.2f} us each,"
                    f" the broker {broker_us:5.2f};  load generator {loaded.rate:9,.0f} msg/s"
                    f"  ratio {count / took_s / loaded.rate:.2f}"
                )


if __name__ == "__main__":
    main()

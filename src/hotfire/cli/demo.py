"""hotfire demo: a cluster on this machine, a broker killed in the middle of it, and an honest count.

The broker runs as its own process and is killed with SIGKILL while messages are being sent; a fresh one takes
its directory over. Senders try again until they are answered, as a real producer would. What was acknowledged
must be stored, and what is stored must be consumed: the exit code says whether it was.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hotfire.client.producer import Producer
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError, HotfireError
from hotfire.model import Message

TOPIC = "demo"
SENDERS = 64
READY_TIMEOUT_S = 20.0
TRY_AGAIN_S = 0.05
CATCH_UP_TIMEOUT_S = 60.0


def run(args: argparse.Namespace) -> int:
    if args.messages < 1:
        raise ConfigError(f"--messages {args.messages}: must be at least 1")
    logging.disable(logging.WARNING)  # a broker that dies on purpose is nothing to be warned of
    directory = tempfile.mkdtemp(prefix="hotfire-demo-")
    try:
        return asyncio.run(Demo(args.messages, directory).run())
    finally:
        if args.keep:
            print(f"data kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Demo:
    """One run: what was asked of the cluster and what came of it."""

    count: int
    directory: str
    acknowledged: set[int] = field(default_factory=set)
    consumed: dict[int, int] = field(default_factory=dict)
    expected: int = sys.maxsize
    tried_again: int = 0
    midway: asyncio.Event = field(default_factory=asyncio.Event)
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    name_server: str = ""
    broker: str = ""

    async def run(self) -> int:
        process = await self._start_cluster("starting a name server and a broker")
        try:
            async with Producer(self.name_server) as producer:
                await producer.send(Message(TOPIC, b"first"))  # creates the topic
                async with TopicReader(self.name_server, TOPIC, start="earliest") as reader:
                    consuming = asyncio.create_task(self._consume(reader))
                    killing = asyncio.create_task(self._kill_and_restart(process))
                    await self._send(producer)
                    process = await killing
                    stored = await self._read_back()
                    await self._catch_up(len(stored))
                    consuming.cancel()
        finally:
            await _stop(process)
        return self._report(stored)

    # --- the cluster ---

    async def _start_cluster(self, why: str) -> asyncio.subprocess.Process:
        name_port, broker_port = _port(self.name_server), _port(self.broker)
        print(f"{why} in {self.directory}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hotfire.cli", "up", "--data", self.directory,
            "--namesrv-port", name_port, "--broker-port", broker_port,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), READY_TIMEOUT_S)).decode()
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "namesrv" not in facts:
            raise HotfireError("the broker did not start; `hotfire up` on its own says why")
        self.name_server, self.broker = facts["namesrv"], facts["broker"]
        print(f"  name server {self.name_server}, broker {self.broker}, pid {process.pid}")
        return process

    async def _kill_and_restart(self, process: asyncio.subprocess.Process) -> asyncio.subprocess.Process:
        await self.midway.wait()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        print(f"\n  kill -9 {process.pid}: {len(self.acknowledged)} messages acknowledged so far")
        began = time.monotonic()
        fresh = await self._start_cluster("  starting again")
        print(f"  back after {time.monotonic() - began:.2f} s")
        return fresh

    # --- the work ---

    async def _send(self, producer: Producer) -> None:
        numbers = iter(range(self.count))

        async def send_some() -> None:
            for number in numbers:
                await self._send_until_answered(producer, number)
                self.acknowledged.add(number)
                if len(self.acknowledged) >= self.count // 2:
                    self.midway.set()
                self._progress()

        await asyncio.gather(*(send_some() for _ in range(SENDERS)))
        print()

    async def _send_until_answered(self, producer: Producer, number: int) -> None:
        while True:
            with suppress(HotfireError):
                await producer.send(Message(TOPIC, b"message %d" % number, keys=(str(number),)))
                return
            self.tried_again += 1
            await asyncio.sleep(TRY_AGAIN_S)

    async def _consume(self, reader: TopicReader) -> None:
        async for message in reader:
            if message.body != b"first":
                number = int(message.body.split()[1])
                self.consumed[number] = self.consumed.get(number, 0) + 1
                if len(self.consumed) >= self.expected:
                    self.caught_up.set()

    async def _read_back(self) -> set[int]:
        stored = set()
        async with TopicReader(self.name_server, TOPIC, start="earliest", follow=False) as reader:
            async for message in reader:
                if message.body != b"first":
                    stored.add(int(message.body.split()[1]))
        return stored

    async def _catch_up(self, expected: int) -> None:
        """Wait until the consumer has all that is stored; the report says so if it does not get there."""
        self.expected = expected
        if len(self.consumed) < expected:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.caught_up.wait(), CATCH_UP_TIMEOUT_S)

    def _progress(self) -> None:
        done, on_screen = len(self.acknowledged), sys.stdout.isatty()
        if done % max(1, self.count // (40 if on_screen else 5)) == 0 or done == self.count:
            line = f"  acknowledged {done}/{self.count}, consumed {len(self.consumed)}"
            print(f"\r{line}" if on_screen else line, end="" if on_screen else "\n", flush=True)

    def _report(self, stored: set[int]) -> int:
        lost = self.acknowledged - stored
        missed = stored - self.consumed.keys()
        again = sum(times - 1 for times in self.consumed.values())
        print(
            f"sent {self.count}  acknowledged {len(self.acknowledged)}  stored {len(stored)}  "
            f"consumed {len(self.consumed)}  lost {len(lost)}"
        )
        print(f"  {self.tried_again} sends got no answer and were repeated; {again} were stored twice")
        if lost or missed:
            print(f"  acknowledged and not stored: {len(lost)}, such as {sorted(lost)[:10]}")
            print(f"  stored and not consumed: {len(missed)}, such as {sorted(missed)[:10]}")
            return 1
        return 0


def _port(address: str) -> str:
    return address.rpartition(":")[2] or "0"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()

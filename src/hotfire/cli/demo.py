"""hotfire demo: a cluster on this machine, a broker killed in the middle of it, and an honest count.

The broker runs as its own process and is killed with SIGKILL while orders are being sent; a fresh one takes
its directory over. Senders whose answer never came ask whether the order is stored, and send it again if not.
What was acknowledged must be stored, and what is stored must be consumed: the exit code says whether it was.
Where Spark is installed the orders then go through its pipelines (`demospark`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hotfire.cli import demospark
from hotfire.client.admin import Admin
from hotfire.client.confirm import NotStored, Stored
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.producer import Producer
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError, HotfireError
from hotfire.model import Message, ReceivedMessage

TOPIC, GROUP = "orders", "billing"
QUEUES = 4
SENDERS = 64
READY_TIMEOUT_S = 20.0
TRY_AGAIN_S = 0.05
CATCH_UP_TIMEOUT_S = 60.0


def run(args: argparse.Namespace) -> int:
    if args.messages < 1:
        raise ConfigError(f"--messages {args.messages}: must be at least 1")
    logging.disable(logging.WARNING)  # a broker that dies on purpose is nothing to be warned of
    directory = tempfile.mkdtemp(prefix="hotfire-demo-")
    picture = Path(args.picture).resolve()
    try:
        return Demo(args.messages, directory, picture, has_spark=not args.no_spark).run()
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
    picture: Path
    has_spark: bool
    acknowledged: dict[int, str] = field(default_factory=dict)
    """Orders by number, and the ids of their messages."""
    consumed: dict[int, int] = field(default_factory=dict)
    expected: int = sys.maxsize
    tried_again: int = 0
    midway: asyncio.Event = field(default_factory=asyncio.Event)
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    name_server: str = ""
    broker: str = ""

    def run(self) -> int:
        """Spark's part has no use for our loop, and wants the main thread for its signals."""
        with asyncio.Runner() as runner:
            try:
                return runner.run(self._send_and_consume()) or self._analyse()
            finally:
                runner.run(self._stop_cluster())

    async def _send_and_consume(self) -> int:
        self.process = await self._start_cluster("starting a name server and a broker")
        async with Admin(self.name_server) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with (
            Producer(self.name_server, retries=0) as producer,
            Consumer(self.name_server, group=GROUP, consume_from=ConsumeFrom.FIRST) as consumer,
        ):
            consumer.subscribe(TOPIC, self._consume)
            killing = asyncio.create_task(self._kill_and_restart(self.process))
            await self._send(producer)
            self.process = await killing
            stored = await self._read_back()
            await self._catch_up(len(stored))
        return self._report(stored)

    def _analyse(self) -> int:
        if not self.has_spark:
            return 0
        if not demospark.is_there():
            print("the pipelines need Spark: pip install 'hotfire[spark]'")
            return 0
        print("the orders as a table, in one session of Spark:")
        code = demospark.run(
            name_server=self.name_server,
            topic=TOPIC,
            group=GROUP,
            acknowledged=self.acknowledged.values(),
            directory=Path(self.directory),
            picture=self.picture,
        )
        if not code:
            print(f"rates and latencies are drawn in {self.picture}")
        return code

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

    async def _stop_cluster(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()

    # --- the work ---

    async def _send(self, producer: Producer) -> None:
        numbers = iter(range(self.count))

        async def send_some() -> None:
            for number in numbers:
                self.acknowledged[number] = await self._send_until_answered(producer, number)
                if len(self.acknowledged) >= self.count // 2:
                    self.midway.set()
                self._progress()

        await asyncio.gather(*(send_some() for _ in range(SENDERS)))
        print()

    async def _send_until_answered(self, producer: Producer, number: int) -> str:
        """The message's id. Without an answer, it is looked for before it is sent again."""
        body = json.dumps({"order": number, "cents": 100 + number % 900}).encode()
        while True:
            try:
                return (await producer.send(Message(TOPIC, body, keys=(f"order-{number}",)))).message_id
            except HotfireError as error:
                is_stored = isinstance(await self._fate(producer, error), Stored)
                if is_stored and error.message_id is not None:
                    return error.message_id
            self.tried_again += 1

    async def _fate(self, producer: Producer, error: HotfireError) -> Stored | NotStored:
        if not error.outcome_unknown:
            await asyncio.sleep(TRY_AGAIN_S)
            return NotStored()
        while True:
            with suppress(HotfireError):  # it is not back yet
                return await producer.confirm(error)
            await asyncio.sleep(TRY_AGAIN_S)

    async def _consume(self, message: ReceivedMessage) -> None:
        number = _number(message)
        self.consumed[number] = self.consumed.get(number, 0) + 1
        if len(self.consumed) >= self.expected:
            self.caught_up.set()

    async def _read_back(self) -> dict[int, int]:
        """How often each order is stored."""
        stored: dict[int, int] = {}
        async with TopicReader(self.name_server, TOPIC, start="earliest", follow=False) as reader:
            async for message in reader:
                stored[_number(message)] = stored.get(_number(message), 0) + 1
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

    def _report(self, stored: dict[int, int]) -> int:
        lost = self.acknowledged.keys() - stored.keys()
        missed = stored.keys() - self.consumed.keys()
        twice = sum(times - 1 for times in stored.values())
        print(
            f"sent {self.count}  acknowledged {len(self.acknowledged)}  stored {len(stored)}  "
            f"consumed {len(self.consumed)}  lost {len(lost)}"
        )
        print(f"  {self.tried_again} were not stored the first time and sent again; stored twice: {twice}")
        if lost or missed:
            print(f"  acknowledged and not stored: {len(lost)}, such as {sorted(lost)[:10]}")
            print(f"  stored and not consumed: {len(missed)}, such as {sorted(missed)[:10]}")
            return 1
        return 0


def _number(message: ReceivedMessage) -> int:
    number: int = json.loads(message.body)["order"]
    return number


def _port(address: str) -> str:
    return address.rpartition(":")[2] or "0"

"""A consumer in a process of its own, to be killed.

    python -m tests.crash.member NAMESRV GROUP TOPIC JOURNAL [--orderly] [--name NAME] [--once PLACE]
                                 [--die WHERE:N]

writes a line to the journal, which all members of a test share, for each message it works on, and to its
output for each that is done. Ends in order on SIGTERM. `--once` does the effects of messages by their keys,
in an SQLite file or at redis://; `--die` kills it the Nth time it comes by there: before an effect, within
it, after it, or in the listener.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from hotfire import ConsumeFrom, Consumer, Once, ReceivedMessage, RedisOnce, SqliteOnce
from hotfire.client.once import by_key

EFFECTS = "effects"
WORK_S_MAX = 0.004


class Member:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        where, _, times = (arguments.die or "never:0").partition(":")
        self._dies_at, self._dies_after = where, int(times)
        self._passed: Counter[str] = Counter()
        self._journal = os.open(arguments.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._once: Once[Any] | None = None
        if arguments.once is not None:
            store: Any = redis_once(arguments.once) if "://" in arguments.once else SqliteOnce(arguments.once)
            self._once = Once(store, key=by_key)

    def _passes(self, where: str) -> None:
        self._passed[where] += 1
        if where == self._dies_at and self._passed[where] == self._dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    async def handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(random.uniform(0.0, WORK_S_MAX))  # so that who may pass another, does
        os.write(self._journal, message.body + b"\n")
        self._passes("listener")
        if self._once is not None:
            await self._once.run(message, lambda transaction: self._effect(transaction, message.keys[0]))
            self._passes("after")
        sys.stdout.write(f"{message.body.decode()}\n")
        sys.stdout.flush()

    def _effect(self, transaction: Any, key: str) -> None:
        self._passes("before")
        if hasattr(transaction, "incr"):
            transaction.hincrby(EFFECTS, key, 1)
        else:
            transaction.execute(f"INSERT INTO {EFFECTS} VALUES (?)", (key,))  # noqa: S608  # our own name
        self._passes("within")

    async def run(self) -> None:
        arguments, ended = self._arguments, asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        consumer = Consumer(
            arguments.namesrv,
            group=arguments.group,
            orderly=arguments.orderly,
            consume_from=ConsumeFrom.FIRST,
            instance_name=arguments.name,
        )
        consumer.subscribe(arguments.topic, self.handle)
        async with consumer:
            await ended.wait()


def redis_once(url: str) -> RedisOnce:
    return RedisOnce(redis.Redis.from_url(url))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("namesrv", "group", "topic"):
        parser.add_argument(name)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--orderly", action="store_true")
    for name in ("--name", "--once", "--die"):
        parser.add_argument(name)
    asyncio.run(Member(parser.parse_args()).run())


if __name__ == "__main__":
    main()

"""One client at work in a process of its own; prints `ready`, then one line of JSON with what it took.

    clientdrive.py produce hotfire|grpc|kafka ADDRESS TOPIC SECONDS
    clientdrive.py consume hotfire|grpc ADDRESS TOPIC COUNT
    clientdrive.py iterate hotfire|kafka ADDRESS TOPIC COUNT
    clientdrive.py idle hotfire ADDRESS TOPIC COUNT

Run by the interpreter that has the client; imports nothing of this project but the client it measures.
Producers keep a window of sends under way and wait for every answer; consumers hand each message to a
function of the application. Processor time is that of this whole process, all its threads, between the first
message and the last.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BODY = bytes(range(32, 127)) + b"-" * 33
WINDOW = 512
WARM = 200
GROUP = f"bench-{time.time_ns()}"
PAUSE_S = 0.01
FETCH_COUNT = 500  # less than the mebibyte that aiokafka asks for


@dataclass
class Took:
    count: int
    seconds: float
    cpu_s: float
    anonymous_bytes: int
    p50_ms: float | None = None
    p99_ms: float | None = None


class Span:
    """From `begin` until now."""

    def begin(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._clock

    def took(self, count: int) -> Took:
        status = Path("/proc/self/status").read_text()
        anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
        return Took(count, self.seconds, time.process_time() - self._cpu, anonymous)


class Arrivals:
    """Counts what a consumer is handed; the span begins with the first."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.count = wanted, 0
        self.span = Span()
        self.done = threading.Event()
        self.result: Took | None = None

    def take(self) -> None:
        if not self.count:
            self.span.begin()
        self.count += 1
        if self.count == self.wanted:
            self.result = self.span.took(self.count - 1)
            self.done.set()


def ready() -> None:
    print("ready", flush=True)


async def keep_window(send: Callable[[], Any], seconds: float) -> Took:
    """`send` begins one and gives what to await of it."""
    for _ in range(WARM):
        await send()
    ready()
    span, pending, count = Span(), deque[Any](), 0
    span.begin()
    while span.seconds < seconds:
        for _ in range(WINDOW):
            if len(pending) >= WINDOW:
                await pending.popleft()
            pending.append(send())
        count += WINDOW
    for one in pending:
        await one
    return span.took(count)


# --- Hotfire ------------------------------------------------------------------------------------------


async def produce_hotfire(address: str, topic: str, seconds: float) -> Took:
    from hotfire import Message, Producer

    async with Producer(address, timeout_s=30.0) as producer:
        return await keep_window(lambda: producer.send_soon(Message(topic, BODY)), seconds)


async def consume_hotfire(address: str, topic: str, count: int) -> Took:
    from hotfire import ConsumeFrom, Consumer, ReceivedMessage

    arrivals, done = Arrivals(count), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        arrivals.take()
        if arrivals.result is not None:
            done.set()

    async with Consumer(address, group=GROUP, consume_from=ConsumeFrom.FIRST) as consumer:
        consumer.subscribe(topic, handle)
        ready()
        await done.wait()
    assert arrivals.result is not None
    return arrivals.result


async def iterate_hotfire(address: str, topic: str, count: int) -> Took:
    from hotfire import ConsumeFrom, PullConsumer

    arrivals = Arrivals(count)

    async def handle(message: object) -> None:
        arrivals.take()

    async with PullConsumer(
        address, group=GROUP, consume_from=ConsumeFrom.FIRST, batch_count=FETCH_COUNT
    ) as consumer:
        consumer.subscribe(topic)
        ready()
        async for message in consumer:
            await handle(message)
            if arrivals.result is not None:
                return arrivals.result
    raise AssertionError("it ended by itself")


async def idle_hotfire(address: str, topic: str, count: int) -> Took:
    """One message at a time, with a pause: from before its send until its listener has it."""
    from hotfire import Consumer, Message, Producer, ReceivedMessage

    arrived = asyncio.Event()
    waits: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        waits.append((time.perf_counter_ns() - int(message.body)) / 1e6)
        arrived.set()

    async with Consumer(address, group=GROUP) as consumer, Producer(address) as producer:
        consumer.subscribe(topic, handle)
        for _ in range(WARM):  # until the queues are ours, and beyond
            await producer.send(Message(topic, b"%d" % time.perf_counter_ns()))
            await asyncio.sleep(PAUSE_S)
        while True:
            arrived.clear()
            await producer.send(Message(topic, b"%d" % time.perf_counter_ns()))
            try:
                await asyncio.wait_for(arrived.wait(), 1.0)
                break
            except TimeoutError:
                continue
        ready()
        await asyncio.sleep(PAUSE_S)
        waits.clear()
        span = Span()
        span.begin()
        for _ in range(count):
            arrived.clear()
            await producer.send(Message(topic, b"%d" % time.perf_counter_ns()))
            await arrived.wait()
            await asyncio.sleep(PAUSE_S)
        took = span.took(count)
    waits.sort()
    took.p50_ms, took.p99_ms = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    return took


# --- the official client, over gRPC ---------------------------------------------------------------------


def produce_grpc(address: str, topic: str, seconds: float) -> Took:
    from rocketmq import (  # type: ignore[import-not-found]
        ClientConfiguration,
        Credentials,
        Message,
        Producer,
    )

    producer = Producer(ClientConfiguration(address, Credentials()), (topic,))
    producer.startup()

    def send() -> Any:
        message = Message()
        message.topic, message.body = topic, BODY
        return producer.send_async(message)

    for _ in range(WARM):
        send().result()
    ready()
    span, pending, count = Span(), deque[Any](), 0
    span.begin()
    while span.seconds < seconds:
        for _ in range(WINDOW):
            if len(pending) >= WINDOW:
                pending.popleft().result()
            pending.append(send())
        count += WINDOW
    for one in pending:
        one.result()
    took = span.took(count)
    producer.shutdown()
    return took


def consume_grpc(address: str, topic: str, count: int) -> Took:
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        MessageListener,
        PushConsumer,
    )

    arrivals, lock = Arrivals(count), threading.Lock()

    class Handle(MessageListener):  # type: ignore[misc]  # untyped here: its package lives elsewhere
        def consume(self, message: Any) -> Any:
            with lock:
                arrivals.take()
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        ClientConfiguration(address, Credentials()), GROUP, Handle(), {topic: FilterExpression()}
    )
    consumer.startup()
    ready()
    arrivals.done.wait()
    assert arrivals.result is not None
    return arrivals.result


# --- aiokafka -------------------------------------------------------------------------------------------


async def produce_kafka(address: str, topic: str, seconds: float) -> Took:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found]

    async with AIOKafkaProducer(bootstrap_servers=address, acks=1) as producer:

        async def warm() -> None:
            await producer.send_and_wait(topic, BODY)

        for _ in range(WARM):
            await warm()
        ready()
        span, pending, count = Span(), deque[Any](), 0
        span.begin()
        while span.seconds < seconds:
            for _ in range(WINDOW):
                if len(pending) >= WINDOW:
                    await pending.popleft()
                pending.append(await producer.send(topic, BODY))
            count += WINDOW
        for one in pending:
            await one
        return span.took(count)


async def iterate_kafka(address: str, topic: str, count: int) -> Took:
    from aiokafka import AIOKafkaConsumer

    arrivals = Arrivals(count)

    async def handle(message: Any) -> None:
        arrivals.take()

    async with AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest"
    ) as consumer:
        ready()
        async for message in consumer:
            await handle(message)
            if arrivals.result is not None:
                return arrivals.result
    raise AssertionError("it ended by itself")


DRIVES: dict[tuple[str, str], Callable[..., Any]] = {
    ("produce", "hotfire"): produce_hotfire,
    ("consume", "hotfire"): consume_hotfire,
    ("iterate", "hotfire"): iterate_hotfire,
    ("idle", "hotfire"): idle_hotfire,
    ("produce", "grpc"): produce_grpc,
    ("consume", "grpc"): consume_grpc,
    ("produce", "kafka"): produce_kafka,
    ("iterate", "kafka"): iterate_kafka,
}


def main() -> None:
    what, whose, address, topic, amount = sys.argv[1:]
    result = DRIVES[what, whose](address, topic, int(amount))
    took = asyncio.run(result) if asyncio.iscoroutine(result) else result
    print(json.dumps(asdict(took)), flush=True)


if __name__ == "__main__":
    main()

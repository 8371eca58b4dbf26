"""The drill of a rescue: a group that cannot keep up, ten times the queues and consumers, and back.

Runs against a cluster in this process. As a program: `python -m tests.unit.spark.rescue 1000000 0.02`.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from hotfire import Consumer, Message, Producer, ReceivedMessage
from hotfire.client.admin import Admin
from hotfire.client.choosing import by_key_hash
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.spark.pipelines import reshard
from hotfire.testing.blocking import BlockingCluster
from tests.unit.spark.running import run_pipeline

TOPIC, GROUP, KEEPS_UP = "orders", "billing", "audit"
QUEUES, TIMES = 4, 10
KEYS = 1000
WORK_S = 0.1
"""Of a listener, for each message: what makes the group slow, and so long that a busy machine adds little."""
PART = 120
"""Consumed before the rescue, to see how slow it is."""
BATCH = 500


@dataclass
class Story:
    """What was sent and what became of it."""

    namesrv: str
    work_s: float
    sent: int = 0
    consumed: list[tuple[str, int]] = field(default_factory=list)
    """Key and number of each message, as listeners got them."""
    numbers: set[int] = field(default_factory=set)
    """Of those messages."""
    rates: dict[str, float] = field(default_factory=dict)


async def send(story: Story, count: int) -> None:
    """So many more orders, each key's in one queue, numbered."""
    async with Producer(story.namesrv, group="shop") as producer:
        queues = tuple(sorted(await producer.queues(TOPIC)))
        waiting: dict[object, list[Message]] = {queue: [] for queue in queues}
        for number in range(story.sent, story.sent + count):
            key = f"order-{number % KEYS}"
            message = Message(TOPIC, b"%d" % number, keys=(key,))
            queue = by_key_hash(queues, message, key)
            waiting[queue].append(message)
            if len(waiting[queue]) == BATCH:
                await producer.send_batch(waiting[queue], queue=queue)
                waiting[queue] = []
        for queue, rest in waiting.items():
            if rest:
                await producer.send_batch(rest, queue=queue)
    story.sent += count


async def consume(
    story: Story, name: str, group: str, topic: str, consumers: int, is_enough: Callable[[], bool]
) -> None:
    """Consumers of a group, in order, at work until there is enough; how fast they were is kept."""
    enough, times = asyncio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(story.work_s)
        number = int(message.body)
        story.consumed.append((message.keys[0], number))
        story.numbers.add(number)
        times.append(time.perf_counter())
        if is_enough():
            enough.set()

    running: list[Consumer] = []
    try:
        for number in range(consumers):
            consumer = Consumer(
                story.namesrv,
                group=group,
                orderly=True,
                consume_from=ConsumeFrom.FIRST,
                instance_name=f"{name}-{number}",
            )
            consumer.subscribe(topic, handle)
            await consumer.start()
            running.append(consumer)
        await enough.wait()
    finally:
        await asyncio.gather(*(consumer.close() for consumer in running))
    story.rates[name] = _rate(times)


def _rate(times: Sequence[float]) -> float:
    """Messages a second in the middle of the run: consumers come and go at its ends."""
    low, high = len(times) // 5, len(times) * 4 // 5
    return (high - low) / (times[high] - times[low])


async def group_behind(namesrv: str) -> tuple[str, int]:
    """The group that is furthest behind, and by how many messages."""
    async with Admin(namesrv) as admin:
        lags = [await admin.lag(group) for group in await admin.groups()]
    return max(((one.group, one.total) for one in lags), key=lambda pair: pair[1])


async def keep_up(namesrv: str) -> None:
    """Another group, which has read everything: it must not be the one that is named."""
    async with Admin(namesrv) as admin:
        await admin.create_group(KEEPS_UP)
        await admin.skip_to_end(KEEPS_UP, TOPIC)


def drill(
    spark: SparkSession,
    cluster: BlockingCluster,
    count: int,
    *,
    work_s: float = WORK_S,
    by: str = "key",
    tell: Callable[[str], None] = lambda _: None,
) -> Story:
    """All of it, from the first message to the last."""
    story = Story(cluster.namesrv, work_s)
    cluster.create_topic(TOPIC, queues=QUEUES)
    began_s = time.perf_counter()
    asyncio.run(send(story, count))
    tell(f"{count:,} messages piled up, {count / (time.perf_counter() - began_s):,.0f} a second")
    asyncio.run(keep_up(story.namesrv))

    asyncio.run(consume(story, "before", GROUP, TOPIC, 1, lambda: len(story.consumed) >= PART))
    tell(f"one consumer of {QUEUES} queues: {story.rates['before']:,.0f} a second")
    group, behind = asyncio.run(group_behind(story.namesrv))
    assert group == GROUP
    tell(f"group {group} is {behind:,} messages behind; its consumer is stopped")

    began_s = time.perf_counter()
    assert (
        run_pipeline(spark, reshard, namesrv=story.namesrv, group=group, topic=TOPIC, times=TIMES, by=by) == 0
    )
    story.rates["moved"] = behind / (time.perf_counter() - began_s)
    tell(f"moved to {QUEUES * TIMES} queues and looked at, {story.rates['moved']:,.0f} a second")

    asyncio.run(send(story, min(count // 20, 1000)))  # producers were never stopped
    rescue_group, rescue_topic = f"{GROUP}_rescue", f"{TOPIC}_rescue"
    asyncio.run(
        consume(story, "rescue", rescue_group, rescue_topic, TIMES, lambda: len(story.numbers) >= count)
    )
    tell(f"{TIMES} consumers: {story.rates['rescue']:,.0f} a second")

    assert (
        run_pipeline(spark, reshard, namesrv=story.namesrv, group=group, topic=TOPIC, back=True, drop=True)
        == 0
    )
    asyncio.run(consume(story, "after", GROUP, TOPIC, 1, lambda: len(story.numbers) >= story.sent))
    tell(f"back in topic {TOPIC}: {story.sent - count:,} more, {story.rates['after']:,.0f} a second")
    return story


def disordered(consumed: Sequence[tuple[str, int]]) -> int:
    """Messages that came before an earlier one of their key; what comes again does not count."""
    last: dict[str, int] = {}
    wrong, seen = 0, set()
    for key, number in consumed:
        if number in seen:
            continue
        seen.add(number)
        wrong += number < last.get(key, -1)
        last[key] = max(last.get(key, -1), number)
    return wrong


def main() -> None:
    from hotfire.spark.session import session
    from hotfire.testing import Cluster

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    work_s = float(sys.argv[2]) if len(sys.argv) > 2 else WORK_S
    with Cluster() as cluster:
        story = drill(session("local[2]"), cluster, count, work_s=work_s, tell=print)
    times = story.rates["rescue"] / story.rates["before"]
    repeats = len(story.consumed) - len(set(story.consumed))
    wrong = disordered(story.consumed)
    sys.stdout.write(f"drained {times:.1f} times as fast; {repeats} came again, {wrong} out of order\n")


if __name__ == "__main__":
    main()

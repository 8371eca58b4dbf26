"""A strategy of the application's own that fails: told, tried again, and nobody else's trouble."""

import logging
from collections.abc import Callable, Sequence

import pytest

from hotfire import MessageQueue, PullConsumer
from hotfire.allocation import AVERAGELY, Strategy
from hotfire.client.consumer import Consumer
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, run, settles


class Shelves:
    """AVERAGELY, until it is told to fail at topic T."""

    def __init__(self) -> None:
        self.fails: Callable[[], object] | None = None
        self.failed_count = 0
        self.strategy = Strategy("BY_SHELF", self._share)

    def _share(
        self, client_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        if queues[0].topic == "T" and self.fails is not None:
            self.failed_count += 1
            return self.fails()  # type: ignore[return-value]
        return AVERAGELY.share(client_id, queues, ids)


def raises() -> None:
    raise KeyError("no such shelf")


def forgets_to_return() -> None:
    pass


def returns_numbers() -> list[int]:
    return [0, 1]


def members(cluster: Cluster, shelves: Shelves) -> tuple[Consumer | PullConsumer, ...]:
    """Two with the strategy, and one without that shares their client."""
    pushed = Consumer(cluster.namesrv, group="pushed", allocation=shelves.strategy, instance_name="shared")
    polled = PullConsumer(
        cluster.namesrv, group="polled", allocation=shelves.strategy, instance_name="shared"
    )
    plain = Consumer(cluster.namesrv, group="plain", instance_name="shared")
    for topic in ("T", "U"):
        for one in (pushed, plain):
            one.subscribe(topic, Seen())
        polled.subscribe(topic)
    return pushed, polled, plain


def count(member: Consumer | PullConsumer, topic: str) -> int:
    queues = member.assignment() if isinstance(member, PullConsumer) else member.queues
    return sum(queue.topic == topic for queue in queues)


@pytest.mark.parametrize("fails", [raises, forgets_to_return, returns_numbers])
def test_a_strategy_that_fails_is_one_topics_trouble(
    fails: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Both topics grow, and it fails at one: the other topic and the other member have their new queues all
    the same, the log names it once for each group, and once it is well the rest comes within seconds."""

    async def scenario(cluster: Cluster) -> None:
        for topic in ("T", "U"):
            await cluster.create_topic(topic, queues=4)
        shelves = Shelves()
        pushed, polled, plain = members(cluster, shelves)

        def counts(*wanted: int) -> bool:
            return [count(one, topic) for topic in "TU" for one in (pushed, polled, plain)] == [*wanted]

        async with pushed, polled, plain:
            await settles(cluster, lambda: counts(4, 4, 4, 4, 4, 4), within_s=5)
            for topic in ("T", "U"):
                await cluster.create_topic(topic, queues=6)
            shelves.fails = fails
            await plain._running.instance.refresh_routes()
            await settles(cluster, lambda: counts(4, 4, 6, 6, 6, 6), within_s=5)
            await settles(cluster, lambda: shelves.failed_count >= 6, within_s=10)
            told = [record for record in caplog.records if "BY_SHELF failed for topic T" in record.message]
            assert sorted(record.message.split()[0] for record in told) == ["group=polled", "group=pushed"]
            assert all(record.exc_info for record in told)
            shelves.fails = None
            await settles(cluster, lambda: counts(6, 6, 6, 6, 6, 6), within_s=5)

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        run(scenario)


def test_a_mistake_of_one_members_own_is_not_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever one member's look at its queues ends with, the others go on having theirs looked at."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        mistaken, sound = (
            Consumer(cluster.namesrv, group=group, instance_name="shared") for group in ("mistaken", "sound")
        )
        for one in (mistaken, sound):
            one.subscribe("T", Seen())
        async with mistaken, sound:
            await settles(cluster, lambda: count(sound, "T") == 4, within_s=5)
            monkeypatch.setattr(mistaken, "rebalance", raises)
            for queues in (5, 6):
                await cluster.create_topic("T", queues=queues)
                await sound._running.instance.refresh_routes()
                await settles(cluster, lambda queues=queues: count(sound, "T") == queues, within_s=5)
            assert "group=mistaken rebalance failed" in caplog.text

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        run(scenario)

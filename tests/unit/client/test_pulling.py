"""One pull: which broker is asked, and what it is told."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hotfire.client.pulling import LITE, SUBSCRIPTION, Puller, PullStatus
from hotfire.client.routes import topic_route
from hotfire.client.subscriptions import Subscriptions, subscription
from hotfire.errors import BrokerRefused, ConfigError, NoRoute
from hotfire.model import BrokerData, MessageQueue, QueueData, RouteData
from hotfire.protocol.command import Command
from hotfire.protocol.requests import PullMessage, PullReply

QUEUE = MessageQueue("T", "b", 0)


class Brokers:
    """Answers pulls with what is `suggested`, and remembers who was asked what."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids
        self.suggested = 0
        self.code = 19
        self.asked: list[tuple[str, PullMessage]] = []
        self.routes = SimpleNamespace(to_read=self._route, refresh=self._route)

    async def _route(self, topic: str, timeout_s: float) -> Any:
        addresses = {number: f"broker-{number}" for number in self.ids}
        return topic_route(
            topic,
            RouteData((QueueData("b", 1, 1, 6),), (BrokerData("c", "b", addresses),) if addresses else ()),
        )

    async def invoke(self, address: str, request: PullMessage, deadline: float) -> Command:
        self.asked.append((address, request))
        reply = PullReply(
            suggest_which_broker_id=self.suggested, next_begin_offset=7, min_offset=0, max_offset=9
        )
        return Command(self.code, fields=reply.to_fields())


def test_the_broker_that_was_suggested_is_asked_and_only_a_master_keeps_offsets() -> None:
    """A slave that is gone: the next one; then any. The commit flag goes to masters alone."""

    async def scenario() -> None:
        brokers = Brokers(0, 1, 2)
        puller = Puller(brokers, "g")  # type: ignore[arg-type]
        for suggested, there in (
            (1, (0, 1, 2)),
            (2, (0, 1, 2)),
            (1, (0, 1)),
            (1, (0, 2)),
            (0, (0, 3)),
            (0, (3,)),
        ):
            brokers.suggested, brokers.ids = suggested, there
            await puller.pull(QUEUE, 5, subscription("T"), commit_offset=3)
        assert [address[-1] for address, _ in brokers.asked] == ["0", "1", "0", "2", "0", "3"]
        assert [request.sys_flag for _, request in brokers.asked] == [3, 2, 3, 2, 3, 2]
        assert [request.commit_offset for _, request in brokers.asked] == [3, 0, 3, 0, 3, 0]
        brokers.ids = ()
        with pytest.raises(NoRoute):
            await puller.pull(QUEUE, 5, subscription("T"))

    asyncio.run(scenario())


def test_what_a_pull_says_and_what_its_answer_means() -> None:
    """Hold times, expressions and flags as they are asked for; codes become statuses, others are raised."""

    async def scenario() -> None:
        brokers = Brokers(0)
        puller = Puller(brokers, "g", flags=SUBSCRIPTION | LITE, count_max=10, suspend_ms=20_000)  # type: ignore[arg-type]
        for code, status in ((0, PullStatus.FOUND), (19, PullStatus.NOTHING_NEW),
                             (20, PullStatus.NOTHING_MATCHED), (21, PullStatus.OFFSET_MOVED)):  # fmt: skip
            brokers.code = code
            pulled = await puller.pull(QUEUE, 5, subscription("T", "a||b", version=4))
            assert (pulled.status, pulled.next_offset, pulled.max_offset) == (status, 7, 9)
        _, request = brokers.asked[0]
        assert (request.sys_flag, request.subscription, request.sub_version) == (2 | 4 | 16, "a||b", 4)
        assert (request.max_msg_nums, request.suspend_timeout_millis) == (10, 20_000)
        await puller.pull(QUEUE, 5, subscription("T"), suspend=False)
        _, request = brokers.asked[-1]
        assert (request.sys_flag & 2, request.suspend_timeout_millis) == (0, 0)
        brokers.code = 215
        with pytest.raises(BrokerRefused) as refused:
            await puller.pull(QUEUE, 5, subscription("T"))
        assert refused.value.code == 215

    asyncio.run(scenario())


def test_a_new_edition_counts_for_pulls_once_it_was_told() -> None:
    """Until a heartbeat carried it, pulls name the one brokers know; versions only grow."""
    subscriptions = Subscriptions()
    subscriptions.put(subscription("T", "a", version=1))
    subscriptions.renew("T", 5)
    assert [one.version for one in subscriptions.all()] == [5]
    assert subscriptions.to_pull("T") == subscription("T", "a", version=1)
    subscriptions.told(subscriptions.all())
    subscriptions.renew("T", 5)
    wanted = subscriptions.to_pull("T")
    assert wanted is not None
    assert wanted.version == 5
    assert [one.version for one in subscriptions.all()] == [6]
    subscriptions.remove("T")
    assert subscriptions.to_pull("T") is None
    with pytest.raises(ConfigError):
        subscription("T", " || ")

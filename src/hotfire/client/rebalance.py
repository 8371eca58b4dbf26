"""Which queues of a topic are ours: all members of a group compute it alone, from the same lists.

Owns the asking: the topic's queues from its route, the group's members from any of its brokers. What is done
about a change is the consumer's.
"""

from __future__ import annotations

import asyncio

from hotfire.allocation import AVERAGELY, BY_CIRCLE, CONSISTENT_HASH, Strategy, ids_in_order
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.routes import TopicRoute
from hotfire.errors import BrokerRefused, ConfigError, HotfireError, NoRoute
from hotfire.model import MessageQueue
from hotfire.protocol.bodies import ConsumerList, decode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetConsumerListByGroup

NAMED = {strategy.name: strategy for strategy in (AVERAGELY, BY_CIRCLE, CONSISTENT_HASH)}
"""Strategies that need no settings, and can be chosen by name."""


def strategy_of(chosen: str | Strategy) -> Strategy:
    """A strategy, or the one of that name."""
    if isinstance(chosen, Strategy):
        return chosen
    strategy = NAMED.get(chosen)
    if strategy is None:
        raise ConfigError(
            f"allocation {chosen!r:.60} is not known; there are {', '.join(NAMED)}, all others are made "
            "in hotfire.allocation"
        )
    return strategy


class StrategyFailed(HotfireError):
    """An allocation strategy raised instead of sharing queues; its cause says what."""


class Shares:
    """Our share of each topic."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        strategy: Strategy = AVERAGELY,
        broadcasting: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._strategy = strategy
        self._broadcasting = broadcasting

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of the topic that may be read, in order. NoRoute when nobody knows it."""
        route = await self._instance.routes.to_read(topic, CALL_TIMEOUT_S)
        return list(route.read_queues)

    async def mine(self, topic: str) -> tuple[list[MessageQueue], list[str]]:
        """Our queues, and the client ids they are shared with. Raises when it cannot be known just now."""
        queues = await self.queues(topic)
        if self._broadcasting:
            return queues, [self._instance.client_id]
        client_ids = await self.members(topic)
        if not client_ids:
            raise NoRoute(f"topic {topic}: its broker knows no member of group {self._group} yet")
        return self._chosen(topic, queues, client_ids), client_ids

    def _chosen(self, topic: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        """What the strategy says, which may be the application's own: mistakes are one topic's trouble."""
        try:
            mine = list(self._strategy.share(self._instance.client_id, queues, client_ids))
            for queue in mine:
                if not isinstance(queue, MessageQueue):
                    raise TypeError(f"{queue!r:.60} is no MessageQueue")
        except Exception as error:
            raise StrategyFailed(
                f"allocation strategy {self._strategy.name} failed for topic {topic}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return mine

    async def members(self, topic: str) -> list[str]:
        """Client ids of the group, in order, as one of the topic's brokers knows them."""
        loop = asyncio.get_running_loop()
        route = await self._instance.routes.to_read(topic, CALL_TIMEOUT_S)
        address = self._any_broker(route)
        request = GetConsumerListByGroup(consumer_group=self._group)
        reply = await self._instance.invoke(address, request, loop.time() + CALL_TIMEOUT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return ids_in_order(set(decode_body(ConsumerList, reply.body).client_ids))

    def _any_broker(self, route: TopicRoute) -> str:
        """A master where there is one: the first to be told who comes and goes."""
        brokers = [broker for broker in route.data.brokers if broker.addresses]
        if not brokers:
            raise NoRoute(f"topic {route.topic}: it has no broker just now")
        broker = self._instance.rng.choice(brokers)
        return broker.addresses[min(broker.addresses)]

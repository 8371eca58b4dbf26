"""Which queues of a topic are ours: all members of a group compute it alone, from the same lists; or each has
it told by a broker of the topic.

Owns the asking: the topic's queues from its route, the group's members, or our share, from any of its
brokers. What is done about a change is the consumer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import NamedTuple

from hotfire.allocation import (
    AVERAGELY,
    BY_BROKER,
    BY_CIRCLE,
    CONSISTENT_HASH,
    Strategy,
    ids_in_order,
    in_order,
)
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.routes import TopicRoute
from hotfire.errors import BrokerRefused, ConfigError, HotfireError, NoRoute, NotAssigned, Timeout
from hotfire.model import MessageQueue
from hotfire.protocol.assignment import CLUSTERING, PULL, AssignmentQuery, Assignments
from hotfire.protocol.bodies import ConsumerList, decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetConsumerListByGroup, QueryAssignment

log = logging.getLogger("hotfire.client")

NAMED = {strategy.name: strategy for strategy in (AVERAGELY, BY_CIRCLE, CONSISTENT_HASH)} | {
    "BROKER": BY_BROKER
}
"""Strategies that need no settings, and can be chosen by name."""
SILENCES_MAX = 3
"""A broker that never answered is asked so often for our share before we compute it, as by Java's client."""


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


class Share(NamedTuple):
    queues: list[MessageQueue]
    is_member: bool
    """Whether the broker lists us in the group. One that tells our share does not say who else is there."""
    others: bool
    """Whether somebody else may have queues of the topic."""


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
        self._told: dict[str, bool] = {}
        """Topics a broker told our share of, and whether there was any: it is the brokers' to say since."""
        self._refused: set[str] = set()
        """Topics no broker told it of."""
        self._silences: Counter[str] = Counter()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of the topic that may be read, in order. NoRoute when nobody knows it."""
        route = await self._instance.routes.to_read(topic, CALL_TIMEOUT_S)
        return list(route.read_queues)

    async def mine(self, topic: str) -> Share:
        """Our queues. Raises when they cannot be known just now."""
        queues = await self.queues(topic)
        if self._broadcasting:
            return Share(queues, is_member=True, others=False)
        if self._strategy.asks_broker and topic not in self._refused:
            try:
                return Share(await self._told_by_broker(topic), is_member=True, others=True)
            except (BrokerRefused, Timeout) as error:
                if not self._is_final(topic, error):
                    raise
                log.warning("group=%s topic=%s is shared without its broker: %s", self._group, topic, error)
        client_ids = await self.members(topic)
        if not client_ids:
            raise NoRoute(f"topic {topic}: its broker knows no member of group {self._group} yet")
        mine = self._chosen(topic, queues, client_ids)
        return Share(mine, is_member=self._instance.client_id in client_ids, others=len(client_ids) > 1)

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

    async def _told_by_broker(self, topic: str) -> list[MessageQueue]:
        queues = await self._assigned(topic)
        if queues is None or (not queues and self._told.get(topic)):
            # It has not heard of us yet, or has forgotten us: to go by that would be to leave the group.
            await self._instance.greet_brokers()
            queues = await self._assigned(topic)
        if queues is None:
            raise NotAssigned(f"topic {topic}: its broker cannot say yet what group {self._group} is to read")
        self._told[topic] = bool(queues)
        return queues

    async def _assigned(self, topic: str) -> list[MessageQueue] | None:
        client_id = self._instance.client_id
        query = AssignmentQuery(topic, self._group, CLUSTERING, client_id, self._strategy.name)
        reply = await self._ask(topic, QueryAssignment(body=encode_body(query)))
        assigned = decode_body(Assignments, reply).assignments
        if assigned is not None and any(one.mode != PULL for one in assigned):
            raise NotAssigned(
                f"topic {topic}: its broker has group {self._group} pop messages, and this client pulls; "
                "set the group's mode for the topic to PULL, or choose another allocation"
            )
        return None if assigned is None else in_order({one.queue for one in assigned})

    def _is_final(self, topic: str, error: BrokerRefused | Timeout) -> bool:
        """Whether no broker is asked again. One that told us before is only in trouble for now."""
        if topic in self._told:
            return False
        self._silences[topic] += 1
        if isinstance(error, Timeout) and self._silences[topic] < SILENCES_MAX:
            return False
        self._refused.add(topic)
        return True

    async def members(self, topic: str) -> list[str]:
        """Client ids of the group, in order, as one of the topic's brokers knows them."""
        reply = await self._ask(topic, GetConsumerListByGroup(consumer_group=self._group))
        return ids_in_order(set(decode_body(ConsumerList, reply).client_ids))

    async def _ask(self, topic: str, request: GetConsumerListByGroup | QueryAssignment) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        route = await self._instance.routes.to_read(topic, CALL_TIMEOUT_S)
        address = self._any_broker(route)
        reply = await self._instance.invoke(address, request, loop.time() + CALL_TIMEOUT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return reply.body

    def _any_broker(self, route: TopicRoute) -> str:
        """A master where there is one: the first to be told who comes and goes."""
        brokers = [broker for broker in route.data.brokers if broker.addresses]
        if not brokers:
            raise NoRoute(f"topic {route.topic}: it has no broker just now")
        broker = self._instance.rng.choice(brokers)
        return broker.addresses[min(broker.addresses)]

"""Where topics are, as far as this client knows: a cache over the name servers.

A route once learnt is used until a newer one is, however long the name servers are away. Owns the rules
that turn a route into queues to write to and to read from, and the template that stands in for a topic
nobody has made yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from hotfire.allocation import readable_queues
from hotfire.client.nameservers import NameServers
from hotfire.client.single import SingleFlight
from hotfire.errors import HotfireError, NoRoute, TopicNotExist, Unreachable
from hotfire.model import AUTO_CREATE_TOPIC, BrokerData, ClusterInfo, MessageQueue, Perm, RouteData
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.requests import GetBrokerClusterInfo, GetRouteInfoByTopic

log = logging.getLogger("hotfire.client")

TEMPLATE_QUEUES_MAX = 4
"""Queues of a topic that is made by its first message (defaultTopicQueueNums of the Java client)."""


@dataclass(slots=True, frozen=True)
class TopicRoute:
    """A topic's route and what follows from it."""

    topic: str
    data: RouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    is_template: bool = False
    """Nobody has made the topic: its queues are those it will probably have."""

    def broker(self, name: str) -> BrokerData | None:
        return next((broker for broker in self.data.brokers if broker.name == name), None)

    def master(self, broker_name: str) -> str | None:
        """The address to write to."""
        broker = self.broker(broker_name)
        return None if broker is None else broker.master

    def any_address(self, broker_name: str) -> str | None:
        """The address to read from: the master's, or while there is none its smallest slave's."""
        broker = self.broker(broker_name)
        if broker is None or not broker.addresses:
            return None
        return broker.addresses[min(broker.addresses)]


def topic_route(topic: str, data: RouteData) -> TopicRoute:
    return TopicRoute(topic, data, _write_queues(topic, data), readable_queues(topic, data))


def _write_queues(topic: str, data: RouteData) -> tuple[MessageQueue, ...]:
    if data.order_topic_conf:
        counts = [pair.rpartition(":") for pair in data.order_topic_conf.split(";") if ":" in pair]
        return tuple(
            MessageQueue(topic, broker, queue_id)
            for broker, _, count in counts
            if count.isdigit()
            for queue_id in range(int(count))
        )
    masters = {broker.name for broker in data.brokers if broker.master is not None}
    return tuple(
        MessageQueue(topic, one.broker_name, queue_id)
        for one in sorted(data.queues, key=lambda one: one.broker_name)
        if one.perm & Perm.WRITE and one.broker_name in masters
        for queue_id in range(one.write_queues)
    )


def _from_template(topic: str, template: RouteData) -> TopicRoute:
    """The route a new topic will probably have: the template's brokers, with fewer queues."""
    queues = tuple(
        replace(
            one,
            read_queues=min(one.read_queues, TEMPLATE_QUEUES_MAX),
            write_queues=min(one.read_queues, TEMPLATE_QUEUES_MAX),
        )
        for one in template.queues
    )
    route = topic_route(topic, replace(template, queues=queues, order_topic_conf=None))
    return replace(route, is_template=True)


class Routes:
    """The routes a client uses, by topic."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._routes: dict[str, TopicRoute] = {}
        self._met: tuple[BrokerData, ...] = ()
        self._may_create: set[str] = set()
        self._asking: SingleFlight[str, TopicRoute] = SingleFlight()

    def known(self) -> tuple[TopicRoute, ...]:
        return tuple(self._routes.values())

    def brokers(self) -> Iterator[BrokerData]:
        """Those of the routes in use, and those met without one; some more than once."""
        for route in self._routes.values():
            yield from route.data.brokers
        yield from self._met

    async def meet(self, timeout_s: float) -> None:
        """Learn of brokers before there is a topic: those that make topics, as Java's producers do at their
        start, or all there are where none does."""
        try:
            self._met = (await self._fetch(AUTO_CREATE_TOPIC, timeout_s)).brokers
        except TopicNotExist:
            reply = await self._name_servers.ask(GetBrokerClusterInfo(), timeout_s)
            self._met = tuple(decode_body(ClusterInfo, reply.body).brokers.values())

    def peek(self, topic: str) -> TopicRoute | None:
        """The route in use, without asking anybody."""
        return self._routes.get(topic)

    async def to_write(self, topic: str, timeout_s: float) -> TopicRoute:
        """A route with queues to write to; for a topic nobody has made, one made of the template."""
        self._may_create.add(topic)
        return await self._with_queues(topic, timeout_s, lambda route: route.write_queues, "write to")

    async def to_read(self, topic: str, timeout_s: float) -> TopicRoute:
        """A route with queues to read from."""
        return await self._with_queues(topic, timeout_s, lambda route: route.read_queues, "read from")

    async def _with_queues(
        self, topic: str, timeout_s: float, queues: Callable[[TopicRoute], tuple[MessageQueue, ...]], use: str
    ) -> TopicRoute:
        route = self._routes.get(topic)
        if route is None or not queues(route):
            route = await self.refresh(topic, timeout_s)
        if not queues(route):
            names = ", ".join(broker.name for broker in route.data.brokers)
            raise NoRoute(
                f"topic {topic}: a broker to {use} does not exist just now; {names or 'none'} known, without "
                f"a master or the permission; {self._asked}"
            )
        return route

    async def refresh(self, topic: str, timeout_s: float) -> TopicRoute:
        """Ask now. NoRoute when no name server knows the topic, or none answers."""
        return await self._asking.do(topic, partial(self._ask, topic, timeout_s))

    async def _ask(self, topic: str, timeout_s: float) -> TopicRoute:
        try:
            route = topic_route(topic, await self._fetch(topic, timeout_s))
        except TopicNotExist:
            if topic not in self._may_create or self._is_made(topic):
                raise NoRoute(f"topic {topic} does not exist; {self._asked}") from None
            try:
                route = _from_template(topic, await self._fetch(AUTO_CREATE_TOPIC, timeout_s))
            except TopicNotExist:
                raise NoRoute(
                    f"topic {topic} does not exist and no broker creates topics ({AUTO_CREATE_TOPIC} is "
                    f"unknown too); {self._asked}"
                ) from None
        except Unreachable as error:
            raise NoRoute(f"topic {topic}: {error}") from None
        self._routes[topic] = route
        return route

    def _is_made(self, topic: str) -> bool:
        """A name server that has started anew knows no topics for a while; the template's queues are not this
        one's then."""
        known = self._routes.get(topic)
        return known is not None and not known.is_template and bool(known.write_queues)

    async def _fetch(self, topic: str, timeout_s: float) -> RouteData:
        request = GetRouteInfoByTopic(topic=topic)
        return decode_body(RouteData, (await self._name_servers.ask(request, timeout_s)).body)

    async def refresh_all(self, timeout_s: float) -> None:
        """Ask for every topic in use. What cannot be learnt now stays as it is."""
        for topic in tuple(self._routes):
            try:
                await self.refresh(topic, timeout_s)
            except HotfireError as error:
                log.warning("topic=%s route kept as it was: %s", topic, error)

    @property
    def _asked(self) -> str:
        return "name servers " + ";".join(self._name_servers.addresses)

    async def close(self) -> None:
        await self._asking.close()

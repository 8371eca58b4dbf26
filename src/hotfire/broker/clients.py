"""Who is alive: producers and consumers by group, filter servers, as heartbeats and connections say.

A client belongs to the connection its heartbeat came on. It leaves when it says so, when that connection
closes, or when it has been silent for too long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hotfire.broker.filterservers import FilterServers
from hotfire.model import ConsumerData, Heartbeat, Subscription, retry_topic
from hotfire.net.heart import Connection
from hotfire.net.quiet import AtMost

log = logging.getLogger("hotfire.broker.clients")
log.addFilter(AtMost())

DISAGREE_MS = 600_000
"""Between two warnings about one group whose members subscribe differently."""
SHOWN_CHARACTERS_MAX = 200


@dataclass(slots=True)
class Member:
    """One client in one group."""

    client_id: str
    language: int
    version: int
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The living members of a consumer group and what they agreed to subscribe to."""

    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Connection, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    fingerprint: int | None = None
    """Of the last heartbeat; 0 of one that brought none."""
    disagreed_ms: int | None = None
    """When its log was last told that members subscribe differently."""

    @property
    def is_broadcast(self) -> bool:
        return self.message_model == "BROADCASTING"

    def find(self, client_id: str) -> tuple[Connection, Member] | None:
        return next((found for found in self.members.items() if found[1].client_id == client_id), None)

    @property
    def client_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.client_id for member in self.members.values()))

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> bool:
        """Take over newer subscriptions, drop those no longer named. Whether a topic came or went."""
        changed = False
        for new in subscriptions:
            old = self.subscriptions.get(new.topic)
            if old is None or new.version > old.version:
                changed = changed or old is None
                self.subscriptions[new.topic] = new
        gone = self.subscriptions.keys() - {new.topic for new in subscriptions}
        for topic in gone:
            del self.subscriptions[topic]
        return changed or bool(gone)


@dataclass(slots=True, frozen=True)
class Beaten:
    """What a heartbeat brought about."""

    changed: frozenset[str]
    """Consumer groups whose members or topics changed."""
    is_news: bool
    """Whether the client has to bring its topics next time: what it knows of them may not be what we know."""


class Clients:
    """Tables of producers and consumers."""

    def __init__(self, expire_ms: int, filters_changed: Callable[[], None] = lambda: None) -> None:
        self._expire_ms = expire_ms
        self.filter_servers = FilterServers(filters_changed)
        self.producers: dict[str, dict[Connection, Member]] = {}
        self.producer_count = 0
        """Members of all producer groups; nothing else bounds the names a client gives them."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self._producers_of: dict[str, dict[Connection, int]] = {}
        """By client id: its connections, the newest last, and in how many producer groups each is."""

    def beat(self, connection: Connection, heartbeat: Heartbeat, member: Member) -> Beaten:
        """Take in a heartbeat. One with a fingerprint may leave out topics that stay the same."""
        for producer in heartbeat.producers:
            members = self.producers.setdefault(producer.group, {})
            before = members.get(connection)
            if before is None or before.client_id != member.client_id:
                self._drop_producer(producer.group, connection)
                members = self.producers.setdefault(producer.group, {})
                self.producer_count += 1
                joined = self._producers_of.setdefault(member.client_id, {})
                joined[connection] = joined.get(connection, 0) + 1
            members[connection] = member
        fingerprint = heartbeat.fingerprint or 0
        without_topics = bool(fingerprint and heartbeat.without_sub)
        is_news = not fingerprint
        changed = set()
        for data in heartbeat.consumers:
            known = self.consumers.get(data.group)
            if known is None:
                is_news = is_news or without_topics
            else:
                is_news = is_news or known.fingerprint != fingerprint
            if self._beat_consumer(connection, data, member, without_topics):
                changed.add(data.group)
            self.consumers[data.group].fingerprint = fingerprint
        return Beaten(frozenset(changed), is_news)

    def producer(self, client_id: str) -> Connection | None:
        """The connection of the client of this id that produces; of several the one that came last."""
        return next(reversed(self._producers_of.get(client_id, {})), None)

    def groups_of(self, topic: str) -> set[str]:
        """Groups whose members subscribe to the topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}

    def _beat_consumer(
        self, connection: Connection, data: ConsumerData, member: Member, without_topics: bool
    ) -> bool:
        group = self.consumers.get(data.group)
        if group is None:
            group = self.consumers[data.group] = ConsumerGroup(
                data.consume_type, data.message_model, data.consume_from_where
            )
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = connection not in group.members
        group.members[connection] = member
        if not without_topics and any(one.client_id != member.client_id for one in group.members.values()):
            _compare(data, member, group)
        changed = False if without_topics else group.subscribe(data.subscriptions)
        return is_new or changed

    def leave(self, connection: Connection, *, producer: str | None, consumer: str | None) -> bool:
        """A client unregisters from its groups. Whether the consumer group lost it."""
        if producer is not None:
            self._drop_producer(producer, connection)
        return consumer is not None and self._drop_consumer(consumer, connection)

    def disconnected(self, connection: Connection) -> set[str]:
        """Consumer groups that lost a member with this connection."""
        self.filter_servers.disconnected(connection)
        for group in [name for name, members in self.producers.items() if connection in members]:
            self._drop_producer(group, connection)
        return {group for group in list(self.consumers) if self._drop_consumer(group, connection)}

    def expire(self, now_ms: int) -> set[str]:
        """Forget clients silent for too long. Consumer groups that lost a member."""
        self.filter_servers.expire(now_ms)
        limit = now_ms - self._expire_ms
        for name, members in list(self.producers.items()):
            for connection in [c for c, member in members.items() if member.seen_ms < limit]:
                self._drop_producer(name, connection)
        lost = set()
        for name, group in list(self.consumers.items()):
            for connection in [c for c, member in group.members.items() if member.seen_ms < limit]:
                if self._drop_consumer(name, connection):
                    lost.add(name)
        return lost

    def clock_moved(self, by_ms: int) -> None:
        self.filter_servers.clock_moved(by_ms)
        groups = [*self.producers.values(), *(group.members for group in self.consumers.values())]
        for member in {id(member): member for members in groups for member in members.values()}.values():
            member.seen_ms += by_ms

    def _drop_producer(self, group: str, connection: Connection) -> None:
        members = self.producers.get(group, {})
        left = members.pop(connection, None)
        if not members:
            self.producers.pop(group, None)
        if left is None:
            return
        self.producer_count -= 1
        joined = self._producers_of[left.client_id]
        joined[connection] -= 1
        if not joined[connection]:
            del joined[connection]
            if not joined:
                del self._producers_of[left.client_id]

    def _drop_consumer(self, name: str, connection: Connection) -> bool:
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return False
        if not group.members:
            del self.consumers[name]
        return True


def _compare(data: ConsumerData, member: Member, group: ConsumerGroup) -> None:
    """Say so when a member wants something else than the others do."""
    retries = retry_topic(data.group)  # a consumer that is polled has none
    wanted, known = _shown(data.subscriptions, retries), _shown(group.subscriptions.values(), retries)
    if not wanted or not known or wanted == known:
        return
    if group.disagreed_ms is None or member.seen_ms - group.disagreed_ms >= DISAGREE_MS:
        group.disagreed_ms = member.seen_ms
        log.warning(
            "group=%s its members subscribe differently: client=%.200r to %s, others to %s; a message goes "
            "to one of them, who may not want it: let all members of a group subscribe alike",
            data.group, member.client_id, *(str(one)[:SHOWN_CHARACTERS_MAX] for one in (wanted, known)),
        )  # fmt: skip


def _shown(subscriptions: Iterable[Subscription], without: str) -> dict[str, str]:
    """By topic what is wanted of it; tags in order, for theirs means nothing."""
    return {
        one.topic: " || ".join(sorted(one.tags)) or one.expression
        for one in subscriptions
        if one.topic != without
    }

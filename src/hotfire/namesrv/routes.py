"""Which broker has which topic: the tables of a name server, as plain state.

    topics           topic -> broker name -> QueueData
    brokers          broker name -> cluster, addresses by id (0 is the master)
    clusters         cluster -> broker names
    live             (cluster, address) -> when it last spoke, its connection, its HA address
    filter servers   (cluster, address) -> addresses

Everything here is rebuilt from registrations; nothing is on disk. Knows no frames, no clock (`now_ms`
is passed) and never uses a connection: it is only compared with another. Answers are sorted, so that two
name servers with the same brokers answer alike. `edition` moves with every change: what was made of the
tables at one edition holds as long as it stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hotfire.errors import BrokerRefused
from hotfire.model import (
    BrokerData,
    BrokerRegistration,
    ClusterInfo,
    DataVersion,
    Perm,
    QueueData,
    RouteData,
    TopicConfig,
)
from hotfire.net.heart import Connection
from hotfire.protocol.codes import ResponseCode

HEARTBEAT_TIMEOUT_MS = 120_000
"""A broker that does not say otherwise is gone after two minutes of silence."""

BROKERS_MAX = 10_000
"""Brokers at once; what registers beyond them is no cluster but an accident, or an attack."""

MASTER_ID = 0
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


class Broker(NamedTuple):
    """One broker process, as it introduces itself."""

    cluster: str
    name: str
    id: int
    address: str


class Registered(NamedTuple):
    """What a slave learns from its registration; a master learns nothing."""

    ha_address: str | None = None
    master_address: str | None = None


@dataclass(slots=True)
class LiveBroker:
    """A broker that speaks to us, and over which connection."""

    broker: Broker
    updated_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: Connection
    ha_address: str
    digest: bytes = b""
    """Of the whole registration, and the edition of the tables it led to."""
    edition: int = 0


@dataclass(slots=True)
class _Group:
    """The brokers that share a name: a master and its slaves."""

    cluster: str
    name: str
    addresses: dict[int, str]
    acting_master: bool = False
    zone_name: str | None = None

    def data(self) -> BrokerData:
        addresses = dict(sorted(self.addresses.items()))
        return BrokerData(self.cluster, self.name, addresses, self.acting_master, self.zone_name)

    def drop_address(self, address: str, *, except_id: int | None = None) -> bool:
        """Whether there was one to drop."""
        ids = [one for one, held in self.addresses.items() if held == address and one != except_id]
        for broker_id in ids:
            del self.addresses[broker_id]
        return bool(ids)


class RouteTable:
    """The five tables, kept consistent with each other."""

    def __init__(self) -> None:
        self.edition = 0
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._filter_servers: dict[tuple[str, str], tuple[str, ...]] = {}

    # --- brokers come ------------------------------------------------------------------------------

    def renew(self, broker: Broker, digest: bytes, connection: Connection, now_ms: int) -> Registered | None:
        """Take the very registration again that led to the tables as they stand; None when it did not.

        This is what brokers say every 30 seconds, with all their topics; most of the time nothing is new.
        """
        live = self._live.get((broker.cluster, broker.address))
        if live is None or (live.broker, live.digest, live.edition) != (broker, digest, self.edition):
            return None
        live.updated_ms = now_ms
        live.connection = connection
        return self._master_of(broker, self._groups[broker.name])

    def register(
        self,
        broker: Broker,
        registration: BrokerRegistration,
        *,
        ha_address: str,
        connection: Connection,
        now_ms: int,
        timeout_ms: int | None = None,
        acting_master: bool | None = None,
        zone_name: str | None = None,
        delete_missing: bool = False,
        digest: bytes = b"",
    ) -> Registered | None:
        """Take a broker and its topics in. None when a broker we do not know sends a single topic.

        `acting_master` None means a broker older than 5.x.
        """
        table = registration.topic_table
        group = self._groups.get(broker.name)
        if group is not None and self._is_outdated(group, broker, table.data_version):
            # The id belongs to an address with a newer state: the newcomer gets no entry anywhere.
            self.edition += group.drop_address(broker.address, except_id=broker.id)
            self._live.pop((broker.cluster, broker.address), None)
            return Registered()
        if len(self._live) >= BROKERS_MAX and (broker.cluster, broker.address) not in self._live:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"{BROKERS_MAX} brokers are registered already")
        is_first = group is None or broker.id not in group.addresses
        if is_first and len(table.topics) == 1:
            # An increment from a broker we lost meanwhile: as a full table it would make all its other
            # topics look unknown to clients. The broker registers in full when it hears of the failure.
            return None
        group = self._admit(broker)
        self.edition += (group.acting_master, group.zone_name) != (bool(acting_master), zone_name)
        group.acting_master = bool(acting_master)
        group.zone_name = zone_name

        is_prime_slave = (
            acting_master is not None and broker.id != MASTER_ID and broker.id == min(group.addresses)
        )
        if broker.id == MASTER_ID or is_prime_slave:
            if delete_missing:
                self._forget_topics(lambda topic: topic not in table.topics, broker.name)
            changed = is_first or self.is_changed(broker.cluster, broker.address, table.data_version)
            read_only = is_prime_slave and group.acting_master
            for config in table.topics.values():
                if changed or broker.name not in self._topics.get(config.name, ()):
                    self._put_topic(broker.name, config, read_only=read_only)

        key = (broker.cluster, broker.address)
        timeout = HEARTBEAT_TIMEOUT_MS if timeout_ms is None else timeout_ms
        if registration.filter_servers != self._filter_servers.get(key, ()):
            self.edition += 1
            self._filter_servers[key] = registration.filter_servers
            if not registration.filter_servers:
                del self._filter_servers[key]
        self._live[key] = LiveBroker(
            broker, now_ms, timeout, table.data_version, connection, ha_address, digest, self.edition
        )
        return self._master_of(broker, group)

    def _is_outdated(self, group: _Group, broker: Broker, version: DataVersion) -> bool:
        holder = group.addresses.get(broker.id)
        if holder is None or holder == broker.address:
            return False
        live = self._live.get((broker.cluster, holder))
        return live is not None and live.data_version.state_version > version.state_version

    def _admit(self, broker: Broker) -> _Group:
        group = self._groups.setdefault(broker.name, _Group(broker.cluster, broker.name, {}))
        if group.cluster != broker.cluster:
            # The name moved to another cluster; it must not be found, or expire, under the old one.
            self._leave_cluster(group.cluster, broker.name)
            self._live.pop((group.cluster, broker.address), None)
            group.cluster = broker.cluster
            self.edition += 1
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        # a slave that became master keeps one id
        self.edition += group.drop_address(broker.address, except_id=broker.id)
        self.edition += group.addresses.get(broker.id) != broker.address
        group.addresses[broker.id] = broker.address
        return group

    def _put_topic(self, broker_name: str, config: TopicConfig, *, read_only: bool) -> None:
        perm = config.perm & ~Perm.WRITE if read_only else config.perm
        queues = QueueData(broker_name, config.read_queues, config.write_queues, perm, config.sys_flag)
        by_broker = self._topics.setdefault(config.name, {})
        if by_broker.get(broker_name) != queues:
            by_broker[broker_name] = queues
            self.edition += 1

    def _master_of(self, broker: Broker, group: _Group) -> Registered:
        master = group.addresses.get(MASTER_ID)
        if broker.id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((broker.cluster, master))
        return Registered() if live is None else Registered(live.ha_address, master)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic on brokers we know; with one we do not know nothing is added."""
        by_broker = {one.broker_name: one for one in queues}
        if by_broker and all(name in self._groups for name in by_broker):
            self._topics.setdefault(topic, {}).update(by_broker)
            self.edition += 1

    # --- brokers speak -----------------------------------------------------------------------------

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """A sign of life."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.updated_ms = now_ms

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The edition of its topics this broker last registered."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def is_changed(self, cluster: str, address: str, version: DataVersion) -> bool:
        return self.data_version(cluster, address) != version

    # --- brokers go --------------------------------------------------------------------------------

    def unregister(self, broker: Broker) -> None:
        """Forget an address; with its last address a broker name and its topics go too."""
        self.edition += 1
        self._live.pop((broker.cluster, broker.address), None)
        self._filter_servers.pop((broker.cluster, broker.address), None)
        group = self._groups.get(broker.name)
        if group is None:
            return
        group.drop_address(broker.address)
        if not group.addresses:
            del self._groups[broker.name]
            self._leave_cluster(broker.cluster, broker.name)
            self._forget_topics(lambda _: True, broker.name)
        elif group.acting_master and MASTER_ID not in group.addresses:
            self._change_perm(broker.name, lambda perm: perm & ~Perm.WRITE)

    def clock_moved(self, by_ms: int) -> None:
        for live in self._live.values():
            live.updated_ms += by_ms

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Unregister every broker that was silent for longer than it said it would be."""
        silent = [live for live in self._live.values() if live.updated_ms + live.timeout_ms < now_ms]
        for live in silent:
            self.unregister(live.broker)
        return silent

    def disconnected(self, connection: Connection) -> list[LiveBroker]:
        """Unregister every broker whose latest registration came over this connection."""
        gone = [live for live in self._live.values() if live.connection is connection]
        for live in gone:
            self.unregister(live.broker)
        return gone

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        names = self._clusters.get(cluster, set())
        names.discard(broker_name)
        if not names:
            self._clusters.pop(cluster, None)

    # --- administration ----------------------------------------------------------------------------

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission away from every topic of a broker; how many those are."""
        return self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make every topic of a broker readable and writeable; how many those are."""
        return self._change_perm(broker_name, lambda _: Perm.READ_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        self.edition += 1
        held = [by_broker for by_broker in self._topics.values() if broker_name in by_broker]
        for by_broker in held:
            queues = by_broker[broker_name]
            by_broker[broker_name] = replace(queues, perm=change(queues.perm))
        return len(held)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic everywhere, or on the brokers of one cluster."""
        self.edition += 1
        by_broker = self._topics.get(topic, {})
        for broker_name in tuple(by_broker):
            if cluster is None or broker_name in self._clusters.get(cluster, ()):
                del by_broker[broker_name]
        if not by_broker:
            self._topics.pop(topic, None)

    def _forget_topics(self, which: Callable[[str], bool], broker_name: str) -> None:
        for topic, by_broker in list(self._topics.items()):
            if broker_name in by_broker and which(topic):
                self.edition += 1
                del by_broker[broker_name]
                if not by_broker:
                    del self._topics[topic]

    # --- questions ---------------------------------------------------------------------------------

    def route(self, topic: str, *, acting_master: bool = False) -> RouteData | None:
        """Where the topic is. With `acting_master` a master's place may be taken by its smallest slave."""
        by_broker = self._topics.get(topic, {})
        names = sorted(name for name in by_broker if name in self._groups)
        if not names:
            return None
        brokers = [self._groups[name].data() for name in names]
        if acting_master and not topic.startswith(SYNC_MEMBER_PREFIX):
            brokers = [_with_acting_master(broker, by_broker[broker.name]) for broker in brokers]
        return RouteData(
            queues=tuple(by_broker[name] for name in sorted(by_broker)),
            brokers=tuple(brokers),
            filter_servers={
                address: self._filter_servers[broker.cluster, address]
                for broker in brokers
                for address in broker.addresses.values()
                if (broker.cluster, address) in self._filter_servers
            },
        )

    def cluster_info(self) -> ClusterInfo:
        brokers = {name: self._groups[name].data() for name in sorted(self._groups)}
        clusters = {cluster: tuple(sorted(names)) for cluster, names in sorted(self._clusters.items())}
        return ClusterInfo(brokers, clusters)

    def live_brokers(self) -> list[LiveBroker]:
        """Those that speak to us, in the order of their names."""
        return sorted(self._live.values(), key=lambda live: live.broker)

    def topic_counts(self) -> dict[str, int]:
        """How many topics each broker name has; one without topics is there too."""
        counts = dict.fromkeys(self._groups, 0)
        for by_broker in self._topics.values():
            for name in by_broker:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def members(self, broker_name: str) -> dict[int, str]:
        """Addresses by id behind a broker name."""
        group = self._groups.get(broker_name)
        return {} if group is None else dict(sorted(group.addresses.items()))

    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._topics))

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        names = self._clusters.get(cluster, set())
        return tuple(sorted(topic for topic, held in self._topics.items() if not names.isdisjoint(held)))

    def topics_with_flags(self, *, wanted: int, unwanted: int = 0) -> tuple[str, ...]:
        """Topics by the flags of their first broker, which stand for all."""
        return tuple(sorted(self._with_flags(wanted, unwanted)))

    def _with_flags(self, wanted: int, unwanted: int) -> Iterator[str]:
        for topic, by_broker in self._topics.items():
            flags = next(iter(by_broker.values())).sys_flag
            if flags & wanted and not flags & unwanted:
                yield topic

    def system_topics(self) -> tuple[tuple[str, ...], str | None]:
        """Cluster and broker names, each of which is a topic too, and the address of some broker."""
        names = {*self._clusters, *self._groups}
        addresses = (address for name in sorted(self._groups) for address in self.members(name).values())
        return tuple(sorted(names)), next(addresses, None)


def _with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    has_master = MASTER_ID in broker.addresses
    if has_master or not broker.enable_acting_master or queues.perm & Perm.WRITE:
        return broker
    (_, acting), *others = sorted(broker.addresses.items())
    return replace(broker, addresses={MASTER_ID: acting, **dict(others)})


def within_zone(route: RouteData, zone_name: str) -> RouteData:
    """The part of a route that is near; a broker without master stays, its slaves being all there is."""
    near = [
        broker
        for broker in route.brokers
        if MASTER_ID not in broker.addresses or (broker.zone_name or "").lower() == zone_name.lower()
    ]
    far = {broker.name: broker for broker in route.brokers if broker not in near}
    gone = {address for broker in far.values() for address in broker.addresses.values()}
    return replace(
        route,
        queues=tuple(one for one in route.queues if one.broker_name not in far),
        brokers=tuple(near),
        filter_servers={at: held for at, held in route.filter_servers.items() if at not in gone},
    )

"""Which queues of a topic each member of a group reads: the strategies of the Java client, result for result.

Members never talk to each other. Each computes its own share from the same lists, so that a strategy must be
the same function everywhere: a Java member beside ours reads the other queues, none is read twice and none by
nobody. Owns the order of queues and client ids too, which is part of that function.

Knows neither client nor broker: both ask here, the one about itself, the other about a member that lets its
broker decide.

>>> queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
>>> [queue.queue_id for queue in AVERAGELY.share("c1", queues, ["c1", "c2"])]
[0, 1]
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hotfire.model import MessageQueue, Perm, RouteData

log = logging.getLogger("hotfire.allocation")

VIRTUAL_NODES = 10
"""Places of each client on the ring of CONSISTENT_HASH, unless told otherwise."""

Thing = TypeVar("Thing")
Queues = Sequence[MessageQueue]
ClientIds = Sequence[str]
Share = Callable[[str, Queues, ClientIds], list[MessageQueue]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to share queues, by the name it has on the wire.

    `share(client_id, queues, client_ids)` is what that client reads, where both lists are in the order that
    `in_order` and `ids_in_order` give them. No queues or no clients at all are a ValueError.
    """

    name: str
    share: Share
    asks_broker: bool = False
    """A broker of the topic is asked for our share, which it computes by the strategy of this name."""


# --- order -----------------------------------------------------------------------------------------


def java_order(text: str) -> bytes:
    """What Java compares when it compares texts: UTF-16 units, which put U+1F600 before U+FF01."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return sorted(queues, key=_queue_order)


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id


def ids_in_order(client_ids: Iterable[str]) -> list[str]:
    return sorted(client_ids, key=java_order)


def readable_queues(topic: str, route: RouteData) -> tuple[MessageQueue, ...]:
    """The queues of a topic that may be read, over all its brokers, in order."""
    return tuple(
        MessageQueue(topic, broker_name, queue_id)
        for broker_name, count in sorted(_readable(route).items(), key=lambda one: java_order(one[0]))
        for queue_id in range(count)
    )


def _readable(route: RouteData) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for one in route.queues:
        if one.perm & Perm.READ:
            counts[one.broker_name] = max(one.read_queues, counts.get(one.broker_name, 0))
    return counts


# --- strategies without settings -------------------------------------------------------------------


def _checked(share: Share) -> Share:
    """The checks all strategies but CONFIG begin with."""

    def check_and_share(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
        if not client_id:
            raise ValueError("the client id is empty: give the id the client's heartbeats carry")
        if not queues:
            raise ValueError("no queue to share: the topic has none that may be read")
        if not client_ids:
            raise ValueError("no client to share queues: the group has no members")
        if client_id not in client_ids:
            # It has just left, or its heartbeat has not arrived; the next round will know.
            log.warning("client %.200s is not among the %d it shares queues with", client_id, len(client_ids))
            return []
        return share(client_id, queues, client_ids)

    return check_and_share


@_checked
def _averagely(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
    """Neighbouring queues for each; the first clients have one more where it does not come out even."""
    index, (size, more) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    first = index * size + min(index, more)
    return list(queues[first : first + size + (index < more)])


@_checked
def _by_circle(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
    """One queue each in turn, round after round."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


AVERAGELY = Strategy("AVG", _averagely)
BY_CIRCLE = Strategy("AVG_BY_CIRCLE", _by_circle)


def by_broker(strategy: Strategy = AVERAGELY) -> Strategy:
    """Ask a broker of the topic for our share; where it cannot tell, compute it as the others do."""
    if strategy.name not in (AVERAGELY.name, BY_CIRCLE.name):
        raise ValueError(
            f"brokers do not know the strategy {strategy.name}: they share by {AVERAGELY.name} or by "
            f"{BY_CIRCLE.name}"
        )
    return replace(strategy, asks_broker=True)


BY_BROKER = by_broker()


# --- strategies that are told something ------------------------------------------------------------


def by_config(queues: Iterable[MessageQueue]) -> Strategy:
    """Just these queues, whoever else is there and whether or not they exist."""
    chosen = tuple(queues)
    return Strategy("CONFIG", lambda client_id, queues, client_ids: list(chosen))


def by_machine_room(rooms: Collection[str]) -> Strategy:
    """Queues of brokers named `room@name` with one of these rooms; those of other brokers go to nobody."""

    @_checked
    def share(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
        ours = [queue for queue in queues if _room_in_name(queue.broker_name) in rooms]
        index, (size, more) = client_ids.index(client_id), divmod(len(ours), len(client_ids))
        chosen = ours[index * size : (index + 1) * size]
        if index < more:
            chosen.append(ours[size * len(client_ids) + index])
        return chosen

    return Strategy("MACHINE_ROOM", share)


def _room_in_name(broker_name: str) -> str | None:
    """What is before the only `@`; Java's split leaves out what is empty at the end.

    >>> _room_in_name("north@a"), _room_in_name("north@a@"), _room_in_name("north@"), _room_in_name("a@b@c")
    ('north', 'north', None, None)
    """
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class Rooms:
    """Who stands where. Both give the name of a machine room, which may not be empty."""

    of_queue: Callable[[MessageQueue], str]
    of_client: Callable[[str], str]


def nearby(strategy: Strategy, rooms: Rooms) -> Strategy:
    """Queues go to clients of their own machine room, by `strategy`; those of a room without any, to all."""

    @_checked
    def share(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
        queues_of = _by_room(queues, rooms.of_queue)
        clients_of = _by_room(client_ids, rooms.of_client)
        home = rooms.of_client(client_id)
        shared: list[MessageQueue] = []
        if home in queues_of:
            shared += strategy.share(client_id, queues_of[home], clients_of[home])
        for room in sorted(queues_of.keys() - clients_of.keys(), key=java_order):
            shared += strategy.share(client_id, queues_of[room], client_ids)
        return shared

    return Strategy(f"MACHINE_ROOM_NEARBY-{strategy.name}", share)


def _by_room(things: Iterable[Thing], room_of: Callable[[Thing], str]) -> dict[str, list[Thing]]:
    grouped: dict[str, list[Thing]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ValueError(f"{thing} stands in no machine room: name one for each broker and client")
        grouped.setdefault(room, []).append(thing)
    return grouped


# --- consistent hashing ----------------------------------------------------------------------------


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Queues and clients on one ring: a client that comes or goes moves few of the others' queues.

    Clients of one group must all have the same number of virtual nodes.
    """
    if virtual_nodes < 0:
        raise ValueError(f"{virtual_nodes} virtual nodes: none or more are possible")

    @_checked
    def share(client_id: str, queues: Queues, client_ids: ClientIds) -> list[MessageQueue]:
        ring = _ring(client_ids, virtual_nodes)
        places = sorted(ring)
        if not places:
            return []

        def owner(queue: MessageQueue) -> str:
            after = bisect_left(places, _hash(_java_text(queue)))
            return ring[places[after % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]

    return Strategy("CONSISTENT_HASH", share)


def _ring(client_ids: ClientIds, virtual_nodes: int) -> dict[int, str]:
    """Places on the ring and the clients they belong to; of two in one place, the later has it."""
    ring: dict[int, str] = {}
    seen: set[str] = set()
    for client_id in client_ids:
        # named twice, it goes on counting where it has got to
        first = sum(owner == client_id for owner in ring.values()) if client_id in seen else 0
        seen.add(client_id)
        for number in range(first, first + virtual_nodes):
            ring[_hash(f"{client_id}-{number}")] = client_id
    return ring


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


CONSISTENT_HASH = consistent_hash()

"""Which client may consume a queue in order: one lease per (group, queue), which its owner renews.

A client that dies keeps its queues until the lease ends, so that what it still works on is not consumed
beside it. Times are given; nothing here is written to disk, a restarted broker leases anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from hotfire.model import MessageQueue

log = logging.getLogger("hotfire.broker")

LEASE_MS = 60_000
LOCKS_MAX = 200_000
"""Leases at once. Each is one queue of one orderly group; they are renewed every 20 s."""

Place = tuple[str, int]
"""Topic and queue id. The broker is this one, whatever name a client has for it."""


@dataclass(slots=True)
class Lease:
    client_id: str
    until_ms: int


class QueueLocks:
    """Leases by group and queue."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Place, Lease]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> tuple[MessageQueue, ...]:
        """Those of the queues that are the client's for the next while."""
        wanted = list(queues)
        locked = tuple(queue for queue in wanted if self._lock(group, client_id, queue, now_ms))
        if self._count >= LOCKS_MAX and len(locked) < len(wanted):  # one line, however many a peer names
            log.warning(
                "queues not locked group=%s count=%d: there are %d leases, as many as there may be",
                group, len(wanted) - len(locked), self._count,
            )  # fmt: skip
        return locked

    def _lock(self, group: str, client_id: str, queue: MessageQueue, now_ms: int) -> bool:
        leases, place = self._groups.get(group, {}), (queue.topic, queue.queue_id)
        lease = leases.get(place)
        if lease is None:
            if self._count >= LOCKS_MAX:
                return False
            self._groups.setdefault(group, leases)[place] = Lease(client_id, now_ms + LEASE_MS)
            self._count += 1
            return True
        if lease.client_id != client_id:
            if now_ms <= lease.until_ms:
                return False
            log.info("queue goes to another client group=%s queue=%s client=%s", group, place, client_id)
        lease.client_id, lease.until_ms = client_id, now_ms + LEASE_MS
        return True

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up those of the queues that are the client's."""
        leases = self._groups.get(group, {})
        for queue in queues:
            place = (queue.topic, queue.queue_id)
            lease = leases.get(place)
            if lease is not None and lease.client_id == client_id:
                self._drop(group, place)

    def holds(self, group: str, now_ms: int) -> bool:
        """Whether any client of the group holds a queue, that is, whether the group consumes in order."""
        return any(now_ms <= lease.until_ms for lease in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget leases that ended."""
        for group, leases in list(self._groups.items()):
            for place in [place for place, lease in leases.items() if lease.until_ms < now_ms]:
                self._drop(group, place)

    def clock_moved(self, by_ms: int) -> None:
        for leases in self._groups.values():
            for lease in leases.values():
                lease.until_ms += by_ms

    def _drop(self, group: str, place: Place) -> None:
        leases = self._groups[group]
        del leases[place]
        self._count -= 1
        if not leases:
            del self._groups[group]

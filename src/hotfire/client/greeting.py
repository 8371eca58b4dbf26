"""Which brokers know us: by whom they were told, and on which connection.

A broker asks questions, and hands over replies, on a connection it has had a heartbeat on. Every 30 seconds
all brokers of the routes in use get one, and those that were met without a route; who is about to send what a
broker may ask back about has that one broker greeted first, and waits for no other. Owns what was told;
`instance` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hotfire.client.connections import Connections
from hotfire.client.routes import Routes
from hotfire.client.single import SingleFlight
from hotfire.errors import HotfireError, Timeout, Unreachable
from hotfire.model import Heartbeat
from hotfire.net.peer import Peer
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.requests import HeartBeat

if TYPE_CHECKING:
    from hotfire.client.instance import Member

log = logging.getLogger("hotfire.client")

GREETING_TIMEOUT_S = 3.0
GREET_AGAIN_S = 1.0
"""Between two attempts, beside what is sent, to greet a broker that could not be reached."""
FIRST_MEETING_S = 0.5
"""Brokers that were never tried before are waited for so long, and no longer than a quarter of the time."""


class Told(NamedTuple):
    """On which connection, and of whom."""

    peer: Peer
    members: frozenset[Member]

    def __str__(self) -> str:
        return self.peer.address


class Greetings:
    """What one client has told brokers of its members."""

    def __init__(
        self, client_id: str, members: list[Member], connections: Connections, routes: Routes
    ) -> None:
        self._client_id = client_id
        self._members = members
        self._connections = connections
        self._routes = routes
        self._told: dict[str, Told] = {}
        self._tried: dict[str, float] = {}
        self._under_way: SingleFlight[Told, HotfireError | None] = SingleFlight()
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def told(self) -> Mapping[str, Told]:
        """By address; the connection may be gone since."""
        return self._told

    def forget(self, address: str) -> None:
        """The broker there knows nothing of us any more."""
        self._told.pop(address, None)

    async def to_all(self) -> None:
        """Tell every broker of the routes in use who we are; slaves only of consumers."""
        consumers = any(member.consumer_data() for member in self._members)
        if not consumers and not any(member.producer_data() for member in self._members):
            return
        addresses = sorted(
            {
                address
                for broker in self._routes.brokers()
                for broker_id, address in broker.addresses.items()
                if broker_id == 0 or consumers
            }
        )
        for gone in (self._told.keys() | self._tried.keys()) - set(addresses):
            self._told.pop(gone, None)
            self._tried.pop(gone, None)
        await asyncio.gather(*(self._to_one(address) for address in addresses))

    async def before_use(self, peer: Peer, deadline: float) -> None:
        """Have a broker know us on this connection. Raises Unreachable when it does not answer in time.

        One that refuses the heartbeat may still take what is sent: it hears of us again later.
        """
        told = self._all_on(peer)
        if self._knows(told):
            return
        try:
            async with asyncio.timeout_at(deadline):
                failure = await self._once(told)
        except TimeoutError:
            failure = Timeout(f"{peer.address}: no answer to a heartbeat, and no time is left")
        if isinstance(failure, Unreachable):  # one of our own: callers write into what they raise
            raise type(failure)(f"{failure}; nothing was sent to a broker that could not ask back")

    def to_others(self) -> list[asyncio.Task[None]]:
        """Begin to greet the masters that do not know us yet. Those never tried before can be waited for."""
        now = asyncio.get_running_loop().time()
        masters = {broker.master for broker in self._routes.brokers()}
        begun: list[asyncio.Task[None]] = []
        for address in sorted(address for address in masters if address is not None):
            current, tried_s = self._connections.current(address), self._tried.get(address)
            if current is not None and self._knows(self._all_on(current)):
                continue
            if tried_s is not None and now < tried_s + GREET_AGAIN_S:
                continue
            self._tried[address] = now
            task = asyncio.create_task(self._to_one(address, shared=True))
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)
            if tried_s is None:
                begun.append(task)
        return begun

    async def meet_others(self, deadline: float) -> None:
        """Greet those that do not know us yet, and give the ones never tried before a moment to answer."""
        begun = self.to_others()
        left_s = deadline - asyncio.get_running_loop().time()
        if begun and left_s > 0:
            await asyncio.wait(begun, timeout=min(FIRST_MEETING_S, left_s / 4))

    async def close(self) -> None:
        beside = tuple(self._beside)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await self._under_way.close()

    # --- one broker --------------------------------------------------------------------------------

    def _all_on(self, peer: Peer) -> Told:
        return Told(peer, frozenset(self._members))

    def _knows(self, wanted: Told) -> bool:
        told = self._told.get(wanted.peer.address)
        return told is not None and told.peer is wanted.peer and told.members >= wanted.members

    async def _to_one(self, address: str, *, shared: bool = False) -> None:
        try:
            peer = await self._connections.get(address, GREETING_TIMEOUT_S)
        except HotfireError as error:
            log.warning("broker=%s heartbeat failed: %s", address, error)
            return
        told = self._all_on(peer)
        await (self._once(told) if shared else self._greet(told))

    async def _once(self, told: Told) -> HotfireError | None:
        """One greeting serves all who wait for it; not where consumers tell what they want from now on."""
        return await self._under_way.do(told, partial(self._greet, told))

    async def _greet(self, told: Told) -> HotfireError | None:
        """Say who we are, at this moment."""
        producers = tuple(data for member in self._members if (data := member.producer_data()))
        consumers = tuple(wants for member in self._members if (wants := member.consumer_data()))
        greeting = HeartBeat(body=encode_body(Heartbeat(self._client_id, producers, consumers)))
        try:
            await told.peer.ask(greeting, GREETING_TIMEOUT_S)
        except HotfireError as error:
            log.warning("broker=%s heartbeat failed: %s", told.peer.address, error)
            return error
        self._told[told.peer.address] = told
        return None

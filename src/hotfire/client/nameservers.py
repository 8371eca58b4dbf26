"""Asking name servers: one at a time, the next when it does not answer.

The first is chosen at random, so that many clients spread over all of them; then it is kept. The list may
change while the client runs, when it comes from an address service.
"""

from __future__ import annotations

import asyncio
import logging
import random

from hotfire.client.addresses import AddressSource
from hotfire.client.connections import Connections
from hotfire.client.single import SingleFlight
from hotfire.errors import (
    BrokerRefused,
    ConnectionLost,
    HotfireError,
    RequestNotSupported,
    Timeout,
    Unreachable,
)
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request

log = logging.getLogger("hotfire.client")


class NameServers:
    """The name servers a client knows of. Any of them knows everything."""

    def __init__(self, source: AddressSource, connections: Connections, rng: random.Random) -> None:
        self.source = source
        self.addresses: tuple[str, ...] = ()
        self._connections = connections
        self._rng = rng
        self._current = 0
        self._fetching: SingleFlight[str, None] = SingleFlight()
        self._use(source.addresses)

    @property
    def current(self) -> str:
        """The one asked first."""
        return self.addresses[self._current] if self.addresses else str(self.source)

    async def refresh(self) -> None:
        """Ask the address service, if there is one; who is no longer listed is asked no more."""
        if self.source.url is not None:
            await self._fetching.do("", self._fetch)

    async def _fetch(self) -> None:
        before = self.addresses
        self._use(await self.source.fetch())
        if self.addresses != before:
            log.info("name servers are %s, says %s", ";".join(self.addresses), self.source)

    def _use(self, addresses: tuple[str, ...]) -> None:
        if addresses == self.addresses:
            return
        # Who serves us goes on doing so; otherwise anyone, so that many clients spread over all.
        current = self.addresses[self._current] if self.addresses else None
        gone = set(self.addresses) - set(addresses)
        self.addresses = addresses
        self._current = (
            addresses.index(current) if current in addresses else self._rng.randrange(len(addresses))
        )
        for address in sorted(gone):
            self._connections.hang_up(address)

    async def close(self) -> None:
        await self._fetching.close()

    async def ask(self, request: Request, timeout_s: float) -> Command:
        """The answer of the first that gives one. A refusal is an answer and is raised."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not self.addresses:
            await self.refresh()
        failures = []
        for left in range(len(self.addresses), 0, -1):
            address = self.current
            # A silent one must leave time for the others.
            share_s = max(deadline - loop.time(), 0.0) / left
            try:
                return await self._ask_one(address, request, share_s)
            except RequestNotSupported:
                failures.append(f"{address} is no name server, but a broker perhaps; name servers have 9876")
                self._current = (self._current + 1) % len(self.addresses)
            except BrokerRefused:
                raise
            except HotfireError as error:
                failures.append(f"{error}{_doubt(error)}")
                self._current = (self._current + 1) % len(self.addresses)
        raise Unreachable(
            f"no name server answered: {'; '.join(failures)}; start one there, or correct the address"
        )

    async def _ask_one(self, address: str, request: Request, timeout_s: float) -> Command:
        started = asyncio.get_running_loop().time()
        peer = await self._connections.get(address, timeout_s)
        left_s = timeout_s - (asyncio.get_running_loop().time() - started)
        try:
            return await peer.ask(request, left_s)
        except Timeout:
            self._connections.unanswered(peer, left_s=left_s, timeout_s=timeout_s)
            raise


def _doubt(error: HotfireError) -> str:
    """Somebody is there who does not answer: it may be that he cannot."""
    if isinstance(error, Timeout):
        return ", though it was dialled; perhaps what listens there is no name server"
    if isinstance(error, ConnectionLost):
        return "; perhaps what listens there is no name server, or takes TLS only"
    return ""

"""Asking name servers: one at a time, the next when it does not answer.

The first is chosen at random, so that many clients spread over all of them; then it is kept.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from hotfire.client.connections import Connections
from hotfire.errors import BrokerRefused, ConfigError, HotfireError, Timeout, Unreachable
from hotfire.net.peer import split_address
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """
    >>> parse_name_servers("10.0.0.1:9876; 10.0.0.2:9876")
    ('10.0.0.1:9876', '10.0.0.2:9876')
    """
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else text
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise ConfigError("no name server given: expected host:port, several joined by ';'")
    for address in addresses:
        split_address(address)
    return addresses


class NameServers:
    """The name servers a client was told of. Any of them knows everything."""

    def __init__(self, addresses: Sequence[str], connections: Connections, rng: random.Random) -> None:
        assert addresses
        self.addresses = tuple(addresses)
        self._connections = connections
        self._current = rng.randrange(len(self.addresses))

    async def ask(self, request: Request, timeout_s: float) -> Command:
        """The answer of the first that gives one. A refusal is an answer and is raised."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        failures = []
        for left in range(len(self.addresses), 0, -1):
            address = self.addresses[self._current]
            # A silent one must leave time for the others.
            share_s = max(deadline - loop.time(), 0.0) / left
            try:
                return await self._ask_one(address, request, share_s)
            except BrokerRefused:
                raise
            except HotfireError as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
        raise Unreachable("no name server answered: " + "; ".join(failures))

    async def _ask_one(self, address: str, request: Request, timeout_s: float) -> Command:
        started = asyncio.get_running_loop().time()
        peer = await self._connections.get(address, timeout_s)
        try:
            return await peer.ask(request, timeout_s - (asyncio.get_running_loop().time() - started))
        except Timeout:
            self._connections.drop(peer)
            raise

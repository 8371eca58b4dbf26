"""What the producers and consumers of one client share: identity, connections, routes, and two timers.

Every 30 seconds the routes in use are asked for again, and every broker written to is told that we live.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from hotfire.client.connections import Connections
from hotfire.client.nameservers import NameServers, parse_name_servers
from hotfire.client.routes import Routes
from hotfire.errors import HotfireError, NotRunning, Timeout
from hotfire.model import Heartbeat, ProducerData
from hotfire.net.peer import OnRequest, Peer
from hotfire.net.server import local_address
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.protocol.requests import HeartBeat, UnregisterClient

log = logging.getLogger("hotfire.client")

ROUTE_INTERVAL_S = 30.0
HEARTBEAT_INTERVAL_S = 30.0
HEARTBEAT_FIRST_S = 1.0
CALL_TIMEOUT_S = 3.0
GOODBYE_TIMEOUT_S = 1.0


def client_id(instance_name: str | None) -> str:
    """`<address>@<instance name>`; without a name one of this process and moment."""
    return f"{local_address()}@{instance_name or f'{os.getpid()}#{time.time_ns()}'}"


class ClientInstance:
    """Start it, use it, close it."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        instance_name: str | None = None,
        on_request: OnRequest | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.rng = rng or random.Random()
        self.client_id = client_id(instance_name)
        self.connections = Connections(on_request)
        self.name_servers = NameServers(parse_name_servers(name_servers), self.connections, self.rng)
        self.routes = Routes(self.name_servers)
        self.producer_groups: set[str] = set()
        self._greeted: set[str] = set()
        self._timers: list[asyncio.Task[None]] = []
        self.running = False

    async def start(self) -> None:
        if self.running:
            raise NotRunning("this client is already started")
        self.running = True
        self._timers = [
            asyncio.create_task(_every(ROUTE_INTERVAL_S, ROUTE_INTERVAL_S, self._refresh_routes)),
            asyncio.create_task(_every(HEARTBEAT_FIRST_S, HEARTBEAT_INTERVAL_S, self._greet_brokers)),
        ]

    async def close(self) -> None:
        if not self.running:
            return
        self.running = False
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        await asyncio.gather(*(self._say_goodbye(address) for address in self._greeted))
        await self.routes.close()
        await self.connections.close()

    async def invoke(self, address: str, request: Request | Command, deadline: float) -> Command:
        """The reply of the broker at `address`; dialling counts against the deadline too."""
        loop = asyncio.get_running_loop()
        peer = await self.connections.get(address, max(deadline - loop.time(), 0.0))
        try:
            return await peer.invoke(request, max(deadline - loop.time(), 0.0))
        except Timeout:
            self.connections.drop(peer)
            raise

    async def connection(self, address: str, timeout_s: float) -> Peer:
        return await self.connections.get(address, timeout_s)

    # --- timers ------------------------------------------------------------------------------------

    async def _refresh_routes(self) -> None:
        await self.routes.refresh_all(CALL_TIMEOUT_S)

    async def _greet_brokers(self) -> None:
        if not self.producer_groups:
            return
        masters = {broker.master for route in self.routes.known() for broker in route.data.brokers}
        groups = tuple(ProducerData(group) for group in sorted(self.producer_groups))
        greeting = HeartBeat(body=encode_body(Heartbeat(self.client_id, producers=groups)))
        await asyncio.gather(*(self._greet(address, greeting) for address in masters if address))

    async def _greet(self, address: str, greeting: HeartBeat) -> None:
        try:
            peer = await self.connections.get(address, CALL_TIMEOUT_S)
            await peer.ask(greeting, CALL_TIMEOUT_S)
            self._greeted.add(address)
        except HotfireError as error:
            log.warning("broker=%s heartbeat failed: %s", address, error)

    async def _say_goodbye(self, address: str) -> None:
        if address not in self.connections.open_addresses():
            return
        with suppress(HotfireError):  # the broker forgets us in two minutes anyway
            peer = await self.connections.get(address, GOODBYE_TIMEOUT_S)
            for group in self.producer_groups:
                goodbye = UnregisterClient(client_id=self.client_id, producer_group=group)
                await peer.ask(goodbye, GOODBYE_TIMEOUT_S)


async def _every(first_s: float, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(first_s)
    while True:
        await work()
        await asyncio.sleep(interval_s)

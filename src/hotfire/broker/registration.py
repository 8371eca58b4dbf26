"""Telling the name servers: at the start, every 30 seconds, when a topic changes, and goodbye at the end.

One task per name server with its own connection, so that a dead one delays no other. A lost connection is
dialled again and registered on at once, which fills a restarted name server within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from hotfire.broker.broker import Broker
from hotfire.errors import BrokerRefused, HotfireError, Timeout, Unreachable
from hotfire.model import BrokerRegistration
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.registration import RegistrationEncoder
from hotfire.protocol.requests import RegisterBroker, RegisterBrokerReply, Request, UnregisterBroker

log = logging.getLogger("hotfire.broker")

DIAL_TIMEOUT_S = 3.0
REDIAL_S = 1.0
UNREGISTER_TIMEOUT_S = 1.0
TELL_TIMEOUT_S, TELLS_MAX = 2.0, 1000
"""Answers that wait for the name servers: clients give a request 3 s. Any more are not kept waiting."""
PERIOD_MS_MAX = 60_000
"""Twice a period is what a name server waits before it forgets a broker, whatever its file says."""


class Registration:
    """Keeps one broker registered with every name server it was given."""

    def __init__(
        self, broker: Broker, name_servers: tuple[str, ...], tls: SSLContext | None = None, ha_port: int = 0
    ) -> None:
        """Slaves are told to dial `ha_port`; 0 is what settings say."""
        self._ha_port = ha_port or broker.config.ha_listen_port
        self.on_master: Callable[[RegisterBrokerReply], None] | None = None
        """A slave's: called with what a name server says of its master."""
        self._broker = broker
        self._tls = tls
        self._encoder = RegistrationEncoder()
        self._encoded: tuple[object, bytes] = None, b""
        self._changed: dict[str, asyncio.Event] = {address: asyncio.Event() for address in name_servers}
        self._registered: dict[str, asyncio.Event] = {address: asyncio.Event() for address in name_servers}
        self._peers: dict[str, Peer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._edition = 0
        self._told: dict[str, int] = {}
        """Name servers that are reached, and the edition of the topics they have."""
        self._tells: list[tuple[int, float, Callable[[], None]]] = []
        broker.topics_changed = self._topics_changed
        broker.when_registered = self._when_registered

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(address)) for address in self._changed]

    async def wait_registered(self, timeout_s: float) -> list[str]:
        """Wait until every name server knows this broker; those that still do not."""
        waits = [asyncio.create_task(event.wait()) for event in self._registered.values()]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)
            for wait in waits:
                wait.cancel()
        return [address for address, event in self._registered.items() if not event.is_set()]

    async def ask(self, request: Request, timeout_s: float) -> Command:
        """The answer of a name server; a silent one leaves time for the others. A refusal is an answer."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        reached = [peer for peer in self._peers.values() if not peer.closed]
        failures = []
        for left, peer in zip(range(len(reached), 0, -1), reached, strict=True):
            share_s = max(deadline_s - asyncio.get_running_loop().time(), 0.0) / left
            try:
                return await peer.ask(request, share_s)
            except BrokerRefused:
                raise
            except HotfireError as error:
                failures.append(str(error))
        raise Unreachable(f"{len(reached)} name servers are reached, none answers: {'; '.join(failures)}")

    def _topics_changed(self) -> None:
        self._edition += 1
        for event in self._changed.values():
            event.set()

    def _when_registered(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the name servers that are reached know the topics of now, or one is slow."""
        if len(self._tells) >= TELLS_MAX or self._is_told(self._edition):
            tell()
            return
        loop = asyncio.get_running_loop()
        self._tells.append((self._edition, loop.time() + TELL_TIMEOUT_S, tell))
        loop.call_later(TELL_TIMEOUT_S + 0.01, self._tell)  # timers may be a tick early

    def _is_told(self, edition: int) -> bool:
        return all(known >= edition for known in self._told.values())

    def _tell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        waiting, self._tells = self._tells, []
        for edition, until_s, tell in waiting:
            if now_s >= until_s or self._is_told(edition):
                tell()
            else:
                self._tells.append((edition, until_s, tell))

    async def _keep(self, address: str) -> None:
        period_s = min(self._broker.config.register_name_server_period, PERIOD_MS_MAX) / 1000
        changed, complained = self._changed[address], False
        while True:
            try:
                peer = self._peers.get(address)
                if peer is None or peer.closed:
                    peer = self._peers[address] = await self._dial(address)
                changed.clear()
                edition = self._edition
                timeout_s = self._broker.config.register_broker_timeout_mills / 1000
                reply = await peer.ask(self._request(), timeout_s)
                if self.on_master is not None:
                    self.on_master(RegisterBrokerReply.from_command(reply))
                self._registered[address].set()
                self._told[address] = edition
                self._tell()
                if complained:
                    log.info("registered again namesrv=%s", address)
                complained = False
                await self._wait(peer, changed, period_s)
            except Exception as error:  # noqa: BLE001  # a task that died would leave us unregistered for good
                if isinstance(error, Timeout) and (silent := self._peers.pop(address, None)) is not None:
                    silent.abort()  # who did not answer may not be there, whatever TCP says
                self._told.pop(address, None)  # no answer waits for one that is not there
                self._tell()
                if not complained:  # once, not every second of a long outage
                    reason = error if isinstance(error, HotfireError) else f"{type(error).__name__}: {error}"
                    log.warning("not registered namesrv=%s reason=%s; trying on", address, reason)
                complained = True
                await asyncio.sleep(REDIAL_S)

    async def _dial(self, address: str) -> Peer:
        return await Peer.connect(address, timeout_s=DIAL_TIMEOUT_S, tls=self._tls)

    async def _wait(self, peer: Peer, changed: asyncio.Event, period_s: float) -> None:
        """Until a topic changes, the connection is lost, or the period is over."""
        reasons = {asyncio.create_task(changed.wait()), asyncio.create_task(peer.wait_closed())}
        try:
            await asyncio.wait(reasons, timeout=period_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()

    def _request(self) -> RegisterBroker:
        broker, config = self._broker, self._broker.config
        table = broker.topics.registration()
        filter_servers = broker.clients.filter_servers.addresses()
        state = table.data_version, config.broker_permission, filter_servers
        if self._encoded[0] != state:  # every topic in one body, made again only when one has changed
            self._encoded = state, self._encoder.encode(BrokerRegistration(table, filter_servers))
        host, _, port = broker.address.rpartition(":")
        return RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=broker.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=f"{config.broker_ip2 or host}:{self._ha_port or int(port) + 1}",
            broker_id=config.broker_id,
            compressed=False,
            body_crc32=0,
            body=self._encoded[1],
        )

    def abandon(self) -> None:
        """Hang up without a word."""
        for task in self._tasks:
            task.cancel()
        for peer in self._peers.values():
            peer.abort()

    async def close(self) -> None:
        """Say goodbye to the name servers that listen, so that routes forget this broker at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        config = self._broker.config
        goodbye = UnregisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._broker.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        await asyncio.gather(*(_leave(peer, goodbye) for peer in self._peers.values()))


async def _leave(peer: Peer, goodbye: UnregisterBroker) -> None:
    if not peer.closed:
        with suppress(HotfireError):
            await peer.ask(goodbye, UNREGISTER_TIMEOUT_S)
    await peer.close()

"""Telling the name servers: at the start, every 30 seconds, when a topic changes, and goodbye at the end.

One task per name server with its own connection, so that a dead one delays no other. A lost connection is
dialled again and registered on at once, which fills a restarted name server within a second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from hotfire.broker.broker import Broker
from hotfire.errors import HotfireError
from hotfire.model import BrokerRegistration
from hotfire.net.peer import Peer
from hotfire.protocol.registration import encode_registration
from hotfire.protocol.requests import RegisterBroker, UnregisterBroker

log = logging.getLogger("hotfire.broker")

DIAL_TIMEOUT_S = 3.0
REDIAL_S = 1.0
UNREGISTER_TIMEOUT_S = 1.0


class Registration:
    """Keeps one broker registered with every name server it was given."""

    def __init__(self, broker: Broker, name_servers: tuple[str, ...]) -> None:
        self._broker = broker
        self._changed: dict[str, asyncio.Event] = {address: asyncio.Event() for address in name_servers}
        self._registered: dict[str, asyncio.Event] = {address: asyncio.Event() for address in name_servers}
        self._peers: dict[str, Peer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        broker.topics_changed = self._topics_changed

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

    def _topics_changed(self) -> None:
        for event in self._changed.values():
            event.set()

    async def _keep(self, address: str) -> None:
        period_s = self._broker.config.register_name_server_period / 1000
        changed, complained = self._changed[address], False
        while True:
            try:
                peer = self._peers.get(address)
                if peer is None or peer.closed:
                    peer = self._peers[address] = await Peer.connect(address, timeout_s=DIAL_TIMEOUT_S)
                changed.clear()
                await peer.ask(self._request(), self._broker.config.register_broker_timeout_mills / 1000)
                self._registered[address].set()
                if complained:
                    log.info("registered again namesrv=%s", address)
                complained = False
                await self._wait(peer, changed, period_s)
            except Exception as error:  # noqa: BLE001  # a task that died would leave us unregistered for good
                if not complained:  # once, not every second of a long outage
                    reason = error if isinstance(error, HotfireError) else f"{type(error).__name__}: {error}"
                    log.warning("not registered namesrv=%s reason=%s; trying on", address, reason)
                complained = True
                await asyncio.sleep(REDIAL_S)

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
        host, _, port = broker.address.rpartition(":")
        return RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=broker.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=f"{host}:{int(port) + 1}",
            broker_id=config.broker_id,
            compressed=False,
            body_crc32=0,
            body=encode_registration(BrokerRegistration(broker.topics.registration())),
        )

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
        for peer in self._peers.values():
            if not peer.closed:
                with suppress(HotfireError):
                    await peer.ask(goodbye, UNREGISTER_TIMEOUT_S)
            await peer.close()

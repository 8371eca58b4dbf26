"""A broker as a running program: store, heart, sockets and registration, started and stopped in order."""

from __future__ import annotations

import logging

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.broker.registration import Registration
from hotfire.errors import StoreError, StoreReadOnly
from hotfire.net.server import Server, bind, local_address, now_ms, resolve
from hotfire.protocol.record import Host
from hotfire.store.disk import Disk
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound to


class BrokerProgram:
    """Use it within a running loop: `await start()`, and `await close()` in the end."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.broker: Broker
        self._server: Server
        self._registration: Registration
        self.port = 0

    @property
    def advertised(self) -> str:
        """The address clients are told."""
        return self.broker.address

    async def start(self) -> None:
        """Recover the store, listen, register. Raises before anything is open if it cannot."""
        config = self.config
        store = Store(Disk(config.root), config.store())
        try:
            store.open()
        except OSError as error:
            raise StoreError(
                f"store {config.root} cannot be opened: {error.strerror} ({error.filename}); "
                "check the directory's owner and permissions, or choose another"
            ) from None
        try:
            listener = bind(config.bind_address, config.listen_port)
        except BaseException:
            store.close()
            raise
        self.port = listener.getsockname()[1]
        ip = config.broker_ip1 or (
            local_address() if config.bind_address in ANY_ADDRESS else config.bind_address
        )
        self.broker = Broker(config, store, Host.parse(resolve(ip), self.port), now_ms())
        self._server = Server(self.broker)
        await self._server.listen(listener)
        self._server.start()
        self._registration = Registration(self.broker, config.name_servers)
        self._registration.start()

    async def wait_registered(self, timeout_s: float) -> list[str]:
        return await self._registration.wait_registered(timeout_s)

    async def close(self) -> None:
        """Leave the routes, take no more, make what was taken safe, answer it, hang up."""
        await self._registration.close()
        self._server.stop()
        self.broker.close(now_ms())
        await self._server.close()
        store = self.broker.store
        log.info("broker closed end=%d", store.end)
        if store.fault is not None:  # whoever started us must not take this for an orderly end
            raise StoreReadOnly(f"the store failed: {store.fault}; repair the disk before the next start")

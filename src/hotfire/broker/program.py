"""A broker as a running program: store, heart, sockets and registration, started and stopped in order."""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.broker.registration import Registration
from hotfire.errors import StoreError, StoreReadOnly
from hotfire.net.peer import split_address
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
        """Recover the store, listen, register. If it cannot, it raises with nothing left open."""
        config = self.config
        config.refuse_replication()
        for address in config.name_servers:
            split_address(address)  # a typing error is told now, not as a name server that never answers
        with ExitStack() as undo:
            listener = bind(config.bind_address, config.listen_port)
            undo.callback(listener.close)
            self.port = listener.getsockname()[1]
            advertised = Host.parse(resolve(self._ip()), self.port)
            store = self._open_store()
            undo.callback(store.close)
            try:
                self.broker = Broker(config, store, advertised, now_ms())
            except OSError as error:
                raise _unusable(config, error) from None
            undo.pop_all()
        self._server = Server(self.broker)
        await self._server.listen(listener)
        self._server.start()
        self._registration = Registration(self.broker, config.name_servers)
        self._registration.start()

    def _ip(self) -> str:
        """Where clients are told to dial."""
        config = self.config
        return config.broker_ip1 or (
            local_address() if config.bind_address in ANY_ADDRESS else config.bind_address
        )

    def _open_store(self) -> Store:
        config = self.config
        store = Store(Disk(config.root), config.store())
        try:
            store.open()
        except OSError as error:
            raise _unusable(config, error) from None
        return store

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


def _unusable(config: BrokerConfig, error: OSError) -> StoreError:
    problem = f"store {config.root} cannot be opened: {error.strerror}"
    if error.filename is not None:
        problem += f" ({error.filename})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        needed = config.mapped_file_size_commit_log
        return StoreError(
            f"{problem}; a log segment takes {needed} bytes: free some space, choose another directory, "
            "or set a smaller mappedFileSizeCommitLog for a new store"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(f"{problem}; check the directory's owner and permissions, or choose another")
    if error.errno == errno.EIO:
        return StoreError(f"{problem}; the disk failed: look at the system's log, repair or replace it")
    return StoreError(f"{problem}; choose another directory")

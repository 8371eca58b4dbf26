"""A broker as a running program: store, heart, sockets and registration, started and stopped in order."""

from __future__ import annotations

import errno
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig, BrokerRole
from hotfire.broker.copies import FOLLOWERS_MAX, Copies
from hotfire.broker.following import Following
from hotfire.broker.master import Master
from hotfire.broker.metadata import Metadata
from hotfire.broker.registration import Registration
from hotfire.broker.routes import Routes
from hotfire.broker.settings_file import SettingsFile
from hotfire.broker.slave import Slave
from hotfire.errors import ConfigError, StoreError, StoreReadOnly
from hotfire.net.addresses import bind, bind_pair, local_address, resolve
from hotfire.net.clock import now_ms
from hotfire.net.peer import split_address
from hotfire.net.server import Server, connections_limit
from hotfire.net.tls import Tls
from hotfire.net.tls_settings import client_context
from hotfire.protocol.record import Host
from hotfire.protocol.requests import RegisterBrokerReply
from hotfire.store.disk import Disk
from hotfire.store.replica import CopiedStore
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound to
BindPair = Callable[..., tuple[socket.socket, socket.socket]]
Bind = Callable[[str, int], socket.socket]
HA_PORT_ABOVE = 1
HA_IDLE_MS_MAX = 1 << 40
"""Slaves that say nothing are their own heart's affair."""
FAST_PORT_BELOW = 2
"""Clients find the fast port by this rule; it is registered nowhere."""
ROLES: dict[BrokerRole, type[Broker]] = {
    BrokerRole.ASYNC_MASTER: Broker,
    BrokerRole.SYNC_MASTER: Master,
    BrokerRole.SLAVE: Slave,
}


class BrokerProgram:
    """Use it within a running loop: `await start()`, and `await close()` in the end."""

    def __init__(
        self,
        config: BrokerConfig,
        config_file: Path | None = None,
        *,
        advertised: str | None = None,
        disk: Disk | None = None,
        bind: BindPair = bind_pair,
        bind_one: Bind = bind,
    ) -> None:
        """`config_file` is where settings changed at run time are kept.

        Clients are told `advertised`, host:port, when something stands between them and our own port.
        """
        self.config = config
        self._config_file = config_file
        self._advertised = None if advertised is None else split_address(advertised)
        self._disk = disk
        self._bind = bind
        self._bind_one = bind_one
        self.broker: Broker
        self.server: Server
        self._registration: Registration
        self._routes: Routes
        self._ha_server: Server | None = None
        self._copying: tuple[Following | Metadata, ...] = ()
        self.port = 0

    @property
    def advertised(self) -> str:
        """The address clients are told."""
        return self.broker.address

    async def start(self) -> None:
        """Recover the store, listen, register. If it cannot, it raises with nothing left open."""
        config = self.config
        config.check_role()
        for address in config.name_servers:
            split_address(address)  # a typing error is told now, not as a name server that never answers
        tls, dial_tls = Tls(config), client_context(config)
        with ExitStack() as undo:
            listener, fast = self._bind(config.bind_address, config.listen_port, below=FAST_PORT_BELOW)
            undo.callback(listener.close)
            undo.callback(fast.close)
            self.port = listener.getsockname()[1]
            ha = self._bind_ha() if config.has_followers else None
            if ha is not None:
                undo.callback(ha.close)
            ip, port, reason = self._place()
            try:
                advertised = Host.parse(resolve(ip), port)
            except ConfigError as error:
                name = "brokerIP1" if config.broker_ip1 else "bindAddress"
                raise ConfigError(
                    f"{name}: {error}; give an address or a host name, without a port"
                ) from None
            store = self._open_store()
            undo.callback(store.close)
            try:
                self.broker = ROLES[config.broker_role](config, store, advertised, now_ms())
            except OSError as error:
                raise _unusable(config, error) from None
            undo.pop_all()
        if self._config_file is not None:
            self.broker.settings_file = SettingsFile(self._config_file)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.server = Server(
            self.broker,
            idle_ms_max=config.server_channel_max_idle_time_seconds * 1000,
            connections_max=connections_limit(config.connections_max, descriptors),
            tls=tls,
        )
        await self.server.listen(listener)
        await self.server.listen(fast, is_fast=True)
        self.server.start()
        self._tell_address(reason)
        ha_port = 0 if ha is None else ha.getsockname()[1]
        self._registration = Registration(self.broker, config.name_servers, dial_tls, ha_port)
        await self._replicate(ha, dial_tls)
        self._registration.start()
        self._routes = Routes(self._registration.ask, config.load_balance_poll_name_server_interval / 1000)
        self.broker.find_queues = self._routes.find

    def _bind_ha(self) -> socket.socket:
        config = self.config
        port = config.ha_listen_port or (self.port + HA_PORT_ABOVE if config.listen_port else 0)
        try:
            return self._bind_one(config.bind_address, port)
        except ConfigError as error:
            raise ConfigError(f"haListenPort={config.ha_listen_port}: {error}") from None

    async def _replicate(self, ha: socket.socket | None, dial_tls: SSLContext | None) -> None:
        """Let slaves follow, or follow a master."""
        broker = self.broker
        if ha is not None:
            copies = broker.copies if isinstance(broker, Master) else Copies(broker.store, self.config)
            self._ha_server = Server(copies, idle_ms_max=HA_IDLE_MS_MAX, connections_max=FOLLOWERS_MAX)
            await self._ha_server.listen(ha, is_fast=True)
            self._ha_server.start()
            log.info("slaves dial port %d", ha.getsockname()[1])
        if isinstance(broker, Slave):
            following = Following(broker, self.server)
            metadata = Metadata(broker, following, dial_tls)
            self._copying = (following, metadata)

            def master_is(reply: RegisterBrokerReply) -> None:
                if reply.ha_server_addr:
                    following.master_is(reply.ha_server_addr)
                if reply.master_addr:
                    metadata.master_is(reply.master_addr)

            self._registration.on_master = master_is
            following.start()
            metadata.start()

    def _place(self) -> tuple[str, int, str]:
        """Where clients are told to dial, and why there."""
        config, port = self.config, self.port
        if self._advertised is not None:
            return *self._advertised, "as told"
        if config.broker_ip1:
            return config.broker_ip1, port, "brokerIP1"
        if config.bind_address in ANY_ADDRESS:
            return local_address(), port, "brokerIP1 is not set: the address this machine goes out by"
        return config.bind_address, port, "brokerIP1 is not set: bindAddress"

    def _tell_address(self, reason: str) -> None:
        """Name servers hand it to every client: the first thing to look at when one cannot connect."""
        log.info(
            "advertised %s (%s); clients dial this address: if theirs is another network, set brokerIP1",
            self.advertised, reason,
        )  # fmt: skip
        ip = ip_address(self.broker.store_host.ip)
        if ip.is_unspecified:
            log.warning(
                "advertised %s is no address to dial; set brokerIP1 to this machine's", self.advertised
            )
        if ip.is_loopback and self.config.bind_address in ANY_ADDRESS:
            log.warning(
                "advertised %s is known on this machine only; set brokerIP1 for clients elsewhere",
                self.advertised,
            )
        log.info("fast port %d", self.port - FAST_PORT_BELOW)

    def _open_store(self) -> Store:
        config = self.config
        kind = CopiedStore if config.is_slave else Store
        store = kind(self._disk or Disk(config.root), config.store())
        try:
            store.open()
        except OSError as error:
            raise _unusable(config, error) from None
        return store

    async def wait_registered(self, timeout_s: float) -> list[str]:
        return await self._registration.wait_registered(timeout_s)

    async def close(self) -> None:
        """Leave the routes, take no more, make what was taken safe, answer it, hang up."""
        await self._routes.close()
        await self._registration.close()
        for part in self._copying:
            await part.close()
        self.server.stop()
        if self._ha_server is not None:
            self._ha_server.stop()
        self.broker.close(now_ms())
        if self._ha_server is not None:
            await self._ha_server.close()
        await self.server.close()
        store = self.broker.store
        log.info("broker closed end=%d", store.end)
        if store.fault is not None:  # whoever started us must not take this for an orderly end
            raise StoreReadOnly(f"the store failed: {store.fault}; repair the disk before the next start")

    def vanish(self) -> None:
        """Hang up on everyone without a word and do nothing more; the store is the caller's."""
        self._registration.abandon()
        for part in self._copying:
            part.abandon()
        if self._ha_server is not None:
            self._ha_server.abort()
        self.server.abort()

    def kill(self) -> None:
        """End as a killed process does: nobody is told, nothing more is written, the store is as it is."""
        self.vanish()
        self.broker.store.fail("killed")
        self.broker.store.close()


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

"""A name server as a running program."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import KvTable
from hotfire.namesrv.namesrv import NameServer
from hotfire.net.addresses import bind
from hotfire.net.clock import now_ms
from hotfire.net.server import Server, connections_limit
from hotfire.net.tls import Tls


class NameServerProgram:
    """Use it within a running loop: `await start()`, and `await close()` in the end.

    `kv` brings the key-value table's saved content and the way to save it; else it is in memory only.
    """

    def __init__(
        self,
        config: NameServerConfig,
        kv: KvTable | None = None,
        *,
        bind: Callable[[str, int], socket.socket] = bind,
    ) -> None:
        self.config = config
        self._bind = bind
        self.name_server = NameServer(config, now_ms=now_ms(), kv=kv)
        self.port = 0
        self.server: Server

    async def start(self) -> None:
        tls = Tls(self.config)
        listener = self._bind(self.config.bind_address, self.config.listen_port)
        self.port = listener.getsockname()[1]
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.server = Server(
            self.name_server,
            idle_ms_max=self.config.server_channel_max_idle_time_seconds * 1000,
            connections_max=connections_limit(self.config.connections_max, descriptors),
            tls=tls,
        )
        await self.server.listen(listener)
        self.server.start()

    async def close(self) -> None:
        await self.server.close()

    def vanish(self) -> None:
        """Hang up on everyone without a word, and do nothing more."""
        self.server.abort()

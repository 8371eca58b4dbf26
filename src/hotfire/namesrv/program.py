"""A name server as a running program."""

from __future__ import annotations

from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import KvTable
from hotfire.namesrv.namesrv import NameServer
from hotfire.net.server import Server, bind, now_ms


class NameServerProgram:
    """Use it within a running loop: `await start()`, and `await close()` in the end.

    `kv` brings the key-value table's saved content and the way to save it; else it is in memory only.
    """

    def __init__(self, config: NameServerConfig, kv: KvTable | None = None) -> None:
        self.config = config
        self.name_server = NameServer(config, now_ms=now_ms(), kv=kv)
        self.port = 0
        self._server: Server

    async def start(self) -> None:
        listener = bind(self.config.bind_address, self.config.listen_port)
        self.port = listener.getsockname()[1]
        self._server = Server(self.name_server)
        await self._server.listen(listener)
        self._server.start()

    async def close(self) -> None:
        await self._server.close()

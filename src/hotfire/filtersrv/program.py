"""A filter server as a running program: it listens, and keeps telling its broker that it is there.

The broker tells name servers of it, and so consumers learn of it with their routes; when it is silent for 30
seconds, or its connection closes, the broker forgets it and consumers soon do, too.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import defaultdict
from contextlib import suppress

from hotfire.errors import HotfireError, Timeout
from hotfire.filtersrv.config import FilterServerConfig, installed
from hotfire.filtersrv.server import FilterServer
from hotfire.filtersrv.workers import FilterFailed, FilterProcess
from hotfire.net.addresses import bind, local_address
from hotfire.net.peer import Peer
from hotfire.net.server import Server, connections_limit
from hotfire.net.tls import Tls
from hotfire.net.tls_settings import client_context
from hotfire.protocol.command import Command
from hotfire.protocol.requests import RegisterFilterServer, RegisterFilterServerReply, Request

log = logging.getLogger("hotfire.filtersrv")

REGISTER_S = 10.0
AGAIN_S = 1.0
CALL_TIMEOUT_S = 3.0
START_TIMEOUT_S = 30.0


class Line:
    """A connection to the broker, dialled when it is needed."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.dialling = asyncio.Lock()


class FilterServerProgram:
    """Use it within a running loop: `await start()`, and `await close()` in the end."""

    def __init__(self, config: FilterServerConfig) -> None:
        self.config = config
        self.places = installed(config)
        self.port = 0
        self.broker_name = ""
        self.filters: dict[str, FilterProcess] = {}
        self.not_loaded: dict[str, FilterFailed] = {}
        """Those that could not be loaded at the start."""
        self._tls = client_context(config)
        self._lines: defaultdict[str | None, Line] = defaultdict(Line)
        """To the broker: one for what we say ourselves, and one for the pulls of each filter. What a broker
        bounds by connection, and a line that is cut for a pull it did not answer, is then one filter's alone.
        """
        self._keeper: asyncio.Task[None] | None = None
        self.server: Server

    @property
    def address(self) -> str:
        return f"{self.config.filter_server_ip or local_address()}:{self.port}"

    async def start(self) -> None:
        """Returns when the broker knows us and every filter has been loaded, or has said why it cannot be.

        FilterFailed when none can: there would be nothing to serve.
        """
        listener = bind(self.config.bind_address, self.config.listen_port)
        self.port = listener.getsockname()[1]
        try:
            self.broker_name = await self._first_registered()
        except BaseException:
            listener.close()
            raise
        config = self.config
        for name, place in self.places.items():
            self.filters[name] = FilterProcess(
                name,
                place,
                self.broker_name,
                timeout_s=config.filter_timeout_millis / 1000,
                start_timeout_s=config.filter_start_timeout_millis / 1000,
                memory_bytes=config.filter_memory_max,
                waiting_max=config.pulls_per_filter_max,
            )
        self.heart = FilterServer(self.filters, self._ask)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.server = Server(
            self.heart,
            idle_ms_max=config.server_channel_max_idle_time_seconds * 1000,
            connections_max=connections_limit(config.connections_max, descriptors),
            tls=Tls(config),
        )
        await self.server.listen(listener)
        self.server.start()
        self._keeper = asyncio.get_running_loop().create_task(self._keep_registered())
        try:
            await self._load()
        except BaseException:
            await self.close()
            raise

    async def _load(self) -> None:
        """One after the other: each start takes much of a processor, and has a limit to its time."""
        for name, process in self.filters.items():
            try:
                await process.load()
            except FilterFailed as failure:  # the log has it; its pulls say it, and begin it again
                self.not_loaded[name] = failure
        if len(self.not_loaded) == len(self.filters):
            raise next(iter(self.not_loaded.values()))

    async def _first_registered(self) -> str:
        loop = asyncio.get_running_loop()
        until_s, complained = loop.time() + START_TIMEOUT_S, False
        while True:
            try:
                return await self._register()
            except HotfireError as error:
                if loop.time() >= until_s:
                    raise
                if not complained:
                    log.warning(
                        "broker=%s not registered: %s; trying for %g s",
                        self.config.connect_which_broker, error, START_TIMEOUT_S,
                    )  # fmt: skip
                complained = True
            await asyncio.sleep(AGAIN_S)

    async def _register(self) -> str:
        peer = await self._connected()
        answer = await peer.ask(RegisterFilterServer(filter_server_addr=self.address), CALL_TIMEOUT_S)
        return RegisterFilterServerReply.from_command(answer).broker_name

    async def _keep_registered(self) -> None:
        complained = False
        while True:
            await asyncio.sleep(AGAIN_S if complained else REGISTER_S)
            try:
                await self._register()
                complained = False
            except HotfireError as error:
                if not complained:
                    log.warning(
                        "broker=%s not registered: %s; trying on", self.config.connect_which_broker, error
                    )
                complained = True

    async def _connected(self, name: str | None = None) -> Peer:
        line = self._lines[name]
        async with line.dialling:
            if line.peer is None or line.peer.closed:
                line.peer = await Peer.connect(
                    self.config.connect_which_broker, timeout_s=CALL_TIMEOUT_S, tls=self._tls
                )
            return line.peer

    async def _ask(self, request: Request, timeout_s: float, name: str | None = None) -> Command:
        peer = await self._connected(name)
        try:
            return await peer.invoke(request, timeout_s)
        except Timeout:
            peer.abort()
            raise

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await self.heart.close()
            await self.server.close()
        for line in self._lines.values():
            if line.peer is not None:
                with suppress(HotfireError):
                    await line.peer.close()

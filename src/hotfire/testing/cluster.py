"""A real name server and real brokers in the test's own process, there within milliseconds.

In a test's event loop:

    async with Cluster(brokers=2) as cluster:
        await cluster.create_topic("orders", queues=4)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("orders", b"paid"))
        await cluster.brokers[0].kill()             its store stays, as a killed process leaves it
        await cluster.brokers[0].start()
        await cluster.clock.turn(3600)              an hour has passed for all in this loop

For code without a loop, with another one, or in other processes:

    with Cluster() as cluster:                      the same without `await`, on a thread of its own
        cluster.create_topic("orders")

Ports are free ones, kept over restarts; the directory is a temporary one, in memory where there is one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import inspect
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.broker.program import FAST_PORT_BELOW, BrokerProgram
from hotfire.client.checks import check_integer
from hotfire.errors import ConfigError, NotRunning
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer, split_address
from hotfire.protocol.requests import UpdateAndCreateTopic
from hotfire.settings import check_value, settings_of
from hotfire.testing.chaos import ChaosProxy
from hotfire.testing.ports import free_port
from hotfire.testing.turned import TurnedClock

if TYPE_CHECKING:
    from hotfire.testing.blocking import BlockingCluster

LOOPBACK = "127.0.0.1"
MEMORY = Path("/dev/shm")  # noqa: S108  # what is made in it gets a name of its own
REGISTER_TIMEOUT_S = 10.0
ADMIN_TIMEOUT_S = 5.0
SMALL = {
    "mapped_file_size_commit_log": 5 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "max_message_size": 4 << 20,
    "disk_max_used_space_ratio": 95,
    "disk_space_clean_forcibly_ratio": 95,
    "disk_space_warning_level_ratio": 100,
    "clean_file_forcibly_enable": False,
}
"""Files that are quickly made; the largest message still fits into a segment. How full the disk of whoever
runs the test is otherwise, is not what the test is about."""


class NameServerNode:
    """One name server of a cluster."""

    def __init__(self, cluster: Cluster, proxy: ChaosProxy | None) -> None:
        self._cluster = cluster
        self._port = free_port() if proxy is None else split_address(proxy.upstream)[1]
        self.proxy = proxy
        """What clients and brokers dial in its place, if there is one."""
        self.program: NameServerProgram | None = None

    @property
    def address(self) -> str:
        """Where clients and brokers dial."""
        return f"{LOOPBACK}:{self._port}" if self.proxy is None else self.proxy.address

    @property
    def is_running(self) -> bool:
        return self.program is not None

    async def start(self) -> None:
        """Begin, or begin again; routes come back as brokers register, within a second or two."""
        if self.program is not None:
            raise NotRunning(f"name server {self.address} is already started")
        program = NameServerProgram(NameServerConfig(bind_address=LOOPBACK, listen_port=self._port))
        await program.start()
        self.program = program
        self._cluster._watch(program)

    async def stop(self) -> None:
        """End in order; nothing happens when it has ended already."""
        if (program := self._ended()) is not None:
            await program.close()

    async def kill(self) -> None:
        """End at once, and hang up on everyone."""
        if (program := self._ended()) is not None:
            program.vanish()
            await asyncio.sleep(0)

    def _ended(self) -> NameServerProgram | None:
        program, self.program = self.program, None
        if program is not None:
            self._cluster._unwatch(program)
        return program


class BrokerNode:
    """One broker of a cluster. Its store outlives it, until the cluster ends."""

    def __init__(self, cluster: Cluster, proxy: ChaosProxy | None, name: str, directory: Path) -> None:
        self._cluster = cluster
        self._port = free_port(-FAST_PORT_BELOW) if proxy is None else split_address(proxy.upstream)[1]
        self.proxy = proxy
        """What name servers tell clients to dial in its place, if there is one."""
        self.name = name
        self.directory = directory
        self.program: BrokerProgram | None = None

    @property
    def address(self) -> str:
        """Where clients dial."""
        return f"{LOOPBACK}:{self._port}" if self.proxy is None else self.proxy.address

    @property
    def is_running(self) -> bool:
        return self.program is not None

    async def start(self) -> None:
        """Recover the store, serve, and be known to the name servers that run."""
        if self.program is not None:
            raise NotRunning(f"broker {self.name} is already started")
        advertised = None if self.proxy is None else self.proxy.address
        program = BrokerProgram(self._config(), advertised=advertised)
        await program.start()
        self.program = program
        self._cluster._watch(program)
        if any(server.is_running for server in self._cluster.name_servers):
            await program.wait_registered(REGISTER_TIMEOUT_S)

    async def stop(self) -> None:
        """End in order; nothing happens when it has ended already."""
        if (program := self._ended()) is not None:
            await program.close()

    async def kill(self) -> None:
        """End as a killed process does: nobody is told, and the store is left as it is."""
        if (program := self._ended()) is not None:
            program.kill()
            await asyncio.sleep(0)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def _ended(self) -> BrokerProgram | None:
        program, self.program = self.program, None
        if program is not None:
            self._cluster._unwatch(program)
        return program

    def _config(self) -> BrokerConfig:
        return dataclasses.replace(
            self._cluster.config,
            broker_name=self.name,
            bind_address=LOOPBACK,
            listen_port=self._port,
            namesrv_addr=self._cluster.namesrv,
            store_path_root_dir=str(self.directory),
        )


def _check_settings(settings: dict[str, Any]) -> None:
    known = {one.name for one in dataclasses.fields(BrokerConfig)}
    for word in sorted(settings.keys() - known):
        own = [name for name in inspect.signature(Cluster).parameters if name != "settings"]
        near = difflib.get_close_matches(word, [*own, *known], n=1)
        meant = f"did you mean {near[0]}? It" if near else "it"
        raise ConfigError(
            f"a cluster has no setting {word}; {meant} takes {', '.join(own)} and the fields of BrokerConfig"
        )
    for one in settings_of(BrokerConfig):
        if one.field in settings:
            check_value(one, settings[one.field], one.field)


class Cluster:
    """Name servers and brokers; use it with `async with` in a running loop, or with plain `with`.

    >>> async def test_a_broker_dies() -> None:
    ...     async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
    ...         await producer.send(Message("orders", b"paid"))
    ...         await cluster.brokers[0].kill()
    ...         await cluster.brokers[0].start()
    ...         await producer.send(Message("orders", b"paid again"))

    `settings` are those of `BrokerConfig`. Without `sync_flush` messages are acknowledged when they are
    written, which is quicker and outlives `kill`, which is no power cut. With `proxied` every node has a
    `proxy` before it, through which all others reach it.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        name_servers: int = 1,
        directory: Path | str | None = None,
        sync_flush: bool = False,
        proxied: bool = False,
        **settings: Any,
    ) -> None:
        check_integer("brokers", brokers)
        check_integer("name_servers", name_servers)
        if not isinstance(directory, (str, Path, NoneType)):
            raise ConfigError(f"directory={directory!r:.60} is {type(directory).__name__}, not a path")
        if brokers < 0 or name_servers < 1:
            raise ConfigError(
                f"a cluster of {brokers} brokers and {name_servers} name servers; choose 1 or more"
            )
        _check_settings(settings)
        flush = FlushDiskType.SYNC_FLUSH if sync_flush else FlushDiskType.ASYNC_FLUSH
        self.config = BrokerConfig(**{**SMALL, "flush_disk_type": flush, **settings})
        """What every broker is started with, but for its name and place."""
        self._directory_given = None if directory is None else Path(directory)
        self._is_proxied = proxied
        self._broker_count, self._name_server_count = brokers, name_servers
        self.brokers: list[BrokerNode] = []
        self.name_servers: list[NameServerNode] = []
        self.directory: Path
        self._clock: TurnedClock | None = None
        self._no_clock = ConfigError("the cluster does not run; use `async with` or `with` first")
        self._end = AsyncExitStack()
        self._blocking: BlockingCluster | None = None

    # --- life --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            self._clock = TurnedClock.of(asyncio.get_running_loop())
        except ConfigError as error:
            self._no_clock = error  # for whoever wants to turn it
        async with AsyncExitStack() as undo:
            self.directory = self._make_directory(undo)
            self.name_servers = [
                NameServerNode(self, await self._make_proxy(undo)) for _ in range(self._name_server_count)
            ]
            self.brokers = [
                BrokerNode(self, await self._make_proxy(undo), name, self.directory / name)
                for name in (f"broker-{number}" for number in range(self._broker_count))
            ]
            nodes: list[NameServerNode | BrokerNode] = [*self.name_servers, *self.brokers]
            for node in nodes:
                undo.push_async_callback(node.stop)
                await node.start()
            self._end = undo.pop_all()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._end.aclose()

    def _make_directory(self, undo: AsyncExitStack) -> Path:
        if self._directory_given is not None:
            return self._directory_given
        made = tempfile.mkdtemp(prefix="hotfire-", dir=MEMORY if MEMORY.is_dir() else None)
        undo.callback(shutil.rmtree, made, ignore_errors=True)
        return Path(made)

    async def _make_proxy(self, undo: AsyncExitStack) -> ChaosProxy | None:
        if not self._is_proxied:
            return None
        return await undo.enter_async_context(ChaosProxy(f"{LOOPBACK}:{free_port(-FAST_PORT_BELOW)}"))

    def __enter__(self) -> BlockingCluster:
        from hotfire.testing.blocking import BlockingCluster

        self._blocking = BlockingCluster(self)
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocking, self._blocking = self._blocking, None
        assert blocking is not None, "ended without having begun"
        blocking.__exit__(kind, error, trace)

    # --- use ---------------------------------------------------------------------------------------

    @property
    def namesrv(self) -> str:
        """What clients are given: the name servers' addresses, joined by ';'."""
        return ";".join(server.address for server in self.name_servers)

    @property
    def clock(self) -> TurnedClock:
        """Turns the time of this loop: brokers, name servers and clients in it go along."""
        if self._clock is None:
            raise self._no_clock
        return self._clock

    async def create_topic(self, name: str, queues: int = 4) -> None:
        """A topic with so many queues on every broker that runs; name servers know it when this returns."""
        for broker in self.brokers:
            if broker.is_running:
                request = UpdateAndCreateTopic(
                    topic=name,
                    default_topic="TBW102",
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=6,
                    topic_filter_type="SINGLE_TAG",
                    topic_sys_flag=0,
                    order=False,
                )
                async with await Peer.connect(broker.address) as peer:
                    await peer.ask(request, ADMIN_TIMEOUT_S)

    # --- the clock ---------------------------------------------------------------------------------

    def _watch(self, program: BrokerProgram | NameServerProgram) -> None:
        if self._clock is None:
            return
        if isinstance(program, BrokerProgram):
            store = program.broker.store
            self._clock.watch(program.server, lambda: store.is_working)
        else:
            self._clock.watch(program.server)

    def _unwatch(self, program: BrokerProgram | NameServerProgram) -> None:
        if self._clock is not None:
            self._clock.unwatch(program.server)

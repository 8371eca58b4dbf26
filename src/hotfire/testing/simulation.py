"""A whole cluster in one thread, on simulated disks, network and clocks: a run is a function of its seed.

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        broker = await sim.add_broker()
        sending = sim.on(sim.network.host("10.0.3.1"), send_many(sim.namesrv))
        await asyncio.sleep(60)                     a minute of theirs, some milliseconds of ours
        broker.power_off()
        ...

    Simulation(seed).run(main)

The programs are those that serve users: sockets, time and disk are the arguments they are started with. Owns
what a machine of the simulation is, how it dies and how it comes back. What must be true of it all, is for
the test to say.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.broker.program import BrokerProgram
from hotfire.errors import NotRunning
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.testing.simdisk import SimDisk, SimFuture
from hotfire.testing.simloop import SimHost, SimLoop
from hotfire.testing.simnet import SimNetwork
from hotfire.testing.simsystem import PowerCut

T = TypeVar("T")

BROKER_PORT, NAME_SERVER_PORT = 10911, 9876
DISK_S = (0.0001, 0.01)
SLOW_SHARE, SLOW_S = 0.01, 0.5
"""One turn in so many takes the disk up to this long."""
SMALL = {
    "mapped_file_size_commit_log": 32 << 10,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 8,
    "max_index_num": 40,
    "max_message_size": 4 << 10,
    "cluster_topic_enable": False,
    "broker_topic_enable": False,
}
"""Files so small that their ends come often."""


class LoopDisk(SimDisk):
    """A simulated disk whose turns, and whose work beside the loop, take the loop's time."""

    def beside(self, work: Callable[[], T]) -> Future[T]:
        future = SimFuture(self, work)
        self._work.append(cast("SimFuture[object]", future))
        self._later(self._do_work)
        return future

    def _hand_over(self, turn: Callable[[], None]) -> None:
        self._turns.append(turn)
        self._later(self._flush)

    def _later(self, work: Callable[[], None]) -> None:
        rng = self._rng
        after_s = rng.uniform(0.0, SLOW_S) if rng.random() < SLOW_SHARE else rng.uniform(*DISK_S)
        asyncio.get_running_loop().call_later(after_s, work)


class SimNode:
    """A machine with one program on it: a name server, or a broker and its disk."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self.is_running = False

    async def start(self) -> None:
        """Start the program; PowerCut when the power goes while it recovers."""
        if self.is_running:
            raise NotRunning(f"{self} is already started")
        self.sim.network.power_on(self.host)
        await self.sim.on(self.host, self._start())
        self.is_running = True

    async def stop(self) -> None:
        """End in order; PowerCut when the power goes meanwhile."""
        self.is_running = False
        await self.sim.on(self.host, self._stop())

    def kill(self) -> None:
        """The process dies; its machine, and what it wrote, stay."""
        self.sim.network.kill(self.host)
        self._end()

    def power_off(self) -> None:
        """The machine dies, and what was not on its disk is gone."""
        self.sim.network.power_off(self.host)
        self._end()

    def _end(self) -> None:
        self.is_running = False

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


class SimNameServer(SimNode):
    """A name server; it keeps nothing."""

    program: NameServerProgram

    def __str__(self) -> str:
        return f"name server {self.host}"

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{NAME_SERVER_PORT}"

    async def _start(self) -> None:
        config = NameServerConfig(bind_address=self.host.ip, listen_port=NAME_SERVER_PORT)
        self.program = NameServerProgram(config, bind=cast(Any, self.sim.network.bind))
        await self.program.start()

    async def _stop(self) -> None:
        await self.program.close()

    def _end(self) -> None:
        if self.is_running:
            self.program.vanish()
        super()._end()


class SimBroker(SimNode):
    """A broker and its disk, which outlives it as disks do."""

    def __init__(self, sim: Simulation, host: SimHost, config: BrokerConfig, disk: SimDisk) -> None:
        super().__init__(sim, host)
        self.config = config
        self.disk = disk
        self.program: BrokerProgram | None = None

    def __str__(self) -> str:
        return f"{self.config.broker_name} {self.host}"

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{BROKER_PORT}"

    async def _start(self) -> None:
        network = self.sim.network
        program = BrokerProgram(
            self.config, disk=self.disk, bind=cast(Any, network.bind_pair), bind_one=cast(Any, network.bind)
        )
        try:
            await program.start()
        except PowerCut:
            self.power_off()
            raise
        self.program = program

    async def _stop(self) -> None:
        assert self.program is not None
        try:
            await self.program.close()
            self.program = None
        except PowerCut:
            self.power_off()
            raise

    def kill(self) -> None:
        super().kill()
        self.disk = self.disk.kill(self.sim.rng)

    def power_off(self) -> None:
        super().power_off()
        self.disk = self.disk.power_cut(self.sim.rng)

    def _end(self) -> None:
        super()._end()
        self.disk.hold()  # a turn under way does not get done by this
        program, self.program = self.program, None
        if program is not None:
            program.vanish()
            program.broker.store.queries.close()


class Simulation:
    """One run. Everything random in it comes from `rng`, which is the seed's.

    >>> async def main(sim: Simulation) -> int:
    ...     await sim.add_name_server()
    ...     broker = await sim.add_broker()
    ...     await asyncio.sleep(5)  # the name server has heard of it
    ...     async with Producer(sim.namesrv, rng=sim.fork(), instance_name="p") as producer:
    ...         await producer.send(Message("orders", b"paid"))
    ...         broker.power_off()
    ...         await broker.start()
    ...         await asyncio.sleep(60)
    ...         return (await producer.send(Message("orders", b"paid again"))).code
    >>> Simulation(seed=7).run(main)
    0
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, self.fork())
        self.network.on_delivery = self._delivered
        self.loop.on_failure = self._on_failure
        self.brokers: list[SimBroker] = []
        self.name_servers: list[SimNameServer] = []
        self.on_power_cut: Callable[[SimBroker], None] = lambda broker: None
        """Told when a broker's power went where `broker.disk.cut_after` said."""
        self.story: list[str] = []
        self._digest = hashlib.sha256()

    def fork(self) -> random.Random:
        """Random numbers for one part, whatever the others draw."""
        return random.Random(self.rng.getrandbits(64))

    def run(self, main: Callable[[Simulation], Coroutine[Any, Any, T]]) -> T:
        """What comes of `main`; raises what went wrong in it, or anywhere without anyone noticing."""
        try:
            result = self.loop.run_until_complete(main(self))
        finally:
            self._end()
        if self.loop.failures:
            raise self.loop.failures[0]
        return result

    def _end(self) -> None:
        for node in (*self.brokers, *self.name_servers):
            node.kill()
        for broker in self.brokers:
            broker.disk.switch_off()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    # --- machines ------------------------------------------------------------------------------------

    async def add_name_server(self) -> SimNameServer:
        node = SimNameServer(self, self.network.host(f"10.0.1.{len(self.name_servers) + 1}"))
        self.name_servers.append(node)
        await node.start()
        return node

    async def add_broker(
        self, *, sync_flush: bool = True, disk_type: type[SimDisk] = LoopDisk, **settings: Any
    ) -> SimBroker:
        """`settings` are those of BrokerConfig."""
        number = len(self.brokers)
        host = self.network.host(f"10.0.2.{number + 1}")
        flush = FlushDiskType.SYNC_FLUSH if sync_flush else FlushDiskType.ASYNC_FLUSH
        chosen = {"broker_name": f"broker-{number}", "flush_disk_type": flush, "fast_lane_enable": False}
        config = dataclasses.replace(
            BrokerConfig(**{**SMALL, **chosen, **settings}),
            bind_address=host.ip,
            listen_port=BROKER_PORT,
            namesrv_addr=self.namesrv,
            store_path_root_dir="/disk",
        )
        node = SimBroker(self, host, config, disk_type(self.rng.getrandbits(32)))
        self.brokers.append(node)
        await node.start()
        return node

    @property
    def namesrv(self) -> str:
        """What clients are given."""
        return ";".join(server.address for server in self.name_servers)

    def on(self, host: SimHost, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that runs on a host: connections it makes begin there, its clock is that one's."""
        return self.loop.create_task(work, context=host.context())

    # --- what happened -------------------------------------------------------------------------------

    def say(self, what: str) -> None:
        """A line of the story, with its time."""
        line = f"{self.loop.time():10.6f} {what}"
        self.story.append(line)
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """The same for two runs in which the same arrived at the same times."""
        return self._digest.hexdigest()

    def _delivered(self, source: str, target: str, size: int) -> None:
        self._digest.update(f"{self.loop.time():.9f} {source} {target} {size}".encode())

    def _on_failure(self, error: BaseException) -> bool:
        if not isinstance(error, PowerCut):
            return False
        for broker in self.brokers:
            if broker.is_running and broker.disk.is_off:
                broker.power_off()
                self.say(f"{broker} lost its power: {error}")
                self.on_power_cut(broker)
        return True

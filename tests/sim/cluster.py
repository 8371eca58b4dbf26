"""The life of a cluster, from a seed: producers, a reader and a group while machines, lines and clocks fail.

    python -m tests.sim.cluster SEED

lives one again and tells it. Everything runs in one thread on simulated disks, network and clocks; broker,
name server and client are the real ones. Owns what was sent and what came of each attempt, and holds the
brokers against it in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hotfire import Message, Producer, SendStatus
from hotfire.client.reader import TopicReader
from hotfire.errors import BrokerRefused, ConnectError, HotfireError, NoRoute
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.net.peer import Peer
from hotfire.protocol.requests import UpdateAndCreateTopic
from hotfire.testing import PowerCut, SimDisk
from hotfire.testing.simulation import LoopDisk, SimBroker, SimHost, SimNode, Simulation
from tests.sim.group import Group

TOPIC = "orders"
MESSAGES_MAX, ATTEMPTS_MAX = 32, 4
FAULTS_MAX = 10
DOWN_S_MAX, APART_S_MAX = 8.0, 45.0
CLOCK_JUMPS_MS = -7_200_000, -5_000, -400, 400, 5_000, 3_600_000
NEVER = 1 << 62
END_S_MAX = 400.0
"""After which whoever still waits, waits for ever."""

REGISTER_PERIOD_S, ROUTED_S_MAX = 30.0, 70.0
"""A registration may hang for 24 s in a connection that leads nowhere, and the next comes 30 s later."""

DISRUPTIONS = (
    "brokers lost",
    "stops",
    "connections cut",
    "partitions",
    "name servers killed",
    "cuts in recovery",
)

Place = tuple[MessageQueue, int]


class LifeFailed(AssertionError):
    """A promise was broken. The message says how to see it again."""


@dataclass
class Sending:
    """One message, and what came of it."""

    body: bytes
    library_retries: int
    started_s: float = 0.0
    """When the last attempt began."""
    acknowledged_s: float | None = None
    place: Place | None = None
    unknown: int = 0
    """Attempts that may have stored a copy, or not."""


class ClusterLife:
    """One run. `live` raises LifeFailed when a promise was broken."""

    def __init__(self, seed: int, *, disk_type: type[SimDisk] = LoopDisk) -> None:
        self.disk_type = disk_type
        self.sim = Simulation(seed)
        self.rng = rng = self.sim.fork()
        self.broker_count, self.name_server_count = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
        self.queues = rng.choice((1, 2, 4))
        self.sync_flush = rng.random() < 0.7
        self.sendings: list[Sending] = []
        self.seen: dict[Place, bytes] = {}
        """What the reader got."""
        self.group = Group(self.sim, TOPIC, orderly=rng.random() < 0.5)
        self.tally: Counter[str] = Counter()
        self.is_mended = False
        self._comebacks: list[asyncio.Task[None]] = []

    def live(self) -> Counter[str]:
        try:
            self.sim.run(self._live)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            told = "\n".join(self.sim.story[-12:])
            raise LifeFailed(
                f"python -m tests.sim.cluster {self.sim.seed}\n{told}\n{type(error).__name__}: {error}"
            ) from error
        return self.tally

    async def _live(self, sim: Simulation) -> None:
        sim.on_power_cut = self._comes_back
        for _ in range(self.name_server_count):
            await sim.add_name_server()
        for _ in range(self.broker_count):
            await sim.add_broker(sync_flush=self.sync_flush, disk_type=self.disk_type)
        sim.say(
            f"brokers={self.broker_count} name_servers={self.name_server_count} queues={self.queues} "
            f"sync_flush={self.sync_flush} orderly={self.group.orderly}"
        )
        hosts = [sim.network.host(f"10.0.3.{number}") for number in (1, 2, 3)]
        await sim.on(hosts[0], self._create_topic())
        reading = sim.on(hosts[2], self._read())
        for _ in range(self.rng.choice((1, 2))):
            self.group.join()
        sending = [sim.on(host, self._send(number)) for number, host in enumerate(hosts[:2])]
        await self._break_things(hosts)
        await self._mend_all()
        async with asyncio.timeout(END_S_MAX):
            await asyncio.gather(*sending)
        await self._until_routed()
        contents = await sim.on(hosts[0], self._contents())
        check_contents(self.sendings, contents)
        async with asyncio.timeout(END_S_MAX):
            while len(self.seen) < len(contents) and not reading.done():  # noqa: ASYNC110  # of their time
                await asyncio.sleep(1.0)
        if reading.done():
            reading.result()
        reading.cancel()
        check_seen(self.seen, contents)
        await self._check_group(contents)
        self.tally["messages"] += len(self.sendings)
        self.tally["acknowledged"] += sum(sending.place is not None for sending in self.sendings)
        self.tally["twice"] += len(contents) - len(set(contents.values()))

    async def _check_group(self, contents: dict[Place, bytes]) -> None:
        names = [broker.config.broker_name for broker in self.sim.brokers]
        await self.group.check(
            set(contents.values()),
            Counter(contents.values()),
            {MessageQueue(TOPIC, name, queue_id) for name in names for queue_id in range(self.queues)},
            sum(self.tally[fault] for fault in DISRUPTIONS),
        )
        self.tally["handled"] += self.group.handled.total()
        self.tally["orderly" if self.group.orderly else "concurrent"] += 1
        await self.group.close()

    async def _until_routed(self) -> None:
        """Every name server knows every broker again.

        A goodbye that was held up may come behind the greeting of the broker's next life, and make a name
        server forget it until it registers again.
        """
        await asyncio.sleep(REGISTER_PERIOD_S)
        names = [broker.config.broker_name for broker in self.sim.brokers]
        async with asyncio.timeout(ROUTED_S_MAX):
            for server in self.sim.name_servers:
                routes = server.program.name_server.state.routes
                while sorted(routes.cluster_info().brokers) != names:  # noqa: ASYNC110  # of their time
                    await asyncio.sleep(1.0)

    # --- clients -------------------------------------------------------------------------------------

    async def _create_topic(self) -> None:
        request = UpdateAndCreateTopic(
            topic=TOPIC, default_topic="TBW102", read_queue_nums=self.queues, write_queue_nums=self.queues,
            perm=6, topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
        )  # fmt: skip
        for broker in self.sim.brokers:
            async with await Peer.connect(broker.address) as peer:
                await peer.ask(request, 5.0)

    async def _send(self, number: int) -> None:
        rng, loop = self.sim.fork(), self.sim.loop
        retries = 2 * number
        async with Producer(
            self.sim.namesrv, instance_name=f"producer{number}", retries=retries, rng=self.sim.fork()
        ) as producer:
            for count in range(rng.randrange(4, MESSAGES_MAX)):
                sending = Sending(b"%d-%d" % (number, count), retries)
                self.sendings.append(sending)
                for _ in range(ATTEMPTS_MAX):
                    sending.started_s = loop.time()
                    if await self._attempt(producer, sending):
                        break
                    await asyncio.sleep(rng.uniform(0.0, 2.0))
                await asyncio.sleep(rng.choice((0.0, 0.05, 0.5, 3.0)))

    async def _attempt(self, producer: Producer, sending: Sending) -> bool:
        try:
            result = await producer.send(Message(TOPIC, sending.body, keys=(sending.body.decode(),)))
        except HotfireError as error:
            if sending.library_retries or not isinstance(error, ConnectError | NoRoute | BrokerRefused):
                sending.unknown += 1 + sending.library_retries
            self.sim.say(f"{sending.body!r} failed: {type(error).__name__}")
            self.tally["failed attempts"] += 1
            return False
        if result.status is not SendStatus.SEND_OK:
            sending.unknown += 1
            return False
        sending.unknown += sending.library_retries
        sending.acknowledged_s = self.sim.loop.time()
        sending.place = result.queue, result.queue_offset
        self.sim.say(f"{sending.body!r} acknowledged at {_text(sending.place)}")
        return True

    async def _read(self) -> None:
        """Follow every queue; begin again from its start where the reader gives up."""
        while True:
            following: dict[MessageQueue, int] = defaultdict(int)
            try:
                async with TopicReader(
                    self.sim.namesrv, TOPIC, start="earliest", rng=self.sim.fork()
                ) as reader:
                    async for message in reader:
                        self._see(message, following)
            except HotfireError as error:
                self.sim.say(f"reader begins again: {type(error).__name__}")
                self.tally["readers begun again"] += 1
                await asyncio.sleep(1.0)

    def _see(self, message: ReceivedMessage, following: dict[MessageQueue, int]) -> None:
        place = message.queue, message.queue_offset
        assert place[1] == following[place[0]], f"{_text(place)} read, {following[place[0]]} was next"
        following[place[0]] += 1
        before = self.seen.setdefault(place, message.body)
        assert before == message.body, f"{_text(place)} was {before!r} and is {message.body!r}"

    async def _contents(self) -> dict[Place, bytes]:
        """All there is, read from every queue once the dust has settled."""
        async with TopicReader(
            self.sim.namesrv, TOPIC, start="earliest", follow=False, rng=self.sim.fork()
        ) as reader:
            return {(message.queue, message.queue_offset): message.body async for message in reader}

    # --- faults --------------------------------------------------------------------------------------

    async def _break_things(self, clients: list[SimHost]) -> None:
        rng = self.rng
        faults: list[Callable[[list[SimHost]], None]] = [
            self._power_cut, self._power_cut, self._kill, self._kill, self._stop, self._cut, self._cut,
            self._partition, self._partition, self._kill_name_server, self._set_clock,
        ]  # fmt: skip
        faults += [self._change_group] * 3
        if not self.sync_flush:  # what is only written, a power cut may take
            faults = [fault for fault in faults if fault != self._power_cut]
        for _ in range(rng.randrange(1, FAULTS_MAX)):
            await asyncio.sleep(rng.choice((rng.uniform(0, 0.2), rng.uniform(0, 8))))
            rng.choice(faults)(clients)

    def _power_cut(self, _: list[SimHost]) -> None:
        broker = self._running_broker()
        if broker is None:
            return
        if self.rng.random() < 0.6:
            count = self.rng.randrange(60)
            self.sim.say(f"{broker} loses its power in {count} operations")
            broker.disk.cut_after(broker.disk.operations + count)
            return
        broker.power_off()
        self.sim.say(f"{broker} loses its power: {broker.disk.fate}")
        self._comes_back(broker)

    def _kill(self, _: list[SimHost]) -> None:
        if (broker := self._running_broker()) is not None:
            self.sim.say(f"{broker} is killed")
            broker.kill()
            self._comes_back(broker)

    def _stop(self, _: list[SimHost]) -> None:
        if (broker := self._running_broker()) is not None:
            self.sim.say(f"{broker} is stopped")
            self._later(self._stop_and_start(broker))
            self.tally["stops"] += 1

    async def _stop_and_start(self, broker: SimBroker) -> None:
        try:
            await broker.stop()
        except PowerCut as cut:
            self.sim.say(f"{broker} loses its power as it stops {cut}")
            self.tally["cuts in closing"] += 1
        await self._start_again(broker)

    def _kill_name_server(self, _: list[SimHost]) -> None:
        server = self.rng.choice(self.sim.name_servers)
        if server.is_running:
            self.sim.say(f"{server} is killed")
            server.kill()
            self._later(self._start_again(server))
            self.tally["name servers killed"] += 1

    def _cut(self, clients: list[SimHost]) -> None:
        one = [self.rng.choice(clients + [broker.host for broker in self.sim.brokers])]
        count = self.sim.network.cut(one, list(self.sim.network.hosts.values()))
        self.sim.say(f"{count} connections of {one[0]} cut")
        self.tally["connections cut"] += count

    def _partition(self, clients: list[SimHost]) -> None:
        rng, brokers = self.rng, [broker.host for broker in self.sim.brokers]
        names = [server.host for server in self.sim.name_servers]
        client, broker = [rng.choice(clients)], [rng.choice(brokers)]
        these, those = rng.choice(
            ((brokers, names), (broker, names), (clients, names), (client, brokers), (client, broker))
        )
        self.sim.say(f"{' '.join(map(str, these))} apart from {' '.join(map(str, those))}")
        self.sim.network.partition(these, those)
        self._later(self._heal(rng.choice((rng.uniform(0, 3), rng.uniform(0, APART_S_MAX)))))
        self.tally["partitions"] += 1

    async def _heal(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.sim.say("no partitions")
        self.sim.network.heal()

    def _set_clock(self, clients: list[SimHost]) -> None:
        host = self.rng.choice(list(self.sim.network.hosts.values()))
        by_ms = self.rng.choice(CLOCK_JUMPS_MS)
        self.sim.say(f"clock of {host} set by {by_ms} ms")
        host.skew_ms += by_ms
        self.tally["clocks set"] += 1

    def _change_group(self, clients: list[SimHost]) -> None:
        self.tally[self.group.change()] += 1

    def _running_broker(self) -> SimBroker | None:
        running = [broker for broker in self.sim.brokers if broker.is_running]
        return self.rng.choice(running) if running else None

    # --- coming back ---------------------------------------------------------------------------------

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._comebacks.append(self.sim.loop.create_task(work))

    def _comes_back(self, broker: SimBroker) -> None:
        self.tally["brokers lost"] += 1
        self._later(self._start_again(broker))

    async def _start_again(self, node: SimNode) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, DOWN_S_MAX))
        while True:
            may_fail = self.sync_flush and not self.is_mended and self.rng.random() < 0.3
            if isinstance(node, SimBroker) and may_fail:
                node.disk.cut_after(node.disk.operations + self.rng.randrange(40))
            try:
                await node.start()
                break
            except PowerCut as cut:
                self.sim.say(f"{node} loses its power as it starts {cut}")
                self.tally["cuts in recovery"] += 1
        if isinstance(node, SimBroker):
            self.group.restarted_s[node.config.broker_name] = self.sim.loop.time()
        self.sim.say(f"{node} is back")

    async def _mend_all(self) -> None:
        """All is well from here on."""
        for broker in self.sim.brokers:
            broker.disk.cut_after(NEVER)
        self.is_mended = True
        while self._comebacks:
            await self._comebacks.pop()
        self.sim.network.heal()
        self.sim.say("all is well")


# --- what must be true ---------------------------------------------------------------------------------


def check_contents(sendings: list[Sending], contents: dict[Place, bytes]) -> None:
    """Each acknowledged message is where it was said to be; none is there that was not sent, or too often."""
    places: dict[bytes, list[Place]] = defaultdict(list)
    for place, body in contents.items():
        places[body].append(place)
    assert set(places) <= {sending.body for sending in sendings}, "a message is there that nobody sent"
    for sending in sendings:
        copies = len(places[sending.body])
        certain = 0 if sending.place is None else 1
        if sending.place is not None:
            found, place = contents.get(sending.place), _text(sending.place)
            assert found == sending.body, f"{sending.body!r} was acknowledged at {place}: {found!r}"
        assert certain <= copies <= certain + sending.unknown, (
            f"{sending.body!r} is stored {copies} times; acknowledged {certain}, unknown {sending.unknown}"
        )
    check_order(sendings)
    queues: dict[MessageQueue, list[int]] = defaultdict(list)
    for queue, offset in contents:
        queues[queue].append(offset)
    for queue, offsets in queues.items():
        assert sorted(offsets) == list(range(len(offsets))), f"{queue} has gaps: {sorted(offsets)}"


def check_order(sendings: list[Sending]) -> None:
    """What was acknowledged before another was sent to the same queue, is before it."""
    by_queue: dict[MessageQueue, list[Sending]] = defaultdict(list)
    for sending in sendings:
        if sending.place is not None:
            by_queue[sending.place[0]].append(sending)
    for placed in by_queue.values():
        for one, other in itertools.permutations(placed, 2):
            assert one.place is not None
            assert other.place is not None
            assert one.acknowledged_s is not None
            is_before = one.place[1] < other.place[1]
            assert is_before or one.acknowledged_s >= other.started_s, (
                f"{other.body!r} at {_text(other.place)} was sent after {one.body!r} at {_text(one.place)}"
            )


def check_seen(seen: dict[Place, bytes], contents: dict[Place, bytes]) -> None:
    """The reader got all there is, each where it is: what was read once did not change."""
    assert seen == contents, (
        f"read and stored differ at {sorted(map(_text, seen.keys() ^ contents.keys()))[:5]}, or in "
        f"{[_text(place) for place in seen if contents.get(place) != seen[place]][:5]}"
    )


def _text(place: Place) -> str:
    queue, offset = place
    return f"{queue.broker_name}/{queue.queue_id}/{offset}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--logs", action="store_true", help="what the programs log, too")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.logs else logging.CRITICAL + 1)
    life = ClusterLife(arguments.seed)
    try:
        life.live()
    finally:
        sys.stdout.write("\n".join(life.sim.story) + f"\n{dict(life.tally)} digest {life.sim.digest}\n")


if __name__ == "__main__":
    main()

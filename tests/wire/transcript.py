"""A broker without sockets or clock: request frames in, reply bytes and store files out, the same every time.

Owns the order of things: what is received together, when a turn is handed over, when its end is seen. Run as
a program it replays one transcript with the core it is told to use, for comparing cores across processes.
"""

import dataclasses
import hashlib
import json
import random
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.errors import RemoteProtocolError
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host
from hotfire.store.disk import Disk
from hotfire.store.reading import Read
from hotfire.store.store import Store

ADVERTISED = Host.parse("127.0.0.1", 10911)
TICK_MS = 50
TICKS_MAX = 200
"""A clock that leaps is followed in at most so many ticks."""
WAIT_S = 20.0


@dataclass(eq=False)
class Peer:
    """One connection, as the broker sees it; keeps what was written to it."""

    peer: tuple[str, int]
    closed: bool = False
    held: bool = False
    state: Any = None
    replies: bytearray = field(default_factory=bytearray)
    aside: bytearray = field(default_factory=bytearray)

    @property
    def born_host(self) -> bytes:
        host = Host.parse(*self.peer)
        return host.address + host.port.to_bytes(4)

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.replies += data

    def close(self) -> None:
        self.closed = True

    @property
    def is_clogged(self) -> bool:
        return False

    @property
    def is_flooded(self) -> bool:
        return False

    def hold(self) -> None:
        self.held = True


class Bench:
    """A broker over a directory, driven by hand."""

    def __init__(
        self,
        root: Path,
        now_ms: int,
        *,
        advertised: Host = ADVERTISED,
        turn_bytes_max: int | None = None,
        **settings: Any,
    ) -> None:
        self.config = BrokerConfig(
            store_path_root_dir=str(root),
            broker_name="broker",
            default_topic_queue_nums=4,
            **{
                "mapped_file_size_commit_log": 1 << 18,
                "mapped_file_size_consume_queue": 4000,
                "max_hash_slot_num": 500,
                "max_index_num": 1000,
                **settings,
            },
        )
        self.root = root
        store_config = self.config.store()
        if turn_bytes_max is not None:
            store_config = dataclasses.replace(store_config, turn_bytes_max=turn_bytes_max)
        self.store = Store(Disk(root), store_config)
        self.store.open()
        self.broker = Broker(self.config, self.store, advertised, now_ms)
        self.broker.unique_ids = UniqueIds(ADVERTISED.address, 4242, 0xC0FFEE)
        self.cold_reads = 0
        fetch_beside = self.store.fetch_beside

        def counted(found: Read, key: tuple[str, int], token: object) -> None:
            self.cold_reads += 1
            fetch_beside(found, key, token)

        self.store.fetch_beside = counted  # type: ignore[method-assign]
        self.now_ms = now_ms
        self.peers: dict[int, Peer] = {}
        random.seed(now_ms)  # a queue id below 0 means any queue

    # --- what happens to it ---

    def peer(self, number: int, ip: str = "127.0.0.1") -> Peer:
        if number not in self.peers:
            self.peers[number] = Peer((ip, 40_000 + number))
            self.broker.connected(self.peers[number], self.now_ms)
        return self.peers[number]

    def receive(self, peer: Peer, data: bytes) -> None:
        """Bytes arrive; what a whole frame lacks is kept, as the server keeps it."""
        peer.aside += data
        if not peer.closed and not peer.held:
            self._serve(peer)

    def _serve(self, peer: Peer) -> None:
        try:
            with memoryview(peer.aside) as whole:
                consumed = self.broker.receive(peer, whole, self.now_ms)
        except RemoteProtocolError:
            peer.close()
            self.broker.disconnected(peer, self.now_ms)
            return
        del peer.aside[:consumed]

    def disconnect(self, peer: Peer) -> None:
        if not peer.closed:
            peer.close()
            self.broker.disconnected(peer, self.now_ms)

    def turn(self) -> None:
        """This pass over the sockets is over."""
        if self.broker.wants_turn:
            self.broker.turn(self.now_ms)

    def settle(self) -> None:
        """Turn after turn until nothing is left to write, to read or to serve."""
        (_, turn_done), (_, reads_done), (queries, queries_done) = self.broker.watches()
        while True:
            self.turn()
            if self.store.journal.busy and self.store.fault is None:
                self._wait(self.store.fileno())
                turn_done(self.now_ms)
                held, self.broker.held[:] = list(self.broker.held), []
                for peer in held:
                    assert isinstance(peer, Peer)
                    peer.held = False
                    if not peer.closed:
                        self._serve(peer)
            elif self.store._reading._reader.queued:
                self._wait(self.store.reader_fileno())
                reads_done(self.now_ms)
            elif self.store._reading.asked > self.store._reading.answered:
                self._wait(queries)
                queries_done(self.now_ms)
            elif not (self.broker.wants_turn and self.store.fault is None):
                return

    def _wait(self, fd: int) -> None:
        ready, _, _ = select.select([fd], [], [], WAIT_S)
        assert ready, f"nothing happened for {WAIT_S} s"

    def advance(self, now_ms: int) -> None:
        """Let time pass, with the ticks that belong to it."""
        step = max(TICK_MS, (now_ms - self.now_ms) // TICKS_MAX)
        while self.now_ms < now_ms:
            self.now_ms = min(self.now_ms + step, now_ms)
            self.broker.tick(self.now_ms)
            self.settle()

    # --- what came of it ---

    def close(self) -> None:
        self.settle()
        self.broker.close(self.now_ms)

    def outcome(self) -> "Outcome":
        """Everything written to anyone, once closed."""
        files = {
            str(path.relative_to(self.root)): path.read_bytes()
            for part in ("commitlog", "consumequeue")
            for path in sorted((self.root / part).rglob("*"))
            if path.is_file()
        }
        offsets = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in sorted(found.items())}
            for (topic, group), found in sorted(self.broker.offsets._offsets.items())
        }
        replies = {str(number): bytes(peer.replies) for number, peer in self.peers.items()}
        in_no_order = {name: b"".join(sorted(frames_of(stream))) for name, stream in replies.items()}
        return Outcome(self.cold_reads, _digests(files), offsets, _digests(replies), _digests(in_no_order))


@dataclass(frozen=True)
class Outcome:
    """What two runs of one transcript must have in common; of log, queues and replies sizes and hashes."""

    cold_reads: int
    files: dict[str, str]
    offsets: dict[str, dict[str, int]]
    replies: dict[str, str]
    replies_in_no_order: dict[str, str]

    def assert_same(self, other: "Outcome") -> None:
        assert self.files == other.files
        assert self.offsets == other.offsets
        assert self.replies_in_no_order == other.replies_in_no_order
        # A page the kernel has locked just now is read beside the loop, and its pull answered after the next.
        if not self.cold_reads and not other.cold_reads:
            assert self.replies == other.replies


def _digests(parts: dict[str, bytes]) -> dict[str, str]:
    return {name: f"{len(data)}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(parts.items())}


@dataclass(frozen=True)
class Step:
    """Bytes arrive on a connection, or its end does; then perhaps the pass over the sockets is over."""

    conn: int
    data: bytes | None
    now_ms: int
    ends_pass: bool = True
    settles: bool = True
    ip: str = "127.0.0.1"


def replay(steps: list[Step], root: Path, kind: type[Bench] = Bench, **settings: Any) -> Bench:
    """The bench after all of `steps`, closed."""
    bench = kind(root, steps[0].now_ms, **settings)
    for step in steps:
        bench.advance(step.now_ms)
        peer = bench.peer(step.conn, step.ip)
        if step.data is None:
            bench.disconnect(peer)
        else:
            bench.receive(peer, step.data)
        if step.ends_pass:
            bench.turn()
        if step.settles:
            bench.settle()
    bench.close()
    return bench


def frames_of(stream: bytes) -> Iterator[bytes]:
    """The whole frames one after another in `stream`, which holds nothing else."""
    at = 0
    while at < len(stream):
        size = 4 + int.from_bytes(stream[at : at + 4])
        assert at + size <= len(stream), "the replies end inside a frame"
        yield stream[at : at + size]
        at += size


def main(name: str, root: str, result: str) -> None:
    from hotfire import core
    from tests.wire import scripts

    outcome = replay(scripts.by_name(name), Path(root)).outcome()
    facts = {"compiled": core.COMPILED, **dataclasses.asdict(outcome)}
    Path(result).write_text(json.dumps(facts), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

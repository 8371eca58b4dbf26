"""A store driven the way the broker drives it: prepared send frames through the compiled lane, turn by turn.

Owns the frames and the turn's order (serve, submit, wait, complete); knows nothing of what is measured.
"""

from __future__ import annotations

import select
import struct
import time
from pathlib import Path
from typing import Any, Self

from hotfire import core
from hotfire.broker.config import BrokerConfig
from hotfire.broker.fastlane import NEXT_PARTIAL, NEXT_SEGMENT, FastLane
from hotfire.model import HALF_TOPIC, TopicConfig
from hotfire.protocol.record import Host, encode_properties
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.store import Store

HOST = Host(bytes([127, 0, 0, 1]), 10911)
BORN_HOST = HOST.address + HOST.port.to_bytes(4)
TOPIC = "bench"
TURN = 64
WAIT_MS_MAX = 60_000
TICK_MS = 50
SUFFIX = encode_properties({"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"})
"""What the broker adds to the properties of every message."""
_HEADER = (
    b'{"code":310,"extFields":{"a":"pg","b":"%s","c":"TBW102","d":"4","e":"%d","f":"0","g":"1700000000000",'
    b'"h":"0","i":"%s","j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)


def frame(number: int, queues: int, body: bytes) -> bytes:
    """One SEND_MESSAGE_V2 as a Java producer sends it. A unique key is its only key: one index entry."""
    unique = b"7F0000010001%020X" % (number * 2654435761 % (1 << 64))
    properties = rb"UNIQ_KEY\u0001" + unique + rb"\u0002WAIT\u0001true"
    header = _HEADER % (TOPIC.encode(), number % queues, properties, number % (1 << 31))
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def turns(count: int, body_bytes: int, *, queues: int = 4, per_turn: int = TURN) -> list[bytes]:
    """So many turns, each its frames one behind the other; message n goes to queue n mod `queues`."""
    body = bytes(33 + i % 90 for i in range(body_bytes))
    numbers = iter(range(count * per_turn))
    return [b"".join(frame(next(numbers), queues, body) for _ in range(per_turn)) for _ in range(count)]


class Rig:
    """An open store and a lane over it."""

    def __init__(self, root: Path, *, queues: int = 4, **config: Any) -> None:
        self.root = root
        self.store = Store(Disk(root), StoreConfig(**config))
        self.store.open()
        fast = FastLane(
            BrokerConfig(), self.store, HOST, SUFFIX, core.Halves(self.store.queue(HALF_TOPIC, 0))
        )
        assert fast.lane is not None, core.WHY_PLAIN
        fast.topic_changed(TopicConfig(TOPIC, read_queues=queues, write_queues=queues))
        self.lane = fast.lane
        self._poll = select.poll()  # select() takes no descriptor above 1023
        self._poll.register(self.store.fileno(), select.POLLIN)
        self._ticked_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def fill(self, data: bytes) -> None:
        """Every frame of `data` into the turn."""
        at, now_ms = 0, _now_ms()
        while at < len(data):
            consumed, following, *_replies = self.lane.serve(data, at, BORN_HOST, now_ms)
            at += consumed
            if following == NEXT_SEGMENT:
                self.store.add_segment()
            elif following != NEXT_PARTIAL:
                raise RuntimeError(f"the lane stopped at byte {at} of {len(data)}, reason {following}")

    def submit(self) -> None:
        """The turn through the flusher, up to the bell."""
        self.store.submit()
        if not self._poll.poll(WAIT_MS_MAX):
            raise RuntimeError(f"no turn was done within {WAIT_MS_MAX} ms")

    def flush(self) -> None:
        """The turn through the flusher, its entries visible."""
        while self.store.journal.busy or self.store.journal.pending:
            self.submit()
            self.store.complete()

    def overlap(self, data: bytes) -> None:
        """As the broker does it: this turn fills while the flusher has the one before it."""
        self.fill(data)
        if self.store.journal.busy:
            self._poll.poll(WAIT_MS_MAX)
            self.store.complete()
        self.store.submit()

    def turn(self, data: bytes) -> None:
        """One turn, and the broker's tick when it is due."""
        self.fill(data)
        self.flush()
        now_ms = _now_ms()
        if now_ms - self._ticked_ms >= TICK_MS:
            self._ticked_ms = now_ms
            self.store.tick(now_ms)

    def rest(self) -> None:
        """Wait for the work beside the loop: whoever is measured next must not pay for it."""
        self.store._flushing.settle(_now_ms(), wait=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

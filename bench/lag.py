"""How long the broker's loop makes others wait at full rate: round trips of a small question under load.

The question (a queue's least offset) touches no disk, so its round trip is the loop's lag, the network's and
the asker's own wait for a processor: an upper bound. What is unsynced meanwhile is read from the runtime
figures.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench.drivers import LoadTools
from tests.peers import remoting
from tests.peers.apache import FlushDiskType
from tests.peers.hotfire import HotfireProcess

GET_BROKER_RUNTIME_INFO = 28
PAUSE_S = 0.002


@dataclass(frozen=True)
class Lag:
    """Milliseconds a question took under load, and the most that was unsynced."""

    flush: FlushDiskType
    rate: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    unsynced_mib: float


def measure(tools: LoadTools, scratch: Path, flush: FlushDiskType, *, seconds: int) -> Lag:
    with HotfireProcess(scratch / f"lag-{flush}", flush_disk_type=flush) as server:
        remoting.create_topic(server.broker, "Lag", 4)
        done = threading.Event()
        rates: list[float] = []

        def load() -> None:
            measured = tools.send(server.broker, "Lag", connections=8, window=64, body=128, seconds=seconds)
            rates.append(measured.rate)
            done.set()

        thread = threading.Thread(target=load)
        thread.start()
        waits, unsynced = _ask_until(done, server.broker)
        thread.join()
    waits.sort()
    return Lag(
        flush,
        rates[0],
        waits[len(waits) // 2] * 1e3,
        waits[len(waits) * 99 // 100] * 1e3,
        waits[-1] * 1e3,
        unsynced,
    )


def _ask_until(done: threading.Event, broker: str) -> tuple[list[float], float]:
    question = _frame(remoting.GET_MIN_OFFSET, {"topic": "Lag", "queueId": "0"})
    figures = _frame(GET_BROKER_RUNTIME_INFO, {})
    host, _, port = broker.rpartition(":")
    waits: list[float] = []
    unsynced, looked_at = 0.0, 0.0
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not done.wait(PAUSE_S):
            began = time.monotonic()
            connection.sendall(question)
            _answer(connection)
            waits.append(time.monotonic() - began)
            if began - looked_at > 0.1:
                looked_at = began
                connection.sendall(figures)
                table = json.loads(_answer(connection))["table"]
                unsynced = max(unsynced, _mib(table["remainHowManyDataToFlush"]))
    return waits, unsynced


def _mib(text: str) -> float:
    number, unit = text.split()
    assert unit == "B", text
    return int(number) / (1 << 20)


def _frame(code: int, fields: dict[str, str]) -> bytes:
    header = json.dumps(
        {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513,
         "serializeTypeCurrentRPC": "JSON"}
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(header), len(header)) + header


def _answer(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    frame = _exactly(connection, size)
    (header,) = struct.unpack_from(">i", frame)
    return frame[4 + (header & 0xFFFFFF) :]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the broker hung up")
        data += more
    return data

"""Those beside whom sends are measured, as processes of their own that tell what they got and when.

    python -m bench.others ask BROKER      a question on each of a hundred connections, the next when answered
    python -m bench.others drain BROKER    one reader of a topic, all queues from their first message to BYTES

Each writes a line `moment count` now and then; the moments are of the clock that all processes share, so that
whoever measures can tell what fell into the measured time. Owns the frames they send.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from bench.place import ROOT

Priority = Literal["idle", "normal"]
QUERIES, KEYED_TOPIC, KEY = 100, "Keys", "wanted"
DRAIN_TOPIC, DRAIN_BODY_BYTES, DRAIN_QUEUES, DRAIN_BATCH = "Drain", 4096, 4, 32
QUERY_MESSAGE, PULL_MESSAGE, SEND_V2 = 12, 11, 310
FOUND = 0
TELL_EVERY_S = 0.25
"""Nobody reads the lines before the end: those of some minutes must fit into a pipe, which takes 64 KiB."""
REPLY_BYTES_MAX = 1 << 20


def frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513,
         "serializeTypeCurrentRPC": "JSON"}
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


# --- as seen from who measures ------------------------------------------------------------------------


class Progress:
    """What one of these processes had done, moment by moment."""

    def __init__(self, told: str) -> None:
        pairs = [line.split() for line in told.splitlines()]
        self._steps = [(float(moment), int(count)) for moment, count in (pair for pair in pairs if pair[1:])]

    def between(self, began_s: float, ended_s: float) -> int:
        """
        >>> Progress("1.0 10\\n2.0 30\\n3.0 70\\n").between(1.5, 3.5)
        60
        """
        return self._until(ended_s) - self._until(began_s)

    def _until(self, moment_s: float) -> int:
        return max((count for at_s, count in self._steps if at_s <= moment_s), default=0)

    @property
    def ended_s(self) -> float:
        return self._steps[-1][0] if self._steps else 0.0


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """One of these processes. Whoever wants its progress asks `progress_of` before the end."""
    command = [sys.executable, "-m", "bench.others", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def progress_of(process: subprocess.Popen[str]) -> Progress:
    """Everything it told, once it has ended; it is ended if it has not."""
    process.terminate()
    return Progress(process.communicate()[0])


# --- as they are themselves ---------------------------------------------------------------------------


class Teller:
    """The lines of progress, no more often than is of use."""

    def __init__(self) -> None:
        self._told_s = 0.0

    def tell(self, count: int, *, is_last: bool = False) -> None:
        now_s = time.monotonic()
        if is_last or now_s - self._told_s > TELL_EVERY_S:
            self._told_s = now_s
            print(f"{now_s:.3f} {count}", flush=True)


def ask(broker: str) -> None:
    """Keeps one question under way on each connection until this process is ended; counts the answers."""
    span = {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    question = frame(QUERY_MESSAGE, {"topic": KEYED_TOPIC, "key": KEY, "maxNum": "32", **span})
    chosen = selectors.DefaultSelector()
    for _ in range(QUERIES):
        dialed = _dial(broker)
        dialed.sendall(question)
        chosen.register(dialed, selectors.EVENT_READ, bytearray())
    answered, teller = 0, Teller()
    while True:
        for key, _ in chosen.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            kept = key.data
            kept += connection.recv(1 << 20)
            while len(kept) >= 4 and len(kept) >= 4 + (size := int.from_bytes(kept[:4])):
                answered += 1
                connection.sendall(question)
                del kept[: 4 + size]
        teller.tell(answered)


class Draining:
    """One queue's reader: the next pull when the one before has come whole."""

    def __init__(self, broker: str, queue_id: int) -> None:
        self.connection = _dial(broker)
        self._queue_id = queue_id
        self._kept = memoryview(bytearray(REPLY_BYTES_MAX))
        self._size = 0
        self.offset = 0
        self.is_at_end = False

    def pull(self) -> None:
        asked = {
            "consumerGroup": "drain", "topic": DRAIN_TOPIC, "queueId": str(self._queue_id),
            "queueOffset": str(self.offset), "maxMsgNums": str(DRAIN_BATCH), "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1",
            "expressionType": "TAG",
        }  # fmt: skip
        self.connection.sendall(frame(PULL_MESSAGE, asked))

    def take(self) -> None:
        """What has come; a whole reply is counted by its next offset and followed by the next pull."""
        came = self.connection.recv_into(self._kept[self._size :])
        if not came:
            raise ConnectionError("the broker hung up")
        self._size += came
        if self._size < 8 or self._size < 4 + int.from_bytes(self._kept[:4]):
            return
        header_size = int.from_bytes(self._kept[4:8]) & 0xFF_FFFF
        header = json.loads(bytes(self._kept[8 : 8 + header_size]))
        self._size = 0
        if header["code"] == FOUND:
            self.offset = int(header["extFields"]["nextBeginOffset"])
            self.pull()
        else:
            self.is_at_end = True


def drain(broker: str, bytes_wanted: int) -> None:
    """Reads until it has so many bytes of bodies, or all there are."""
    readers = [Draining(broker, queue_id) for queue_id in range(DRAIN_QUEUES)]
    chosen = selectors.DefaultSelector()
    for reader in readers:
        chosen.register(reader.connection, selectors.EVENT_READ, reader)
        reader.pull()
    teller, taken = Teller(), 0
    while taken < bytes_wanted and chosen.get_map():
        for key, _ in chosen.select():
            key.data.take()
            if key.data.is_at_end:
                chosen.unregister(key.fileobj)
        taken = sum(reader.offset for reader in readers) * DRAIN_BODY_BYTES
        teller.tell(taken)
    teller.tell(taken, is_last=True)


def _dial(broker: str) -> socket.socket:
    host, _, port = broker.rpartition(":")
    return socket.create_connection((host, int(port)))


def _step_back(priority: Priority) -> None:
    if priority == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="those beside whom sends are measured")
    parser.add_argument("who", choices=["ask", "drain"])
    parser.add_argument("broker")
    parser.add_argument("--priority", choices=["idle", "normal"], default="normal")
    parser.add_argument("--bytes", type=int, default=1 << 62)
    parser.add_argument("--at", type=float, default=0.0, help="begin at this moment of the monotonic clock")
    chosen = parser.parse_args(words)
    _step_back(chosen.priority)
    time.sleep(max(0.0, chosen.at - time.monotonic()))
    if chosen.who == "ask":
        ask(chosen.broker)
    else:
        drain(chosen.broker, chosen.bytes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

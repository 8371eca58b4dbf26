"""Peers that mean no good, or whose network does not: idle ones, slow readers, frames that never end.

Plain sockets, nothing of the program under test but its request structs. `reaped` counts those the server has
hung up on.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from hotfire.protocol.command import encode
from hotfire.protocol.requests import PullMessage
from tests.peers.pulling import pull

RECEIVE_BYTES = 4096
"""Of a slow reader: nearly everything it asked for stays with the server."""
PULLS_EACH = 64


class Hostile:
    """So many of each kind, all connected to one address."""

    def __init__(self, address: str, topic: str, *, idle: int, slow: int, half: int, trickling: int) -> None:
        """`trickling` half frames go on, a byte at a time; the others are silent."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._topic = topic
        self._counts = {"idle": idle, "slow": slow, "half": half, "trickling": trickling}
        self.open: dict[str, set[socket.socket]] = {kind: set() for kind in self._counts}
        self._selector = selectors.DefaultSelector()

    def connect(self) -> None:
        pulls = b"".join(encode(self._pull().to_command(opaque=at)) for at in range(PULLS_EACH))
        half = encode(self._pull().to_command())[:-7]
        for kind, count in self._counts.items():
            for _ in range(count):
                peer = socket.socket()
                if kind == "slow":
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
                peer.connect(self._target)
                peer.setblocking(False)
                if kind == "slow":
                    peer.send(pulls)
                elif kind != "idle":
                    peer.send(half[: len(half) if kind == "half" else 9])
                self.open[kind].add(peer)
                if kind != "slow":  # readable means closed: nobody owes them anything
                    self._selector.register(peer, selectors.EVENT_READ, kind)

    def _pull(self) -> PullMessage:
        return pull("hostile", self._topic, 0, 0, bytes_max=4 << 20)

    def trickle(self) -> None:
        """One byte more of each unfinished frame."""
        for peer in self.open["trickling"]:
            with suppress(OSError):
                peer.send(b" ")

    def reap(self) -> dict[str, int]:
        """How many of each kind are still connected."""
        for key, _ in self._selector.select(0):
            self._selector.unregister(key.fileobj)
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            peer.close()
            self.open[key.data].discard(peer)
        for peer in list(self.open["slow"]):
            if is_reset(peer):
                peer.close()
                self.open["slow"].discard(peer)
        return {kind: len(peers) for kind, peers in self.open.items()}

    def reaped_within(self, seconds: float) -> dict[str, int]:
        """Those left when the time is up: none, if the server does its work."""
        until = time.monotonic() + seconds
        left = self.reap()
        while any(left.values()) and time.monotonic() < until:
            self.trickle()
            time.sleep(0.2)
            left = self.reap()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        for peers in self.open.values():
            for peer in peers:
                peer.close()


def is_reset(peer: socket.socket) -> bool:
    """Whether the other side is gone, without reading what it sent: TCP_INFO's first byte is the state."""
    established = 1
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != established

"""The bench with sockets in it: peers are read and answered by `core.Sockets`, in one pass for all of them.

Each peer has a pair of sockets, so that replies are what came out at its end, in the order they came out.
"""

import select
import socket
from pathlib import Path
from typing import Any

from hotfire import core
from hotfire.errors import RemoteProtocolError
from tests.wire.transcript import Bench, Peer


class SetPeer(Peer):
    """A peer whose own writes, too, go out by its socket."""

    is_drained = True

    def __init__(self, peer: tuple[str, int], sockets: core.Sockets) -> None:
        super().__init__(peer)
        self.sockets = sockets
        self.ours, self.theirs = socket.socketpair()
        for end in (self.ours, self.theirs):
            end.setblocking(False)
        self.link = sockets.add(self.ours.fileno(), self, self.born_host)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.closed:
            try:
                rest = rest[self.ours.send(rest) :]
            except BlockingIOError:
                self.collect()

    def close(self) -> None:
        if not self.closed:
            self.sockets.leave(self.link, True)
            super().close()
            self.collect()
            self.ours.close()
            self.theirs.close()

    def collect(self) -> None:
        """Take what came out at the peer's end."""
        while not self.closed or self.theirs.fileno() >= 0:
            try:
                data = self.theirs.recv(1 << 20)
            except BlockingIOError:
                return
            if not data:
                return
            self.replies += data


class SetBench(Bench):
    """A broker whose peers are all in one set."""

    def __init__(self, root: Path, now_ms: int, **settings: Any) -> None:
        super().__init__(root, now_ms, **settings)
        self.buffer = memoryview(bytearray(1 << 18))
        self.sockets = core.Sockets(self.buffer)

    def peer(self, number: int, ip: str = "127.0.0.1") -> Peer:
        if number not in self.peers:
            self.peers[number] = SetPeer((ip, 40_000 + number), self.sockets)
            self.broker.connected(self.peers[number], self.now_ms)
        return self.peers[number]

    def receive(self, peer: Peer, data: bytes) -> None:
        if peer.closed or peer.held:
            peer.aside += data
            return
        assert isinstance(peer, SetPeer)
        rest = memoryview(data)
        while rest and not peer.closed:
            rest = rest[peer.theirs.send(rest) :]
            self._pass()

    def _pass(self) -> None:
        """As the server does it."""
        again = False
        while select.select([self.sockets.fileno()], [], [], 0)[0] or again:
            replies, pulls, peer, at, count = self.sockets.receive(
                self.broker.lane(self.now_ms), self.now_ms, again
            )
            self.broker.served(replies, pulls, self.now_ms)
            again = peer is not None
            if peer is not None:
                assert count > 0
                assert at >= 0
                peer.aside += self.buffer[at:count]
                if not peer.held:
                    self._serve(peer)

    def _serve(self, peer: Peer) -> None:
        try:
            super()._serve(peer)
        except RemoteProtocolError:
            raise AssertionError("told to nobody") from None
        if isinstance(peer, SetPeer) and not peer.closed:
            peer.link.whole = not peer.aside

    def settle(self) -> None:
        super().settle()
        for peer in self.peers.values():
            assert isinstance(peer, SetPeer)
            if not peer.closed:
                peer.collect()

    def close(self) -> None:
        super().close()
        for peer in self.peers.values():
            peer.close()
        self.sockets.close()

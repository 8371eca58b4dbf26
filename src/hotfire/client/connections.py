"""At most one connection per address, dialled when first needed and again when it was lost.

Owns which connections exist; what is said over them is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from ssl import SSLContext

from hotfire.client.single import SingleFlight
from hotfire.errors import ConnectError, NotRunning
from hotfire.net.peer import OnRequest, Peer

DIAL_TIMEOUT_S = 3.0
LINGER_S = 30.0
"""How long a connection we have given up on may take to end: its end tells that all was read."""
HANG_UP_TIMEOUT_S = 1.0
TOO_SHORT_S, TOO_SMALL_SHARE = 0.1, 0.25
"""Who had no more time than this to answer in, and no more than this share of the whole, proved nothing by
his silence. Java's numbers; the whole is a send's with all its attempts here, and one attempt's there."""


class Connections:
    """A client's connections to brokers and name servers."""

    def __init__(
        self,
        on_request: OnRequest | None = None,
        on_dialled: Callable[[str], None] | None = None,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._on_request = on_request
        self._on_dialled = on_dialled
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        self._dials: SingleFlight[str, Peer] = SingleFlight()
        self._farewells: set[asyncio.Task[None]] = set()
        self._closed = False

    async def get(self, address: str, timeout_s: float) -> Peer:
        """The connection to `address`; ConnectError when there is none in time."""
        peer = self._peers.get(address)
        if peer is not None and not peer.closed:
            return peer
        if self._closed:
            raise NotRunning(f"the client is closed; it dials {address} no more")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._dials.do(address, partial(self._dial, address))
        except TimeoutError:
            raise ConnectError(f"{address}: no connection within {timeout_s:.3g} s") from None

    async def _dial(self, address: str) -> Peer:
        peer = await Peer.connect(
            address, timeout_s=DIAL_TIMEOUT_S, on_request=self._on_request, tls=self._tls
        )
        self._peers[address] = peer
        if self._on_dialled is not None:
            self._on_dialled(address)
        return peer

    def current(self, address: str) -> Peer | None:
        """The connection to `address`, if there is one."""
        peer = self._peers.get(address)
        return None if peer is None or peer.closed else peer

    def holds(self, peer: Peer) -> bool:
        """Whether what is asked of its address goes by this very connection."""
        return self._peers.get(peer.address) is peer and not peer.closed

    def drop(self, peer: Peer) -> None:
        """Use this connection no more: who did not answer once may not be there, whatever TCP says."""
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        farewell = asyncio.create_task(peer.finish(LINGER_S))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    def unanswered(self, peer: Peer, *, left_s: float, timeout_s: float) -> None:
        """No answer in the `left_s` that were left of `timeout_s`: drop the connection, unless that was so
        little that a sound one might have kept silent too."""
        if left_s > min(TOO_SHORT_S, TOO_SMALL_SHARE * timeout_s):
            self.drop(peer)

    def hang_up(self, address: str) -> None:
        """End the connection to `address`, if there is one."""
        if (peer := self._peers.get(address)) is not None:
            self.drop(peer)

    def open_addresses(self) -> list[str]:
        return [address for address, peer in self._peers.items() if not peer.closed]

    async def close(self, timeout_s: float = HANG_UP_TIMEOUT_S) -> None:
        """Hang up, on those who do not take what is written for them by force."""
        self._closed = True
        await self._dials.close()
        peers, self._peers = self._peers, {}
        farewells = tuple(self._farewells)
        for farewell in farewells:
            farewell.cancel()
        await asyncio.gather(*(peer.close(timeout_s) for peer in peers.values()))
        await asyncio.gather(*farewells, return_exceptions=True)

"""Filter servers of this broker: each says every ten seconds that it is there, or is forgotten."""

from __future__ import annotations

from collections.abc import Callable

from hotfire.errors import BrokerRefused
from hotfire.net.heart import Connection
from hotfire.protocol.codes import ResponseCode

SILENT_MS_MAX = 30_000
SERVERS_MAX = 1024
ADDRESS_CHARACTERS_MAX = 256


class FilterServers:
    """Who filters for us, by connection. `changed` is called when consumers have to learn of it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._servers: dict[Connection, tuple[str, int]] = {}

    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(address for address, _ in self._servers.values()))

    def register(self, connection: Connection, address: str, now_ms: int) -> None:
        if len(self._servers) >= SERVERS_MAX and connection not in self._servers:
            raise BrokerRefused(
                ResponseCode.SYSTEM_BUSY, f"{SERVERS_MAX} filter servers are known already; stop some"
            )
        if not 0 < len(address) <= ADDRESS_CHARACTERS_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER, f"filter server address {address!r:.100} is not host:port"
            )
        before = self._servers.get(connection)
        self._servers[connection] = address, now_ms
        if before is None or before[0] != address:
            self._changed()

    def disconnected(self, connection: Connection) -> None:
        if self._servers.pop(connection, None) is not None:
            self._changed()

    def expire(self, now_ms: int) -> None:
        """Forget those that fell silent, and hang up on them: a live one dials anew."""
        for connection, (_, seen_ms) in list(self._servers.items()):
            if now_ms - seen_ms > SILENT_MS_MAX:
                connection.close()
                self.disconnected(connection)

    def clock_moved(self, by_ms: int) -> None:
        self._servers = {
            connection: (address, seen_ms + by_ms) for connection, (address, seen_ms) in self._servers.items()
        }

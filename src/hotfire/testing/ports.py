"""Free loopback ports, for servers that must keep theirs over a restart, or be told it before they start."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack

# Below the ephemeral range (32768 up), so that no outgoing connection takes one meanwhile: neither another
# program's, nor one that dials this very port, and would find itself at the other end.
PORT_MIN, PORT_MAX = 20_000, 32_000
ATTEMPTS_MAX = 500


def free_port(*neighbours: int) -> int:
    """A port p such that p and each p + neighbour can be bound now: `free_port(-2, 1)` for a broker."""
    for _ in range(ATTEMPTS_MAX):
        port = random.randrange(PORT_MIN, PORT_MAX)
        if _all_free([port, *(port + distance for distance in neighbours)]):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port with neighbours {neighbours} in {ATTEMPTS_MAX} attempts")


def _all_free(ports: list[int]) -> bool:
    with ExitStack() as held:
        for port in ports:
            probe = held.enter_context(socket.socket())
            # As servers do; without it a port in TIME_WAIT after an earlier test would be passed over.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True

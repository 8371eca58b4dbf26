"""Free loopback ports, for servers that must keep theirs over a restart, or be told it before they start.

A port that can be bound now may be gone when its server starts: another process looked at the same moment. So
a port is claimed before it is handed out, by a lock on its byte of a file that all processes of a user share.
The system ends the claims of a process with it, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from contextlib import ExitStack
from pathlib import Path

# Below the ephemeral range (32768 up), so that no outgoing connection takes one meanwhile: neither another
# program's, nor one that dials this very port, and would find itself at the other end.
PORT_MIN, PORT_MAX = 20_000, 32_000
ATTEMPTS_MAX = 500
# How many a process keeps for itself; the oldest then are either bound or done with.
CLAIMS_MAX = 1_000


class _Claims:
    """Ports this process was handed. Locks do not keep a process from itself, so it remembers them too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner, self._file = 0, -1
        self._ports: deque[int] = deque()

    def take(self, ports: list[int]) -> bool:
        """Claim all of `ports`, or none of them when one is claimed already, here or elsewhere."""
        if self._owner != os.getpid():  # a fork inherits no locks
            # never closed: closing any descriptor of a file gives up the process's locks on it
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._owner = os.getpid()
            self._ports.clear()
        for number, port in enumerate(ports):
            if port in self._ports or not self._lock(port):
                self._give_up(ports[:number])
                return False
        self._ports.extend(ports)
        self._give_up([self._ports.popleft() for _ in range(len(self._ports) - CLAIMS_MAX)])
        return True

    def _lock(self, port: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
        return True

    def _give_up(self, ports: list[int]) -> None:
        for port in ports:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)


_claims = _Claims(Path(tempfile.gettempdir()) / f"hotfire-ports-{os.getuid()}")


def free_port(*neighbours: int) -> int:
    """A port p such that p and each p + neighbour can be bound now, and is offered to no other process.

    `free_port(-2, 1)` is one for a broker.
    """
    for _ in range(ATTEMPTS_MAX):
        port = random.randrange(PORT_MIN, PORT_MAX)
        ports = [port, *(port + distance for distance in neighbours)]
        if _claims.take(ports) and _all_free(ports):
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

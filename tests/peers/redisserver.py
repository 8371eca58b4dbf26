"""A redis-server of our own, as Debian ships it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.peers.ports import free_port

UP_S_MAX = 120.0
"""For a machine that is busy with other things."""


@contextmanager
def redis_server(directory: Path) -> Iterator[tuple[redis.Redis, str]]:
    """Debian's server, keeping what it acknowledged; its client and address."""
    port = free_port()
    command = [
        "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
        "--appendonly", "yes", "--appendfsync", "always",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until_s = time.monotonic() + UP_S_MAX
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < until_s
                    time.sleep(0.02)
            with redis.Redis(port=port) as client:
                yield client, f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()

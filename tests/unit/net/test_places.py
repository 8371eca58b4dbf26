"""How many peers a server has at once, and on which ports."""

import socket

import pytest

from hotfire.errors import ConfigError
from hotfire.net.addresses import bind, bind_pair
from hotfire.net.server import FAST_SHARE, connections_limit


def test_two_free_ports_are_found_together() -> None:
    """Port 0 gives a free port and the one two below it, however many are taken."""
    pairs = [bind_pair("127.0.0.1", 0, below=2) for _ in range(20)]
    for main, fast in pairs:
        assert main.getsockname()[1] - fast.getsockname()[1] == 2
    for sockets in pairs:
        for one in sockets:
            one.close()


def test_a_pair_that_cannot_be_had_leaves_nothing_bound() -> None:
    """The lower port is taken, or there is none: told as such, and the upper one is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"fast port, 2 below listenPort={port + 2}: port {port} on"):
            bind_pair("127.0.0.1", port + 2, below=2)
        bind("127.0.0.1", port + 2).close()
    with pytest.raises(ConfigError, match="listenPort=2 leaves no fast port 2 below it; choose 3 or more"):
        bind_pair("127.0.0.1", 2, below=2)


@pytest.mark.parametrize(
    ("wanted", "descriptors", "limit"),
    [(60_000, 1 << 20, 60_000), (60_000, 20_000, 15_000), (60_000, 1024, 768), (60_000, 300, 44), (16, 9, 8)],
)
def test_files_can_always_be_opened(wanted: int, descriptors: int, limit: int) -> None:
    """Peers never take the last descriptors: a quarter, at least 256, is left to the store."""
    assert connections_limit(wanted, descriptors) == limit
    assert limit >= FAST_SHARE

"""Names to addresses, this machine's own, and sockets that listen on them."""

from __future__ import annotations

import asyncio
import errno
import socket

from hotfire.errors import ConfigError

PAIR_ATTEMPTS = 50


def resolve(host: str) -> str:
    """The numeric address of `host`."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"address {host!r} cannot be resolved: {error.strerror or error}") from None


def local_address() -> str:
    """The address other machines would reach this one by; loopback when it has no other.

    A simulated loop says where it is.
    """
    own = getattr(asyncio._get_running_loop(), "local_address", None)
    if own is not None:
        return str(own())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(
                ("192.0.2.1", 9)
            )  # a documentation address: nothing is sent by connecting a datagram socket
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def bind(host: str, port: int) -> socket.socket:
    """A socket for `Server.listen`, its port known at once; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Those it accepts inherit it: a second reply waits 40 ms otherwise for the first to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OverflowError:
        listener.close()
        raise ConfigError(f"port {port}: must be 0 to 65535") from None
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use: choose another port or stop its owner"
            ) from None
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose an address of this machine, "
            "and a port that its user may open"
        ) from None
    listener.setblocking(False)
    return listener


def bind_pair(host: str, port: int, *, below: int) -> tuple[socket.socket, socket.socket]:
    """Sockets on `port` and on the fast port `below` it; port 0 picks two free ones that far apart."""
    if 0 < port <= below:
        raise ConfigError(
            f"listenPort={port} leaves no fast port {below} below it; choose {below + 1} or more"
        )
    for attempt in range(PAIR_ATTEMPTS, 0, -1):
        main = bind(host, port)
        chosen = main.getsockname()[1]
        try:
            return main, bind(host, chosen - below)
        except ConfigError as error:
            main.close()
            if port == 0 and attempt > 1:
                continue
            raise ConfigError(f"fast port, {below} below listenPort={port}: {error}") from None
    raise AssertionError("the last attempt returns or raises")

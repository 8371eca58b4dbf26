"""What a server asks of the program behind it: the heart, a plain function of (connection, request, now).

A heart never sees a socket or a clock. The server that serves users and the simulator that tests it call the
same methods. `CommandHeart` is the ready-made one for programs without a compiled fast lane.
"""

# ruff: noqa: B027  # a heart overrides what it has a use for; the rest does nothing on purpose
from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from hotfire import core
from hotfire.net.lag import LagMeter
from hotfire.protocol.command import Command, decode, encode, frame_size

log = logging.getLogger("hotfire.net")


class Connection(Protocol):
    """One peer, as a heart sees it."""

    peer: tuple[str, int]
    born_host: bytes
    """The peer's address and port as records keep it: 8 or 20 bytes."""
    state: Any

    @property
    def closed(self) -> bool: ...
    @property
    def is_clogged(self) -> bool:
        """The peer has not taken what was written: answer it nothing more; the rest is brought again."""

    @property
    def is_flooded(self) -> bool:
        """All peers together have left unread what they may until the next tick: begin nothing large."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def hold(self) -> None:
        """Read no more from this peer until the server is told to release those held."""


Watch = tuple[int, Callable[[int], None]]


class Heart(ABC):
    """Base of all hearts: does nothing, politely."""

    wants_turn = False
    """Set while there is a filled turn to hand over; the server then calls `turn` once this pass is over."""
    held: list[Connection]
    has_lane = False
    """Whether `lane` ever has one: then the server reads from many peers at once."""
    doing: object = None
    """What it began last, for whoever asks why a call took so long: a request's code, or a name."""

    def __init__(self) -> None:
        self.held = []
        self.lag = LagMeter()

    def watches(self) -> list[Watch]:
        """Descriptors to watch, with what to call (with the time) when one is readable."""
        return []

    def connected(self, connection: Connection, now_ms: int) -> None: ...

    def drained(self, connection: Connection, now_ms: int) -> None:
        """The peer was clogged and is no more; what was brought of it and not taken is brought after this."""

    def disconnected(self, connection: Connection, now_ms: int) -> None: ...

    @abstractmethod
    def receive(self, connection: Connection, data: memoryview, now_ms: int) -> int:
        """Take whole frames from the start of `data`; the bytes they took. The rest comes again with more."""

    def lane(self, now_ms: int) -> core.Lane | None:
        """What may serve ordinary requests just now without asking; None: each has to come to `receive`."""
        return None

    def served(self, replies: core.Replies | None, pulls: list[core.Pull], now_ms: int) -> None:
        """What the lane did: replies that wait for the log, and pulls it has answered."""

    def turn(self, now_ms: int) -> None: ...

    def tick(self, now_ms: int) -> None: ...

    def due_ms(self) -> int | None:
        """When the next tick is wanted, should the period be longer than that."""
        return None

    def clock_moved(self, by_ms: int) -> None:
        """The wall clock was set: times kept for deadlines and periods move by as much."""


class CommandHeart(Heart):
    """Splits and decodes frames, calls `handle` for each, writes what it returns."""

    def receive(self, connection: Connection, data: memoryview, now_ms: int) -> int:
        at = 0
        while not connection.is_clogged and (size := frame_size(data, at)) and at + size <= len(data):
            command = decode(data[at : at + size])
            at += size
            self.doing = command.code
            reply = self.handle(connection, command, now_ms)
            if reply is not None and not command.is_oneway:
                connection.write(encode(reply))
        return at

    @abstractmethod
    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        """The reply, or None when there is none to send now."""

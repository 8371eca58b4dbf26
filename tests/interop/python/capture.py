"""Sees the requests of chosen clients as they are written, and those their brokers send them.

The client has no door for that, so the connection's own methods are wrapped, in this process alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.net.peer import Peer
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.command import Command, decode

if TYPE_CHECKING:
    from tests.interop.python.row import Row

_watched: dict[str, tuple[Row, str]] = {}
_deaf: set[str] = set()


def watch(row: Row, name: str, *, deaf: bool = False) -> None:
    """Write down the requests of the row's client of this name. If `deaf`, the broker's notice that a group
    changed is lost on arrival."""
    _watched[row.called(name)] = row, name
    if deaf:
        _deaf.add(row.called(name))


def install() -> None:
    write, receive = Peer._write, Peer._receive

    def writing(peer: Peer, frame: bytes) -> None:
        if (watching := _watching(peer)) is not None:
            _note(watching, peer, decode(frame))
        write(peer, frame)

    def receiving(peer: Peer, command: Command) -> None:
        if (watching := _watching(peer)) is not None:
            _note(watching, peer, command)
            row, name = watching
            if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and row.called(name) in _deaf:
                return
        receive(peer, command)

    vars_of_peer = {"_write": writing, "_receive": receiving}
    for name, wrapped in vars_of_peer.items():
        setattr(Peer, name, wrapped)


def _watching(peer: Peer) -> tuple[Row, str] | None:
    instance = getattr(peer._on_request, "__self__", None)
    return _watched.get(getattr(instance, "client_id", "").partition("@")[2])


def _note(watching: tuple[Row, str], peer: Peer, command: Command) -> None:
    row, name = watching
    if not command.is_response:
        row.write(
            "request", consumer=name, code=int(command.code), remote=peer.address, fields=command.fields
        )

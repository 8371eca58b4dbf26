"""A broker that knows nothing: each request is answered with what a function says."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

Reply = tuple[int, Mapping[str, str], bytes]
Replying = Callable[[int, Mapping[str, str], bytes], Reply]
"""Code, fields and body of a request -> those of its reply."""


class Answering:
    """Entered, it is the address to dial. `notices` are requests of its own, sent before each answer."""

    def __init__(self, replying: Replying, *, notices: int = 0) -> None:
        self._replying = replying
        self._notices = notices
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> str:
        self._threads[0].start()
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for peer in self._peers:
            peer.close()
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            thread = threading.Thread(target=self._talk, args=(peer,))
            self._peers.append(peer)
            self._threads.append(thread)
            thread.start()

    def _talk(self, peer: socket.socket) -> None:
        with suppress(ConnectionError), peer, peer.makefile("rb") as stream:  # a peer may end at any time
            while len(prefix := stream.read(8)) == 8:
                size, header_size = struct.unpack(">ii", prefix)
                header: dict[str, Any] = json.loads(stream.read(header_size))
                body = stream.read(size - 4 - header_size)
                code, fields, answer = self._replying(header["code"], header["extFields"], body)
                notice = _frame({"code": 40, "flag": 2, "opaque": 0}, b"")
                reply = {"code": code, "extFields": dict(fields), "flag": 1, "opaque": header["opaque"]}
                try:
                    peer.sendall(notice * self._notices + _frame(reply, answer))
                except OSError:  # whoever asked has seen enough
                    return


def _frame(header: dict[str, Any], body: bytes) -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body

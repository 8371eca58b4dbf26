"""TLS on the port of the plain: an accepted connection is told by its first byte, before anything else.

A frame begins with its length, of which 0x16 would be more than any frame may have; a TLS handshake begins
with that byte. For a plain peer the door then steps aside for good. For a TLS peer there is from then on a
transport between the socket's and the connection, which decrypts what comes and encrypts what goes; it keeps
nothing back in either direction, so that every bound of a plain connection holds for it unchanged. Only what
was decrypted counts as a sign of life: a handshake ends in time, or the connection is closed as idle.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Any, Protocol, cast

from hotfire.errors import ConfigError
from hotfire.net.tls_settings import TlsMode, TlsServerConfig, path_of, server_context

log = logging.getLogger("hotfire.net")

HANDSHAKE_BYTE = 0x16
CIPHER_BYTES = 128 << 10
"""Of one read. What it decrypts to, with the rest of a record begun before, fits a connection's buffer."""
PIECE_BYTES = 16 << 10
"""OpenSSL's memory grows to the largest piece it was ever handed, and stays so as long as its connection."""


class Accepted(Protocol):
    """A connection as the door sees it: an asyncio protocol whose transport may be exchanged."""

    peer: tuple[str, int]
    closed: bool

    def use_transport(self, transport: asyncio.Transport) -> None: ...
    def close(self) -> None: ...
    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, error: Exception | None, /) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, count: int, /) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Tls:
    """Who may come in how, and the certificate that is shown: one for all connections of a server."""

    def __init__(self, config: TlsServerConfig) -> None:
        self._config = config
        self._files = [
            path_of(path)
            for path in (
                config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path,
            )
            if path
        ]  # fmt: skip
        self._loaded = self._seen = self._stamps()
        self.context = server_context(config)
        self.buffer = memoryview(bytearray(CIPHER_BYTES if self.context else 0))
        if self.context is not None:
            log.info("TLS mode=%s certificate=%s", config.tls_server_mode.name, config.tls_server_cert_path)

    def refusal(self, is_tls: bool) -> str | None:
        """Why a peer that begins like this may not come in; None when it may."""
        mode = self._config.tls_server_mode
        if not is_tls:
            if mode is not TlsMode.enforcing:
                return None
            return (
                "plain connection and tls.server.mode=enforcing; set tls.enable=true or useTLS at the client"
            )
        if mode is TlsMode.disabled:
            return "TLS connection and tls.server.mode=disabled; set it to permissive, with a certificate"
        if self.context is None:
            return "TLS connection and no certificate; set tls.server.certPath and tls.server.keyPath"
        return None

    def refresh(self) -> None:
        """Load files that changed and have stood still since the last look; broken ones change nothing."""
        if self.context is None:
            return
        stamps = self._stamps()
        is_still, self._seen = stamps == self._seen, stamps
        if stamps == self._loaded or not is_still:
            return
        self._loaded = stamps
        try:
            self.context = server_context(self._config)
        except (ConfigError, OSError) as error:
            log.error("certificate changed and not taken, the old one stays reason=%s", error)
        else:
            log.info("certificate changed, new connections get it file=%s", self._config.tls_server_cert_path)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                stat = file.stat()
            except OSError:  # being replaced; or gone, which loading says
                stamps.append(None)
            else:
                stamps.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
        return stamps


class Door(asyncio.BufferedProtocol):
    """Looks at the first byte of a connection, and lets it in as what it is, or not."""

    def __init__(self, inner: Accepted, tls: Tls) -> None:
        self._inner = inner
        self._tls = tls
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inner.get_buffer(sizehint)

    def buffer_updated(self, count: int) -> None:
        inner, transport = self._inner, self._transport
        if inner.closed:
            return
        first = inner.get_buffer(count)[:count]
        is_tls = first[0] == HANDSHAKE_BYTE
        if (reason := self._tls.refusal(is_tls)) is not None:
            log.warning("closing peer=%s:%d reason=%s", *inner.peer, reason)
            inner.close()
        elif is_tls:
            layer = TlsTransport(transport, inner, self._tls)
            transport.set_protocol(layer)
            inner.use_transport(layer)
            layer.feed(bytes(first))  # a copy: the buffer is where the decrypted go
        else:
            transport.set_protocol(cast(asyncio.BaseProtocol, inner))
            inner.buffer_updated(count)

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """A connection's transport, and the protocol of the socket's transport below it."""

    def __init__(self, transport: asyncio.Transport, inner: Accepted, tls: Tls) -> None:
        super().__init__()
        assert tls.context is not None
        self._transport = transport
        self._inner = inner
        self._cipher = tls.buffer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._has_shaken_hands = False
        self._has_ended = False

    # --- the socket's side ---

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cipher

    def buffer_updated(self, count: int) -> None:
        self.feed(self._cipher[:count])

    def feed(self, cipher: memoryview | bytes) -> None:
        """Decrypt what came, all of it, and hand it on in one piece."""
        inner = self._inner  # which the loss of the connection takes from us
        plain, count = inner.get_buffer(-1), 0
        try:
            for at in range(0, len(cipher), PIECE_BYTES):
                self._incoming.write(cipher[at : at + PIECE_BYTES])
                count += self._decrypt(plain[count:])
        except ssl.SSLError as error:  # nothing it said before can be answered any more
            log.warning("closing peer=%s:%d reason=TLS: %s", *inner.peer, error.reason or error)
            self._flush()  # the alert
            inner.close()
            return
        self._flush()
        if count:
            inner.buffer_updated(count)
        if self._has_ended:
            inner.close()

    def _decrypt(self, into: memoryview) -> int:
        """Bytes put there; none before the handshake is done."""
        count = 0
        with suppress(ssl.SSLWantReadError):
            if not self._has_shaken_hands:
                self._ssl.do_handshake()
                self._has_shaken_hands = True
            while not self._has_ended:
                assert count < len(into), "a read decrypts to no more than itself and a record"
                taken = self._ssl.read(len(into) - count, into[count:])
                count += cast(int, taken)
                self._has_ended = not taken  # the peer's goodbye
        return count

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)
        del self._inner  # it keeps us as its transport: neither must wait for the collector

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # --- the connection's side ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        try:
            for at in range(0, len(view), PIECE_BYTES):
                self._ssl.write(view[at : at + PIECE_BYTES])
                self._flush()
        except ssl.SSLError as error:  # the connection broke, or has no key yet: nothing may go out in plain
            log.warning("closing peer=%s:%d reason=TLS: %s", *self._inner.peer, error.reason or error)
            self._inner.close()
            self.abort()

    def close(self) -> None:
        """Say goodbye; what was written goes out before that."""
        if self._transport.is_closing():
            return
        if self._has_shaken_hands:
            with suppress(ssl.SSLError):  # it does not wait for the peer's
                self._ssl.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

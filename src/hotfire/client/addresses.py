"""Where a client gets its name servers from: told, from the environment, or from an address service.

An address service is a URL whose page is the list, `host:port` joined by `;` on one line. It is asked at the
start, every 120 seconds, and whenever none is known yet; while it is silent, what it said last holds.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from hotfire.errors import ConfigError, RemoteProtocolError, Unreachable
from hotfire.net.peer import split_address

ENVIRONMENT = "NAMESRV_ADDR"
FETCH_TIMEOUT_S = 3.0
PAGE_BYTES_MAX = 64 * 1024

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """
    >>> parse_name_servers("10.0.0.1:9876; 10.0.0.2:9876")
    ('10.0.0.1:9876', '10.0.0.2:9876')
    """
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else text
    try:
        addresses = tuple(part.strip() for part in parts if part.strip())
    except (AttributeError, TypeError):
        raise ConfigError(
            f"name servers {text!r:.60} are {type(text).__name__}: expected host:port, several joined by ';' "
            "or in a list"
        ) from None
    if not addresses:
        raise ConfigError("no name server given: expected host:port, several joined by ';'")
    for address in addresses:
        split_address(address)
    return addresses


class AddressSource:
    """The name servers a client was told of, or the service that knows them.

    >>> AddressSource("10.0.0.1:9876").addresses
    ('10.0.0.1:9876',)
    >>> AddressSource("http://config.example/rocketmq/nsaddr").url
    'http://config.example/rocketmq/nsaddr'
    """

    def __init__(self, name_servers: str | Sequence[str] | None) -> None:
        given = os.environ.get(ENVIRONMENT, "") if name_servers is None else name_servers
        if given == "" and name_servers is None:
            raise ConfigError(
                "no name server given: pass host:port, or the http:// URL of an address service, or set "
                f"{ENVIRONMENT}"
            )
        self.url: str | None = None
        self.addresses: tuple[str, ...] = ()
        if isinstance(given, str) and given.strip().startswith(("http://", "https://")):
            self.url = given.strip()
            _split_url(self.url)
        else:
            self.addresses = parse_name_servers(given)

    def same_as(self, other: AddressSource) -> bool:
        if self.url is not None or other.url is not None:
            return self.url == other.url
        return set(self.addresses) == set(other.addresses)

    def __str__(self) -> str:
        return self.url or ";".join(self.addresses)

    async def fetch(self, timeout_s: float = FETCH_TIMEOUT_S) -> tuple[str, ...]:
        """Ask the service, if there is one. Unreachable when it gives no list in time."""
        if self.url is None:
            return self.addresses
        try:
            async with asyncio.timeout(timeout_s):
                page = await _get(self.url)
            # The list is the page's first line, as Java's clients read it.
            self.addresses = parse_name_servers(page.strip().partition("\n")[0])
        except TimeoutError:
            raise Unreachable(f"address service {self.url}: no answer within {timeout_s:.3g} s") from None
        except OSError as error:
            raise Unreachable(f"address service {self.url}: {error.strerror or error}") from None
        except (ConfigError, RemoteProtocolError) as error:
            raise Unreachable(f"address service {self.url}: {error}") from None
        return self.addresses


def _split_url(url: str) -> tuple[str, int, bool, str, str]:
    """Host, port, whether over TLS, what to ask for, and the host as the URL has it."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not parts.hostname or port == 0 or not url.isascii() or any(mark <= " " for mark in url):
        raise ConfigError(f"address service {url!r:.200} is not a URL of the form http://host:port/path")
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.hostname, port or (443 if secure else 80), secure, target, parts.netloc.rpartition("@")[2]


async def _get(url: str) -> str:
    host, port, secure, target, name = _split_url(url)
    reader, writer = await asyncio.open_connection(host, port, ssl=secure or None, limit=PAGE_BYTES_MAX)
    try:
        # HTTP/1.0: the page ends with the connection, in one piece.
        writer.write(f"GET {target} HTTP/1.0\r\nHost: {name}\r\nAccept: text/plain\r\n\r\n".encode())
        answer = bytearray()
        while chunk := await reader.read(PAGE_BYTES_MAX):
            answer += chunk
            if len(answer) > PAGE_BYTES_MAX:
                raise RemoteProtocolError(f"its page has more than {PAGE_BYTES_MAX} bytes")
    finally:
        writer.close()
    head, _, page = bytes(answer).partition(b"\r\n\r\n")
    status = _STATUS_LINE.match(head)
    if status is None:
        raise RemoteProtocolError("its answer is not HTTP")
    if status[1] != b"200":
        raise RemoteProtocolError(f"it answered with status {status[1].decode()}")
    return page.decode("utf-8", "replace")

"""Bodies made smaller before they leave, and whole again when they come: zlib, LZ4 frames, Zstandard.

LZ4 and Zstandard need the packages `lz4` and `zstandard`, imported when first used: a producer that asks for
one that is missing is told so, a consumer gets such a body as it is stored.
"""

from __future__ import annotations

import logging
import zlib
from typing import Literal

from hotfire.errors import ConfigError, RecordInvalid
from hotfire.protocol.compression import inflate
from hotfire.protocol.record import SysFlag

log = logging.getLogger("hotfire.client")

Compression = Literal["zlib", "lz4", "zstd"]

COMPRESS_LEVEL = 5
_FLAGS: dict[str, int] = {"zlib": SysFlag.ZLIB, "lz4": SysFlag.LZ4, "zstd": SysFlag.ZSTD}
_NAMES = {SysFlag.LZ4: "LZ4", SysFlag.ZSTD: "ZSTD"}  # all else is the only way older clients knew


def check_compression(kind: str | None) -> None:
    """Raise ConfigError unless bodies can be compressed this way here."""
    if kind is None:
        return
    if kind not in _FLAGS:
        raise ConfigError(f"compression {kind!r:.40} is none of {', '.join(_FLAGS)}")
    try:
        _deflate(kind, b"")
    except ImportError as error:
        raise ConfigError(
            f"compression {kind} needs a package: {error}; install it, or choose zlib"
        ) from None


def compress(kind: Compression, body: bytes) -> tuple[bytes, int]:
    """The smaller body, and the bits of the system flag that say how it was made.

    >>> smaller, flag = compress("zlib", b"a" * 4096)
    >>> len(smaller) < 100, hex(flag)
    (True, '0x301')
    """
    return _deflate(kind, body), SysFlag.COMPRESSED | _FLAGS[kind]


def _deflate(kind: str, body: bytes) -> bytes:
    if kind == "lz4":
        import lz4.frame  # type: ignore[import-untyped]

        # Java's reader takes frames of independent blocks only.
        packed: bytes = lz4.frame.compress(body, block_linked=False, store_size=False)
        return packed
    if kind == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=COMPRESS_LEVEL).compress(body)
    return zlib.compress(body, COMPRESS_LEVEL)


def decompress(body: bytes, sys_flag: int, message_id: str) -> tuple[bytes, str | None]:
    """The body as it was sent, and None; or as it is stored, and the name of what cannot be undone here.

    A body that is not what its flag says is one producer's mistake: those who wait behind it do not pay.
    """
    try:
        return inflate(body, sys_flag), None
    except (ImportError, RecordInvalid) as error:
        log.warning("message=%s keeps its stored body: %s", message_id, error)
        return body, _NAMES.get(sys_flag & SysFlag.COMPRESSION_MASK, "ZLIB")

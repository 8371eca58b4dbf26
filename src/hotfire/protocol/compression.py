"""Bodies that producers compressed: which way the system flag says, and the bytes that went in.

Owns the three formats the Java clients write: LZ4 frames, Zstandard and zlib. Must not know messages.
"""

from __future__ import annotations

import zlib

from hotfire.errors import RecordInvalid
from hotfire.protocol.record import SysFlag

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""A stored body may inflate to this; the largest a Java producer accepts by default has 4 MiB."""


def inflate(body: bytes, sys_flag: int, *, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The body before its producer compressed it, if it did. RecordInvalid when it does not inflate."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    way = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if way == SysFlag.LZ4:
            data, is_whole = _lz4(body, bytes_max)
        elif way == SysFlag.ZSTD:
            data, is_whole = _zstd(body, bytes_max)
        else:  # clients before 5.0 set no bits for the only way they knew
            inflater = zlib.decompressobj()
            data = inflater.decompress(body, bytes_max)
            is_whole = inflater.eof
    except (RuntimeError, ValueError, zlib.error) as error:
        raise RecordInvalid(f"body of {len(body)} bytes does not inflate: {error}") from None
    if not is_whole:
        raise RecordInvalid(f"body of {len(body)} bytes ends early or inflates beyond {bytes_max}")
    return data


def _lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    import lz4.frame  # type: ignore[import-untyped]

    inflater = lz4.frame.LZ4FrameDecompressor()
    data: bytes = inflater.decompress(body, max_length=bytes_max)
    return data, bool(inflater.eof)


def _zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            if len(reader.read(bytes_max + 1)) > bytes_max:
                return b"", False
        inflater = zstandard.ZstdDecompressor().decompressobj()  # knows of its end, but of no limit
        data = inflater.decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    return data, bool(inflater.eof)

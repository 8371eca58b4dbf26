"""Bodies as the Java clients compress them come back whole, or not at all."""

import zlib

import lz4.frame
import pytest
import zstandard

from hotfire.errors import RecordInvalid
from hotfire.protocol.compression import inflate
from hotfire.protocol.record import SysFlag

BODY = b"a body that repeats itself, " * 500
WAYS = {
    SysFlag.LZ4: lz4.frame.compress,
    SysFlag.ZSTD: zstandard.ZstdCompressor().compress,
    SysFlag.ZLIB: zlib.compress,
    0: zlib.compress,  # clients before 5.0
}


def test_a_plain_body_is_left_alone() -> None:
    """Whatever the other bits say."""
    assert inflate(BODY, SysFlag.LZ4) == BODY


@pytest.mark.parametrize("way", WAYS)
def test_a_compressed_body_comes_back(way: int) -> None:
    """By each way the system flag knows."""
    assert inflate(WAYS[way](BODY), way | SysFlag.COMPRESSED) == BODY


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_does_not_inflate_is_invalid(way: int) -> None:
    """Cut short, nonsense, or larger than anything a producer may send."""
    packed, flag = WAYS[way](BODY), way | SysFlag.COMPRESSED
    for damaged in (packed[: len(packed) // 2], b"nonsense", b""):
        with pytest.raises(RecordInvalid):
            inflate(damaged, flag)
    with pytest.raises(RecordInvalid, match="beyond 1000"):
        inflate(packed, flag, bytes_max=1000)

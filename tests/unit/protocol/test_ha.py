"""The stream between master and slave: whatever pieces it comes in, the same events; every length bounded."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.ha import (
    BATCH_BYTES_MAX,
    Batch,
    BatchReader,
    ReportReader,
    encode_header,
    encode_report,
)

OFFSETS = st.integers(0, (1 << 63) - 1)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(at)]


@given(st.lists(OFFSETS, max_size=20), st.lists(st.integers(0, 1000), max_size=10))
def test_reports_survive_any_cut(offsets: list[int], places: list[int]) -> None:
    """Reports are read the same in whatever pieces they arrive."""
    reader, data = ReportReader(), b"".join(map(encode_report, offsets))
    assert [offset for piece in cut(data, places) for offset in reader.receive(piece)] == offsets


@given(
    st.lists(st.tuples(OFFSETS, st.binary(max_size=100)), max_size=10),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_batches_survive_any_cut(batches: list[tuple[int, bytes]], places: list[int]) -> None:
    """Batches and heartbeats are read the same in whatever pieces they arrive."""
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in batches)
    reader = BatchReader()
    read = [batch for piece in cut(data, places) for batch in reader.receive(piece)]
    assert read == [Batch(offset, body) for offset, body in batches]


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, BATCH_BYTES_MAX + 1), (0, 1 << 30)])
def test_a_length_beyond_the_limit_is_refused_when_it_is_announced(offset: int, size: int) -> None:
    """Before any byte of it came: nothing grows with what a peer merely says."""
    with pytest.raises(RemoteProtocolError, match=str(size)):
        BatchReader().receive(struct.pack(">qi", offset, size))


def test_an_offset_below_zero_is_no_report() -> None:
    """A slave that says so is none."""
    with pytest.raises(RemoteProtocolError, match="-5"):
        ReportReader().receive(encode_report(3) + struct.pack(">q", -5))

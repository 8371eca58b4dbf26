"""Several messages in one send."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import LocalProtocolError, RemoteProtocolError
from hotfire.protocol.batch import BatchMessage, decode_batch, encode_batch

messages = st.builds(
    BatchMessage, st.binary(max_size=30), st.binary(max_size=30), st.integers(-(2**31), 2**31 - 1)
)


def test_worked_message() -> None:
    """The one worked out by hand in the description of the format."""
    data = encode_batch([BatchMessage(b"a", b"TAGS\x01T\x02")])
    assert data == bytes.fromhex("0000001e 00000000 00000000 00000000 00000001 61 0007 54414753015402")


@given(st.lists(messages, max_size=5))
def test_round_trip(sent: list[BatchMessage]) -> None:
    """All messages come out, in order."""
    assert list(decode_batch(encode_batch(sent))) == sent


@given(st.lists(messages, min_size=1, max_size=3))
def test_every_truncation_is_refused_or_ends_between_messages(sent: list[BatchMessage]) -> None:
    """A cut is only legal where a message ends."""
    data = encode_batch(sent)
    ends = {len(encode_batch(sent[:count])) for count in range(len(sent))}
    for end in range(len(data)):
        if end in ends:
            assert len(decode_batch(data[:end])) < len(sent)
        else:
            with pytest.raises(RemoteProtocolError):
                decode_batch(data[:end])


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_flipped_byte_is_refused_or_seen(sent: list[BatchMessage], data: st.DataObject) -> None:
    """Only the two words nobody reads may change unseen."""
    damaged = bytearray(encode_batch(sent))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        found = list(decode_batch(damaged))
    except RemoteProtocolError:
        return
    starts = [len(encode_batch(sent[:count])) for count in range(len(sent))]
    assert found != sent or any(start + 4 <= at < start + 12 for start in starts)


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    """A body from anyone is messages or the peer's fault."""
    with contextlib.suppress(RemoteProtocolError):
        decode_batch(data)


def test_properties_have_a_limit() -> None:
    """Their size is a signed 16-bit word."""
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_batch([BatchMessage(b"", bytes(32768))])

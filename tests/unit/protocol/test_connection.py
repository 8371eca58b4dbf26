"""A stream of chunks as a stream of commands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.command import Command, encode
from hotfire.protocol.connection import FrameReader
from tests.unit.protocol.test_command import commands


@given(st.lists(commands, max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_chunks_do_not_matter(sent: list[Command], sizes: list[int]) -> None:
    """However the bytes are cut, the same commands come out in order and nothing is left."""
    stream = b"".join(map(encode, sent))
    reader = FrameReader()
    found: list[Command] = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += reader.receive_data(memoryview(stream)[at : at + size])
        at, turn = at + size, turn + 1
    assert found == sent
    assert reader.buffered == 0


def test_sound_commands_before_a_broken_frame_are_delivered() -> None:
    """One bad frame does not take back the good ones; after it the stream is over."""
    reader = FrameReader()
    commands = reader.receive_data(encode(Command(1, opaque=5)) + b"\xff\xff\xff\xff")
    assert next(commands).opaque == 5
    with pytest.raises(RemoteProtocolError):
        next(commands)
    with pytest.raises(RemoteProtocolError):
        reader.receive_data(encode(Command(1)))
    assert reader.buffered == 0


def test_commands_left_unread_come_with_the_next_chunk() -> None:
    """Stopping half way loses nothing."""
    reader = FrameReader()
    stream = b"".join(encode(Command(1, opaque=number)) for number in range(4))
    iterator = reader.receive_data(stream)
    assert next(iterator).opaque == 0
    del iterator
    assert [command.opaque for command in reader.receive_data(b"")] == [1, 2, 3]


def test_buffered_counts_what_arrived() -> None:
    """Only received bytes are held, and they go when their command is complete."""
    reader = FrameReader()
    frame = encode(Command(1, body=bytes(1000)))
    assert list(reader.receive_data(frame[:-1])) == []
    assert reader.buffered == len(frame) - 1
    assert len(list(reader.receive_data(frame[-1:]))) == 1
    assert reader.buffered == 0

"""A stream of chunks as a stream of commands."""

import random
import tracemalloc
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.command import FRAME_BYTES_MAX, REPLY_HEADER_BYTES_MAX, Command, encode
from hotfire.protocol.connection import GATHERED_BYTES, TAKEN_PER_BYTE, FrameReader
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


# --- long bodies, received where they stay ---

body_sizes = st.one_of(
    st.integers(0, 100),
    st.integers(GATHERED_BYTES - 300, GATHERED_BYTES + 300),
    st.integers(0, 5 * GATHERED_BYTES),
)
cuts = st.lists(
    st.one_of(st.integers(1, 100), st.integers(1, 2 * GATHERED_BYTES)), min_size=20, max_size=20
).filter(lambda sizes: sum(sizes) > 20_000)


def received(
    reader: FrameReader, stream: bytes | memoryview, sizes: list[int], in_place: list[bool]
) -> list[Command]:
    """As a connection receives: in place where it may and wants to."""
    found: list[Command] = []
    at, turns = 0, zip(cycle(sizes), cycle(in_place))
    while at < len(stream):
        size, wants = next(turns)
        room = reader.room() if wants else None
        piece = stream[at : at + (size if room is None else min(size, len(room)))]
        at += len(piece)
        if room is None:
            found += reader.receive_data(piece)
            continue
        room[: len(piece)] = piece
        room.release()
        if (command := reader.add(len(piece))) is not None:
            found.append(command)
    return found


@given(
    st.lists(st.tuples(commands, body_sizes), max_size=5),
    cuts,
    st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_chunks_do_not_matter_for_long_bodies(
    shapes: list[tuple[Command, int]], sizes: list[int], in_place: list[bool]
) -> None:
    """Long and short frames, cut anywhere, given or received in place: the same commands in order."""
    sent = [replace(command, body=random.Random(size).randbytes(size)) for command, size in shapes]
    reader = FrameReader()
    assert received(reader, b"".join(map(encode, sent)), sizes, in_place) == sent
    assert reader.buffered == 0
    assert reader.room() is None


def test_memory_for_a_body_is_taken_for_what_came() -> None:
    """However long a frame is said to be: so many bytes for each that came, once there are many."""
    frame = encode(Command(1, body=bytes(FRAME_BYTES_MAX - 200)))
    for came in (GATHERED_BYTES - 1, GATHERED_BYTES, 3 * GATHERED_BYTES):
        chunk = frame[:came]
        tracemalloc.start()
        try:
            reader = FrameReader()
            before, _ = tracemalloc.get_traced_memory()
            assert list(reader.receive_data(chunk)) == []
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reader.buffered == came
        assert (reader.room() is None) == (came < GATHERED_BYTES)
        assert peak - before <= came * (TAKEN_PER_BYTE if came >= GATHERED_BYTES else 1) + 64 * 1024


@pytest.mark.parametrize(
    ("mark", "what"),
    [(3 << 24, "serialisation 3"), (REPLY_HEADER_BYTES_MAX + 1, "allowed are"), (1 << 22, "in a frame of")],
)
def test_a_long_frame_with_a_bad_header_is_refused_before_its_body(mark: int, what: str) -> None:
    """Sound commands before it are delivered, and nothing is kept of it."""
    stream = encode(Command(1, opaque=5)) + (1 << 22).to_bytes(4, "big") + mark.to_bytes(4, "big")
    reader, found = FrameReader(), []
    found += [command.opaque for command in reader.receive_data(stream)]
    with pytest.raises(RemoteProtocolError, match=what):
        list(reader.receive_data(bytes(3 << 20)))
    assert found == [5]
    assert (reader.buffered, reader.room()) == (0, None)
    with pytest.raises(RemoteProtocolError, match=what):
        reader.receive_data(b"")


def test_a_long_body_is_there_once() -> None:
    """Its memory is what the consumer gets: no second one lies beside it at any time."""
    frame = encode(Command(1, body=bytes(4 << 20)))
    pieces = [memoryview(frame)[at : at + 65536] for at in range(0, len(frame), 65536)]
    tracemalloc.start()
    try:
        reader, found = FrameReader(), []
        before, _ = tracemalloc.get_traced_memory()
        for piece in pieces:
            found += received(reader, piece, [len(piece)], [True])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [type(command.body) for command in found] == [bytes]
    assert found[0].body == bytes(4 << 20)
    assert peak - before < (4 << 20) + 2 * GATHERED_BYTES

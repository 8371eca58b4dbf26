"""Hostile bytes: a peer may waste its own time, not ours, and never sees anything but a closed connection."""

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from hotfire.errors import MalformedRequest, RemoteProtocolError
from hotfire.protocol.command import FRAME_BYTES_MAX, HEADER_BYTES_MAX, Command, decode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.requests import decode_request
from tests.wire.golden import frames

SEED = 20261115
MALFORMED_COUNT = 50_000


INTERESTING: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"\\", b"{", b"}", b"[", b":", b",", b"\\ud800", b"null",
    b"true", b"-1", b"1e999", b"NaN", b"99999999999999999999", b"\xed\xa0\x80", b"\x00\x00\x00\x00",
)  # fmt: skip


def mutations(count: int, seed: int) -> Iterator[bytes]:
    """Recorded frames with damage: most of it in the header of a frame whose sizes are right again."""
    rng = random.Random(seed)
    originals = [frame for frame in frames() if len(frame.data) < 4000]
    for _ in range(count):
        frame = rng.choice(originals)
        if rng.random() < 0.3:
            yield damaged(rng, frame.data, rng.choice(originals).data)
            continue
        header = damaged(rng, frame.header, rng.choice(originals).header)
        mark = frame.data[4:5] + len(header).to_bytes(3, "big")
        yield (4 + len(header) + len(frame.body)).to_bytes(4, "big") + mark + header + frame.body


def damaged(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    """`whole` with one to five pieces flipped, cut out, put in, overwritten, cut off, appended or spliced."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0 | 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del data[at : at + rng.randrange(1, 20)]
            case 3 | 4:
                data[at:at] = rng.choice(INTERESTING)
            case 5:
                piece = rng.choice(INTERESTING)
                data[at : at + len(piece)] = piece
            case 6:
                del data[at:]
            case 7:
                data += rng.randbytes(rng.randrange(1, 20))
            case 8:
                data[at:] = other[rng.randrange(len(other)) :]
    return bytes(data)


def test_malformed_frames_give_a_command_or_the_one_error() -> None:
    """50,000 damaged frames: each is understood or refused as the peer's fault, nothing else happens."""
    understood = refused = unfit = 0
    for number, data in enumerate(mutations(MALFORMED_COUNT, SEED)):
        try:
            command = decode(data)
        except RemoteProtocolError:
            refused += 1
            continue
        except BaseException as error:
            raise AssertionError(f"seed {SEED}, frame {number}: {data.hex()}") from error
        understood += 1
        assert isinstance(command, Command)
        try:
            decode_request(command)
        except MalformedRequest:
            unfit += 1
    assert understood + refused == MALFORMED_COUNT
    # The damage must reach both sides of every check to be worth the name.
    assert min(understood, refused) > MALFORMED_COUNT // 10
    assert unfit > 1000


def test_a_damaged_stream_gives_commands_and_then_only_the_error() -> None:
    """A reader that met an impossible frame says so at once and stays closed."""
    for number, data in enumerate(mutations(3000, SEED + 1)):
        reader = FrameReader()
        try:
            for at in range(0, len(data), 97):
                list(reader.receive_data(data[at : at + 97]))
        except RemoteProtocolError:
            assert reader.buffered == 0, number
            with pytest.raises(RemoteProtocolError):
                reader.receive_data(b"")
        else:
            assert reader.buffered <= len(data), number


def test_an_announced_frame_costs_only_what_arrived() -> None:
    """A peer that announces 16 MiB and sends 1 KiB holds at most 64 KiB of our memory."""
    chunk = bytes(1024)
    tracemalloc.start()
    try:
        reader = FrameReader()
        before, _ = tracemalloc.get_traced_memory()
        assert list(reader.receive_data((FRAME_BYTES_MAX - 4).to_bytes(4, "big") + chunk)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= 64 * 1024
    assert reader.buffered == 4 + 1024


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, FRAME_BYTES_MAX - 3, 2**31 - 1])
def test_an_impossible_length_is_refused_when_its_four_bytes_are_here(length: int) -> None:
    """Nobody waits for a frame that cannot come."""
    reader = FrameReader()
    assert list(reader.receive_data(length.to_bytes(4, "big", signed=True)[:3])) == []
    with pytest.raises(RemoteProtocolError):
        list(reader.receive_data(length.to_bytes(4, "big", signed=True)[3:]))


BIG = HEADER_BYTES_MAX - 64

EXPENSIVE_HEADERS = {
    "deep arrays": b'{"code":1,"x":' + b"[" * BIG,
    "deep objects": b'{"code":1,"x":' + b'{"a":' * (BIG // 5),
    "deep and closed": b'{"code":1,"x":' + b"[" * (BIG // 2) + b"]" * (BIG // 2) + b"}",
    "one long number": b'{"code":' + b"9" * BIG + b"}",
    "many long numbers": b'{"code":1,"x":[' + b",".join([b"9" * 4000] * (BIG // 4001)) + b"]}",
    "long fraction": b'{"code":1,"x":0.' + b"9" * BIG + b"}",
    "many keys": b'{"code":1,"extFields":{' + b",".join(b'"%d":1' % n for n in range(80_000)) + b"}}",
    "one key many times": b'{"code":1,"extFields":{' + b",".join([b'"a":"b"'] * 100_000) + b"}}",
    "many escapes": b'{"code":1,"remark":"' + b"\\ud800" * (BIG // 6) + b'"}',
    "open string": b'{"code":1,"remark":"' + b"a" * BIG,
    "blanks": b" " * BIG,
    "zeros": bytes(BIG),
}


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("name", EXPENSIVE_HEADERS)
def test_expensive_headers_are_answered_soon(name: str, kind: int) -> None:
    """The worst megabyte of header takes well under two seconds, whatever comes of it."""
    header = EXPENSIVE_HEADERS[name]
    frame = (4 + len(header)).to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header
    started = time.perf_counter()
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(decode(frame), Command)
    assert time.perf_counter() - started < 2


def test_a_header_of_many_empty_binary_fields_is_answered_soon() -> None:
    """Every field costs its peer at least six bytes."""
    fields = bytes(6) * (BIG // 6)
    header = bytes(17) + len(fields).to_bytes(4, "big") + fields
    frame = (4 + len(header)).to_bytes(4, "big") + b"\x01" + len(header).to_bytes(3, "big") + header
    started = time.perf_counter()
    assert decode(frame).fields == {"": ""}
    assert time.perf_counter() - started < 2


def test_headers_beyond_the_limit_are_refused_unread() -> None:
    """A header may fill a megabyte, not the whole frame."""
    size = HEADER_BYTES_MAX + 1
    frame = (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + b" " * size
    with pytest.raises(RemoteProtocolError, match="header of 1048577 bytes"):
        decode(frame)

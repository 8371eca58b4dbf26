"""Hostile bytes against compiled code: a peer's frames cannot crash, hang or confuse the lane.

Run again by `make sanitize`, where one byte read past a frame, one shift too far or one overflow is the end.
"""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.broker.fastlane import (
    NEXT_BAD_LENGTH,
    NEXT_FULL,
    NEXT_HANDLER,
    NEXT_MUCH,
    NEXT_PARTIAL,
    NEXT_SEGMENT,
)
from hotfire.core import _core as compiled
from hotfire.errors import RemoteProtocolError
from hotfire.protocol.codes import RequestCode, ResponseCode
from hotfire.protocol.command import FRAME_BYTES_MAX, decode, encode, frame_size
from hotfire.store.scan import scan_records_plain
from tests.unit.core.made import Guarded
from tests.wire import scripts
from tests.wire.test_malformed import MALFORMED_COUNT, mutations
from tests.wire.transcript import Bench, frames_of

pytestmark = pytest.mark.core
SEED = 20261118
BORN_HOST = bytes((127, 0, 0, 1, 0, 0, 0, 80))


def hostile(count: int, seed: int) -> Iterator[bytes]:
    """Damaged recordings, and requests the lane would serve, damaged in one place or not at all."""
    rng = random.Random(seed)
    maker = scripts.Maker(seed)
    damaged = mutations(count, seed)
    for _ in range(count):
        draw = rng.random()
        if draw < 0.4:
            yield next(damaged)
            continue
        frame = bytearray(maker.send() if rng.random() < 0.6 else maker.pull())
        if draw < 0.8:
            at = rng.randrange(len(frame)) if rng.random() < 0.5 else rng.randrange(min(len(frame), 200))
            match rng.randrange(4):
                case 0:
                    frame[at] = rng.randrange(256)
                case 1:
                    frame[at : at + 4] = rng.choice(
                        (bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", rng.randbytes(4))
                    )
                case 2:
                    del frame[at:]
                case 3:
                    frame[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif draw > 0.97:
            frame = bytearray(rng.randbytes(rng.randrange(60)))
        yield bytes(frame)


def test_the_parser_survives_what_nobody_should_send() -> None:
    """50,000 hostile frames: each is read, waited for or passed on, and no byte behind it is looked at."""
    guarded = Guarded(1 << 19)
    outcomes = {"read": 0, "partial": 0, "strange": 0, "length": 0}
    for data in hostile(MALFORMED_COUNT, SEED):
        seen = compiled.read_frame(guarded.holding(data), FRAME_BYTES_MAX - 4)
        outcomes[seen if isinstance(seen, str) else "read"] += 1
    assert sum(outcomes.values()) == MALFORMED_COUNT
    assert min(outcomes.values()) > 1000, outcomes


class Target:
    """A lane over a live journal, its tables filled by a few honest clients first."""

    def __init__(self, root: Path) -> None:
        self.bench = Bench(root, scripts.START_MS, turn_bytes_max=200_000)
        maker = scripts.Maker(1)
        for number in range(400):
            peer = self.bench.peer(number % 4)
            self.bench.receive(peer, maker.request(number % 4))
            self.bench.settle()
        lane = self.bench.broker.fast.lane
        assert lane is not None
        self.lane = lane
        self.sent_replies, self.pull_replies = bytearray(), bytearray()
        self.stops = [0] * (NEXT_MUCH + 1)

    def serve(self, data: memoryview | bytes) -> int:
        """Feeds `data` from its start; the bytes no longer needed. -1: a server would hang up here."""
        at = 0
        while True:
            consumed, following, waiting, ready, pulls = self.lane.serve(
                data, at, BORN_HOST, scripts.START_MS
            )
            at += consumed
            assert at <= len(data)
            self.stops[following] += 1
            self.sent_replies += waiting or b""
            self.pull_replies += ready or b""
            assert all(isinstance(offset, int) for _, _, offset, _, _, _ in pulls)
            if following == NEXT_PARTIAL:
                return at
            if following == NEXT_BAD_LENGTH:
                return -1
            if following == NEXT_SEGMENT:
                self.bench.store.add_segment()
            elif following == NEXT_FULL:
                self.flush()
            elif following != NEXT_MUCH:
                assert following == NEXT_HANDLER
                at += frame_size(data, at)

    def flush(self) -> None:
        self.bench.broker.wants_turn = True
        self.bench.settle()

    def finish(self) -> None:
        """Whatever was taken in is whole: replies are frames, the log is sound, entries lead to records."""
        served = self.lane.sends
        self.flush()
        codes = {decode(frame).code for frame in frames_of(bytes(self.sent_replies + self.pull_replies))}
        assert codes == {ResponseCode.SUCCESS}
        self.bench.close()
        records = 0
        for path in sorted((self.bench.root / "commitlog").iterdir()):
            entries, at, reason = scan_records_plain(path.read_bytes(), int(path.name), True)
            assert reason in ("blank", "end"), (path.name, at, reason)
            records += len(entries)
        assert records == served + self.bench.broker.sends_handled


def test_the_lane_survives_what_nobody_should_send(in_memory: Path) -> None:
    """50,000 hostile frames at a live journal: what is served is served whole, the rest is passed on."""
    guarded, target = Guarded(1 << 19), Target(in_memory / "store")
    for data in hostile(MALFORMED_COUNT, SEED + 1):
        target.serve(guarded.holding(data))
    lane = target.lane
    assert lane.sends > 2000
    assert lane.pulls > 100
    assert min(target.stops[:NEXT_MUCH]) > 5, target.stops
    target.finish()


def test_where_the_stream_is_cut_makes_no_difference(in_memory: Path) -> None:
    """The same hostile stream, frame by frame and in pieces of any size: same replies, same log."""
    rng = random.Random(SEED + 2)
    whole, cut = Target(in_memory / "whole"), Target(in_memory / "cut")
    guarded = Guarded(1 << 22)
    stream: list[bytes] = []
    for data in hostile(20_000, SEED + 2):
        try:
            lost = frame_size(data) != len(data)
        except RemoteProtocolError:
            lost = True
        if lost and rng.random() < 0.99:
            continue  # a stream that loses its frames ends, and this one is to be long
        stream.append(data)
        if not lost:
            continue
        for frame in stream:
            whole.serve(frame)
        feed_cut(cut, b"".join(stream), rng, guarded)
        stream = []
    assert cut.sent_replies == whole.sent_replies
    assert cut.lane.sends == whole.lane.sends > 500
    # a pull of a page that is locked just now is passed on; hardly any are
    assert abs(cut.lane.pulls - whole.lane.pulls) < 5 < whole.lane.pulls
    if cut.lane.pulls == whole.lane.pulls:
        assert cut.pull_replies == whole.pull_replies
    logs = []
    for target in (whole, cut):
        target.finish()
        logs.append([path.read_bytes() for path in sorted((target.bench.root / "commitlog").iterdir())])
    assert logs[0] == logs[1]


def feed_cut(target: Target, stream: bytes, rng: random.Random, guarded: Guarded) -> None:
    """Pieces of any size, the rest of the last kept and given again, as a server does."""
    aside = b""
    at = 0
    while at < len(stream):
        size = rng.choice((1, 7, 100, 1000, 5000, 40_000, 150_000))
        aside += stream[at : at + size]
        at += size
        consumed = target.serve(guarded.holding(aside))
        if consumed < 0:
            return
        aside = aside[consumed:]


def test_one_frame_of_every_damaged_byte(in_memory: Path) -> None:
    """Each byte of an ordinary send and an ordinary pull, in both serialisations, takes six other values."""
    guarded, target = Guarded(), Target(in_memory / "store")
    maker = scripts.Maker(7)
    ordinary = []
    while len(ordinary) < 8:
        frame = maker.send() if len(ordinary) % 2 else maker.pull()
        command = decode(frame)
        wanted = RequestCode.SEND_MESSAGE_V2 if len(ordinary) % 2 else RequestCode.PULL_MESSAGE
        if command.code == wanted and len(frame) < 600 and target.serve(frame) == len(frame):
            ordinary.append(encode(dataclasses.replace(command, opaque=-1)))
    for frame in ordinary:
        for at in range(len(frame)):
            for value in {0, 0x7F, 0x80, 0xFF, frame[at] ^ 1, ord('"')}:
                target.serve(guarded.holding(frame[:at] + bytes([value]) + frame[at + 1 :]))
    target.finish()

"""A tail torn at any byte: recovery keeps exactly the records before it, and zeros what is behind."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotfire.store.checkpoint import MARK_AT, encode_mark
from tests.unit.store.driven import Driven, Sent

pytestmark = pytest.mark.core

SEED = 20_240_229
Damage = Callable[[bytearray, int, int, random.Random], None]


def cut(log: bytearray, at: int, end: int, rng: random.Random) -> None:
    """Nothing from here on reached the disk."""
    log[at:end] = bytes(end - at)


def lose_byte(log: bytearray, at: int, end: int, rng: random.Random) -> None:
    """One byte is zero, or is not if it was; what follows reached the disk."""
    log[at] = 0 if log[at] else 0xFF


def garbage(log: bytearray, at: int, end: int, rng: random.Random) -> None:
    """From here on stands something else."""
    others = rng.choices(range(1, 256), k=end - at)
    log[at:end] = bytes(byte ^ other for byte, other in zip(log[at:end], others, strict=True))


@pytest.fixture(scope="module")
def crashed(memory_directory: Path) -> Iterator[Driven]:
    """Eight small records, readable, in a store that was not closed."""
    driven = Driven(memory_directory / "torn", segment_bytes=4096).open()
    for i in range(8):
        driven.send("t", i % 2, b"%d" % i, **({"TAGS": "a"} if i % 3 else {}))
        driven.turn()
    driven.forget_mark()
    yield driven
    driven.store.close()


@pytest.mark.parametrize("damage", [cut, lose_byte, garbage])
def test_a_torn_tail_ends_before_the_first_damaged_record(
    crashed: Driven, in_memory: Path, damage: Damage
) -> None:
    """Damage at each byte of the last three records: the sound prefix, whole; behind it zeros."""
    sound = crashed.log_bytes()
    end = crashed.store.end
    rng = random.Random(SEED)
    for broken in crashed.sent[-3:]:
        for at in range(broken.physical, broken.end):
            image = crashed.crash_image(in_memory / "image")
            torn = bytearray(sound)
            damage(torn, at, end, rng)
            write_log(image, torn)
            with image:
                found = image.store.recovered.end
                assert found == broken.physical, f"{damage.__name__} at {at}, seed {SEED}"
                kept = [sent for sent in image.sent if sent.end <= found]
                image.check(kept)
                assert_prefix(image, sound, kept)
            shutil.rmtree(image.root)


def write_log(image: Driven, log: bytes | bytearray) -> None:
    (segment,) = (image.root / "commitlog").iterdir()
    segment.write_bytes(log)


def assert_prefix(image: Driven, sound: bytes, kept: list[Sent]) -> None:
    log = image.log_bytes()
    end = kept[-1].end
    assert log[:end] == sound[:end]
    assert not any(log[end:]), "stale bytes behind the end"


def set_mark(image: Driven, durable: int) -> None:
    with (image.root / "checkpoint").open("r+b") as file:
        file.seek(MARK_AT)
        file.write(encode_mark(durable))


@pytest.mark.parametrize("damage", [cut, lose_byte, garbage])
def test_a_mark_before_the_tear_changes_nothing(crashed: Driven, in_memory: Path, damage: Damage) -> None:
    """The mark says that all but the last three records were synced: each tear behind it is the end."""
    sound, end, rng = crashed.log_bytes(), crashed.store.end, random.Random(SEED)
    for broken in crashed.sent[-3:]:
        for at in range(broken.physical, broken.end, 3):
            image = crashed.crash_image(in_memory / "image")
            set_mark(image, crashed.sent[-4].end)
            torn = bytearray(sound)
            damage(torn, at, end, rng)
            write_log(image, torn)
            with image:
                assert image.store.recovered.end == broken.physical, f"{damage.__name__} at {at}, seed {SEED}"
                assert image.store.recovered.damage == []
                kept = [sent for sent in image.sent if sent.end <= broken.physical]
                image.check(kept)
                assert_prefix(image, sound, kept)
            shutil.rmtree(image.root)


@pytest.mark.parametrize("damage", [cut, lose_byte, garbage])
def test_behind_no_mark_nothing_is_cut(crashed: Driven, in_memory: Path, damage: Damage) -> None:
    """The mark says that all was synced: the same bytes are damage. The log stays as it is and goes on behind
    it, and of the rest every message is served."""
    sound, end, rng = crashed.log_bytes(), crashed.store.end, random.Random(SEED)
    for broken in crashed.sent[-3:]:
        for at in range(broken.physical, broken.end, 3):
            image = crashed.crash_image(in_memory / "image")
            set_mark(image, end)
            torn = bytearray(sound)
            damage(torn, at, end, rng)
            write_log(image, torn)
            with image:
                assert image.store.recovered.end == end, f"{damage.__name__} at {at}, seed {SEED}"
                assert image.store.recovered.damage[0][0] == broken.physical
                assert image.log_bytes() == torn
                lost = [broken] if damage is lose_byte else [s for s in image.sent if s.end > broken.physical]
                found = [r.physical_offset for queue_id in (0, 1) for r in image.pull_all("t", queue_id)]
                assert sorted(found) == [sent.physical for sent in image.sent if sent not in lost]
            shutil.rmtree(image.root)

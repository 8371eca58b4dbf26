"""A tail torn at any byte: recovery keeps exactly the records before it, and zeros what is behind."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
    log[at:end] = bytes(byte ^ rng.randrange(1, 256) for byte in log[at:end])


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


def write_log(image: Driven, log: bytes) -> None:
    (segment,) = (image.root / "commitlog").iterdir()
    segment.write_bytes(log)


def assert_prefix(image: Driven, sound: bytes, kept: list[Sent]) -> None:
    log = image.log_bytes()
    end = kept[-1].end
    assert log[:end] == sound[:end]
    assert not any(log[end:]), "stale bytes behind the end"

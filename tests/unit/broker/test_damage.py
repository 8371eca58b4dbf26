"""One wrong bit in a store: it opens, nothing harmed is handed out, and only the harmed is missing."""

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.conftest import Make
from tests.unit.broker.damage import PARTS, SETTINGS, Inquest, Part, Stores, flip, write_stores
from tests.unit.broker.harness import FOUND, RETRY, next_offset

pytestmark = pytest.mark.core

MODES = ("clean", "unclean", "clean, derived deleted", "unclean, derived deleted")
FLIPS_EACH, FLIPS_EACH_LONG = 8, 500


@pytest.fixture(scope="module")
def stores(memory_directory: Path) -> Stores:
    return write_stores(memory_directory / "damage")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of damaged stores have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def hold_flips(make: Make, stores: Stores, in_memory: Path, shape: str, what: str, flips: int) -> None:
    """So many wrong bits, one at a time, in this kind of place; each in one way of having been closed."""
    seed = f"{what} {shape}"
    chance = random.Random(seed)
    parts = list(PARTS[what](stores))
    failures = []
    for n in range(flips):
        mode = MODES[n % len(MODES)]
        part = chance.choice(parts)
        position, bit = part.start + chance.randrange(part.size), chance.randrange(8)
        root = in_memory / f"{n}"
        shutil.copytree(stores.clean if mode.startswith("clean") else stores.unclean, root)
        flip(root, part.file, position, bit)
        if mode.endswith("deleted"):
            shutil.rmtree(root / "consumequeue")
            shutil.rmtree(root / "index")
        try:
            heart = make(root, **SETTINGS)
            lost = {part.costs} if part.costs >= 0 else set()
            Inquest(heart, stores, lost, index_harmed=part.file.startswith("index")).hold()
            heart.close()
        except Exception as error:  # noqa: BLE001  # all that is wrong, told at once
            failures.append(
                f"{mode}: {part.file} byte {position} bit {bit} (seed {seed!r} #{n}): {error!r:.300}"
            )
        shutil.rmtree(root)
    assert not failures, f"{len(failures)} of {flips}:\n" + "\n".join(failures[:20])


@pytest.mark.parametrize("what", PARTS)
def test_one_wrong_bit_costs_at_most_its_own_message(
    make: Make, stores: Stores, in_memory: Path, shape: str, what: str
) -> None:
    """The store opens, closed cleanly or not, its queues and index deleted or not; pulls with and without a
    filter, ids, keys and times give whole messages at their own places, and all but the harmed one."""
    hold_flips(make, stores, in_memory, shape, what, FLIPS_EACH)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", PARTS)
def test_one_wrong_bit_costs_at_most_its_own_message_long(
    make: Make, stores: Stores, in_memory: Path, shape: str, what: str
) -> None:
    """The same, 21 000 bits in all."""
    hold_flips(make, stores, in_memory, shape, what, FLIPS_EACH_LONG)


@pytest.mark.parametrize("what", ["record", "queue entry"])
def test_every_bit_of_a_message_and_of_its_entry(
    make: Make, stores: Stores, in_memory: Path, what: str
) -> None:
    """While the broker runs: each bit in turn is wrong, and the message is not delivered, nor is another in
    its place; put right again, it is."""
    shutil.copytree(stores.clean, in_memory / "store")
    heart = make(in_memory / "store", **SETTINGS)
    topic, queue_id, offset = place = "U", 0, 9
    one = stores.by_place[place]
    start = one.record.physical_offset
    parts = {"record": Part(f"commitlog/{0:020d}", start, one.record.size), "queue entry": None}
    part = parts[what] or next(part for part in PARTS[what](stores) if part.costs == start)
    for at in range(part.size * 8):
        flip(heart.root, part.file, part.start + at // 8, at % 8)
        reply = heart.pull(topic=topic, queue_id=queue_id, offset=offset, max_msg_nums=1)
        tags_only = what == "queue entry" and at // 8 >= 12
        if tags_only or reply.code == FOUND:  # the entry itself may be passed over as none
            following = (topic, queue_id, next_offset(reply) - 1)
            assert reply.body == stores.by_place[following].raw, (at, reply)
            assert tags_only == (following == place), (at, reply)
        else:
            assert (reply.code, reply.body, next_offset(reply)) == (RETRY, b"", offset + 1), (at, reply)
        flip(heart.root, part.file, part.start + at // 8, at % 8)
        assert heart.pull(topic=topic, queue_id=queue_id, offset=offset, max_msg_nums=1).body == one.raw


@pytest.mark.parametrize("what", ["record header", "body"])
def test_without_the_checksum_over_all_of_it_body_and_structure_are_told(
    make: Make, memory_directory: Path, in_memory: Path, shape: str, what: str
) -> None:
    """enabledAppendPropCRC=false, as the reference writes by default: a wrong bit in a body, in lengths,
    places and offsets is never delivered; one in times, flags and hosts cannot be told and harms no other."""
    stores = write_stores(in_memory / "made", 40, enabled_append_prop_crc=False)
    heart = make(stores.clean, **SETTINGS, enabled_append_prop_crc=False)
    one = stores.stored[13]
    topic, queue_id, offset = one.place
    (part,) = [part for part in PARTS[what](stores) if part.costs == one.record.physical_offset]
    untold = {*range(16, 20), *range(36, 84)} if what == "record header" else set()
    for at in range(0, part.size * 8):
        flip(heart.root, part.file, part.start + at // 8, at % 8)
        reply = heart.pull(topic=topic, queue_id=queue_id, offset=offset, max_msg_nums=1)
        if at // 8 not in untold:
            assert reply.code == RETRY, (at, reply)
        assert next_offset(reply) == offset + 1
        flip(heart.root, part.file, part.start + at // 8, at % 8)

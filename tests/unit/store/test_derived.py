"""Whatever happens to what is derived from the log, a start makes it again as it was."""

import logging
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.errors import StoreError
from tests.unit.store.driven import Driven, tree

pytestmark = pytest.mark.core

CASES, CASES_LONG = 100, 1000
ROOTS = ("consumequeue", "consumequeue_ext", "index")
CONFIG = {"segment_bytes": 8192, "queue_file_bytes": 140, "index_slots": 16, "index_entries": 60}
EXT = {"queue_ext": True, "queue_ext_file_bytes": 200}
ACTIONS = ("delete", "garbage", "zeros", "some garbage", "truncate", "empty")
SEEN = {
    "consumequeue": ACTIONS,
    "consumequeue_ext": ("delete", "truncate", "empty"),
    "index": ("delete", "garbage", "zeros", "truncate", "empty"),
}
"""What a start sees. Wrong bytes in the midst of units and keys it does not: no message that is not meant is
handed out for them, and `store verify` finds them."""
ENTRY = struct.Struct(">qiq")
INDEX_ENTRY = struct.Struct(">Iqii")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A hundred starts that mend have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Twins:
    """The same messages in a store closed cleanly and in one killed, and what a start makes of each."""

    def __init__(self, root: Path, *, ext: bool, removed_segments: int = 0) -> None:
        self.driven = Driven(root / "clean", **CONFIG, **(EXT if ext else {})).open()
        driven = self.driven
        for n in range(150):
            properties = {"UNIQ_KEY": f"unique-{n}", "TAGS": f"tag{n % 6}"}
            if n % 3:
                properties["KEYS"] = f"key{n} key{n % 7}"
            driven.send(f"topic-{n % 3}", n % 2, b"%d " % n * (n % 40 + 1), **properties)
            if n % 10 == 9:
                driven.turn()
                driven.tick(700)
            if n == 120:
                driven.turn()
                driven.tick(2000)
        driven.turn()
        shutil.copytree(root / "clean", root / "unclean")
        driven.store.close()
        self.oldest = removed_segments * CONFIG["segment_bytes"]
        self.sent = [sent for sent in driven.sent if sent.physical >= self.oldest]
        self.images = {True: root / "clean", False: root / "unclean"}
        self.made: dict[bool, dict[str, bytes]] = {}
        for clean, image in self.images.items():
            for start in range(0, self.oldest, CONFIG["segment_bytes"]):
                (image / "commitlog" / f"{start:020d}").unlink()
            copy = root / f"twin{clean}"
            shutil.copytree(image, copy)
            with driven.on(copy):
                pass
            self.made[clean] = derived(copy)

    def hold(self, root: Path, *, clean: bool) -> None:
        """The store in `root` opens, serves all that is in the log, and is what its undamaged twin is."""
        with self.driven.on(root) as again:
            self._hold_messages(again)
        made, twin = derived(root), self.made[clean]
        if self.oldest == 0:
            assert sorted(made) == sorted(twin)
            assert [name for name in twin if made[name] != twin[name]] == []
        assert self._entries(made) == self._entries(twin)
        assert self._keys(made) == self._keys(twin)
        with self.driven.on(root) as again:  # and has nothing more to mend
            assert again.store.recovered.records == 0
            self._hold_messages(again)

    def _hold_messages(self, again: Driven) -> None:
        if self.oldest == 0:
            again.check(self.sent)
            return
        for topic, queue_id in {(sent.topic, sent.queue_id) for sent in self.sent}:
            mine = [sent for sent in self.sent if (sent.topic, sent.queue_id) == (topic, queue_id)]
            queue = again.store.find_queue(topic, queue_id)
            assert queue is not None
            assert (queue.min, queue.max) == (mine[0].queue_offset, mine[-1].queue_offset + 1)
            records, offset = [], queue.min
            while offset < queue.max:
                got, offset = again.pull(topic, queue_id, offset)
                records += got
            assert [(r.queue_offset, r.body) for r in records] == [(s.queue_offset, s.body) for s in mine]

    def _entries(self, made: dict[str, bytes]) -> dict[tuple[str, int], tuple[int, int]]:
        """Queue entries of records that are in the log: (queue, offset) -> log offset, size."""
        found = {}
        for name, data in made.items():
            if name.startswith("consumequeue/"):
                first = int(name[-20:]) // ENTRY.size
                for n, (physical, size, _) in enumerate(ENTRY.iter_unpack(data)):
                    if size and physical >= self.oldest:
                        found[name[:-20], first + n] = physical, size
        return {key: value for key, value in found.items() if value != (0, 0x7FFFFFFF)}

    def _keys(self, made: dict[str, bytes]) -> list[tuple[int, int]]:
        """Hash and log offset of the index's entries of records that are in the log."""
        found = []
        for name, data in made.items():
            if name.startswith("index/"):
                (following,) = struct.unpack_from(">i", data, 36)
                at = 40 + CONFIG["index_slots"] * 4
                for n in range(1, following):
                    hash_, physical, _, _ = INDEX_ENTRY.unpack_from(data, at + n * INDEX_ENTRY.size)
                    if physical >= self.oldest:
                        found.append((physical, hash_))
        return sorted(found)


def derived(root: Path) -> dict[str, bytes]:
    return {name: data for below in ROOTS for name, data in tree(root, below=below).items()}


@pytest.fixture(scope="module", params=["plain", "ext", "begins later"])
def twins(request: pytest.FixtureRequest, memory_directory: Path) -> Twins:
    root = memory_directory / f"derived {request.param}"
    later = request.param == "begins later"
    return Twins(root, ext=request.param == "ext", removed_segments=2 if later else 0)


def harm(path: Path, action: str, chance: random.Random) -> None:
    size = path.stat().st_size
    if action == "delete":
        path.unlink()
    elif action in ("truncate", "empty"):
        with path.open("r+b") as file:
            file.truncate(0 if action == "empty" else chance.randrange(1, size))
    else:
        data = bytearray(path.read_bytes())
        used = len(data.rstrip(b"\0")) or 1
        start = chance.randrange(0, used, ENTRY.size) if action == "some garbage" else 0
        data[start:] = bytes(size - start) if action == "zeros" else chance.randbytes(size - start)
        path.write_bytes(data)


def harm_some(root: Path, chance: random.Random, *, clean: bool) -> list[str]:
    """A random part of what is derived, harmed in a random way each."""
    share = chance.choice([0.03, 0.3, 0.9])
    actions = chance.choice([ACTIONS, *((action,) for action in ACTIONS)])
    done = []
    whole = {below: name for name in sorted(derived(root)) for below in ROOTS if name.startswith(f"{below}/")}
    for name in sorted(derived(root)):
        if chance.random() < share:
            action = chance.choice(actions)
            if action not in SEEN[name.split("/")[0]]:
                continue
            if action == "truncate" and name in whole.values():
                continue  # all of a kind cut short would be taken for another setting
            harm(root / name, action, chance)
            done.append(f"{action} {name}")
    if chance.random() < 0.2 and not (clean and any("garbage" in one for one in done)):
        # else it looks like a store of the reference, half of whose log is elsewhere, and is refused
        action = chance.choice(ACTIONS)
        harm(root / "checkpoint", action, chance)
        done.append(f"{action} checkpoint")
    if chance.random() < 0.1:
        shutil.rmtree(root / chance.choice(["consumequeue", "index"]))
        done.append("delete a tree")
    return done


def hold_cases(twins: Twins, in_memory: Path, cases: range) -> None:
    failures = []
    for seed in cases:
        chance = random.Random(seed)
        clean = chance.random() < 0.5
        root = in_memory / str(seed)
        shutil.copytree(twins.images[clean], root)
        done = harm_some(root, chance, clean=clean)
        try:
            twins.hold(root, clean=clean)
        except (AssertionError, StoreError, OSError, ValueError, struct.error, IndexError) as error:
            failures.append(f"seed {seed} {'clean' if clean else 'unclean'} {done[:3]}: {error!r:.300}")
        shutil.rmtree(root)
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures[:30])


def test_any_part_of_it_is_made_again(twins: Twins, in_memory: Path) -> None:
    """Files of queues, extensions and index, and the checkpoint: deleted, cut short, zeros or garbage."""
    hold_cases(twins, in_memory, range(CASES))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_part_of_it_is_made_again_long(twins: Twins, in_memory: Path) -> None:
    """The same, a thousand times."""
    hold_cases(twins, in_memory, range(CASES, CASES + CASES_LONG))


@pytest.mark.parametrize("clean", [True, False])
def test_each_file_alone_is_made_again(twins: Twins, in_memory: Path, clean: bool) -> None:
    """Any one file of queues, extensions or index deleted: the first, one in the midst, the last."""
    failures = []
    for name in sorted(twins.made[clean]):
        root = in_memory / "store"
        shutil.copytree(twins.images[clean], root)
        (root / name).unlink()
        try:
            twins.hold(root, clean=clean)
        except (AssertionError, ValueError, StoreError) as error:
            failures.append(f"{name}: {error!r:.300}")
        shutil.rmtree(root)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kind", ROOTS)
def test_all_of_a_kind_cut_short_is_taken_for_another_setting(in_memory: Path, kind: str) -> None:
    """No file has the configured size: refused with the setting's name, and nothing is changed."""
    twins = Twins(in_memory / "twins", ext=True)
    root = twins.images[True]
    for name in derived(root):
        if name.startswith(f"{kind}/"):
            harm(root / name, "truncate", random.Random(1))
    before = derived(root)
    with pytest.raises(StoreError, match=r"configured are .*: set m"):
        twins.driven.on(root).open()
    assert derived(root) == before

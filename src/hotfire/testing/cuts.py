"""What a power cut leaves of a simulated disk.

What was synced is there. Of the rest each sector holds any version it had since its file was synced,
whatever became of the others, and each change of a directory happened or not. One draw from so many states
would nearly always be a middling one, so a cut first draws a `Fate`: all kept, all lost, one lost, none after
a moment, and so on; the states at the edges are where stores go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hotfire.testing.inodes import SECTOR_BYTES, Change, Directory, File, Version, apply, reachable

WORD_BYTES = 4
FATES = "kept", "lost", "each", "each", "until", "until", "one lost", "one kept", "files", "torn", "torn"
FATES_OF_NAMES = "kept", "lost", "each", "until"


class Fate:
    """Decides, for one power cut, what becomes of everything that was not synced."""

    def __init__(self, root: Directory, now: int, rng: random.Random, kind: str = "") -> None:
        self._rng = rng
        self._kind = kind or rng.choice(FATES)
        self._kind_of_names = kind or rng.choice(FATES_OF_NAMES)
        self._chance = rng.choice((0.1, 0.5, 0.9))
        files = [node for node in reachable(root) if isinstance(node, File)]
        pending = [(file, number) for file in files for number in file.sectors]
        moments = [version.at for file, number in pending for version in file.sectors[number]]
        self._moment = rng.randint(min(moments, default=now), now)
        self._chosen = rng.choice(pending) if pending else None
        self._files: dict[int, bool] = {}

    def __str__(self) -> str:
        return f"sectors {self._kind}, names {self._kind_of_names}"

    def contents(self, file: File) -> bytes:
        """The bytes of `file` after the cut."""
        if not file.is_pending:
            return file.durable
        base = file.durable
        if file.truncated_at is not None:
            if not self._keeps(file, file.truncated_at):
                return base
            base = b""
        size = len(base)
        for at, grown in file.sizes:
            if self._keeps(file, at):
                size = grown
        held = bytearray(base[:size].ljust(size, b"\0"))
        for number, versions in file.sectors.items():
            low = number * SECTOR_BYTES
            if low < size:
                older = bytes(held[low : low + SECTOR_BYTES])
                chosen = self._sector(file, number, older, versions)
                held[low : low + SECTOR_BYTES] = chosen[: len(older)].ljust(len(older), b"\0")
        return bytes(held)

    def keeps_change(self, change: Change) -> bool:
        if self._kind_of_names == "until":
            return change.at <= self._moment
        return self._kind_of_names == "kept" or (
            self._kind_of_names == "each" and self._rng.random() < self._chance
        )

    def _keeps(self, file: File, at: int) -> bool:
        """Whether a change to the file as a whole has reached the disk."""
        if self._kind == "until":
            return at <= self._moment
        if self._kind == "files":
            return self._keeps_file(file)
        return self._kind in ("kept", "one lost") or (self._kind != "lost" and self._rng.random() < 0.5)

    def _keeps_file(self, file: File) -> bool:
        return self._files.setdefault(id(file), self._rng.random() < 0.5)

    def _sector(self, file: File, number: int, older: bytes, versions: Sequence[Version]) -> bytes:
        newest = versions[-1].value
        rng, kind = self._rng, self._kind
        if kind == "until":
            return next((v.value for v in reversed(versions) if v.at <= self._moment), older)
        if kind == "torn":
            some = rng.choice([older, *(version.value for version in versions)])
            return self._mixed(older, some) if number in file.through_maps else some
        is_kept = {
            "kept": True,
            "lost": False,
            "one lost": (file, number) != self._chosen,
            "one kept": (file, number) == self._chosen,
        }.get(kind)
        if is_kept is None:
            is_kept = self._keeps_file(file) if kind == "files" else rng.random() < self._chance
        return newest if is_kept else rng.choice([older, *(version.value for version in versions[:-1])])

    def _mixed(self, older: bytes, newer: bytes) -> bytes:
        """Some words of either: the disk fetched the sector while it was being stored into."""
        mixed = bytearray(older.ljust(len(newer), b"\0"))
        for low in range(0, len(newer), WORD_BYTES):
            if self._rng.random() < self._chance:
                mixed[low : low + WORD_BYTES] = newer[low : low + WORD_BYTES]
        return bytes(mixed)


def survivors(root: Directory, fate: Fate) -> Directory:
    """A copy of the tree as the cut leaves it, all of it durable."""
    copies: dict[int, File | Directory] = {}

    def copy(node: File | Directory) -> File | Directory:
        if id(node) not in copies:
            copies[id(node)] = File(fate.contents(node)) if isinstance(node, File) else copy_directory(node)
        return copies[id(node)]

    def copy_directory(directory: Directory) -> Directory:
        entries = dict(directory.durable)
        for change in directory.changes:
            if fate.keeps_change(change):
                apply(entries, change)
        return Directory({name: copy(node) for name, node in sorted(entries.items())})

    return copy_directory(root)

"""What a simulated disk remembers of a file and of a directory: what is there, what is surely there, and
everything between.

A sector is the unit a disk writes whole. Every version a sector had since its file was synced last is kept,
with the moment it came to be: a power cut may leave any of them. The same holds for a file's size and, one by
one, for the changes to a directory's entries. Knows nothing of paths, descriptors or system calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Memory(bytearray):
    """The bytes of a file. Every map of it is this very object, so a store into one is seen by all."""

    maps = 0

    def close(self) -> None:
        """Close one map; the bytes stay the file's."""
        self.maps -= 1


class Version(NamedTuple):
    """What a sector or a size became, and when."""

    at: int
    value: bytes


class File:
    """A regular file."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = Memory(data)
        self.durable = data
        self.sectors: dict[int, list[Version]] = {}
        """Versions since the last sync, oldest first."""
        self.sizes: list[tuple[int, int]] = []
        """(moment, size) since the last sync."""
        self.truncated_at: int | None = None
        """When the file was emptied, unless that was synced: what came later has other blocks."""
        self.lost: set[int] = set()
        """Sectors whose sync failed: the kernel calls them clean, and a later sync skips them."""
        self.through_maps: set[int] = set()
        """Sectors stored into word by word: the disk may have fetched them in the middle of it."""
        self._seen: bytes | None = None

    # --- changing ---

    def mapped(self) -> Memory:
        self.data.maps += 1
        if self._seen is None:
            self._seen = bytes(self.data)
        return self.data

    def forget_maps(self) -> None:
        """Whoever held maps is gone; a store into one of them no longer reaches the file."""
        self.data, self._seen = Memory(self.data), None

    def unmapped(self, at: int) -> None:
        """The last map is closed: what was stored through it is taken down, and nothing more can come."""
        self.notice(at)
        self._seen = None

    def write(self, data: bytes, position: int, at: int) -> None:
        self.notice(at)
        end = position + len(data)
        if end > len(self.data):
            self.resize(end, at)
        self.data[position:end] = data
        for number in range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self._note(number, at)
            self.through_maps.discard(number)
        if self._seen is not None:
            self._seen = bytes(self.data)

    def resize(self, size: int, at: int) -> None:
        """Longer, with zeros."""
        assert size >= len(self.data), "files only grow; `truncate` empties them"
        self.data.extend(bytes(size - len(self.data)))
        self.sizes.append((at, size))
        if self._seen is not None:
            self._seen = bytes(self.data)

    def truncate(self, at: int) -> None:
        self.data.clear()
        self.sectors.clear()
        self.sizes.clear()
        self.lost.clear()
        self.truncated_at = at

    def notice(self, at: int) -> None:
        """Take down what was stored into the file's maps since this was last asked."""
        if self._seen is None or bytes(self.data) == self._seen:
            return
        for number in range(-(-len(self.data) // SECTOR_BYTES)):
            low, high = number * SECTOR_BYTES, (number + 1) * SECTOR_BYTES
            if self.data[low:high] != self._seen[low:high]:
                self._note(number, at)
                self.through_maps.add(number)
        self._seen = bytes(self.data)

    def _note(self, number: int, at: int) -> None:
        now = bytes(self.data[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])
        self.sectors.setdefault(number, []).append(Version(at, now))
        self.lost.discard(number)

    # --- keeping ---

    def sync(self, at: int) -> None:
        """Contents and size are durable, but for sectors an earlier sync has lost."""
        self.notice(at)
        if self.lost:
            held = bytearray(self.data)
            for number in self.lost:
                low, high = number * SECTOR_BYTES, (number + 1) * SECTOR_BYTES
                held[low:high] = self.durable[low:high].ljust(len(held[low:high]), b"\0")
            self.durable = bytes(held)
        else:
            self.durable = bytes(self.data)
        self.sectors = {number: self.sectors[number] for number in self.lost}
        self.sizes.clear()
        self.truncated_at = None

    def sync_part(self, start: int, size: int, at: int) -> None:
        """The pages of this stretch are durable, and the file's size; other pages are not."""
        self.notice(at)
        held = bytearray(self.durable[: len(self.data)].ljust(len(self.data), b"\0"))
        first, last = start // PAGE_BYTES * PAGE_BYTES, -(-(start + size) // PAGE_BYTES) * PAGE_BYTES
        for number in range(first // SECTOR_BYTES, -(-min(last, len(held)) // SECTOR_BYTES)):
            if number not in self.lost:
                low, high = number * SECTOR_BYTES, (number + 1) * SECTOR_BYTES
                held[low:high] = self.data[low:high]
                self.sectors.pop(number, None)
        self.durable = bytes(held)
        self.sizes.clear()
        self.truncated_at = None

    @property
    def is_pending(self) -> bool:
        return bool(self.sectors or self.sizes) or self.truncated_at is not None

    def fail_sync(self, at: int) -> None:
        """What was to be synced is neither on the disk nor will it be."""
        self.notice(at)
        self.lost.update(self.sectors)


class Change(NamedTuple):
    """One change of a directory that its sync has not yet made durable."""

    at: int
    sets: str | None
    node: File | Directory | None
    removes: str | None = None


class Directory:
    """Entries by name. A rename is one change: it sets one name and removes another."""

    def __init__(self, entries: dict[str, File | Directory] | None = None) -> None:
        self.entries: dict[str, File | Directory] = dict(entries or {})
        self.durable = dict(self.entries)
        self.changes: list[Change] = []

    def change(self, at: int, sets: str | None, node: File | Directory | None, removes: str | None) -> None:
        change = Change(at, sets, node, removes)
        apply(self.entries, change)
        self.changes.append(change)

    @property
    def is_pending(self) -> bool:
        return bool(self.changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.changes.clear()


def apply(entries: dict[str, File | Directory], change: Change) -> None:
    if change.removes is not None:
        entries.pop(change.removes, None)
    if change.sets is not None:
        assert change.node is not None
        entries[change.sets] = change.node


def reachable(root: Directory) -> Iterator[File | Directory]:
    """Every node that is there now, was surely there, or may be found there after a cut; each once."""
    seen: set[int] = set()
    waiting: list[File | Directory] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Directory):
            waiting += node.entries.values()
            waiting += node.durable.values()
            waiting += [change.node for change in node.changes if change.node is not None]

"""Key index files: where the records with a key lie. Derived from the log, newest file last.

A file holds so many hash slots and entries and is named by the store time of its first entry, so that an
index made anew has the same names. Blocks are reserved a step ahead of the entries, as for queues. After an
unclean end the entries of records that were synced are kept, and slots and header are made of them anew: what
a crash left of the rest is not believed.
"""

from __future__ import annotations

from datetime import datetime

from hotfire import core
from hotfire.errors import StoreCorrupt
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk, Mapped

ROOT = "index"
HEADER_BYTES, SLOT_BYTES, ENTRY_BYTES = 40, 4, 20
RESERVE_STEP_ENTRIES = 50_000


class KeyIndexes:
    """The index files of one store."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._slots, self._entries = config.index_slots, config.index_entries
        self._entries_at = HEADER_BYTES + self._slots * SLOT_BYTES
        self._files: dict[str, tuple[Mapped, core.KeyIndex]] = {}
        self._journal: core.Journal | None = None
        self._dirty: set[str] = set()
        """Files to be synced as a whole, slots and all."""
        self._synced = 0
        """Entries of the newest file that were taken for a sync."""

    @property
    def file_bytes(self) -> int:
        return self._entries_at + self._entries * ENTRY_BYTES

    @property
    def end(self) -> tuple[int, int]:
        """Store time and offset of the newest record indexed."""
        return (self._last.end_timestamp, self._last.end_offset) if self._files else (0, 0)

    @property
    def _last(self) -> core.KeyIndex:
        return next(reversed(self._files.values()))[1]

    @property
    def newest(self) -> core.KeyIndex | None:
        """The file being filled; None before the first key."""
        return self._last if self._files else None

    # --- start-up ---

    def load(self, trusted_below: int, *, was_unclean: bool) -> None:
        """Open the files; after an unclean end keep only the entries of records before `trusted_below`."""
        sizes = {n: self._disk.size(f"{ROOT}/{n}") for n in self._disk.names(ROOT) if n.isdecimal()}
        is_ours = self.file_bytes in sizes.values()
        for name, size in sizes.items():
            if not self._has_its_size(name, size, is_ours=is_ours):
                continue
            index = self._open(name)
            if (was_unclean or index.end_offset >= trusted_below) and not self._keep(
                name, index, trusted_below
            ):
                self._remove(name)

    def _has_its_size(self, name: str, size: int, *, is_ours: bool) -> bool:
        """A file of another size is refused: its slots would be misplaced. One without any is removed, and so
        is one that has lost its end, if others show that it is not the setting that is wrong."""
        if size == 0 or (is_ours and size < self.file_bytes):  # 0: made, and not yet given its size
            self._disk.remove(f"{ROOT}/{name}")
            return False
        if size != self.file_bytes:
            raise StoreCorrupt(
                f"index file {self._disk.path(ROOT)}/{name} has {size} bytes, configured are "
                f"{self.file_bytes}: set maxHashSlotNum and maxIndexNum to what this store was made "
                "with, or move its index directory away to have it made anew from the log"
            )
        return True

    def _keep(self, name: str, index: core.KeyIndex, trusted_below: int) -> bool:
        if index.end_offset < trusted_below and index.next >= self._entries:
            return True  # full and synced long ago
        self._dirty.add(name)
        return index.repair(trusted_below) > 0

    def clear(self) -> None:
        """Forget every file; what follows is made anew."""
        for name in list(self._files):
            self._remove(name)

    def start(self, journal: core.Journal) -> None:
        """Let the journal fill the newest file."""
        self._journal = journal
        journal.set_index(self._last if self._files else None, self._grow)

    @property
    def count(self) -> int:
        """Entries in all files."""
        return sum(index.next - 1 for _, index in self._files.values())

    def put(self, hash_: int, physical: int, timestamp: int) -> None:
        """Index a key during recovery."""
        if not (self._files and self._last.put(hash_, physical, timestamp)):
            self._grow(timestamp)
            placed = self._last.put(hash_, physical, timestamp)
            assert placed, "a grown index has room"

    # --- growing ---

    def _grow(self, timestamp: int) -> None:
        """Room for the next entry, in the newest file or in one after it, named by the entry's store time."""
        if not self._files or self._last.next >= self._entries:
            self._add(timestamp)
            if self._journal is not None:
                self._journal.set_index(self._last, self._grow)
        self._reserve()

    def _add(self, timestamp: int) -> None:
        self._disk.make_directory(ROOT)
        while self._disk.exists(f"{ROOT}/{file_name(timestamp)}"):
            timestamp += 1
        before = next(reversed(self._files.items()), None)
        self._make(file_name(timestamp))
        self._synced = 0
        if before is not None:
            name, (_, index) = before
            self._dirty.add(name)
            self._last.begin(index.end_timestamp, index.end_offset)

    def _reserve(self) -> None:
        name, last = next(reversed(self._files)), self._last
        count = min(self._entries, last.next + RESERVE_STEP_ENTRIES)
        self._disk.reserve(f"{ROOT}/{name}", self._entries_at + count * ENTRY_BYTES)
        last.reserved = count

    def _make(self, name: str) -> None:
        """A new file. Blocks come before the first look into it: on a full disk that would be the last. It is
        filled from its beginning on, so nothing is read ahead: those would be zeros."""
        mapped = self._disk.map(f"{ROOT}/{name}", self.file_bytes, page_by_page=True)
        try:
            self._disk.reserve(f"{ROOT}/{name}", self._entries_at + ENTRY_BYTES)
        except OSError:
            mapped.close()
            self._disk.remove(f"{ROOT}/{name}")
            raise
        self._files[name] = mapped, core.KeyIndex(mapped, self._slots, self._entries, 0)

    def _open(self, name: str) -> core.KeyIndex:
        mapped = self._disk.map(f"{ROOT}/{name}", self.file_bytes)
        index = core.KeyIndex(mapped, self._slots, self._entries, 0)
        self._files[name] = mapped, index
        return index

    def _remove(self, name: str) -> None:
        mapped, index = self._files.pop(name)
        index.close()
        mapped.close()
        self._dirty.discard(name)
        self._synced = 0
        self._disk.remove(f"{ROOT}/{name}")

    def follow(self, log_min: int) -> None:
        """Remove files, but the newest, that speak only of records before `log_min`."""
        for name in list(self._files)[:-1]:
            if self._files[name][1].end_offset >= log_min:
                break
            self._remove(name)

    # --- asking ---

    def newest_first(self) -> list[core.KeyIndex]:
        """The files as they are now; each may be asked from another thread."""
        return [index for _, index in reversed(self._files.values())]

    # --- keeping ---

    def take_ranges(self) -> list[tuple[Mapped, int, int]]:
        """Header and new entries of the newest file. Slots lie all over it and are made of these."""
        if not self._files:
            return []
        mapped, last = next(reversed(self._files.values()))
        if last.next >= self._entries:  # full: believed as it is from now on, slots and all
            self._dirty.add(next(reversed(self._files)))
        since, self._synced = self._synced, last.next
        if since == last.next:
            return []
        return [
            (mapped, 0, HEADER_BYTES),
            (mapped, self._entries_at + since * ENTRY_BYTES, (last.next - since) * ENTRY_BYTES),
        ]

    def sync_again(self) -> None:
        """What was taken for a sync did not get there."""
        self._synced = 0

    def take_dirty(self) -> set[str]:
        """Files that are full since, and those mended: to be synced slots and all."""
        dirty = {f"{ROOT}/{name}" for name in self._dirty}
        self._dirty.clear()
        return dirty

    def take_files(self) -> set[str]:
        """Every file that has anything unsynced."""
        files = self.take_dirty() | {f"{ROOT}/{name}" for name in list(self._files)[-1:]}
        self._synced = self._last.next if self._files else 0
        return files

    def close(self) -> None:
        for mapped, index in self._files.values():
            index.close()
            mapped.close()
        self._files.clear()


def file_name(timestamp: int) -> str:
    """yyyyMMddHHmmssSSS in local time, as the reference names them."""
    moment = datetime.fromtimestamp(timestamp / 1000).astimezone()
    return f"{moment:%Y%m%d%H%M%S}{timestamp % 1000:03d}"

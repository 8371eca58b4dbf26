"""Key index files held against the log: what they must be is made anew in memory, and then compared.

The keys arrive in log order. As long as a file's entries have the same hashes and offsets, the index itself
is asked to make header, slots and chains of them, and a file is sound when it has exactly those bytes. Where
entries differ they are lined up again one by one, so that one damaged entry is one damage.
"""

from __future__ import annotations

from hotfire.protocol.record import TAG_KEY, decode_record, key_hash, parse_properties
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.findings import Findings
from hotfire.store.keyindex import HEADER_BYTES, SLOT_BYTES
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.layout import INDEX_ENTRY, INDEX_HEADER, Layout
from hotfire.store.logwalk import Window
from hotfire.store.scan import Scanned
from hotfire.store.verify_indexfile import ZERO_ENTRY, IndexFile, Key, index_base


class IndexCheck:
    """The index files of one store, walked in step with the log."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout, self._findings = layout, findings
        self._left = [name for name in layout.indexes if self._is_usable(name)]
        self._file: IndexFile | None = None
        self._files_done = 0
        self._end_time: int | None = None
        self._last_record: tuple[int, list[Key]] = -1, []
        self._duplicates = self._untagged = 0
        self._start = self._first_offset()
        self._ran_out: tuple[int, str, int] | None = None
        self._missed = self._skipped = 0
        self._window: Window | None = None
        self._by_offset: dict[int, Scanned] | None = None

    def _is_usable(self, name: str) -> bool:
        file, shape = f"{INDEX_ROOT}/{name}", self._layout.index_shape
        size = self._layout.disk.size(file)
        if shape is None:
            header = self._layout.disk.read_part(file, HEADER_BYTES, 0)
            if any(header) and INDEX_HEADER.unpack(header.ljust(HEADER_BYTES, b"\0"))[5] > 1:
                problem = f"header fits no number of slots and entries that makes {size} bytes"
                self._findings.derived_damage(0, file, 0, problem)
            return False
        wanted = HEADER_BYTES + shape[0] * SLOT_BYTES + shape[1] * ENTRY_BYTES
        if size != wanted:
            problem = f"index file has {size} bytes, {shape[0]} slots and {shape[1]} entries make {wanted}"
            self._findings.derived_damage(0, file, size, problem)
        return size == wanted

    def _first_offset(self) -> int:
        """Offset of the first record that is indexed, by two witnesses of which one may be damaged."""
        if not self._left or self._layout.index_shape is None:
            return 0
        file, base = f"{INDEX_ROOT}/{self._left[0]}", index_base(self._layout)
        says = INDEX_HEADER.unpack(self._layout.disk.read_part(file, HEADER_BYTES, 0))[2]
        entries = self._layout.disk.read_part(file, 2 * ENTRY_BYTES, base + ENTRY_BYTES)
        first, second = (entry[1] for entry in INDEX_ENTRY.iter_unpack(entries))
        if says in (first, second):
            return int(says)
        likely = [one for one in (says, first) if second == 0 or 0 <= one <= second]
        return int(max(likely, default=0))

    # --- keys in log order ---

    def feed(self, keys: list[Key], window: Window) -> None:
        """The keys of the records that come next, which lie in `window`."""
        self._window = window
        self._by_offset = None
        self._feed(keys)

    def _feed(self, keys: list[Key]) -> None:
        if self._start > self._layout.log_start and keys and keys[0][1] < self._start:
            before = len(keys)
            keys = [key for key in keys if key[1] >= self._start]
            self._skipped += before - len(keys)
        at = 0
        while at < len(keys):
            file = self._room()
            if file is None:
                if self._ran_out is None:
                    self._ran_out = keys[at][1], "", 0
                self._missed += len(keys) - at
                return
            chunk = keys[at : at + file.room]
            if file.matches(chunk):
                file.put_all(chunk)
                self._remember(chunk)
                at += len(chunk)
            else:
                at = self._align(file, keys, at)

    def _room(self) -> IndexFile | None:
        if self._ran_out is not None:
            return None
        if self._file is not None and self._file.room == 0:
            self._close_file()
        if self._file is None:
            if not self._left:
                return None
            self._file = IndexFile(self._layout, self._findings, self._left.pop(0))
            self._file.skip_older(self._layout.log_start)
            return self._room()
        return self._file

    def _remember(self, chunk: list[Key]) -> None:
        physical = chunk[-1][1]
        before = self._last_record[1] if self._last_record[0] == physical else []
        mine = []
        for key in reversed(chunk):
            if key[1] != physical:
                before = []
                break
            mine.append(key)
        self._last_record = physical, before + mine

    def _align(self, file: IndexFile, keys: list[Key], at: int) -> int:
        """Go on entry by entry until the chunk or the file ends; how many keys are done."""
        findings = self._findings
        while at < len(keys) and file.room:
            raw, wanted = file.raw(file.next), keys[at]
            if raw == ZERO_ENTRY and self._is_tag(wanted):
                self._untagged += 1
                at += 1
                continue
            if raw == ZERO_ENTRY:
                self._ran_out = wanted[1], *file.place(file.next)
                self._missed += len(keys) - at
                return len(keys)
            found = INDEX_ENTRY.unpack(raw)
            if found[:2] == wanted[:2]:
                file.put(wanted)
                self._remember([wanted])
                at += 1
            elif self._lacks_tag(found, keys, at):
                self._untagged += 1
                at += 1
            elif again := self._put_again(found):  # Apache indexes the last record once more after a crash
                file.put(again)
                self._duplicates += 1
            elif findings.in_hole(found[1]):
                file.put_found(found)
            elif self._is_cut_first(file, found, keys, at):
                self._skipped += 1
                at += 1
            elif found[0] == wanted[0] or found[1] == wanted[1] or file.leads_on(keys, at):
                file.blame(file.next, found, wanted)
                file.put(wanted)
                self._remember([wanted])
                at += 1
            elif wanted[1] < found[1]:
                findings.derived_damage(
                    wanted[1], *file.place(file.next), f"no entry for a key of the record at {wanted[1]} here"
                )
                at += 1
            else:
                problem = f"entry {file.next} is for a key at {found[1]} that its record does not have"
                findings.derived_damage(found[1], *file.place(file.next), problem)
                file.put_found(found)
        return at

    def _lacks_tag(self, found: tuple[int, int, int, int], keys: list[Key], at: int) -> bool:
        """The next key is a tag and was left out: what is there is the key behind it."""
        behind = keys[at + 1][:2] == found[:2] if at + 1 < len(keys) else found[1] > keys[at][1]
        return behind and self._is_tag(keys[at])

    def _is_tag(self, key: Key) -> bool:
        """Whether a key is its record's tag, which brokers before 5.5 do not index."""
        if self._window is None or not self._window.records or key[1] < self._window.base:
            return False
        if self._by_offset is None:
            self._by_offset = {record.physical: record for record in self._window.records}
        record = self._by_offset.get(key[1])
        if record is None:
            return False
        decoded = decode_record(self._window.raw(record), check_crc=False)
        tag = parse_properties(decoded.properties).get("TAGS")
        return tag is not None and key_hash(decoded.topic, TAG_KEY + tag) == key[0]

    def _put_again(self, found: tuple[int, int, int, int]) -> Key | None:
        physical, keys = self._last_record
        if found[1] != physical:
            return None
        return next((key for key in keys if key[0] == found[0]), None)

    def _is_cut_first(
        self, file: IndexFile, found: tuple[int, int, int, int], keys: list[Key], at: int
    ) -> bool:
        """The first file there is may begin amid a record's keys: the others were in one that is deleted."""
        if self._files_done or file.next != 1 or keys[at][1] != found[1]:
            return False
        return any(key[:2] == found[:2] for key in keys[at + 1 : at + 1000])

    # --- the end ---

    def finish(self) -> None:
        """Compare the last file, and say what is too much or too little."""
        self._close_file()
        findings = self._findings
        if self._missed and self._ran_out is not None and self._layout.indexes:
            physical, file, position = self._ran_out
            if findings.is_remade(physical):
                findings.unindexed += self._missed
            else:
                file = file or f"{INDEX_ROOT}/{self._layout.indexes[-1]}"
                problem = f"{self._missed} keys are not in the index, the first of the record at {physical}"
                findings.damage(file, position, problem)
        elif self._missed and not self._layout.indexes:
            self._tell_no_index()
        if self._skipped:
            findings.note(
                f"{self._skipped} keys before offset {self._start}, where the index begins, are not in it"
            )
        for name in self._left:
            file = f"{INDEX_ROOT}/{name}"
            header = INDEX_HEADER.unpack(self._layout.disk.read_part(file, HEADER_BYTES, 0))
            if header[5] > 1:
                problem = f"index file of {header[5] - 1} entries comes behind the last key of the log"
                findings.derived_damage(header[2], file, 36, problem)
        if self._untagged:
            findings.note(f"{self._untagged} tags are not in the index, which an older broker made")
        if self._duplicates:
            findings.note(f"{self._duplicates} keys are indexed twice, as Apache's broker does after a crash")

    def _tell_no_index(self) -> None:
        findings, expected = self._findings, self._layout.checkpoint.keys
        if not expected:
            findings.note(f"there is no key index; {self._missed} keys cannot be found by")
        elif findings.is_remade(self._layout.log_start):
            findings.unindexed += self._missed
        else:
            findings.damage(INDEX_ROOT, 0, f"there is no key index; it had {expected} entries")

    def _close_file(self) -> None:
        if self._file is not None:
            self._end_time = self._file.finish(self._end_time)
            self._file = None
            self._files_done += 1

"""Queue files of the other two kinds held against the log: filter units beside entries, and inner batches."""

from __future__ import annotations

from hotfire.protocol.record import SysFlag, decode_record, parse_properties
from hotfire.store.dump import BATCH_ENTRY, EXT_UNIT
from hotfire.store.findings import Findings
from hotfire.store.layout import BATCH_ENTRY_BYTES, Layout, QueueFiles
from hotfire.store.scan import Scanned

EXT_FILE_END = -1
NOT_COMPACTED = -1


def check_ext(layout: Layout, findings: Findings, queue: QueueFiles, addresses: set[int]) -> None:
    """Every unit of the queue's ext files is whole and an entry leads to it; zeros behind the last."""
    unused: list[int] = []
    for start, size in queue.files.items():
        file, at = queue.file(start), 0
        if size != layout.ext_file_bytes:
            findings.damage(file, size, f"ext file has {size} bytes, others have {layout.ext_file_bytes}")
        data = layout.disk.read_whole(file) or b""
        while at + 2 <= len(data):
            length = int.from_bytes(data[at : at + 2], signed=True)
            if length in (0, EXT_FILE_END):
                break
            if at + EXT_UNIT.size > len(data) or length < EXT_UNIT.size or at + length > len(data):
                findings.damage(file, at, f"ext unit says {length} bytes, it has at least {EXT_UNIT.size}")
                return
            bitmap_bytes = EXT_UNIT.unpack_from(data, at)[3]
            if length != EXT_UNIT.size + bitmap_bytes:
                findings.damage(file, at, f"ext unit of {length} bytes says its bitmap has {bitmap_bytes}")
            elif start + at not in addresses:
                unused.append(start + at)
            at += length
        at += 2 if data[at : at + 2] == b"\xff\xff" else 0
        rest = data[at:].lstrip(b"\0")
        if rest:
            findings.damage(file, len(data) - len(rest), "ext file has bytes behind its last unit")
    if unused:
        name = f"{queue.topic}/{queue.queue_id}"
        first = unused[0]
        start = first - first % layout.ext_file_bytes
        problem = f"no entry of {name} leads to this ext unit, nor to {len(unused) - 1} others"
        if layout.was_unclean or layout.log_start:
            findings.note(f"{queue.file(start)} byte {first - start}: {problem}")
        else:
            findings.damage(queue.file(start), first - start, problem)


class BatchCheck:
    """One queue of inner batches: an entry for each, one behind the other."""

    def __init__(self, layout: Layout, findings: Findings, files: QueueFiles) -> None:
        self.layout, self.findings, self.files = layout, findings, files
        self._expected: list[tuple[int, ...]] = []

    def add(self, scanned: Scanned, raw: bytes) -> None:
        """A record of the queue; a message that came alone counts as a batch of one."""
        count = "1"
        if scanned.sys_flag & SysFlag.INNER_BATCH:
            count = parse_properties(decode_record(raw, check_crc=False).properties).get("INNER_NUM", "")
        if not count.isdecimal():
            problem = f"inner batch at {scanned.physical} says it has INNER_NUM {count!r} messages"
            self.findings.log_damage(scanned.physical, problem)
            return
        self._expected.append(
            (
                scanned.physical,
                scanned.size,
                scanned.tags,
                scanned.store_timestamp,
                scanned.queue_offset,
                int(count),
                NOT_COMPACTED,
                0,
            )
        )

    def finish(self) -> None:
        """Compare; entries of records older than the log come first and are passed over."""
        wanted = iter(self._expected)
        name = f"{self.files.topic}/{self.files.queue_id}"
        for start, size in self.files.files.items():
            file = self.files.file(start)
            data = self.layout.disk.read_whole(file) or b""
            for at in range(0, size - BATCH_ENTRY_BYTES + 1, BATCH_ENTRY_BYTES):
                found = BATCH_ENTRY.unpack_from(data, at)
                if found[1] > 0 and 0 <= found[0] < self.layout.log_start:
                    continue
                should = next(wanted, None)
                self.findings.entries += should is not None
                if should is None:
                    if any(found):
                        self.findings.derived_damage(
                            found[0], file, at, f"batch entry of {name} points at {found[0]}, behind its end"
                        )
                elif not any(found) and self.findings.is_remade(should[0]):
                    self.findings.undispatched += 1
                elif found != should:
                    self.findings.derived_damage(
                        should[0], file, at, f"batch entry of {name} is {found}, its record makes it {should}"
                    )
        left = list(wanted)
        if left and self.findings.is_remade(left[0][0]):
            self.findings.undispatched += len(left)
        elif left:
            file = self.files.file(max(self.files.files, default=0))
            problem = (
                f"{len(left)} batch entries of {name} are missing, the first for the record at {left[0][0]}"
            )
            self.findings.damage(file, 0, problem)

"""What a broker told the kernel, read back from strace: log writes, syncs and the replies that left.

Owns the reading of `strace -f -ttt -yy -xx` output and one judgement: whether a reply left before its record
was on the disk. Time here is the line a call began or ended on: strace is one process and writes down what it
sees in the order it sees it, entry before the kernel acts and return after.
"""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

STRACE = [
    "strace", "-f", "--seccomp-bpf", "-ttt", "-yy", "-xx", "-s", str(16 << 20),
    "-e", "trace=pwrite64,pwritev,pwritev2,fdatasync,fsync,write,writev,sendto,sendmsg,rename",
]  # fmt: skip

_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>")
_ENTRY = re.compile(r"(\w+)\((.*)", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)[^=]*$")
_TARGET = re.compile(r"\d+<(TCP:\[[^\]]*\]|[^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_UNFINISHED = " <unfinished ...>"
_NEVER = 1 << 62
_BLANK = 0xCBD43194
_STORE_TIME_AT = 56  # with IPv4 hosts


@dataclass
class Call:
    """One system call: the lines it was entered and left on, and what it returned."""

    pid: int
    name: str
    arguments: str
    begin: int
    seconds: float
    end: int = _NEVER
    result: int = -1

    @property
    def target(self) -> str:
        """The file or the connection behind the descriptor."""
        found = _TARGET.match(self.arguments)
        return "" if found is None else unhex(found[1])

    @property
    def data(self) -> bytes:
        """Every byte given to the call."""
        parts = []
        for text, cut in _STRING.findall(self.arguments):
            assert not cut, f"strace cut the data of {self.name} on line {self.begin}"
            parts.append(bytes.fromhex(text.replace("\\x", "")))
        return b"".join(parts)

    @property
    def last_argument(self) -> int:
        return int(self.arguments.rpartition(",")[2])


def unhex(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


def parse(lines: Iterable[str]) -> Iterator[Call]:
    """Every call, in the order they were entered; one that never returned keeps its end in the far future."""
    calls: list[Call] = []
    unfinished: dict[int, Call] = {}
    for number, line in enumerate(lines):
        found = _LINE.match(line.rstrip("\n"))
        assert found is not None, f"line {number} of the trace: {line[:200]!r}"
        pid, text = int(found[1]), found[3]
        if text.startswith(("+++", "---", "???", "<... ???")):  # the last: killed before its call was known
            continue
        if (resumed := _RESUMED.match(text)) is not None:
            call = unfinished.pop(pid)
            assert call.name == resumed[1], f"line {number}: {resumed[1]} resumed, {call.name} was entered"
            call.end, call.result = number, _result(text)
            continue
        entry = _ENTRY.match(text)
        assert entry is not None, f"line {number} of the trace: {text[:200]!r}"
        call = Call(pid, entry[1], "", number, float(found[2]))
        calls.append(call)
        if text.endswith(_UNFINISHED):
            call.arguments = entry[2].removesuffix(_UNFINISHED)
            assert pid not in unfinished, f"line {number}: process {pid} is in two calls"
            unfinished[pid] = call
        else:
            call.end, call.result = number, _result(text)
            call.arguments = entry[2][: entry[2].rindex(") ")]
    yield from calls


def _result(text: str) -> int:
    found = _RESULT.search(text)
    return -1 if found is None else int(found[1])


# --- what the calls mean ---


@dataclass(frozen=True)
class LogWrite:
    """Log bytes from `start`, in the file's page cache by line `done`."""

    start: int
    data: bytes
    done: int
    seconds: float

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True)
class LogSync:
    """Everything written to the segment before line `begin` is on the disk by line `done`."""

    segment: int
    begin: int
    done: int
    seconds: float


@dataclass(frozen=True)
class Reply:
    """An acknowledged send, whose first byte left on line `left`."""

    physical: int
    left: int


@dataclass
class Trace:
    """The story of one broker process."""

    segment_bytes: int
    writes: list[LogWrite] = field(default_factory=list)
    """Of records."""
    blanks: list[LogWrite] = field(default_factory=list)
    """Zeros, ahead of them."""
    syncs: list[LogSync] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    queue_syncs: list[Call] = field(default_factory=list)
    checkpoints: list[Call] = field(default_factory=list)
    loop_pid: int = 0
    """The thread that answers."""
    log_pids: set[int] = field(default_factory=set)
    """The threads that write the log."""

    @classmethod
    def read(cls, lines: Iterable[str], *, broker: str, segment_bytes: int) -> Trace:
        """`broker` is the address clients dialled: replies are what leaves from it."""
        trace = cls(segment_bytes)
        streams: dict[str, _Stream] = {}
        for call in parse(lines):
            if call.result < 0:
                continue
            target = call.target
            if target.startswith(f"TCP:[{broker}->"):
                streams.setdefault(target, _Stream()).add(call)
                trace.loop_pid = call.pid
            elif "/commitlog/" in target and not target.endswith(".new"):
                trace._log_call(call, int(target.rpartition("/")[2]))
            elif "/consumequeue/" in target and call.name in ("fdatasync", "fsync"):
                trace.queue_syncs.append(call)
            elif target.endswith("/checkpoint") and call.name == "pwrite64" and not call.last_argument:
                trace.checkpoints.append(call)  # behind it lies the mark, which the flusher writes
        for stream in streams.values():
            trace.replies += stream.replies()
        trace.writes.sort(key=lambda write: write.start)
        trace.replies.sort(key=lambda reply: reply.left)
        return trace

    def _log_call(self, call: Call, segment: int) -> None:
        if call.name in ("fdatasync", "fsync"):
            self.syncs.append(LogSync(segment, call.begin, call.end, call.seconds))
        elif call.name == "pwrite64":
            self.log_pids.add(call.pid)
            data = call.data[: call.result]
            written = self.writes if any(data) else self.blanks
            written.append(LogWrite(segment + call.last_argument, data, call.end, call.seconds))
        else:
            raise AssertionError(f"{call.name} on the log, which this reader does not know")

    # --- the judgement ---

    def wiped(self) -> list[LogWrite]:
        """Zeros that went where records were already."""
        return [
            blank
            for blank in self.blanks
            if any(w.start < blank.end and blank.start < w.end and w.done < blank.done for w in self.writes)
        ]

    def too_early(self) -> list[Reply]:
        """Replies that left before their record was written and then synced."""
        return [reply for reply in self.replies if self.synced_at(reply.physical) >= reply.left]

    def synced_at(self, physical: int) -> int:
        """The line on which the record at `physical` was known to be on the disk."""
        written = self._written_at(physical)
        segment = physical - physical % self.segment_bytes
        ends = (s.done for s in self.syncs if s.segment == segment and s.begin > written)
        return min(ends, default=_NEVER)

    def store_time_before(self, offset: int) -> int:
        """The store time of the last record that ends at or before `offset`."""
        stamp = 0
        for write in self.writes:
            at = 0
            while at < len(write.data):
                size, magic = struct.unpack_from(">iI", write.data, at)
                if magic == _BLANK or write.start + at + size > offset:
                    break
                (stamp,) = struct.unpack_from(">q", write.data, at + _STORE_TIME_AT)
                at += size
        return stamp

    def _written_at(self, physical: int) -> int:
        """The line by which all of the record had been written."""
        at = bisect_right(self.writes, physical, key=lambda write: write.start) - 1
        if at < 0 or physical >= self.writes[at].end:
            return _NEVER
        first = self.writes[at]
        (size,) = struct.unpack_from(">i", first.data, physical - first.start)
        done, end = first.done, first.end
        while end < physical + size:
            at += 1
            if at == len(self.writes) or self.writes[at].start != end:
                return _NEVER
            done, end = max(done, self.writes[at].done), self.writes[at].end
        return done

    def durable_end(self, line: int) -> int:
        """The first byte of the log that was not surely on the disk by `line`."""
        safe = self._safe(line)
        unsafe = [
            w.start for w in self.writes if w.done >= safe.get(w.start - w.start % self.segment_bytes, 0)
        ]
        return min(unsafe, default=self.writes[-1].end)

    def _safe(self, line: int) -> dict[int, int]:
        """For each segment the line such that what was written before it is on the disk by `line`."""
        safe: dict[int, int] = {}
        for sync in self.syncs:
            if sync.done < line:
                safe[sync.segment] = max(sync.begin, safe.get(sync.segment, -1))
        return safe

    # --- the power cut ---

    def cut_power(self, line: int, directory: Path) -> None:
        """The log as a disk must have it if the power goes on `line`: what was synced, and nothing else."""
        safe = self._safe(line)
        log = directory / "commitlog"
        log.mkdir(parents=True)
        for segment in sorted({sync.segment for sync in self.syncs}):
            content = bytearray(self.segment_bytes)
            for write in sorted((*self.writes, *self.blanks), key=lambda write: write.done):
                if segment <= write.start < segment + self.segment_bytes and write.done < safe.get(
                    segment, 0
                ):
                    content[write.start - segment : write.end - segment] = write.data
            (log / f"{segment:020d}").write_bytes(content)


class _Stream:
    """Bytes that left on one connection, and the line each stretch of them left on."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._starts: list[int] = []
        self._lines: list[int] = []

    def add(self, call: Call) -> None:
        self._starts.append(len(self._data))
        self._lines.append(call.begin)
        self._data += call.data[: call.result]

    def replies(self) -> Iterator[Reply]:
        at = 0
        while at < len(self._data):
            size, marked = struct.unpack_from(">ii", self._data, at)
            header = json.loads(self._data[at + 8 : at + 8 + (marked & 0xFFFFFF)])
            message_id = (header.get("extFields") or {}).get("msgId")
            if header["code"] == 0 and message_id:
                line = self._lines[bisect_right(self._starts, at) - 1]
                yield Reply(int(message_id[-16:], 16), line)
            at += 4 + size

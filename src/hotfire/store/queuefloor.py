"""Where queues go on whose every record was deleted: the log no longer tells, and a copy of it must be told.

A queue that began again at 0 would give its next messages offsets that its consumers have long passed. So the
copy gets the queue's last file, full of entries that only keep a place: an empty queue that goes on where the
old one does.
"""

from __future__ import annotations

import struct

from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import FILLER
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk

_ENTRY = struct.Struct(">qiq")
_PLACE = _ENTRY.pack(*FILLER)


def copy_floors(source: Disk, part: Disk, *, oldest: int, end: int) -> None:
    """Queues of `source` without a record in the log from `oldest` to `end` keep their place in `part`.

    Their entries may be behind the log or ahead of `end`: what is in the log comes from there.
    """
    if oldest == 0:
        return  # nothing was ever deleted
    for topic in source.names(QUEUE_ROOT):
        for queue in source.names(f"{QUEUE_ROOT}/{topic}"):
            directory = f"{QUEUE_ROOT}/{topic}/{queue}"
            for name in sorted(filter(str.isdecimal, source.names(directory)), reverse=True):
                count, last_physical = last_below(source, f"{directory}/{name}", end)
                if count:
                    if last_physical < oldest:
                        _keep_place(part, directory, name, count, source.size(f"{directory}/{name}"))
                    break


def last_below(source: Disk, file: str, end: int) -> tuple[int, int]:
    """How many entries of the queue file point below `end`, and where the last of them points."""
    fd = source.open_to_read(file)
    try:
        low, high, physical = 0, source.size(file) // ENTRY_BYTES, -1
        while low < high:  # offsets only grow, and behind them there are zeros
            middle = (low + high) // 2
            found, size, _ = _ENTRY.unpack(source.read(fd, ENTRY_BYTES, middle * ENTRY_BYTES))
            if size > 0 and found < end:
                low, physical = middle + 1, found
            else:
                high = middle
    finally:
        source.close(fd)
    return low, physical


def _keep_place(part: Disk, directory: str, name: str, count: int, file_bytes: int) -> None:
    part.make_directory(directory)
    part.map(f"{directory}/{name}", file_bytes).close()
    fd = part.open(f"{directory}/{name}")
    try:
        part.write(fd, _PLACE * count, 0)
        part.sync(fd)
    finally:
        part.close(fd)

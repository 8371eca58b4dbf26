"""Many files synced together.

One after the other, each would wait for the disk alone: ten thousand queues took half a minute. Asked at the
same time they share the disk's flushes; and of very many all is synced that the file system has.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hotfire.store.disk import Disk

MANY = 256
"""From so many on the whole file system is synced instead: its one flush takes less time than theirs."""
STEP = 512
"""Synced together, between two questions whether it is enough."""


def sync_many(
    disk: Disk, directories: Set[str], files: Set[str], is_enough: Callable[[], bool] = lambda: False
) -> bool:
    """Names in these directories, then these files, are on the disk; False if it was enough before that.

    The first failure is raised when those it was done together with are done.
    """
    if len(directories) + len(files) >= MANY and disk.sync_file_system({*directories, *files}):
        return True
    for sync, paths in ((disk.sync_directory, directories), (disk.sync_file, files)):
        ordered = sorted(paths)  # so that it does not differ from run to run
        for at in range(0, len(ordered), STEP):
            if is_enough():
                return False
            _each(disk.syncs_at_once, sync, ordered[at : at + STEP])
    return True


def _each(at_once: int, sync: Callable[[str], None], paths: list[str]) -> None:
    def one(path: str) -> None:
        with suppress(FileNotFoundError):  # removed since: what it said is no longer asked for
            sync(path)

    if min(at_once, len(paths)) < 2:
        for path in paths:
            one(path)
        return
    with ThreadPoolExecutor(min(at_once, len(paths)), thread_name_prefix="hotfire-sync") as threads:
        done = [threads.submit(one, path) for path in paths]
    for future in done:
        future.result()

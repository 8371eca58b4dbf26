"""Small durable tables under config/: topics, groups, offsets. JSON in the reference implementation's form.

A table on disk is always a whole one: the new text is written aside, synced, and renamed over the old, of
which a `.bak` stays. A file that does not parse is not believed; then its `.bak` is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from hotfire.errors import StoreCorrupt
from hotfire.protocol import bodies
from hotfire.store.disk import Disk

T = TypeVar("T")
ROOT = "config"
log = logging.getLogger("hotfire.store")


class Table:
    """One file of the config directory."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._file = f"{ROOT}/{name}"
        self._last: bytes | None = None
        self._writing: Future[None] | None = None

    def load(self) -> dict[str, Any] | None:
        """The table's tree, or None when it was never written."""
        return self.load_as(dict)

    def load_as(self, read: Callable[[dict[str, Any]], T]) -> T | None:
        """What `read` makes of the table's tree; a tree it cannot read is as damaged as one that is none."""
        faults = []
        if self._disk.exists(ROOT):
            self._disk.sync_directory(ROOT)  # what is read must not change back at a power cut
        for file in (self._file, self._file + ".bak"):
            data = self._disk.read_whole(file)
            if data is None:
                continue
            try:
                tree = bodies.loads(data)
                if not isinstance(tree, dict):
                    raise ValueError(f"{type(tree).__name__} instead of an object")
                value = read(tree)
            except Exception as error:  # noqa: BLE001  # whatever is wrong with it, it is not a table
                faults.append(f"{self._disk.path(file)}: {error}")
                continue
            if file != self._file and faults:
                log.warning("table not believed, used its .bak instead fault=%s", faults[0])
                self._disk.write_whole(self._file, data)  # the next save keeps this one, not the damaged
            return value
        if faults:
            raise StoreCorrupt(
                "; ".join(faults) + ": restore it from a copy, or move it away to start without"
            )
        return None

    def save(self, tree: dict[str, Any]) -> None:
        """Write the table if it differs from what was written last; it is on disk when this returns."""
        self.settle()
        data = bodies.dumps_bare_keys(tree)
        if data != self._last:
            self._write(data)

    @property
    def is_writing(self) -> bool:
        """A write beside the loop is under way; another must wait for it."""
        return self._writing is not None and not self._writing.done()

    def save_beside(self, make: Callable[[], dict[str, Any]]) -> None:
        """Write the table while the loop goes on: `make` runs beside it, on what no one changes meanwhile."""
        self.settle()

        def work() -> None:
            data = bodies.dumps_bare_keys(make())
            if data != self._last:
                self._write(data)

        self._writing = self._disk.beside(work)

    def settle(self) -> bool:
        """Wait for a write beside the loop. False, and a line in the log, if it failed."""
        writing, self._writing = self._writing, None
        failure = None if writing is None else writing.exception()
        if failure is not None:
            log.error("table not written file=%s reason=%s", self._disk.path(self._file), failure)
        return failure is None

    def _write(self, data: bytes) -> None:
        self._disk.make_directory(ROOT)
        self._disk.write_whole(self._file, data, keep=self._file + ".bak")
        self._last = data

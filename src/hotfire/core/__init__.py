"""The compiled core, or its plain twins where no compiler was to be had.

The names here are the same either way: `Queue`, `Journal` and `Reader`; `Lane` and the scanners are None
without the compiled module, and the rooms that use them go their plain road. HOTFIRE_CORE=plain chooses the
twins on purpose. A compiled module built from other sources than those beside it is refused, because the
worst kind of fast is the fast of last week.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hotfire.core import plain
from hotfire.core.sources import source_hash


def _load() -> tuple[ModuleType | None, str]:
    """The compiled module, or None and why not."""
    if os.environ.get("HOTFIRE_CORE", "") == "plain":
        return None, "HOTFIRE_CORE=plain"
    try:
        module = import_module("hotfire.core._core")
    except ModuleNotFoundError:
        return None, "the compiled core was not built; install a C compiler and reinstall for full speed"
    sources = source_hash(Path(__file__).parent)
    if sources is not None and sources != module.SOURCE_HASH:
        raise ImportError(
            f"the compiled core {module.__file__} was built from sources {module.SOURCE_HASH or 'unknown'}, "
            f"but {sources} lie beside it: run `make install`, or set HOTFIRE_CORE=plain to go without"
        )
    return module, ""


_module, WHY_PLAIN = _load()
COMPILED = _module is not None

if TYPE_CHECKING:
    from hotfire.core._core import (
        Journal,
        KeyIndex,
        Lane,
        Queue,
        Reader,
        derive_records,
        encode_record,
        java_hash,
        read_frame,
        scan_records,
        sync_map,
    )
elif _module is not None:
    KeyIndex = _module.KeyIndex
    Journal, Queue, Reader, Lane = _module.Journal, _module.Queue, _module.Reader, _module.Lane
    scan_records, encode_record = _module.scan_records, _module.encode_record
    derive_records = _module.derive_records
    read_frame, java_hash, sync_map = _module.read_frame, _module.java_hash, _module.sync_map
else:
    KeyIndex = plain.KeyIndex
    Journal, Queue, Reader, Lane = plain.Journal, plain.Queue, plain.Reader, None
    scan_records = derive_records = encode_record = read_frame = java_hash = None
    sync_map = plain.sync_map

__all__ = [
    "COMPILED", "WHY_PLAIN", "Journal", "KeyIndex", "Lane", "Queue", "Reader",
    "derive_records", "encode_record", "java_hash", "read_frame", "scan_records", "sync_map",
]  # fmt: skip

"""Where a stream began, in a file of its own beside the query's checkpoint.

Written once, before Spark hears of it, and never changed: a temporary file, synced, renamed, and the
directory synced. Locations that are not of this machine are written through Arrow's file systems, where a
file appears whole or not at all: here there is no JVM to ask, only a process beside it. What Arrow cannot
open, or has no credentials for, is gone on without, with a warning: the end of the first batch, which Spark
logs, says where it began as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from hotfire.errors import ConfigError
from hotfire.spark.offsets import Offsets, from_json, to_json
from hotfire.spark.sourceoptions import SourceOptions

if TYPE_CHECKING:
    from pyarrow import fs

log = logging.getLogger("hotfire.spark")

FOLDER = "hotfire"
CHOOSE = (
    "subscribe", "subscribePattern", "assign", "tags", "group", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
)  # fmt: skip
ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names for what Arrow knows by another."""

_warned: set[str] = set()


def kept(options: SourceOptions) -> Offsets | None:
    """Where it began; None for a new query, and for one that was not told its checkpoint's place."""
    location = options["checkpointLocation"]
    if location is None:
        return None
    local = _local(location)
    if local is None:
        return _kept_elsewhere(location, _name(options))
    path = local / FOLDER / _name(options)
    try:
        return _read(path.read_bytes(), str(path)) if path.exists() else None
    except OSError as error:
        raise ConfigError(f"checkpointLocation {location}: {error}; make it readable") from None


def keep(options: SourceOptions, offsets: Offsets) -> None:
    location = options["checkpointLocation"]
    if location is None:
        return
    data = json.dumps(to_json(offsets)).encode()
    local = _local(location)
    if local is None:
        _keep_elsewhere(location, _name(options), data)
        return
    try:
        _write(local / FOLDER, _name(options), data)
    except OSError as error:
        raise ConfigError(f"checkpointLocation {location}: {error}; make it writable") from None


def _name(options: SourceOptions) -> str:
    """A query may have several sources: told apart by what they read, and from where."""
    said = json.dumps([str(options[name]) for name in CHOOSE])
    return f"began-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"


def _read(data: bytes, where: str) -> Offsets:
    try:
        return from_json(json.loads(data))
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"{where} does not say where the query began ({error}); it was changed or harmed: put it back, "
            "or begin a new query with a new checkpoint"
        ) from None


# --- on this machine -------------------------------------------------------------------------------


def _local(location: str) -> Path | None:
    parts = urlparse(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location)


def _write(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f".{name}.{os.getpid()}"
    with written.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written.rename(folder / name)
    for directory in (folder, folder.parent):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- elsewhere -------------------------------------------------------------------------------------


def _opened(location: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the place in it."""
    from pyarrow import fs  # takes long to load, and most checkpoints are here

    scheme, colon, rest = location.partition(":")
    system, root = fs.FileSystem.from_uri(ARROW_SCHEMES.get(scheme, scheme) + colon + rest)
    return system, f"{root}/{FOLDER}"


def _kept_elsewhere(location: str, name: str) -> Offsets | None:
    import pyarrow as pa
    from pyarrow import fs

    try:
        system, folder = _opened(location)
        place = f"{folder}/{name}"
        if system.get_file_info(place).type is fs.FileType.NotFound:
            return None
        with system.open_input_stream(place) as file:
            data = file.read()
    except (OSError, pa.ArrowException) as error:
        _warn(location, error)
        return None
    return _read(data, place)


def _keep_elsewhere(location: str, name: str, data: bytes) -> None:
    import pyarrow as pa

    try:
        system, folder = _opened(location)
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/{name}") as file:
            file.write(data)
    except (OSError, pa.ArrowException) as error:
        _warn(location, error)


def _warn(location: str, error: Exception) -> None:
    if location not in _warned:
        _warned.add(location)
        log.warning(
            "checkpointLocation=%s where the query begins is not kept there, but with its first batch and as "
            "offsets of its group only: %s",
            location,
            str(error).partition("\n")[0],
        )

"""The configuration file a broker was started with, kept true when settings change while it runs.

Only lines of changed settings are touched; comments and everything else stay. The file is always whole: the
new text is written beside it, synced and renamed over it. Its path comes from the command line alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.settings import load_properties


class SettingsFile:
    """`key=value` lines."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def keep(self, changed: Mapping[str, str]) -> None:
        """Write these settings down; refused, with nothing changed, when the file cannot be written."""
        try:
            text = self._path.read_text("utf-8")
            self._replace(with_settings(text, changed))
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"configuration file {self._path} cannot be written: {error}; nothing was changed",
            ) from None

    def _replace(self, text: str) -> None:
        beside = self._path.with_name(self._path.name + ".tmp")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.chmod(self._path.stat().st_mode & 0o777)
            beside.replace(self._path)
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def with_settings(text: str, changed: Mapping[str, str]) -> str:
    r"""`text` with these settings in place of the lines that set them, or at its end.

    >>> with_settings("# mine\nlistenPort=1\nbrokerPermission = 6\n", {"brokerPermission": "4", "a": "b"})
    '# mine\nlistenPort=1\nbrokerPermission=4\na=b\n'
    """
    left = dict(changed)
    lines: list[str] = []
    for line in text.splitlines():
        is_part = line.endswith("\\") or (lines and lines[-1].endswith("\\"))
        key = None if is_part else next(iter(load_properties(line)), None)
        if key in changed:
            if key in left:
                lines.append(f"{key}={left.pop(key)}")
            continue  # the last of equal lines would win over ours
        lines.append(line)
    lines += [f"{key}={value}" for key, value in left.items()]
    return "".join(f"{line}\n" for line in lines)

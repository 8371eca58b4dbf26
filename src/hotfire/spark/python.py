"""The Python that Spark's workers are: this one, started so that it need not compile pyspark each time.

Spark puts its own archive of pyspark, and a jar of 15 MB, before everything else that a worker imports. What
Python imports from an archive it compiles anew in every process: six tenths of a second of processor time for
each stream that starts, and for each kind of Spark's workers. Where workers run on this machine the same
pyspark is installed, compiled; they are started by a script that leaves Spark's two out of PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
# Made by hotfire: Python for Spark's workers, which find pyspark where it is installed.
set -f
left=
IFS=:
for place in $PYTHONPATH; do
    case $place in
    '{home}'/python/lib/*.zip | '{home}'/jars/*.jar) ;;
    *) left=${{left:+$left:}}$place ;;
    esac
done
unset IFS
set +f
PYTHONPATH=$left
export PYTHONPATH
exec '{python}' "$@"
"""


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where scripts go that are made once."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hotfire")


def python_of_workers(environ: Mapping[str, str], *, is_local: bool) -> str:
    """The Python that executors start, where nobody said which: this one.

    Through the script where workers run on this machine and use the pyspark that we use: with a SPARK_HOME of
    its own, Spark's may be another.
    """
    found = find_spec("pyspark")
    if not is_local or os.name != "posix" or environ.get("SPARK_HOME") or found is None or not found.origin:
        return sys.executable
    return make_script(sys.executable, Path(found.origin).parent, cache_directory(environ))


def make_script(python: str, home: Path, cache: Path) -> str:
    """The script for this Python and this pyspark, made once; where it cannot be made, the Python itself."""
    if "'" in f"{python}{home}":
        return python
    text = _SCRIPT.format(python=python, home=home)
    script = cache / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if script.exists():
        return str(script)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        being_made = script.with_name(f"{script.name}.{os.getpid()}")
        being_made.write_text(text)
        being_made.chmod(0o755)
        being_made.replace(script)
    except OSError:
        return python  # slower, and as good
    return str(script)

"""One number for the C sources the core was, or would be, built from.

setup.py compiles it into the module and the loader compares the two, so that a module left over from older
sources is refused instead of run. It is loaded by path before the package exists: standard library only.
"""

import hashlib
from pathlib import Path

HASH_DIGITS = 16


def source_hash(directory: Path) -> str | None:
    """Names and bytes of `directory`'s C sources and headers, in name order; None when there is none."""
    paths = sorted(
        (path for path in directory.iterdir() if path.suffix in (".c", ".h")), key=lambda path: path.name
    )
    if not any(path.suffix == ".c" for path in paths):
        return None
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        # the length keeps two files apart, whatever their bytes are
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:HASH_DIGITS]

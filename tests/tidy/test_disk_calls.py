"""In the store, disk.py alone touches the file system: what it does not do, a simulated disk cannot break."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.source import modules

STORE = "src/hotfire/store/"
DISK = STORE + "disk.py"
# of os, what neither reads nor changes a file
OS_ALLOWED = {
    "path",
    "fspath",
    "fsencode",
    "fsdecode",
    "getpid",
    "cpu_count",
    "PathLike",
    "sep",
    "stat_result",
}
MODULES_BANNED = {"shutil", "tempfile", "mmap", "fcntl", "glob", "io"}
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "unlink", "touch", "rmdir", "mkdir"}


def file_calls(tree: ast.Module) -> Iterator[str]:
    """`line: what` for everything in the module that reaches the file system by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            callee = node.func
            if isinstance(callee, ast.Name) and callee.id == "open":
                yield f"{node.lineno}: open()"
            elif (
                isinstance(callee, ast.Attribute)
                and callee.attr in PATH_METHODS
                # the same verbs are fine when it is the disk that is asked
                and not ast.unparse(callee.value).endswith("disk")
            ):
                yield f"{node.lineno}: {ast.unparse(callee)}()"
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "os" and node.attr not in OS_ALLOWED:
                yield f"{node.lineno}: os.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (
                f"{node.lineno}: os.{each.name}" for each in node.names if each.name not in OS_ALLOWED
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
            )
            yield from (f"{node.lineno}: import {name}" for name in names if name in MODULES_BANNED)


def test_only_disk_touches_files() -> None:
    """No module of the store but disk.py opens, writes, syncs, renames or deletes."""
    found = [
        f"{name}:{call}"
        for name, tree in modules().items()
        if name.startswith(STORE) and name != DISK
        for call in file_calls(tree)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('x')", 1),
        ("import os\nos.fsync(3)", 1),
        ("from os import rename", 1),
        ("import mmap", 1),
        ("path.unlink()", 1),
        ("self._disk.unlink('x')\nimport os\nos.path.join('a', 'b')", 0),
    ],
)
def test_the_rule_sees(code: str, expected: int) -> None:
    """The rule finds a call that reaches past the disk, and only such a call."""
    assert len(list(file_calls(ast.parse(code)))) == expected

"""Builds the optional compiled core. Everything else about the package is in pyproject.toml.

Without a compiler the install succeeds and the plain-Python twins do the work. Three variables change that:
HOTFIRE_NO_CORE=1 leaves the core out, HOTFIRE_REQUIRE_CORE=1 makes a failed compilation an error, and
HOTFIRE_SANITIZE=1 builds it with address and undefined-behaviour checks.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
CORE = Path("src/hotfire/core")
COMPILE = ["-std=gnu11", "-Wall", "-Wextra", "-pthread"]
SANITIZE = ["-fno-wrapv", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def load_sources() -> ModuleType:
    """core/sources.py by its path: importing the package would need the module we are about to build."""
    spec = importlib.util.spec_from_file_location("hotfire_core_sources", ROOT / CORE / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def extensions() -> list[Extension]:
    source_hash = load_sources().source_hash(ROOT / CORE)
    if source_hash is None or not (ROOT / CORE / "_core.c").exists():
        return []
    if os.environ.get("HOTFIRE_NO_CORE") == "1":
        print("hotfire: HOTFIRE_NO_CORE=1, the compiled core is left out", file=sys.stderr)
        return []
    sanitize = os.environ.get("HOTFIRE_SANITIZE") == "1"
    return [
        Extension(
            "hotfire.core._core",
            sources=sorted(str(CORE / path.name) for path in (ROOT / CORE).glob("*.c")),
            depends=sorted(str(CORE / path.name) for path in (ROOT / CORE).glob("*.h")),
            define_macros=[("HOTFIRE_SOURCE_HASH", f'"{source_hash}"')],
            extra_compile_args=[*COMPILE, *(["-O1", "-g", "-UNDEBUG", *SANITIZE] if sanitize else ["-O2"])],
            extra_link_args=["-pthread", *(SANITIZE if sanitize else [])],
            optional=os.environ.get("HOTFIRE_REQUIRE_CORE") != "1",
        )
    ]


setup(ext_modules=extensions())

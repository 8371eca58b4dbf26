"""What the page about testing shows runs: each block, and each test it defines."""

import ast
import asyncio
import inspect
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hotfire import Message, Producer
from hotfire.errors import HotfireError
from hotfire.testing import Cluster
from tests.docs.pages import Block, blocks

PAGE = "docs/testing.md"


async def send_many(namesrv: str) -> None:
    """What the page's simulation sends through power cuts and a parted network."""
    async with Producer(namesrv, instance_name="sending") as producer:
        for number in range(60):
            with suppress(HotfireError):
                await producer.send(Message("orders", b"%d" % number))
            await asyncio.sleep(1)


async def show(block: Block, names: dict[str, Any]) -> None:
    """Run the block on a thread, where it may have a loop of its own; what awaits, and its tests, here."""
    before = set(names)
    tree = ast.increment_lineno(ast.parse(textwrap.dedent(block.text)), block.line - 1)
    code = compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = await asyncio.to_thread(eval, code, names)
    if inspect.iscoroutine(result):
        await result
    for name in sorted(set(names) - before):
        if name.startswith("test_") and not inspect.signature(names[name]).parameters:  # others want fixtures
            await (
                names[name]() if inspect.iscoroutinefunction(names[name]) else asyncio.to_thread(names[name])
            )


def test_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block, from the first to the last, in a cluster that each of them may use."""
    program = tmp_path / "our-program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async def run() -> int:
        count = 0
        async with Cluster(proxied=True) as cluster:
            names: dict[str, Any] = {"__name__": "page", "cluster": cluster, "send_many": send_many}
            for block in blocks(PAGE):
                if block.language == "python":
                    count += 1
                    await show(block, names)
        return count

    assert asyncio.run(run()) == 6

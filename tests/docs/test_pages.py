"""What README and the guide show runs: Python and the tour's commands, against a real cluster."""

import ast
import asyncio
import inspect
import logging
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hotfire import cli
from hotfire.testing import Cluster
from hotfire.testing.blocking import BlockingCluster
from tests.docs.examples import ADDRESS, open_shop
from tests.docs.pages import ROOT, Block, blocks

PAGES = ("README.md", "docs/client.md")
PROGRAM_S_MAX = 40.0
ENDED = (0, -signal.SIGINT)
ON_A_CLUSTER = ("send", "tail", "topic", "group", "offset")
"""Commands that are run; the others, and those about a certain queue, must be understood."""

_COMMAND = re.compile(r"^(?P<piped>.*\| *)?(?:\.venv/bin/)?hotfire (?P<words>.+)$")


async def run_in_loop(block: Block, names: dict[str, object]) -> None:
    """As `python -m asyncio` would; tracebacks name the page and its line."""
    tree = ast.increment_lineno(ast.parse(block.text), block.line - 1)
    code = compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)  # noqa: S307  # of our own pages
    if inspect.iscoroutine(result):
        await result


def run_as_program(block: Block, directory: Path) -> None:
    """In a process of its own, where every warning is an error; interrupted when it has shown enough."""
    script = directory / f"line{block.line}.py"
    script.write_text(block.text)
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-u", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    told = []
    late = threading.Timer(PROGRAM_S_MAX, program.kill)
    late.start()
    try:
        for line in program.stdout:
            told.append(line)
            if block.until is not None and block.until in line:
                program.send_signal(signal.SIGINT)
    finally:
        late.cancel()
        program.kill()
        program.wait()
        program.stdout.close()
    said = "".join(told)
    assert block.until is None or block.until in said, f"{block}: {said}"
    assert program.returncode in ENDED, f"{block}: ended with {program.returncode}: {said}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES)
def test_python_of_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of the page, from the first to the last, without an error and without a warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path))

    async def run(namesrv: str) -> int:
        names: dict[str, object] = {"__name__": "page"}
        count = 0
        for block in blocks(page):
            if block.language != "python":
                continue
            count += 1
            here = Block(page, block.line, "python", block.text.replace(ADDRESS, namesrv), block.until)
            if block.is_program:
                await asyncio.to_thread(run_as_program, here, tmp_path)
                continue
            try:
                async with asyncio.timeout(60):
                    await run_in_loop(here, names)
            except Exception as error:
                error.add_note(f"in the block at {block}")
                raise
        return count

    with Cluster() as cluster:
        assert asyncio.run(run(cluster.namesrv))


def commands(page: str) -> list[tuple[Block, str, list[str]]]:
    found = []
    for block in blocks(page):
        for line in block.text.splitlines() if block.language in ("", "sh") else ():
            command = _COMMAND.match(line)
            if command and not command["words"].startswith("ready "):
                words = shlex.split(command["words"], comments=True)
                found.append((block, command["piped"] or "", words))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_pages_run(
    page: str, hotfire_session_cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `hotfire` line is one the command understands, and what needs just a cluster succeeds on one."""
    open_shop(hotfire_session_cluster)
    monkeypatch.setenv("NAMESRV_ADDR", hotfire_session_cluster.namesrv)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    assert commands(page)
    for block, piped, words in commands(page):
        try:
            if words[0] in ON_A_CLUSTER and not piped and "--queue" not in words:
                assert cli.main(words) == 0, f"{block}: hotfire {' '.join(words)}"
            else:
                args, late = cli._parser(words[0]).parse_known_args(words)
                assert not late or args.take_late(args, late), f"{block}: {late}"
        except SystemExit as wrong:
            pytest.fail(f"{block}: hotfire {' '.join(words)}: wrong usage: {wrong}")


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "docs/pipelines.md"])
def test_what_pages_name_is_there(page: str) -> None:
    """Targets of `make` exist, and so do the files and headings that links lead to."""
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / page).read_text()
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    seen: dict[str, int] = {}
    anchors = set()
    for heading in headings:
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        seen[anchor] = seen.get(anchor, -1) + 1
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
    for link in re.findall(r"\]\(([^)]+)\)", text.replace("\n", " ")):
        place, _, anchor = link.partition("#")
        assert not place or place.startswith("http") or (ROOT / page).parent.joinpath(place).exists(), link
        assert place or anchor in anchors, f"{page}: no heading {anchor}"

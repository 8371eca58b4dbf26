"""hotfire store as a person uses it: on a store at rest, on one a broker has, on none at all."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from hotfire.cli import main
from hotfire.cli.progress import Progress
from tests.peers.hotfire import HotfireProcess, executable
from tests.unit.store.driven import tree
from tests.unit.store.test_verify import flip, write_store
from tests.unit.store.test_verify_golden import unpacked
from tests.wire.golden import GOLDEN


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("made") / "store").root


def said(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main(["store", *(str(word) for word in words)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 or captured.out else captured.err


def test_dump_of_a_golden_store_is_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Letter for letter."""
    for name in ("store", "store-ext"):
        lines = said(capsys, "dump", unpacked(name, tmp_path / name)).splitlines()
        assert lines == (GOLDEN / name / "manifest.jsonl").read_text().splitlines()


def test_dump_takes_what_is_asked_for(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By topic, queue and log offset; bodies on demand; queue and index entries instead."""
    every = [json.loads(line) for line in said(capsys, "dump", root).splitlines()]
    rows = [row for row in every if "blank" not in row]
    assert len(rows) == 150
    some = said(capsys, "dump", root, "--topic", "topic-1", "--queue", "1").splitlines()
    wanted = [row for row in rows if (row["topic"], row["queueId"]) == ("topic-1", 1)]
    assert [json.loads(line) for line in some] == wanted
    low, high = rows[40]["physicalOffset"], rows[60]["physicalOffset"]
    part = said(capsys, "dump", root, "--from", low, "--to", high).splitlines()
    assert [json.loads(line) for line in part] == [
        row for row in every if low <= row["physicalOffset"] < high
    ]
    (with_body,) = said(capsys, "dump", root, "--from", low, "--to", low + 1, "--bodies").splitlines()
    assert json.loads(with_body)["body"] == "NDAg" * 41
    assert len(said(capsys, "dump", root, "--queues").splitlines()) == 150
    headers = [json.loads(line) for line in said(capsys, "dump", root, "--index").splitlines()]
    assert sum("indexCount" in row for row in headers) == len(list((root / "index").iterdir()))


def test_info_shows_the_store(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranges, queues, index headers and marks, for people and as JSON; the directory stays as it is."""
    before = tree(root)
    text = said(capsys, "info", root)
    assert "closed cleanly" in text
    assert "topic-2/1  min 0  max 25" in text
    facts = json.loads(said(capsys, "info", root, "--json", "--count"))
    assert facts["log"]["records"] == 150
    assert facts["log"]["end"] == facts["checkpoint"]["durable"]
    assert facts["indexShape"] == [16, 60]
    assert tree(root) == before


def test_verify_says_what_is_wrong(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0 and a summary when sound; else a line with file and byte, a summary, status 1."""
    assert said(capsys, "verify", root).startswith("150 records, 150 queue entries, 432 keys: sound")
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    flip(copy, "consumequeue/topic-1/0/00000000000000000140", 21, 5)
    lines = said(capsys, "verify", copy, code=1).splitlines()
    assert lines[0].startswith("consumequeue/topic-1/0/00000000000000000140 byte 20: entry 8 of topic-1/0")
    assert lines[-1].endswith("1 damaged places")
    said(capsys, "rebuild", copy)
    said(capsys, "verify", copy)


def test_errors_say_what_to_do(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No directory, no store, sizes that do not fit."""
    assert "is not a directory" in said(capsys, "info", tmp_path / "none", code=1)
    assert "is not a store: it has no commitlog" in said(capsys, "verify", tmp_path, code=1)
    wrong = said(capsys, "verify", root, "--index-slots", 17, "--index-entries", 60, code=1)
    assert "17 slots and 60 entries make" in wrong
    with pytest.raises(SystemExit) as stopped:
        main(["store", "verify", str(root), "--delay-levels", "soon"])
    assert stopped.value.code == 2


def test_a_store_in_use_is_only_looked_at(tmp_path: Path) -> None:
    """Beside a running broker info and dump work; verify and rebuild name the lock and its process."""
    with HotfireProcess(tmp_path) as running:
        store = next(path.parent for path in tmp_path.rglob("commitlog"))
        environment = {"NAMESRV_ADDR": running.namesrv, "PATH": "/usr/bin:/bin"}

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [str(executable()), *words]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=30, env=environment, check=False
            )

        assert run("send", "t", "hello", "--key", "k").returncode == 0
        for action in ("verify", "rebuild"):
            refused = run("store", action, str(store))
            assert refused.returncode == 1
            assert "is in use: process " in refused.stderr
            assert str(store / "lock") in refused.stderr
        assert "open, by process" in run("store", "info", str(store)).stdout
        for _ in range(50):
            dumped = run("store", "dump", str(store), "--topic", "t", "--bodies")
            if dumped.stdout:
                break
        assert json.loads(dumped.stdout)["body"] == "aGVsbG8="
        assert run("send", "t", "again").returncode == 0, "the broker lost its lock or its mind"


def test_progress_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes done, rate and time left, written over and taken away at the end."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        progress = Progress("verifying", 1000, 1000 + (4 << 20))
        progress._began -= 2
        progress._shown_at -= 2
        progress(1000 + (2 << 20))
        progress(1000 + (3 << 20))
        progress.clear()
        shown = ""
        while shown.count("\r") < 2 or not shown.endswith("\x1b[K"):
            shown += os.read(ours, 1000).decode()
    os.close(ours)
    assert re.fullmatch(r"\r\x1b\[Kverifying: 2 MiB of 4 MiB, [\d.]+ [KM]iB/s, \d+ s left\r\x1b\[K", shown), (
        shown
    )


def test_ctrl_c_ends_a_rebuild_cleanly(root: Path, tmp_path: Path) -> None:
    """Status 130, no traceback, the store as it was and nothing left behind."""
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    before = tree(copy)
    script = (
        "import os, signal, sys, hotfire.store.rebuild as r\n"
        "r._swap = lambda layout: os.kill(os.getpid(), signal.SIGINT)\n"
        "from hotfire.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    python = executable().parent / "python"
    command = [str(python), "-c", script, "store", "rebuild", str(copy)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert tree(copy) == before

"""Small tables: whole on disk at any moment, and a damaged one is not believed."""

import os
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import StoreCorrupt
from hotfire.store.disk import Disk
from hotfire.store.tables import Table

OLD = {"topicConfigTable": {"old": {"perm": 6}}, "offsetTable": {"t@g": {0: 10, 1: 12}}}
NEW = {"topicConfigTable": {"new": {"perm": 4}}, "offsetTable": {"t@g": {0: 11, 1: 12}}}
STEPS = ("open", "pwrite", "fsync", "unlink", "link", "rename")


class PowerCut(BaseException):
    """Nothing after this happens."""


def saved(root: Path, *trees: dict[str, Any]) -> Table:
    table = Table(Disk(root), "topics.json")
    for tree in trees:
        table.save(tree)
    return table


def loaded(root: Path) -> dict[str, Any] | None:
    return Table(Disk(root), "topics.json").load()


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """A table never written is None; one that was is the same tree, integer keys as integers."""
    assert loaded(tmp_path) is None
    saved(tmp_path, OLD)
    assert loaded(tmp_path) == OLD
    saved(tmp_path, NEW)
    assert loaded(tmp_path) == NEW


def test_the_table_before_stays_beside(tmp_path: Path) -> None:
    """`.bak` is the last version but one."""
    saved(tmp_path, OLD, NEW)
    (tmp_path / "config" / "topics.json").unlink()
    assert loaded(tmp_path) == OLD


def test_a_save_without_a_change_writes_nothing(tmp_path: Path) -> None:
    """Equal content costs no write, and does not push the older version out of `.bak`."""
    table = saved(tmp_path, OLD, NEW)
    before = (tmp_path / "config" / "topics.json").stat().st_ino
    table.save(NEW)
    assert (tmp_path / "config" / "topics.json").stat().st_ino == before


def test_half_a_file_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut anywhere, or of the wrong kind: the `.bak` is used, and that is said."""
    saved(tmp_path, OLD, NEW)
    file = tmp_path / "config" / "topics.json"
    whole = file.read_bytes()
    for damaged in (*(whole[:size] for size in range(len(whole))), b"[1, 2]", bytes(len(whole))):
        file.write_bytes(damaged)
        caplog.clear()
        assert loaded(tmp_path) == OLD, damaged
        assert "table not believed, used its .bak instead" in caplog.text
        assert str(file) in caplog.text


def test_a_damaged_table_does_not_replace_its_bak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the `.bak` had to be used, a power cut in the middle of the next save still leaves one whole."""
    for step in STEPS:
        saved(tmp_path, OLD, NEW)
        (tmp_path / "config" / "topics.json").write_bytes(b"{")
        table = Table(Disk(tmp_path), "topics.json")
        assert table.load() == OLD
        cut_at(monkeypatch, step, lambda table=table: table.save(NEW))
        assert loaded(tmp_path) in (OLD, NEW), step


def test_both_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    """Without a sound copy there is no guessing: both files are named, and what to do."""
    saved(tmp_path, OLD, NEW)
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).write_bytes(b"{")
    with pytest.raises(StoreCorrupt, match=r"topics\.json: .*topics\.json\.bak: .*restore it from a copy"):
        loaded(tmp_path)


def test_a_power_cut_at_any_step_leaves_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old or new, never a mixture and never nothing, whichever system call is the last."""
    seen = []
    for step in STEPS:
        root = tmp_path / step
        table = saved(root, {"first": 1}, OLD)
        cut_at(monkeypatch, step, lambda table=table: table.save(NEW))
        seen.append(loaded(root))
        assert seen[-1] in (OLD, NEW), step
        saved(root, NEW)
        assert loaded(root) == NEW
    assert OLD in seen


def cut_at(monkeypatch: pytest.MonkeyPatch, step: str, work: Any) -> None:
    """Run `work` with the power going just before the system call `step`."""

    def cut(*_: Any, **__: Any) -> Any:
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(os, step, cut)
        with pytest.raises(PowerCut):
            work()

"""Batches as files: each row in exactly one, whatever dies when; small files are put together."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import ConfigError
from hotfire.spark import archiving
from hotfire.spark.batches import NOTES_KEPT, Batches, Merge, Origin
from hotfire.spark.files import Files, LocalFiles, is_hidden

DAY = "date=2026-01-31"
FOLDERS = (f"topic=a/{DAY}", f"topic=b/{DAY}")
BATCHES = 4
ORIGIN = Origin("query-1", ("a", "b"))


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, and not machines: nothing needs to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Died(BaseException):
    """As if the process were killed: nothing catches it."""


class Mortal:
    """Files that die at the n-th change, before it or right after it."""

    def __init__(self, files: LocalFiles, at: int, *, after: bool) -> None:
        self._files, self._left, self._after = files, at, after
        self.root = files.root

    def __getattr__(self, name: str) -> Any:
        done = getattr(self._files, name)
        return self._deadly(done) if name in ("put", "put_new", "move", "remove", "make_safe") else done

    def _deadly(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Died
            result = change(*args)
            if self._left == 0:
                raise Died
            return result

        return act


def rows_of(batch: int) -> list[str]:
    return [f"{batch}-{number}" for number in range(6)]


def write_rows(batch: int) -> Callable[[str], None]:
    """As Spark would: parts in directories, and what is beside them."""

    def write(to: str) -> None:
        rows = rows_of(batch)
        for folder, part in zip(FOLDERS, (rows[:2], rows[2:]), strict=True):
            path = Path(to, folder)
            path.mkdir(parents=True)
            (path / "part-0.parquet").write_text("".join(f"{row}\n" for row in part))
            (path / ".part-0.parquet.crc").write_text("checksum")
        Path(to, "_SUCCESS").write_text("")

    return write


def merge_rows(root: Path, merge: Merge) -> Callable[[str], None]:
    def write(to: str) -> None:
        Path(to).mkdir(parents=True)
        Path(to, "part-0.parquet").write_text("".join((root / name).read_text() for name in merge.inputs))

    return write


def visible(root: Path) -> list[str]:
    return [
        name for path in root.rglob("*.parquet") if not is_hidden(name := path.relative_to(root).as_posix())
    ]


def rows_in(root: Path, names: list[str]) -> Counter[str]:
    return Counter(row for name in names for row in (root / name).read_text().splitlines())


def live(files: Any, root: Path, batches_count: int, first: int) -> Iterator[int]:
    """One life of a writer, from batch `first` on: yields what it has finished."""
    batches = Batches(files)
    batches.open(ORIGIN.topics, ORIGIN.query, is_alone=True, now_ms=0)
    batches.sign(ORIGIN)
    for batch in range(first, batches_count):
        batches.add(batch, write_rows(batch))
        if batch % 3 == 2:
            for merge in batches.merges():
                batches.merge(merge, merge_rows(root, merge))
        yield batch


def lives(root: Path, at: int, *, after: bool) -> bool:
    """A life that ends at its `at`-th change, and one that goes on; False if the first one lived."""
    done = -1
    died = False
    files = LocalFiles(root)
    try:
        for finished in live(Mortal(files, at, after=after), root, BATCHES, 0):
            done = finished
    except Died:
        died = True
    # what a reader sees in between: nothing twice, and nothing missing of what was finished
    readable = Batches(files).readable()
    seen = rows_in(root, visible(root) if readable is None else readable)
    assert not seen or max(seen.values()) == 1
    assert {row for batch in range(done + 1) for row in rows_of(batch)} <= set(seen)
    # Spark gives the batch again that it does not know to be done
    for _ in live(files, root, BATCHES, done + 1):
        pass
    assert rows_in(root, visible(root)) == Counter(row for batch in range(BATCHES) for row in rows_of(batch))
    assert Batches(files).readable() is None
    assert not list((root / "_hotfire/staging").rglob("*.parquet"))
    return died


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_row_is_there_once_wherever_a_writer_dies(tmp_path: Path, after: bool) -> None:
    """Killed at each change to the disk in turn, the next life leaves each row in exactly one file; readers
    who know of merges under way never see one twice, nor miss one that was finished."""
    at = 1
    while lives(tmp_path / str(at), at, after=after):
        at += 1
    assert at > 30, "there were that many places to die at"


def test_a_batch_that_comes_again_is_not_read_again(tmp_path: Path) -> None:
    """Spark gives a batch again after a crash: what it came to is decided, its messages may be gone."""
    batches = Batches(LocalFiles(tmp_path))
    batches.add(0, write_rows(0))

    def write(to: str) -> None:
        raise AssertionError("it is there already")

    assert len(batches.add(0, write)) == 2


def test_files_removed_by_hand_are_told(tmp_path: Path) -> None:
    """A part that is neither aside nor in its place was taken away by someone: no row is lost in silence."""
    files = LocalFiles(tmp_path)
    with pytest.raises(Died):  # right after the note is there
        Batches(Mortal(files, 4, after=True)).add(0, write_rows(0))  # type: ignore[arg-type]
    assert files.exists("_hotfire/batches/000000000000.json")
    next(iter(tmp_path.rglob("part-0.parquet"))).unlink()
    with pytest.raises(ConfigError, match=r"neither .* nor .* is there"):
        Batches(files).open(ORIGIN.topics, ORIGIN.query, is_alone=True, now_ms=0)


@pytest.mark.parametrize(
    ("query", "topics", "says"),
    [
        (None, ("a", "b"), "this one is a new one: messages would come twice"),
        ("query-2", ("a", "b"), "this one is another query's"),
        ("query-1", ("a",), "holds topics b too"),
    ],
)
def test_an_archive_is_not_mixed_up(
    tmp_path: Path, query: str | None, topics: tuple[str, ...], says: str
) -> None:
    """A lost checkpoint, another one, or a topic left out would bring messages twice: refused."""
    Batches(LocalFiles(tmp_path)).sign(ORIGIN)
    with pytest.raises(ConfigError, match=says):
        Batches(LocalFiles(tmp_path)).open(topics, query, is_alone=True, now_ms=0)


def test_a_topic_may_join(tmp_path: Path) -> None:
    """More topics than before are no mistake."""
    Batches(LocalFiles(tmp_path)).sign(ORIGIN)
    Batches(LocalFiles(tmp_path)).open(("a", "b", "c"), "query-1", is_alone=True, now_ms=0)


def test_an_older_checkpoint_is_noticed(tmp_path: Path) -> None:
    """A checkpoint restored from a backup gives batches again whose notes are gone: refused."""
    batches = Batches(LocalFiles(tmp_path))
    for batch in range(NOTES_KEPT + 5):
        batches.add(batch, lambda to: None)
    with pytest.raises(ConfigError, match="older copy of itself"):
        batches.add(2, write_rows(2))
    assert len(list((tmp_path / "_hotfire/batches").iterdir())) == NOTES_KEPT


def fill(root: Path, folder: str, *sizes: int) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for at, size in enumerate(sizes):
        (root / folder / f"f{at}.parquet").write_bytes(b"x" * size)


def test_small_files_are_put_together_when_it_is_worth_it(tmp_path: Path) -> None:
    """Of a day that is over, any two; of one that goes on, eight; large ones never."""
    fill(tmp_path, "topic=a/date=1", 10, 10, 900)
    fill(tmp_path, "topic=b/date=1", 10, 900)
    fill(tmp_path, "topic=a/date=2", *[10] * 7)
    fill(tmp_path, "topic=b/date=2", *[10] * 8)
    batches = Batches(LocalFiles(tmp_path), file_bytes=1000)
    found = {
        merge.inputs[0].rpartition("/")[0]: len(merge.inputs)
        for merge in batches.merges(open_folder="date=2")
    }
    assert found == {"topic=a/date=1": 2, "topic=b/date=2": 8}
    assert not batches.merges(["topic=b/date=1", "topic=c/date=9"])


def test_no_file_grows_past_its_size(tmp_path: Path) -> None:
    """As many files as their bytes want; where that would change nothing, nothing is done."""
    fill(tmp_path, "d", *[499] * 9)
    (merge,) = Batches(LocalFiles(tmp_path), file_bytes=1000).merges()
    assert (len(merge.inputs), merge.file_count) == (9, 5)


def test_what_others_write_aside_is_theirs(tmp_path: Path) -> None:
    """Where nobody can be locked out, only what is a day old is cleared away."""
    files = LocalFiles(tmp_path)
    files.put("_hotfire/staging/other/b0/part.parquet", b"x")
    now_ms = time.time_ns() // 1_000_000
    Batches(files).open((), None, is_alone=False, now_ms=now_ms)
    assert files.exists("_hotfire/staging/other")
    Batches(files).open((), None, is_alone=False, now_ms=now_ms + 25 * 3600 * 1000)
    assert not files.exists("_hotfire/staging/other")


# --- files ---------------------------------------------------------------------------------------------


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second one is told who the first is; when that has ended, the lock is free."""
    with LocalFiles(tmp_path).locked("lock") as is_alone:
        assert is_alone
        with (
            pytest.raises(ConfigError, match=r"is being written by process \d+"),
            LocalFiles(tmp_path).locked("lock"),
        ):
            pass
    with LocalFiles(tmp_path).locked("lock"):
        pass


def test_local_files_keep_their_promises(tmp_path: Path) -> None:
    """Done twice is done once; a file is replaced at once, and made anew by one only."""
    check_files(LocalFiles(tmp_path))


def check_files(files: Files) -> None:
    assert files.below("nothing") == []
    assert files.read("nothing") is None
    assert files.put_new("a/one", b"1")
    assert not files.put_new("a/one", b"2")
    assert files.read("a/one") == b"1"
    files.put("a/one", b"12")
    files.put("a/b/two", b"2")
    assert [(found.name, found.size) for found in files.below("a") if not is_hidden(found.name)] == [
        ("a/b/two", 1),
        ("a/one", 2),
    ]
    for _ in range(2):
        files.move("a/one", "c/d/one")
    assert (files.read("a/one"), files.read("c/d/one")) == (None, b"12")
    files.put("a/one", b"new")
    files.move("a/one", "c/d/one")
    assert files.read("c/d/one") == b"new"
    with pytest.raises(ConfigError, match="neither"):
        files.move("a/one", "nowhere")
    for _ in range(2):
        files.remove("a")
        files.remove("c/d/one")
    assert [found.name for found in files.below("") if not is_hidden(found.name)] == []


class Listing:
    """What a session's reader does with an archive: it lists the files, by when others may be at work."""

    def __init__(self, root: Path, meanwhile: Callable[[], object]) -> None:
        self._root = root
        self._meanwhile = [meanwhile]
        self.read = self

    def parquet(self, *paths: str) -> list[str]:
        listed = visible(self._root)
        while self._meanwhile:
            self._meanwhile.pop()()
        return listed


def test_an_archive_put_together_while_it_is_listed_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files put together from beginning to end between two looks leave no note: their names tell."""
    files = LocalFiles(tmp_path)
    monkeypatch.setattr(archiving, "files_of", lambda *_: files)
    for _ in live(files, tmp_path, 2, 0):
        pass
    batches = Batches(files)

    def merge_all() -> None:
        for merge in batches.merges():
            batches.merge(merge, merge_rows(tmp_path, merge))

    found: Any = archiving.read_archive(Listing(tmp_path, merge_all), str(tmp_path))  # type: ignore[arg-type]
    assert sorted(found) == sorted(visible(tmp_path))
    assert rows_in(tmp_path, found) == Counter(row for batch in range(2) for row in rows_of(batch))

"""Batches of a stream as Parquet files, each row in exactly one of them; small files put together.

    DIR/topic=orders/date=2026-01-31/b000000000012-0000.parquet      what everybody reads
    DIR/_hotfire/staging/RUN/…                                       what Spark is writing
    DIR/_hotfire/batches/000000000012.json                           what a batch comes to
    DIR/_hotfire/merges/ID.json                                      what is being put together
    DIR/_hotfire/written-by.json                                     the query, and what it reads

A batch is written aside. Then one file, its note, is put in place, which says where each part goes: that is
the moment from which the batch is part of the archive. Then the parts are moved. Whoever finds a note that is
not done finishes the moves, so a crash anywhere leaves either nothing of a batch, or all of it soon. Spark
gives the same batch again after a crash: with a note there is nothing left to decide. Putting files together
goes the same way: written aside, noted, moved in, and only then the files it was made of removed.

Knows files and notes, not Spark: who calls writes Parquet to the place it is told.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotfire.errors import ConfigError
from hotfire.spark.files import Files, Found, is_hidden
from hotfire.spark.points import reached

HOME = "_hotfire"
CHECKPOINT = f"{HOME}/checkpoint"
LOCK = f"{HOME}/lock"
_STAGING, _NOTES, _MERGES = f"{HOME}/staging", f"{HOME}/batches", f"{HOME}/merges"
_WRITTEN_BY = f"{HOME}/written-by.json"

FILE_BYTES = 128 << 20
SMALL_FILES_MAX = 8
"""So many small files of a day that may still grow are put together; of a day that is over, any two."""
NOTES_KEPT = 100
"""As many batches back as Spark itself can go."""
ABANDONED_MS = 24 * 3600 * 1000
"""Where nobody can be locked out, what others write aside is theirs for a day."""

Write = Callable[[str], None]


class Merge(NamedTuple):
    """Small files of one directory, and into how many they go."""

    inputs: tuple[str, ...]
    file_count: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Who writes here: the query's id in its checkpoint, and what it reads."""

    query: str
    topics: tuple[str, ...]


class Batches:
    """One run's hold on a directory."""

    def __init__(self, files: Files, *, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._run = uuid.uuid4().hex[:12]

    # --- beginning -----------------------------------------------------------------------------------

    def open(
        self, topics: Iterable[str], checkpoint_query: str | None, *, is_alone: bool, now_ms: int
    ) -> None:
        """Finish what a run before this one decided, and clear away what it did not.

        `checkpoint_query` is the id in the checkpoint, None for a new one.
        """
        known = self._origin()
        if known is not None:
            self._refuse_others(known, tuple(topics), checkpoint_query)
        for name in self._named(_NOTES)[-1:]:
            self._finish_batch(name)
        for name in self._named(_MERGES):
            self._finish_merge(name)
        for found in self._files.below(_STAGING):
            run = "/".join(found.name.split("/")[:3])
            if is_alone or now_ms - found.changed_ms > ABANDONED_MS:
                self._files.remove(run)

    def _refuse_others(self, known: Origin, topics: tuple[str, ...], checkpoint_query: str | None) -> None:
        root = self._files.root
        if checkpoint_query != known.query:
            has = "a new one" if checkpoint_query is None else "another query's"
            raise ConfigError(
                f"{root} was written with the checkpoint of query {known.query}, and this one is {has}: "
                "messages would come twice; name the right --checkpoint, or write to a new directory"
            )
        gone = sorted(set(known.topics) - set(topics))
        if gone:
            raise ConfigError(
                f"{root} holds topics {', '.join(gone)} too, which would be forgotten; name them as well, or "
                "write to a new directory"
            )

    def _origin(self) -> Origin | None:
        data = self._files.read(_WRITTEN_BY)
        if data is None:
            return None
        said = json.loads(data)
        return Origin(said["query"], tuple(said["topics"]))

    def sign(self, origin: Origin) -> None:
        if self._origin() != origin:
            self._put(_WRITTEN_BY, {"query": origin.query, "topics": sorted(origin.topics)})

    # --- a batch -------------------------------------------------------------------------------------

    def add(self, batch: int, write: Write) -> list[str]:
        """Have a batch written, unless it is there already; its files' names.

        `write` is given a directory to write partitioned Parquet to.
        """
        name = f"{_NOTES}/{batch:012}.json"
        note = self._note(name)
        if note is None:
            latest = self._latest()
            if latest is not None and latest >= batch:
                raise ConfigError(
                    f"{self._files.root} has batch {latest} already, and the checkpoint is at {batch}: it is "
                    "an older copy of itself; restore the newer one, or write to a new directory"
                )
            aside = f"{_STAGING}/{self._run}/b{batch:012}"
            self._files.remove(aside)
            write(f"{self._files.root}/{aside}")
            moves = self._moves(aside, f"b{batch:012}")
            note = {"batch": batch, "moves": moves, "done": not moves}
            # One that another run has put there meanwhile is what the batch comes to.
            self._files.put_new(name, json.dumps(note).encode())
            reached("archive.noted")
        return self._finish_batch(name)

    def _finish_batch(self, name: str) -> list[str]:
        note = self._note(name)
        assert note is not None, f"{name} was just there"
        moves: list[list[str]] = note["moves"]
        if not note["done"]:
            for number, (source, to) in enumerate(moves, 1):
                self._files.move(source, to)
                if number == max(len(moves) // 2, 1):
                    reached("archive.moved-half")
            # From here on its files may be put together with others, and be gone.
            self._put(name, {**note, "done": True})
        self._clear(source for source, _ in moves)
        for old in self._named(_NOTES)[:-NOTES_KEPT]:
            self._files.remove(old)
        return [to for _, to in moves]

    def _moves(self, aside: str, prefix: str) -> list[list[str]]:
        """From where each part was written to where it goes: its own directory, and a name of ours."""
        moves = []
        for at, found in enumerate(self._parts(aside)):
            self._files.make_safe(found.name)
            folder = found.name.removeprefix(f"{aside}/").rpartition("/")[0]
            moves.append([found.name, "/".join(filter(None, (folder, f"{prefix}-{at:04}.parquet")))])
        return moves

    def _parts(self, aside: str) -> list[Found]:
        """What Spark wrote, without its marks and checksums."""
        return [one for one in self._files.below(aside) if not is_hidden(one.name.removeprefix(f"{aside}/"))]

    def _clear(self, sources: Iterable[str]) -> None:
        for aside in {"/".join(source.split("/")[:4]) for source in sources}:
            self._files.remove(aside)

    def _latest(self) -> int | None:
        names = self._named(_NOTES)
        return int(names[-1].rpartition("/")[2].removesuffix(".json")) if names else None

    # --- small files ---------------------------------------------------------------------------------

    def merges(self, folders: Iterable[str] | None = None, *, open_folder: str = "") -> list[Merge]:
        """Which files to put together, in these directories or in all. One that ends in `open_folder` may
        still grow, and is let be until it is worth it."""
        chosen = None if folders is None else set(folders)
        by_folder: dict[str, list[Found]] = {}
        for found in self._visible() if chosen is None else self._of(chosen):
            by_folder.setdefault(found.name.rpartition("/")[0], []).append(found)
        wanted = []
        for folder, all_files in sorted(by_folder.items()):
            small = [one for one in all_files if one.size < self._file_bytes // 2]
            is_open = bool(open_folder) and folder.endswith(open_folder)
            if len(small) >= (SMALL_FILES_MAX if is_open else 2):
                count = max(-(-sum(one.size for one in small) // self._file_bytes), 1)
                if count < len(small):
                    wanted.append(Merge(tuple(one.name for one in small), count))
        return wanted

    def merge(self, merge: Merge, write: Write) -> None:
        """`write` puts the rows of the inputs into new files in the directory it is given."""
        merge_id = uuid.uuid4().hex[:16]
        aside = f"{_STAGING}/{self._run}/m{merge_id}"
        write(f"{self._files.root}/{aside}")
        folder = merge.inputs[0].rpartition("/")[0]
        moves = [
            [source, "/".join(filter(None, (folder, to)))]
            for source, to in self._moves(aside, f"m{merge_id}")
        ]
        name = f"{_MERGES}/{merge_id}.json"
        self._put(name, {"moves": moves, "inputs": list(merge.inputs)})
        self._finish_merge(name)

    def _finish_merge(self, name: str) -> None:
        note = self._note(name)
        assert note is not None, f"{name} was just there"
        for source, to in note["moves"]:
            self._files.move(source, to)
        reached("archive.merged")
        for one in note["inputs"]:
            self._files.remove(one)
        self._files.remove(name)
        self._clear(source for source, _ in note["moves"])

    # --- reading -------------------------------------------------------------------------------------

    def readable(self) -> list[str] | None:
        """The files that hold each row once, while some are being put together; None when all of them do."""
        notes = [note for name in self._named(_MERGES) if (note := self._note(name)) is not None]
        if not notes:
            return None
        visible = {found.name for found in self._visible()}
        for note in notes:
            made = {to for _, to in note["moves"]}
            # until every one of them is there, the inputs all are
            visible -= set(note["inputs"]) if made <= visible else made
        return sorted(visible)

    def visible(self) -> list[str]:
        """The names of all files that readers see."""
        return [one.name for one in self._visible()]

    def _visible(self) -> list[Found]:
        return [one for one in self._files.below("") if _is_data(one.name)]

    def _of(self, folders: set[str]) -> list[Found]:
        return [
            one
            for folder in sorted(folders)
            for one in self._files.below(folder)
            if _is_data(one.name) and one.name.rpartition("/")[0] == folder
        ]

    # --- notes -----------------------------------------------------------------------------------------

    def _named(self, folder: str) -> list[str]:
        return [one.name for one in self._files.below(folder) if one.name.endswith(".json")]

    def _note(self, name: str) -> dict[str, Any] | None:
        data = self._files.read(name)
        if data is None:
            return None
        try:
            note: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise ConfigError(f"{self._files.root}/{name} is harmed ({error}); restore it") from None
        return note

    def _put(self, name: str, value: dict[str, Any]) -> None:
        self._files.put(name, json.dumps(value).encode())


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not is_hidden(name)

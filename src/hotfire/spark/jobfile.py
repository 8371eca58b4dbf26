"""A job file: YAML whose mistakes are all told, each with its line, before anything is started.

    source, transform, sink, trigger: see `jobkeys`, which declares every key

`read` gives a JobFile, or raises Mistakes. Opens no other file, and asks nobody: the function that a file
names, and the options of formats, are `jobrun`'s to look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from hotfire.errors import ConfigError
from hotfire.spark.jobkeys import AVAILABLE_NOW, BATCH, BATCH_MODES, KEYS, STREAM_MODES, Key, example

__all__ = ["JobFile", "Mistakes", "Sink", "Table", "example", "read"]

_TAG = "tag:yaml.org,2002:"
NO_CHECKPOINT = ("console", "memory", "noop")
"""Sinks that a stream may be shown at without a checkpoint of its own."""


class Mistakes(ConfigError):
    """What is wrong with a job file: one line for each, with its place."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class Table:
    """Something to read; `lines` are where its keys are written, for what is found wrong later."""

    name: str
    format: str
    options: Mapping[str, str]
    path: str | None
    columns: tuple[str, ...]
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sink:
    format: str
    path: str | None
    options: Mapping[str, str]
    mode: str
    partition_by: tuple[str, ...]
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFile:
    file: Path
    name: str
    master: str | None
    source: Table
    tables: tuple[Table, ...]
    sql: str | None
    function: str | None
    sink: Sink
    trigger: str
    checkpoint: str | None
    confs: Mapping[str, str]
    lines: Mapping[str, int]
    """By path: `transform.sql`. Of a text of several lines, where its first one is."""

    @property
    def is_stream(self) -> bool:
        return self.trigger != BATCH

    @property
    def is_endless(self) -> bool:
        return self.trigger not in (BATCH, AVAILABLE_NOW)

    def at(self, path: str, problem: str) -> str:
        """A mistake as it is told."""
        return f"{self.file}:{self.lines.get(path, 1)}: {path}: {problem}"


def read(file: Path) -> JobFile:
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"job file {file}: {error.strerror}; `hotfire pipeline init` writes one") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"job file {file}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    return parse(text, file)


def parse(text: str, file: Path) -> JobFile:
    reading = _Reading(file)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise Mistakes([f"{file}:{line}: {error.problem or 'this is not YAML'}"]) from None
    except yaml.YAMLError as error:
        raise Mistakes([f"{file}:1: {error}"]) from None
    if root is None:
        raise Mistakes([f"{file}:1: the file is empty; `hotfire pipeline init` writes one to begin with"])
    values = reading.section(root, KEYS, "")
    if reading.mistakes:
        raise Mistakes(reading.told())
    job = _made(values, file, reading.lines)
    reading.mistakes += _contradictions(job)
    if reading.mistakes:
        raise Mistakes(reading.told())
    return job


class _Reading:
    """Walks the nodes beside the declarations; collects mistakes and where everything is written."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.mistakes: list[tuple[int, str]] = []
        self.lines: dict[str, int] = {}

    def told(self) -> list[str]:
        return [f"{self.file}:{line}: {problem}" for line, problem in sorted(self.mistakes)]

    def section(self, node: Any, keys: tuple[Key, ...], above: str) -> dict[str, Any]:
        known = {key.name: key for key in keys}
        values: dict[str, Any] = {key.name: key.default for key in keys}
        given = set()
        for name, name_line, held in self._pairs(node, above):
            path = f"{above}{name}"
            if name in given:
                self._wrong(name_line, path, "is written twice")
                continue
            given.add(name)
            key = known.get(name)
            if key is None:
                near = get_close_matches(name, known, 1, 0.6)
                meant = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
                self._wrong(name_line, path, f"there is no such key{meant}")
                continue
            self.lines[path] = _first_line(held, name_line)
            values[name] = self._value(held, key, path)
        for key in keys:
            if key.is_required and key.name not in given and isinstance(node, yaml.MappingNode):
                # the line of what it is missing from
                self._wrong(node.start_mark.line + 1, f"{above}{key.name}", f"is missing: {key.says}")
        return values

    def _value(self, node: Any, key: Key, path: str) -> Any:
        if key.kind == "section":
            return self.section(node, key.inside, f"{path}.")
        if key.kind == "sections":
            return {
                name: self.section(held, key.inside, f"{path}.{name}.")
                for name, _, held in self._pairs(node, f"{path}.")
            }
        if key.kind == "names":
            return self._names(node, path)
        if key.kind == "pairs":
            found = {}
            for name, line, held in self._pairs(node, f"{path}."):
                found[name] = _text_of(held)
                self.lines[f"{path}.{name}"] = line
            return found
        return self._text(node, key, path)

    def _text(self, node: Any, key: Key, path: str) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(_line(node), path, f"one value is wanted here, not {_what(node)}")
            return None
        if node.tag == f"{_TAG}null":
            self._wrong(_line(node), path, "is empty; give a value, or leave the key out")
            return None
        try:
            return key.read(node.value)
        except ValueError as error:
            self._wrong(_line(node), path, f"{node.value!r} must be {error}")
            return None

    def _names(self, node: Any, path: str) -> tuple[str, ...]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(one, yaml.ScalarNode) and one.tag != f"{_TAG}null" for one in nodes):
            self._wrong(_line(node), path, "a list of names is wanted: [one, two]")
            return ()
        return tuple(str(one.value) for one in nodes)

    def _pairs(self, node: Any, above: str) -> Iterator[tuple[str, int, Any]]:
        if not isinstance(node, yaml.MappingNode):
            where = above.rstrip(".") or "the file"
            self._wrong(_line(node), where, f"keys with values are wanted here, not {_what(node)}")
            return
        for name, held in node.value:
            if not isinstance(name, yaml.ScalarNode):
                self._wrong(
                    _line(name), above.rstrip("."), f"a name is wanted before the colon, not {_what(name)}"
                )
                continue
            yield str(name.value), _line(name), held

    def _wrong(self, line: int, path: str, problem: str) -> None:
        self.mistakes.append((line, f"{path}: {problem}"))


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _first_line(node: Any, name_line: int) -> int:
    """Where a value's own text begins: a block's below its `|`."""
    if isinstance(node, yaml.ScalarNode):
        return _line(node) + (1 if node.style in ("|", ">") else 0)
    return name_line


def _what(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "keys with values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if node.tag == f"{_TAG}null" else f"{node.value!r}"


def _text_of(node: Any) -> str:
    """As Spark takes options: text. Lists and mappings become the JSON they stand for."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == f"{_TAG}bool":
            return str(_plain(node)).lower()
        return "" if node.tag == f"{_TAG}null" else str(node.value)
    return json.dumps(_plain(node), default=str)


def _plain(node: Any) -> Any:
    return yaml.constructor.SafeConstructor().construct_document(node)


# --- what the file comes to ------------------------------------------------------------------------------


def _made(values: dict[str, Any], file: Path, lines: Mapping[str, int]) -> JobFile:
    source, sink, transform = values["source"], values["sink"], values["transform"] or {}
    return JobFile(
        file=file,
        name=values["name"] or file.stem,
        master=values["master"],
        source=_table(source["name"], source, "source.", lines),
        tables=tuple(
            _table(name, table, f"tables.{name}.", lines) for name, table in (values["tables"] or {}).items()
        ),
        sql=transform.get("sql"),
        function=transform.get("function"),
        sink=Sink(
            sink["format"],
            sink["path"],
            sink["options"] or {},
            sink["mode"],
            sink["partitionBy"] or (),
            _below("sink.", lines),
        ),
        trigger=values["trigger"],
        checkpoint=values["checkpoint"],
        confs=values["spark"] or {},
        lines=lines,
    )


def _table(name: str, said: dict[str, Any], above: str, lines: Mapping[str, int]) -> Table:
    return Table(
        name, said["format"], said["options"] or {}, said["path"], said["columns"] or (), _below(above, lines)
    )


def _below(above: str, lines: Mapping[str, int]) -> dict[str, int]:
    return {path.removeprefix(above): line for path, line in lines.items() if path.startswith(above)}


def _contradictions(job: JobFile) -> Iterator[tuple[int, str]]:
    """What is right by itself and wrong together."""

    def wrong(path: str, problem: str) -> tuple[int, str]:
        return job.lines.get(path, job.lines.get(path.partition(".")[0], 1)), f"{path}: {problem}"

    if job.sql is not None and job.function is not None:
        yield wrong("transform.function", "sql and function exclude each other; leave one out")
    if "transform" in job.lines and job.sql is None and job.function is None:
        yield wrong(
            "transform", "either sql or function is wanted; leave transform out to write what was read"
        )
    if job.tables and job.sql is None:
        yield wrong("tables", "only sql can use them, and there is none")
    for table in job.tables:
        if table.name == job.source.name:
            yield wrong(f"tables.{table.name}", "the source has this name; set source.name to another")
    modes = STREAM_MODES if job.is_stream else BATCH_MODES
    if job.sink.mode not in modes:
        kind = "stream" if job.is_stream else "batch"
        yield wrong("sink.mode", f"{job.sink.mode!r} of a {kind} must be {' or '.join(modes)}")
    if job.is_stream and job.checkpoint is None and job.sink.format not in NO_CHECKPOINT:
        yield wrong(
            "trigger", "a stream needs a checkpoint: a directory of its own where it keeps how far it is"
        )
    if not job.is_stream and job.checkpoint is not None:
        yield wrong("checkpoint", f"a batch has none; set trigger to {AVAILABLE_NOW}, or leave it out")

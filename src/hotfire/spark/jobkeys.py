"""Every key of a job file, declared once: the parser, the example that `init` writes and the docs read this.

Knows neither YAML nor Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from hotfire.spark.options import span_s

Kind = Literal["text", "names", "pairs", "section", "sections"]
"""`names` is a list of texts, `pairs` maps names to values; `sections` maps names to sections alike."""

WIDTH = 100
BATCH, AVAILABLE_NOW = "batch", "availableNow"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
BATCH_MODES = ("append", "overwrite", "errorifexists", "ignore")
STREAM_MODES = ("append", "update", "complete")


def trigger(value: str) -> str:
    """One of the two words, or Spark's way to write how often."""
    for word in (BATCH, AVAILABLE_NOW):
        if value.lower() == word.lower():
            return word
    try:
        return f"{int(span_s(_short(value)) * 1000)} milliseconds"
    except ValueError:
        raise ValueError(f"{BATCH}, {AVAILABLE_NOW}, or how often, like 30s or 5 minutes") from None


def _short(value: str) -> str:
    """`5 minutes`, as Spark writes it, is `5m` to us."""
    return re.sub(r"\s*(millisecond|second|minute|hour|day)s?$", lambda found: _UNITS[found[1]], value)


_UNITS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


def function(value: str) -> str:
    if not _FUNCTION.fullmatch(value):
        raise ValueError("module:function")
    return value


def view(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("a name of letters, digits and underscores")
    return value


def mode(value: str) -> str:
    if value not in {*BATCH_MODES, *STREAM_MODES}:
        raise ValueError(" or ".join(dict.fromkeys((*BATCH_MODES, *STREAM_MODES))))
    return value


def any_text(value: str) -> str:
    if not value.strip():
        raise ValueError("some text")
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """One key: what it says to a person, what it is, and how it looks in the example.

    `read` takes the text of a `text`, and raises ValueError with what would do. In the example it is written
    out when it is `shown`, and behind a `#` when it is not.
    """

    name: str
    kind: Kind
    says: str
    example: Any = None
    default: Any = None
    read: Callable[[str], str] = any_text
    inside: tuple[Key, ...] = ()
    is_required: bool = False
    is_shown: bool = False


_TABLE = (
    Key("format", "text", "a format of Spark's: hotfire, hotfire-store, parquet, ...", "hotfire", "hotfire",
        is_shown=True),
    Key("options", "pairs", "what the format takes, as in docs/spark.md",
        {"subscribe": "orders", "startingOffsets": "earliest"}, is_shown=True),
    Key("path", "text", "what the format loads, where that is a path", "/data/archive"),
    Key("columns", "names", "only these columns are read; all of them when not given",
        ["tags", "body", "storeTimestamp"]),
)  # fmt: skip

KEYS = (
    Key("name", "text", "what Spark calls the application; the file's name when not given", "paid-orders",
        is_shown=True),
    Key("master", "text", "Spark's master; --master goes before it", "local[*]"),
    Key("source", "section", "what is read", is_required=True, is_shown=True, inside=(
        *_TABLE,
        Key("name", "text", "what SQL calls it", "messages", "messages", view),
    )),
    Key("tables", "sections", "more that SQL may use, read as batches; each is as a source, under its name",
        {"customers": {"format": "parquet", "path": "/data/customers"}}, inside=_TABLE),
    Key("transform", "section", "what becomes of it; left out, it is written as it was read", is_shown=True,
        inside=(
            Key("sql", "text", "a query over the source and the tables",
                "SELECT keys, CAST(body AS STRING) AS body, storeTimestamp\n"
                "FROM messages\n"
                "WHERE tags = 'paid'\n", is_shown=True),
            Key("function", "text",
                "instead: module:function, from DataFrame to DataFrame; beside this file, or installed",
                "changes:only_paid", read=function),
        )),
    Key("sink", "section", "where it goes", is_required=True, is_shown=True, inside=(
        Key("format", "text", "a format of Spark's: parquet, hotfire, console, ...", "parquet",
            is_required=True, is_shown=True),
        Key("path", "text", "where the format writes to, where that is a path", "out/paid-orders",
            is_shown=True),
        Key("options", "pairs", "what the format takes", {"compression": "zstd"}),
        Key("mode", "text", f"of a batch {', '.join(BATCH_MODES)}; of a stream {', '.join(STREAM_MODES)}",
            "append", "append", mode),
        Key("partitionBy", "names", "columns that become directories", ["tags"]),
    )),
    Key("trigger", "text",
        f"{BATCH}: read once, no checkpoint; {AVAILABLE_NOW}: a stream up to what is there now, "
        "for schedules; or a stream that goes on, so often: 30s, 5 minutes",
        AVAILABLE_NOW, BATCH, trigger, is_shown=True),
    Key("checkpoint", "text", "where a stream keeps how far it is; every stream needs one of its own",
        "out/paid-orders.checkpoint", is_shown=True),
    Key("spark", "pairs", "settings of Spark's; --conf goes before them",
        {"spark.sql.shuffle.partitions": 8}),
)  # fmt: skip


def each(keys: tuple[Key, ...] = KEYS, above: str = "") -> Iterator[tuple[str, Key]]:
    """Every key by the names that lead to it, for the docs."""
    for key in keys:
        path = f"{above}{key.name}"
        yield path, key
        if key.kind in ("section", "sections"):
            yield from each(key.inside, f"{path}." if key.kind == "section" else f"{path}.NAME.")


def example() -> str:
    """A job file that can be run, each key explained."""
    lines = [
        "# A job: read, change, write. Run it with `hotfire pipeline run FILE`; mistakes are told by line.",
        "# What is behind a # is what else can be said.",
    ]
    for key in KEYS:
        lines += ["", *_example(key, 0, key.is_shown)]
    return "\n".join(lines) + "\n"


def _example(key: Key, depth: int, is_shown: bool) -> Iterator[str]:
    indent = "  " * depth
    yield from (f"{indent}# {line}" for line in wrap(key.says, WIDTH - len(indent) - 2))
    mark = "" if is_shown else "# "
    if key.kind == "section":
        yield f"{indent}{mark}{key.name}:"
        for inner in key.inside:
            yield from _example(inner, depth + 1, is_shown and inner.is_shown)
        return
    written = list(_written(key.name, key.example))
    yield from (f"{indent}{mark}{line}" for line in written)


def _written(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{name}:"
        for inner, held in value.items():
            yield from (f"  {line}" for line in _written(inner, held))
    elif isinstance(value, list):
        yield f"{name}: [{', '.join(value)}]"
    elif "\n" in str(value):
        yield f"{name}: |"
        yield from (f"  {line}" for line in str(value).splitlines())
    else:
        yield f"{name}: {value}"

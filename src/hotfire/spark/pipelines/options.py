"""The options of a pipeline as fields of a dataclass, declared once: command line, help and the docs' table.

A field `file_bytes` is the option `--file-bytes`; `flags` names it otherwise. Its type says how often it may
come and what becomes of it: `bool` is a switch, `tuple[str, ...]` may be given again and again. `read` turns
the text into a value, or raises ValueError with what would do, as the readers of `hotfire.spark.options` do.

Imported for help: knows neither Spark nor the client.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from hotfire.errors import ConfigError
from hotfire.places import DEFAULT_NAMESRV, TIME_HELP, Place, start_place
from hotfire.spark.options import names, text

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Declared = TypeVar("Declared", bound="Common")
Read = Callable[[str], Any]

REQUIRED: Any = object()
_KEY = "hotfire.option"


class Option(NamedTuple):
    """One option as its readers see it."""

    field: str
    flags: tuple[str, ...]
    default: Any
    says: str
    metavar: str
    read: Read
    is_switch: bool
    is_repeated: bool
    choices: tuple[str, ...]

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


def option(
    says: str,
    default: Any = REQUIRED,
    *,
    read: Read = text,
    metavar: str = "",
    flags: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of an options dataclass. Without a default it must be given."""
    metadata = {"says": says, "read": read, "metavar": metavar, "flags": flags, "choices": choices}
    if default is REQUIRED:
        return dataclasses.field(metadata={_KEY: metadata})
    return dataclasses.field(default=default, metadata={_KEY: metadata})


def options_of(declared: type[Common]) -> Iterator[Option]:
    """Every option; the pipeline's own first, what all of them have last."""
    hints = get_type_hints(declared)
    shared = {field.name for field in dataclasses.fields(Common)}
    for field in sorted(dataclasses.fields(declared), key=lambda one: one.name in shared):
        said = field.metadata[_KEY]
        flags = said["flags"] or ("--" + field.name.rstrip("_").replace("_", "-"),)
        yield Option(
            field=field.name,
            flags=flags,
            default=REQUIRED if field.default is dataclasses.MISSING else field.default,
            says=said["says"],
            metavar=said["metavar"] or flags[-1].lstrip("-").upper(),
            read=said["read"],
            is_switch=hints[field.name] is bool,
            is_repeated=hints[field.name] == tuple[str, ...] and said["read"] is text,
            choices=said["choices"],
        )


# --- the command line ------------------------------------------------------------------------------


def parse(declared: type[Declared], words: Sequence[str], *, prog: str, says: str) -> Declared:
    """What the words of a command line spell; wrong ones end the program with 2, `--help` with 0."""
    args = parser_of(declared, prog=prog, says=says).parse_args(words)
    repeated = {one.field for one in options_of(declared) if one.is_repeated}
    values = {key: tuple(value) if key in repeated else value for key, value in vars(args).items()}
    make: Callable[..., Declared] = declared
    return make(**values)


def parser_of(declared: type[Common], *, prog: str, says: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=says, allow_abbrev=False)
    for one in options_of(declared):
        rest: dict[str, Any] = {"dest": one.field, "required": one.is_required, "help": _help(one)}
        if not one.is_required:
            rest["default"] = one.default
        if one.is_switch:
            rest["action"] = argparse.BooleanOptionalAction if one.default else "store_true"
        else:
            rest["type"] = _typed(one.read)
            rest["metavar"] = one.metavar
            if one.is_repeated:
                rest["action"] = "append"
                rest["default"] = list(one.default)
            if one.choices:
                rest["choices"] = one.choices
                rest["metavar"] = "|".join(one.choices)
        parser.add_argument(*one.flags, **rest)
    return parser


def _help(one: Option) -> str:
    says = one.says.replace("%", "%%")
    shown = not one.is_switch and not one.is_required and one.default not in (None, (), "")
    return f"{says} ({shown_default(one)})" if shown else says


def shown_default(one: Option) -> str:
    """As a person would write it."""
    default = one.default
    if isinstance(default, Place):
        return default.kind
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1 << 20:
        return f"{default >> 20}m"
    return str(default).replace("%", "%%")


def _typed(read: Read) -> Read:
    """What would do, in argparse's own kind of complaint."""

    def checked(value: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{value!r} must be {error}") from None

    return checked


def pair(value: str) -> str:
    """`KEY=VALUE`, kept as it is."""
    key, equals, _ = value.partition("=")
    if not key.strip() or not equals:
        raise ValueError("KEY=VALUE")
    return value


# --- what all of them have, and what those that read a topic have -----------------------------------


@dataclass(frozen=True, kw_only=True)
class Common:
    """Where Spark runs, and which cluster is meant."""

    namesrv: str | None = option(
        f"name servers, host:port;host:port; NAMESRV_ADDR, or {DEFAULT_NAMESRV}, when not given", None,
        metavar="ADDRS", flags=("-n", "--namesrv"),
    )  # fmt: skip
    tls: bool = option("speak TLS to name servers and brokers", False)
    master: str | None = option(
        "Spark's master: local[4], spark://host:7077, yarn, k8s://…; local[*] when nothing says otherwise",
        None, metavar="URL",
    )  # fmt: skip
    conf: tuple[str, ...] = option("a setting of Spark's; may be given again", (), metavar="KEY=VALUE")
    name: str | None = option("what Spark calls the application", None)
    spark_log: str = option(
        "what Spark itself logs", "off", choices=("off", "error", "warn", "info"), metavar="LEVEL"
    )

    def connection(self) -> dict[str, str]:
        """The options of format `hotfire` that say which cluster is meant."""
        return {"nameServers": self.name_servers, "tls": str(self.tls).lower()}

    @property
    def name_servers(self) -> str:
        return self.namesrv or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV

    def confs(self) -> dict[str, str]:
        given = {}
        for word in self.conf:
            key, equals, value = word.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"--conf {word}: expected KEY=VALUE")
            given[key.strip()] = value
        return given


@dataclass(frozen=True, kw_only=True)
class Reading(Common):
    """What reads topics from a cluster; `source()` makes options of format `hotfire` of it."""

    topic: tuple[str, ...] = option("the topic, or several with commas between", read=names)
    from_: Place = option(
        f"where a new run begins: earliest, latest or a time; {TIME_HELP}", Place("earliest"),
        read=start_place, metavar="PLACE",
    )  # fmt: skip
    tags: str = option(
        "only messages with these tags, an expression as of `hotfire tail`", "*", metavar="EXPRESSION"
    )
    group: str | None = option(
        "a consumer group that begins where it is, and whose offsets show how far this is", None
    )
    allow_loss: bool = option("go on when messages to be read are there no more", False)

    def source(self) -> dict[str, str]:
        """The options of format `hotfire`, for a stream or a batch."""
        said = {**self.connection(), "subscribe": ",".join(self.topic), "tags": self.tags}
        said |= starting(self.from_)
        said["failOnDataLoss"] = str(not self.allow_loss).lower()
        if self.group is not None:
            said["group"] = self.group
        return said


def trigger(writer: DataStreamWriter, every_s: float | None) -> DataStreamWriter:
    """What is there now and then the end, or a batch so often and no end."""
    if every_s is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{max(int(every_s * 1000), 1)} milliseconds")


def starting(place: Place) -> dict[str, str]:
    """
    >>> starting(Place("earliest")), starting(Place("time", 5))["startingTimestamp"]
    ({'startingOffsets': 'earliest'}, '5')
    """
    if place.kind == "time":
        # a queue that holds nothing so late is no mistake of who names a time
        return {"startingTimestamp": str(place.value), "startingOffsetsByTimestampStrategy": "latest"}
    if place.kind == "offset":
        raise ConfigError(
            f"--from {place.value}: earliest, latest or a time; offsets differ from queue to queue"
        )
    return {"startingOffsets": place.kind}


def ending(place: Place | None) -> dict[str, str]:
    """The same for where a batch ends.

    >>> ending(None), ending(Place("time", 5))
    ({}, {'endingTimestamp': '5'})
    """
    if place is None or place.kind == "latest":
        return {}
    if place.kind != "time":
        raise ConfigError(f"--to {place.kind}: latest or a time")
    return {"endingTimestamp": str(place.value)}

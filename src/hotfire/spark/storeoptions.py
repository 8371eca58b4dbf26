"""The options of format `hotfire-store`, once, and what they choose of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from hotfire.errors import ConfigError
from hotfire.spark.arrow import INT64_MAX, INT64_MIN
from hotfire.spark.options import Option, Options, count, milliseconds, names, one_of, text, yes_or_no
from hotfire.spark.pushdown import Narrowing

FORMAT = "hotfire-store"
QUEUES_MAX = 4096
"""Numbers of queues that are worth telling apart when a log is read without its queues."""


def _directory(value: str) -> str:
    if value.startswith("file:"):
        return urlsplit(value).path
    if "://" in value:
        raise ValueError("a directory of a file system that is mounted here and on every executor")
    return value


def _number(value: str) -> int:
    if not value.strip().isdecimal():
        raise ValueError("a number of 0 or more")
    return int(value)


def _numbers(value: str) -> tuple[int, ...]:
    try:
        return tuple(_number(part) for part in names(value))
    except ValueError:
        raise ValueError("numbers with commas between them") from None


STORE_OPTIONS = (
    Option("path", _directory, None, "the store's directory (storePathRootDir); every executor must see it"),
    Option("topics", names, None, "topics, commas between them; all of them, the system's own among them"),
    Option("subscribe", names, None, "the same, by the name it has elsewhere"),
    Option("queues", _numbers, None, "numbers of queues, commas between them; all of them"),
    Option("startingOffset", _number, None, "the first queue offset wanted, of each queue"),
    Option("endingOffset", _number, None, "the queue offset before which to end, of each queue"),
    Option("startingTimestamp", milliseconds, None, "only what was stored then or later, in ms"),
    Option("endingTimestamp", milliseconds, None, "only what was stored before, in ms"),
    Option(
        "by", one_of("auto", "queue", "log"), "auto",
        "read by the queues' entries, or record by record: `auto` takes the log where queues are missing, or "
        "where the store was left uncleanly and they may lag behind",
    ),
    Option(
        "upTo", one_of("auto", "durable", "last"), "auto",
        "end where the checkpoint says the log is on disk, or with the last sound record: `auto` is "
        "`durable` while a Hotfire broker has the store open, else `last`",
    ),
    Option(
        "damaged", one_of("fail", "skip", "keep"), "fail",
        "records that cannot be read: an error, left out and counted in the log, or kept as rows with the "
        "reason in column `damage`",
    ),
    Option("failOnDataLoss", yes_or_no, True, "fail when a file is gone that was there when the query began"),
    Option("minPartitions", count, None, "cut the store into at least so many partitions"),
    Option("maxPartitions", count, None, "and at most so many; as many as the driver has cores"),
    Option("batchRows", count, 50_000, "rows in one Arrow batch, at most about"),
    Option("brokerName", text, None, "for column `brokerName`; what the store says itself, or nothing"),
    Option("pushdown", yes_or_no, False, "narrow what is read by filters on topic, brokerName, queueId, "
           "queueOffset, storeTimestamp and tags; needs spark.sql.python.filterPushdown.enabled"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted. Plain values: they travel to the executors. None is all."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    first: int = INT64_MIN
    until: int = INT64_MAX
    stored_from: int = INT64_MIN
    stored_until: int = INT64_MAX

    @classmethod
    def of(cls, options: Options) -> Selection:
        if options.has("topics") and options.has("subscribe"):
            raise ConfigError("options topics and subscribe mean the same: give one of them")
        for low, high in (("startingOffset", "endingOffset"), ("startingTimestamp", "endingTimestamp")):
            if options.has(low) and options.has(high) and options[high] < options[low]:
                raise ConfigError(f"{high} {options[high]} is before {low} {options[low]}")
        return cls(
            topics=options["topics"] or options["subscribe"],
            queues=options["queues"],
            first=INT64_MIN if options["startingOffset"] is None else options["startingOffset"],
            until=INT64_MAX if options["endingOffset"] is None else options["endingOffset"],
            stored_from=INT64_MIN if options["startingTimestamp"] is None else options["startingTimestamp"],
            stored_until=INT64_MAX if options["endingTimestamp"] is None else options["endingTimestamp"],
        )

    @property
    def is_nothing(self) -> bool:
        return (
            () in (self.topics, self.queues, self.tags)
            or self.first >= self.until
            or self.stored_from >= self.stored_until
        )

    def narrowed(self, by: Narrowing) -> Selection:
        """What is left under the filters that Spark pushed down; it judges the rows again."""
        least, most = by.least, by.most
        return replace(
            self,
            topics=_among(self.topics, by.among.get("topic")),
            queues=self._queues(by),
            tags=_among(self.tags, by.among.get("tags")),
            first=max(self.first, least.get("queueOffset", self.first)),
            until=min(self.until, most.get("queueOffset", self.until - 1) + 1),
            stored_from=max(self.stored_from, least.get("storeTimestamp", self.stored_from)),
            stored_until=min(self.stored_until, most.get("storeTimestamp", self.stored_until - 1) + 1),
        )

    def _queues(self, by: Narrowing) -> tuple[int, ...] | None:
        if self.queues is not None:
            return tuple(one for one in self.queues if by.admits("queueId", one))
        low, high = max(by.least.get("queueId", 0), 0), by.most.get("queueId", INT64_MAX)
        return tuple(range(low, high + 1)) if high - low < QUEUES_MAX else None


def _among(said: tuple[str, ...] | None, pushed: set[object] | None) -> tuple[str, ...] | None:
    if pushed is None:
        return said
    return tuple(sorted(str(one) for one in pushed if said is None or one in said))


def read_options(given: Mapping[str, str]) -> Options:
    options = Options(STORE_OPTIONS, given, FORMAT)
    if not options["path"]:
        raise ConfigError("option path is missing: the store's directory, or load(path)")
    return options

"""How many messages came and how long they took: born, stored, consumed; by topic, queue and minute.

When a message was consumed is in no log. Clients with tracing on tell it in the trace topic, and then it is
shown; otherwise what is known of groups is where they are now and what they gave back, and that is what is
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotfire.model import TRACE_TOPIC
from hotfire.spark.options import names
from hotfire.spark.pipelines.inputs import Spanned, messages, topics_option
from hotfire.spark.pipelines.options import option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from hotfire.spark.job import Job
    from hotfire.spark.pipelines.standing import Standing

TIMES = ["count", "p50", "p90", "p99", "p999", "max", "early"]


@dataclass(frozen=True, kw_only=True)
class Options(Spanned):
    topic: tuple[str, ...] = topics_option()
    group: tuple[str, ...] = option(
        "groups that read them, with commas between; all that have", (), read=names, metavar="GROUPS"
    )
    queues: bool = option("also by queue", False)
    minutes: bool = option("also by minute", False)
    trace_topic: str = option("where clients tell of what they consumed", TRACE_TOPIC, metavar="TOPIC")
    picture: str | None = option("draw the minutes into this file, SVG", None, metavar="FILE")
    json: bool = option("everything as JSON, for programs", False)


OPTIONS = Options


def check(options: Options) -> None:
    options.check_input()


def run(job: Job[Options]) -> int:
    from hotfire.spark.pipelines import timing
    from hotfire.tables import as_json

    options = job.options
    with job.batch("latency"):
        stored = messages(job.spark, options, options.topic, timing.STORED_COLUMNS).persist()
        try:
            times = [_time_row(row) for row in timing.born_to_stored(stored).collect()]
            traced, notes = _traced(job, stored)
            groups, failures, more = _groups(job, stored, {row["group"] for row in traced})
        finally:
            stored.unpersist()
    notes += more
    notes += _clock_notes(times)
    found: dict[str, Any] = {
        "topics": [row for row in times if row["minute"] is None and row["queue"] is None],
        "queues": [row for row in times if row["queue"] is not None],
        "minutes": [row for row in times if row["minute"] is not None],
        "consumed": traced, "groups": groups, "failures": failures, "notes": notes,
    }  # fmt: skip
    if options.picture is not None:
        Path(options.picture).write_text(drawn(found, options.topic))
        job.say(f"drawn into {options.picture}")
    if options.json:
        print(as_json(found))
    else:
        _tell(options, found)
    return 0


# --- asking ----------------------------------------------------------------------------------------


def _time_row(row: Row) -> dict[str, Any]:
    queue = None if row.queueId is None else f"{row.brokerName}:{row.queueId}"
    return {
        "topic": row.topic, "queue": queue, "minute": row.minute,
        **{name: row[name] for name in TIMES}, "first": row["first"], "last": row["last"],
    }  # fmt: skip


def _traced(job: Job[Options], stored: DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """What clients told of these messages, by group, topic and minute; and what is to be said about it."""
    from hotfire.spark.pipelines import timing

    options = job.options
    if options.is_live and not _exists(options, options.trace_topic):
        return [], [
            f"there is no topic {options.trace_topic}: no client told when it consumed, so that is unknown"
        ]
    entries = timing.traces(messages(job.spark, options, [options.trace_topic], ("body",), allow_loss=True))
    told = timing.consumed(stored, timing.consumptions(entries))
    if options.group:
        told = told.where(told.group.isin(*options.group))
    rows = [row.asDict() for row in told.collect()]
    if not rows:
        return [], [
            f"topic {options.trace_topic} tells of none of these messages: when they were consumed is unknown"
        ]
    return sorted(rows, key=lambda row: (row["group"], row["topic"], row["minute"] or 0)), []


def _exists(options: Options, topic: str) -> bool:
    from hotfire.client.admin import Admin
    from hotfire.client.bridge import Bridge

    async def ask() -> bool:
        async with Admin(options.name_servers, tls=options.tls) as admin:
            return topic in await admin.topics(include_system=True)

    return Bridge.shared().run(ask())


def _groups(
    job: Job[Options], stored: DataFrame, traced: set[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Where groups are, and what they gave back: known of all, traced or not."""
    from hotfire.model import SCHEDULE_TOPIC
    from hotfire.spark.pipelines import standing as facts
    from hotfire.spark.pipelines import timing

    options = job.options
    if options.archive is not None:
        return [], [], ["an archive has no offsets of groups"]
    standing = facts.found(options, options.topic, options.group or None)
    groups = [
        _group_row(stored, standing, group, topic)
        for topic in options.topic
        for group in standing.groups_of(topic)
    ]
    others = sorted(standing.topics() - set(options.topic))
    dead = [name for name in others if name.startswith("%DLQ%")]
    columns = ("topic", "properties", "storeTimestamp")
    back = timing.given_back(messages(job.spark, options, [SCHEDULE_TOPIC, *dead], columns, allow_loss=True))
    failures = [
        row.asDict()
        for row in back.collect()
        if row.topic in options.topic and (not options.group or row.group in options.group)
    ]
    silent = sorted({row["group"] for row in groups} - traced)
    notes = (
        [f"offsets alone tell of {', '.join(silent)}: where they are now, not when they consumed"]
        if silent
        else []
    )
    return groups, failures, notes


def _group_row(stored: DataFrame, standing: Standing, group: str, topic: str) -> dict[str, Any]:
    from hotfire.spark.pipelines import timing

    committed = {queue: offset for queue, offset in standing.committed[group].items() if queue.topic == topic}
    found = timing.waiting_since(stored.where(stored.topic == topic), committed).first()
    waiting, since = (0, None) if found is None else (found.waiting, found.since)
    return {"group": group, "topic": topic, "waiting": waiting, "oldestWaiting": since}


def _clock_notes(times: Sequence[dict[str, Any]]) -> list[str]:
    early = {
        row["topic"]: row["early"]
        for row in times
        if row["minute"] is None and row["queue"] is None and row["early"]
    }
    return [
        f"topic {topic}: {count} messages were stored before they were born; clocks differ by that much"
        for topic, count in early.items()
    ]


# --- telling ---------------------------------------------------------------------------------------


def _tell(options: Options, found: dict[str, Any]) -> None:
    from hotfire.tables import table, with_times

    print("from birth to store, ms")
    print(table(["topic", *TIMES], found["topics"]))
    if options.queues:
        print(table(["topic", "queue", *TIMES], found["queues"]))
    if options.minutes:
        print(table(["topic", "minute", *TIMES], with_times(found["minutes"], "minute")))
    whole = [row for row in found["consumed"] if row["minute"] is None]
    shown = whole if not options.minutes else [row for row in found["consumed"] if row["minute"] is not None]
    if shown:
        columns = ["group", "topic", *(["minute"] if options.minutes else []), "done", "failed", "unheard"]
        waits = [f"waited_{name}" for name in ("p50", "p99", "max")] + [
            f"whole_{name}" for name in ("p50", "p99", "max")
        ]
        print("\nfrom store to a first try (waited) and from birth to done (whole), ms, as clients tell")
        print(table([*columns, *waits], with_times(shown, "minute")))
    if found["groups"]:
        print("\ngroups now")
        print(
            table(
                ["group", "topic", "waiting", "oldestWaiting"], with_times(found["groups"], "oldestWaiting")
            )
        )
    if found["failures"]:
        print("\ngiven back by consumers")
        print(table(["group", "topic", "minute", "retried", "dead"], with_times(found["failures"], "minute")))
    for note in found["notes"]:
        print(f"\n{note}")


def drawn(found: dict[str, Any], topics: Sequence[str]) -> str:
    from hotfire.spark.pipelines.latencypicture import COLOURS, Minute, Strip, picture

    def minutes(rows: Sequence[dict[str, Any]], prefix: str, count: str) -> list[Minute]:
        return [
            Minute(row["minute"], row[count], {name: row[f"{prefix}{name}"] for name in COLOURS})
            for row in sorted(rows, key=lambda one: one["minute"])
        ]

    strips = [
        Strip(
            f"{topic}: from birth to store",
            minutes([row for row in found["minutes"] if row["topic"] == topic], "", "count"),
        )
        for topic in topics
    ]
    told = sorted({(row["group"], row["topic"]) for row in found["consumed"]})
    for group, topic in told:
        rows = [
            row
            for row in found["consumed"]
            if row["minute"] is not None and (row["group"], row["topic"]) == (group, topic)
        ]
        strips.append(Strip(f"{topic}: from store to {group}", minutes(rows, "waited_", "done")))
    sums: dict[int, int] = {}
    for row in found["minutes"]:
        sums[row["minute"]] = sums.get(row["minute"], 0) + row["count"]
    rates = [Minute(at, count, {}) for at, count in sorted(sums.items())]
    total = sum(row["count"] for row in found["topics"])
    return picture(f"{', '.join(topics)}: {total:,} messages", "; ".join(found["notes"]), rates, strips)

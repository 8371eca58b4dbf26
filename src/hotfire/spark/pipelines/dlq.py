"""Dead letters of a group: what kinds there are, and a reviewed part of them sent again, once.

Without `--drive` nothing is sent: letters are grouped by the topic they came from, tag, tries, error and
body, and `--review FILE` writes a line for each, to be looked at and thinned out. With `--drive` those left
in the file, or those a condition chooses, go to the topic they came from, where every group gets them, or to
the group's own retry topic, where only it does. Each copy names the letter it is of, so that driving again
sends nothing twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.model import dlq_topic, retry_topic
from hotfire.spark.options import count
from hotfire.spark.pipelines.inputs import Spanned, messages
from hotfire.spark.pipelines.options import option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hotfire.spark.job import Job

SHOWN_MAX = 50
ORIGINAL, RETRY = "original", "retry"
REVIEW_COLUMNS = ("id", "originId", "origin", "tag", "keys", "tries", "said", "shape", "stored")


@dataclass(frozen=True, kw_only=True)
class Options(Spanned):
    group: str = option("the group whose dead letters are meant")
    where: str | None = option(
        "only where this holds: SQL over a message's columns and origin, tag, tries, error, shape, said",
        None, metavar="SQL",
    )  # fmt: skip
    review: str | None = option("write a line of JSON for each letter into this file", None, metavar="FILE")
    drive: bool = option("send them again", False)
    ids: str | None = option(
        "of these letters: a file that --review wrote, with lines taken out", None, metavar="FILE"
    )
    every: bool = option("all letters there are, without a review", False)
    into: str = option(
        "the topic each came from, or the group's retry topic", ORIGINAL, choices=(ORIGINAL, RETRY)
    )
    rate: int | None = option("messages a second, at most", None, read=count, metavar="N")
    json: bool = option("as JSON, for programs", False)


OPTIONS = Options


def check(options: Options) -> None:
    options.check_input()
    if options.drive and options.ids is None and options.where is None and not options.every:
        raise ConfigError("--drive: say which letters, by --ids FILE of a review, by --where, or --every one")
    if options.ids is not None and not options.drive:
        raise ConfigError("--ids is for --drive: it names letters to send again")
    if options.drive and options.review is not None:
        raise ConfigError("--review and --drive: review first, then drive what is left")


def run(job: Job[Options]) -> int:
    from hotfire.spark.pipelines.letters import letters, reviewed

    options = job.options
    read = messages(job.spark, options, [dlq_topic(options.group)])
    found = letters(read)
    if options.where is not None:
        found = found.where(options.where)
    if not options.drive:
        with job.batch("dlq"):
            return _review(options, found)
    if options.ids is not None:
        found = found.join(reviewed(job.spark, options.ids), "id", "left_semi")
    with job.batch("dlq"):
        return _drive(job, found)


# --- review ----------------------------------------------------------------------------------------


def _review(options: Options, found: DataFrame) -> int:
    from hotfire.spark.pipelines.letters import KINDS, kinds
    from hotfire.tables import as_json, table, with_times

    found = found.persist()
    try:
        rows = [row.asDict() for row in kinds(found).collect()]
        if options.review is not None:
            _write_review(options.review, found)
    finally:
        found.unpersist()
    total = sum(row["count"] for row in rows)
    if options.json:
        print(as_json({"group": options.group, "letters": total, "kinds": rows}))
        return 0
    if rows:
        columns = ["count", *KINDS, "first", "last", "example"]
        print(table(columns, with_times(rows[:SHOWN_MAX], "first", "last")))
    if len(rows) > SHOWN_MAX:
        print(f"and {len(rows) - SHOWN_MAX} more kinds; --json shows them all")
    print(f"{total} dead letters of group {options.group}, of {len(rows)} kinds")
    if rows and all(row["error"] is None for row in rows):
        print("why they failed is said by none of them: consumers may put it into a property ERROR")
    return 0


def _write_review(file: str, found: DataFrame) -> None:
    from pyspark.sql import functions as F

    rows = found.withColumn("stored", F.unix_millis("storeTimestamp")).select(*REVIEW_COLUMNS)
    with Path(file).open("w") as out:
        for row in rows.orderBy("stored", "id").toLocalIterator():
            out.write(json.dumps(row.asDict(), ensure_ascii=False) + "\n")


# --- drive -----------------------------------------------------------------------------------------


def _drive(job: Job[Options], found: DataFrame) -> int:
    from pyspark.sql import functions as F

    from hotfire.spark.pipelines.sending import send_missing

    options = job.options
    lost = found.where("origin is null").count() if options.into == ORIGINAL else 0
    if lost:
        raise ConfigError(
            f"{lost} of the letters do not say which topic they came from; leave them out by "
            f"--where 'origin is not null', or send them --into {RETRY}"
        )
    target, also = F.col("origin"), {}
    if options.into == RETRY:  # where a consumer is told by properties which of its topics it is of
        _make_topic(options, retry_topic(options.group))
        target = F.lit(retry_topic(options.group))
        also = {"RETRY_TOPIC": F.col("origin"), "ORIGIN_MESSAGE_ID": F.col("originId")}
    sent = send_missing(job, found, target=target, label=f"dlq {options.group}", also=also, rate=options.rate)
    where = "the topics they came from" if options.into == ORIGINAL else retry_topic(options.group)
    print(f"{sent.chosen} letters chosen, {sent.sent} sent to {where}, {sent.before} were there from before")
    return 0


def _make_topic(options: Options, topic: str) -> None:
    """A group that nobody has consumed for yet has no retry topic; its consumers read one queue."""
    from hotfire.client.admin import Admin
    from hotfire.client.bridge import Bridge

    async def make() -> None:
        async with Admin(options.name_servers, tls=options.tls) as admin:
            if topic not in await admin.topics():
                await admin.create_topic(topic, queues=1)

    Bridge.shared().run(make())

"""Not one more, not one less: sent, stored, consumed and dead letters held against each other.

Looks at topics whole, in a cluster, in stores or in an archive: places of a queue that hold no readable
message, unique ids that came twice, and how far groups are, with what they try again and what they gave up. A
ledger tells what was sent, another what was consumed. Exit code 1 when a message is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hotfire.errors import ConfigError
from hotfire.spark.options import names
from hotfire.spark.pipelines.inputs import Found, messages, topics_option
from hotfire.spark.pipelines.options import option, pair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hotfire.spark.job import Job
    from hotfire.spark.pipelines.balance import GroupCount, QueueCount, TopicCount
    from hotfire.spark.pipelines.counting import Held
    from hotfire.spark.pipelines.standing import Standing

LOST = 1
HOLES_SHOWN_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Options(Found):
    topic: tuple[str, ...] = topics_option()
    group: tuple[str, ...] = option(
        "groups that read them, with commas between; all that have", (), read=names, metavar="GROUPS"
    )
    ledger: str | None = option(
        "what was sent: a column msgId, and topic if there are several, as .parquet, .csv or .jsonl", None,
        metavar="FILE",
    )  # fmt: skip
    sent: tuple[str, ...] = option(
        "how many were sent, instead; again for each topic", (), metavar="TOPIC=COUNT"
    )
    consumed: str | None = option(
        "what was consumed: msgId, and group and topic if there are several", None, metavar="FILE"
    )
    once: bool = option("also fail when a message is there again, or in no ledger", False)
    json: bool = option("as JSON, for programs", False)


OPTIONS = Options


def check(options: Options) -> None:
    options.check_input()
    for word in options.sent:
        topic, _, count = pair(word).partition("=")
        if topic not in options.topic or not count.isdigit():
            raise ConfigError(
                f"--sent {word}: one of --topic and a number are wanted, like {options.topic[0]}=1000"
            )
    if options.sent and options.ledger is not None:
        raise ConfigError("--sent and --ledger: a count or the ids, not both")
    if options.archive is not None and (options.group or options.consumed):
        raise ConfigError("--archive has no offsets of groups: look at the cluster or at --store for them")


def run(job: Job[Options]) -> int:
    from hotfire.spark.pipelines.balance import faults
    from hotfire.spark.pipelines.counting import PLACE_COLUMNS, holes

    options = job.options
    with job.batch("reconcile: where topics and groups are"):
        standing = _standing(options)
    spans = None if standing is None else standing.spans
    stored = messages(
        job.spark, options, options.topic, PLACE_COLUMNS, spans=spans, allow_loss=True
    ).persist()
    try:
        with job.batch("reconcile: reading messages"):
            queues = _queues(options, stored, standing)
        with job.batch("reconcile: ids that came twice, and the ledger"):
            topics = _topics(job, stored, queues, standing)
        with job.batch("reconcile: groups"):
            groups = [] if standing is None else _groups(job, stored, queues, standing)
        with job.batch("reconcile: places without a message"):
            gaps = holes(stored, queues, HOLES_SHOWN_MAX)
    finally:
        stored.unpersist()
    wrong = faults(topics, groups, once=options.once)
    _tell(options, topics, groups, [gap._asdict() for gap in gaps], wrong)
    return LOST if wrong else 0


def _standing(options: Options) -> Standing | None:
    from hotfire.spark.pipelines import standing as facts

    return None if options.archive is not None else facts.found(options, options.topic, options.group or None)


def _queues(options: Options, stored: DataFrame, standing: Standing | None) -> list[QueueCount]:
    from hotfire.spark.pipelines import standing as facts
    from hotfire.spark.pipelines.counting import is_before, queue_counts

    if standing is None:
        return queue_counts(stored)
    spans = {queue: span for queue, span in standing.spans.items() if queue.topic in options.topic}
    found = queue_counts(stored, spans)
    if not options.is_live or not any(one.holes for one in found):
        return found
    # what the brokers let go of while we read is no hole
    now = facts.live(options.name_servers, tls=options.tls, topics=options.topic, groups=()).spans
    spans = {
        queue: (min(max(first, now.get(queue, (first, end))[0]), end), end)
        for queue, (first, end) in spans.items()
    }
    return queue_counts(
        stored.where(~is_before({queue: first for queue, (first, _) in spans.items()})), spans
    )


def _topics(
    job: Job[Options], stored: DataFrame, queues: Sequence[QueueCount], standing: Standing | None
) -> list[TopicCount]:
    from hotfire.spark.pipelines import counting
    from hotfire.spark.pipelines.balance import TopicCount, by_count

    options = job.options
    again = counting.repeats(stored)
    sent = {word.partition("=")[0]: int(word.partition("=")[2]) for word in options.sent}
    held = {} if options.ledger is None else _held(job, stored)
    found = []
    for topic in options.topic:
        own = [one for one in queues if one.queue.topic == topic]
        count = TopicCount(
            topic,
            stored=sum(one.readable for one in own),
            holes=sum(one.holes for one in own),
            repeats=again.get(topic, 0),
        )
        if topic in sent:
            count = by_count(count, sent[topic])
        if options.ledger is not None:
            its = held.get(topic, counting.Held(0, 0, 0, 0))
            count = replace(count, sent=its.sent, held=its.held, missing=its.missing, unknown=its.unknown)
        found.append(count)
    return found


def _held(job: Job[Options], stored: DataFrame) -> dict[str, Held]:
    """The topics against the ledger of what was sent."""
    from pyspark.sql import functions as F

    from hotfire.spark.pipelines import counting

    options = job.options
    assert options.ledger is not None
    entries = counting.ledger(job.spark, options.ledger)
    if len(options.topic) == 1:
        entries = entries.withColumn("topic", F.coalesce("topic", F.lit(options.topic[0])))
    found = counting.against(entries, stored, _failures(job, None))
    if None in found:
        raise ConfigError(
            f"--ledger {options.ledger}: with {len(options.topic)} topics every row needs a topic"
        )
    return found


def _groups(
    job: Job[Options], stored: DataFrame, queues: Sequence[QueueCount], standing: Standing
) -> list[GroupCount]:
    from hotfire.spark.pipelines import counting
    from hotfire.spark.pipelines.balance import GroupCount, passed_and_waiting

    options = job.options
    pairs = [
        (group, topic) for topic in options.topic for group in (options.group or standing.groups_of(topic))
    ]
    if not pairs:
        return []
    failing = counting.failing(_failures(job, standing), standing.committed).persist()
    states = {
        tuple(row)[:3]: row["count"] for row in failing.groupBy("group", "topic", "state").count().collect()
    }
    consumed = None if options.consumed is None else counting.ledger(job.spark, options.consumed)
    found = []
    for group, topic in pairs:
        own = [one for one in queues if one.queue.topic == topic]
        committed = standing.committed.get(group, {})
        passed, waiting, aged = passed_and_waiting(own, committed)
        count = GroupCount(
            group, topic, sum(one.readable for one in own), passed, waiting,
            retrying=states.get((group, topic, "retrying"), 0), dead=states.get((group, topic, "dead"), 0),
            aged=aged,
        )  # fmt: skip
        if consumed is not None:
            before = stored.where(counting.is_before(committed)).where(stored.topic == topic)
            its = [of_its(frame, group=group, topic=topic) for frame in (consumed, failing)]
            missing, again = counting.unconsumed(before, *its)
            count = replace(count, unconsumed=missing, consumed_again=again)
        found.append(count)
    failing.unpersist()
    return found


def of_its(frame: DataFrame, **said: str) -> DataFrame:
    """Rows about these, and those that do not say."""
    from pyspark.sql import functions as F

    for name, value in said.items():
        frame = frame.where(F.col(name).isNull() | (F.col(name) == value))
    return frame


def _failures(job: Job[Options], standing: Standing | None) -> DataFrame:
    """All that is or was held back for later, and with `standing` what groups failed."""
    from hotfire.model import SCHEDULE_TOPIC
    from hotfire.spark.pipelines.counting import FAILURE_COLUMNS

    others = [] if standing is None else sorted(standing.topics() - set(job.options.topic))
    return messages(job.spark, job.options, [SCHEDULE_TOPIC, *others], FAILURE_COLUMNS, allow_loss=True)


def _tell(
    options: Options,
    topics: Sequence[TopicCount],
    groups: Sequence[GroupCount],
    gaps: Sequence[dict[str, Any]],
    wrong: Sequence[str],
) -> None:
    from hotfire.tables import as_json, table

    topic_rows, group_rows = [one.row() for one in topics], [one.row() for one in groups]
    hole_rows = [
        {
            "topic": gap["queue"].topic,
            "queue": f"{gap['queue'].broker_name}:{gap['queue'].queue_id}",
            "from": gap["first"],
            "to": gap["until"] - 1,
        }
        for gap in gaps
    ]
    if options.json:
        print(
            as_json({"topics": topic_rows, "groups": group_rows, "holes": hole_rows, "faults": list(wrong)})
        )
        return
    for rows in (topic_rows, group_rows, hole_rows):
        if rows:
            print(table(list(rows[0]), rows))
            print()
    print("\n".join(wrong) if wrong else "every message is accounted for")

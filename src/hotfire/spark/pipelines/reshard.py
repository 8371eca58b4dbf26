"""The rescue of a group that cannot keep up: its backlog moved to a topic with ten times the queues, and
back.

A topic's queues bound how many consumers of a group can work, so that more consumers alone do not help. The
backlog, from where the group is to where the topic ends now, is dealt to a new topic in rotation, or by key
with each key's order kept, without any of the work that makes the consumers slow. Ten times the consumers
read that one in a group of their own. What is sent to the topic meanwhile waits, until the next round or
until `--back`, after which the group goes on in its own topic right behind what was moved.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hotfire.errors import ConfigError
from hotfire.model import SCHEDULE_TOPIC, dlq_topic, retry_topic
from hotfire.spark.options import count
from hotfire.spark.pipelines.inputs import between, schema_of
from hotfire.spark.pipelines.options import Common, option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hotfire.client.admin import Admin
    from hotfire.spark.job import Job
    from hotfire.spark.offsets import Range
    from hotfire.spark.pipelines.arrivals import Arrivals
    from hotfire.spark.pipelines.moving import Round, Way

T = TypeVar("T")

SUFFIX = "_rescue"
ROTATION, KEY = "rotation", "key"
FAILED = 1
PAUSE_S = 1.0
SOURCE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "keys", "tags", "body", "properties", "bornTimestamp",
    "storeTimestamp", "commitLogOffset",
)  # fmt: skip
ORDER_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "keys",
    "properties",
    "storeTimestamp",
    "commitLogOffset",
)
ARRIVED_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "properties")


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    group: str = option("the group that cannot keep up; its consumers are stopped")
    topic: str = option("the topic its backlog is in")
    into: str | None = option("the topic to move to; TOPIC_rescue", None, metavar="TOPIC")
    into_group: str | None = option("the group that reads it; GROUP_rescue", None, metavar="GROUP")
    times: int = option("how many times the queues", 10, read=count, metavar="N")
    by: str = option("deal the backlog out in turn, or keep order by key", ROTATION, choices=(ROTATION, KEY))
    key: str | None = option(
        "with --by key: SQL over a message's columns; its sharding key, or else its keys", None, metavar="SQL"
    )
    follow: bool = option("round after round, until stopped: what is sent meanwhile is moved too", False)
    force: bool = option("though consumers are connected", False)
    allow_loss: bool = option("though messages left the log before the group read them", False)
    back: bool = option(
        "return to the topic: when what was moved is consumed, the group goes on there", False
    )
    return_rest: bool = option(
        "with --back: what is not consumed yet is moved back, behind what is there; keys lose their order",
        False,
    )
    drop: bool = option("with --back: then delete the topic and the group of the rescue", False)
    rate: int | None = option("messages a second, at most", None, read=count, metavar="N")
    json: bool = option("as JSON, for programs", False)

    def way(self) -> Way:
        from hotfire.spark.pipelines.moving import Way

        return Way(
            self.group, self.topic, self.into or self.topic + SUFFIX, self.into_group or self.group + SUFFIX
        )


OPTIONS = Options


def check(options: Options) -> None:
    way = options.way()
    if way.target == way.topic:
        raise ConfigError(f"--into {way.target}: that is the topic the backlog is in")
    if options.key is not None and options.by != KEY:
        raise ConfigError("--key is for --by key")
    if options.back and (options.follow or options.times != 10):
        raise ConfigError("--back takes neither --follow nor --times")
    if (options.return_rest or options.drop) and not options.back:
        raise ConfigError("--return-rest and --drop are for --back")


def run(job: Job[Options]) -> int:
    return _go_back(job) if job.options.back else _rescue(job)


def _ask(options: Common, ask: Callable[[Admin], Awaitable[T]]) -> T:
    from hotfire.client.admin import Admin
    from hotfire.client.bridge import Bridge

    async def asked() -> T:
        async with Admin(options.name_servers, tls=options.tls) as admin:
            return await ask(admin)

    return Bridge.shared().run(asked())


def _check_stopped(options: Options, group: str) -> None:
    from hotfire.spark.pipelines.moving import check_stopped

    _ask(options, lambda admin: check_stopped(admin, group, force=options.force))


# --- there -----------------------------------------------------------------------------------------


def _rescue(job: Job[Options]) -> int:
    from hotfire.spark.pipelines import moving

    options, way = job.options, job.options.way()
    _check_stopped(options, way.group)
    queues = _ask(options, lambda admin: moving.make_target(admin, way, options.times))
    _ask(options, lambda admin: moving.make_group(admin, way.target_group, dict.fromkeys(queues, 0)))
    rounds: list[dict[str, Any]] = []
    faults: list[str] = []
    while not faults:
        one = _ask(
            options, lambda admin: moving.next_round(admin, way, queues, allow_loss=options.allow_loss)
        )
        if one.count or one.is_resumed or not rounds:
            row, faults = _move(job, one, by=options.by)
            rounds.append(row)
        if not options.follow or job.is_stopping:
            break
        if not one.count:
            time.sleep(PAUSE_S)
    _tell(options, rounds, faults)
    if not faults and not options.json:
        print(
            f"topic {way.target} has {len(queues)} queues: let consumers of group {way.target_group} read "
            f"it; when they are done, --back returns group {way.group} to topic {way.topic}"
        )
    return FAILED if faults else 0


def _move(job: Job[Options], one: Round, *, by: str) -> tuple[dict[str, Any], list[str]]:
    """Send what is not there yet of a round, look whether all of it arrived, and if so let the group go
    on.
    """
    from hotfire.spark.pipelines import moving

    options, way = job.options, one.way
    began_s = time.monotonic()
    if one.count:
        if not one.is_resumed:
            _ask(options, lambda admin: moving.remember(admin, one))
        else:
            job.say(f"going on with a round of {one.count:,} messages that was cut short")
        with job.batch(f"{way.topic} to {way.target}", rows=one.count):
            _send(job, one, by=by)
    sent_s = time.monotonic() - began_s
    with job.batch(f"looking at {way.target}", rows=one.count):
        found = _look(job, one, by=by)
    # of a round gone on with, queues that joined and parts that were ended already are not even
    faults = found.faults(evenly=by == ROTATION and not one.is_resumed)
    if not found.missing:
        _ask(options, lambda admin: moving.finish(admin, one))
    row = {
        "from": way.topic, "to": way.target, "messages": found.wanted, "arrived": found.arrived,
        "again": found.repeats, "least": found.least, "most": found.most, "disordered": found.disordered,
        "seconds": round(sent_s, 1), "perSecond": round(found.wanted / sent_s) if found.wanted else 0,
    }  # fmt: skip
    return row, faults


def _send(job: Job[Options], one: Round, *, by: str) -> None:
    from pyspark.sql import functions as F

    from hotfire.spark.pipelines.arrivals import marked, not_arrived
    from hotfire.spark.pipelines.ordering import SHARD, in_order
    from hotfire.spark.pipelines.sending import send_copies
    from hotfire.spark.pipelines.spreading import shifts, turn

    options = job.options
    source = _read(job, one.ranges, SOURCE_COLUMNS)
    if one.is_resumed:
        source = not_arrived(source, marked(_arrived(job, one), one.ranges))
    label = f"reshard {one.way.group} {one.way.topic} {one.way.target} {sum(one.arrived.values())}"
    if by == KEY:
        partitions = job.spark.sparkContext.defaultParallelism
        ordered = in_order(source, partitions, key=options.key)
        send_copies(job, ordered, target=F.lit(one.way.target), key=SHARD, label=label, rate=options.rate)
        return
    number = turn(shifts(one.ranges, one.first_turn), len(one.queues))
    send_copies(
        job,
        source,
        target=F.lit(one.way.target),
        queue=number,
        queues=one.queues,
        label=label,
        rate=options.rate,
    )


def _look(job: Job[Options], one: Round, *, by: str) -> Arrivals:
    from hotfire.spark.pipelines.arrivals import disorder, look, marked

    copies = marked(_arrived(job, one), one.ranges).persist()
    try:
        found = look(copies, one.count, one.queues)
        if by == KEY:
            source = _read(job, one.ranges, ORDER_COLUMNS)
            wrong, split = disorder(source, copies, key=job.options.key)
            found = replace(found, disordered=wrong, split_keys=split)
        return found
    finally:
        copies.unpersist()


def _read(job: Job[Options], ranges: tuple[Range, ...], columns: tuple[str, ...]) -> DataFrame:
    spans = {one.queue: (one.first, one.until) for one in ranges}
    return _between(job, spans, columns)


def _arrived(job: Job[Options], one: Round) -> DataFrame:
    """What lies in the queues moved to, behind where they were when the round began."""
    topic = one.way.target
    stats = _ask(job.options, lambda admin: admin.topic_stats(topic)).queues
    spans = {at.queue: (one.arrived.get(at.queue, at.min_offset), at.max_offset) for at in stats}
    return _between(job, spans, ARRIVED_COLUMNS)


def _between(job: Job[Options], spans: Any, columns: tuple[str, ...]) -> DataFrame:
    if not spans:
        return job.spark.createDataFrame([], schema_of(columns))
    said = {**job.options.connection(), **between(spans)}
    return job.spark.read.format("hotfire").options(**said).schema(schema_of(columns)).load()


# --- and back --------------------------------------------------------------------------------------


def _go_back(job: Job[Options]) -> int:
    from hotfire.spark.pipelines import moving
    from hotfire.spark.pipelines.moving import Way

    options, way = job.options, job.options.way()
    for group in (way.group, way.target_group):
        _check_stopped(options, group)
    if way.memory in _ask(options, lambda admin: admin.groups()):
        raise ConfigError(
            f"a round of group {way.group} is under way: run reshard without --back to end it first"
        )
    waiting, retrying = _left(job, way)
    if retrying:
        raise ConfigError(
            f"group {way.target_group} has yet to try {retrying} messages of topic {way.target} again: "
            "nobody would, once its consumers are gone; let them run until it is done"
        )
    rounds: list[dict[str, Any]] = []
    faults: list[str] = []
    again = Way(way.target_group, way.target, way.topic, way.group)
    if waiting:
        if not options.return_rest:
            raise ConfigError(
                f"{waiting} messages of topic {way.target} are not consumed: let the consumers of group "
                f"{way.target_group} finish; or --return-rest moves them back, behind what is in {way.topic}"
            )
        queues = _ask(options, lambda admin: moving.make_target(admin, again, 1))
        rest = _ask(options, lambda admin: moving.next_round(admin, again, queues))
        row, faults = _move(job, rest, by=ROTATION)
        rounds.append(row)
    _tell(options, rounds, faults)
    if faults:
        return FAILED
    if rounds:
        _refuse_rest(job, way)
    if options.drop:
        _ask(options, lambda admin: admin.delete_topic(way.target))
        _ask(options, lambda admin: admin.delete_group(way.target_group, clean_offsets=True))
        _ask(options, lambda admin: admin.delete_group(again.memory, clean_offsets=True))
    _tell_places(job, way)
    return 0


def _refuse_rest(job: Job[Options], way: Way) -> None:
    """What was moved back may be less than what there is: a round that was cut short ends where it did, and
    somebody may have sent to the topic since.
    """
    waiting, retrying = _left(job, way)
    if waiting or retrying:
        raise ConfigError(
            f"topic {way.target} has {waiting} more messages that are not consumed, and {retrying} to be "
            "tried again: nothing is dropped; run the same once more to move them, too"
        )


def _left(job: Job[Options], way: Way) -> tuple[int, int]:
    """Messages that the group of the rescue has not consumed, and those it is to try again."""
    from hotfire.spark.pipelines import standing as facts
    from hotfire.spark.pipelines.counting import FAILURE_COLUMNS, failing

    options = job.options
    stands = facts.live(options.name_servers, tls=options.tls, topics=[way.target], groups=[way.target_group])
    committed = stands.committed[way.target_group]
    waiting = sum(
        max(end - committed.get(queue, first), 0) for queue, (first, end) in stands.of(way.target).items()
    )
    failed = [
        topic
        for topic in (retry_topic(way.target_group), dlq_topic(way.target_group))
        if topic in stands.topics()
    ]
    topics = ",".join([SCHEDULE_TOPIC, *failed])
    said = {**options.connection(), "subscribe": topics, "failOnDataLoss": "false"}
    with job.batch("looking for retries"):
        frame = job.spark.read.format("hotfire").options(**said).schema(schema_of(FAILURE_COLUMNS)).load()
        states = failing(frame, {way.target_group: committed})
        of_rescue = (states.group == way.target_group) & (states.topic == way.target)
        return waiting, states.where(of_rescue & (states.state == "retrying")).count()


def _tell(options: Options, rounds: list[dict[str, Any]], faults: list[str]) -> None:
    from hotfire.tables import as_json, table

    if options.json:
        print(as_json({"rounds": rounds, "faults": faults}))
        return
    if rounds:
        print(table(list(rounds[0]), rounds))
    for fault in faults:
        print(fault)


def _tell_places(job: Job[Options], way: Way) -> None:
    """Where the group goes on in its own topic."""
    from hotfire.tables import table

    lags = [one for one in _ask(job.options, lambda admin: admin.lag(way.group, way.topic)).queues]
    if job.options.json:
        return
    rows = [
        {
            "queue": f"{one.queue.broker_name}:{one.queue.queue_id}",
            "goesOnAt": one.committed_offset,
            "end": one.end_offset,
            "waiting": one.lag,
        }
        for one in lags
    ]
    print(table(["queue", "goesOnAt", "end", "waiting"], rows))
    print(f"group {way.group} goes on in topic {way.topic}: start its consumers")

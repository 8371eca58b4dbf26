"""How far topics and groups are, and how much has come and gone.

Ends of queues and offsets are at hand; when a message was stored has to be looked up in the log, which may be
cold. So these answers are made beside the loop, from tables taken down before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.handlers.beside import answer_beside
from hotfire.errors import BrokerRefused
from hotfire.model import MessageQueue, TopicConfig
from hotfire.protocol.bodies import dumps_bare_keys, encode_body, to_json
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.reports import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    CorrectionOffsets,
    OffsetLag,
    QueueEntries,
    QueueEntry,
    StatsWindow,
    TopicOffset,
    TopicStats,
)
from hotfire.protocol.requests import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetTopicStatsInfo,
    QueryConsumeQueue,
    QueryCorrectionOffset,
    ViewBrokerStatsData,
)
from hotfire.store.queries import Looker

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

TOPICS_ASKED_MAX = 1000
ENTRIES_MAX = 4096
"""Queue entries of one answer; the reference has no limit."""
LONG_MAX = (1 << 63) - 1


@handles(GetTopicStatsInfo)
def of_topic(broker: Broker, call: Call[GetTopicStatsInfo]) -> Outcome:
    topic = broker.topics.get(call.request.topic)
    if topic is None:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{call.request.topic}] not exist")
    broker.count(call.now_ms)
    rate = broker.statistics.stored_per_second(topic.name, call.now_ms)
    queues = range(max(topic.write_queues, topic.read_queues))

    def work(look: Looker) -> bytes:
        offsets = {}
        for queue_id in queues:
            files = broker.store.queries.queue(topic.name, queue_id)
            low, high = (files.entries.min, files.entries.max) if files is not None else (0, 0)
            stored = look.store_time(files, high - 1) if high else 0
            offsets[place(broker, topic, queue_id)] = TopicOffset(low, high, stored)
        return encode_body(TopicStats(offsets, rate))

    return answer_beside(broker, call, work)


def place(broker: Broker, topic: TopicConfig, queue_id: int) -> MessageQueue:
    return MessageQueue(topic.name, broker.config.broker_name, queue_id)


# --- groups ---


@handles(GetConsumeStats)
def of_group(broker: Broker, call: Call[GetConsumeStats]) -> Outcome:
    """Of the topics listed; else of the one named, or all it has offsets of, that it still wants."""
    request, group = call.request, call.request.consumer_group
    listed = [name for name in (request.topic_list or "").split(";") if name.strip()]
    if len(listed) > TOPICS_ASKED_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"topicList names {len(listed)} topics, at most {TOPICS_ASKED_MAX} are taken",
        )
    if listed:
        names: Iterable[str] = dict.fromkeys(listed)
    else:
        named = request.topic if request.topic and not request.topic.isspace() else None
        asked = broker.offsets.topics_of(group) if named is None else [named]
        names = [name for name in asked if wants(broker, group, name)]
    topics = [topic for topic in map(broker.topics.get, names) if topic is not None]
    rows = {topic.name: broker.offsets.of(topic.name, group) for topic in topics}
    pulls = {topic.name: broker.offsets.pulls_of(topic.name, group) for topic in topics}
    broker.count(call.now_ms)
    rates = (broker.statistics.delivered_per_second(name, group, call.now_ms) for name in rows)
    rate = sum(rates, start=0.0)

    def work(look: Looker) -> bytes:
        offsets: dict[MessageQueue, OffsetLag] = {}
        for topic in topics:
            offsets |= lags(broker, look, topic, rows[topic.name], topic.read_queues, pulls[topic.name])
        return encode_body(ConsumeStats(rate, offsets))

    return answer_beside(broker, call, work)


def wants(broker: Broker, group: str, topic: str) -> bool:
    """Whether the group's living members subscribe to the topic; a group nobody is in keeps what it had."""
    alive = broker.clients.consumers.get(group)
    return alive is None or not alive.subscriptions or topic in alive.subscriptions


def lags(
    broker: Broker,
    look: Looker,
    topic: TopicConfig,
    row: dict[int, int],
    queues: int,
    pulls: dict[int, int] | None = None,
) -> dict[MessageQueue, OffsetLag]:
    """Of each queue; `pulls` says up to where the group was given messages, which it may not have handled."""
    found = {}
    for queue_id in range(queues):
        files = broker.store.queries.queue(topic.name, queue_id)
        offset = max(0, row.get(queue_id, 0))
        stored = look.store_time(files, offset - 1) if offset else 0
        found[place(broker, topic, queue_id)] = OffsetLag(
            broker_offset=0 if files is None else files.entries.max,
            consumer_offset=offset,
            pull_offset=max(offset, pulls.get(queue_id, 0)) if pulls is not None else 0,
            last_timestamp=max(0, stored),
        )
    return found


@handles(GetBrokerConsumeStats)
def of_all_groups(broker: Broker, call: Call[GetBrokerConsumeStats]) -> Outcome:
    ordered_only, now_ms = call.request.is_order, call.now_ms
    broker.count(now_ms)
    rows: dict[str, list[tuple[str, dict[int, int]]]] = {group.name: [] for group in broker.groups}
    for (topic, group), row in broker.offsets.copy().items():
        if group in rows:
            rows[group].append((topic, row))

    def work(look: Looker) -> bytes:
        shown, total, inflight = [], 0, 0
        for group, theirs in rows.items():
            stats = []
            for name, row in theirs:
                topic = broker.topics.get(name)
                if topic is None or (ordered_only and not topic.order) or not wants(broker, group, name):
                    continue
                found = lags(broker, look, topic, row, topic.write_queues)
                rate = broker.statistics.delivered_per_second(name, group, now_ms)
                stats.append(ConsumeStats(rate, found))
                total += sum(lag.broker_offset - lag.consumer_offset for lag in found.values())
                inflight += sum(lag.pull_offset - lag.consumer_offset for lag in found.values())
            shown.append({group: tuple(stats)})
        return encode_body(ConsumeStatsList(broker.address, tuple(shown), total, inflight))

    return answer_beside(broker, call, work)


@handles(QueryCorrectionOffset)
def correction(broker: Broker, call: Call[QueryCorrectionOffset]) -> Outcome:
    """The lowest offset of each queue among all groups, LONG_MAX where `compareGroup` is behind it.

    Groups to be left out are only left out: the reference deletes their offsets.
    """
    request = call.request
    without = {name for name in (request.filter_groups or "").split(",") if name}
    lowest: dict[int, int] = {}
    for group in broker.offsets.groups_of(request.topic):
        if group in without:
            continue
        for queue_id, offset in broker.offsets.of(request.topic, group).items():
            queue = broker.store.find_queue(request.topic, queue_id)
            if offset >= (0 if queue is None else queue.min):
                lowest[queue_id] = min(offset, lowest.get(queue_id, LONG_MAX))
    for queue_id, offset in broker.offsets.of(request.topic, request.compare_group).items():
        if lowest.get(queue_id, 0) > offset:
            lowest[queue_id] = LONG_MAX
    return Answer(body=encode_body(CorrectionOffsets(dict(sorted(lowest.items())))))


@handles(CloneGroupOffset)
def clone(broker: Broker, call: Call[CloneGroupOffset]) -> Outcome:
    request = call.request
    check_offsets_room(broker, request.dest_group)
    named = request.topic if request.topic and not request.topic.isspace() else None
    for name in broker.offsets.topics_of(request.src_group) if named is None else [named]:
        if broker.topics.get(name) is None:
            continue
        if request.offline or wants(broker, request.src_group, name):
            broker.offsets.clone(name, request.src_group, request.dest_group)
    return Answer()


def check_offsets_room(broker: Broker, group: str) -> None:
    """The group need not exist, but offsets of whoever is named would grow without bound."""
    model.check_group_name(group)
    groups_max = broker.config.groups_max
    if not broker.offsets.knows(group) and broker.offsets.group_count >= groups_max:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"group[{group}] would be one of more than {groups_max} with offsets, groupsMax is {groups_max}",
        )


# --- counts ---


@handles(ViewBrokerStatsData)
def counts(broker: Broker, call: Call[ViewBrokerStatsData]) -> Outcome:
    name, key = call.request.stats_name, call.request.stats_key
    broker.count(call.now_ms)
    found = broker.statistics.windows(name, key, call.now_ms)
    if found is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name:.100}> <{key:.400}> not exist")
    minute, hour, day = (StatsWindow(one.sum, one.per_second, one.average) for one in found)
    return Answer(body=encode_body(BrokerStatsData(minute, hour, day)))


# --- entries and tables as they are ---


@handles(QueryConsumeQueue)
def entries(broker: Broker, call: Call[QueryConsumeQueue]) -> Outcome:
    request = call.request
    files = broker.store.queries.queue(request.topic, request.queue_id)
    low, high = (0, 0) if files is None else (files.entries.min, files.entries.max)
    if files is None or not low <= request.index < high:
        where = f"{request.queue_id}@{request.topic}"
        return Answer(remark=f"Index {request.index} of {where} is not exist!")
    alive = broker.clients.consumers.get(request.consumer_group or "")
    wanted = None if alive is None else alive.subscriptions.get(request.topic)
    filter_data = None
    if request.consumer_group is not None:
        offline = f"{request.consumer_group}@{request.topic} is not online!"
        known = broker.conditions.told(request.topic, request.consumer_group)
        filter_data = offline if wanted is None else known
    until = min(high, request.index + max(0, min(request.count, ENTRIES_MAX)))
    found = []
    for index in range(request.index, until):
        entry = files.entries.entry(index) if files.show(index) else None
        if entry is None:
            break
        found.append(entry)

    def work(_: object) -> bytes:
        shown = tuple(QueueEntry(*entry) for entry in found)
        return encode_body(QueueEntries(low, high, shown, wanted, filter_data))

    return answer_beside(broker, call, work, remark="not set any response code")


@handles(GetAllConsumerOffset)
def all_offsets(broker: Broker, call: Call[GetAllConsumerOffset]) -> Outcome:
    version, table, pulls = broker.offsets.version, broker.offsets.copy(), broker.offsets.copy_pulls()

    def work(_: object) -> bytes:
        topics_of: dict[str, list[str]] = {}
        for topic, group in table:
            topics_of.setdefault(group, []).append(topic)
        tree = {
            "dataVersion": to_json(version),
            "groupTopicMap": topics_of,
            "offsetTable": {f"{topic}@{group}": row for (topic, group), row in table.items()},
            "pullOffsetTable": {f"{topic}@{group}": row for (topic, group), row in pulls.items()},
        }
        return dumps_bare_keys(tree)

    return answer_beside(broker, call, work)


@handles(GetAllDelayOffset)
def delay_offsets(broker: Broker, call: Call[GetAllDelayOffset]) -> Outcome:
    levels = broker.schedule.progress().items()
    tree = {
        "dataVersion": to_json(broker.schedule.version),
        "offsetTable": {level: delivered for level, (delivered, parked) in levels if delivered or parked},
    }
    return Answer(body=dumps_bare_keys(tree))

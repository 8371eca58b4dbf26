"""Where queues begin and end and how far groups are with them: as brokers say, or as the files of a store
do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hotfire.client.admin import Admin
from hotfire.client.bridge import Bridge
from hotfire.errors import BrokerRefused, ConfigError, StoreCorrupt
from hotfire.model import MessageQueue, dlq_topic, retry_topic
from hotfire.protocol import bodies
from hotfire.protocol.codes import ResponseCode
from hotfire.spark.pipelines.inputs import Found
from hotfire.store.disk import Disk
from hotfire.store.facts import queue_range
from hotfire.store.layout import look
from hotfire.store.tables import ROOT as TABLE_ROOT

Spans = dict[MessageQueue, tuple[int, int]]
"""First offset there is, and the next to come."""
Committed = dict[MessageQueue, int]

_OFFSETS = bodies.table(bodies.text, bodies.table(bodies.int32, bodies.int64))


@dataclass(slots=True)
class Standing:
    """What is known of some topics and the groups that read them."""

    spans: Spans = field(default_factory=dict)
    committed: dict[str, Committed] = field(default_factory=dict)
    """By group; queues it has committed nothing of are left out."""

    def topics(self) -> set[str]:
        return {queue.topic for queue in self.spans}

    def of(self, topic: str) -> Spans:
        return {queue: span for queue, span in self.spans.items() if queue.topic == topic}

    def groups_of(self, topic: str) -> list[str]:
        """Those that have committed something of the topic."""
        return sorted(
            group for group, places in self.committed.items() if any(one.topic == topic for one in places)
        )


def with_failures(topics: Iterable[str], groups: Iterable[str]) -> list[str]:
    """The topics, and those where failures of the groups lie."""
    return [*topics, *(name for group in groups for name in (retry_topic(group), dlq_topic(group)))]


def found(options: Found, topics: Collection[str], groups: Collection[str] | None) -> Standing:
    """From brokers or stores, wherever messages are looked for."""
    if options.is_live:
        return live(options.name_servers, tls=options.tls, topics=topics, groups=groups)
    whole = Standing()
    for name, directory in options.stores().items():
        one = of_store(directory, name, topics, groups)
        whole.spans |= one.spans
        for group, places in one.committed.items():
            whole.committed.setdefault(group, {}).update(places)
    return whole


# --- brokers ---------------------------------------------------------------------------------------


def live(
    name_servers: str, *, tls: bool, topics: Collection[str], groups: Collection[str] | None
) -> Standing:
    """As the brokers say now. Without `groups`, of all that have committed something of the topics."""

    async def ask() -> Standing:
        async with Admin(name_servers, tls=tls) as admin:
            return await _ask(admin, topics, groups)

    return Bridge.shared().run(ask())


async def _ask(admin: Admin, topics: Collection[str], groups: Collection[str] | None) -> Standing:
    known = set(await admin.topics(include_system=True))
    missing = sorted(set(topics) - known)
    if missing:
        raise ConfigError(f"topic {missing[0]} does not exist; `hotfire topic list` shows which do")
    found = Standing()
    for topic in dict.fromkeys(topics):
        found.spans |= await _spans(admin, topic)
    for group in await admin.groups() if groups is None else groups:
        places = await _committed(admin, group, found.spans)
        if groups is not None or any(queue.topic in topics for queue in places):
            found.committed[group] = places
            for topic in (retry_topic(group), dlq_topic(group)):
                if topic in known:
                    found.spans |= await _spans(admin, topic)
            # once more, for what waits to be tried again
            found.committed[group] = await _committed(admin, group, found.spans)
    return found


async def _spans(admin: Admin, topic: str) -> Spans:
    return {one.queue: (one.min_offset, one.max_offset) for one in (await admin.topic_stats(topic)).queues}


async def _committed(admin: Admin, group: str, spans: Mapping[MessageQueue, tuple[int, int]]) -> Committed:
    lags = {one.queue: one.committed_offset for one in (await admin.lag(group)).queues if one.queue in spans}
    places = {queue: offset for queue, offset in lags.items() if offset}
    # what is 0 there may also be nothing
    for topic in {queue.topic for queue, offset in lags.items() if not offset}:
        try:
            said = await admin.offsets(group, topic)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            continue
        places |= {queue: offset for queue, offset in said.items() if offset is not None and queue in spans}
    return places


# --- stores ----------------------------------------------------------------------------------------


def of_store(
    directory: str, broker_name: str, topics: Collection[str], groups: Collection[str] | None
) -> Standing:
    """As the files of a store say. A broker that runs has told its offsets to the disk some seconds ago."""
    layout = look(Disk(directory))
    found = Standing()
    for (topic, group), row in _offset_table(layout.disk).items():
        if groups is None or group in groups:
            places = found.committed.setdefault(group, {})
            places |= {MessageQueue(topic, broker_name, queue_id): offset for queue_id, offset in row.items()}
    readers = [
        group
        for group, places in found.committed.items()
        if groups is not None or any(queue.topic in topics for queue in places)
    ]
    wanted = set(with_failures(topics, readers))
    for (topic, queue_id), files in layout.queues.items():
        if topic in wanted:
            low, high, _ = queue_range(layout, files)
            found.spans[MessageQueue(topic, broker_name, queue_id)] = (low, high)
    found.committed = {
        group: {queue: offset for queue, offset in found.committed[group].items() if queue.topic in wanted}
        for group in readers
    }
    return found


def _offset_table(disk: Disk) -> dict[tuple[str, str], dict[int, int]]:
    """By topic and group. Only read: mending a table is its broker's."""
    name = f"{TABLE_ROOT}/consumerOffset.json"
    for file in (name, f"{name}.bak"):
        data = disk.read_whole(file)
        if data is None:
            continue
        try:
            rows = _OFFSETS(bodies.loads(data)["offsetTable"])
        except (ValueError, KeyError, TypeError):
            continue
        return {(key.partition("@")[0], key.partition("@")[2]): row for key, row in rows.items()}
    if disk.exists(name):
        raise StoreCorrupt(f"{disk.path(name)}: neither it nor its .bak can be read; restore it from a copy")
    return {}

"""The broker's topics: what exists, what a first message may create, and what name servers are told.

Every change is on disk before it is visible to anyone. Knows no clients and no messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from hotfire import model
from hotfire.broker.config import BrokerConfig
from hotfire.errors import BrokerRefused
from hotfire.model import DataVersion, Perm, TopicConfig, TopicTable
from hotfire.protocol.bodies import from_json, spelled, to_json
from hotfire.protocol.codes import FAQ, ResponseCode
from hotfire.store.tables import Table

SCHEDULE_QUEUES = 18
BENCHMARK_QUEUES = 1024
CLUSTER_QUEUES = 16


class Topics:
    """Topic name -> TopicConfig, kept in topics.json."""

    def __init__(self, config: BrokerConfig, table: Table) -> None:
        self._config = config
        self._table = table
        self._topics: dict[str, TopicConfig] = {}
        self._spelled: dict[str, str] = {}
        self._queue_count = 0
        self._version = DataVersion()
        self.on_change: Callable[[TopicConfig], None] = lambda topic: None
        self.on_remove: Callable[[str], None] = lambda name: None

    def load(self, now_ms: int) -> None:
        stored = self._table.load_as(lambda tree: from_json(TopicTable, tree))
        if stored is not None:
            self._take(stored.topics.values())
            self._version = stored.data_version
        self._save(
            [topic for topic in self._system_topics() if self._topics.get(topic.name) != topic], now_ms
        )

    def _system_topics(self) -> Iterator[TopicConfig]:
        """Topics that exist from the first start. The template's permission follows the setting each time."""
        config = self._config
        inherit = Perm.READ_WRITE | Perm.INHERIT
        cluster, broker = config.broker_cluster_name, config.broker_name

        def topic(name: str, queues: int, perm: int = Perm.READ_WRITE) -> TopicConfig:
            return TopicConfig(name, queues, queues, perm)

        yield topic(model.SELF_TEST_TOPIC, 1)
        if config.auto_create_topic_enable:
            yield topic(model.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, inherit)
        elif model.AUTO_CREATE_TOPIC in self._topics:
            yield topic(model.AUTO_CREATE_TOPIC, config.default_topic_queue_nums)
        yield topic(model.BENCHMARK_TOPIC, BENCHMARK_QUEUES)
        if config.cluster_topic_enable:
            yield topic(cluster, CLUSTER_QUEUES, inherit)
        if config.broker_topic_enable:
            yield topic(broker, 1, inherit)
        yield topic(model.OFFSET_MOVED_TOPIC, 1)
        yield topic(model.SCHEDULE_TOPIC, SCHEDULE_QUEUES)
        if config.trace_topic_enable:
            yield topic(config.msg_trace_topic_name, 1)
        yield topic(f"{cluster}_REPLY_TOPIC", 1)
        yield topic(model.HALF_TOPIC, 1)
        yield topic(model.HALF_OP_TOPIC, 1)
        yield topic(model.TIMER_TOPIC, 1)

    # --- look up ---

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._topics.values())

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    @property
    def version(self) -> DataVersion:
        return self._version

    def spelled(self) -> dict[str, str]:
        """Every topic as JSON of the wire, for whoever reads it beside the loop."""
        return dict(self._spelled)

    def system_names(self) -> set[str]:
        """Topics that belong to the broker, be they there or not."""
        return {*model.SYSTEM_TOPICS, *(topic.name for topic in self._system_topics())}

    def is_system(self, name: str) -> bool:
        cluster, broker = self._config.broker_cluster_name, self._config.broker_name
        return model.is_system_topic(name) or name in (cluster, broker, f"{cluster}_REPLY_TOPIC")

    def require(self, name: str, space: str = "") -> TopicConfig:
        """The topic, or the refusal clients know; `space` because the reference spells it two ways."""
        topic = self._topics.get(name)
        if topic is None:
            raise BrokerRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{space}{FAQ}"
            )
        return topic

    def registration(self) -> TopicTable:
        """What name servers are told: a broker that may not be written offers no topic for writing."""
        mask = self._config.broker_permission
        topics = self._topics
        if mask & Perm.READ_WRITE != Perm.READ_WRITE:
            topics = {name: dataclasses.replace(t, perm=t.perm & mask) for name, t in topics.items()}
        return TopicTable(topics=dict(topics), data_version=self._version, mapping_data_version=DataVersion())

    # --- change ---

    def for_send(self, name: str, template: str, queues: int, now_ms: int) -> TopicConfig:
        """The topic of a send, created from its template if that is allowed."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        model.check_topic_name(name)
        pattern = self._topics.get(template)
        if pattern is not None and pattern.perm & Perm.INHERIT:
            count = max(0, min(queues, pattern.write_queues))
            created = TopicConfig(name, count, count, pattern.perm & ~Perm.INHERIT, pattern.filter_type)
            return self.put(created, now_ms)
        if name.startswith(model.RETRY_PREFIX):
            return self.put(TopicConfig(name, 1, 1), now_ms)
        return self.require(name)

    def put(self, topic: TopicConfig, now_ms: int) -> TopicConfig:
        """Create or replace a topic."""
        self.put_all([topic], now_ms)
        return topic

    def put_all(self, topics: Iterable[TopicConfig], now_ms: int) -> None:
        """Create or replace topics: all of them in one write, or none."""
        changed = {topic.name: topic for topic in topics if self._topics.get(topic.name) != topic}
        self._check_room(changed)
        self._save(list(changed.values()), now_ms)
        for topic in changed.values():
            self.on_change(topic)

    def remove(self, names: Collection[str], now_ms: int) -> None:
        """Those topics no longer exist: on disk first, as with changes."""
        names = [name for name in names if name in self._topics]
        if not names:
            return
        kept = self._spelled.copy()
        for name in names:
            del kept[name]
        version = self._version.next(now_ms)
        self._write(version, kept)
        self._version, self._spelled = version, kept
        for name in names:
            self._queue_count -= _queues(self._topics.pop(name))
        for name in names:
            self.on_remove(name)

    def adopt(self, table: TopicTable, widths: Mapping[str, int]) -> None:
        """Be like this table of the master's, but lose sight of no message.

        `widths` says up to which queue the log has messages of a topic: one the master lacks stays, and none
        gets narrower for readers.
        """
        if table.data_version == self._version and table.topics.keys() == self._topics.keys():
            return
        kept = [topic for name, topic in self._topics.items() if name in widths]
        topics = {topic.name: topic for topic in (*kept, *table.topics.values())}
        for name, topic in topics.items():
            if topic.read_queues < (width := widths.get(name, 0)):
                topics[name] = dataclasses.replace(topic, read_queues=width)
        changed = [topic for topic in topics.values() if self._topics.get(topic.name) != topic]
        gone = self._topics.keys() - topics.keys()
        if not changed and not gone and table.data_version == self._version:
            return
        spelled = {name: text for name, text in self._spelled.items() if name in topics} | _spelled(changed)
        self._write(table.data_version, spelled)
        self._version, self._topics, self._spelled = table.data_version, topics, spelled
        self._queue_count = sum(_queues(topic) for topic in topics.values())
        for topic in changed:
            self.on_change(topic)
        for name in gone:
            self.on_remove(name)

    def configure(self, config: BrokerConfig, now_ms: int) -> None:
        """Settings have changed: system topics follow them; name servers hear of the permission."""
        before, self._config = self._config, config
        try:
            self.put_all([topic for topic in self._system_topics() if self.get(topic.name) != topic], now_ms)
        except Exception:  # no room, or a full disk: nothing was changed
            self._config = before
            raise
        if before.broker_permission != config.broker_permission:
            self._write(self._version.next(now_ms), self._spelled)
            self._version = self._version.next(now_ms)

    def _check_room(self, changed: dict[str, TopicConfig]) -> None:
        """Each topic and queue costs memory for good: what grows beyond the limits is refused."""
        topics_max, queues_max = self._config.topics_max, self._config.queues_max
        count = len(self._topics.keys() | changed.keys())
        if count > max(topics_max, len(self._topics)):
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic[{next(iter(changed))}] would be number {count}, topicsMax is {topics_max}",
            )
        queues = self._queue_count + self._more_queues(changed.values())
        if queues > max(queues_max, self._queue_count):
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic[{next(iter(changed))}] would make {queues} queues, queuesMax is {queues_max}",
            )

    def _more_queues(self, changed: Iterable[TopicConfig]) -> int:
        return sum(_queues(topic) - _queues(self._topics.get(topic.name)) for topic in changed)

    def _save(self, changed: list[TopicConfig], now_ms: int) -> None:
        """Take these topics: on disk first, so that what could not be kept does not exist."""
        if not changed:
            return
        version = self._version.next(now_ms)
        self._write(version, {**self._spelled, **_spelled(changed)})
        self._version = version
        self._take(changed)

    def _write(self, version: DataVersion, spelled: dict[str, str]) -> None:
        tree = to_json(TopicTable(data_version=version))
        tree["topicConfigTable"] = spelled
        self._table.save(tree)

    def _take(self, changed: Collection[TopicConfig]) -> None:
        self._queue_count += self._more_queues(changed)
        self._topics.update((topic.name, topic) for topic in changed)
        self._spelled.update(_spelled(changed))


def _queues(topic: TopicConfig | None) -> int:
    return 0 if topic is None else max(topic.read_queues, topic.write_queues)


def _spelled(topics: Iterable[TopicConfig]) -> dict[str, str]:
    """Each topic as text: to spell all of them for each new one would take seconds."""
    return {topic.name: spelled(to_json(topic)) for topic in topics}

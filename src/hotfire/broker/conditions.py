"""What groups ask of messages by SQL92: one condition per topic and group, kept in consumerFilter.json.

Heartbeats bring them; they outlive their group by a day and the broker by its table, so that after a restart
pulls are served before the first heartbeat. A condition is compiled once; of many that come together most are
compiled later, a few at each tick, or when somebody pulls by them. Where bitmaps are made, each has its bits,
and they count for messages stored after it was born, in this process: nothing that a former one may have
known differently is believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from hotfire import core
from hotfire.broker.config import BrokerConfig
from hotfire.model import Subscription
from hotfire.protocol.bloom import Bloom
from hotfire.protocol.bodies import dumps, from_json, to_json
from hotfire.protocol.consumerfilter import BloomBits, ConsumerFilter, FilterTable, TopicFilters
from hotfire.protocol.record import decode_record
from hotfire.protocol.sql92 import SQL92, ConditionError, compile_condition
from hotfire.store.sifting import Sieve
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

CONDITIONS_MAX = 20_000
"""Of all groups and topics; a few hundred bytes each, and up to 40 KiB for whoever writes such."""
SAVE_PERIOD_MS = 10_000
CLEANED_MAX = 1000
"""Dead ones looked at with each save: all of them within minutes, and they stay for a day."""
REMEMBERED_MS = 120_000
"""After a start, so long a condition from the table stands in for the heartbeat that has yet to come."""
AT_ONCE_CHARACTERS_MAX = 1024
"""Of the conditions compiled between two ticks, unless it is a single one: 3 ms."""
TRUE = 1


@dataclass(slots=True)
class Condition:
    """One group's condition on one topic."""

    topic: str
    group: str
    expression: str
    version: int
    """Of the subscription: a client says the time it subscribed."""
    sieve: Sieve
    born_ms: int
    dead_ms: int = 0
    remembered_until_ms: int = 0
    """From the table of a former life, and nothing was heard of its group yet."""

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class Conditions:
    """Topic -> group -> condition."""

    def __init__(self, config: BrokerConfig, store: Store, now_ms: int) -> None:
        self._table = store.table("consumerFilter.json")
        self._store = store
        self._bloom = Bloom.sized(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._clean_ms = config.filter_data_clean_time_span
        self._topics: dict[str, dict[str, Condition]] = {}
        self._groups: dict[str, dict[str, Condition]] = {}
        """The same by group, and then by topic."""
        self._stored: dict[tuple[str, str], ConsumerFilter] = {}
        """Each as the table has it, by topic and group: a copy of this is all the loop does of a save."""
        self._dead: dict[tuple[str, str], Condition] = {}
        self._count = 0
        self._waiting: dict[tuple[str, str], Subscription] = {}
        """Topic and group -> what is yet to be compiled."""
        self._at_once = 0
        self._dirty = False
        self._saved_ms = now_ms
        self._load(now_ms)
        if config.enable_calc_filter_bit_map:
            store.bitmaps.of, store.bitmaps.topics = self.bitmap, self.has

    def __len__(self) -> int:
        return self._count

    def _load(self, now_ms: int) -> None:
        """What the table holds counts as dead, unless its group is heard of again."""
        stored = self._table.load_as(lambda tree: from_json(FilterTable, tree))
        if stored is None:
            self._dirty = True  # the reference's broker expects to find the table
            self.save(now_ms)
            return
        for one in (one for topic in stored.topics.values() for one in topic.groups.values()):
            condition = self._made(one.topic, one.group, one.expression, one.kind, one.version, now_ms)
            if condition is not None and self._count < CONDITIONS_MAX:
                condition.dead_ms = one.dead_ms if one.dead_ms >= one.born_ms > 0 else now_ms
                condition.born_ms = min(condition.born_ms, condition.dead_ms)
                condition.remembered_until_ms = now_ms + REMEMBERED_MS if one.dead_ms < one.born_ms else 0
                self._put(condition)

    # --- asked ---

    def get(self, topic: str, group: str) -> Condition | None:
        return self._topics.get(topic, {}).get(group)

    def hurry(self, topic: str, group: str, now_ms: int) -> Condition | None:
        """The condition, compiled now if it still waits for that: somebody pulls by it."""
        wanted = self._waiting.pop((topic, group), None)
        if wanted is not None:
            self._take(wanted, group, now_ms)
        return self.get(topic, group)

    def remembered(self, topic: str, group: str, now_ms: int) -> Condition | None:
        """A condition from before the restart, while its group has not been heard of."""
        condition = self.get(topic, group)
        return condition if condition is not None and now_ms < condition.remembered_until_ms else None

    def told(self, topic: str, group: str) -> str:
        """The condition as JSON, for people; `null` if there is none."""
        stored = self._stored.get((topic, group))
        return "null" if stored is None else dumps(to_json(stored)).decode()

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def for_retry(self, group: str, now_ms: int) -> Sieve | None:
        """Messages that came back pass if they pass the condition on the topic they were sent to at first."""
        for topic in [topic for topic, whose in self._waiting if whose == group]:
            self.hurry(topic, group, now_ms)
        theirs = self._of_group(group)
        if not theirs:
            return None
        names = [f"'{one.topic}'" for one in theirs]
        parts = [f"(RETRY_TOPIC = '{one.topic}' AND ({one.expression}\n))" for one in theirs]
        try:
            return Sieve(
                compile_condition(
                    " OR ".join([f"RETRY_TOPIC IS NULL OR RETRY_TOPIC NOT IN ({', '.join(names)})", *parts])
                )
            )
        except ConditionError:  # too long together
            return None

    def bitmap(self, topic: str, record: bytes) -> bytes:
        """The bits of every condition on the topic that the record passes."""
        properties = decode_record(record, check_crc=False).properties
        bitmap = bytearray(self._bloom.bits // 8)
        for condition in self._topics.get(topic, {}).values():
            if core.sql_verdict(condition.sieve.program, properties) == TRUE:
                for bit in condition.sieve.bits:
                    bitmap[bit >> 3] |= 1 << (bit & 7)
        return bytes(bitmap)

    # --- told ---

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> None:
        """A heartbeat of the group: all its subscriptions."""
        named = set()
        for wanted in subscriptions:
            named.add(wanted.topic)
            if wanted.kind == SQL92 and wanted.expression:
                self._register(wanted, group, now_ms)
        for condition in self._of_group(group):
            condition.remembered_until_ms = 0
            if condition.topic not in named:
                self._die(condition, now_ms)
        self._forget_waiting(lambda topic, whose: whose == group and topic not in named)

    def _register(self, wanted: Subscription, group: str, now_ms: int) -> None:
        old = self.get(wanted.topic, group)
        if old is not None and wanted.version <= old.version:
            if wanted.version == old.version:
                self._revive(old)
            return
        if old is not None and old.expression == wanted.expression:
            old.version = wanted.version
            old.dead_ms = 0
            self._changed(old)
            return
        waiting = self._waiting.get((wanted.topic, group))
        if waiting is not None and wanted.version <= waiting.version:
            return
        if old is not None:  # should the new one be wrong, its client is told
            self._drop(old)
        self._waiting.pop((wanted.topic, group), None)
        if self._count + len(self._waiting) >= CONDITIONS_MAX:
            log.warning(
                "condition not taken, there are %d already group=%s topic=%s",
                self._count + len(self._waiting), group, wanted.topic,
            )  # fmt: skip
        elif self._has_time(wanted):
            self._take(wanted, group, now_ms)
        else:
            self._waiting[wanted.topic, group] = wanted

    def _has_time(self, wanted: Subscription) -> bool:
        """Whether it may be compiled before the next tick. A single one always may, however long it is."""
        self._at_once += len(wanted.expression)
        is_single = self._at_once == len(wanted.expression)
        return is_single or self._at_once <= AT_ONCE_CHARACTERS_MAX

    def _take(self, wanted: Subscription, group: str, now_ms: int) -> None:
        made = self._made(wanted.topic, group, wanted.expression, wanted.kind, wanted.version, now_ms)
        if made is not None:
            self._put(made)

    def _take_waiting(self, now_ms: int) -> None:
        self._at_once = 0
        while self._waiting:
            (topic, group), wanted = next(iter(self._waiting.items()))
            if not self._has_time(wanted):
                return
            self.hurry(topic, group, now_ms)

    def _forget_waiting(self, is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in self._waiting if is_gone(*key)]:
            del self._waiting[key]

    def leave(self, group: str, now_ms: int) -> None:
        """The group has no members any more."""
        for condition in self._of_group(group):
            condition.remembered_until_ms = 0
            self._die(condition, now_ms)
        self._forget_waiting(lambda topic, whose: whose == group)

    def forget_topic(self, topic: str) -> None:
        self._forget_waiting(lambda of, whose: of == topic)
        for condition in list(self._topics.get(topic, {}).values()):
            self._drop(condition)

    # --- on disk ---

    def tick(self, now_ms: int) -> None:
        self._take_waiting(now_ms)
        if now_ms - self._saved_ms < SAVE_PERIOD_MS:
            return
        self._saved_ms = now_ms
        self._clean(now_ms)
        if not self._table.is_writing:
            self._dirty = not self._table.settle() or self._dirty
            if self._dirty:
                self._dirty = False
                stored = self._stored.copy()
                self._table.save_beside(lambda: _tree(stored))

    def save(self, now_ms: int) -> None:
        """Write the table and wait for the disk."""
        self._saved_ms = now_ms
        if self._dirty:
            self._table.save(_tree(self._stored))
            self._dirty = False

    def _changed(self, one: Condition) -> None:
        """It is written with the next save, as it is now."""
        key = one.topic, one.group
        bits = BloomBits(self._bloom.bits, one.sieve.bits)
        self._stored[key] = ConsumerFilter(
            *key, one.expression, SQL92, bits, one.born_ms, one.version, one.is_dead, one.dead_ms
        )
        if one.is_dead:
            self._dead[key] = one
        else:
            self._dead.pop(key, None)
        self._dirty = True

    # --- inside ---

    def _made(
        self, topic: str, group: str, expression: str, kind: str, version: int, now_ms: int
    ) -> Condition | None:
        """None when it means nothing. Born now, or with the newest message if the clock has gone back."""
        if kind != SQL92:
            return None
        try:
            program = compile_condition(expression)
        except ConditionError as error:
            log.warning("condition not taken group=%.120s topic=%.120s reason=%s", group, topic, error)
            return None
        born_ms = max(now_ms, self._store.journal.last_timestamp)
        bits = self._bloom.positions(f"{group}#{topic}")
        sieve = Sieve(program, bits, self._bloom.bits // 8, born_ms)
        return Condition(topic, group, expression, version, sieve, born_ms)

    def _put(self, condition: Condition) -> None:
        self._topics.setdefault(condition.topic, {})[condition.group] = condition
        self._groups.setdefault(condition.group, {})[condition.topic] = condition
        self._count += 1
        self._changed(condition)

    def _drop(self, condition: Condition) -> None:
        topic, group = condition.topic, condition.group
        for index, key, other in ((self._topics, topic, group), (self._groups, group, topic)):
            del index[key][other]
            if not index[key]:
                del index[key]
        self._stored.pop((topic, group), None)
        self._dead.pop((topic, group), None)
        self._count -= 1
        self._dirty = True

    def _die(self, condition: Condition, now_ms: int) -> None:
        if not condition.is_dead:
            condition.dead_ms = max(now_ms, condition.born_ms)
            self._changed(condition)

    def _revive(self, condition: Condition) -> None:
        if condition.is_dead:
            condition.dead_ms = 0
            self._changed(condition)

    def _clean(self, now_ms: int) -> None:
        """Look at some of the dead; those that stay have their turn again when all others have had theirs."""
        for key, condition in list(islice(self._dead.items(), CLEANED_MAX)):
            del self._dead[key]
            if now_ms - condition.dead_ms >= self._clean_ms:
                self._drop(condition)
            else:
                self._dead[key] = condition

    def _of_group(self, group: str) -> list[Condition]:
        return list(self._groups.get(group, {}).values())


def _tree(stored: Mapping[tuple[str, str], ConsumerFilter]) -> dict[str, object]:
    topics: dict[str, dict[str, ConsumerFilter]] = {}
    for (topic, group), one in stored.items():
        topics.setdefault(topic, {})[group] = one
    tree: dict[str, object] = to_json(
        FilterTable({topic: TopicFilters(topic, groups) for topic, groups in topics.items()})
    )
    return tree

"""The tables of the compiled lane, kept true: which topics and which pulls it may serve without asking.

A grant is what the pull handler found out about a (group, topic): that it may pull, and with which filter. It
is given after a pull was served the long way and taken back whenever any of its grounds changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotfire import core
from hotfire.broker.backlog import backlog_max
from hotfire.broker.config import BrokerConfig
from hotfire.broker.put import UNDELIVERED
from hotfire.model import RETRY_PREFIX, RETRY_TOPIC_CHARACTERS_MAX, Perm, TopicConfig
from hotfire.protocol.codes import VERSION
from hotfire.protocol.command import FRAME_BYTES_MAX
from hotfire.protocol.record import BLANK_BYTES, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, Host
from hotfire.store.reading import PULL_LIMITS
from hotfire.store.sifting import COST_MAX
from hotfire.store.store import Store
from hotfire.store.timerwheel import TimerWheel

GRANTS_MAX = 65_536
GRANT_CODES_MAX, GRANT_EXPRESSION_CHARACTERS_MAX, GRANT_PROGRAM_BYTES_MAX = 64, 1024, 4096
"""Larger filters stay with the handler: a table of them would pin memory for whoever names them once."""
ADDRESSES_BYTES_MAX = 24
"""What two IPv6 hosts take more than two IPv4 ones."""
TOPIC_LENGTH_BYTES_MORE = 1
"""Records of version 2, for topics over 127 bytes, take two bytes for the topic's length."""
RECORD_BYTES_BESIDE_BODY_MAX = (
    RECORD_BYTES_MIN
    + ADDRESSES_BYTES_MAX
    + TOPIC_LENGTH_BYTES_MORE
    + RETRY_TOPIC_CHARACTERS_MAX
    + PROPERTIES_BYTES_MAX
)
BATCH_BYTES_MAX = 0x7FFFFFFF
"""What the records of a batch may take in the log, if its segments are large enough."""
NEXT_PARTIAL, NEXT_HANDLER, NEXT_BAD_LENGTH, NEXT_FULL, NEXT_SEGMENT, NEXT_MUCH = range(6)
"""Why the lane stopped, as lane.c numbers it."""

Token = tuple[str, str]


class FastLane:
    """The lane and its tables; without the compiled core it serves nothing and costs nothing."""

    def __init__(
        self, config: BrokerConfig, store: Store, store_host: Host, suffix: bytes, halves: core.Halves
    ) -> None:
        self._config = config
        self._store = store
        self._topics: dict[bytes, tuple[tuple[core.Queue, ...], tuple[core.Queue, ...], int]] = {}
        self._grants: dict[bytes, tuple[int, tuple[int, ...] | bytes | None, int, Token]] = {}
        self._keys_of_group: dict[str, set[bytes]] = {}
        self._timers: tuple[core.Queue, TimerWheel] | None = None
        self.lane: core.Lane | None = None
        # It asks for a new segment until its record fits: give it only records that fit an empty one.
        largest = config.mapped_file_size_commit_log - BLANK_BYTES - RECORD_BYTES_BESIDE_BODY_MAX
        if core.COMPILED and config.fast_lane_enable:
            self.lane = core.Lane(
                journal=store.journal,
                topics=self._topics,
                grants=self._grants,
                store_host=store_host.address + store_host.port.to_bytes(4),
                id_prefix=(store_host.address + store_host.port.to_bytes(4)).hex().upper(),
                suffix=suffix,
                region=config.region_id,
                trace_on=config.trace_on,
                version=VERSION,
                append_crc=config.enabled_append_prop_crc,
                frame_max=FRAME_BYTES_MAX - 4,
                body_max=max(0, min(config.max_message_size, largest)),
                batch_max=min(config.mapped_file_size_commit_log - BLANK_BYTES, BATCH_BYTES_MAX),
                memory_window=store.memory_window,
                pull_limits=PULL_LIMITS,
                cost_max=COST_MAX,
                halves=halves,
            )
            self.lane.takes_halves = not config.reject_transaction_message

    def take_timers(self, queue: core.Queue, wheel: TimerWheel) -> None:
        """Messages with a time of their own are parked by the lane: in this queue, as this wheel has room."""
        self._timers = queue, wheel
        self._settle_timers()

    def _settle_timers(self) -> None:
        if self.lane is None or self._timers is None:
            return
        config, (queue, wheel) = self._config, self._timers
        parks = queue if config.timer_wheel_enable else None
        name, most_ms = config.broker_name.encode(), config.timer_max_delay_sec * 1000
        self.lane.take_timers(parks, wheel, name, most_ms, config.timer_congest_num_each_slot)

    def topic_changed(self, topic: TopicConfig) -> None:
        """Let the lane serve `topic`; topics with rules of their own stay with the handlers."""
        if self.lane is None:
            return
        name = topic.name.encode()
        closed = topic.order and not self._config.broker_permission & Perm.WRITE
        special = (
            closed
            or topic.name in UNDELIVERED
            or topic.name.startswith(RETRY_PREFIX)
            or backlog_max(self._config, topic) > 0
        )
        # Apache does not check a topic's write permission on send, and takes ids up to the larger count
        writable = 0 if special else max(topic.write_queues, topic.read_queues)
        readable = topic.read_queues if topic.readable else 0
        queues = tuple(self._store.queue(topic.name, i) for i in range(max(writable, readable)))
        self._topics[name] = (queues[:writable], queues[:readable], topic.sys_flag)

    def topic_removed(self, name: str) -> None:
        self._topics.pop(name.encode(), None)

    def configure(self, config: BrokerConfig, topics: Iterable[TopicConfig]) -> None:
        """Settings have changed: ordered topics may be closed or open now, pulls are to be granted anew."""
        before, self._config = self._config, config
        self.revoke_all()
        if self.lane is not None:
            self.lane.takes_halves = not config.reject_transaction_message
            self._settle_timers()
        limits_changed = before.topic_backlog_max != config.topic_backlog_max
        if limits_changed or before.broker_permission != config.broker_permission:
            for topic in topics:
                if topic.order or limits_changed:
                    self.topic_changed(topic)

    def revoke_all(self) -> None:
        self._grants.clear()
        self._keys_of_group.clear()

    def grant(
        self,
        group: str,
        topic: str,
        *,
        expression: str | None,
        version: int,
        codes: tuple[int, ...] | None,
        program: bytes | None = None,
        group_flag: int,
    ) -> None:
        """`expression` is the header's own; None when the heartbeat's subscription of `version` counts."""
        if self.lane is None:
            return
        if len(codes or ()) > GRANT_CODES_MAX or len(expression or "") > GRANT_EXPRESSION_CHARACTERS_MAX:
            return
        if len(program or b"") > GRANT_PROGRAM_BYTES_MAX:
            return
        if len(self._grants) >= GRANTS_MAX:
            self.revoke_all()
        parts = [group, topic] if expression is None else [group, topic, expression]
        key = b"\0".join(part.encode() for part in parts)
        ordered = None if codes is None else tuple(sorted(codes))
        self._grants[key] = (version, ordered if program is None else program, group_flag, (topic, group))
        self._keys_of_group.setdefault(group, set()).add(key)

    def revoke(self, group: str) -> None:
        for key in self._keys_of_group.pop(group, ()):
            self._grants.pop(key, None)

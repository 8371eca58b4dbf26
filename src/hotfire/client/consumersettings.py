"""What a consumer can be told, with the Java client's defaults; checked before anything is dialled."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hotfire.errors import ConfigError

MIB = 1024 * 1024
BATCH_BYTES = 256 * 1024
BULK_COUNT_MAX = 4096
RETRIES_MAX = 16


class ConsumeFrom(enum.Enum):
    """Where a group begins that has no offset for a queue yet.

    >>> consumer = Consumer("127.0.0.1:9876", group="audit", consume_from=ConsumeFrom.FIRST)
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def check_consume_from(group: str, given: object) -> None:
    if not isinstance(given, ConsumeFrom):
        names = ", ".join(str(one) for one in ConsumeFrom)
        raise ConfigError(f"group {group}: consume_from={given!r:.60} is none of {names}")


@dataclass(frozen=True, slots=True)
class Pace:
    """Times a consumer goes by. Shorter ones are for tests."""

    after_error_s: float = 1.0
    after_flow_control_s: float = 0.02
    look_again_s: float = 1.0
    """A pull that waits for room, or to be resumed, says at least this often that it lives."""
    first_pull_s: float = 0.3
    """After queues were shared anew, for those who had them to commit what they did."""
    pull_expired_s: float = 120.0
    local_retry_s: float = 5.0
    send_back_timeout_s: float = 5.0
    lock_interval_s: float = 20.0
    lock_first_s: float = 1.0
    lock_lease_s: float = 30.0
    lock_timeout_s: float = 1.0
    unlock_forced_s: float = 20.0
    relock_s: float = 0.01
    relock_failed_s: float = 3.0
    turn_max_s: float = 60.0
    reset_wait_s: float = 10.0
    close_listeners_s: float = 1.0
    close_offsets_s: float = 0.5
    start_s: float = 3.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    group: str
    broadcasting: bool = False
    orderly: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_timestamp_ms: int | None = None
    batch_max: int = 1
    concurrency: int = 20
    threads: int = 20
    max_rate: float | None = None
    retries_max: int | None = None
    suspend_ms: int = 1000
    consume_timeout_s: float = 900.0
    pull_batch: int = 32
    pull_batch_bytes: int = BATCH_BYTES
    """Above 256 KiB, brokers that know bulk pulls give as many as `pull_batch` says, up to 4096 and 4 MiB."""
    pull_interval_s: float = 0.0
    queue_count_max: int = 1000
    queue_bytes_max: int = 100 * MIB
    topic_count_max: int | None = None
    topic_bytes_max: int | None = None
    span_max: int = 2000
    send_expressions: bool = False
    """Each pull carries the subscription, instead of relying on what heartbeats told."""
    pace: Pace = Pace()

    @property
    def is_bulk(self) -> bool:
        """Whether pulls ask for more than other brokers than ours would give."""
        return self.pull_batch_bytes > BATCH_BYTES

    def check(self) -> None:
        """ConfigError for what cannot work."""
        if self.broadcasting and self.orderly:
            raise ConfigError(
                f"group {self.group}: orderly=True with broadcasting=True: a queue that every member reads "
                "cannot be locked by one; consume in order in a group without broadcasting"
            )
        ranges: tuple[tuple[str, float | None, float, float], ...] = (
            ("batch_max", self.batch_max, 1, 1024),
            ("concurrency", self.concurrency, 1, 1000),
            ("threads", self.threads, 0, 1000),
            ("max_rate", self.max_rate, 0.001, 1e9),
            ("retries_max", self.retries_max, -1, 2**31 - 1),
            ("suspend_ms", self.suspend_ms, 10, 30_000),
            ("consume_timeout_s", self.consume_timeout_s, 0.001, 1e9),
            ("pull_batch", self.pull_batch, 1, BULK_COUNT_MAX if self.is_bulk else 1024),
            ("pull_batch_bytes", self.pull_batch_bytes, BATCH_BYTES, 2**31 - 1),
            ("pull_interval_s", self.pull_interval_s, 0, 65.535),
            ("queue_count_max", self.queue_count_max, 1, 65_535),
            ("queue_bytes_max", self.queue_bytes_max, 1, 2**40),
            ("topic_count_max", self.topic_count_max, 1, 6_553_500),
            ("topic_bytes_max", self.topic_bytes_max, 1, 2**40),
            ("span_max", self.span_max, 1, 65_535),
        )
        check_consume_from(self.group, self.consume_from)
        for name, value, low, high in ranges:
            if value is not None and not isinstance(value, (int, float)):
                raise ConfigError(f"group {self.group}: {name}={value!r:.60} is not a number")
            if value is not None and not low <= value <= high:
                raise ConfigError(f"group {self.group}: {name}={value:g} is not within {low:g} to {high:g}")
        if self.consume_from is not ConsumeFrom.TIMESTAMP and self.consume_timestamp_ms is not None:
            raise ConfigError(
                f"group {self.group}: consume_timestamp_ms needs consume_from=ConsumeFrom.TIMESTAMP"
            )

    def count_max(self, queues: int) -> int:
        """Messages one of so many queues of a topic may hold here."""
        return (
            self.queue_count_max if self.topic_count_max is None else max(1, self.topic_count_max // queues)
        )

    def bytes_max(self, queues: int) -> int:
        return (
            self.queue_bytes_max if self.topic_bytes_max is None else max(1, self.topic_bytes_max // queues)
        )

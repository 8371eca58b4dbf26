"""What a store must be told. Sizes, times and ratios; where they come from is the broker's affair."""

from __future__ import annotations

from dataclasses import dataclass, field

ENTRY_BYTES = 20
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays_ms(levels: str) -> tuple[int, ...]:
    """Milliseconds of each delay level; ValueError when the text is none.

    >>> delays_ms("1s 2h")
    (1000, 7200000)
    """
    return tuple(int(one[:-1]) * _UNIT_MS[one[-1]] for one in levels.split())


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """When files of the log go, with the reference implementation's defaults."""

    hours: tuple[int, ...] = (4,)
    """Of the day, at which expired files are removed."""
    reserved_hours: int = 72
    disk_clean_ratio: float = 0.75
    """Above this, expired files go at any hour."""
    disk_force_ratio: float = 0.85
    """Above this, the oldest go whatever their age."""
    disk_refuse_ratio: float = 0.90
    """Above this, nothing more is stored."""
    may_force: bool = True
    period_ms: int = 10_000
    batch_max: int = 10
    pause_ms: int = 100
    """Between two removals."""
    forced_after_ms: int = 120_000
    """A file still read so long after it was let go loses its name all the same."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of one store directory, with the reference implementation's defaults.

    `sync_flush` differs on purpose: nothing is acknowledged before it is on the disk unless asked for.
    """

    segment_bytes: int = 1 << 30
    queue_file_bytes: int = 300_000 * ENTRY_BYTES
    queue_ext: bool = False
    queue_ext_file_bytes: int = 48 << 20
    sync_flush: bool = True
    append_crc: bool = True
    flush_interval_ms: int = 500
    flush_timed: bool = True
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    queue_flush_interval_ms: int = 1000
    dirty_bytes_max: int = 256 << 20
    """ASYNC_FLUSH: written and not yet synced; beyond it each turn waits for the disk."""
    turn_bytes_max: int = 32 << 20
    copied_turn_bytes_max: int = 2 << 20
    """ASYNC_FLUSH: a turn waits for no disk, so nothing is gained by more of it than the processor's cache
    holds: what has left the cache takes several times as long to copy."""
    cold_bytes_per_s: int = 16 << 20
    """Read from the disk while turns are written, or twice what is written if that is more; 0: no bound."""
    busy_ms: int = 1000
    """ASYNC_FLUSH: a write into the page cache that takes longer says that the disk does not keep up."""
    index_enable: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    delays_ms: tuple[int, ...] = delays_ms(DELAY_LEVELS)
    """Of the delay levels, lowest first: a queue entry of a delayed message holds its time of delivery."""
    pool_buffers: int = 0
    """Transient pool: buffers of a segment's size, locked in memory; 0 for none."""
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    def __post_init__(self) -> None:
        if self.queue_file_bytes % ENTRY_BYTES or self.queue_file_bytes <= 0:
            raise ValueError(
                f"queue file of {self.queue_file_bytes} bytes is not a multiple of {ENTRY_BYTES}"
            )
        if self.segment_bytes < 4096:
            raise ValueError(f"log segment of {self.segment_bytes} bytes, at least 4096 are needed")

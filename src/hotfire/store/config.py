"""What a store must be told. Sizes and intervals only; where they come from is the broker's affair."""

from __future__ import annotations

from dataclasses import dataclass

ENTRY_BYTES = 20


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
    queue_flush_interval_ms: int = 1000
    turn_bytes_max: int = 32 << 20
    index_enable: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000

    def __post_init__(self) -> None:
        if self.queue_file_bytes % ENTRY_BYTES or self.queue_file_bytes <= 0:
            raise ValueError(
                f"queue file of {self.queue_file_bytes} bytes is not a multiple of {ENTRY_BYTES}"
            )
        if self.segment_bytes < 4096:
            raise ValueError(f"log segment of {self.segment_bytes} bytes, at least 4096 are needed")

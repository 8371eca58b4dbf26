"""Records of a store that cannot be read: an error, left out and counted, or rows with a reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from hotfire.errors import RecordInvalid, StoreCorrupt
from hotfire.protocol.record import Record, decode_record, parse_properties, without_crc
from hotfire.spark.schema import DAMAGE, Column, arrow_schema

log = logging.getLogger("hotfire.spark")

Policy = Literal["fail", "skip", "keep"]
LOGGED_MAX = 10
KEPT_MAX = 1000
"""Rows that wait to become a batch of their own."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One record, or a stretch of the log that holds none; as much of it as is known."""

    place: str
    offset: int
    reason: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    raw: bytes = b""

    def __str__(self) -> str:
        whose = (
            ""
            if self.topic is None
            else f", topic {self.topic} queue {self.queue_id} offset {self.queue_offset}"
        )
        return f"{self.place} (log offset {self.offset}{whose}): {self.reason}"


class Damages:
    """What becomes of damaged records of one partition."""

    def __init__(self, root: str, policy: Policy, columns: tuple[Column, ...], broker_name: str) -> None:
        self._root = root
        self._policy = policy
        self._columns = columns
        self._broker_name = broker_name
        self._kept: list[dict[str, Any]] = []
        self.count = 0

    def add(self, damage: Damage) -> None:
        if self._policy == "fail":
            raise StoreCorrupt(
                f"{self._root}/{damage}. Set option damaged to skip to leave such records out, or to keep to "
                "have them as rows with the reason in column damage"
            )
        self.count += 1
        if self._policy == "keep":
            self._kept.append(self._row(damage))
        elif self.count <= LOGGED_MAX:
            log.warning("%s/%s; left out", self._root, damage)

    def batches(self, *, is_end: bool = False) -> Iterator[pa.RecordBatch]:
        """Rows of what was kept, once they are many; at the end the rest, and a line for the operator."""
        if self._kept and (is_end or len(self._kept) >= KEPT_MAX):
            schema = arrow_schema(self._columns)
            yield pa.RecordBatch.from_pylist(self._kept, schema=schema)
            self._kept = []
        if is_end and self.count:
            log.warning("store=%s damaged=%s records=%d", self._root, self._policy, self.count)

    def _row(self, damage: Damage) -> dict[str, Any]:
        """Where it is and why; with what the record says of itself, as far as it has a layout."""
        row: dict[str, Any] = {
            "topic": damage.topic,
            "brokerName": self._broker_name,
            "queueId": damage.queue_id,
            "queueOffset": damage.queue_offset,
            "commitLogOffset": damage.offset,
            DAMAGE.name: damage.reason,
        }
        try:
            record = decode_record(damage.raw, check_crc=False)
        except RecordInvalid:
            return row
        said = _said(record)
        return said | {name: value for name, value in row.items() if value is not None}


def _said(record: Record) -> dict[str, Any]:
    properties = parse_properties(without_crc(record.properties))
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": properties.get("UNIQ_KEY", record.message_id),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": record.body,
        "properties": list(properties.items()),
        "bornTimestamp": _time(record.born_timestamp),
        "storeTimestamp": _time(record.store_timestamp),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": record.sys_flag,
    }


def _time(ms: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return None

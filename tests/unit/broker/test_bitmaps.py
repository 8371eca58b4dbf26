"""Bitmaps that the reference wrote by its groups' conditions, and those we make of the same messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotfire.broker.conditions import Conditions
from hotfire.broker.config import BrokerConfig
from hotfire.protocol.bloom import Bloom
from hotfire.store.disk import Disk
from hotfire.store.queueext import QueueExt
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from tests.unit.store.test_queueext import FILE_BYTES, GOLDEN_CONFIG, golden_queues
from tests.wire.golden import unpack_store

TOPIC = "sql"


@pytest.fixture
def recorded(in_memory: Path) -> Path:
    unpack_store("store-ext", in_memory)
    return in_memory / "store"


def filters_of_the_reference(root: Path) -> dict[str, dict[str, Any]]:
    """Its consumerFilter.json: group -> what it says of the condition on the topic."""
    tree = json.loads((root / "config" / "consumerFilter.json").read_text())
    groups: dict[str, dict[str, Any]] = tree["filterDataByTopic"][TOPIC]["groupFilterData"]
    return groups


def bitmaps_of_the_reference(root: Path) -> dict[int, bytes]:
    """Log offset of each message of the topic -> the bitmap in its queue's extension."""
    found: dict[int, bytes] = {}
    for topic, queue_id, entries in golden_queues():
        if topic != TOPIC:
            continue
        ext = QueueExt(Disk(root), topic, queue_id, FILE_BYTES)
        ext.load()
        for physical, _, address in entries:
            unit = ext.get(address)
            assert unit is not None
            found[physical] = unit.bitmap
        ext.close()
    return found


def test_a_group_has_the_bits_the_reference_gave_it(recorded: Path) -> None:
    """As many of as many, in the same places, by the reference's own defaults."""
    defaults = BrokerConfig()
    bloom = Bloom.sized(defaults.max_error_rate_of_bloom_filter, defaults.expect_consumer_num_use_filter)
    written = filters_of_the_reference(recorded)
    assert len(written) == 2
    for group, said in written.items():
        assert said["bloomFilterData"]["bitNum"] == bloom.bits
        assert said["bloomFilterData"]["bitPos"] == list(bloom.positions(f"{group}#{TOPIC}"))


def test_bitmaps_are_those_the_reference_wrote(recorded: Path) -> None:
    """From its table of conditions and each message's properties the very bytes come that it stored."""
    theirs = bitmaps_of_the_reference(recorded)
    ours: dict[int, bytes] = {}
    store = Store(Disk(recorded), GOLDEN_CONFIG)
    store.open()
    conditions = Conditions(BrokerConfig(), store, now_ms=store.journal.last_timestamp)
    for queue_id in (0, 1):
        read = store.read(TOPIC, queue_id, 0, count_max=64, bytes_max=1 << 30)
        assert read.status is ReadStatus.FOUND
        assert read.data is not None
        at = 0
        for physical, size, _ in read.pieces:
            ours[physical] = conditions.bitmap(TOPIC, read.data[at : at + size])
            at += size
    store.close()
    assert ours == theirs
    kinds = set(theirs.values())
    assert len(kinds) >= 3, "some pass one condition, some the other, some none"
    assert bytes(14) in kinds

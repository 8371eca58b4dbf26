"""A partition is read whole, or its reading fails: no answer of a broker is a gap that nobody sees."""

from typing import Any

import pytest

from hotfire.client.pulling import Fetched, PullStatus
from hotfire.client.queuereader import QueueReader
from hotfire.errors import Timeout
from hotfire.model import MessageQueue
from hotfire.spark import reading
from hotfire.spark.offsets import Range
from hotfire.spark.reading import Part, RangeReader
from hotfire.spark.schema import COLUMNS
from hotfire.spark.sourceoptions import SourceOptions
from tests.unit.spark.conftest import Topics


def test_a_broker_that_says_ask_again_is_asked_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has too much to read, and nothing is lost: nothing is passed over where losses are put up with."""
    topics.make("T", 20, queues=1)
    fetch, left = QueueReader.fetch, 2

    async def busy(
        reader: QueueReader, queue: MessageQueue, offset: int, *rest: Any, **named: Any
    ) -> Fetched:
        nonlocal left
        left -= 1
        if left >= 0:
            return Fetched(PullStatus.NOTHING_MATCHED, b"", offset, 0, 20)
        return await fetch(reader, queue, offset, *rest, **named)

    monkeypatch.setattr(QueueReader, "fetch", busy)
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    part = Part((Range(MessageQueue("T", "broker-0", 0), 0, 20),), ())
    for fails in ("true", "false"):
        left = 2
        given = {
            "nameServers": topics.namesrv,
            "subscribe": "T",
            "failOnDataLoss": fails,
            "pollTimeoutMs": "1000",
        }
        options = SourceOptions.read(given, streaming=False)
        assert sum(batch.num_rows for batch in RangeReader(options, part, COLUMNS)) == 20
        left = 1 << 30
        with pytest.raises(Timeout, match="at 0: nothing came for 1 s: its broker has too much to read"):
            list(RangeReader(options, part, COLUMNS))

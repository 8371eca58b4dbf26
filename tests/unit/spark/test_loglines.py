"""Lines of a log, sent without waiting for an answer, on their way to storage and into a query."""

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hotfire import Message, sync
from hotfire.errors import HotfireError
from hotfire.spark.pipelines import archive, reconcile, sql
from tests.unit.spark.conftest import Topics
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(180)
LINES = 150


def _log(topics: Topics) -> int:
    """Lines sent oneway, while the line to the broker is cut for a third of them; how many it stored."""
    proxy = topics.cluster.brokers[0].proxy
    assert proxy is not None
    with sync.Producer(topics.namesrv) as producer:
        for number in range(LINES - 1):
            if number == LINES // 3:
                proxy.hold("requests")
            if number == 2 * LINES // 3:
                proxy.cut()
                proxy.flow("requests")
            with suppress(HotfireError):
                producer.send_oneway(Message("logs", b"line %d" % number))
        producer.send(Message("logs", b"the last line"))  # once it is answered, those before it were taken
    with sync.QueueReader(topics.namesrv) as reader:
        return sum(reader.max_offset(queue) for queue in reader.queues("logs"))


@pytest.mark.promise(220)
@pytest.mark.hotfire(proxied=True)
def test_lines_lost_on_the_way_are_counted(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the broker stored is in the archive, a query over it counts just that, and what is missing of what
    was sent is told by its number.
    """
    topics.cluster.create_topic("logs", queues=1)
    stored = _log(topics)
    assert 0 < stored < LINES
    to, counted = tmp_path / "archive", tmp_path / "counted.csv"
    assert run_pipeline(spark, archive, namesrv=topics.namesrv, topic=("logs",), to=str(to)) == 0
    query: dict[str, Any] = {
        "query": "SELECT count(*) AS n, count(DISTINCT body) AS lines FROM logs",
        "table": (f"logs=archive:{to}",),
        "format": "csv",
        "out": str(counted),
    }
    assert run_pipeline(spark, sql, namesrv=topics.namesrv, **query) == 0
    assert _rows(counted) == [{"n": str(stored), "lines": str(stored)}]
    capsys.readouterr()
    said: dict[str, Any] = {"namesrv": topics.namesrv, "topic": ("logs",), "json": True}
    assert run_pipeline(spark, reconcile, sent=(f"logs={LINES}",), **said) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["faults"] == [f"topic logs: {LINES - stored} of {LINES} messages sent are not stored"]


def _rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))

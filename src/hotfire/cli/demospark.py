"""The demo's second half: its orders as a table. Four pipelines in one session of Spark.

Only started where pyspark is installed; `hotfire demo` works without it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

TOTALS = "orders-per-minute"

JOB = """\
# orders per minute, back into a topic: hotfire pipeline run per-minute.yml -n {name_server}
name: per-minute
source:
  format: hotfire
  options: {{subscribe: {topic}}}
  columns: [body, storeTimestamp]
transform:
  sql: |
    SELECT CAST(minute AS STRING) AS keys, to_json(struct(*)) AS body
    FROM (
      SELECT date_trunc('MINUTE', storeTimestamp) AS minute, count(*) AS orders,
             sum(get_json_object(CAST(body AS STRING), '$.cents')) AS cents
      FROM messages GROUP BY 1
    )
sink:
  format: hotfire
  options: {{topic: {totals}}}
trigger: batch
"""


def is_there() -> bool:
    """Whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def run(
    *, name_server: str, topic: str, group: str, acknowledged: Iterable[str], directory: Path, picture: Path
) -> int:
    """Aggregate, archive, reconcile and draw; 0 when nothing is lost."""
    from hotfire.spark.run import execute_all, understood

    job, ledger, archive = directory / "per-minute.yml", directory / "sent.jsonl", directory / "archive"
    job.write_text(JOB.format(name_server=name_server, topic=topic, totals=TOTALS))
    ledger.write_text("".join(json.dumps({"msgId": one}) + "\n" for one in acknowledged))
    told = ["-n", name_server]
    commands = (
        [str(job), *told],
        ["archive", *told, "--topic", topic, "--to", str(archive)],
        ["reconcile", *told, "--topic", topic, "--group", group, "--ledger", str(ledger)],
        ["latency", *told, "--topic", topic, "--picture", str(picture)],
    )
    for words in commands:
        print(f"  hotfire pipeline run {' '.join(words)}")
    return execute_all([understood(words[0], words[1:]) for words in commands])

"""How far a group is, told once more when its query has ended.

A source hears of its last batch's end only when it is asked for another one, by which time a query may be
over, or the broker away. Spark's report of the query has that end as well, and the driver can wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import Offsets, Place
from hotfire.spark.sourceoptions import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def tell_group(query: StreamingQuery, given: Mapping[str, str]) -> None:
    """Publish where a query with one source ended; `given` are the source's options."""
    options = SourceOptions.read(given, streaming=True)
    offsets = ended_at(query.lastProgress)
    if options["group"] and offsets:
        cluster = Cluster.of(options)
        there = cluster.committed(options, offsets)
        news = {queue: offset for queue, offset in offsets.items() if there.get(queue) != offset}
        if news:
            cluster.publish(options, news, is_last=True)


def ended_at(progress: Any) -> Offsets:
    """The end of the last batch, as Spark reports it; nothing of a query that had none.

    >>> ended_at({"sources": [{"endOffset": '{"T": {"b": {"0": 5}}, "#parts": 1}'}]})
    {MessageQueue(topic='T', broker_name='b', queue_id=0): 5}
    """
    sources = [] if progress is None else progress["sources"]
    if len(sources) != 1 or not sources[0]["endOffset"]:
        return {}
    end = sources[0]["endOffset"]
    return Place.read(json.loads(end) if isinstance(end, str) else end).until

"""Where a query begins and where a batch ends: the options, and what the cluster says to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import EARLIEST, LATEST, Offsets, Range, from_json, queues_of
from hotfire.spark.reading import lost
from hotfire.spark.sourceoptions import SourceOptions

Bound = Literal["starting", "ending"]


def starts(
    cluster: Cluster, options: SourceOptions, queues: Sequence[MessageQueue], otherwise: str
) -> Offsets:
    """Where a new query begins in each queue; `otherwise` is where when no option says so."""
    group = cluster.committed(options, queues) if options["group"] else {}
    rest = [queue for queue in queues if queue not in group]
    found = _bound(cluster, options, rest, "starting", otherwise)
    if group:
        found |= _held(cluster, options, group)
    return found


def joined(cluster: Cluster, options: SourceOptions, queues: Sequence[MessageQueue]) -> Offsets:
    """Where a query under way begins in queues that are new to it: where its group is, or at their first
    message.
    """
    group = cluster.committed(options, queues) if options["group"] else {}
    found = cluster.begins(options, [queue for queue in queues if queue not in group])
    return found | _held(cluster, options, group)


def ends(cluster: Cluster, options: SourceOptions, queues: Sequence[MessageQueue]) -> Offsets:
    """Where a batch ends in each queue."""
    return _bound(cluster, options, queues, "ending", "latest")


def _held(cluster: Cluster, options: SourceOptions, group: Offsets) -> Offsets:
    """A group's offsets, as far as the queues still have them."""
    begins = cluster.begins(options, group)
    for queue, offset in group.items():
        if offset < begins[queue] and options["failOnDataLoss"]:
            raise lost(Range(queue, offset, begins[queue]), f"group {options.group} is at {offset}")
    return {queue: max(offset, begins[queue]) for queue, offset in group.items()}


def _bound(
    cluster: Cluster, options: SourceOptions, queues: Sequence[MessageQueue], bound: Bound, otherwise: str
) -> Offsets:
    if options.has(f"{bound}Timestamp"):
        time_ms = options[f"{bound}Timestamp"]
        return _by_time(cluster, options, dict.fromkeys(queues, time_ms), bound)
    if options.has(f"{bound}OffsetsByTimestamp"):
        times = _for_all(options[f"{bound}OffsetsByTimestamp"], queues, f"{bound}OffsetsByTimestamp")
        return _by_time(cluster, options, times, bound)
    said: Any = options[f"{bound}Offsets"] or otherwise
    if said == "earliest":
        return cluster.begins(options, queues)
    if said == "latest":
        return cluster.ends(options, queues)
    return _by_number(cluster, options, queues, said, f"{bound}Offsets")


def _by_number(
    cluster: Cluster, options: SourceOptions, queues: Sequence[MessageQueue], said: Offsets, name: str
) -> Offsets:
    missing = set(queues) - said.keys()
    if missing:
        raise ConfigError(f"{name} says nothing of {queues_of(missing)}; name every queue, -2 is earliest")
    begins = cluster.begins(options, [queue for queue in queues if said[queue] == EARLIEST])
    latest = cluster.ends(options, [queue for queue in queues if said[queue] == LATEST])
    return {queue: begins.get(queue, latest.get(queue, said[queue])) for queue in queues}


def _by_time(
    cluster: Cluster, options: SourceOptions, times_ms: Mapping[MessageQueue, int], bound: Bound
) -> Offsets:
    found = cluster.at_times(options, times_ms)
    if bound == "starting" and options["startingOffsetsByTimestampStrategy"] == "error":
        latest = cluster.ends(options, found)
        late = [queue for queue, offset in found.items() if offset >= latest[queue]]
        if late:
            raise ConfigError(
                f"nothing was stored at {times_ms[late[0]]} ms or later in {queues_of(late)}; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end of such queues"
            )
    return found


def _for_all(data: Mapping[str, Any], queues: Sequence[MessageQueue], name: str) -> dict[MessageQueue, int]:
    times = from_json(data)
    missing = set(queues) - times.keys()
    if missing:
        raise ConfigError(f"{name} says nothing of {queues_of(missing)}; name every queue")
    return {queue: times[queue] for queue in queues}

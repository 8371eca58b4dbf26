"""hotfire offset: where a group is in each queue of a topic, and letting it go on elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from hotfire.cli.client import run_client, tls_of
from hotfire.cli.group import UNTOUCHED
from hotfire.client.admin import Admin
from hotfire.client.adminviews import QueueStats
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.places import Place
from hotfire.tables import as_json, table

Offsets = Mapping[MessageQueue, int | None]


def run(args: argparse.Namespace) -> int:
    if args.action == "skip":
        args.to = Place("latest")
    actions = {"show": _show, "reset": _reset, "skip": _reset, "set": _set}
    return run_client(actions[args.action](args))


async def _show(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        committed = await admin.offsets(args.group, args.topic)
        stats = await _stats(admin, args.topic)
    rows = []
    for queue, offset in sorted(committed.items()):
        ends = stats.get(queue)
        lag = None if ends is None else max(ends.max_offset - (offset or 0), 0)
        rows.append(
            {
                "queue": _name(queue),
                "min": None if ends is None else ends.min_offset,
                "committed": offset,
                "max": None if ends is None else ends.max_offset,
                "lag": lag,
            }
        )
    if args.json:
        print(as_json({"group": args.group, "topic": args.topic, "queues": rows}))
        return 0
    print(table(["queue", "min", "committed", "max", "lag"], rows))
    if all(offset is None for offset in committed.values()):
        print(f"group {args.group} has committed nothing of topic {args.topic}")
    if None in committed.values():
        print(UNTOUCHED)
    return 0


async def _reset(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        before = await admin.offsets(args.group, args.topic)
        if args.to.kind == "shift":
            after = await _shift(admin, args.group, args.topic, before, args.to.value)
        elif args.to.kind == "latest":
            after = await admin.skip_to_end(args.group, args.topic)
        else:  # the first message there is was stored after time 0
            after = await admin.reset_offsets(args.group, args.topic, args.to.value)
    return _tell(args, before, after)


async def _shift(
    admin: Admin, group: str, topic: str, before: Offsets, count: int
) -> dict[MessageQueue, int]:
    """So many messages on or back in every queue where the group is, within what there is."""
    stats = await _stats(admin, topic)
    places = {queue: offset for queue, offset in before.items() if offset is not None and queue in stats}
    if not places:
        raise ConfigError(
            f"group {group} has committed nothing of topic {topic}: there is nothing to count from; "
            "reset --to earliest, latest or a time"
        )
    after = {
        queue: min(max(offset + count, stats[queue].min_offset), stats[queue].max_offset)
        for queue, offset in places.items()
    }
    for queue, offset in after.items():
        await admin.set_offset(group, queue, offset)
    return after


async def _set(args: argparse.Namespace) -> int:
    queue = MessageQueue(args.topic, *args.queue)
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        before = await admin.offsets(args.group, args.topic)
        stats = await _stats(admin, args.topic)
        if queue not in before or queue not in stats:
            there = ", ".join(_name(one) for one in sorted(before)) or "none"
            raise ConfigError(f"topic {args.topic} has no queue {_name(queue)}; it has {there}")
        ends = stats[queue]
        if not ends.min_offset <= args.offset <= ends.max_offset:
            raise ConfigError(
                f"--offset {args.offset}: queue {_name(queue)} of topic {args.topic} holds "
                f"{ends.min_offset} to {ends.max_offset}"
            )
        await admin.set_offset(args.group, queue, args.offset)
    return _tell(args, before, {queue: args.offset})


async def _stats(admin: Admin, topic: str) -> dict[MessageQueue, QueueStats]:
    return {one.queue: one for one in (await admin.topic_stats(topic)).queues}


def _tell(args: argparse.Namespace, before: Offsets, after: Mapping[MessageQueue, int]) -> int:
    rows: list[dict[str, Any]] = [
        {"queue": _name(queue), "from": before.get(queue), "to": offset}
        for queue, offset in sorted(after.items())
    ]
    if args.json:
        print(as_json({"group": args.group, "topic": args.topic, "queues": rows}))
    else:
        print(table(["queue", "from", "to"], rows))
    return 0


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"

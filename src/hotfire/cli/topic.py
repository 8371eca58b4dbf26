"""hotfire topic: which topics there are, where one is, how full; making one, deleting one."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hotfire.cli.client import run_client, tls_of
from hotfire.client.admin import Admin
from hotfire.client.routes import TopicRoute
from hotfire.errors import ConfigError, NoRoute, TopicNotExist
from hotfire.model import RETRY_PREFIX, Perm
from hotfire.tables import as_json, table, with_times


def run(args: argparse.Namespace) -> int:
    actions = {"list": _list, "route": _route, "stats": _stats, "create": _create, "delete": _delete}
    return run_client(actions[args.action](args))


async def _list(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        known = await admin.topics(include_system=args.all)
    shown = [topic for topic in known if args.all or not topic.startswith(RETRY_PREFIX)]
    if args.json:
        print(as_json(shown))
    for topic in () if args.json else shown:
        print(topic)
    if not shown:
        print("no topic yet: a first message makes one, or `hotfire topic create`", file=sys.stderr)
    return 0


async def _route(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        route = await admin.route(args.topic)
    rows = [_row(route, name) for name in sorted(one.broker_name for one in route.data.queues)]
    if args.json:
        print(as_json({"topic": route.topic, "brokers": rows}))
        return 0
    for row in rows:
        row["addresses"] = " ".join(f"{broker_id}={one}" for broker_id, one in row["addresses"].items())
    print(table(["broker", "readQueues", "writeQueues", "perm", "addresses"], rows))
    return 0


def _row(route: TopicRoute, broker_name: str) -> dict[str, Any]:
    queues = next(one for one in route.data.queues if one.broker_name == broker_name)
    broker = route.broker(broker_name)
    return {
        "broker": broker_name,
        "readQueues": queues.read_queues,
        "writeQueues": queues.write_queues,
        "perm": ("r" if queues.perm & Perm.READ else "-") + ("w" if queues.perm & Perm.WRITE else "-"),
        "addresses": {} if broker is None else dict(sorted(broker.addresses.items())),
    }


async def _stats(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        report = await admin.topic_stats(args.topic)
    rows = [
        {
            "queue": f"{one.queue.broker_name}:{one.queue.queue_id}",
            "min": one.min_offset,
            "max": one.max_offset,
            "messages": one.count,
            "lastStored": one.last_stored_ms,
        }
        for one in report.queues
    ]
    if args.json:
        total = {"topic": args.topic, "messages": report.count, "storedPerSecond": report.stored_per_second}
        print(as_json({**total, "queues": rows}))
        return 0
    print(table(["queue", "min", "max", "messages", "lastStored"], with_times(rows, "lastStored")))
    print(f"{report.count} messages in {len(rows)} queues, {report.stored_per_second:.1f} stored a second")
    return 0


async def _create(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        before = await _queues_now(admin, args.topic)
        chosen = {one.name for one in await admin.masters(args.cluster, args.brokers)}
        before = {name: count for name, count in before.items() if name in chosen}
        if not args.shrink:
            await _check_none_is_lost(admin, args, before)
        made = await admin.create_topic(
            args.topic, queues=args.queues, cluster=args.cluster, brokers=args.brokers
        )
    rows = [{"broker": one.name, "before": before.get(one.name), "address": one.address} for one in made]
    if args.json:
        print(as_json({"topic": args.topic, "queues": args.queues, "brokers": rows}))
        return 0
    print(table(["broker", "queues", "address"], [{**row, "queues": args.queues} for row in rows]))
    for name, count in sorted(before.items()):
        if count != args.queues:
            verb = "grew" if count < args.queues else "shrank"
            print(f"topic {args.topic} {verb} from {count} to {args.queues} queues on {name}")
    return 0


async def _queues_now(admin: Admin, topic: str) -> dict[str, int]:
    """How many queues the topic has on each broker; on none when it is new."""
    try:
        route = await admin.route(topic)
    except (NoRoute, TopicNotExist):
        return {}
    return {one.broker_name: max(one.read_queues, one.write_queues) for one in route.data.queues}


async def _check_none_is_lost(admin: Admin, args: argparse.Namespace, before: dict[str, int]) -> None:
    """Queues that are taken away keep their messages, but nobody reads them: not by mistake.

    Of the command and not of Admin: a program that gives a number means it.
    """
    larger = {name: count for name, count in sorted(before.items()) if count > args.queues}
    if not larger:
        return
    hidden = sum(
        one.count
        for one in (await admin.topic_stats(args.topic)).queues
        if one.queue.broker_name in larger and one.queue.queue_id >= args.queues
    )
    there = ", ".join(f"{count} queues on {name}" for name, count in larger.items())
    raise ConfigError(
        f"topic {args.topic} has {there}: with {args.queues}, {hidden} messages could no longer be read; "
        f"give --queues {max(larger.values())} or more, or add --shrink to do it all the same"
    )


async def _delete(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        report = await admin.topic_stats(args.topic)  # one that does not exist is said to be so
        if not args.yes:
            brokers = ", ".join(sorted({one.queue.broker_name for one in report.queues}))
            raise ConfigError(
                f"topic {args.topic} has {report.count} messages on {brokers}, which are gone for good "
                "once it is deleted; add --yes to do it"
            )
        gone_from = await admin.delete_topic(args.topic, cluster=args.cluster)
    names = [one.name for one in gone_from]
    if args.json:
        print(as_json({"topic": args.topic, "messages": report.count, "brokers": names}))
    else:
        print(f"topic {args.topic} deleted on {', '.join(names)}, with {report.count} messages")
    return 0

"""hotfire group: which consumer groups there are, who is in one and how far; making one, deleting one."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any

from hotfire.cli.client import run_client, tls_of
from hotfire.client.admin import Admin
from hotfire.client.adminviews import GroupConnections, GroupLag, QueueLag
from hotfire.errors import ConfigError, ConsumerNotOnline, NoRoute, TopicNotExist
from hotfire.model import MessageQueue, SubscriptionGroup
from hotfire.protocol.running import ConsumerRunningInfo
from hotfire.tables import as_json, table, with_times

UNTOUCHED = "committed -: nothing yet, and the lag counts from offset 0"
FAILING = (
    "failedInHour: as connected consumers tell, - when none does; waiting: to be handled once more, their "
    "delay over; deadLetters: in %DLQ%GROUP. Its consumers' logs say of what each message failed; "
    "`hotfire group status GROUP --stacks` what they are doing"
)
LAG_COLUMNS = ["topic", "queue", "committed", "end", "lag", "inFlight", "lastConsumed"]


def run(args: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "show": _show,
        "lag": _lag,
        "failing": _failing,
        "status": _status,
        "create": _create,
        "delete": _delete,
    }
    return run_client(actions[args.action](args))


async def _list(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        shown = await admin.groups(include_system=args.all)
    if args.json:
        print(as_json(shown))
    for group in () if args.json else shown:
        print(group)
    if not shown:
        print("no group yet: a first consumer makes one, or `hotfire group create`", file=sys.stderr)
    return 0


async def _lag(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        lag = await admin.lag(args.group, args.topic)
        untouched = await _untouched(admin, lag)
        filters = {} if args.json else await _filters(admin, lag)
    rows = [_lag_row(one, is_untouched=one.queue in untouched) for one in lag.queues]
    if args.json:
        print(as_json({**_total(lag), "queues": rows}))
        return 0
    if rows:
        print(table(LAG_COLUMNS, with_times(rows, "lastConsumed")))
    if untouched:
        print(UNTOUCHED)
    for topic, expression in filters.items():
        print(f"of {topic} it wants {expression!r}: what it does not want counts until its next commit")
    print(_total_line(lag))
    return 0


async def _filters(admin: Admin, lag: GroupLag) -> dict[str, str]:
    """What its consumers ask for, of topics it is behind in and does not want all of."""
    behind = {topic for topic, count in lag.by_topic().items() if count}
    with suppress(ConsumerNotOnline):
        wanted = (await admin.connections(lag.group)).subscriptions if behind else {}
        return {
            topic: wanted[topic].expression
            for topic in sorted(behind & wanted.keys())
            if wanted[topic].expression not in ("", "*")
        }
    return {}


async def _failing(args: argparse.Namespace) -> int:
    """A group that is behind may be slow, or fail again and again at the same messages: that first."""
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        every = [await admin.health(group) for group in await admin.groups()]
    found = sorted((one for one in every if one.is_failing), key=lambda one: (-one.lag, one.group))
    rows = [
        {
            "group": one.group,
            "lag": one.lag,
            "failedInHour": sum(one.failed.values()) if one.consumer_count > one.silent_count else None,
            "failedIn": " ".join(sorted(one.failed)) or None,
            "waiting": one.waiting,
            "deadLetters": one.dead,
            "consumers": one.consumer_count,
            "silent": one.silent_count,
        }
        for one in found
    ]
    if args.json:
        print(as_json(rows))
        return 0
    if rows:
        print(table(list(rows[0]), rows))
        print(FAILING)
    else:
        print(f"none of {len(every)} groups fails")
    return 0


async def _untouched(admin: Admin, lag: GroupLag) -> set[MessageQueue]:
    """Queues of which the group has committed nothing: how far it is says 0 for them as well."""
    at_zero = {one.queue for one in lag.queues if one.committed_offset == 0}
    found: set[MessageQueue] = set()
    for topic in sorted({queue.topic for queue in at_zero}):
        with suppress(NoRoute, TopicNotExist):  # deleted, and its offsets not yet: nothing to add
            committed = await admin.offsets(lag.group, topic)
            found |= {queue for queue in at_zero if committed.get(queue, 0) is None}
    return found


async def _status(args: argparse.Namespace) -> int:
    """What each of its consumers tells of itself."""
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        clients = [one.client_id for one in (await admin.connections(args.group)).clients]
        if args.client is not None and args.client not in clients:
            raise ConfigError(
                f"group {args.group} has no consumer {args.client}; it has {', '.join(clients)}"
            )
        asked = clients if args.client is None else [args.client]
        told = {one: await admin.running_info(args.group, one, stacks=args.stacks) for one in asked}
    if args.json:
        shown = {
            name: {"properties": dict(info.properties), "queues": _held(info), "stacks": info.stacks}
            for name, info in told.items()
        }
        print(as_json(shown))
        return 0
    for name, info in told.items():
        print(f"{name}  {info.properties.get('PROP_CLIENT_VERSION', '?')}")
        columns = ["topic", "queue", "committed", "held", "lastPull", "lastConsumed"]
        print(table(columns, with_times(_held(info), "lastPull", "lastConsumed")))
        if info.stacks:
            print(info.stacks)
    return 0


def _held(info: ConsumerRunningInfo) -> list[dict[str, Any]]:
    return [
        {
            "topic": queue.topic,
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "committed": one.commit_offset,
            "held": one.cached_count,
            "lastPull": one.last_pull_ms or None,
            "lastConsumed": one.last_consume_ms or None,
        }
        for queue, one in sorted(info.queues.items())
    ]


def _lag_row(one: QueueLag, *, is_untouched: bool) -> dict[str, Any]:
    return {
        "topic": one.queue.topic,
        "queue": f"{one.queue.broker_name}:{one.queue.queue_id}",
        "committed": None if is_untouched else one.committed_offset,
        "end": one.end_offset,
        "lag": one.lag,
        "inFlight": one.in_flight,
        "lastConsumed": one.last_consumed_ms,
    }


def _total(lag: GroupLag) -> dict[str, Any]:
    total = lag.total if lag.queues else None  # not 0, which who watches takes for well
    return {"group": lag.group, "lag": total, "consumedPerSecond": lag.consumed_per_second}


def _total_line(lag: GroupLag) -> str:
    if not lag.queues:
        return f"group {lag.group} has committed nothing yet: how far behind it is, is not known"
    return f"{lag.total} messages behind, {lag.consumed_per_second:.1f} consumed a second"


async def _show(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        lag = await admin.lag(args.group)  # a group that does not exist is said to be so
        untouched = set() if args.json else await _untouched(admin, lag)
        try:
            there = await admin.connections(args.group)
        except ConsumerNotOnline:
            there = None
    clients = [] if there is None else _client_rows(there)
    topics = [{"topic": topic, "lag": count} for topic, count in lag.by_topic().items()]
    subscriptions = [] if there is None else _subscription_rows(there)
    if args.json:
        lists = {"consumers": clients, "subscriptions": subscriptions, "topics": topics}
        print(as_json({**_total(lag), **({} if there is None else _kind(there)), **lists}))
        return 0
    if there is None:
        print("no consumer is connected")
    else:
        print(table(["client", "address", "language", "version"], clients))
        print("  ".join(_kind(there).values()))
        print(table(["topic", "tags"], subscriptions))
    if topics:
        print(table(["topic", "lag"], topics))
    for topic in sorted({queue.topic for queue in untouched}):
        print(f"of {topic} some queues have no commit yet: their lag counts from offset 0")
    print(_total_line(lag))
    return 0


def _kind(there: GroupConnections) -> dict[str, str]:
    return {
        "consumeType": there.consume_type,
        "messageModel": there.message_model,
        "consumeFrom": there.consume_from_where,
    }


def _client_rows(there: GroupConnections) -> list[dict[str, Any]]:
    return [
        {
            "client": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
        }
        for one in there.clients
    ]


def _subscription_rows(there: GroupConnections) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "tags": there.subscriptions[topic].expression}
        for topic in sorted(there.subscriptions)
    ]


async def _create(args: argparse.Namespace) -> int:
    config = SubscriptionGroup(args.group, retry_times_max=args.retries, consume_enable=not args.disable)
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        made = await admin.create_group(config, cluster=args.cluster, brokers=args.brokers)
    rows = [{"broker": one.name, "address": one.address} for one in made]
    if args.json:
        print(as_json({"group": args.group, "retries": args.retries, "brokers": rows}))
    else:
        print(table(["broker", "retries", "address"], [{**row, "retries": args.retries} for row in rows]))
    return 0


async def _delete(args: argparse.Namespace) -> int:
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        lag = await admin.lag(args.group)
        if not args.yes:
            forgotten = " and where it is" if args.offsets else ""
            behind = (
                f"is {lag.total} messages behind in {len(lag.by_topic())} topics"
                if lag.queues
                else "has committed nothing"
            )
            raise ConfigError(f"group {args.group} {behind}; add --yes to delete it{forgotten}")
        gone_from = await admin.delete_group(args.group, clean_offsets=args.offsets, cluster=args.cluster)
    names = [one.name for one in gone_from]
    if args.json:
        print(as_json({"group": args.group, "brokers": names}))
    else:
        print(f"group {args.group} deleted on {', '.join(names)}")
    return 0

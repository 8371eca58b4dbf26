"""hotfire topic: which topics there are, and where one is."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hotfire.cli.client import add_namesrv, run_client
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.routes import TopicRoute
from hotfire.model import Perm, is_system_topic
from hotfire.protocol.bodies import TopicList, decode_body
from hotfire.protocol.request import Request
from hotfire.protocol.requests import GetAllTopicListFromNameserver, GetSystemTopicListFromNs

REPLY_SUFFIX = "_REPLY_TOPIC"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every topic the name server knows")
    listing.add_argument("--all", action="store_true", help="the system's own topics too")
    route = actions.add_parser("route", help="brokers and queues of a topic")
    route.add_argument("topic", metavar="TOPIC")
    for action in (listing, route):
        add_namesrv(action)
        action.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    return run_client(_list(args) if args.action == "list" else _route(args))


async def _list(args: argparse.Namespace) -> int:
    client = ClientInstance(args.namesrv)
    await client.start()
    try:
        topics = await _topics(client, GetAllTopicListFromNameserver())
        # Clusters and brokers are topics of the same name, for the broker's own use.
        own = await _topics(client, GetSystemTopicListFromNs())
    finally:
        await client.close()
    own |= {f"{name}{REPLY_SUFFIX}" for name in own}
    shown = [topic for topic in sorted(topics) if args.all or not (topic in own or _is_hidden(topic))]
    print(json.dumps(shown) if args.json else "\n".join(shown))
    return 0


def _is_hidden(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith("RMQ_SYS_")  # Apache's newest have no list of names


async def _topics(client: ClientInstance, request: Request) -> set[str]:
    return set(decode_body(TopicList, (await client.name_servers.ask(request, CALL_TIMEOUT_S)).body).topics)


async def _route(args: argparse.Namespace) -> int:
    client = ClientInstance(args.namesrv)
    await client.start()
    try:
        route = await client.routes.refresh(args.topic, CALL_TIMEOUT_S)
    finally:
        await client.close()
    rows = [_row(route, name) for name in sorted(one.broker_name for one in route.data.queues)]
    if args.json:
        print(json.dumps({"topic": route.topic, "brokers": rows}))
        return 0
    for row in rows:
        addresses = " ".join(f"{broker_id}={address}" for broker_id, address in row["addresses"].items())
        queues = f"read {row['readQueues']}  write {row['writeQueues']}"
        print(f"{row['broker']}  {queues}  {row['perm']}  {addresses}")
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

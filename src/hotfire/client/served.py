"""Whether brokers filter as a consumer wants, asked before it reads: later they would refuse each pull."""

from __future__ import annotations

import asyncio

from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.errors import BrokerRefused, ConfigError, NoRoute
from hotfire.model import Subscription
from hotfire.protocol.bodies import ClientConfig, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import CheckClientConfig

REFUSALS = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
"""Conditions that the broker does not serve, or cannot read. Other codes say that it cannot answer now."""


async def check_served(instance: ClientInstance, group: str, wanted: Subscription) -> None:
    """Ask one of the topic's brokers; ConfigError when it refuses the condition. Tags every broker knows."""
    if wanted.kind == "TAG":
        return
    route = await instance.routes.to_read(wanted.topic, CALL_TIMEOUT_S)
    brokers = [one for one in route.data.brokers if one.addresses]
    if not brokers:
        raise NoRoute(f"topic {wanted.topic}: no broker of its route has an address")
    broker = instance.rng.choice(brokers)
    config = ClientConfig(instance.client_id, group, wanted)
    deadline = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
    address = broker.addresses[min(broker.addresses)]
    reply = await instance.invoke(address, CheckClientConfig(body=encode_body(config)), deadline)
    if reply.code:
        refusal = BrokerRefused(reply.code, reply.remark or "")
        if reply.code not in REFUSALS:
            raise refusal
        raise ConfigError(
            f"group {group}, topic {wanted.topic}: broker {broker.name} refuses the "
            f"{wanted.kind} condition {wanted.expression!r:.200}: {refusal}"
        )

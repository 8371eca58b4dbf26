"""A message that waits for its time, taken back: the handle says which broker has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hotfire.client.instance import ClientInstance
from hotfire.client.results import SendResult
from hotfire.errors import BrokerRefused, HotfireError, LocalProtocolError, NoRoute
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.recall import Handle
from hotfire.protocol.requests import RecallMessage, RecallReply

if TYPE_CHECKING:
    from hotfire.client.tracing import TraceSends


async def recall(
    instance: ClientInstance,
    group: str,
    sent: SendResult | str,
    deadline: float,
    tracing: TraceSends | None = None,
) -> str:
    """Ask the broker that has the message. Its id, or BrokerRefused."""
    text: object = sent.recall_handle if isinstance(sent, SendResult) else sent
    if text is None:
        raise LocalProtocolError(
            "this message does not wait for its time; only what was sent with delay_ms or deliver_at, and is "
            "not due yet, can be taken back"
        )
    if not isinstance(text, str) or (handle := Handle.decode(text)) is None:
        raise LocalProtocolError(f"{text!r:.60} is no recall handle; give `recall_handle` of a SendResult")
    address = await _address(instance, handle, deadline)
    peer = await instance.connection(address, max(deadline - _now(), 0.0))
    request = RecallMessage(
        producer_group=group, topic=handle.topic, recall_handle=text, broker_name=handle.broker_name
    )
    reply = await peer.invoke(request, max(deadline - _now(), 0.0))
    if tracing is not None:
        tracing.recalled(
            handle.unique_key, handle.topic, address, group=group,
            region=(reply.fields or {}).get("MSG_REGION"), is_success=reply.code == ResponseCode.SUCCESS,
        )  # fmt: skip
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerRefused(reply.code, reply.remark or "")
    return RecallReply.from_command(reply).msg_id


async def _address(instance: ClientInstance, handle: Handle, deadline: float) -> str:
    """The master's address, asked for once more when unknown."""
    route = await instance.routes.to_write(handle.topic, max(deadline - _now(), 0.0))
    address = route.master(handle.broker_name)
    if address is None:
        with suppress(HotfireError):
            route = await instance.routes.refresh(handle.topic, max(deadline - _now(), 0.0))
        address = route.master(handle.broker_name)
    if address is None:
        raise NoRoute(f"topic {handle.topic}: broker {handle.broker_name} does not exist, or has no master")
    return address


def _now() -> float:
    return asyncio.get_running_loop().time()

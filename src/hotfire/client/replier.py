"""Replies of a consumer, which has no producer beside it: sent under the name of the client itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from hotfire.client.choosing import Rotation
from hotfire.client.faults import Faults
from hotfire.client.hooks import SendHooks
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import prepare
from hotfire.client.replies import reply_to
from hotfire.client.results import SendResult
from hotfire.client.sendback import INNER_GROUP
from hotfire.client.sending import Sender
from hotfire.model import ReceivedMessage
from hotfire.net.addresses import local_address
from hotfire.net.clock import now_ms
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host

RETRIES = 2


class Replier:
    """Sends replies over the connections of one client."""

    def __init__(self, instance: ClientInstance) -> None:
        self._loop = asyncio.get_running_loop()
        faults = Faults(enabled=False, clock=self._loop.time)
        rotation = Rotation(instance.rng, faults)
        self._sender = Sender(instance, INNER_GROUP, rotation, faults, SendHooks(()), retry_when_not_ok=False)
        address = Host.parse(local_address(), 0).address
        self._ids = UniqueIds(address, os.getpid(), instance.rng.getrandbits(32))

    async def send(
        self, request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None
    ) -> SendResult:
        message = reply_to(request, body, properties)
        outgoing = prepare(message, self._ids.next(now_ms()), is_ours=True)
        return await self._sender.reply(
            request, outgoing, self._loop.time() + CALL_TIMEOUT_S, retries=RETRIES
        )

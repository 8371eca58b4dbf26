"""Was it stored? Asked of the brokers after a send whose answer never came.

A message is looked for by its unique key. "Not stored" must stay true, so three things are waited out first:

1. The send may still be on its way. Where its connection is open, our questions follow it on that connection.
   Where it was given up, we said that nothing more comes and wait for the broker to hang up: bytes and the
   end of a stream arrive in order, so by then the broker has read the send, or died and never will.
2. The broker may have read it and not be done: Apache's answer or refuse within 200 ms of reading; SETTLE_S.
3. It may be taken and not yet on the disk, or not yet in the index. The broker tells where the queue will end
   (GET_MAX_OFFSET, not committed), and we wait for it to end there; then the index has had its turn too.

What this cannot see: a proxy that breaks connections by itself and delivers what it holds after SETTLE_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotfire.client.instance import ClientInstance
from hotfire.client.messages import received_messages
from hotfire.client.results import SendResult
from hotfire.errors import BrokerRefused, HotfireError, LocalProtocolError, NoRoute, QueryNotFound, Timeout
from hotfire.model import SCHEDULE_TOPIC, MessageQueue, ReceivedMessage
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetMaxOffset, OffsetReply, QueryMessage

if TYPE_CHECKING:
    from hotfire.client.sending import Unanswered

SETTLE_S = 0.5
AGAIN_S = 0.05
ASK_TIMEOUT_S = 3.0
FOUND_MAX = 32
_END_OF_TIME_MS = (1 << 63) - 1


@dataclass(slots=True, frozen=True)
class Stored:
    """The message is there.

    >>> async def look(producer: Producer, message_id: str) -> None:
    ...     found = await producer.confirm(message_id, "orders")
    ...     if isinstance(found, Stored):
    ...         print(found.queue, found.queue_offset, found.copies)
    """

    queue: MessageQueue
    queue_offset: int
    copies: int = 1
    """More than one when several attempts were stored."""


@dataclass(slots=True, frozen=True)
class NotStored:
    """The message is on none of the brokers that could have it, and will not be.

    >>> async def look(producer: Producer, message_id: str) -> None:
    ...     if await producer.confirm(message_id, "orders") == NotStored():
    ...         print("safe to send again")
    """


async def confirm(
    instance: ClientInstance, sent: HotfireError | SendResult | str, topic: str | None, deadline: float
) -> Stored | NotStored:
    """After the message of a send that failed with this error or had this result, or of this id and topic."""
    if isinstance(sent, SendResult):
        return await Confirmation(instance, sent.queue.topic, sent.message_id, deadline).everywhere()
    if isinstance(sent, str):
        if topic is None:
            raise LocalProtocolError(f"message {sent}: to look for an id takes its topic too")
        return await Confirmation(instance, topic, sent, deadline).everywhere()
    if sent.message_id is None or sent.topic is None:
        raise LocalProtocolError(f"no send failed with this error: {sent!r:.200}")
    return await Confirmation(instance, sent.topic, sent.message_id, deadline).of(sent.unanswered)


class Confirmation:
    """One question after one message."""

    def __init__(self, instance: ClientInstance, topic: str, message_id: str, deadline: float) -> None:
        self._instance = instance
        self._topic = topic
        self._message_id = message_id
        self._deadline = deadline

    async def of(self, unanswered: Sequence[Unanswered]) -> Stored | NotStored:
        """Asks the brokers that were tried and did not answer."""
        places: dict[str, list[MessageQueue]] = {}
        for one in unanswered:
            places.setdefault(one.queue.broker_name, []).append(one.queue)
        while True:
            open_ones = [one.peer for one in unanswered if self._instance.connections.holds(one.peer)]
            for one in unanswered:
                if one.peer not in open_ones:
                    await self._end_of(one)
            answer = await self._ask_all(places)
            # A connection lost meanwhile was not the one our questions went by.
            if isinstance(answer, Stored) or all(map(self._instance.connections.holds, open_ones)):
                return answer

    async def everywhere(self) -> Stored | NotStored:
        """Asks every broker of the topic."""
        route = await self._instance.routes.to_write(self._topic, self._left())
        return await self._ask_all({broker.name: [] for broker in route.data.brokers})

    async def _end_of(self, one: Unanswered) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                await one.peer.wait_closed()
        if not one.peer.heard_out:
            raise self._unknown(
                f"broker {one.queue.broker_name} has not ended the connection the send went by; ask by the "
                "message's id once that broker was started anew"
            )

    async def _ask_all(self, places: dict[str, list[MessageQueue]]) -> Stored | NotStored:
        if not places:
            return NotStored()
        await asyncio.sleep(min(SETTLE_S, self._left()))
        asked = [self._ask_until_answered(name, queues) for name, queues in places.items()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [message for answer in answers if isinstance(answer, list) for message in answer]
        if found:
            return Stored(found[0].queue, found[0].queue_offset, copies=len(found))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return NotStored()

    async def _ask_until_answered(self, broker: str, queues: Sequence[MessageQueue]) -> list[ReceivedMessage]:
        while True:
            try:
                await self._all_taken_is_there(broker, queues)
                return await self._look(broker)
            except HotfireError as error:
                if self._left() <= AGAIN_S:
                    raise self._unknown(f"broker {broker} could not be asked: {error}") from None
                failed = error
            await asyncio.sleep(AGAIN_S)
            if failed.refresh_route:
                await self._refresh()

    async def _all_taken_is_there(self, broker: str, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            taken = await self._queue_end(broker, queue, committed=False)
            while await self._queue_end(broker, queue, committed=True) < taken:
                if self._left() <= AGAIN_S:
                    raise Timeout(
                        f"{queue.topic} {queue.queue_id}: up to {taken} are taken, not all are stored"
                    )
                await asyncio.sleep(AGAIN_S)

    async def _queue_end(self, broker: str, queue: MessageQueue, *, committed: bool) -> int:
        request = GetMaxOffset(
            topic=queue.topic, queue_id=queue.queue_id, committed=committed, broker_name=queue.broker_name
        )
        reply = await self._instance.invoke(self._master(broker), request, self._ask_deadline())
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return OffsetReply.from_command(reply).offset

    async def _look(self, broker: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for topic in (self._topic, SCHEDULE_TOPIC):  # where it lies while it is delayed
            request = QueryMessage(
                topic=topic,
                key=self._message_id,
                max_num=FOUND_MAX,
                begin_timestamp=0,
                end_timestamp=_END_OF_TIME_MS,
                unique=True,
                broker_name=broker,
            )
            reply = await self._instance.invoke(self._master(broker), request, self._ask_deadline())
            if reply.code == ResponseCode.SUCCESS:
                messages = received_messages(reply.body, broker)
                found += [
                    one for one in messages if one.message_id == self._message_id and one.topic == topic
                ]
                if found:
                    break
            elif not isinstance(refused := BrokerRefused(reply.code, reply.remark or ""), QueryNotFound):
                raise refused
        return found

    def _master(self, broker: str) -> str:
        for route in self._instance.routes.known():
            if route.topic == self._topic and (address := route.master(broker)) is not None:
                return address
        raise NoRoute(f"topic {self._topic}: broker {broker} has no master just now")

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self._topic, min(self._left(), ASK_TIMEOUT_S))
        except HotfireError:
            return  # what we know must do

    def _ask_deadline(self) -> float:
        return min(self._deadline, asyncio.get_running_loop().time() + ASK_TIMEOUT_S)

    def _left(self) -> float:
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)

    def _unknown(self, why: str) -> Timeout:
        error = Timeout(f"message {self._message_id} to {self._topic} may be stored or not: {why}")
        error.topic, error.message_id, error.outcome_unknown = self._topic, self._message_id, True
        return error

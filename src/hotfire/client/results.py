"""What became of a send."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hotfire.core import Sent
from hotfire.errors import BrokerRefused
from hotfire.model import MessageQueue
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import SendReply


class SendStatus(enum.Enum):
    """In every case the message is stored; all but SEND_OK say where it may still be lost.

    >>> async def check(producer: Producer) -> None:
    ...     result = await producer.send(Message("orders", b"paid"))
    ...     assert result.status is SendStatus.SEND_OK
    """

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


STATUS: dict[int, SendStatus] = {status.value: status for status in SendStatus}


class SendResult(Sent):
    """Where a message was stored.

    >>> SendResult(0, "id", "place", MessageQueue("T", "b", 1), 7).status
    <SendStatus.SEND_OK: <ResponseCode.SUCCESS: 0>>
    """

    __slots__ = ()

    if TYPE_CHECKING:  # the compiled half knows no queues

        @property
        def queue(self) -> MessageQueue: ...

    @property
    def recall_handle(self) -> str | None:
        """What `Producer.recall` takes a message back by that waits for its time; None for all others."""
        return None

    @property
    def status(self) -> SendStatus:
        return STATUS[self.code]

    def _values(self) -> tuple[object, ...]:
        return (
            self.code,
            self.message_id,
            self.offset_message_id,
            self.queue,
            self.queue_offset,
            self.transaction_id,
        )

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, SendResult) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return (
            f"SendResult({self.status.name}, {self.message_id}, {self.queue.topic} {self.queue.broker_name} "
            f"{self.queue.queue_id}, offset {self.queue_offset})"
        )


class ParkedResult(SendResult):
    """Where a message waits for its time."""

    __slots__ = ("_handle",)

    @property
    def recall_handle(self) -> str | None:
        return self._handle

    def with_handle(self, handle: str) -> ParkedResult:
        self._handle = handle
        return self


def send_result(reply: Command, message_id: str, queue: MessageQueue) -> SendResult:
    """What the broker's answer to a send says; BrokerRefused when it is no success."""
    if reply.code not in STATUS:
        raise BrokerRefused(reply.code, reply.remark or "")
    fields = SendReply.from_command(reply)
    made = SendResult if fields.recall_handle is None else ParkedResult
    result = made(
        code=reply.code,
        message_id=message_id,
        offset_message_id=fields.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, fields.queue_id),
        queue_offset=fields.queue_offset,
        transaction_id=fields.transaction_id,
    )
    if isinstance(result, ParkedResult):
        result.with_handle(fields.recall_handle or "")
    return result

"""Several messages in one request, and in several when they do not fit one.

All go to one topic and wait for the disk alike; none may be delayed, nor go to a retry topic. Each message
has its own id, and none is compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hotfire.client.checks import check_is_message, check_message
from hotfire.client.messages import Outgoing, message_properties, property_string
from hotfire.client.results import SendResult
from hotfire.errors import LocalProtocolError
from hotfire.model import RETRY_PREFIX, Message
from hotfire.protocol.batch import BatchMessage, encode_batch

BATCH_COUNT_MAX = 32_767
"""The answer names each message, and a queue's position in a batch has 16 bits."""

_FIXED_BYTES = 22


def check_batch(messages: Sequence[Message]) -> None:
    """Raise LocalProtocolError unless these may travel together."""
    if not messages:
        raise LocalProtocolError("a batch needs a message")
    for message in messages:
        check_is_message(message)
    first = messages[0]
    for message in messages:
        if message.topic != first.topic:
            raise LocalProtocolError(
                f"batch to {first.topic}: it holds a message to {message.topic}; send it apart"
            )
        if message.wait_stored != first.wait_stored:
            raise LocalProtocolError(
                f"batch to {first.topic}: its messages differ in wait_stored; send them apart"
            )
        if message.delay_level or message.delay_ms or message.deliver_at is not None:
            raise LocalProtocolError(f"batch to {first.topic}: delayed messages travel alone")
    if str(first.topic).startswith(RETRY_PREFIX):
        raise LocalProtocolError(f"batch to {first.topic}: messages to retry topics travel alone")


def as_batch(messages: Iterable[Message]) -> tuple[Message, ...]:
    """All of them; LocalProtocolError for what is no list of messages."""
    if isinstance(messages, Message):
        raise LocalProtocolError("send_batch got one Message; give it a list of Messages, or use send")
    try:
        return tuple(messages)
    except TypeError:
        raise LocalProtocolError(
            f"{messages!r:.60} is {type(messages).__name__}; a batch is a list of Messages"
        ) from None


def prepare_batches(
    messages: Iterable[Message], next_id: Callable[[], str], *, body_bytes_max: int
) -> Iterator[Outgoing]:
    """The requests these messages make, each at most `body_bytes_max` long. All are checked first."""
    messages = as_batch(messages)
    check_batch(messages)
    parts = [_part(message, next_id(), body_bytes_max) for message in messages]
    begin = size = 0
    for index, (_, _, part_bytes) in enumerate(parts):
        if size + part_bytes > body_bytes_max or index - begin == BATCH_COUNT_MAX:
            yield _batch(messages[begin:index], parts[begin:index], next_id())
            begin, size = index, 0
        size += part_bytes
    yield _batch(messages[begin:], parts[begin:], next_id())


def _part(message: Message, message_id: str, body_bytes_max: int) -> tuple[str, BatchMessage, int]:
    check_message(message, body_bytes_max=body_bytes_max)
    properties = message_properties(message, message_id)
    text = property_string(message.topic, properties).encode("utf-8", "replace")
    size = _FIXED_BYTES + len(message.body) + len(text)
    if size > body_bytes_max:
        raise LocalProtocolError(
            f"batch to {message.topic}: a message takes {size} bytes in it, at most {body_bytes_max} fit; "
            "send it alone"
        )
    return properties["UNIQ_KEY"], BatchMessage(message.body, text, message.flag), size


def _batch(
    messages: tuple[Message, ...], parts: Sequence[tuple[str, BatchMessage, int]], batch_id: str
) -> Outgoing:
    # The batch has an id of its own, which is no message's.
    whole = Message(messages[0].topic, b"", wait_stored=messages[0].wait_stored)
    return Outgoing(
        messages=messages,
        message_id=parts[0][0],
        properties=property_string(whole.topic, message_properties(whole, batch_id)),
        body=encode_batch(part for _, part, _ in parts),
        ids=tuple(message_id for message_id, _, _ in parts),
    )


def encoded_batch(topic: str, body: bytes, first_id: str, batch_id: str) -> Outgoing:
    """A request of messages that somebody has encoded already, of which the first has the id `first_id`."""
    whole = Message(topic, b"")
    properties = property_string(topic, message_properties(whole, batch_id))
    return Outgoing((whole,), first_id, properties, body, ids=(first_id,))


def batch_results(outgoing: Outgoing, result: SendResult) -> list[SendResult]:
    """One result for each message: they lie in one queue, one after the other."""
    places = result.offset_message_id.split(",")
    return [
        SendResult(
            result.code,
            message_id,
            # a queue that keeps a batch as one record has one place for all
            places[index] if len(places) == len(outgoing.ids) else places[0],
            result.queue,
            result.queue_offset + index,
            result.transaction_id,
        )
        for index, message_id in enumerate(outgoing.ids)
    ]

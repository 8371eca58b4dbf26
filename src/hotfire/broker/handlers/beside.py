"""Answers that take long: made beside the loop from what was taken down first, or given when others know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotfire.broker.call import PARKED, Answer, Call, Outcome
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.protocol.command import Command
from hotfire.protocol.requests import Reply
from hotfire.store.queries import Looker

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker


def answer_beside(
    broker: Broker,
    call: Call[Any],
    work: Callable[[Looker], bytes],
    fields: Reply | None = None,
    remark: str | None = None,
) -> Outcome:
    """Answer with the body `work` makes on another thread; it may look at the log and changes nothing."""
    check_room(broker)
    asked = Asked(call, type(call.request), lambda body: Answer(fields, remark=remark, body=body))
    broker.store.queries.look(work, asked)
    return PARKED


def without_body(call: Call[Any]) -> Call[Any]:
    """What a reply needs of the call, for one that waits: bodies may be large."""
    asked = call.command
    return Call(call.connection, Command(asked.code, asked.opaque, asked.flag), None, call.now_ms)


def answer_registered(broker: Broker, call: Call[Any], answer: Answer) -> Outcome:
    """Answer once name servers were told of a new topic: whoever asks them next is to find it."""
    waiting, declared = without_body(call), type(call.request)

    def tell() -> None:
        if not waiting.connection.closed:
            broker.answer(waiting.connection, waiting.command, declared, answer)

    broker.when_registered(tell)
    return PARKED

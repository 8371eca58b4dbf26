"""Bodies about who reads which queues when a group lets its brokers decide, and by which mode of request.

Declared as in `bodies`, which turns them into JSON and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotfire.model import MessageQueue
from hotfire.protocol.bodies import Reader, declare, int32, items, nested, table, text

PULL, POP = "PULL", "POP"
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"


@dataclass(slots=True, frozen=True)
class AssignmentQuery:
    """A member of a group asks which queues of a topic it is to read."""

    topic: str
    consumer_group: str
    message_model: str
    client_id: str = ""
    strategy_name: str | None = None


@dataclass(slots=True, frozen=True)
class Assignment:
    """One queue, and how to ask for its messages."""

    queue: MessageQueue
    mode: str = PULL


@dataclass(slots=True, frozen=True)
class Assignments:
    """All queues of a member: none lets it give up what it has, None lets it keep that."""

    assignments: tuple[Assignment, ...] | None = None


@dataclass(slots=True, frozen=True)
class RequestMode:
    """How members of a group that let their brokers decide ask for a topic's messages.

    With POP a member reads the queues of `pop_share_queues` more members too, those after it in order.
    """

    topic: str
    consumer_group: str
    mode: str = PULL
    pop_share_queues: int = 0


@dataclass(slots=True, frozen=True)
class RequestModes:
    """Topic -> group -> mode, as brokers keep and tell them."""

    modes: Mapping[str, Mapping[str, RequestMode]] = field(default_factory=dict, hash=False)


def one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"is {value!r:.40}, not {' or '.join(words)}")
        return str(value)

    return read


declare(
    AssignmentQuery,
    ("clientId", "client_id", text),
    ("consumerGroup", "consumer_group", text),
    ("messageModel", "message_model", one_of(CLUSTERING, BROADCASTING)),
    ("strategyName", "strategy_name", text),
    ("topic", "topic", text),
)
declare(Assignment, ("messageQueue", "queue", nested(MessageQueue)), ("mode", "mode", one_of(PULL, POP)))
declare(Assignments, ("messageQueueAssignments", "assignments", items(nested(Assignment))))
declare(
    RequestMode,
    ("consumerGroup", "consumer_group", text),
    ("mode", "mode", one_of(PULL, POP)),
    ("popShareQueueNum", "pop_share_queues", int32),
    ("topic", "topic", text),
)
declare(RequestModes, ("messageRequestModeMap", "modes", table(text, table(text, nested(RequestMode)))))

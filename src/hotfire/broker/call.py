"""One request on its way through the broker, and the three things a handler may say about it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hotfire.net.heart import Connection
from hotfire.protocol.codes import VERSION, LanguageCode, ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import Reply, Request

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

R = TypeVar("R", bound=Request)


@dataclass(slots=True, frozen=True)
class Call(Generic[R]):
    """A typed request, who sent it, and when."""

    connection: Connection
    command: Command
    request: R
    now_ms: int


@dataclass(slots=True, frozen=True)
class Answer:
    """Reply now."""

    fields: Reply | dict[str, str] | None = None
    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    body: bytes = b""
    language: int = LanguageCode.JAVA
    version: int = VERSION
    """These two are another's when the answer is: of a client that was asked on."""

    def to(self, command: Command, fields: dict[str, str] | None) -> Command:
        reply = command.reply(self.code, fields=fields, remark=self.remark, body=self.body)
        reply.language, reply.version = self.language, self.version
        return reply


@dataclass(slots=True, frozen=True)
class AnswerWhenReadable:
    """Reply once the log is readable, that is safe, up to `end`."""

    end: int
    answer: Answer


@dataclass(slots=True, frozen=True)
class Task:
    """The broker's own work beside the loop, as the store's queries hand it back."""

    then: Callable[[Future[Any]], None]


class Refused(Exception):  # an outcome, raised to leave the checks early
    """Refuse with more than a code and a remark."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.remark)
        self.answer = answer


class Parked:
    """Reply later; the handler has kept the call."""


PARKED = Parked()
Outcome = Answer | AnswerWhenReadable | Parked

HANDLERS: dict[type[Request], Callable[[Broker, Call[Request]], Outcome]] = {}
"""Every handler, by the request it serves."""


def handles(
    *requests: type[R],
) -> Callable[[Callable[[Broker, Call[R]], Outcome]], Callable[[Broker, Call[R]], Outcome]]:
    """Register a handler. A request is a declared class, so a handler for an undeclared code cannot exist."""

    def register(handler: Callable[[Broker, Call[R]], Outcome]) -> Callable[[Broker, Call[R]], Outcome]:
        for request in requests:
            if request in HANDLERS:
                raise TypeError(f"{request.__name__} has two handlers")
            HANDLERS[request] = handler  # type: ignore[assignment]  # the key is the type of its calls
        return handler

    return register

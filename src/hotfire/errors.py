"""Every error Hotfire raises, and what a caller may do about it.

    HotfireError
    ├── ProtocolError
    │   ├── LocalProtocolError           we were about to break the protocol: a bug or an oversized request
    │   └── RemoteProtocolError          the peer broke it; answer nothing, hang up
    │       ├── MessageDamaged           a message that was pulled is not what was stored
    │       └── MalformedRequest         a sound frame with unsound fields; answer and go on
    │           ├── MissingField
    │           └── BadField
    ├── BrokerRefused                    the peer understood and said no; its code and remark are kept
    │   ├── SystemFailed, SystemBusy, ...     one class per code that callers tell apart
    ├── Unreachable                      no answer; the request may or may not have been carried out
    │   ├── ConnectError                     the connection was never made: surely not carried out
    │   ├── ConnectionLost                   it broke while we waited
    │   ├── Timeout                          nothing came in time
    │   │   └── RequestTimeout                   the request is stored; no reply to it came
    │   └── NoRoute                          no name server knows a broker for the topic
    ├── NotRunning                       a client that was not started, or was closed
    ├── NotAssigned                      a queue that is not this consumer's, or no more
    ├── TooManyInFlight                  as many sends wait for their answers as may; nothing was sent
    ├── RateLimited                      faster than the producer may; nothing was sent
    ├── EffectFailed                     an effect of `Once` that its store cannot undo
    ├── StoreError                       the disk or what is on it
    │   ├── StoreReadOnly, StoreBusy, StoreFull, StoreCorrupt, RecordInvalid
    └── ConfigError                      a setting that cannot be used

>>> async def example() -> None:
...     async with Producer("127.0.0.1:9876") as producer:
...         try:
...             await producer.send(Message("orders", b"paid"))
...         except HotfireError as error:
...             print(error, error.retriable, error.outcome_unknown)

Retry loops read two class attributes instead of a list of names: `retriable` (another attempt may
succeed, perhaps on another broker) and `refresh_route` (ask a name server before the next attempt).
This module owns those two facts; it must not know how frames look. A test keeps the codes here and
in `protocol.codes` equal.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HotfireError(Exception):
    """Root of everything raised on purpose."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False

    # What a failed send tells of itself; see Producer.confirm.
    topic: str | None = None
    message_id: str | None = None
    outcome_unknown: bool = False
    """The message may be stored: some attempt reached a broker, or may have, and was not answered."""
    unanswered: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    """Of the parts of a batch that were stored before this one failed."""


class ProtocolError(HotfireError):
    """Bytes or fields that the remoting protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We tried to send something that no peer could accept."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not a frame; the stream is lost and the connection must close."""

    hang_up: ClassVar[bool] = True


class MessageDamaged(RemoteProtocolError):
    """A message cannot be read: its checksum or its layout is wrong. `next_offset` is where to go on."""

    hang_up: ClassVar[bool] = False

    def __init__(self, queue: Any, queue_offset: int, next_offset: int, reason: str) -> None:
        super().__init__(queue, queue_offset, next_offset, reason)
        self.queue = queue
        self.queue_offset = queue_offset
        self.next_offset = next_offset
        self.reason = reason

    def __str__(self) -> str:
        queue = self.queue
        return (
            f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id} "
            f"offset {self.queue_offset}: the message there is damaged: {self.reason}; go on at offset "
            f"{self.next_offset}, and look at the broker's store"
        )


class MalformedRequest(RemoteProtocolError):
    """A well-formed frame whose fields do not fit the request; only this request fails."""

    hang_up: ClassVar[bool] = False

    def __init__(self, request: str, field: str, problem: str) -> None:
        super().__init__(request, field, problem)
        self.request = request
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.request}: field {self.field} {self.problem}"


class MissingField(MalformedRequest):
    """A mandatory field is absent."""

    def __init__(self, request: str, field: str, problem: str = "is mandatory and absent") -> None:
        super().__init__(request, field, problem)


class BadField(MalformedRequest):
    """A field is present and its text is not of the declared type."""


class BrokerRefused(HotfireError):
    """A peer answered with a code other than success.

    Constructing it picks the class that stands for the code, so servers and clients spell it alike:

    >>> error = BrokerRefused(17, "no topic T")
    >>> type(error).__name__, error.retriable, error.refresh_route
    ('TopicNotExist', True, True)
    """

    by_code: ClassVar[dict[int, type[BrokerRefused]]] = {}

    def __init_subclass__(
        cls, *, code: int, retriable: bool = False, refresh_route: bool = False, **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        if code in BrokerRefused.by_code:
            raise TypeError(
                f"response code {code}: both {BrokerRefused.by_code[code].__name__} and {cls.__name__}"
            )
        cls.retriable = retriable
        cls.refresh_route = refresh_route
        BrokerRefused.by_code[code] = cls

    def __new__(cls, code: int, remark: str = "") -> BrokerRefused:
        return super().__new__(BrokerRefused.by_code.get(code, BrokerRefused), code, remark)

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{type(self).__name__} (code {int(self.code)}): {self.remark or 'no remark'}"


# The retriable ones are the Java producer's default set (17, 14, 1, 2, 16, 204, 205, 1500).
# fmt: off
class SystemFailed(BrokerRefused, code=1, retriable=True): ...
class SystemBusy(BrokerRefused, code=2, retriable=True): ...
class RequestNotSupported(BrokerRefused, code=3): ...
class SlaveNotAvailable(BrokerRefused, code=11): ...
class MessageIllegal(BrokerRefused, code=13): ...
class ServiceNotAvailable(BrokerRefused, code=14, retriable=True, refresh_route=True): ...
class NoPermission(BrokerRefused, code=16, retriable=True, refresh_route=True): ...
class TopicNotExist(BrokerRefused, code=17, retriable=True, refresh_route=True): ...
class QueryNotFound(BrokerRefused, code=22): ...
class SubscriptionParseFailed(BrokerRefused, code=23): ...
class SubscriptionNotExist(BrokerRefused, code=24): ...
class SubscriptionNotLatest(BrokerRefused, code=25): ...
class GroupNotExist(BrokerRefused, code=26): ...
class InvalidParameter(BrokerRefused, code=29): ...
class NoBuyerId(BrokerRefused, code=204, retriable=True): ...
class NotInCurrentUnit(BrokerRefused, code=205, retriable=True): ...
class ConsumerNotOnline(BrokerRefused, code=206): ...
class NotLeaderForQueue(BrokerRefused, code=501, refresh_route=True): ...
class IllegalOperation(BrokerRefused, code=604): ...
class GoAway(BrokerRefused, code=1500, retriable=True): ...
# fmt: on


class Unreachable(HotfireError):
    """No answer arrived, for whatever reason."""

    retriable = True
    refresh_route = True


class ConnectError(Unreachable):
    """The peer could not be dialled, so it has not seen the request."""


class ConnectionLost(Unreachable):
    """The connection closed before the answer; the request may have been carried out."""


class Timeout(Unreachable):
    """The answer did not come in time; the request may have been carried out."""


class RequestTimeout(Timeout):
    """A request was stored, and nobody replied to it in time; it may still be carried out."""


class NoRoute(Unreachable):
    """No name server we could ask knows a broker for the topic."""


class NotRunning(HotfireError):
    """The client was not started yet, or was closed."""


class NotAssigned(HotfireError):
    """The queue is not this consumer's: it never was, or the group's queues were shared anew."""


class TooManyInFlight(HotfireError):
    """As many sends wait for their answers as may at once. Nothing was sent; slow down."""


class RateLimited(HotfireError):
    """More than `max_rate` a second, and waiting was not wanted or would take too long. Nothing was sent."""


class EffectFailed(HotfireError):
    """A command of an effect failed, and its store does not undo those before it. Neither done nor undone."""


class StoreError(HotfireError):
    """The disk failed us, or what is on it is not what we wrote."""


class StoreReadOnly(StoreError):
    """A write or sync failed earlier; nothing more is accepted until the store is opened anew."""


class StoreBusy(StoreError):
    """The disk does not keep up: try again, or another broker."""


class StoreFull(StoreError):
    """Not enough free space to accept a message and keep it."""


class StoreCorrupt(StoreError):
    """Stored bytes contradict their checksum or their neighbours."""


class RecordInvalid(StoreError):
    """Bytes that were to be a stored message are not one."""


class ConfigError(HotfireError):
    """A setting is unknown, of the wrong type or out of range."""

"""Messages that become visible if, and only if, a local transaction succeeds.

A half message goes first; the broker keeps it from consumers. Then the application's own transaction runs
(`execute`), and its outcome is told to the broker: once, and nobody waits for an answer. What gets lost on
the way the broker asks for later, of any living producer of the group (`check`). So `check` must answer from
what the transaction left behind, not from memory: the process that ran it may be gone. And so a producer lets
brokers know of it from its start on, though it may never send.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotfire.client.checks import check_callable, check_message, check_seconds
from hotfire.client.listening import Threads
from hotfire.client.messages import received_messages
from hotfire.client.producer import Producer
from hotfire.client.results import SendResult, SendStatus
from hotfire.client.sending import Trial
from hotfire.errors import ConfigError, HotfireError, LocalProtocolError
from hotfire.model import Message, ReceivedMessage
from hotfire.protocol.command import Command
from hotfire.protocol.record import SysFlag, parse_offset_message_id
from hotfire.protocol.request import Request
from hotfire.protocol.requests import CheckTransactionState, EndTransaction

log = logging.getLogger("hotfire.client")

DELAYS = ("delay_level", "delay_ms", "deliver_at")

TRANSACTION_ID = "__transactionId__"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CHECK_THREADS = 4
QUESTIONS_MAX = 2000
"""Under way at once; what is beyond the broker asks again."""
END_TIMEOUT_S = 3.0
MEET_TIMEOUT_S = 3.0


class TransactionState(enum.Enum):
    """How a local transaction ended.

    >>> [state.name for state in TransactionState]
    ['COMMIT', 'ROLLBACK', 'UNKNOWN']
    """

    COMMIT = SysFlag.TRANSACTION_COMMIT
    """Deliver the message."""
    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    """Never deliver it."""
    UNKNOWN = 0
    """Not known yet: the broker asks later."""


TRACED_AS = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""Java's names."""


@dataclass(slots=True, frozen=True)
class TransactionResult:
    """What became of a transaction's local part, and where its half message is.

    >>> sent = SendResult(0, "id", "place", MessageQueue("T", "b", 1), 7)
    >>> TransactionResult(TransactionState.COMMIT, sent).state.name
    'COMMIT'
    """

    state: TransactionState
    sent: SendResult
    error: Exception | None = None
    """What `execute` raised; the state is UNKNOWN then."""


Execute = Callable[[Message, Any], TransactionState | Awaitable[TransactionState | None] | None]
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState | None] | None]


class TransactionProducer(Producer):
    """Sends messages that become visible when a local transaction commits.

    >>> async def example() -> None:
    ...     def execute(message: Message, order: str) -> TransactionState:
    ...         # write `order` to a database, in one transaction
    ...         return TransactionState.COMMIT
    ...     def check(message: ReceivedMessage) -> TransactionState:
    ...         # is the order of `message` in the database?
    ...         return TransactionState.COMMIT
    ...     async with TransactionProducer(
    ...         "127.0.0.1:9876", group="shop-orders", execute=execute, check=check
    ...     ) as producer:
    ...         result = await producer.send_in_transaction(Message("orders", b"paid"), "order-17")
    ...         print(result.state)

    `execute` is called with the message and the argument of `send_in_transaction`, `check` with the message
    as the broker has it; both have its id in the property `__transactionId__`. Plain functions run in
    threads, coroutine functions on the loop. All producers of a group must be able to check each other's
    transactions. Other settings are those of `Producer`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        execute: Execute,
        check: Check,
        **settings: Any,
    ) -> None:
        for name, function in (("execute", execute), ("check", check)):
            check_callable(name, function)
            if function is None:
                raise ConfigError(f"{name} is None; give a function that returns a TransactionState")
        super().__init__(name_servers, group=group, **settings)
        self._execute = execute
        self._check = check
        self._threads: Threads | None = None
        self._questions = 0

    async def start(self) -> None:
        await super().start()
        self._instance.do_beside(self.routes_changed())

    async def routes_changed(self) -> None:
        """Be known to brokers it never sent to: their halves may be of others in this group, who are gone."""
        instance = self._joined
        if instance is None:
            return
        try:
            await instance.routes.meet(MEET_TIMEOUT_S)
        except HotfireError as error:
            log.warning(
                "group=%s: brokers that are not sent to cannot ask us yet, tried again later: %s",
                self.group, error,
            )  # fmt: skip
        instance.greetings.to_others()

    async def close(self) -> None:
        await super().close()
        if self._threads is not None:
            self._threads.close()

    # --- sending ---

    async def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        immunity_s: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store the message out of sight, run `execute(message, arg)`, and tell the broker how it ended.

        Raises what the send met; then `execute` was not called. What `execute` raises is in the result. The
        broker asks after its transactionTimeOut (6 s) or later, and not before `immunity_s` has passed.
        """
        half, sent = await self.begin(message, immunity_s=immunity_s, timeout_s=timeout_s)
        returned: Any = None
        if sent.status is SendStatus.SEND_OK:
            try:
                returned = await self._call(self._execute, half, arg)
            except Exception as error:  # noqa: BLE001  # the application finds it in the result
                returned = error
        result = executed(sent, lambda: _given(returned))
        await self.finish(half, result)
        return result

    async def begin(
        self, message: Message, *, immunity_s: int | None = None, timeout_s: float | None = None
    ) -> tuple[Message, SendResult]:
        """Send the half; the message as `execute` gets it, and where it was stored."""
        instance, deadline = self._instance, self._deadline(timeout_s)
        check_message(message, body_bytes_max=self._body_bytes_max)
        delayed = {name: given for name in DELAYS if (given := getattr(message, name))}
        for name, given in delayed.items():
            raise LocalProtocolError(
                f"message to {message.topic}: {name}={given} in a transaction; brokers deliver it when it is "
                "committed, so leave it out"
            )
        message_id = self._next_id()
        marks = {"TRAN_MSG": "true", "PGROUP": self.group}
        if immunity_s is not None:
            check_seconds("immunity_s", immunity_s)
            marks[IMMUNITY] = str(math.ceil(immunity_s))
        marked = dataclasses.replace(message, properties={**message.properties, **marks})
        outgoing = self._prepare_message(marked, message_id, is_ours=True)
        trial = Trial(outgoing, deadline, asks_back=True)
        with self._permits:
            await self._sender.route(message.topic, trial.deadline)
            instance.greetings.to_others()  # which may ask about halves of others in our group
            sent = await self._send(trial, None, None, None)
        named = {**message.properties, TRANSACTION_ID: sent.transaction_id or sent.message_id}
        return dataclasses.replace(message, properties=named), sent

    async def finish(self, half: Message, result: TransactionResult) -> None:
        """Tell the broker. Should that fail, or get lost, the broker asks."""
        sent = result.sent
        route = self._instance.routes.peek(sent.queue.topic)
        address = None if route is None else route.master(sent.queue.broker_name)
        failed = "executeLocalTransactionBranch exception"
        remark = None if result.error is None else f"{failed}: {result.error!r:.500}"
        outcome = EndTransaction(
            topic=sent.queue.topic,
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=parse_offset_message_id(sent.offset_message_id)[1],
            commit_or_rollback=result.state.value,
            from_transaction_check=False,
            msg_id=sent.message_id,
            transaction_id=sent.transaction_id,
            broker_name=sent.queue.broker_name,
        )
        await self._tell(address or _host_of(sent.offset_message_id), half, outcome, remark)

    async def _tell(
        self, address: str, message: Message | ReceivedMessage, outcome: EndTransaction, remark: str | None
    ) -> None:
        if self._tracing is not None:
            self._tracing.ended(
                message,
                outcome.msg_id or "",
                address,
                group=self.group,
                transaction_id=outcome.transaction_id,
                state=TRACED_AS[TransactionState(outcome.commit_or_rollback)],
                is_checked=bool(outcome.from_transaction_check),
            )
        command = dataclasses.replace(outcome.to_command(oneway=True), remark=remark)
        try:
            peer = await self._instance.connection(address, END_TIMEOUT_S)
            await peer.invoke_oneway(command, END_TIMEOUT_S)
        except HotfireError as error:
            log.warning(
                "group=%s message=%s outcome=%s not told, the broker will ask: %s",
                self.group, outcome.msg_id, TransactionState(outcome.commit_or_rollback).name, error,
            )  # fmt: skip

    # --- what brokers ask ---

    def asked(self, request: Request) -> Command | Awaitable[Command | None] | None:
        if not isinstance(request, CheckTransactionState):
            return super().asked(request)
        if self._questions >= QUESTIONS_MAX:
            log.warning("group=%s: %d questions are under way, one is left alone", self.group, QUESTIONS_MAX)
            return None
        return self._answer(request)

    async def _answer(self, request: CheckTransactionState) -> None:
        self._questions += 1
        try:
            message = _message_of(request)
            error: Exception | None = None
            state = TransactionState.UNKNOWN
            try:
                state = state_of(await self._call(self._check, message))
            except Exception as failure:
                log.exception("group=%s message=%s: check failed", self.group, message.message_id)
                error = failure
            outcome = EndTransaction(
                topic=request.topic,
                producer_group=self.group,
                tran_state_table_offset=request.tran_state_table_offset,
                commit_log_offset=request.commit_log_offset,
                commit_or_rollback=state.value,
                from_transaction_check=True,
                msg_id=message.message_id,
                transaction_id=request.transaction_id,
                broker_name=request.broker_name,
            )
            remark = None if error is None else f"checkLocalTransactionState Exception: {error!r:.500}"
            await self._tell(self._asker(request, message), message, outcome, remark)
        finally:
            self._questions -= 1

    def _asker(self, request: CheckTransactionState, message: ReceivedMessage) -> str:
        """The broker that asked; one before version 5 does not say its name."""
        for broker in self._instance.routes.brokers():
            if broker.name == request.broker_name and broker.master is not None:
                return broker.master
        return _host_of(request.offset_msg_id or message.offset_message_id)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if is_async(function):
            return await function(*arguments)
        if self._threads is None:
            self._threads = Threads(CHECK_THREADS, f"hotfire-{self.group}")
        return await self._threads.run(lambda: function(*arguments))


def executed(sent: SendResult, execute: Callable[[], object]) -> TransactionResult:
    """What the local part came to. It is not run for a half that may be lost yet."""
    if sent.status is not SendStatus.SEND_OK:
        return TransactionResult(TransactionState.ROLLBACK, sent)
    try:
        return TransactionResult(state_of(execute()), sent)
    except Exception as error:
        log.exception("message=%s topic=%s: execute failed", sent.message_id, sent.queue.topic)
        return TransactionResult(TransactionState.UNKNOWN, sent, error)


def _given(returned: object) -> object:
    if isinstance(returned, Exception):
        raise returned
    return returned


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__ is one, too
    )


def state_of(returned: object) -> TransactionState:
    """What a function's value stands for; None is unknown, and anything else a mistake."""
    if returned is None:
        return TransactionState.UNKNOWN
    if isinstance(returned, TransactionState):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError(f"{type(returned).__name__} was returned; return a TransactionState, or None for UNKNOWN")


def _host_of(offset_message_id: str) -> str:
    host, _ = parse_offset_message_id(offset_message_id)
    return f"[{host.ip}]:{host.port}" if host.is_v6 else f"{host.ip}:{host.port}"


def _message_of(request: CheckTransactionState) -> ReceivedMessage:
    return next(received_messages(request.body, request.broker_name or ""))

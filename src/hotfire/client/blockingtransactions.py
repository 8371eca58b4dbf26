"""Transactions without an event loop: `execute` runs in the thread that sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotfire.client import transactions
from hotfire.client.blocking import Face, Producer
from hotfire.client.bridge import Bridge
from hotfire.client.transactions import TransactionResult, TransactionState
from hotfire.errors import ConfigError
from hotfire.model import Message


class TransactionProducer(Producer):
    """Sends messages that become visible when a local transaction commits.

    >>> def example() -> None:
    ...     def execute(message: Message, order: str) -> TransactionState:
    ...         return TransactionState.COMMIT  # the order is in the database
    ...     def check(message: ReceivedMessage) -> TransactionState:
    ...         return TransactionState.COMMIT  # so the database says
    ...     with TransactionProducer(
    ...         "127.0.0.1:9876", group="shop", execute=execute, check=check
    ...     ) as producer:
    ...         print(producer.send_in_transaction(Message("orders", b"paid"), "order-17").state)

    As `hotfire.TransactionProducer`. `execute`, a plain function, runs in the thread that sends; `check` in
    one of the client's.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        execute: Callable[[Message, Any], TransactionState | None],
        check: transactions.Check,
        bridge: Bridge | None = None,
        **settings: Any,
    ) -> None:
        def make() -> transactions.TransactionProducer:
            made = transactions.TransactionProducer(
                name_servers, group=group, execute=execute, check=check, **settings
            )
            self._transactions = made
            return made

        if transactions.is_async(execute):
            raise ConfigError("execute is a coroutine function; without a loop give a plain function")
        self._execute = execute
        Face.__init__(self, make, bridge)

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        immunity_s: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store the message out of sight, run `execute(message, arg)`, and tell the broker how it ended."""
        inner = self._transactions
        half, sent = self._bridge.run(inner.begin(message, immunity_s=immunity_s, timeout_s=timeout_s))
        result = transactions.executed(sent, lambda: self._execute(half, arg))
        self._bridge.run(inner.finish(half, result))
        return result

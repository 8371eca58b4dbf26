"""Functions of the application that run before and after every attempt to send."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hotfire.client.checks import check_hooks
from hotfire.client.results import SendResult
from hotfire.errors import HotfireError
from hotfire.model import Message, MessageQueue
from hotfire.net.clock import now_ms

log = logging.getLogger("hotfire.client")

Mode = Literal["sync", "async", "oneway"]


@dataclass(slots=True)
class SendContext:
    """One attempt, as hooks see it. After it, `result` or `error` is set; for a oneway send neither."""

    group: str
    messages: tuple[Message, ...]
    """More than one for a batch."""
    message_id: str
    queue: MessageQueue
    broker_address: str
    mode: Mode
    ids: tuple[str, ...] = ()
    """Of the messages of a batch."""
    began_ms: int = field(default_factory=now_ms)
    reply_fields: Mapping[str, str] | None = None
    """What else the broker said: its region, and whether it wants traces."""
    result: SendResult | None = None
    error: HotfireError | None = None


class SendHook:
    """Override what is wanted. What a hook raises is logged, and the send goes on.

    >>> class Count(SendHook):
    ...     sent = 0
    ...     def after(self, context: SendContext) -> None:
    ...         self.sent += context.error is None
    """

    def before(self, context: SendContext) -> None:
        """The message is about to leave."""

    def after(self, context: SendContext) -> None:
        """It was answered, or failed."""


class SendHooks:
    """Several hooks, in the order given."""

    def __init__(self, hooks: Sequence[SendHook]) -> None:
        self._hooks: Sequence[SendHook] = check_hooks(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, context: SendContext) -> None:
        for hook in self._hooks:
            self._run(hook, "before", context)

    def after(self, context: SendContext) -> None:
        for hook in self._hooks:
            self._run(hook, "after", context)

    def _run(self, hook: SendHook, moment: Literal["before", "after"], context: SendContext) -> None:
        try:
            getattr(hook, moment)(context)
        except Exception:
            log.exception(
                "hook=%s failed %s a send to topic=%s", type(hook).__name__, moment, context.queue.topic
            )

"""Consumers as decorated functions, run together until the process is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from hotfire.client.consumer import Consumer
from hotfire.client.listening import Listener
from hotfire.errors import ConfigError

Decorated = TypeVar("Decorated", bound=Listener)


class App:
    """Functions that consume.

    >>> app = App("127.0.0.1:9876")
    >>> @app.consumer("orders", group="billing", tags="pay || refund")
    ... async def on_order(message: ReceivedMessage) -> None:
    ...     print(message.body)

    `app.run()` consumes until Ctrl-C or SIGTERM; in a program that has a loop of its own, `async with app`.
    Functions of one group share one consumer, and so its settings.
    """

    def __init__(self, name_servers: str | Sequence[str] | None = None, **settings: Any) -> None:
        """`settings` are those of Consumer, for every group that does not say otherwise."""
        self._name_servers = name_servers
        self._settings = settings
        self._consumers: dict[str, Consumer] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._running: AsyncExitStack | None = None

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] = "*",
        sql: str | None = None,
        **settings: Any,
    ) -> Callable[[Decorated], Decorated]:
        """Bring the topic's messages to the decorated function, as a member of the group."""

        def subscribe(function: Decorated) -> Decorated:
            consumer = self._consumer(group, settings)
            if consumer.listens_to(topic):
                raise ConfigError(
                    f"group {group} has a function for topic {topic} already; messages go to one function of "
                    "a group: choose by message.tag in it, or use another group"
                )
            consumer.subscribe(topic, function, tags, sql=sql)
            return function

        return subscribe

    def _consumer(self, group: str, settings: dict[str, Any]) -> Consumer:
        if group not in self._consumers:
            self._said[group] = settings
            self._consumers[group] = Consumer(
                self._name_servers, group=group, **{**self._settings, **settings}
            )
        elif settings and settings != self._said[group]:
            raise ConfigError(
                f"group {group} has settings {self._said[group]} and {settings}; one consumer serves the "
                "group: say them once"
            )
        return self._consumers[group]

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        return tuple(self._consumers.values())

    async def __aenter__(self) -> App:
        if not self._consumers:
            raise ConfigError("this app has no consumer; decorate a function with @app.consumer(...)")
        async with AsyncExitStack() as started:
            for consumer in self._consumers.values():
                await started.enter_async_context(consumer)
            self._running = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    def run(self) -> None:
        """Consume until Ctrl-C or SIGTERM, then leave the groups in order."""
        asyncio.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, ValueError):  # not in the main thread: who runs it, ends it
                loop.add_signal_handler(number, stop.set)
        async with self:
            await stop.wait()

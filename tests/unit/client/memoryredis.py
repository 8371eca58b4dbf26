"""A Redis in memory, as far as RedisOnce asks for one."""

from collections.abc import Callable
from typing import Any


class WatchError(Exception):
    """As the redis package names it."""


class MemoryRedis:
    """What RedisOnce asks of a server, with a second client that may come between."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.meanwhile: list[Callable[[], None]] = []

    def pipeline(self, transaction: bool) -> "MemoryRedis.Pipe":
        assert transaction
        return self.Pipe(self)

    class Pipe:
        def __init__(self, server: "MemoryRedis") -> None:
            self._server = server
            self._queued: list[tuple[str, Any]] = []
            self._seen: Any = None

        def __enter__(self) -> "MemoryRedis.Pipe":
            return self

        def __exit__(self, *_: object) -> None: ...

        def watch(self, name: str) -> None:
            self._watched, self._seen = name, self._server.data.get(name)

        def exists(self, name: str) -> bool:
            return name in self._server.data

        def multi(self) -> None: ...

        def set(self, name: str, value: Any, px: int | None = None) -> None:
            self._queued.append((name, value))

        def execute(self) -> None:
            calls, self._server.meanwhile = self._server.meanwhile, []
            for call in calls:
                call()
            if self._server.data.get(self._watched) != self._seen:
                raise WatchError
            self._server.data.update(self._queued)

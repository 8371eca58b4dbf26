"""A Redis in memory, as far as RedisOnce asks for one."""

from collections.abc import Callable, Sequence
from typing import Any

from hotfire.client.once import EFFECT_AND_KEY


class MemoryRedis:
    """What RedisOnce asks of a server, with a second client that may come between."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.meanwhile: list[Callable[[], None]] = []

    def get(self, name: str) -> Any:
        return self.data.get(name)

    def set(self, name: str, value: Any) -> None:
        self.data[name] = value

    def delete(self, name: str) -> None:
        del self.data[name]

    def pipeline(self, transaction: bool) -> "MemoryRedis.Pipe":
        assert transaction
        return self.Pipe()

    def register_script(self, text: str) -> Callable[..., Any]:
        assert text == EFFECT_AND_KEY, "it knows this script alone"
        return self._effect_and_key

    def _effect_and_key(self, *, keys: Sequence[str], args: Sequence[Any]) -> bytes:
        """As the script says it in Lua: all at once, for nobody else is served meanwhile."""
        calls, self.meanwhile = self.meanwhile, []
        for call in calls:
            call()
        token, _keep_ms, *rest = args
        if keys[0] in self.data:
            return bytes(self.data[keys[0]])
        number, kept = 0, str(token)
        while rest and kept == token:
            (name, *words), rest, number = rest[1 : rest[0] + 1], rest[rest[0] + 1 :], number + 1
            problem = self._command(name, *words)
            if problem is not None:
                told = f"command {number} of the effect, {name} {words[0]}, failed: {problem}"
                if number == 1:
                    return f"nothing {told}".encode()
                kept = f"failed {told}"
        self.data[keys[0]] = kept.encode()
        return kept.encode()

    def _command(self, name: str, key: str, *words: Any) -> str | None:
        """Carry it out; what is wrong with it, if anything."""
        if name == "SET":
            self.data[key] = words[0]
            return None
        assert name == "INCRBY"
        if not isinstance(self.data.get(key, 0), int):
            return "ERR value is not an integer or out of range"
        self.data[key] = self.data.get(key, 0) + words[0]
        return None

    class Pipe:
        """Collects commands, as redis-py keeps them."""

        def __init__(self) -> None:
            self.command_stack: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
            self.execute: Callable[[], Any]

        def __enter__(self) -> "MemoryRedis.Pipe":
            return self

        def __exit__(self, *_: object) -> None: ...

        def multi(self) -> None: ...

        def set(self, name: str, value: Any) -> None:
            self.command_stack.append((("SET", name, value), {}))

        def incr(self, name: str) -> None:
            self.command_stack.append((("INCRBY", name, 1), {}))

"""Each effect of a message once, however often the message comes.

Consumption is at least once: a message may come again after a crash, a rebalance, or because it was sent
twice. `Once` remembers what was done, in the same transaction as the effect itself: either both are there or
neither, whatever moment the process is killed at. That is why an effect gets the store's own connection: one
made elsewhere (a mail, another database) cannot be part of the transaction and may be repeated by a crash.

A message is told by its unique id, which its producer keeps over its own retries, or by a business key
(`by_key`), which also covers two sends of one order.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hotfire.client.listening import ListenerThread
from hotfire.errors import ConfigError, EffectFailed
from hotfire.model import ReceivedMessage

Transaction = TypeVar("Transaction")
Given = TypeVar("Given", covariant=True)
Effect = Callable[[Transaction], Any]
KEEP_S = 14 * 24 * 3600.0
"""How long what was done is remembered. The log keeps messages for three days unless told otherwise, and a
message is tried for five hours; what is older does not come again."""
PRUNE_INTERVAL_S = 600.0
COMMAND_WORDS_MAX = 7000
"""Lua has room for some 8000 values to call a function with."""
FAILED, NOTHING = "failed ", "nothing "
EFFECT_AND_KEY = """
local kept = redis.call('GET', KEYS[1])
if kept then return kept end
local at, number = 3, 1
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, last))
  if type(reply) == 'table' and reply.err then
    local words = string.sub(table.concat(ARGV, ' ', at + 1, math.min(last, at + 2)), 1, 200)
    local told = 'command ' .. number .. ' of the effect, ' .. words .. ', failed: ' .. reply.err
    if number == 1 then return 'nothing ' .. told end
    redis.call('SET', KEYS[1], 'failed ' .. told, 'PX', ARGV[2])
    return 'failed ' .. told
  end
  at, number = last + 1, number + 1
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
"""Only a script can do one thing or another by how a command went, with no moment in between for a crash."""


def by_message_id(message: ReceivedMessage) -> str:
    return message.message_id


def by_key(message: ReceivedMessage) -> str:
    """The message's own business keys."""
    if not message.keys:
        raise ConfigError(
            f"message {message.message_id} of topic {message.topic} has no keys to be told by; send it with "
            "keys, or use by_message_id"
        )
    return " ".join(message.keys)


class OnceStore(Protocol[Given]):
    """Where it is remembered what was done. `run` may be called from any thread."""

    def run(self, key: str, effect: Callable[[Given], Any]) -> bool:
        """Call `effect` with a transaction and commit it together with the key; False if the key was there.

        When the effect raises, neither is kept, and the next call tries again. A store that cannot undo what
        was written before a failure says so: it raises EffectFailed, then and at each further call.
        """


class Once(Generic[Transaction]):
    """Effects by message.

    >>> store = SqliteOnce(":memory:")
    >>> once = Once(store, scope="billing")
    >>> def pay(db: sqlite3.Connection) -> None:
    ...     db.execute("CREATE TABLE IF NOT EXISTS paid (order_id)")
    ...     db.execute("INSERT INTO paid VALUES ('order-1')")
    >>> async def handle(message: ReceivedMessage) -> None:
    ...     await once.run(message, pay)

    `scope` keeps apart what several groups, or several effects of one message, have done.
    """

    def __init__(
        self,
        store: OnceStore[Transaction],
        *,
        scope: str = "",
        key: Callable[[ReceivedMessage], str] = by_message_id,
    ) -> None:
        self._store = store
        self._scope = scope
        self._key = key

    def run(self, message: ReceivedMessage, effect: Effect[Transaction]) -> Coroutine[Any, Any, bool]:
        """To be awaited: whether the effect happened now; False when it had before.

        It runs on another thread.
        """
        if isinstance(threading.current_thread(), ListenerThread) and not _in_a_loop():
            # nobody awaits it here: the message would count as done, and the effect would never happen
            raise ConfigError(
                f"message {message.message_id} of topic {message.topic}: the listener is a plain function, "
                "and Once.run must be awaited; use hotfire.sync.Once, or make it a coroutine function"
            )
        return asyncio.to_thread(self.run_blocking, message, effect)

    def run_blocking(self, message: ReceivedMessage, effect: Effect[Transaction]) -> bool:
        """The same in the caller's own thread; `hotfire.sync.Once` for programs without a loop."""
        return self._store.run(f"{self._scope}\n{message.topic}\n{self._key(message)}", effect)


class SqliteOnce:
    """Remembers in an SQLite file, where the effects are written too. Several processes may share it.

    >>> store = SqliteOnce(":memory:")
    >>> store.run("order-1", lambda db: db.execute("CREATE TABLE paid (order_id)"))
    True
    >>> store.run("order-1", lambda db: db.execute("CREATE TABLE paid (order_id)"))
    False
    >>> store.close()
    """

    def __init__(
        self,
        path: Path | str,
        *,
        keep_s: float = KEEP_S,
        busy_timeout_s: float = 30.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keep_s = keep_s
        self._now_s = now_s
        self._pruned_s = 0.0
        self._one_at_a_time = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS hotfire_once (key TEXT PRIMARY KEY, done_s REAL NOT NULL) "
            "WITHOUT ROWID"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS hotfire_once_done ON hotfire_once (done_s)")

    def run(self, key: str, effect: Effect[sqlite3.Connection]) -> bool:
        with self._one_at_a_time:
            now_s = self._now_s()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                added = self._db.execute(
                    "INSERT INTO hotfire_once VALUES (?, ?) ON CONFLICT DO NOTHING", (key, now_s)
                ).rowcount
                if added:
                    _check_done(effect(self._db))
                    self._prune(now_s)
                if not self._db.in_transaction:
                    raise ConfigError(
                        "the effect ended the transaction it was given; leave commit and rollback to Once"
                    )
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return bool(added)

    def _prune(self, now_s: float) -> None:
        if now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            self._db.execute("DELETE FROM hotfire_once WHERE done_s < ?", (now_s - self._keep_s,))

    def close(self) -> None:
        with self._one_at_a_time:
            self._db.close()


class RedisOnce:
    """Remembers in Redis, beside what the effects write there.

    >>> async def pay(client: Redis, message: ReceivedMessage) -> None:
    ...     once = Once(RedisOnce(client), scope="billing")
    ...     await once.run(message, lambda pipe: pipe.set("order-1", "paid"))

    `client` is a `redis.Redis`. An effect gets a pipeline, which collects its commands: it cannot read what
    it writes. They are then run with the key as one script, which no crash cuts in two. But Redis undoes
    nothing: where a command fails, such as HSET of a key that is a list, those before it are done and those
    after it are not. That is EffectFailed, now and whenever the message comes again, until somebody has set
    right what is there and deleted the key that the error names. When the first command fails, nothing has
    happened, nothing is remembered, and the next call tries again. Redis keeps what it acknowledged over a
    crash of its own only with `appendonly yes` and `appendfsync always`.
    """

    def __init__(self, client: Any, *, prefix: str = "hotfire:once:", keep_s: float = KEEP_S) -> None:
        self._client = client
        self._prefix = prefix
        self._keep_ms = int(keep_s * 1000)
        self._script = client.register_script(EFFECT_AND_KEY)

    def run(self, key: str, effect: Effect[Any]) -> bool:
        name = self._prefix + key
        kept = self._client.get(name)
        if kept is not None:
            return self._is_ours(name, kept, "")
        # of this call: a client that sends a script again, because the answer was lost, did it all the same
        token = secrets.token_hex(8)
        said = self._script(keys=[name], args=[token, self._keep_ms, *self._commands(effect)])
        return self._is_ours(name, said, token)

    def _commands(self, effect: Effect[Any]) -> list[Any]:
        """What the effect wants done: each command as the number of its words and the words."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.multi()  # from here on it only collects
            pipe.execute = _refuse_execute
            _check_done(effect(pipe))
            commands = [(*name.split(), *words) for (name, *words), _ in pipe.command_stack]
        for words in commands:
            if len(words) > COMMAND_WORDS_MAX:
                raise ConfigError(
                    f"{words[0]} of an effect has {len(words)} words, a script's command has "
                    f"{COMMAND_WORDS_MAX} at most: make several of it"
                )
        return [word for words in commands for word in (len(words), *words)]

    def _is_ours(self, name: str, kept: bytes | str, token: str) -> bool:
        """Whether what is remembered is this call's; EffectFailed when it is of an effect that failed."""
        text = kept.decode(errors="replace") if isinstance(kept, bytes) else kept
        if text.startswith(FAILED):
            raise EffectFailed(
                f"{text.removeprefix(FAILED)}; Redis does not undo the commands before it: set right what is "
                f"there, then delete the key {name!r}, and the effect is tried again"
            )
        if text.startswith(NOTHING):
            raise EffectFailed(f"{text.removeprefix(NOTHING)}; nothing of the effect happened")
        return text == token


def _refuse_execute(*_: Any, **__: Any) -> Any:
    raise ConfigError("the effect executes the pipeline it was given; leave that to Once")


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _check_done(returned: object) -> None:
    """Raise, and so undo everything, when the effect has not happened: it only begins once it is awaited."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise ConfigError(
            "the effect is a coroutine function; it runs inside a transaction, where no loop is: make it a "
            "plain function"
        )

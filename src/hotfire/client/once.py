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
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hotfire.client.listening import ListenerThread
from hotfire.errors import ConfigError
from hotfire.model import ReceivedMessage

Transaction = TypeVar("Transaction")
Given = TypeVar("Given", covariant=True)
Effect = Callable[[Transaction], Any]
KEEP_S = 14 * 24 * 3600.0
"""How long what was done is remembered. The log keeps messages for three days unless told otherwise, and a
message is tried for five hours; what is older does not come again."""
PRUNE_INTERVAL_S = 600.0
WATCHED_TRIES_MAX = 100


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

        When the effect raises, neither is kept, and the next call tries again.
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

    `client` is a `redis.Redis`. An effect gets a pipeline, which collects its commands and is executed with
    the key as one transaction: it cannot read what it writes. Redis keeps what it acknowledged over a crash
    of its own only with `appendonly yes` and `appendfsync always`.
    """

    def __init__(self, client: Any, *, prefix: str = "hotfire:once:", keep_s: float = KEEP_S) -> None:
        self._client = client
        self._prefix = prefix
        self._keep_ms = int(keep_s * 1000)

    def run(self, key: str, effect: Effect[Any]) -> bool:
        name = self._prefix + key
        for _ in range(WATCHED_TRIES_MAX):
            with self._client.pipeline(transaction=True) as pipe:
                pipe.watch(name)
                if pipe.exists(name):
                    return False
                pipe.multi()
                _check_done(effect(pipe))
                pipe.set(name, b"1", px=self._keep_ms)
                try:
                    pipe.execute()
                except Exception as error:
                    if type(error).__name__ != "WatchError":  # of a package that need not be installed
                        raise
                    continue  # somebody else was at this key: look again whether it is done
                return True
        raise ConfigError(
            f"key {name} was changed by others {WATCHED_TRIES_MAX} times while it was being done"
        )


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

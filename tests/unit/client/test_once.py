"""Each effect once, however often its message comes."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire import MessageQueue, Once, ReceivedMessage, RedisOnce, SqliteOnce
from hotfire.client.once import by_key
from hotfire.errors import ConfigError
from tests.unit.client.memoryredis import MemoryRedis


def message(id_: str, *keys: str) -> ReceivedMessage:
    return ReceivedMessage(
        "orders", b"paid", None, keys, {}, 0, MessageQueue("orders", "b", 0), 0, id_, "0" * 32, 0, "", 0, ""
    )


def insert(id_: str) -> Callable[[sqlite3.Connection], Any]:
    return lambda db: db.execute("INSERT INTO paid VALUES (?)", (id_,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "effects.db") as db:
        db.execute("CREATE TABLE paid (id TEXT)")
    db.close()
    return tmp_path / "effects.db"


def paid(path: Path) -> list[str]:
    with sqlite3.connect(path) as db:
        rows = [row[0] for row in db.execute("SELECT id FROM paid ORDER BY id")]
    db.close()
    return rows


def test_the_second_time_nothing_happens(path: Path) -> None:
    """By unique id: once per message and scope, also by another process's store."""
    store, other = SqliteOnce(path), SqliteOnce(path)
    once, again, mails = Once(store), Once(other), Once(store, scope="mails")
    assert asyncio.run(once.run(message("a"), insert("a")))
    assert not asyncio.run(again.run(message("a"), insert("a")))
    assert mails.run_blocking(message("a"), insert("mail a"))
    assert once.run_blocking(message("b"), insert("b"))
    assert paid(path) == ["a", "b", "mail a"]
    store.close()
    other.close()


def test_an_effect_that_is_a_coroutine_is_refused_and_not_remembered(path: Path) -> None:
    """It would only begin when awaited, and nobody awaits it: the next one is done."""

    async def later(db: sqlite3.Connection) -> None:
        insert("a")(db)

    store = SqliteOnce(path)
    once = Once(store)
    with pytest.raises(ConfigError, match="plain function"):
        asyncio.run(once.run(message("a"), later))
    assert paid(path) == []
    assert once.run_blocking(message("a"), insert("a"))
    assert paid(path) == ["a"]
    store.close()


def test_by_business_key_two_sends_of_one_order_are_one(path: Path) -> None:
    """Another unique id, the same keys."""
    store = SqliteOnce(path)
    once = Once(store, key=by_key)
    assert [once.run_blocking(message(id_, "order-1"), insert(id_)) for id_ in "ab"] == [True, False]
    with pytest.raises(ConfigError, match="no keys"):
        once.run_blocking(message("c"), insert("c"))
    assert paid(path) == ["a"]
    store.close()


def test_an_effect_that_fails_leaves_nothing_and_is_tried_again(path: Path) -> None:
    """Neither half of the effect nor the key; one that ends the transaction itself is told so."""
    store = SqliteOnce(path)
    once = Once(store)

    def half(db: sqlite3.Connection) -> None:
        insert("half")(db)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        once.run_blocking(message("a"), half)
    assert once.run_blocking(message("a"), insert("a"))
    with pytest.raises(ConfigError, match="leave commit"):
        once.run_blocking(message("b"), lambda db: db.commit())
    assert paid(path) == ["a"]
    store.close()


def test_many_at_once_do_it_once(path: Path) -> None:
    """Threads that get the same messages at the same time: each effect once."""
    stores = [SqliteOnce(path) for _ in range(4)]
    done: list[bool] = []

    def consume(store: SqliteOnce) -> None:
        once = Once(store)
        done.extend(once.run_blocking(message(f"{n:02}"), insert(f"{n:02}")) for n in range(20))

    threads = [threading.Thread(target=consume, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert (len(done), sum(done)) == (80, 20)
    assert paid(path) == [f"{n:02}" for n in range(20)]
    for store in stores:
        store.close()


def test_what_was_done_long_ago_is_forgotten(path: Path) -> None:
    """Rows beyond their time go, so that the file does not grow for ever."""
    now_s = [0.0]
    store = SqliteOnce(path, keep_s=3600, now_s=lambda: now_s[0])
    once = Once(store)
    once.run_blocking(message("old"), insert("old"))
    now_s[0] = 3000
    assert not once.run_blocking(message("old"), insert("old"))
    once.run_blocking(message("new"), insert("new"))
    now_s[0] = 3000 + 3601
    once.run_blocking(message("newer"), insert("newer"))
    with sqlite3.connect(path) as db:
        assert [key.split("\n")[-1] for (key,) in db.execute("SELECT key FROM hotfire_once")] == ["newer"]
    db.close()
    store.close()


def test_in_redis_key_and_effect_are_one_transaction() -> None:
    """Done once; when another client does it in between, ours is given up."""
    server = MemoryRedis()
    once = Once(RedisOnce(server))
    assert once.run_blocking(message("a"), lambda pipe: pipe.set("paid:a", 1))
    assert not once.run_blocking(message("a"), lambda pipe: pipe.set("paid:a", 2))
    other = Once(RedisOnce(server))

    def other_first() -> None:
        other.run_blocking(message("b"), lambda pipe: pipe.set("paid:b", "theirs"))

    server.meanwhile = [other_first]
    assert not once.run_blocking(message("b"), lambda pipe: pipe.set("paid:b", "ours"))
    assert server.data["paid:a"] == 1
    assert server.data["paid:b"] == "theirs"

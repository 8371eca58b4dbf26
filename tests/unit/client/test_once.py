"""Each effect once, however often its message comes."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire import MessageQueue, Once, ReceivedMessage, RedisOnce, SqliteOnce
from hotfire.client.once import EFFECT_AND_KEY, by_key
from hotfire.errors import ConfigError, EffectFailed
from tests.peers.redisserver import redis_server
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


def half(pipe: Any) -> None:
    pipe.set("before", b"there")
    pipe.incr("paid")
    pipe.set("after", b"there")


def fails_half_way(client: Any) -> None:
    """Its second of three commands is refused: not done, at no delivery, until somebody sees to it."""
    once = Once(RedisOnce(client))
    client.set("paid", b"no number")
    failed = r"command 2 of the effect, INCRBY paid, failed: .* integer"
    with pytest.raises(EffectFailed, match=failed):
        once.run_blocking(message("a"), half)
    assert [client.get(name) for name in ("before", "after")] == [b"there", None]
    client.set("paid", 0)  # it would go well now, but what came before it would happen twice
    with pytest.raises(EffectFailed, match=failed):
        once.run_blocking(message("a"), half)
    client.delete("hotfire:once:\norders\na")
    assert once.run_blocking(message("a"), half)
    assert not once.run_blocking(message("a"), half)
    assert int(client.get("paid")) == 1


def fails_at_once(client: Any) -> None:
    """Its first command is refused: nothing happened, and the next delivery tries again."""
    once = Once(RedisOnce(client))
    client.set("paid", b"no number")

    def pay(pipe: Any) -> None:
        pipe.incr("paid")
        pipe.set("after", b"there")

    with pytest.raises(EffectFailed, match=r"INCRBY paid, failed: .* nothing of the effect happened"):
        once.run_blocking(message("a"), pay)
    assert client.get("after") is None
    client.set("paid", 0)
    assert once.run_blocking(message("a"), pay)
    assert (int(client.get("paid")), client.get("after")) == (1, b"there")


@pytest.mark.parametrize("story", [fails_half_way, fails_at_once])
def test_in_redis_an_effect_that_fails_never_counts_as_done(story: Callable[[Any], None]) -> None:
    """Redis undoes nothing of what came before the command that failed; that is said, not passed over."""
    story(MemoryRedis())


def test_in_redis_an_effect_leaves_executing_to_once() -> None:
    """Its commands would be carried out without being remembered."""
    with pytest.raises(ConfigError, match="leave that to Once"):
        Once(RedisOnce(MemoryRedis())).run_blocking(message("a"), lambda pipe: pipe.execute())


def test_in_redis_an_effect_of_one_endless_command_is_refused() -> None:
    """A script cannot call with so many words."""

    def much(pipe: Any) -> None:
        pipe.command_stack.append((("RPUSH", "paid", *map(str, range(8000))), {}))

    with pytest.raises(ConfigError, match="RPUSH of an effect has 8002 words"):
        Once(RedisOnce(MemoryRedis())).run_blocking(message("a"), much)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_real_redis_does_as_the_one_in_memory(tmp_path: Path) -> None:
    """The same two stories; what is binary, long or a command of two words goes through as it is."""
    with redis_server(tmp_path) as (client, _):
        for story in (fails_half_way, fails_at_once):
            client.flushall()
            story(client)
        once = Once(RedisOnce(client))

        def much(pipe: Any) -> None:
            pipe.rpush("list", b"\0\xff\r\n", *range(6000))
            pipe.object("ENCODING", "list")
            pipe.hset("hash", mapping={"of": 1.5})

        assert once.run_blocking(message("c"), much)
        assert not once.run_blocking(message("c"), much)
        assert (client.llen("list"), client.lindex("list", 0)) == (6001, b"\0\xff\r\n")
        assert client.hgetall("hash") == {b"of": b"1.5"}
        assert client.ttl("hotfire:once:\norders\nc") > 13 * 24 * 3600
        client.set("hotfire:once:\norders\nd", b"1")  # as Hotfire remembered it before
        assert not once.run_blocking(message("d"), much)
        client.execute_command("CONFIG", "SET", "maxmemory", "1")  # every write is refused
        with pytest.raises(EffectFailed, match="nothing of the effect happened"):
            once.run_blocking(message("e"), much)
        client.execute_command("CONFIG", "SET", "maxmemory", "0")
        assert once.run_blocking(message("e"), much)


def test_in_redis_a_script_sent_again_for_a_lost_answer_was_ours() -> None:
    """redis-py tries again by itself when a connection breaks: the effect happened now, not before."""
    server = MemoryRedis()
    store = RedisOnce(server)
    script = server.register_script(EFFECT_AND_KEY)

    def lost_once(**given: Any) -> Any:
        script(**given)
        return script(**given)

    store._script = lost_once
    assert Once(store).run_blocking(message("a"), lambda pipe: pipe.incr("paid"))
    assert server.data["paid"] == 1

"""The programs in examples/ do what they are for, on a cluster whose clock is turned."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from examples import chat, orders_and_stock, registration, unpaid_orders
from hotfire import Producer
from hotfire.testing import Cluster
from tests.docs.pages import ROOT

MINUTES_10, HOUR, MINUTES_45 = timedelta(minutes=10), timedelta(hours=1), timedelta(minutes=45)
ENOUGH_S = 30.0


async def until(queue: asyncio.Queue[str], count: int) -> list[str]:
    async with asyncio.timeout(ENOUGH_S):
        return [await queue.get() for _ in range(count)]


# --- cancelled when unpaid ---


@pytest.mark.promise(134)
@pytest.mark.parametrize("within", [MINUTES_10, MINUTES_45, HOUR], ids=str)
def test_an_unpaid_order_is_cancelled_when_its_time_is_over(within: timedelta) -> None:
    """Not a moment before; its stock is for sale again, once. A paid one is kept. A crash changes nothing."""

    async def scenario() -> None:
        shop = unpaid_orders.Shop()
        shop.fill("teapot", 10)
        async with Cluster() as cluster:
            await cluster.create_topic(unpaid_orders.TOPIC, queues=2)
            async with Producer(cluster.namesrv) as producer:
                await shop.order(producer, "paid", "teapot", 2, pay_within=within)
                await shop.order(producer, "unpaid", "teapot", 3, pay_within=within)
                with pytest.raises(sqlite3.IntegrityError):
                    await shop.order(producer, "too-many", "teapot", 6, pay_within=within)
            ordered_ms = cluster.clock.now_ms()

            async def turn_to(after_s: float) -> None:
                await cluster.clock.turn(ordered_ms / 1000 + after_s - cluster.clock.now_ms() / 1000)

            await turn_to(within.total_seconds() / 2)
            assert shop.pay("paid")
            await cluster.brokers[0].kill()
            await cluster.brokers[0].start()
            async with unpaid_orders.checker(cluster.namesrv, shop):
                await turn_to(within.total_seconds() - 20)
                assert (shop.state("unpaid"), shop.stock("teapot")) == ("open", 5)
                await turn_to(within.total_seconds() + 5)
                assert (shop.state("unpaid"), shop.stock("teapot")) == ("cancelled", 8)
                await cluster.clock.turn(within.total_seconds())
        assert (shop.state("paid"), shop.state("unpaid"), shop.stock("teapot")) == ("paid", "cancelled", 8)
        assert not shop.pay("unpaid")

    asyncio.run(scenario())


def test_a_check_that_comes_twice_releases_once() -> None:
    """Messages may come again: stock is not made of that."""

    async def scenario() -> None:
        shop = unpaid_orders.Shop()
        shop.fill("teapot", 10)
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            await cluster.create_topic(unpaid_orders.TOPIC, queues=2)
            await shop.order(producer, "unpaid", "teapot", 3, pay_within=MINUTES_10)
            await producer.send(unpaid_orders.check_of("unpaid", MINUTES_10))
            await producer.send(unpaid_orders.check_of("never-written", MINUTES_10))
            async with unpaid_orders.checker(cluster.namesrv, shop):
                await cluster.clock.turn(700)
        assert (shop.state("unpaid"), shop.stock("teapot")) == ("cancelled", 10)

    asyncio.run(scenario())


# --- decoupled ---


@pytest.mark.promise(229)
def test_orders_are_taken_while_the_stock_system_is_down(tmp_path: Path) -> None:
    """Before it ever ran, and between two of its lives: each order is answered, and booked once, later."""

    async def take(producer: Producer, *numbers: int) -> None:
        for number in numbers:
            told = await orders_and_stock.take_order(producer, f"order-{number}", "teapot", 1)
            assert told == f"order-{number} is taken"

    async def booked(stock: orders_and_stock.StockSystem, count: int) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while len(stock.booked()) < count:  # noqa: ASYNC110  # another service's database
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        database = tmp_path / "stock.db"
        async with Cluster() as cluster:
            await cluster.create_topic(orders_and_stock.TOPIC, queues=4)
            async with Producer(cluster.namesrv) as producer:
                await take(producer, 0, 1, 2)
                async with orders_and_stock.StockSystem(cluster.namesrv, database) as stock:
                    await booked(stock, 3)
                    await take(producer, 3)
                    await booked(stock, 4)
                await take(producer, 4, 5, 1)  # one is sent twice
                assert stock.booked() == [f"order-{number}" for number in range(4)]
            async with orders_and_stock.StockSystem(cluster.namesrv, database) as stock:
                await booked(stock, 6)
                await cluster.clock.turn(60)
                assert stock.booked() == [f"order-{number}" for number in range(6)]

    asyncio.run(scenario())


# --- not waited for ---


@pytest.mark.promise(230)
def test_a_registration_waits_for_its_own_step_only() -> None:
    """Mail and text message do not come to an end: it is answered all the same, and they come later."""

    async def scenario() -> None:
        done = asyncio.Queue[str]()
        gate = asyncio.Event()

        async def write(user: str) -> None:
            await done.put(f"wrote {user}")

        async def mail(user: str) -> None:
            await gate.wait()
            await done.put(f"mail to {user}")

        async def text(user: str) -> None:
            await gate.wait()
            await done.put(f"text to {user}")

        ours = registration.Registration(write=write, mail=mail, text=text)
        async with Cluster() as cluster, AsyncExitStack() as stack:
            await cluster.create_topic(registration.TOPIC)
            producer = await stack.enter_async_context(Producer(cluster.namesrv))
            for service in ours.services(cluster.namesrv):
                await stack.enter_async_context(service)
            waiting = asyncio.create_task(ours.one_after_the_other("anna"))
            async with asyncio.timeout(ENOUGH_S):
                await ours.with_a_message(producer, "bert")
            assert sorted(await until(done, 2)) == ["wrote anna", "wrote bert"]
            await cluster.clock.turn(30)
            assert done.empty()
            assert not waiting.done()
            gate.set()
            everything = ["mail to anna", "mail to bert", "text to anna", "text to bert"]
            assert sorted(await until(done, 4)) == everything
            await waiting
            await cluster.clock.turn(60)
            assert done.empty()

    asyncio.run(scenario())


# --- to all, and to one ---


@pytest.mark.promise(231)
def test_a_room_hears_everything_and_one_person_a_private_word(tmp_path: Path) -> None:
    """All who are there hear what is said, once; `@name` reaches that one alone, though it was away."""

    async def scenario() -> None:
        heard: dict[str, list[tuple[str, str, bool]]] = {}

        def member(cluster: Cluster, name: str) -> chat.Member:
            ears = heard.setdefault(name, [])

            def hear(who: str, words: str, is_private: bool) -> None:
                ears.append((who, words, is_private))

            return chat.Member(cluster.namesrv, name, hear, tmp_path)

        async with Cluster() as cluster, AsyncExitStack() as stack:
            for topic in (chat.ROOM, chat.PRIVATE):
                await cluster.create_topic(topic, queues=2)
            there = [
                await stack.enter_async_context(member(cluster, name)) for name in ("anna", "bert", "cleo")
            ]
            await there[0].say("hello")
            await there[1].tell("cleo", "a word")
            await there[1].tell("dora", "see you")
            await cluster.clock.turn(30)
            to_all = ("anna", "hello", False)
            assert heard["anna"] == heard["bert"] == [to_all]
            assert sorted(heard["cleo"]) == [to_all, ("bert", "a word", True)]
            await stack.enter_async_context(member(cluster, "dora"))
            await there[2].say("welcome")
            await cluster.clock.turn(30)
            assert ("bert", "see you", True) in heard["dora"]
            assert all(ears.count(("cleo", "welcome", False)) == 1 for ears in heard.values())
            assert sum(private for ears in heard.values() for _, _, private in ears) == 2

    asyncio.run(scenario())


# --- as they are started by hand ---

MEASURED = re.compile(r"([a-z ]+): [1-9][0-9]* ms\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unpaid_orders", "order-1 paid order-2 cancelled teapots 8"),
        ("orders_and_stock", "booked order-0 order-1 order-2"),
        pytest.param("registration", "text to bert", marks=pytest.mark.promise(230)),
        ("chat", "anna: hello"),
    ],
)
def test_an_example_runs(name: str, said: str, tmp_path: Path) -> None:
    """From its command line, in a process of its own, and every warning is an error there."""
    script = ROOT / "examples" / f"{name}.py"
    with Cluster() as cluster:
        words = ["anna", cluster.namesrv] if name == "chat" else [cluster.namesrv]
        program = subprocess.Popen(
            [sys.executable, "-W", "error", "-u", str(script), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            if name == "chat":
                program.stdin.write("hello\n")
                program.stdin.flush()
            told = []
            for line in program.stdout:
                told.append(line)
                if said in line:
                    break
            assert any(said in line for line in told), told
            measured = [found[1] for line in told if (found := MEASURED.fullmatch(line))]
            assert measured == (["one after the other", "with a message"] if name == "registration" else [])
            program.stdin.close()
            assert program.wait(ENOUGH_S) == 0
        finally:
            program.kill()
            program.wait()
            program.stdout.close()


def test_every_example_is_tried() -> None:
    """None is there that this file does not know."""
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {"unpaid_orders", "orders_and_stock", "registration", "chat"}

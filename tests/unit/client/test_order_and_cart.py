"""What transactions are for: an order committed clears the cart. A crash anywhere leaves both or neither."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from hotfire import (
    ConsumeFrom,
    Consumer,
    Message,
    Once,
    ReceivedMessage,
    SqliteOnce,
    TransactionProducer,
    TransactionState,
)
from hotfire.errors import HotfireError
from hotfire.protocol.codes import RequestCode
from hotfire.testing import Cluster

STEPS = (
    "none",
    "before the half",
    "the half is refused",
    "before the order",
    "order written, not committed",
    "order committed, outcome not told",
    "broker dies with the half",
    "broker dies with the commit",
    "cart not cleared",
    "cart cleared, not acknowledged",
)
WITH_ORDER = {*STEPS} - {"before the half", "the half is refused", "before the order", STEPS[4]}


class Crash(BaseException):
    """The end of a process, as far as the code in it can tell."""


class Shop:
    """A database of orders, one of carts, and a process of each that may crash at one step."""

    def __init__(self, place: Path, step: str) -> None:
        self.step = step
        self.orders, self.carts = place / "orders.db", place / "carts.db"
        with sqlite3.connect(self.orders) as db:
            db.execute("CREATE TABLE placed (message_id TEXT PRIMARY KEY)")
        self.crashes = 0

    def crash(self, *steps: str) -> None:
        if self.step in steps:
            self.crashes += 1
            raise Crash(self.step)

    async def place(self, message: Message, order: str) -> TransactionState:
        self.crash("before the order")
        db = sqlite3.connect(self.orders)
        try:
            db.execute("INSERT INTO placed VALUES (?)", (message.properties["__transactionId__"],))
            self.crash("order written, not committed")
            db.commit()
        finally:
            db.close()
        self.crash("order committed, outcome not told", "broker dies with the half")
        return TransactionState.COMMIT

    async def was_placed(self, message: ReceivedMessage) -> TransactionState:
        with sqlite3.connect(self.orders) as db:
            found = db.execute("SELECT 1 FROM placed WHERE message_id = ?", (message.message_id,)).fetchone()
        return TransactionState.COMMIT if found else TransactionState.ROLLBACK

    def producer(self, cluster: Cluster, name: str) -> TransactionProducer:
        return TransactionProducer(
            cluster.namesrv, group="shop", execute=self.place, check=self.was_placed, instance_name=name
        )

    def order_count(self) -> int:
        with sqlite3.connect(self.orders) as db:
            return int(db.execute("SELECT count(*) FROM placed").fetchone()[0])

    async def clear_cart(self, message: ReceivedMessage, once: Once[sqlite3.Connection]) -> bool:
        """A listener: True acknowledges, when the cart is cleared. A crash is a first try that failed."""
        if self.step == "cart not cleared" and not self.crashes:
            self.crashes += 1
            return False

        def clear(db: sqlite3.Connection) -> None:
            db.execute("CREATE TABLE IF NOT EXISTS cleared (cart TEXT)")
            db.execute("INSERT INTO cleared VALUES (?)", (message.keys[0],))

        once.run_blocking(message, clear)
        if self.step == "cart cleared, not acknowledged" and not self.crashes:
            self.crashes += 1
            return False
        return True

    def cleared(self) -> list[str]:
        with sqlite3.connect(self.carts) as db:
            there = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'cleared'").fetchone()
            return [cart for (cart,) in db.execute("SELECT cart FROM cleared")] if there else []


async def order(cluster: Cluster, shop: Shop) -> None:
    """One life of the process that takes orders."""
    (broker,) = cluster.brokers
    assert broker.proxy is not None
    if shop.step == "the half is refused":
        broker.proxy.drop("requests", RequestCode.SEND_MESSAGE_V2, times=3)
    if shop.step == "broker dies with the commit":
        broker.proxy.drop("requests", RequestCode.END_TRANSACTION, times=1)
    async with shop.producer(cluster, "first") as producer:
        try:
            shop.crash("before the half")
            await producer.send_in_transaction(Message("T", b"clear it", keys=("cart-17",)), "order-17")
        except (Crash, HotfireError):
            pass


@pytest.mark.promise(146)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_both_or_neither(step: str, tmp_path: Path) -> None:
    """Order there and cart cleared once, or neither; acknowledged after the cart is cleared."""

    async def scenario() -> None:
        shop = Shop(tmp_path, step)
        async with Cluster(proxied=True) as cluster:
            await cluster.create_topic("T", queues=1)
            await order(cluster, shop)
            if step.startswith("broker dies"):
                await cluster.brokers[0].kill()
                await cluster.brokers[0].start()
            store = SqliteOnce(shop.carts)
            once = Once(store, scope="carts")
            async with (
                shop.producer(cluster, "second") as second,
                Consumer(cluster.namesrv, group="carts", consume_from=ConsumeFrom.FIRST) as consumer,
            ):
                await second.queues("T")

                async def listen(message: ReceivedMessage) -> bool:
                    return await shop.clear_cart(message, once)

                consumer.subscribe("T", listen)
                await cluster.clock.turn(60)
            store.close()
        has_order = step in WITH_ORDER
        assert shop.order_count() == has_order
        assert shop.cleared() == (["cart-17"] if has_order else [])

    asyncio.run(scenario())

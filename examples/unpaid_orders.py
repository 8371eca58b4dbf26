"""Orders that nobody pays in time are cancelled, and what they held is for sale again.

    python examples/unpaid_orders.py [HOST:PORT of the name server]

A message that waits does it: it comes when the time to pay is over, and cancels the order unless it was paid.
It is sent before the order is written, so that a crash between the two leaves a message about an order that
is not there, and never goods that nobody releases. It may come twice: the second one finds nothing open.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from datetime import timedelta

from hotfire import ConsumeFrom, Consumer, Message, Producer, ReceivedMessage

TOPIC = "orders-to-check"
LEVELS = {
    timedelta(seconds=5): 2,
    timedelta(minutes=10): 14,
    timedelta(hours=1): 17,
}
"""Delay levels, which every RocketMQ knows; other times are timers, from 5.0 on."""


def check_of(order: str, after: timedelta) -> Message:
    """The message that comes when the order's time is over."""
    if after in LEVELS:
        return Message(TOPIC, order.encode(), keys=(order,), delay_level=LEVELS[after])
    return Message(TOPIC, order.encode(), keys=(order,), delay_ms=round(after.total_seconds() * 1000))


class Shop:
    """Stock and orders, in one database."""

    def __init__(self, database: str = ":memory:") -> None:
        self._db = sqlite3.connect(database)
        self._db.executescript("""
            CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, count INTEGER CHECK (count >= 0));
            CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT, count INTEGER, state TEXT);
        """)

    def fill(self, item: str, count: int) -> None:
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO stock VALUES (?, ?)", (item, count))

    def stock(self, item: str) -> int:
        return int(self._db.execute("SELECT count FROM stock WHERE item = ?", (item,)).fetchone()[0])

    def state(self, order: str) -> str:
        return str(self._db.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()[0])

    async def order(
        self, producer: Producer, order: str, item: str, count: int, *, pay_within: timedelta
    ) -> None:
        """Hold so many for the customer; sqlite3.IntegrityError when there are not enough."""
        await producer.send(check_of(order, pay_within))
        with self._db:  # one transaction: held and ordered, or neither
            self._db.execute("UPDATE stock SET count = count - ? WHERE item = ?", (count, item))
            self._db.execute("INSERT INTO orders VALUES (?, ?, ?, 'open')", (order, item, count))

    def pay(self, order: str) -> bool:
        """False when it is too late."""
        with self._db:
            return self._close(order, "paid")

    async def check(self, message: ReceivedMessage) -> None:
        """The listener: the order's time is over."""
        order = message.body.decode()
        with self._db:  # one transaction: cancelled and for sale again, or neither
            if self._close(order, "cancelled"):
                (held,) = self._db.execute("SELECT item, count FROM orders WHERE id = ?", (order,))
                self._db.execute("UPDATE stock SET count = count + ? WHERE item = ?", (held[1], held[0]))

    def _close(self, order: str, state: str) -> bool:
        """Payment and cancellation may come at the same moment: the database says which was first."""
        closed = self._db.execute(
            "UPDATE orders SET state = ? WHERE id = ? AND state = 'open'", (state, order)
        )
        return closed.rowcount == 1


def checker(name_servers: str, shop: Shop) -> Consumer:
    """The service that cancels. Any number of them may run."""
    consumer = Consumer(name_servers, group="order-checks", consume_from=ConsumeFrom.FIRST)
    consumer.subscribe(TOPIC, shop.check)
    return consumer


async def main(name_servers: str) -> None:
    shop = Shop()
    shop.fill("teapot", 10)
    within = timedelta(seconds=5)
    async with checker(name_servers, shop), Producer(name_servers, group="shop") as producer:
        await shop.order(producer, "order-1", "teapot", 2, pay_within=within)
        await shop.order(producer, "order-2", "teapot", 3, pay_within=within)
        shop.pay("order-1")
        print("order-1 is paid, order-2", shop.state("order-2"), "teapots", shop.stock("teapot"))
        while shop.state("order-2") == "open":  # noqa: ASYNC110  # as a customer would look
            await asyncio.sleep(0.1)
        print(
            "order-1",
            shop.state("order-1"),
            "order-2",
            shop.state("order-2"),
            "teapots",
            shop.stock("teapot"),
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))

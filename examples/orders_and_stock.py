"""A shop that takes orders while its stock system is down.

    python examples/orders_and_stock.py [HOST:PORT of the name server]

Taking an order is one message: who takes it neither knows the stock system nor waits for it. The stock system
subscribes, and books each order once, also when a message comes again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

from hotfire import ConsumeFrom, Consumer, Message, Once, Producer, ReceivedMessage, SqliteOnce
from hotfire.client.once import by_key

TOPIC = "orders-taken"


async def take_order(producer: Producer, order: str, item: str, count: int) -> str:
    """What the customer is told; HotfireError when the order is not taken."""
    body = json.dumps({"item": item, "count": count}).encode()
    await producer.send(Message(TOPIC, body, keys=(order,)))
    return f"{order} is taken"


class StockSystem:
    """Books what was ordered. A service of its own: it may be stopped, moved, or started twice."""

    def __init__(self, name_servers: str, database: Path) -> None:
        self._database = database
        with sqlite3.connect(database) as db:
            db.execute("CREATE TABLE IF NOT EXISTS booked (number TEXT, item TEXT, count INTEGER)")
        self._memory = SqliteOnce(database)
        self._once = Once(self._memory, scope="stock", key=by_key)
        self._consumer = Consumer(name_servers, group="stock", consume_from=ConsumeFrom.FIRST)
        self._consumer.subscribe(TOPIC, self._book)

    async def _book(self, message: ReceivedMessage) -> None:
        order = json.loads(message.body)

        def book(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO booked VALUES (?, ?, ?)", (message.keys[0], order["item"], order["count"])
            )

        await self._once.run(message, book)

    def booked(self) -> list[str]:
        """Numbers of the orders that are booked, each as often as it is."""
        with sqlite3.connect(self._database) as db:
            return [number for (number,) in db.execute("SELECT number FROM booked ORDER BY number")]

    async def __aenter__(self) -> StockSystem:
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()
        self._memory.close()


async def main(name_servers: str) -> None:
    async with Producer(name_servers, group="orders") as producer:
        for number in range(3):
            print(await take_order(producer, f"order-{number}", "teapot", 1))
    print("the stock system starts")
    async with StockSystem(name_servers, Path("stock.db")) as stock:
        while len(stock.booked()) < 3:  # noqa: ASYNC110  # as a person would look
            await asyncio.sleep(0.1)
        print("booked", *stock.booked())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))

"""A message broker that speaks the RocketMQ protocol, and a client for it.

>>> async def example() -> None:
...     async with Producer("127.0.0.1:9876") as producer:
...         print(await producer.send(Message("orders", b"paid")))

Names are imported when first used: the command line starts without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotfire import errors, sync
    from hotfire.client.app import App
    from hotfire.client.choosing import by_key_hash
    from hotfire.client.confirm import NotStored, Stored
    from hotfire.client.consumer import Consumer
    from hotfire.client.consumersettings import ConsumeFrom
    from hotfire.client.hooks import SendHook
    from hotfire.client.listening import ConsumeContext, ConsumeResult
    from hotfire.client.once import Once, RedisOnce, SqliteOnce
    from hotfire.client.producer import Producer
    from hotfire.client.pullconsumer import PullConsumer
    from hotfire.client.queuereader import QueueReader
    from hotfire.client.results import SendResult, SendStatus
    from hotfire.client.transactions import TransactionProducer, TransactionResult, TransactionState
    from hotfire.model import Message, MessageQueue, ReceivedMessage

__all__ = [
    "App", "ConsumeContext", "ConsumeFrom", "ConsumeResult", "Consumer", "Message", "MessageQueue",
    "NotStored", "Once", "Producer", "PullConsumer", "QueueReader", "ReceivedMessage", "RedisOnce",
    "SendHook", "SendResult", "SendStatus", "SqliteOnce", "Stored", "TransactionProducer",
    "TransactionResult", "TransactionState", "by_key_hash", "errors", "sync",
]  # fmt: skip

_HOMES = {
    "App": "client.app",
    "ConsumeContext": "client.listening",
    "ConsumeFrom": "client.consumersettings",
    "ConsumeResult": "client.listening",
    "Consumer": "client.consumer",
    "Message": "model",
    "MessageQueue": "model",
    "NotStored": "client.confirm",
    "Once": "client.once",
    "Producer": "client.producer",
    "PullConsumer": "client.pullconsumer",
    "QueueReader": "client.queuereader",
    "ReceivedMessage": "model",
    "RedisOnce": "client.once",
    "SendHook": "client.hooks",
    "SendResult": "client.results",
    "SendStatus": "client.results",
    "SqliteOnce": "client.once",
    "Stored": "client.confirm",
    "TransactionProducer": "client.transactions",
    "TransactionResult": "client.transactions",
    "TransactionState": "client.transactions",
    "by_key_hash": "client.choosing",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "sync"):
        return importlib.import_module(f"hotfire.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hotfire' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hotfire.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

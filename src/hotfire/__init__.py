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
    from hotfire import errors
    from hotfire.client.producer import Producer, SendResult, SendStatus
    from hotfire.model import Message, MessageQueue

__all__ = ["Message", "MessageQueue", "Producer", "SendResult", "SendStatus", "errors"]

_HOMES = {
    "Message": "hotfire.model",
    "MessageQueue": "hotfire.model",
    "Producer": "hotfire.client.producer",
    "SendResult": "hotfire.client.producer",
    "SendStatus": "hotfire.client.producer",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("hotfire.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'hotfire' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

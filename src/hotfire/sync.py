"""The client without an event loop: each call waits for its outcome. See `hotfire` for the asyncio one.

>>> from hotfire import Message, sync
>>> def example() -> None:
...     with sync.Producer("127.0.0.1:9876") as producer:
...         producer.send(Message("orders", b"paid"))
"""

from hotfire.client.blocking import Consumer, Once, Producer, PullConsumer, QueueReader
from hotfire.client.blockingtransactions import TransactionProducer

__all__ = ["Consumer", "Once", "Producer", "PullConsumer", "QueueReader", "TransactionProducer"]

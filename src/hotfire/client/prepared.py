"""A producer of messages that others have prepared, in bulk: one attempt at a time, each told how it ended.

For programs that encode whole batches themselves and have their own mind about what to do when one fails.
Which queue comes next, connections and routes are the producer's as ever.
"""

from __future__ import annotations

from hotfire.client.batches import encoded_batch
from hotfire.client.messages import Outgoing
from hotfire.client.producer import Producer
from hotfire.client.queries import messages_by_key
from hotfire.client.results import SendResult
from hotfire.client.sending import Trial
from hotfire.client.uniques import Uniques
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.net.clock import now_ms


class PreparedProducer(Producer):
    """Sends what is prepared.

    >>> from hotfire.protocol.batch import BatchMessage, encode_batch
    >>> async def example() -> None:
    ...     async with PreparedProducer("127.0.0.1:9876", group="shop") as producer:
    ...         body = encode_batch([BatchMessage(b"paid", b"UNIQ_KEY\\x01ID-1\\x02")])
    ...         queue = await producer.next_queue("orders", timeout_s=3.0)
    ...         result = await producer.send_prepared(producer.batch("orders", body, "ID-1"), queue)
    ...         print(result.queue, result.queue_offset)
    """

    def batch(self, topic: str, body: bytes, first_id: str) -> Outgoing:
        """Messages encoded as `protocol.batch` lays them out; `first_id` is the unique id of the first."""
        return encoded_batch(topic, body, first_id, self._next_id())

    def id_stem(self) -> bytes:
        """What ids of this moment begin with; four hex digits make one whole.

        Each call gives a stem of its own: who counts its digits need ask nobody.
        """
        ids = self._new_ids()
        return ids.next(now_ms())[:-4].encode()

    async def next_queue(self, topic: str, *, avoid: str | None = None, timeout_s: float) -> MessageQueue:
        """The next in turn; of another broker than the one to avoid, where there is one."""
        self._instance  # noqa: B018  # raises unless we run
        assert self._rotation is not None, "a running producer has one"
        route = await self._sender.route(topic, self._deadline(timeout_s))
        return self._rotation.next(route, avoid=avoid)

    async def refresh(self, topic: str, timeout_s: float) -> None:
        """Ask for the topic's route again; what is known stays when nobody answers."""
        self._instance  # noqa: B018  # raises unless we run
        route = await self._sender.route(topic, self._deadline(timeout_s))
        await self._sender.newer_route(route, self._deadline(timeout_s))

    async def send_prepared(
        self, outgoing: Outgoing, queue: MessageQueue, *, timeout_s: float | None = None
    ) -> SendResult:
        """Send it to this queue, once. What failed can be given to `confirm`."""
        self._instance  # noqa: B018  # raises unless we run
        with self._permits:
            trial = Trial(outgoing, self._deadline(timeout_s))
            return await self._sender.to_queue(
                trial, queue, await self._sender.route(outgoing.topic, trial.deadline)
            )

    def uniques(self, topic: str, patience_s: float) -> Uniques:
        """For questions about which messages of the topic are stored."""
        return Uniques(self._instance, topic, patience_s)

    async def by_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        """The topic's messages with this key, oldest first; an error unless all its brokers answer."""
        return await messages_by_key(self._instance, topic, key)

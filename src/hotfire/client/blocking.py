"""The client without an event loop: the same names and meanings, each call waits for its outcome.

The work itself is done by the asyncio client on a thread of its own (`bridge`), so both behave alike to the
byte. Any number of threads may share a producer; a `PullConsumer` is for one at a time. Listeners that are
plain functions run in threads, coroutine functions on the client's own loop. `Once` alone needs no loop: an
effect runs in the thread that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, Self, TypeVar

from hotfire.client import consumer, once, producer, pullconsumer, queuereader
from hotfire.client.batches import as_batch
from hotfire.client.bridge import Bridge, check_thread
from hotfire.client.choosing import Selector
from hotfire.client.confirm import NotStored, Stored
from hotfire.client.listening import Listener
from hotfire.client.offsets import Boundary
from hotfire.client.pulling import Fetched, Pulled
from hotfire.client.queries import END_OF_TIME_MS
from hotfire.client.results import SendResult
from hotfire.client.searching import Found
from hotfire.client.topicwatch import TopicChanged
from hotfire.errors import HotfireError
from hotfire.model import Message, MessageQueue, ReceivedMessage
from hotfire.protocol.trace import TraceEntry

POLL_TIMEOUT_S = 5.0
WAITED_S = 1.0
"""An iteration looks up this often, so that Ctrl-C is heard."""


class _Startable(Protocol):
    begun_by: str

    async def start(self) -> None: ...
    async def close(self) -> None: ...


Inner = TypeVar("Inner", bound=_Startable)


class Face(Generic[Inner]):
    """What all have in common: the one behind is made, started and closed on the bridge's loop."""

    def __init__(self, make: Callable[[], Inner], bridge: Bridge | None) -> None:
        self._bridge = bridge or Bridge.shared()
        self._inner = self._bridge.call(make)
        self._inner.begun_by = "`with`"

    def start(self) -> None:
        self._bridge.run(self._inner.start())

    def close(self) -> None:
        self._bridge.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer(Face["producer.Producer"]):
    """Sends messages.

    >>> def example() -> None:
    ...     with Producer("127.0.0.1:9876") as producer:
    ...         print(producer.send(Message("orders", b"paid")).queue_offset)

    Settings are those of `hotfire.Producer`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        bridge: Bridge | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(lambda: producer.Producer(name_servers, **settings), bridge)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return self._bridge.run(
            self._inner.send(message, queue=queue, selector=selector, arg=arg, timeout_s=timeout_s)
        )

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
        on_done: Callable[[Future[SendResult]], object] | None = None,
    ) -> Future[SendResult]:
        """Begin to send, and go on: the future has the result.

        `on_done` is called with it once, on the client's own thread: it must not wait there. What was wrong
        before anything was sent is raised at once.
        """
        return self._bridge.begin(
            lambda: self._inner.send_soon(
                message, queue=queue, selector=selector, arg=arg, timeout_s=timeout_s
            ),
            on_done,
        )

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        self._bridge.run(self._inner.send_oneway(message, queue=queue))

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        return self._bridge.run(self._inner.send_batch(as_batch(messages), queue=queue, timeout_s=timeout_s))

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
    ) -> ReceivedMessage:
        """Store the message and wait for the reply of whoever consumes it."""
        return self._bridge.run(
            self._inner.request(message, queue=queue, selector=selector, arg=arg, timeout_s=timeout_s)
        )

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return self._bridge.run(self._inner.reply(request, body, properties=properties, timeout_s=timeout_s))

    def confirm(
        self,
        sent: HotfireError | SendResult | str,
        topic: str | None = None,
        *,
        timeout_s: float = producer.CONFIRM_TIMEOUT_S,
    ) -> Stored | NotStored:
        return self._bridge.run(self._inner.confirm(sent, topic, timeout_s=timeout_s))

    def recall(self, sent: SendResult | str, *, timeout_s: float | None = None) -> str:
        return self._bridge.run(self._inner.recall(sent, timeout_s=timeout_s))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._bridge.run(self._inner.queues(topic))


class Consumer(Face["consumer.Consumer"]):
    """Brings messages to listeners, on threads of its own.

    >>> def handle(message: ReceivedMessage) -> None:
    ...     print(message.body)
    >>> def example() -> None:
    ...     with Consumer("127.0.0.1:9876", group="billing") as consumer:
    ...         consumer.subscribe("orders", handle)
    ...         input("Enter ends it")
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        bridge: Bridge | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(lambda: consumer.Consumer(name_servers, group=group, **settings), bridge)

    def subscribe(
        self,
        topic: str,
        listener: Listener,
        tags: str | Sequence[str] = "*",
        *,
        sql: str | None = None,
        filter: str | None = None,
    ) -> None:
        self._bridge.call(self._inner.subscribe, topic, listener, tags, sql=sql, filter=filter)

    def listens_to(self, topic: str) -> bool:
        return self._bridge.call(self._inner.listens_to, topic)

    def unsubscribe(self, topic: str) -> None:
        self._bridge.call(self._inner.unsubscribe, topic)

    def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Send the reply to a request; for listeners that are plain functions."""
        return self._bridge.run(self._inner.reply(request, body, properties=properties))

    def suspend(self) -> None:
        self._bridge.call(self._inner.suspend)

    def resume(self) -> None:
        self._bridge.call(self._inner.resume)

    def ready(self) -> None:
        """Return when the subscriptions made so far took effect."""
        self._bridge.run(self._inner.ready())

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return self._bridge.call(lambda: self._inner.queues)

    @property
    def damaged_count(self) -> int:
        return self._bridge.call(lambda: self._inner.damaged_count)


class PullConsumer(Face["pullconsumer.PullConsumer"]):
    """Messages of a group's share of topics, or of queues named by hand, when asked for.

    >>> def example() -> None:
    ...     with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
    ...         consumer.subscribe("orders")
    ...         for message in consumer:
    ...             print(message.body)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        bridge: Bridge | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(lambda: pullconsumer.PullConsumer(name_servers, group=group, **settings), bridge)

    def subscribe(self, topic: str, tags: str | Sequence[str] = "*", *, sql: str | None = None) -> None:
        self._bridge.call(self._inner.subscribe, topic, tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        self._bridge.call(self._inner.unsubscribe, topic)

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Sequence[str] = "*", *, sql: str | None = None
    ) -> None:
        self._bridge.call(self._inner.assign, tuple(queues), tags, sql=sql)

    def assignment(self) -> tuple[MessageQueue, ...]:
        return self._bridge.call(self._inner.assignment)

    @property
    def damaged_count(self) -> int:
        return self._bridge.call(lambda: self._inner.damaged_count)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._bridge.run(self._inner.queues(topic))

    def poll(
        self, timeout_s: float = POLL_TIMEOUT_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        return self._bridge.run(self._inner.poll(timeout_s, count_max=count_max))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            yield from self.poll(WAITED_S, count_max=1)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._bridge.run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._bridge.run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._bridge.run(self._inner.seek_to_end(queue))

    def position(self, queue: MessageQueue) -> int | None:
        return self._bridge.call(self._inner.position, queue)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._bridge.call(self._inner.pause, tuple(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._bridge.call(self._inner.resume, tuple(queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> None:
        self._bridge.run(self._inner.commit(offsets, persist=persist))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._bridge.run(self._inner.committed(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._bridge.run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._bridge.run(self._inner.max_offset(queue))

    def offset_for_timestamp(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "lower"
    ) -> int:
        return self._bridge.run(self._inner.offset_for_timestamp(queue, timestamp_ms, boundary))

    def watch(self, topic: str, changed: TopicChanged) -> None:
        """Call `changed(topic, queues)`, on the client's own thread, when the topic has other queues."""
        self._bridge.call(self._inner.watch, topic, changed)


class QueueReader(Face["queuereader.QueueReader"]):
    """Queues read by hand: the application keeps its offsets itself.

    >>> def example() -> None:
    ...     with QueueReader("127.0.0.1:9876") as reader:
    ...         for queue in reader.queues("orders"):
    ...             print(reader.pull(queue, reader.min_offset(queue)).messages)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        bridge: Bridge | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(lambda: queuereader.QueueReader(name_servers, **settings), bridge)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._bridge.run(self._inner.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = 32,
        tags: str | Sequence[str] = "*",
        *,
        sql: str | None = None,
        wait_s: float = 0.0,
        bytes_max: int | None = None,
    ) -> Pulled:
        return self._bridge.run(
            self._inner.pull(queue, offset, count, tags, sql=sql, wait_s=wait_s, bytes_max=bytes_max)
        )

    def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        tags: str | Sequence[str] = "*",
        *,
        count: int = queuereader.BULK_COUNT_MAX,
        bytes_max: int = queuereader.BULK_BYTES_MAX,
        timeout_s: float = queuereader.ANSWER_S,
    ) -> Fetched:
        return self._bridge.run(
            self._inner.fetch(queue, offset, tags, count=count, bytes_max=bytes_max, timeout_s=timeout_s)
        )

    def min_offset(self, queue: MessageQueue) -> int:
        return self._bridge.run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._bridge.run(self._inner.max_offset(queue))

    def search(self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "lower") -> int:
        return self._bridge.run(self._inner.search(queue, timestamp_ms, boundary))

    def earliest_store_time_ms(self, queue: MessageQueue) -> int | None:
        return self._bridge.run(self._inner.earliest_store_time_ms(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._bridge.run(self._inner.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._bridge.run(self._inner.commit(queue, offset))

    def message_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        return self._bridge.run(self._inner.message_by_id(message_id, topic))

    def messages_by_key(self, topic: str, key: str, count_max: int = 64) -> list[ReceivedMessage]:
        return self._bridge.run(self._inner.messages_by_key(topic, key, count_max))

    def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        count_max: int = 64,
        unique: bool = False,
    ) -> Found:
        return self._bridge.run(
            self._inner.find_by_key(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max, unique=unique
            )
        )

    def find_by_time(
        self, topic: str, begin_ms: int, end_ms: int, *, count_max: int = 64, tags: str = "*"
    ) -> Found:
        return self._bridge.run(
            self._inner.find_by_time(topic, begin_ms, end_ms, count_max=count_max, tags=tags)
        )

    def trace(self, message_id: str, *, topic: str | None = None) -> list[TraceEntry]:
        return self._bridge.run(self._inner.trace(message_id, topic=topic))


class Once(Generic[once.Transaction]):
    """Effects by message, for listeners that are plain functions.

    >>> store = SqliteOnce(":memory:")
    >>> once = Once(store, scope="billing")
    >>> def pay(db: sqlite3.Connection) -> None:
    ...     db.execute("CREATE TABLE IF NOT EXISTS paid (order_id)")
    ...     db.execute("INSERT INTO paid VALUES ('order-1')")
    >>> def handle(message: ReceivedMessage) -> None:
    ...     once.run(message, pay)

    Stores, scopes and keys are those of `hotfire.Once`, and what either has done the other knows.
    """

    def __init__(
        self,
        store: once.OnceStore[once.Transaction],
        *,
        scope: str = "",
        key: Callable[[ReceivedMessage], str] = once.by_message_id,
    ) -> None:
        self._inner = once.Once(store, scope=scope, key=key)

    def run(self, message: ReceivedMessage, effect: once.Effect[once.Transaction]) -> bool:
        """Whether the effect happened now; False when it had before. It runs in the caller's thread."""
        check_thread()  # a store lets in one at a time, and who is in may be sending by the loop
        return self._inner.run_blocking(message, effect)

"""Messages of one queue that were pulled and are not done with, and how far the queue is consumed.

An offset may be committed when everything before it is done: the smallest offset still here, or the one
behind the largest that ever was. Owns the counts that slow pulling down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from hotfire.client.listening import ConsumeContext
from hotfire.model import MessageQueue, ReceivedMessage


class ProcessQueue:
    """One queue that is ours, from its assignment until it is taken away."""

    def __init__(self, queue: MessageQueue, offset: int, now_s: float) -> None:
        self.queue = queue
        self.next_offset = offset
        """Where the next pull begins."""
        self.dropped = False
        self.pulled_at_s = now_s
        self.consumed_at_s: float | None = None
        self.locked_at_s: float | None = None
        """When its broker last gave it to us alone; None while we do not have it."""
        self.lock_tries = 0
        self.consuming = asyncio.Lock()
        """Held while a listener that consumes in order has messages of this queue."""
        self.count_max = 0
        self.bytes_max = 0
        self.untouched_context = ConsumeContext(queue)
        """Of calls whose listener takes none."""
        self.started_at_s: dict[int, float] = {}
        """Offset -> when its listener was called."""
        self.taken_count = 0
        """In order: so many from the front were handled and are not committed."""
        self.bytes = 0
        self._messages: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()  # ascending; offsets that are done leave when they reach the front
        self._behind = offset
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.queue_offset in self._messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (self._messages[offset] for offset in self._order if offset in self._messages)

    @property
    def span(self) -> int:
        """Distance between the first and the last message that is here."""
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def first_offset(self) -> int | None:
        return self._order[0] if self._order else None

    @property
    def last_offset(self) -> int | None:
        return self._order[-1] if self._order else None

    @property
    def done_offset(self) -> int:
        """All before this one is done."""
        return self._order[0] if self._order else self._behind

    def put(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Take in what was pulled, in order; those that were not here already."""
        fresh = []
        for message in messages:
            offset = message.queue_offset
            if offset < self._behind:
                continue
            self._messages[offset] = message
            self._order.append(offset)
            self._behind = offset + 1
            self.bytes += len(message.body)
            fresh.append(message)
        return fresh

    def replace(self, message: ReceivedMessage) -> None:
        """The same message, as it is told from now on."""
        self._messages[message.queue_offset] = message

    def started(self, messages: Iterable[ReceivedMessage], now_s: float) -> None:
        """Their listener is called now."""
        for message in messages:
            self.started_at_s[message.queue_offset] = now_s

    def not_started(self, messages: Iterable[ReceivedMessage]) -> None:
        """There was no listener to call: they are not stuck, however long they wait for one."""
        for message in messages:
            self.started_at_s.pop(message.queue_offset, None)

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """These are done; the offset that may be committed now."""
        held, started = self._messages, self.started_at_s
        for message in messages:
            offset = message.queue_offset
            if held.pop(offset, None) is not None:
                self.bytes -= len(message.body)
            started.pop(offset, None)
        order = self._order
        while order and order[0] not in held:
            order.popleft()
        if not self._room.is_set():
            self._room.set()
        return order[0] if order else self._behind

    def clear(self) -> None:
        """Forget everything, done or not."""
        self._messages.clear()
        self._order.clear()
        self.started_at_s.clear()
        self.bytes = self.taken_count = 0
        self._room.set()

    def go_to(self, offset: int) -> None:
        """Begin at `offset`, with nothing here."""
        assert not self._messages, len(self._messages)
        self._order.clear()
        self.next_offset = self._behind = offset

    def passed_over(self, offset: int) -> None:
        """There is nothing for us before `offset`."""
        self._behind = max(self._behind, offset)

    # --- too much ------------------------------------------------------------------------------------

    def is_full(self, span_max: int | None) -> bool:
        if len(self._messages) > self.count_max or self.bytes > self.bytes_max:
            return True
        return span_max is not None and self.span > span_max

    async def wait_room(self, timeout_s: float) -> None:
        """Return when something was done with, or after a while."""
        self._room.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.wait()
        except TimeoutError:
            return

    # --- in order ------------------------------------------------------------------------------------

    def next_batch(self, count_max: int) -> Sequence[ReceivedMessage]:
        """The messages behind those taken already."""
        return [
            self._messages[offset]
            for offset in islice(self._order, self.taken_count, self.taken_count + count_max)
        ]

    def take(self, count: int) -> None:
        self.taken_count += count

    def commit(self, count: int) -> int:
        """All taken and `count` more are done."""
        count += self.taken_count
        self.taken_count = 0
        return self.remove(self.next_batch(count))

    def is_locked(self, now_s: float, lease_s: float) -> bool:
        return self.locked_at_s is not None and now_s - self.locked_at_s <= lease_s

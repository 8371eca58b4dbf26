"""What a queue holds while it is consumed, and how far it may be committed."""

import asyncio
import random

import pytest

from hotfire.client.processqueue import ProcessQueue
from hotfire.model import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, size: int = 10) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=b"x" * size, tag=None, keys=(), properties={}, flag=0, queue=QUEUE,
        queue_offset=offset, message_id="", offset_message_id="", born_timestamp_ms=0, born_host="",
        store_timestamp_ms=0, store_host="",
    )  # fmt: skip


def queue_of(offsets: range) -> tuple[ProcessQueue, list[ReceivedMessage]]:
    queue = ProcessQueue(QUEUE, offsets.start, 0.0)
    return queue, queue.put(message(offset) for offset in offsets)


@pytest.mark.promise(169, 170, 171)
def test_the_offset_to_commit_is_the_smallest_that_is_not_done() -> None:
    """1001 to 1010: all done, 1011; 1001 to 1008 done, 1009; 1001 stuck, 1001 until it is done, then 1011."""
    queue, messages = queue_of(range(1001, 1011))
    assert queue.remove(messages[:8]) == 1009
    assert queue.remove(messages[8:]) == 1011
    queue, messages = queue_of(range(1001, 1011))
    for one in reversed(messages[1:]):
        assert queue.remove([one]) == 1001
    assert queue.remove(messages[:1]) == 1011


def test_any_order_of_finishing_gives_what_a_plain_list_gives() -> None:
    """Against a model: offsets with gaps, in any order, in any batches, some removed twice."""
    for seed in range(50):
        rng = random.Random(seed)
        offsets = sorted(rng.sample(range(100), 30))
        queue = ProcessQueue(QUEUE, offsets[0], 0.0)
        messages = queue.put(message(offset, rng.randrange(1, 50)) for offset in offsets)
        left = {one.queue_offset: one for one in messages}
        rng.shuffle(messages)
        while messages:
            batch = [messages.pop() for _ in range(min(len(messages), rng.randrange(1, 4)))]
            for one in batch:
                left.pop(one.queue_offset, None)
            expected = min(left, default=offsets[-1] + 1)
            assert queue.remove([*batch, batch[0]]) == expected == queue.done_offset
            assert len(queue) == len(left)
            assert queue.bytes == sum(len(one.body) for one in left.values())
            assert queue.span == (max(offsets) - min(left) if left else 0)


def test_what_is_there_already_is_not_taken_in_again() -> None:
    """A pull answered twice changes nothing."""
    queue, _ = queue_of(range(5))
    assert queue.put(message(offset) for offset in range(3, 7)) == [message(5), message(6)]
    assert [one.queue_offset for one in queue] == list(range(7))
    assert queue.bytes == 70


def test_messages_left_out_by_the_broker_are_behind_us_once_the_others_are_done() -> None:
    """Filtered ones at the end do not hold the offset back."""
    queue, messages = queue_of(range(5))
    queue.passed_over(40)
    assert queue.remove(messages[1:]) == 0
    assert queue.remove(messages[:1]) == 40


def test_full_by_count_bytes_or_span() -> None:
    """Each limit by itself."""
    queue, messages = queue_of(range(11))
    queue.count_max, queue.bytes_max = 11, 110
    assert not queue.is_full(10)
    assert queue.is_full(9)
    assert not queue.is_full(None)
    queue.count_max = 10
    assert queue.is_full(None)
    queue.count_max, queue.bytes_max = 11, 109
    assert queue.is_full(None)
    queue.remove(messages[:1])
    assert not queue.is_full(None)


def test_who_waits_for_room_is_woken() -> None:
    """By something that is done; after a while in any case."""

    async def scenario() -> None:
        queue, messages = queue_of(range(3))
        waiting = asyncio.create_task(queue.wait_room(30.0))
        await asyncio.sleep(0)
        queue.remove(messages[:1])
        await waiting
        await queue.wait_room(0.001)

    asyncio.run(scenario())


def test_in_order_batches_are_taken_committed_and_rolled_back() -> None:
    """Taken ones are not given out again until they are rolled back; a commit ends all taken."""
    queue, _ = queue_of(range(6))
    assert [one.queue_offset for one in queue.next_batch(2)] == [0, 1]
    queue.take(2)
    assert [one.queue_offset for one in queue.next_batch(2)] == [2, 3]
    queue.taken_count = 0
    assert [one.queue_offset for one in queue.next_batch(3)] == [0, 1, 2]
    queue.take(3)
    assert queue.commit(2) == 5
    assert [one.queue_offset for one in queue.next_batch(3)] == [5]

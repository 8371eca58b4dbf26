"""A group that goes on elsewhere: by time, by hand, while its clients are there or not, across a restart."""

from typing import Any

import pytest

from hotfire.model import MessageQueue
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.command import Command
from hotfire.protocol.members import ResetOffsets
from hotfire.protocol.requests import QueryConsumerOffset, ResetOffset, UpdateConsumerOffset
from tests.unit.broker.conftest import Make
from tests.unit.broker.damage import inquire
from tests.unit.broker.harness import (
    COMMIT,
    FOUND,
    MOVED,
    START_MS,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    bodies,
    codes,
    next_offset,
    pull_request,
    tagged,
)

STEP_MS = 1000
MESSAGES = 10


@pytest.fixture
def read(heart: Harness) -> Harness:
    """Topic T: one message a second in queue 0, two in queue 1; group CG has read queue 0 up to 8."""
    for number in range(MESSAGES):
        heart.now_ms = START_MS + number * STEP_MS
        heart.send(body=b"%d" % number)
        if number < 2:
            heart.send(queue_id=1)
    heart.beat("a", "CG", tagged("T", "*"))
    heart.connection.take()
    commit(heart, 8)
    return heart


def reset(heart: Harness, *, timestamp: int = -1, **fields: Any) -> Command:
    request = {"topic": "T", "group": "CG", "timestamp": timestamp, "is_force": True, **fields}
    return inquire(heart, ResetOffset(**request))


def offsets_in(reply: Command) -> dict[int, int]:
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    told = decode_body(ResetOffsets, reply.body).offsets
    assert all((queue.topic, queue.broker_name) == ("T", "broker-a") for queue in told)
    return {queue.queue_id: offset for queue, offset in told.items()}


def commit(heart: Harness, offset: int, queue_id: int = 0) -> Command:
    reply = heart.ask(
        UpdateConsumerOffset(topic="T", consumer_group="CG", queue_id=queue_id, commit_offset=offset)
    )
    assert (reply.code, reply.fields) == (0, {})
    return reply


def committed(heart: Harness, queue_id: int = 0) -> int:
    reply = heart.ask(QueryConsumerOffset(topic="T", consumer_group="CG", queue_id=queue_id))
    assert reply.code == 0
    return int((reply.fields or {})["offset"])


@pytest.mark.promise(174)
def test_reset_by_time_reads_again_from_there(read: Harness) -> None:
    """Each queue goes on at its first message of that time or later; what is read again is exactly that."""
    read.pull(offset=8)  # the lane may serve the group from here on
    assert offsets_in(reset(read, timestamp=START_MS + 3 * STEP_MS)) == {0: 3, 1: 2, 2: 0, 3: 0}
    assert [committed(read, queue_id) for queue_id in range(4)] == [3, 2, 0, 0]
    reply = read.pull(offset=8)
    assert (reply.code, reply.remark, reply.body) == (MOVED, "OFFSET_RESET", b"")
    assert reply.fields == {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": "3",
        "maxOffset": "10",
        "minOffset": "0",
        "topicSysFlag": "0",
    }
    assert bodies(read.pull(offset=3)) == [b"%d" % number for number in range(3, 10)]


@pytest.mark.promise(174)
def test_one_queue_is_set_by_hand(read: Harness) -> None:
    """Only the queue that is named moves; the offset may be any that its messages have, or the next two."""
    assert offsets_in(reset(read, queue_id=0, offset=2)) == {0: 2}
    assert (committed(read), read.broker.offsets.get("T", "CG", 1)) == (2, None)
    assert next_offset(read.pull(offset=8)) == 2
    for offset in (0, 10, 11):
        assert offsets_in(reset(read, queue_id=0, offset=offset)) == {0: offset}
    for offset in (12, 77, -3):
        refused = reset(read, queue_id=0, offset=offset)
        assert (refused.code, refused.body) == (1, b"")
        assert refused.remark == f"Target offset {offset} not in consume queue range [0-10]"
    assert committed(read) == 11, "what was refused changed nothing"
    assert offsets_in(reset(read, queue_id=0, offset=-1, timestamp=START_MS)) == {0: 0}, "-1 is no offset"


def test_below_zero_is_behind_the_newest(read: Harness) -> None:
    """Skipping what has piled up: a time of -1, all queues or one."""
    assert offsets_in(reset(read)) == {0: 10, 1: 2, 2: 0, 3: 0}
    assert offsets_in(reset(read, queue_id=1)) == {1: 2}


def test_what_is_not_there_is_named(read: Harness) -> None:
    """Topic 17, group 26, queue 1, each with its name."""
    refused = [reset(read, topic="no"), reset(read, group="no"), reset(read, queue_id=4)]
    assert [(reply.code, reply.remark, reply.body) for reply in refused] == [
        (17, "Topic no does not exist", b""),
        (26, "Group no does not exist", b""),
        (1, "queueId 4 of topic[T]: it has 4 queues", b""),
    ]
    assert not read.broker.offsets.has_resets("T", "CG")


def test_what_clients_say_before_they_know_does_not_count(read: Harness) -> None:
    """From the reset to the pull that is told of it, commits of either kind are ignored; then they count."""
    reset(read, queue_id=0, offset=1)
    assert commit(read, 9).remark == "Offset has been previously reset"
    assert committed(read) == 1
    told = read.pull(offset=8, flag=SUBSCRIPTION | COMMIT, commit_offset=9)
    assert (told.code, next_offset(told), committed(read)) == (MOVED, 1, 1)
    assert read.pull(offset=1).code == FOUND, "told once"
    assert commit(read, 4).remark is None
    assert committed(read) == 4
    assert commit(read, 2, queue_id=1).remark is None, "another queue was never reset"


def test_held_pulls_are_told_at_once(read: Harness) -> None:
    """A group that waits at the end hears of its reset without waiting for a message; others wait on."""
    mine, other = read.connect(50_100), read.connect(50_101)
    flag = SUBSCRIPTION | SUSPEND
    read.receive(pull_request(10, flag=flag), to=mine)
    read.receive(pull_request(10, flag=flag, group="other"), to=other)
    reset(read, queue_id=0, offset=5)
    read.settle()
    told = mine.take_one()
    assert (told.code, told.remark, next_offset(told)) == (MOVED, "OFFSET_RESET", 5)
    assert other.take() == []
    read.pass_time(16_000)
    assert (codes(mine.take()), codes(other.take())) == ([], [19])


def test_a_reset_outlives_a_restart(read: Harness) -> None:
    """Clients that come back with what they remember are told all the same; their commits do not count."""
    reset(read, queue_id=0, offset=3)
    read.reopen()
    assert (committed(read), commit(read, 9).remark) == (3, "Offset has been previously reset")
    assert next_offset(read.pull(offset=9)) == 3
    read.reopen()
    assert (committed(read), read.pull(offset=3).code) == (3, FOUND), "told once, whatever happens"


def test_a_reset_is_on_disk_soon(read: Harness) -> None:
    """It is somebody's decision: written with the next tick, not with the next period."""
    read.pass_time(5000)
    read.disk.finish()
    file = read.root / "config" / "consumerOffset.json"
    reset(read, queue_id=0, offset=3)
    read.pass_time(50)
    read.disk.finish()
    assert '"resetOffsetTable"' in file.read_text()


@pytest.mark.promise(172)
def test_what_was_not_committed_comes_again(make: Make) -> None:
    """A consumer dies with 10 of 20 committed: the next owner gets exactly the other 10."""
    heart = make()
    heart.create_topic("T")
    for number in range(20):
        heart.send(body=b"%d" % number)
    first, second = heart.connect(50_100), heart.connect(50_101)
    heart.beat("a", "CG", tagged("T", "*"), connection=first)
    first.take()
    assert len(bodies(heart.ask(pull_request(0), first))) == 20
    commit(heart, 10)
    heart.disconnect(first)
    heart.beat("b", "CG", tagged("T", "*"), connection=second)
    second.take()
    again = heart.ask(pull_request(committed(heart)), second)
    assert bodies(again) == [b"%d" % number for number in range(10, 20)]


@pytest.mark.promise(173)
def test_a_new_owner_goes_on_where_the_last_was(make: Make) -> None:
    """Whatever carried the offset, commit or pull, the next owner reads from it: no gap, nothing twice."""
    heart = make()
    heart.create_topic("T")
    seen: list[bytes] = []
    for number in range(30):
        heart.send(body=b"%d" % number)
    for owner in range(3):
        client = heart.connect(50_100 + owner)
        heart.beat(f"c{owner}", "CG", tagged("T", "*"), connection=client)
        client.take()
        start = committed(heart)
        reply = heart.ask(pull_request(start, max_msg_nums=10), client)
        seen += bodies(reply)
        flag = SUBSCRIPTION | COMMIT
        heart.ask(pull_request(next_offset(reply), flag=flag, commit_offset=next_offset(reply)), client)
        client.take()
        heart.disconnect(client)
    assert seen == [b"%d" % number for number in range(30)]


def test_the_reply_names_queues_as_java_writes_them(read: Harness) -> None:
    """Keys of the table are objects, bare."""
    reply = reset(read, queue_id=0, offset=2)
    assert reply.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
    assert decode_body(ResetOffsets, reply.body).offsets == {MessageQueue("T", "broker-a", 0): 2}

"""Where groups are in their queues: committed, asked for, written down, and found again."""

import errno
import os
import threading

import pytest

from hotfire.protocol import bodies as bodies_of_tables
from hotfire.protocol.bodies import loads
from hotfire.protocol.command import Command
from hotfire.protocol.requests import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import COMMIT, SUBSCRIPTION, Harness, bodies, next_offset, tagged


def commit(heart: Harness, offset: int, *, queue_id: int = 0, group: str = "CG", topic: str = "T") -> Command:
    return heart.ask(
        UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    )


def committed(
    heart: Harness, queue_id: int = 0, *, group: str = "CG", topic: str = "T", zero: bool | None = None
) -> int | None:
    """What QUERY_CONSUMER_OFFSET answers; None for code 22."""
    reply = heart.ask(
        QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=zero)
    )
    if reply.code == 22:
        return None
    assert reply.code == 0, reply.remark
    return int((reply.fields or {})["offset"])


def on_disk(heart: Harness) -> dict[str, dict[int, int]]:
    file = heart.root / "config" / "consumerOffset.json"
    table: dict[str, dict[int, int]] = loads(file.read_bytes())["offsetTable"]
    return {name: {int(queue): offset for queue, offset in row.items()} for name, row in table.items()}


@pytest.fixture
def joined(heart: Harness) -> Harness:
    """Topic T, and a group CG that has a member."""
    heart.beat("c", "CG", tagged("T", "*"))
    heart.connection.take()
    return heart


# --- commit and query ---


def test_what_was_committed_is_answered(joined: Harness) -> None:
    """One offset per group, topic and queue; the last commit counts, forward or back."""
    joined.create_topic("Other")
    joined.beat("c", "CG2")
    joined.connection.take()
    for offset in (5, 9, 3):
        assert commit(joined, offset).code == 0
        assert committed(joined) == offset
    commit(joined, 70, queue_id=1)
    commit(joined, 80, topic="Other")
    commit(joined, 90, group="CG2")
    assert committed(joined) == 3
    assert committed(joined, 1) == 70
    assert committed(joined, topic="Other") == 80
    assert committed(joined, group="CG2") == 90


def test_oneway_commits_count(joined: Harness) -> None:
    """Clients commit without waiting for an answer, and get none."""
    request = UpdateConsumerOffset(consumer_group="CG", topic="T", queue_id=2, commit_offset=12)
    joined.receive(request.to_command(oneway=True))
    assert joined.connection.take() == []
    assert committed(joined, 2) == 12


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"group": "Stranger"}, 26, "Group Stranger not exist!"),
        ({"topic": "Nowhere"}, 17, "Topic Nowhere not exist!"),
    ],
)
def test_commits_of_strangers_are_refused(
    joined: Harness, fields: dict[str, str], code: int, remark: str
) -> None:
    """An unknown group or topic has no offsets to keep, and is not made by committing one."""
    reply = commit(joined, 5, **fields)  # type: ignore[arg-type]
    assert (reply.code, reply.remark) == (code, remark)
    assert joined.broker.groups.get("Stranger") is None


@pytest.mark.parametrize(
    ("offset", "queue_id", "words"),
    [
        (5, 4, "queueId 4 of topic[T]: it has 4 queues"),
        (5, -1, "queueId -1"),
        (5, 2**31 - 1, "queueId 2147483647"),
        (-1, 0, "commitOffset -1"),
        (-(2**63), 3, "commitOffset -9223372036854775808"),
    ],
)
def test_commits_of_what_cannot_be_are_refused(
    joined: Harness, offset: int, queue_id: int, words: str
) -> None:
    """A queue the topic does not have, an offset before the first: code 29, and nothing is kept."""
    reply = commit(joined, offset, queue_id=queue_id)
    assert reply.code == 29
    assert words in (reply.remark or "")
    assert joined.broker.offsets._offsets == {}


def test_a_queue_taken_away_may_still_be_committed(joined: Harness) -> None:
    """The topic got fewer queues while a consumer read one of them to its end."""
    joined.send(queue_id=3)
    joined.create_topic("T", 2)
    assert commit(joined, 1, queue_id=3).code == 0
    assert commit(joined, 1, queue_id=4).code == 29


def test_a_new_group_starts_at_0_of_a_young_queue(joined: Harness) -> None:
    """Nothing committed: 0 while the queue's first message is there, not found when it is empty or older."""
    assert committed(joined) is None, "an empty queue"
    joined.send()
    assert committed(joined) == 0
    assert committed(joined, zero=True) == 0
    assert committed(joined, zero=False) is None, "the client asked not to be given a 0 of ours"
    assert committed(joined, 1) is None
    assert committed(joined, topic="Nowhere") is None
    joined.store.queue("T", 0).min = 1
    assert committed(joined) is None, "its beginning is gone: where to start is the client's to say"


def test_a_queue_whose_beginning_left_memory_is_not_young(
    joined: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offset 0 is offered only while reading it costs no disk."""
    joined.send()
    monkeypatch.setattr(joined.store._reading, "memory_window", 10)
    assert committed(joined) is None


def test_ends_of_a_queue(heart: Harness) -> None:
    """Min and max offset of a full, an empty and an unknown queue."""

    def ends(topic: str, queue_id: int) -> list[str]:
        requests = [
            GetMinOffset(topic=topic, queue_id=queue_id),
            GetMaxOffset(topic=topic, queue_id=queue_id),
        ]
        return [(heart.ask(request).fields or {})["offset"] for request in requests]

    for _ in range(3):
        heart.send()
    assert ends("T", 0) == ["0", "3"]
    heart.store.queue("T", 0).min = 2
    assert ends("T", 0) == ["2", "3"]
    assert ends("T", 1) == ["0", "0"]
    assert ends("Nowhere", 7) == ["0", "0"]


@pytest.mark.promise(167)
def test_groups_do_not_disturb_each_other(joined: Harness) -> None:
    """One group consumes and commits everything; a second one, later, reads it all from the beginning."""
    sent = [b"%02d" % number for number in range(50)]
    for body in sent:
        joined.send(body=body)

    def consume(group: str) -> list[bytes]:
        offset, received = committed(joined, group=group) or 0, []
        while offset < 50:
            reply = joined.pull(group=group, offset=offset, flag=SUBSCRIPTION | COMMIT, commit_offset=offset)
            received.extend(bodies(reply))
            offset = next_offset(reply)
        joined.pull(group=group, offset=offset, flag=SUBSCRIPTION | COMMIT, commit_offset=offset)
        return received

    assert consume("CG") == sent
    assert committed(joined) == 50
    assert committed(joined, group="Later") == 0
    assert consume("Later") == sent
    assert (committed(joined), committed(joined, group="Later")) == (50, 50)
    assert consume("CG") == [], "done once"


# --- on disk ---


def test_offsets_are_written_every_5_s(joined: Harness) -> None:
    """consumerOffset.json follows the commits within flushConsumerOffsetInterval, in the reference's form."""
    commit(joined, 7)
    commit(joined, 8, queue_id=3)
    joined.pass_time(4999, step_ms=49)
    joined.disk.finish()
    assert not (joined.root / "config" / "consumerOffset.json").exists()
    joined.pass_time(100)
    joined.disk.finish()
    assert on_disk(joined) == {"T@CG": {0: 7, 3: 8}}
    raw = (joined.root / "config" / "consumerOffset.json").read_text()
    assert '{"T@CG":{0:7,3:8}}' in raw, "the reference writes integer keys bare"
    commit(joined, 9)
    joined.pass_time(5000)
    joined.disk.finish()
    assert on_disk(joined)["T@CG"][0] == 9


def test_offsets_are_spelled_beside_the_loop(joined: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop only copies; what is committed while the table is being written is in the next one."""
    spell, threads = bodies_of_tables.dumps_bare_keys, []
    committed_meanwhile = threading.Event()

    def slowly(tree: object) -> bytes:
        threads.append(threading.current_thread())
        assert committed_meanwhile.wait(10)
        return spell(tree)

    commit(joined, 7)
    with monkeypatch.context() as patch:
        patch.setattr(bodies_of_tables, "dumps_bare_keys", slowly)
        joined.pass_time(5000)
        commit(joined, 8)
        committed_meanwhile.set()
        joined.disk.finish()
    assert on_disk(joined) == {"T@CG": {0: 7}}
    assert threading.main_thread() not in threads
    joined.pass_time(5000)
    joined.disk.finish()
    assert on_disk(joined) == {"T@CG": {0: 8}}


@pytest.mark.promise(168)
def test_both_ways_of_committing_reach_the_file(joined: Harness) -> None:
    """Carried by a pull or sent by itself: consumerOffset.json shows the offset within 10 s."""
    for _ in range(4):
        joined.send()
    for number in (1, 2):  # by the handler, then by the lane where there is one
        joined.pull(offset=number, flag=SUBSCRIPTION | COMMIT, commit_offset=number)
    commit(joined, 3, queue_id=1)
    joined.pass_time(10_000)
    joined.disk.finish()
    assert on_disk(joined) == {"T@CG": {0: 2, 1: 3}}


def test_an_offset_set_backwards_by_hand_is_said(joined: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """UPDATE_CONSUMER_OFFSET sets what it says; backwards it leaves a line with who did what."""
    commit(joined, 9)
    commit(joined, 4)
    assert committed(joined) == 4
    (line,) = [record.getMessage() for record in caplog.records if "backwards" in record.getMessage()]
    expected = "offset set backwards topic=T group=CG queue=0 from=9 to=4 peer=127.0.0.1:50001"
    assert line == expected


def test_nothing_new_is_not_written(joined: Harness) -> None:
    """A quiet broker leaves its disk alone."""
    commit(joined, 7)
    joined.pass_time(5000)
    joined.disk.finish()
    file = joined.root / "config" / "consumerOffset.json"
    before = file.stat().st_mtime_ns
    joined.pass_time(30_000)
    joined.disk.finish()
    assert file.stat().st_mtime_ns == before


def test_a_failed_write_is_tried_again(
    joined: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk had no room for a while: said in the log, and the offsets are written when it has."""

    def full(relative: str, data: bytes, *, keep: str | None = None) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    commit(joined, 7)
    with monkeypatch.context() as patch:
        patch.setattr(joined.disk, "write_whole", full)
        joined.pass_time(5000)
        joined.disk.finish()
        assert not (joined.root / "config" / "consumerOffset.json").exists()
    joined.pass_time(10_000)
    joined.disk.finish()
    assert on_disk(joined) == {"T@CG": {0: 7}}
    assert "consumerOffset.json" in caplog.text


def test_offsets_survive_a_restart(joined: Harness) -> None:
    """Closing writes what was committed since the last time; opening finds it, and a newer edition of it."""
    commit(joined, 7)
    joined.pass_time(5000)
    commit(joined, 8)
    joined.send(queue_id=1)
    joined.pull(flag=SUBSCRIPTION | COMMIT, commit_offset=1, queue_id=1)
    joined.reopen()
    assert (committed(joined), committed(joined, 1)) == (8, 1)
    edition = loads((joined.root / "config" / "consumerOffset.json").read_bytes())["dataVersion"]["counter"]
    joined.beat("c", "CG", tagged("T", "*"))
    joined.connection.take()
    commit(joined, 9)
    joined.reopen()
    assert committed(joined) == 9
    later = loads((joined.root / "config" / "consumerOffset.json").read_bytes())["dataVersion"]["counter"]
    assert later > edition, "editions go on where they were"


def test_interval_is_a_setting(make: Make) -> None:
    """flushConsumerOffsetInterval=100: on disk a tenth of a second after the commit."""
    heart = make(flush_consumer_offset_interval=100)
    heart.create_topic("T")
    heart.beat("c", "CG")
    heart.connection.take()
    commit(heart, 3)
    heart.pass_time(100)
    heart.disk.finish()
    assert on_disk(heart) == {"T@CG": {0: 3}}


def test_offsets_of_the_reference_are_read(make: Make) -> None:
    """A table as Apache writes it, its `.bak` when the table itself is damaged."""
    heart = make()
    heart.close()
    file = heart.root / "config" / "consumerOffset.json"
    file.write_text('{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},\n'
                    '\t"offsetTable":{"%RETRY%CG@CG":{0:5\n},"T@CG":{0:1,1:22}}\n}')  # fmt: skip
    heart.open()
    assert committed(heart, 1) == 22
    assert committed(heart, topic="%RETRY%CG") == 5
    heart.close()
    whole = file.read_bytes()
    (file.parent / "consumerOffset.json.bak").write_bytes(whole)
    file.write_bytes(whole[: len(whole) // 2])
    heart.open()
    assert committed(heart, 1) == 22

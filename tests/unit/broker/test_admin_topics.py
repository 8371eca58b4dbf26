"""Topics as administrators make, change, list and delete them. Replies are those Java 5.5.0 gave."""

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest

from hotfire.protocol.bodies import TopicList, decode_body, loads
from hotfire.protocol.requests import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryConsumerOffset,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
    UpdateConsumerOffset,
)
from tests.unit.broker.harness import FOUND, SUSPEND, Harness, bodies, pull_request, send_request, tagged

TOPIC_NOT_EXIST = 17
Make = Callable[..., Harness]


def topic(name: str, queues: int = 2, **fields: Any) -> UpdateAndCreateTopic:
    made: dict[str, Any] = {
        "topic": name, "default_topic": "TBW102", "read_queue_nums": queues, "write_queue_nums": queues,
        "perm": 6, "topic_filter_type": "SINGLE_TAG", "topic_sys_flag": 0,
    }  # fmt: skip
    return UpdateAndCreateTopic(**{**made, **fields})


def shown(heart: Harness, name: str) -> dict[str, Any]:
    reply = heart.ask(GetTopicConfig(topic=name))
    assert (reply.code, reply.remark) == (0, None)
    tree: dict[str, Any] = json.loads(bytes(reply.body))
    return tree


def test_attributes_are_kept_and_changed(heart: Harness) -> None:
    """`+key=value` sets an attribute, `-key` removes it, and the topic shows what is left."""
    made = heart.ask(topic("A", attributes="+message.type=FIFO,+reserve.time=100"))
    assert (made.code, made.remark, made.fields) == (0, "not set any response code", None)
    assert list(shown(heart, "A")) == [
        "attributes", "order", "perm", "readQueueNums", "topicFilterType", "topicName", "topicSysFlag",
        "writeQueueNums",
    ]  # fmt: skip
    assert shown(heart, "A")["attributes"] == {"message.type": "FIFO", "reserve.time": "100"}
    assert heart.ask(topic("A", attributes="-reserve.time")).code == 0
    assert shown(heart, "A")["attributes"] == {"message.type": "FIFO"}
    assert heart.ask(topic("A", queues=3)).code == 0, "a change without attributes leaves them"
    assert shown(heart, "A")["attributes"] == {"message.type": "FIFO"}
    heart.reopen()
    assert shown(heart, "A")["attributes"] == {"message.type": "FIFO"}


@pytest.mark.parametrize(
    ("attributes", "code", "remark"),
    [
        ("+foo=1", 1, "unsupported key: foo"),
        ("message.type=FIFO", 1, "add/alter attribute format is wrong: message.type"),
        (
            "+message.type=XX",
            1,
            "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]",
        ),
        ("+message.type=MIXED", 29, "MIXED message type is not supported."),
        ("+queue.type=BatchCQ", 1, "attempt to update an unchangeable attribute. key: queue.type"),
        ("+reserve.time=x", 1, 'For input string: "x"'),
        ("+message.type=FIFO,+message.type=NORMAL", 1, "key duplication: +message.type"),
        ("+message.type", 1, "delete attribute format is wrong: +message.type"),
        ("+reserve.time=-5", 1, "value is not in range(-1, 9223372036854775807)"),
        ("+a+b=1", 1, "kv string format wrong."),
        ("-reserve.time", 1, "attempt to delete a nonexistent key: reserve.time"),
    ],
)
def test_wrong_attributes_are_refused(heart: Harness, attributes: str, code: int, remark: str) -> None:
    """A change that is none of the attribute's values is refused, and nothing of it is taken."""
    heart.create_topic("A", 2)
    reply = heart.ask(topic("A", queues=9, attributes=attributes))
    assert (reply.code, reply.remark) == (code, remark)
    assert shown(heart, "A")["readQueueNums"] == 2


def test_a_new_topic_has_nothing_to_remove(heart: Harness) -> None:
    """A topic that is being made can only be given attributes."""
    reply = heart.ask(topic("NEW", attributes="-message.type"))
    remark = "only add attribute is supported while creating topic. key: message.type"
    assert (reply.code, reply.remark) == (1, remark)
    assert heart.ask(GetTopicConfig(topic="NEW")).code == TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    "name", ["TBW102", "DefaultCluster", "broker-a", "rmq_sys_any", "SCHEDULE_TOPIC_XXXX"]
)
def test_the_brokers_own_topics_are_not_for_administrators(heart: Harness, name: str) -> None:
    """System topics are neither changed nor deleted."""
    remark = f"The topic[{name}] is conflict with system topic."
    for request in (topic(name), DeleteTopicInBroker(topic=name)):
        reply = heart.ask(request)
        assert (reply.code, reply.remark) == (29, remark)


def test_a_list_of_topics_is_taken_whole_or_not_at_all(heart: Harness) -> None:
    """Several topics in one request: one that is wrong keeps out the others."""
    good = {"topicName": "L1", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    body = json.dumps({"topicConfigList": [good, {**good, "topicName": "a b"}]}).encode()
    assert heart.ask(UpdateAndCreateTopicList(body=body)).code == 29
    assert heart.ask(GetTopicConfig(topic="L1")).code == TOPIC_NOT_EXIST
    body = json.dumps({"topicConfigList": [good, {**good, "topicName": "L2"}]}).encode()
    reply = heart.ask(UpdateAndCreateTopicList(body=body))
    assert (reply.code, reply.remark) == (0, "not set any response code")
    assert shown(heart, "L2")["writeQueueNums"] == 3


def test_all_topics_come_at_once_or_page_by_page(heart: Harness) -> None:
    """Without fields the whole table; with them pages by name, again from the first if it has changed."""
    for name in ("T1", "T2", "T3"):
        heart.create_topic(name)
    whole = heart.ask(GetAllTopicConfig())
    tree = loads(whole.body)
    assert list(tree) == [
        "dataVersion", "mappingDataVersion", "topicConfigTable", "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    ]  # fmt: skip
    names = sorted(tree["topicConfigTable"])
    assert whole.fields == {"totalTopicNum": str(len(names))}
    version, read = json.dumps(tree["dataVersion"]), []
    while len(read) < len(names):
        page = heart.ask(GetAllTopicConfig(topic_seq=len(read), data_version=version, max_topic_num=2))
        assert page.fields == whole.fields
        got = list(loads(page.body)["topicConfigTable"])
        assert 0 < len(got) <= 2
        read += got
    assert read == names
    heart.create_topic("T4")
    again = heart.ask(GetAllTopicConfig(topic_seq=4, data_version=version, max_topic_num=2))
    assert list(loads(again.body)["topicConfigTable"]) == sorted([*names, "T4"])[:2]


def test_system_topics_are_listed(heart: Harness) -> None:
    """Those of every broker, and those named like this cluster and broker."""
    listed = decode_body(TopicList, heart.ask(GetSystemTopicListFromBroker()).body).topics
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"} <= {
        *listed
    }


@pytest.mark.promise(43)
def test_topics_have_eight_queues_and_may_get_more(heart: Harness) -> None:
    """Broker's part: a topic of its first message may have up to 8 queues, and 32 when it is raised."""
    assert shown(heart, "TBW102")["writeQueueNums"] == 8
    heart.ask(send_request("Busy", default_topic_queue_nums=16))
    assert (shown(heart, "Busy")["readQueueNums"], shown(heart, "Busy")["writeQueueNums"]) == (8, 8)
    assert heart.send(topic="Busy", queue_id=31).code == 29
    assert heart.ask(topic("Busy", queues=32)).code == 0
    assert heart.send(topic="Busy", queue_id=31, body=b"last").code == 0
    assert bodies(heart.pull(topic="Busy", queue_id=31)) == [b"last"]


@pytest.mark.promise(191)
def test_a_topic_is_only_where_it_was_made(make: Make) -> None:
    """Broker's part: a topic made beforehand exists at once, and without automatic creation nowhere else."""
    here = make(auto_create_topic_enable=False)
    assert here.send(topic="Mine").code == TOPIC_NOT_EXIST
    here.create_topic("Mine")
    assert here.send(topic="Mine").code == 0
    assert here.send(topic="Other").code == TOPIC_NOT_EXIST


# --- deleting ---


def test_a_deleted_topic_is_gone_and_starts_empty_again(heart: Harness) -> None:
    """Its messages and its groups' offsets go; made again it begins at 0, also after a start."""
    heart.create_topic("D", 2)
    for body in (b"1", b"2"):
        heart.send(topic="D", body=body)
    heart.pull(topic="D")  # makes the group, and lets the lane serve it
    commit = UpdateConsumerOffset(consumer_group="CG", topic="D", queue_id=0, commit_offset=2)
    assert heart.ask(commit).code == 0
    reply = heart.ask(DeleteTopicInBroker(topic="D"))
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    assert heart.pull(topic="D").code == TOPIC_NOT_EXIST
    assert heart.ask(GetTopicStatsInfo(topic="D")).remark == "topic[D] not exist"
    assert heart.broker.offsets.get("D", "CG", 0) is None
    heart.create_topic("D", 2)
    assert heart.pull(topic="D").code != FOUND
    sent = heart.send(topic="D", body=b"new")
    assert sent.fields is not None
    assert sent.fields["queueOffset"] == "0"
    for _ in range(2):
        assert bodies(heart.pull(topic="D")) == [b"new"]
        heart.reopen()
    assert not [path for path in (heart.root / "consumequeue").iterdir() if path.name.endswith(".deleted")]


def test_a_held_pull_hears_that_its_topic_is_gone(heart: Harness) -> None:
    """Whoever waits for a message of a topic that is deleted is told at once."""
    heart.create_topic("D", 1)
    heart.beat("C1", "CG", tagged("D", "*"))
    heart.connection.take()
    waiting = heart.connect(50_002)
    heart.receive(pull_request(topic="D", flag=SUSPEND), to=waiting)
    assert len(heart.broker.parked) == 1
    heart.ask(DeleteTopicInBroker(topic="D"))
    assert waiting.take_one().code == TOPIC_NOT_EXIST
    assert len(heart.broker.parked) == 0


def test_messages_on_their_way_do_not_come_back(heart: Harness) -> None:
    """A topic deleted while messages are being written is empty when they have been."""
    heart.create_topic("D", 1)
    heart.receive(send_request("D"), send_request("D"), DeleteTopicInBroker(topic="D"))
    heart.settle()
    heart.connection.take()
    heart.create_topic("D", 1)
    heart.send(topic="D", body=b"new")
    heart.pass_time(100)
    assert bodies(heart.pull(topic="D")) == [b"new"]
    heart.reopen()
    assert bodies(heart.pull(topic="D")) == [b"new"]


def test_offsets_of_a_deleted_topic_do_not_outlive_a_crash(heart: Harness, make: Make) -> None:
    """Killed before the offsets were written again: its groups begin anew as the topic does."""
    heart.create_topic("D", 1)
    for _ in range(5):
        heart.send(topic="D")
    heart.pull(topic="D")
    heart.ask(UpdateConsumerOffset(consumer_group="CG", topic="D", queue_id=0, commit_offset=5))
    heart.broker.offsets.save(heart.now_ms)
    heart.ask(DeleteTopicInBroker(topic="D"))
    heart.image("killed")
    after = make("killed")
    after.create_topic("D", 1)
    for body in (b"1", b"2"):
        after.send(topic="D", body=body)
    reply = after.ask(QueryConsumerOffset(consumer_group="CG", topic="D", queue_id=0))
    assert reply.fields == {"offset": "0"}
    after.ask(UpdateConsumerOffset(consumer_group="CG", topic="D", queue_id=0, commit_offset=2))
    after.reopen()
    assert after.broker.offsets.get("D", "CG", 0) == 2, "those of its present life stay"


def test_a_deletion_the_disk_took_half_of_leaves_an_empty_topic(
    heart: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is still there and says so; what is sent to it from then on is read, also after a start."""
    heart.create_topic("D", 1)
    heart.beat("C1", "CG", tagged("D", "*"))
    heart.connection.take()
    heart.send(topic="D", body=b"old")
    waiting = heart.connect(50_002)
    heart.receive(pull_request(offset=1, topic="D", flag=SUSPEND), to=waiting)
    assert len(heart.broker.parked) == 1

    def full(tree: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heart.broker.topics._table, "save", full)
    assert heart.ask(DeleteTopicInBroker(topic="D")).code == 14
    monkeypatch.undo()
    assert waiting.take_one().code != TOPIC_NOT_EXIST
    assert heart.send(topic="D", body=b"new").code == 0
    heart.pass_time(100)
    assert bodies(heart.pull(topic="D")) == [b"new"]
    heart.reopen()
    assert bodies(heart.pull(topic="D")) == [b"new"]


def test_files_that_cannot_be_moved_end_writing(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the next life would come between those of the last: nothing is stored until a restart."""
    heart.create_topic("D", 1)
    heart.send(topic="D", body=b"old")

    def broken(old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(heart.disk, "rename", broken)
    heart.ask(DeleteTopicInBroker(topic="D"))
    monkeypatch.undo()
    reply = heart.send(topic="T")
    assert reply.code == 14
    assert "deleted topic could not be moved away" in (reply.remark or "")
    heart.reopen()
    heart.create_topic("D", 1)
    heart.send(topic="D", body=b"new")
    assert bodies(heart.pull(topic="D")) == [b"new"]


def test_deleting_what_is_not_there_is_no_mistake(heart: Harness) -> None:
    """Unknown topics are deleted with success, blank ones refused; no name reaches the disk unchecked."""
    assert heart.ask(DeleteTopicInBroker(topic="neverwas")).code == 0
    assert heart.ask(DeleteTopicInBroker(topic="../commitlog")).code == 0
    assert (heart.root / "commitlog").is_dir()
    blank = heart.ask(DeleteTopicInBroker(topic=" "))
    assert (blank.code, blank.remark) == (29, "The specified topic is blank.")

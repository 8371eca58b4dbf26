"""How far topics and groups are, as administrators ask. Replies are those Java 5.5.0 was seen to give."""

import json

from hotfire.model import MessageQueue
from hotfire.protocol.bodies import decode_body, loads
from hotfire.protocol.record import iter_records
from hotfire.protocol.reports import ConsumeStats, ConsumeStatsList, OffsetLag, TopicOffset, TopicStats
from hotfire.protocol.requests import (
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    CloneGroupOffset,
    DeleteExpiredCommitLog,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetTopicStatsInfo,
    QueryConsumeQueue,
    QueryCorrectionOffset,
    UpdateConsumerOffset,
)
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness, tagged


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def filled(heart: Harness) -> None:
    """Three messages in queue 0 of T, one second apart; group G has consumed two."""
    heart.create_topic("T", 2)
    for _ in range(3):
        heart.send()
        heart.now_ms += 1000
    commit(heart, "G", 2)


def commit(heart: Harness, group: str, offset: int, queue_id: int = 0) -> None:
    heart.broker.groups.find(group, heart.now_ms)
    request = UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset)
    assert heart.ask(request).code == 0


def test_a_topics_queues_are_told(heart: Harness) -> None:
    """Beginning and end of each queue and when its last message was stored, 0 when it never had one."""
    filled(heart)
    reply = heart.ask(GetTopicStatsInfo(topic="T"))
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    assert bytes(reply.body).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:')
    stats = decode_body(TopicStats, reply.body)
    assert stats.offsets == {queue(0): TopicOffset(0, 3, START_MS + 2000), queue(1): TopicOffset()}
    missing = heart.ask(GetTopicStatsInfo(topic="none"))
    assert (missing.code, missing.remark) == (17, "topic[none] not exist")


def test_a_groups_lag_is_told(heart: Harness) -> None:
    """For each queue its end, the group's offset, and when the last message it consumed was stored."""
    filled(heart)
    heart.create_topic("A", 1)
    lags = {queue(0): OffsetLag(3, 2, 2, START_MS + 1000), queue(1): OffsetLag()}
    for request in (
        GetConsumeStats(consumer_group="G"),
        GetConsumeStats(consumer_group="G", topic="T"),
        GetConsumeStats(consumer_group="G", topic_list="T;none;"),
    ):
        reply = heart.ask(request)
        assert reply.code == 0
        assert decode_body(ConsumeStats, reply.body) == ConsumeStats(0.0, lags)
    listed = decode_body(ConsumeStats, heart.ask(GetConsumeStats(consumer_group="G", topic_list="A;T")).body)
    assert listed.offsets == {**lags, queue(0, "A"): OffsetLag()}
    none = heart.ask(GetConsumeStats(consumer_group="none"))
    assert bytes(none.body) == b'{"consumeTps":0.0,"offsetTable":{}}'


def test_what_was_pulled_is_told_beside_what_was_consumed(heart: Harness) -> None:
    """Where a group's last pull went on, however it was served; a topic takes it along."""
    filled(heart)
    for count in (1, 3):  # the second may be the lane's
        assert heart.pull(group="G", max_msg_nums=count).code == 0
    stats = decode_body(ConsumeStats, heart.ask(GetConsumeStats(consumer_group="G")).body)
    assert stats.offsets[queue(0)] == OffsetLag(3, 2, 3, START_MS + 1000)
    tables = loads(heart.ask(GetAllConsumerOffset()).body)
    assert tables["groupTopicMap"] == {"G": ["T"]}
    assert tables["pullOffsetTable"] == {"T@G": {0: 3}}
    heart.broker.offsets.forget_topic("T")
    assert heart.broker.offsets.copy_pulls() == {}


def test_topics_a_living_group_left_are_not_its_lag(heart: Harness) -> None:
    """A group whose members no longer subscribe to a topic has no lag there, but if asked for by list."""
    filled(heart)
    heart.create_topic("Other", 1)
    heart.beat("C1", "G", tagged("Other", "*"))
    heart.connection.take()
    assert not decode_body(ConsumeStats, heart.ask(GetConsumeStats(consumer_group="G")).body).offsets
    listed = heart.ask(GetConsumeStats(consumer_group="G", topic_list="T"))
    assert queue(0) in decode_body(ConsumeStats, listed.body).offsets


def test_every_groups_lag_is_told(heart: Harness) -> None:
    """One row for each group of the broker, and the sum of what they have still to read."""
    filled(heart)
    report = decode_body(ConsumeStatsList, heart.ask(GetBrokerConsumeStats(is_order=False)).body)
    assert (report.broker_addr, report.total_diff) == (heart.broker.address, 1)
    rows = {group: stats for row in report.groups for group, stats in row.items()}
    (stats,) = rows["G"]
    assert stats.offsets[queue(0)] == OffsetLag(3, 2, 0, START_MS + 1000)
    assert rows["TOOLS_CONSUMER"] == ()
    ordered = decode_body(ConsumeStatsList, heart.ask(GetBrokerConsumeStats(is_order=True)).body)
    assert ordered.total_diff == 0
    assert not any(stats for row in ordered.groups for stats in row.values())


def test_the_lowest_offsets_are_told(heart: Harness) -> None:
    """Of all groups but those left out, which keep their offsets; whoever is behind shows the limit."""
    filled(heart)
    commit(heart, "G2", 3)

    def ask(**fields: str) -> bytes:
        return bytes(heart.ask(QueryCorrectionOffset(topic="T", **fields)).body)

    assert ask(compare_group="G") == b'{"correctionOffsets":{0:2}}'
    assert ask(compare_group="none") == b'{"correctionOffsets":{0:2}}'
    assert ask(compare_group="G2", filter_groups="G") == b'{"correctionOffsets":{0:3}}'
    assert ask(compare_group="G", filter_groups="G") == b'{"correctionOffsets":{0:9223372036854775807}}'
    assert heart.broker.offsets.get("T", "G", 0) == 2


def test_offsets_are_cloned(heart: Harness) -> None:
    """Another group goes on where this one is: of one topic, or of all it has."""
    filled(heart)
    for topic, target in (("T", "G2"), (None, "G3")):
        reply = heart.ask(CloneGroupOffset(src_group="G", dest_group=target, topic=topic))
        assert (reply.code, reply.remark) == (0, None)
        assert heart.broker.offsets.get("T", target, 0) == 2
    commit(heart, "G2", 3)
    assert heart.broker.offsets.get("T", "G", 0) == 2, "a copy of its own"
    assert heart.ask(CloneGroupOffset(src_group="G", dest_group="G")).code == 0
    assert heart.broker.offsets.get("T", "G", 0) == 2, "its own are its own"
    assert heart.broker.groups.get("G3") is None, "no group is made"


def test_clones_are_bounded(make: Make) -> None:
    """Any name may be cloned to, but not any number of names."""
    heart = make(groups_max=12)
    filled(heart)
    codes = [
        heart.ask(CloneGroupOffset(src_group="G", dest_group=f"clone-{n}", topic="T")).code for n in range(14)
    ]
    assert codes == [0] * 11 + [29] * 3
    assert heart.ask(CloneGroupOffset(src_group="G", dest_group="clone-0", topic="T")).code == 0


def test_entries_of_a_queue_are_shown(heart: Harness) -> None:
    """Where each message lies, its size and its tag's hash; beyond the queue there is nothing to show."""
    heart.create_topic("T", 2)
    for _ in range(3):
        heart.send(named={"TAGS": "TagA"})
    records = list(iter_records(heart.pull().body))
    reply = heart.ask(QueryConsumeQueue(topic="T", queue_id=0, index=1, count=2))
    size = records[1].physical_offset
    entry = {"eval": False, "physicOffset": size, "physicSize": size, "tagsCode": 2598919}
    assert reply.remark == "not set any response code"
    assert json.loads(bytes(reply.body)) == {
        "maxQueueIndex": 3, "minQueueIndex": 0, "queueData": [entry, {**entry, "physicOffset": 2 * size}],
    }  # fmt: skip
    beyond = heart.ask(QueryConsumeQueue(topic="T", queue_id=0, index=100, count=2))
    assert (beyond.code, beyond.remark, bytes(beyond.body)) == (0, "Index 100 of 0@T is not exist!", b"")
    for topic in ("T", "nonono"):
        no = heart.ask(QueryConsumeQueue(topic=topic, queue_id=9, index=0, count=2))
        assert (no.code, no.remark) == (0, f"Index 0 of 9@{topic} is not exist!")
    offline = heart.ask(QueryConsumeQueue(topic="T", queue_id=0, index=2, count=9, consumer_group="G"))
    assert json.loads(bytes(offline.body))["filterData"] == "G@T is not online!"
    many = heart.ask(QueryConsumeQueue(topic="T", queue_id=0, index=0, count=2**31 - 1))
    assert len(json.loads(bytes(many.body))["queueData"]) == 3


def test_tables_for_a_slave(heart: Harness) -> None:
    """Offsets, delays and modes in the form a slave of the reference copies them."""
    filled(heart)
    tree = loads(heart.ask(GetAllConsumerOffset()).body)
    assert list(tree) == ["dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable"]
    assert tree["offsetTable"] == {"T@G": {0: 2}}
    assert "offsetTable" in loads(heart.ask(GetAllDelayOffset()).body)
    assert bytes(heart.ask(GetAllMessageRequestMode()).body) == b'{"messageRequestModeMap":{}}'


def test_clean_ups_are_done(heart: Harness) -> None:
    """Expired files and queues of topics that do not exist go; whatever is in use stays."""
    filled(heart)
    heart.create_topic("Lost", 1)
    heart.send(topic="Lost")
    heart.broker.topics.remove(["Lost"], heart.now_ms)
    for request in (CleanExpiredConsumeQueue(), DeleteExpiredCommitLog(), CleanUnusedTopic()):
        reply = heart.ask(request)
        assert (reply.code, reply.remark) == (0, None)
    assert heart.store.find_queue("Lost", 0) is None
    assert heart.store.find_queue("T", 0) is not None
    heart.reopen()
    assert not (heart.root / "consumequeue" / "Lost").exists()

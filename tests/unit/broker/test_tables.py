"""Topics and groups: kept across restarts, changed on disk first, told in the reference's form."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import StoreCorrupt
from hotfire.model import Subscription, SubscriptionGroup, TopicConfig
from hotfire.protocol.bodies import KVTable, decode_body
from hotfire.protocol.requests import GetBrokerRuntimeInfo, GetTimerMetrics, UpdateAndCreateTopic
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import NOT_FOUND, Harness, bodies, tagged


def create(**fields: Any) -> UpdateAndCreateTopic:
    made: dict[str, Any] = {
        "topic": "T",
        "default_topic": "TBW102",
        "read_queue_nums": 8,
        "write_queue_nums": 8,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        "topic_sys_flag": 0,
        "order": False,
    }
    return UpdateAndCreateTopic(**{**made, **fields})


def config_file(heart: Harness, name: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads((heart.root / "config" / name).read_text())
    return decoded


def test_topics_survive_a_restart(make: Make) -> None:
    """A created topic comes back with every setting; the file has it before the administrator hears of it."""
    heart = make()
    wanted = TopicConfig("T", 3, 5, perm=4, sys_flag=2, order=True)
    heart.receive(create(read_queue_nums=3, write_queue_nums=5, perm=4, topic_sys_flag=2, order=True))
    stored = config_file(heart, "topics.json")["topicConfigTable"]["T"]
    assert (stored["readQueueNums"], stored["writeQueueNums"], stored["perm"]) == (3, 5, 4)
    assert heart.connection.take_one().code == 0
    heart.reopen()
    assert heart.broker.topics.get("T") == wanted


def test_groups_survive_a_restart(make: Make) -> None:
    """A group that a heartbeat or a pull made comes back, and with it the edition of the table."""
    heart = make()
    heart.create_topic("T")
    heart.beat("c", "ByHeartbeat", tagged("T", "*"))
    heart.connection.take()
    heart.pull(group="ByPull")
    edition = config_file(heart, "subscriptionGroup.json")["dataVersion"]["counter"]
    heart.reopen()
    for name in ("ByHeartbeat", "ByPull"):
        assert heart.broker.groups.get(name) == SubscriptionGroup(name)
    heart.pull(group="Third")
    assert config_file(heart, "subscriptionGroup.json")["dataVersion"]["counter"] > edition


def test_what_groups_may_not_read_is_kept(make: Make) -> None:
    """A forbiddenTable that Apache's broker wrote outlives a start and a change of the groups."""
    heart = make()
    heart.close()
    file = heart.root / "config" / "subscriptionGroup.json"
    file.write_text(file.read_text().replace('"forbiddenTable":{}', '"forbiddenTable":{"CG":{"T":1}}'))
    heart.open()
    heart.create_topic("T")
    heart.pull(group="Another")
    table = config_file(heart, "subscriptionGroup.json")
    assert table["forbiddenTable"] == {"CG": {"T": 1}}
    assert "Another" in table["subscriptionGroupTable"]


def test_system_topics_exist_from_the_first_start(make: Make) -> None:
    """What clients and tools rely on: the template, the cluster's and broker's own, and the reserved ones."""
    heart = make(broker_cluster_name="C1")
    topics = {topic.name: (topic.read_queues, topic.perm) for topic in heart.broker.topics}
    assert topics == {
        "TBW102": (8, 7),
        "SELF_TEST_TOPIC": (1, 6),
        "BenchmarkTest": (1024, 6),
        "C1": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C1_REPLY_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }


def test_changing_a_topic_replaces_it(heart: Harness) -> None:
    """Another number of queues is the same topic with another number; messages stay where they are."""
    told: list[int] = []
    heart.broker.topics_changed = lambda: told.append(1)
    heart.send(queue_id=3)
    heart.ask(create(read_queue_nums=6, write_queue_nums=6))
    assert heart.broker.topics.get("T") == TopicConfig("T", 6, 6)
    assert bodies(heart.pull(queue_id=3)) == [b"body"]
    assert heart.send(queue_id=5).code == 0
    heart.ask(create(read_queue_nums=6, write_queue_nums=6))
    assert told == [1], "nothing changed the second time"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": "two words"}, "two words"),
        ({"topic": "x" * 128}, "127"),
        ({"topic": "TBW102"}, "TBW102"),
        ({"topic": "rmq_sys_anything"}, "rmq_sys_anything"),
        ({"read_queue_nums": 0}, "readQueueNums 0"),
        ({"write_queue_nums": -1}, "writeQueueNums -1"),
        ({"write_queue_nums": 1_000_000}, "4096"),
        ({"perm": 64}, "perm 64"),
    ],
)
def test_topics_that_cannot_be(heart: Harness, fields: dict[str, Any], words: str) -> None:
    """Each refused with code 29, the culprit and the limit; nothing made or changed."""
    before = {topic.name: topic for topic in heart.broker.topics}
    reply = heart.ask(create(**fields))
    assert reply.code == 29
    assert words in (reply.remark or ""), reply.remark
    assert {topic.name: topic for topic in heart.broker.topics} == before


def test_number_of_topics_is_bounded(make: Make) -> None:
    """topicsMax reached: no new topic by an administrator, a send or a heartbeat; the old ones may change."""
    heart = make(topics_max=13)
    heart.create_topic("T")
    heart.create_topic("U")  # and the 11 of the system
    reply = heart.ask(create(topic="V"))
    assert (reply.code, reply.remark) == (29, "topic[V] would be number 14, topicsMax is 13")
    assert heart.send(topic="Auto").code == 29
    assert heart.beat("c", "CG").code == 29, "its retry topic has no place"
    assert heart.ask(create(topic="U", read_queue_nums=2)).code == 0
    heart.reopen()
    assert heart.send(topic="U").code == 0


def test_number_of_queues_is_bounded(make: Make) -> None:
    """queuesMax counts the queues of all topics: what would pass it is refused, fewer is always possible."""
    heart = make(queues_max=1203)  # the system's topics have 1073
    heart.create_topic("T", 100)
    reply = heart.ask(create(topic="U", read_queue_nums=31, write_queue_nums=8))
    assert (reply.code, reply.remark) == (29, "topic[U] would make 1204 queues, queuesMax is 1203")
    assert heart.ask(create(topic="U", read_queue_nums=30, write_queue_nums=8)).code == 0
    assert heart.ask(create(topic="T", read_queue_nums=101, write_queue_nums=1)).code == 29
    assert heart.ask(create(topic="T", read_queue_nums=50, write_queue_nums=50)).code == 0
    assert heart.ask(create(topic="V", read_queue_nums=50, write_queue_nums=50)).code == 0
    heart.close()
    tight = make(queues_max=10)
    assert tight.ask(create(topic="W", read_queue_nums=1, write_queue_nums=1)).code == 29
    assert tight.ask(create(topic="T", read_queue_nums=1, write_queue_nums=1)).code == 0


def test_a_topic_that_cannot_be_written_is_not_made(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses the table: so does the broker, nobody sees the topic; the next attempt succeeds."""
    heart = make()
    told: list[int] = []
    heart.broker.topics_changed = lambda: told.append(1)

    def full(relative: str, data: bytes, *, keep: str | None = None) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(heart.disk, "write_whole", full)
        replies = [heart.ask(create()), heart.send(), heart.send(topic="Auto")]
        for reply in replies:
            assert reply.code != 0, reply
            assert os.strerror(errno.ENOSPC) in (reply.remark or ""), reply.remark
        assert heart.broker.topics.get("T") is None
        assert heart.broker.topics.get("Auto") is None
        assert told == []
        reply = heart.pull(topic="BenchmarkTest", group="New")
        assert reply.code == NOT_FOUND, "a full disk keeps no one from reading"
    assert heart.ask(create()).code == 0
    assert heart.send().code == 0
    assert bodies(heart.pull(group="New")) == [b"body"]
    heart.reopen()
    assert heart.broker.topics.get("T") == TopicConfig("T", 8, 8)
    assert heart.broker.groups.get("New") is not None


def test_a_damaged_table_is_not_believed(make: Make) -> None:
    """topics.json cut short: its .bak is used; both damaged: the start is refused, nothing overwritten."""
    heart = make()
    heart.create_topic("First")
    heart.create_topic("Second")
    heart.close()
    file, backup = (heart.root / "config" / name for name in ("topics.json", "topics.json.bak"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    heart.open()
    assert heart.broker.topics.get("First") is not None
    heart.close()
    file.write_bytes(b"{")
    backup.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"topics\.json"):
        heart.open()
    heart.store.close()
    assert (file.read_bytes(), backup.read_bytes()) == (b"{", b"")


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("topics.json", '{"topicConfigTable":[]}', "topicConfigTable"),
        ("topics.json", '{"topicConfigTable":{"T":{"topicName":"T","perm":"all"}}}', "perm"),
        ("topics.json", '{"dataVersion":7}', "dataVersion"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":["CG"]}', "list"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"CG":{}}}', "groupName"),
        ("subscriptionGroup.json", '{"dataVersion":[]}{', "subscriptionGroup"),
        ("consumerOffset.json", '{"offsetTable":{"T@CG":5}}', "int"),
        ("consumerOffset.json", '{"offsetTable":{"T@CG":{"zero":5}}}', "zero"),
        ("consumerOffset.json", '{"offsetTable":{"T@CG":{0:null}}}', "None"),
    ],
)
def test_a_table_of_another_shape_is_named(make: Make, name: str, text: str, word: str) -> None:
    """JSON of the wrong shape: its `.bak` is used; without one the start is refused, file and fault named."""
    heart = make()
    heart.create_topic("T")
    heart.close()
    file, backup = (heart.root / "config" / file for file in (name, name + ".bak"))
    whole = file.read_bytes()
    file.write_text(text)
    backup.write_bytes(whole)
    heart.open()
    heart.close()
    file.write_text(text)
    backup.unlink(missing_ok=True)
    with pytest.raises(StoreCorrupt) as caught:
        heart.open()
    heart.store.close()
    assert str(file) in str(caught.value)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_text() == text


def test_template_follows_the_setting(make: Make) -> None:
    """autoCreateTopicEnable decides at each start whether TBW102 may be inherited."""
    heart = make()
    assert (heart.broker.topics.get("TBW102") or TopicConfig("")).perm == 7
    heart.close()
    closed = make(auto_create_topic_enable=False)
    assert (closed.broker.topics.get("TBW102") or TopicConfig("")).perm == 6
    closed.close()
    again = make()
    assert (again.broker.topics.get("TBW102") or TopicConfig("")).perm == 7


def test_name_servers_are_told_all_topics(make: Make) -> None:
    """A registration holds every topic in one edition, which grows with each change."""
    heart = make()
    before = heart.broker.topics.registration()
    heart.create_topic("T")
    after = heart.broker.topics.registration()
    assert set(after.topics) == {topic.name for topic in heart.broker.topics}
    assert after.data_version.counter > before.data_version.counter
    heart.reopen()
    assert heart.broker.topics.registration().data_version.counter >= after.data_version.counter


def test_broker_that_may_not_be_written_offers_no_writing(make: Make) -> None:
    """brokerPermission=4: every topic is registered without the write bit."""
    heart = make(broker_permission=4)
    heart.create_topic("T")
    assert {topic.perm & 2 for topic in heart.broker.topics.registration().topics.values()} == {0}
    assert (heart.broker.topics.get("T") or TopicConfig("")).perm == 6, "the topic itself is as it was made"


def test_runtime_info_counts_what_was_stored(heart: Harness) -> None:
    """Messages and bytes accepted since the start, by whichever road they came; nothing left behind."""
    for v1 in (False, True):
        for _ in range(5):
            heart.send(v1=v1)
    heart.pass_time(100)
    reply = heart.ask(GetBrokerRuntimeInfo())
    table = decode_body(KVTable, reply.body).table
    assert table["msgPutTotalTodayNow"] == "10"
    assert table["putMessageSizeTotal"] == str(heart.store.end) == table["commitLogMaxOffset"]
    assert table["dispatchBehindBytes"] == "0"
    assert table["brokerActive"] == "true"
    assert table["brokerVersion"] == "513"


# --- large ones ---


@pytest.mark.parametrize("dead", [False, True])
def test_many_conditions_are_spelled_beside_the_loop(tmp_path: Path, dead: bool) -> None:
    """20,000 of them, changed since the last save: the loop copies, and has done so within 5 ms."""
    heart = Harness(tmp_path)
    conditions = heart.broker.conditions
    for number in range(20_000):
        wanted = Subscription(f"T{number % 300}", f"a > {number}", "SQL92", version=1)
        conditions.register(f"G{number}", [wanted], heart.now_ms)
        conditions.tick(heart.now_ms)  # so many are compiled between two
        if dead:
            conditions.leave(f"G{number}", heart.now_ms)
    assert len(conditions) == 20_000
    took_ms = []
    for round_ in range(3):
        conditions.register("G0", [Subscription("T0", "a > 0", "SQL92", version=round_ + 2)], heart.now_ms)
        heart.now_ms += 10_000
        began_s = time.thread_time()
        conditions.tick(heart.now_ms)
        took_ms.append(1000 * (time.thread_time() - began_s))
        assert conditions._table.settle()
    assert min(took_ms) < 5, took_ms
    stored = config_file(heart, "consumerFilter.json")["filterDataByTopic"]
    heart.close()
    assert sum(len(topic["groupFilterData"]) for topic in stored.values()) == 20_000


def test_the_counts_of_many_topics_are_spelled_beside_the_loop(tmp_path: Path) -> None:
    """Messages of 50,000 topics wait for their time: neither the table nor the answer holds the loop."""
    heart = Harness(tmp_path)
    metrics = heart.broker.timers.metrics
    for number in range(50_000):
        metrics.count(f"T{number}", 1, heart.now_ms)
    took_ms: dict[str, list[float]] = {"save": [], "answer": []}
    for _ in range(3):
        began_s = time.thread_time()
        metrics.save_beside(heart.now_ms)
        took_ms["save"].append(1000 * (time.thread_time() - began_s))
        metrics._table.settle()
        began_s = time.thread_time()
        heart.receive(GetTimerMetrics())
        took_ms["answer"].append(1000 * (time.thread_time() - began_s))
        while heart.store.queries.waiting:
            heart.ring()
        assert len(json.loads(heart.connection.take_one().body)["timingCount"]) == 50_000
    heart.close()
    assert max(min(took) for took in took_ms.values()) < 5, took_ms
    assert len(config_file(heart, "timermetrics")["timingCount"]) == 50_000

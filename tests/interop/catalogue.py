"""The requests that are put to Apache's servers and to Hotfire's alike: right ones, wrong ones, spoilt ones.

The order matters: what an earlier case stores or creates, later ones ask for. Names and numbers are fixed, so
that two runs on empty stores are equal. Owns the list alone; see `asking` for how it is put.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from hotfire.protocol.batch import BatchMessage, encode_batch
from hotfire.protocol.codes import RequestCode as Code
from hotfire.protocol.recall import Handle
from hotfire.protocol.record import encode_properties
from tests.interop.asking import Case, Given, Seen, spoilt, twins

BORN_MS = 1_700_000_000_000
BROKER_NAME, CLUSTER = "broker-a", "DefaultCluster"
TOPIC, GROUP = "plain", "readers"
LONG_NAME = "n" * 128
LONGEST_NAME = "n" * 127
LONGEST_GROUP = "n" * 120
SUBSCRIPTION, SUSPEND, COMMIT = 4, 2, 1
MANY = 1_000_000


def properties(**values: str) -> str:
    return encode_properties(values).decode()


# --- topics ------------------------------------------------------------------------------------------


def topic_fields(topic: str, **changed: object) -> dict[str, Any]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, **changed,
    }  # fmt: skip


def create(name: str, topic: str, **changed: object) -> Case:
    return Case(
        f"create topic {name}", "broker", Code.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, **changed)
    )


def topics() -> Iterable[Case]:
    good = create("plain", TOPIC)
    yield good
    yield create("again", TOPIC)
    yield create("of one queue", "one", readQueueNums=1, writeQueueNums=1)
    yield create("read only", "readonly", perm=4)
    yield create("write only", "writeonly", perm=2)
    yield create("of no permission", "closed", perm=0)
    yield create("in order", "ordered", order=True, readQueueNums=2, writeQueueNums=2)
    yield create("unequal", "unequal", readQueueNums=2, writeQueueNums=6)
    yield create("of odd permission", "oddperm", perm=15)
    yield create("of negative permission", "negperm", perm=-1)
    yield create("without queues", "noqueues", readQueueNums=0, writeQueueNums=0)
    yield create("of negative queues", "negqueues", readQueueNums=-1, writeQueueNums=-1)
    yield create("of longest name", LONGEST_NAME)
    yield create("of too long a name", LONG_NAME)
    yield create("of no name", "")
    yield create("of a blank name", "a b")
    yield create("of a slashed name", "../etc")
    yield create("named like the template", "TBW102")
    yield create("named like a system topic", "SCHEDULE_TOPIC_XXXX")
    yield create("with a system prefix", "rmq_sys_mine")
    yield create("of a retry name", "%RETRY%someone")
    yield create("of multiple tags", "multi", topicFilterType="MULTI_TAG")
    yield create("of an unknown filter", "filtered", topicFilterType="NONE")
    yield create("with attributes", "typed", attributes="+message.type=NORMAL")
    yield create("with a bad attribute", "typed2", attributes="+no.such=1")
    yield create("with half an attribute", "typed3", attributes="message.type")
    # What Apache makes of these is taken away, or every list of topics would tell of it.
    for name in ("oddperm", "negperm", "noqueues", "negqueues"):
        yield Case(f"take away {name}", "broker", Code.DELETE_TOPIC_IN_BROKER, {"topic": name})
        yield Case(f"forget {name}", "namesrv", Code.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
    # Made ahead: what is sent to them is stored by one server and refused by the other.
    for name in ("batch-size", "batch-delayed", "half"):
        yield create(name, name)
    yield from spoilt(create("spoilt", "spoilt"))
    yield Case("topic config", "broker", Code.GET_TOPIC_CONFIG, {"topic": TOPIC})
    yield Case("topic config of typed", "broker", Code.GET_TOPIC_CONFIG, {"topic": "typed"})
    yield Case("topic config of nobody", "broker", Code.GET_TOPIC_CONFIG, {"topic": "nobody"})
    yield Case("topic config, no fields", "broker", Code.GET_TOPIC_CONFIG)
    yield Case("topic config, no topic", "broker", Code.GET_TOPIC_CONFIG, {})
    listed = {"topicConfigList": [_config("listed1"), _config("listed2")]}
    yield _json("create topics", Code.UPDATE_AND_CREATE_TOPIC_LIST, listed)
    bad = {"topicConfigList": [_config("listed3"), _config("not allowed")]}
    yield _json("create topics, one bad", Code.UPDATE_AND_CREATE_TOPIC_LIST, bad)
    yield _json("create topics, none", Code.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": []})
    yield Case("create topics, no body", "broker", Code.UPDATE_AND_CREATE_TOPIC_LIST)
    yield Case("create topics, not JSON", "broker", Code.UPDATE_AND_CREATE_TOPIC_LIST, body=b"topics")
    for name in (TOPIC, "unequal", "ordered", "listed1"):
        yield Case(f"route of {name}", "namesrv", Code.GET_ROUTEINFO_BY_TOPIC, {"topic": name}, until=0)


def _config(name: str) -> dict[str, Any]:
    return {
        "attributes": {}, "order": False, "perm": 6, "readQueueNums": 3, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": 3,
    }  # fmt: skip


def _json(name: str, code: int, tree: object, **rest: Any) -> Case:
    return Case(name, "broker", code, body=json.dumps(tree, separators=(",", ":")).encode(), **rest)


# --- sends -------------------------------------------------------------------------------------------

LETTERS = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j",
    "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m",
}  # fmt: skip


def send_fields(topic: str, changed: Mapping[str, Given]) -> dict[str, Any]:
    return {
        "producerGroup": "writers", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 0,
        "properties": properties(UNIQ_KEY="7F000001000018B4AAC20000000000AA"), "reconsumeTimes": 0,
        "unitMode": False, "batch": False, **changed,
    }  # fmt: skip


def send(
    name: str,
    topic: str = TOPIC,
    *,
    body: bytes = b"hello",
    code: int = Code.SEND_MESSAGE_V2,
    **changed: Given,
) -> Case:
    fields = send_fields(topic, changed)
    if code != Code.SEND_MESSAGE:
        fields = {LETTERS[key]: value for key, value in fields.items()}
    return Case(f"send {name}", "broker", code, fields, body)


def batch(name: str, topic: str = TOPIC, *, body: bytes, **changed: Given) -> Case:
    return send(f"batch {name}", topic, body=body, code=Code.SEND_BATCH_MESSAGE, batch=True, **changed)


def unique(number: int, **more: str) -> str:
    return properties(UNIQ_KEY=f"7F000001000018B4AAC2{number:012X}", **more)


def sends() -> Iterable[Case]:
    yield send("V2", properties=unique(1, TAGS="TagA", KEYS="k1 k2"))
    yield send("V1", code=Code.SEND_MESSAGE, properties=unique(2, TAGS="TagB"))
    yield from twins(send("V2 twin", properties=unique(3, WAIT="true")))
    many = create("of many queues", "spoilt-sends", readQueueNums=99, writeQueueNums=99)
    yield many
    sent = [send("V2 spoilt", "spoilt-sends", maxReconsumeTimes=3)]
    sent.append(send("V1 spoilt", "spoilt-sends", code=Code.SEND_MESSAGE))
    yield from _apart(case for good in sent for case in spoilt(good))
    yield send("without properties", "bare", properties=None)
    yield send("to queue 3", queueId=3)
    yield send("to queue 4", queueId=4)
    yield send("to queue 2000000000", queueId=2_000_000_000)
    yield send("to any queue", "one", queueId=-1)
    yield send("to queue -7", "one", queueId=-7)
    yield send("beyond the read queues", "unequal", queueId=5)
    yield send("to a new topic", "made-by-sending")
    yield send("to a new topic of many queues", "made-wide", defaultTopicQueueNums=1000)
    yield send("to a new topic of no queues", "made-narrow", defaultTopicQueueNums=0)
    yield send("to a new topic of -1 queues", "made-negative", defaultTopicQueueNums=-1)
    yield send("to a new topic by another template", "made-otherwise", defaultTopic=TOPIC)
    yield send("to a new topic by no template", "made-of-nothing", defaultTopic="nothing")
    yield send("to read only", "readonly")
    yield send("to write only", "writeonly")
    yield send("to closed", "closed")
    yield send("in order", "ordered")
    yield send("to no topic", "")
    yield send("to a blank topic", "a b")
    yield send("to a long topic", LONG_NAME)
    yield send("to the longest topic", LONGEST_NAME)
    for system in (
        "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT", CLUSTER, BROKER_NAME, "BenchmarkTest", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer",
    ):  # fmt: skip
        yield send(f"to {system}", system)
    yield send("empty", body=b"")
    yield send("of 4 MiB", "big", body=bytes(4 << 20))
    yield send("of 4 MiB and a byte", "big", body=bytes((4 << 20) + 1))
    yield send("of long properties", "props", properties=unique(9, LONG="p" * 32_000))
    yield send("of too long properties", "props", properties=unique(9, LONG="p" * 33_000))
    yield send("of broken properties", "props", properties="no separators")
    yield send("of half a property", "props", properties="K\x01V")
    yield send("of an empty name", "props", properties="\x01V\x02A\x01B\x02")
    yield send("of an empty value", "props", properties="A\x01\x02B\x01C\x02")
    yield send("of wide text", "props", properties=unique(10, NAME="Füße 漢字 🔥"))
    yield send("flagged", "props", flag=-5, sysFlag=1 | 0x100)
    yield send("of a transaction flag", "half", sysFlag=4)
    yield send("as resent", "props", reconsumeTimes=5)
    yield send("of no birth", "props", bornTimestamp=0)
    yield send("with POP_CK", "props", properties=unique(11, POP_CK="1 2 3 4 5 6 7 8"))
    yield send(
        "with own region", "props", properties=unique(12, MSG_REGION="mine", TRACE_ON="false", CLUSTER="c")
    )
    yield send("delayed by 0", "delays", properties=unique(13, DELAY="0"))
    yield send("delayed by 1", "later", properties=unique(14, DELAY="1"))
    yield send("delayed by 18", "later", properties=unique(15, DELAY="18"))
    yield send("delayed by 99", "later", properties=unique(16, DELAY="99"))
    yield send("delayed by -1", "delays", properties=unique(17, DELAY="-1"))
    yield send("delayed by a word", "later", properties=unique(18, DELAY="soon"))
    yield send("timed", "timed", properties=unique(40, TIMER_DELAY_SEC="3600"))
    yield send("timed by ms", "timed", properties=unique(41, TIMER_DELAY_MS="3600000"))
    yield send("timed in the past", "past", properties=unique(42, TIMER_DELIVER_MS="1000"))
    yield send("timed by a word", "timed", properties=unique(43, TIMER_DELAY_SEC="soon"))
    yield send("timed too far away", "timed", properties=unique(44, TIMER_DELAY_SEC="259201"))
    yield send("timed and delayed", "timed", properties=unique(45, TIMER_DELAY_SEC="9", DELAY="18"))
    yield send(
        "deleting the past", "timed", properties=unique(46, TIMER_DELIVER_MS="9", TIMER_DEL_UNIQKEY="k")
    )
    yield send("that was timed", "past", properties=unique(47, TIMER_DELAY_SEC="9", TIMER_OUT_MS="1000"))
    yield from recalls()
    yield send("to a retry topic of nobody", "%RETRY%nobody")
    yield send("to a retry topic", "%RETRY%" + GROUP, maxReconsumeTimes=3)
    yield send("to a retry topic once too often", "%RETRY%" + GROUP, reconsumeTimes=17)
    yield send("to a dead-letter topic", "%DLQ%" + GROUP)
    three = [BatchMessage(b"m%d" % number, unique(20 + number).encode()) for number in range(3)]
    body = encode_batch(three)
    yield batch("of three", "batches", body=body)
    yield batch("of one", "batches", body=encode_batch(three[:1]))
    yield batch("of none", "batches", body=b"")
    yield batch("cut short", "batches", body=body[:-3])
    yield batch("of rubbish", "batches", body=b"\xff" * 40)
    yield batch("of zeros", "batches", body=bytes(40))
    yield batch("with a wrong size", "batch-size", body=b"\x00\x00\x00\x01" + body[4:])
    yield batch("to a retry topic", "%RETRY%" + GROUP, body=body)
    yield batch("to a long topic", LONGEST_NAME, body=body)
    yield batch(
        "delayed", "batch-delayed", body=encode_batch([BatchMessage(b"d", unique(30, DELAY="1").encode())])
    )
    yield batch("without ids", "batches", body=encode_batch([BatchMessage(b"d"), BatchMessage(b"e")]))
    yield send("marked as batch", "batches", body=body, batch=True)
    yield send("as batch, unmarked", "batches", body=body, code=Code.SEND_BATCH_MESSAGE)


def recalls() -> Iterable[Case]:
    """Of messages that wait, and of what is none of them."""
    hour_ms = int(time.time() * 1000) + 3_600_000

    def recall(name: str, handle: str, topic: str = "timed") -> Case:
        fields = {"producerGroup": "PG", "topic": topic, "recallHandle": handle}
        return Case(f"recall {name}", "broker", Code.RECALL_MESSAGE, fields)

    def handle(topic: str = "timed", broker: str = BROKER_NAME, at: int = hour_ms) -> str:
        return Handle(topic, broker, at, "7F000001000018B4AAC2000000000040").encode()

    yield recall("a message", handle())
    yield recall("of another topic", handle("past"))
    yield recall("of another broker", handle(broker="broker-z"))
    yield recall("too late", handle(at=1000))
    yield recall("too early", handle(at=hour_ms + 300_000_000))
    yield recall("of no topic", handle(), "nothing-there")
    yield recall("by no handle", "no handle")
    yield recall("by an empty handle", "")
    yield recall("by another version", "djIgYSBiIDEgYw==")


def _apart(cases: Iterable[Case]) -> Iterable[Case]:
    """Each to a queue of its own: whether one is stored must not move the next one's offset."""
    for number, case in enumerate(cases):
        fields = dict(case.fields or {})
        for name in ("e", "queueId"):
            if fields.get(name) == 0:
                fields[name] = number
        yield dataclasses.replace(case, fields=None if case.fields is None else fields)


# --- pulls -------------------------------------------------------------------------------------------


def pull(
    name: str, topic: str = TOPIC, offset: int = 0, *, code: int = Code.PULL_MESSAGE, **changed: Given
) -> Case:
    fields = {
        "consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG", **changed,
    }  # fmt: skip
    return Case(f"pull {name}", "broker", code, fields)


def pulls() -> Iterable[Case]:
    good = pull("all")
    yield good
    yield from twins(pull("twin", maxMsgNums=1))
    yield from spoilt(pull("spoilt"))
    yield pull("lite", code=Code.LITE_PULL_MESSAGE)
    for count in (1, 2, 0, -1, MANY):
        yield pull(f"{count}", maxMsgNums=count)
    yield pull("with a byte limit", maxMsgBytes=10)
    yield pull("with a large byte limit", "big", maxMsgBytes=1 << 30)
    for topic in ("props", "batches", "big", "made-by-sending", "delays", "unequal", LONGEST_NAME, "one"):
        yield pull(f"of {topic[:20]}", topic)
    for topic in ("bare", "made-otherwise", "made-wide", "ordered"):
        yield pull(f"of {topic}", topic)
    yield pull("at the end", offset=4)
    yield pull("behind the end", offset=5)
    yield pull("far behind the end", offset=1 << 40)
    yield pull("before the beginning", offset=-1)
    yield pull("of an empty queue", queueId=1)
    yield pull("of an empty queue at 5", queueId=1, offset=5)
    yield pull("of an empty queue at -5", queueId=1, offset=-5)
    yield pull("of queue 4", queueId=4)
    yield pull("of queue -1", queueId=-1)
    yield pull("beyond the read queues", "unequal", queueId=2)
    yield pull("of nobody", "nobody")
    yield pull("of a blank topic", "a b")
    yield pull("of no topic", "")
    yield pull("of write only", "writeonly")
    yield pull("of closed", "closed")
    yield pull("of the schedule", "SCHEDULE_TOPIC_XXXX")
    yield pull("by a new group", consumerGroup="new-group")
    yield pull("by no group", consumerGroup="")
    yield pull("by a blank group", consumerGroup="a b")
    yield pull("by a long group", consumerGroup=LONG_NAME)
    yield pull("of TagA", subscription="TagA")
    yield pull("of TagA or TagB", subscription="TagA || TagB")
    yield pull("of colliding tags", subscription="BB")
    yield pull("of an unknown tag", subscription="TagZ")
    yield pull("of separators", subscription="||")
    yield pull("of an empty subscription", subscription="")
    yield pull("of no subscription", subscription=None)
    yield pull("of no type", expressionType=None)
    yield pull("by SQL", expressionType="SQL92", subscription="a > 1")
    yield pull("by bad SQL", expressionType="SQL92", subscription="a >")
    yield pull("by an unknown type", expressionType="XPATH", subscription="//a")
    yield pull("without a subscription", sysFlag=0)
    yield pull("without a subscription by nobody", sysFlag=0, consumerGroup="never-seen")
    yield pull("with a commit", sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2)
    yield Case("offset after the pull", "broker", Code.QUERY_CONSUMER_OFFSET, _of(GROUP, TOPIC, 0))
    yield pull("of class filters", sysFlag=SUBSCRIPTION | 8)
    yield from held_pulls()


def held_pulls() -> Iterable[Case]:
    """Each to its end. Apache looks every 5 s for those whose time is up."""
    yield create("to wait at", "waited")
    yield send("to wait behind", "waited")
    yield dataclasses.replace(pull("what to wait behind", "waited"), until=0)
    wait = {"sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": 1000}
    yield pull("held at the end", "waited", 1, **wait)
    yield pull("held at an empty queue", "waited", queueId=1, **wait)
    unwanted = send("to nobody who waits", "waited", queueId=2)
    yield dataclasses.replace(
        pull("held past what is not wanted", "waited", queueId=2, subscription="TagZ", **wait),
        meanwhile=(dataclasses.replace(unwanted, connection="second"),),
    )


# --- offsets -----------------------------------------------------------------------------------------


def _of(group: str, topic: str, queue_id: int, **more: Given) -> dict[str, Any]:
    return {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more}


def offset_of(name: str, group: str, topic: str, queue_id: int, **more: Given) -> Case:
    return Case(f"offset {name}", "broker", Code.QUERY_CONSUMER_OFFSET, _of(group, topic, queue_id, **more))


def commit(name: str, group: str, topic: str, queue_id: int, offset: int) -> Case:
    fields = _of(group, topic, queue_id, commitOffset=offset)
    return Case(f"commit {name}", "broker", Code.UPDATE_CONSUMER_OFFSET, fields)


def offsets() -> Iterable[Case]:
    yield commit("first", GROUP, TOPIC, 0, 3)
    yield offset_of("committed", GROUP, TOPIC, 0)
    yield commit("backwards", GROUP, TOPIC, 0, 1)
    yield offset_of("moved back", GROUP, TOPIC, 0)
    yield commit("beyond the end", GROUP, TOPIC, 0, MANY)
    yield offset_of("beyond the end", GROUP, TOPIC, 0)
    yield commit("negative", GROUP, TOPIC, 0, -3)
    yield offset_of("negative", GROUP, TOPIC, 0)
    yield commit("at last", GROUP, TOPIC, 0, 2)
    yield commit("of no queue", GROUP, TOPIC, 77, 2)
    yield offset_of("of no queue", GROUP, TOPIC, 77)
    yield commit("of queue -1", GROUP, TOPIC, -1, 2)
    yield commit("of no topic", GROUP, "nobody", 0, 2)
    yield commit("of a blank topic", GROUP, "a b", 0, 2)
    yield commit("by a new group", "committers", TOPIC, 0, 2)
    yield commit("by a blank group", "a b", TOPIC, 0, 2)
    yield offset_of("of a new group", "unborn", TOPIC, 0)
    yield offset_of("of a new group in an empty queue", "unborn", TOPIC, 1)
    yield offset_of("of a new group, zero if not found", "unborn", TOPIC, 0, setZeroIfNotFound=True)
    yield offset_of("of a new group, nothing if not found", "unborn", TOPIC, 0, setZeroIfNotFound=False)
    yield offset_of("of no topic", GROUP, "nobody", 0)
    yield offset_of("of no queue at all", GROUP, TOPIC, 99)
    yield offset_of("of a blank group", "a b", TOPIC, 0)
    yield from spoilt(offset_of("spoilt", GROUP, TOPIC, 0))
    yield from spoilt(commit("spoilt", GROUP, "one", 0, 1))
    yield from twins(commit("twin", GROUP, "one", 0, 1))
    for name, code in (
        ("max", Code.GET_MAX_OFFSET),
        ("min", Code.GET_MIN_OFFSET),
        ("earliest", Code.GET_EARLIEST_MSG_STORETIME),
    ):
        for topic, queue_id in (
            (TOPIC, 0),
            (TOPIC, 1),
            (TOPIC, 99),
            (TOPIC, -1),
            ("nobody", 0),
            ("a b", 0),
            ("delays", 0),
        ):
            yield Case(f"{name} of {topic} {queue_id}", "broker", code, {"topic": topic, "queueId": queue_id})
        yield from spoilt(Case(f"{name} spoilt", "broker", code, {"topic": TOPIC, "queueId": 0}))
    yield Case(
        "max uncommitted", "broker", Code.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0, "committed": False}
    )
    for timestamp in (0, -1, BORN_MS, 1 << 50):
        for boundary in (None, "LOWER", "UPPER", "upper", "middle"):
            yield _search(f"{timestamp} {boundary}", timestamp, boundaryType=boundary)
    yield _search("in an empty queue", 0, queueId=1)
    yield _search("in an empty queue, late", 1 << 50, queueId=1)
    yield _search("in no queue", 0, queueId=99)
    yield _search("in no topic", 0, topic="nobody")
    yield from spoilt(_search("spoilt", 0))


def _search(name: str, timestamp: int, **changed: Given) -> Case:
    fields = {"topic": TOPIC, "queueId": 0, "timestamp": timestamp, **changed}
    return Case(f"search {name}", "broker", Code.SEARCH_OFFSET_BY_TIMESTAMP, fields)


# --- looking for messages ----------------------------------------------------------------------------


def place(case: str) -> Given:
    """The place in the log that the reply to a send spoke of."""
    return lambda seen: int(seen[case].fields["msgId"][-16:], 16) if _sent(seen, case) else -5


def message_id(case: str) -> Given:
    return lambda seen: seen[case].fields["msgId"] if _sent(seen, case) else "none"


def _sent(seen: Seen, case: str) -> bool:
    return case in seen and bool(seen[case].fields)


def query(name: str, key: str, **changed: Given) -> Case:
    fields = {
        "topic": TOPIC, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 50, **changed
    }  # fmt: skip
    return Case(f"query {name}", "broker", Code.QUERY_MESSAGE, fields, until=changed.pop("until", None))


def queries() -> Iterable[Case]:
    found = query("k1", "k1")
    yield Case(found.name, found.where, found.code, found.fields, until=0)
    yield query("k2", "k2", maxNum=1)
    yield query("of a unique key", "7F000001000018B4AAC2000000000001", _UNIQUE_KEY_QUERY=True)
    yield query("of many", "7F000001000018B4AAC20000000000AA", topic="props", _UNIQUE_KEY_QUERY=True)
    yield query("of the last", "k1", maxNum=0)
    yield query("of -1", "k1", maxNum=-1)
    yield query("of a million", "k1", maxNum=MANY)
    yield query("of nothing", "nothing")
    yield query("of no key", "")
    yield query("in no topic", "k1", topic="nobody")
    yield query("in the past", "k1", endTimestamp=1)
    yield query("in the future", "k1", beginTimestamp=1 << 50)
    yield query("back in time", "k1", beginTimestamp=1 << 50, endTimestamp=0)
    yield query("of a type", "k1", indexType="K")
    yield from spoilt(query("spoilt", "k1"))
    yield view("right", place("send V2"))
    for offset in (-1, 7, 1 << 40):
        yield view(f"{offset}", offset)
    yield from spoilt(view("spoilt", 7))


def view(name: str, offset: Given) -> Case:
    return Case(f"view {name}", "broker", Code.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": TOPIC})

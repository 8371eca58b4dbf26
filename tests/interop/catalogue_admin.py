"""The catalogue's second half: clients, groups, statistics and administration of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hotfire.protocol.codes import RequestCode as Code
from tests.interop.asking import Case, Given, spoilt, twins
from tests.interop.catalogue import (
    BROKER_NAME,
    GROUP,
    LONG_NAME,
    LONGEST_GROUP,
    TOPIC,
    _json,
    create,
    message_id,
    offset_of,
    place,
    pull,
    send,
    unique,
)

CLIENT = "10.0.0.5@4711#1"
OTHER_CLIENT = "10.0.0.6@4711#2"
MEMBERS = "members"


def ask(name: str, code: int, **fields: Given) -> Case:
    return Case(name, "broker", code, fields or None)


# --- groups ------------------------------------------------------------------------------------------


def group_config(name: str, **changed: object) -> dict[str, Any]:
    return {
        "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
        "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
        "groupName": name, "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1, **changed,
    }  # fmt: skip


def groups() -> Iterable[Case]:
    code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    yield _json("create group", code, group_config(GROUP))
    yield _json("create group again", code, group_config(GROUP))
    yield _json("create group disabled", code, group_config("disabled", consumeEnable=False))
    yield _json("create group of short retries", code, group_config("impatient", retryMaxTimes=1))
    yield _json("create group without retries", code, group_config("careless", retryQueueNums=0))
    yield _json(
        "create group without broadcasting", code, group_config("quiet", consumeBroadcastEnable=False)
    )
    yield _json("create group of members", code, group_config(MEMBERS))
    yield _json("create group of the longest name", code, group_config(LONGEST_GROUP))
    yield _json("create group of too long a name", code, group_config(LONG_NAME))
    yield _json("create group of a very long name", code, group_config(LONG_NAME * 2))
    yield _json("create group of a blank name", code, group_config("a b"))
    yield _json("create group of no name", code, group_config(""))
    yield _json("create group of a slashed name", code, group_config("../etc"))
    yield _json("create group with attributes", code, group_config("typed", attributes={"+a": "b"}))
    yield _json("create group of nothing", code, {})
    yield _json("create group by its name alone", code, {"groupName": "bare"})
    yield _json(
        "create group of negative numbers",
        code,
        group_config("negative", retryMaxTimes=-5, retryQueueNums=-5),
    )
    yield Case("create group, no body", "broker", code)
    yield Case("create group, not JSON", "broker", code, body=b"groups")
    several = {"groupConfigList": [group_config("first"), group_config("second")]}
    yield _json("create groups", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, several)
    yield _json("create groups, none", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": []})
    yield Case("create groups, no body", "broker", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    for name in (GROUP, "disabled", "bare", "negative", "CID_RMQ_SYS_x", "TOOLS_CONSUMER"):
        yield ask(f"group config of {name}", Code.GET_SUBSCRIPTIONGROUP_CONFIG, group=name)
    yield ask("group config of nobody", Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="nobody at all")
    yield ask("group config, no fields", Code.GET_SUBSCRIPTIONGROUP_CONFIG)
    yield pull("by a disabled group", consumerGroup="disabled")
    yield ask("forbidden", Code.UPDATE_AND_GET_GROUP_FORBIDDEN, group=GROUP, topic=TOPIC)
    yield ask("forbid", Code.UPDATE_AND_GET_GROUP_FORBIDDEN, group="first", topic=TOPIC, readable=False)
    yield ask("forbidden now", Code.UPDATE_AND_GET_GROUP_FORBIDDEN, group="first", topic=TOPIC)
    yield ask("allow", Code.UPDATE_AND_GET_GROUP_FORBIDDEN, group="first", topic=TOPIC, readable=True)


# --- clients -----------------------------------------------------------------------------------------


def subscription(topic: str, expression: str = "*", version: int = 1) -> dict[str, Any]:
    return {
        "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": expression,
        "subVersion": version, "tagsSet": [], "topic": topic,
    }  # fmt: skip


def heartbeat(
    name: str, client: str = CLIENT, *, group: str = MEMBERS, connection: str = "member", **changed: object
) -> Case:
    tree = {
        "clientID": client,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
                "groupName": group, "messageModel": "CLUSTERING", "unitMode": False,
                "subscriptionDataSet": [subscription(TOPIC, "TagA")], **changed,
            }
        ],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": "writers"}],
        "withoutSub": False,
    }  # fmt: skip
    return _json(f"heartbeat {name}", Code.HEART_BEAT, tree, connection=connection)


def mq(topic: str = TOPIC, queue_id: int = 0, broker: str = BROKER_NAME) -> dict[str, Any]:
    return {"brokerName": broker, "queueId": queue_id, "topic": topic}


def lock(
    name: str, client: str, *queues: dict[str, Any], code: int = Code.LOCK_BATCH_MQ, **changed: object
) -> Case:
    tree = {
        "clientId": client,
        "consumerGroup": MEMBERS,
        "mqSet": list(queues),
        "onlyThisBroker": False,
        **changed,
    }
    return _json(f"lock {name}", code, tree)


def clients() -> Iterable[Case]:
    yield ask("members of an empty group", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=MEMBERS)
    yield ask("connections of an empty group", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup=MEMBERS)
    yield ask("producers of an empty group", Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="nobody")
    yield heartbeat("of a member")
    yield heartbeat("of a member again")
    yield ask("members", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=MEMBERS)
    yield ask("members of nobody", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody")
    yield from spoilt(ask("members spoilt", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=MEMBERS))
    yield ask("connections", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup=MEMBERS)
    yield ask("connections of nobody", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="nobody")
    yield from spoilt(ask("connections spoilt", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup=MEMBERS))
    yield ask("producers", Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="writers")
    yield from spoilt(ask("producers spoilt", Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="writers"))
    yield ask("all producers", Code.GET_ALL_PRODUCER_INFO)
    yield pull("by a member", sysFlag=0, consumerGroup=MEMBERS, subVersion=1)
    yield pull("by a member of a later version", sysFlag=0, consumerGroup=MEMBERS, subVersion=2)
    yield pull(
        "by a member of what it did not subscribe", "one", sysFlag=0, consumerGroup=MEMBERS, subVersion=1
    )
    yield heartbeat(
        "of a broadcaster", "10.0.0.7@1#1", group="quiet", connection="quiet", messageModel="BROADCASTING"
    )
    yield pull("by a forbidden broadcaster", sysFlag=0, consumerGroup="quiet", subVersion=1)
    yield heartbeat("of a new group", "10.0.0.8@1#1", group="newcomers", connection="newcomer")
    yield ask("retry topic of a new group", Code.GET_TOPIC_CONFIG, topic="%RETRY%newcomers")
    yield heartbeat("of a blank group", "10.0.0.9@1#1", group="a b", connection="blank")
    code = Code.HEART_BEAT
    yield _json(
        "heartbeat of a producer",
        code,
        {"clientID": "p@1", "producerDataSet": [{"groupName": "makers"}]},
        connection="maker",
    )
    yield _json("heartbeat of nobody", code, {"clientID": "n@1"}, connection="none")
    yield _json(
        "heartbeat without a client", code, {"consumerDataSet": [], "producerDataSet": []}, connection="none"
    )
    yield _json("heartbeat of nothing", code, {}, connection="none")
    yield Case("heartbeat, no body", "broker", code, connection="none")
    yield Case("heartbeat, not JSON", "broker", code, body=b"beat", connection="none")
    yield Case("heartbeat, an array", "broker", code, body=b"[1]", connection="none")
    check = {"clientId": CLIENT, "group": MEMBERS, "subscriptionData": subscription(TOPIC)}
    yield _json("check by tag", Code.CHECK_CLIENT_CONFIG, check)
    sql = {**subscription(TOPIC, "a > 1"), "expressionType": "SQL92"}
    yield _json("check by SQL", Code.CHECK_CLIENT_CONFIG, {**check, "subscriptionData": sql})
    yield _json("check of no subscription", Code.CHECK_CLIENT_CONFIG, {"clientId": CLIENT})
    yield Case("check, no body", "broker", Code.CHECK_CLIENT_CONFIG)
    yield Case("check, not JSON", "broker", Code.CHECK_CLIENT_CONFIG, body=b"check")
    yield from locks()
    yield ask("running info", Code.GET_CONSUMER_RUNNING_INFO, consumerGroup=MEMBERS, clientId="nobody")
    yield ask(
        "running info of nobody", Code.GET_CONSUMER_RUNNING_INFO, consumerGroup="nobody", clientId="nobody"
    )
    yield ask("running info, no fields", Code.GET_CONSUMER_RUNNING_INFO)
    yield ask(
        "consume directly at nobody",
        Code.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=MEMBERS,
        clientId="nobody",
        msgId=message_id("send V2"),
    )
    yield ask(
        "consume directly of no id",
        Code.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=MEMBERS,
        clientId="nobody",
        msgId="x",
    )
    yield ask("unregister", Code.UNREGISTER_CLIENT, clientID="10.0.0.8@1#1", consumerGroup="newcomers")
    yield ask(
        "unregister nobody",
        Code.UNREGISTER_CLIENT,
        clientID="nobody",
        producerGroup="nobody",
        consumerGroup="nobody",
    )
    yield from spoilt(
        ask("unregister spoilt", Code.UNREGISTER_CLIENT, clientID="nobody", producerGroup="nobody")
    )


def locks() -> Iterable[Case]:
    yield lock("two", CLIENT, mq(), mq(queue_id=1))
    yield lock("two again", CLIENT, mq(), mq(queue_id=1))
    yield lock("by another", OTHER_CLIENT, mq(), mq(queue_id=2))
    yield lock("what does not exist", CLIENT, mq(queue_id=99), mq("nobody"), mq(broker="elsewhere"))
    yield lock("nothing", CLIENT)
    yield lock("by nobody's group", CLIENT, mq(), consumerGroup="nobody")
    yield lock("loose", CLIENT, mq(), code=Code.UNLOCK_BATCH_MQ)
    yield lock("what was let loose", OTHER_CLIENT, mq())
    yield lock("loose another's", OTHER_CLIENT, mq(queue_id=1), code=Code.UNLOCK_BATCH_MQ)
    yield lock("what is still held", OTHER_CLIENT, mq(queue_id=1))
    for name, code in (("lock", Code.LOCK_BATCH_MQ), ("unlock", Code.UNLOCK_BATCH_MQ)):
        yield Case(f"{name}, no body", "broker", code)
        yield Case(f"{name}, not JSON", "broker", code, body=b"lock")
        yield _json(f"{name} of nothing", code, {})


# --- send back ---------------------------------------------------------------------------------------


def send_back(name: str, group: str, offset: Given, **changed: Given) -> Case:
    fields = {
        "offset": offset, "group": group, "delayLevel": 0, "originMsgId": "id", "originTopic": TOPIC,
        "unitMode": False, "maxReconsumeTimes": 16, **changed,
    }  # fmt: skip
    return Case(f"send back {name}", "broker", Code.CONSUMER_SEND_MSG_BACK, fields)


def sends_back() -> Iterable[Case]:
    first = place("send V2")
    yield send_back("one", GROUP, first)
    yield send_back("at level 1", "impatient", first, delayLevel=1)
    yield send_back("to the dead letters", "impatient", first, delayLevel=-1)
    yield send_back("past its attempts", "impatient", first, maxReconsumeTimes=0)
    yield send_back("of a careless group", "careless", first)
    yield send_back("of nobody", "nobody-back", first)
    yield send_back("of a blank group", "a b", first)
    yield send_back("from nowhere", GROUP, 1 << 40)
    yield send_back("from before", GROUP, -1)
    yield send_back("at level 99", GROUP, first, delayLevel=99)
    yield from spoilt(send_back("spoilt", GROUP, 7))
    yield pull("of the dead letters", "%DLQ%impatient", consumerGroup="impatient")
    yield ask("config of the dead letters", Code.GET_TOPIC_CONFIG, topic="%DLQ%impatient")
    yield ask("config of the retries", Code.GET_TOPIC_CONFIG, topic="%RETRY%" + GROUP)


# --- statistics and looks inside ---------------------------------------------------------------------


def statistics() -> Iterable[Case]:
    for topic in (TOPIC, "one", "unequal", "closed", "nobody"):
        yield ask(f"topic stats of {topic}", Code.GET_TOPIC_STATS_INFO, topic=topic)
    yield from spoilt(ask("topic stats spoilt", Code.GET_TOPIC_STATS_INFO, topic=TOPIC))
    stats = Code.GET_CONSUME_STATS
    yield ask("consume stats", stats, consumerGroup=GROUP, topic=TOPIC)
    yield ask("consume stats of all topics", stats, consumerGroup=MEMBERS)
    yield ask("consume stats of a list", stats, consumerGroup=GROUP, topicList=f"{TOPIC};one")
    yield ask("consume stats of nobody", stats, consumerGroup="nobody", topic="nobody")
    yield ask("consume stats, no fields", stats)
    yield ask("all consume stats", Code.GET_BROKER_CONSUME_STATS, isOrder=False)
    yield ask("all consume stats in order", Code.GET_BROKER_CONSUME_STATS, isOrder=True)
    yield ask("all consume stats, no fields", Code.GET_BROKER_CONSUME_STATS)
    yield ask("groups of a topic", Code.QUERY_TOPIC_CONSUME_BY_WHO, topic=TOPIC)
    yield ask("groups of nothing", Code.QUERY_TOPIC_CONSUME_BY_WHO, topic="nobody")
    yield ask("groups, no fields", Code.QUERY_TOPIC_CONSUME_BY_WHO)
    yield ask("topics of a group", Code.QUERY_TOPICS_BY_CONSUMER, group=GROUP)
    yield ask("topics of nobody", Code.QUERY_TOPICS_BY_CONSUMER, group="nobody")
    yield ask("subscription of a group", Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group=MEMBERS, topic=TOPIC)
    yield ask("subscription of nobody", Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group="nobody", topic=TOPIC)
    yield ask("time span", Code.QUERY_CONSUME_TIME_SPAN, topic=TOPIC, group=GROUP)
    yield ask("time span of nothing", Code.QUERY_CONSUME_TIME_SPAN, topic="nobody", group=GROUP)
    yield ask(
        "correction", Code.QUERY_CORRECTION_OFFSET, topic=TOPIC, compareGroup=GROUP, filterGroups=MEMBERS
    )
    yield ask("correction of nobody", Code.QUERY_CORRECTION_OFFSET, topic="nobody", compareGroup="nobody")
    for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
        yield ask(f"figures of {name}", Code.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=TOPIC)
    yield ask(
        "figures of a group",
        Code.VIEW_BROKER_STATS_DATA,
        statsName="GROUP_GET_NUMS",
        statsKey=f"{TOPIC}@{GROUP}",
    )
    yield ask(
        "figures of nothing", Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="nobody"
    )
    yield ask("figures of no such kind", Code.VIEW_BROKER_STATS_DATA, statsName="NONE", statsKey=TOPIC)
    yield ask("figures, no fields", Code.VIEW_BROKER_STATS_DATA)
    entries = Code.QUERY_CONSUME_QUEUE
    yield ask("queue entries", entries, topic=TOPIC, queueId=0, index=0, count=2)
    yield ask(
        "queue entries of a group", entries, topic=TOPIC, queueId=0, index=0, count=2, consumerGroup=MEMBERS
    )
    yield ask("queue entries of nothing", entries, topic="nobody", queueId=0, index=0, count=2)
    yield ask("queue entries beyond", entries, topic=TOPIC, queueId=0, index=100, count=2)
    yield ask("queue entries, no fields", entries)
    yield ask("system topics", Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    yield ask("all topics", Code.GET_ALL_TOPIC_CONFIG)
    yield ask("all groups", Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    yield ask("all offsets", Code.GET_ALL_CONSUMER_OFFSET)
    yield ask("all delay offsets", Code.GET_ALL_DELAY_OFFSET)
    yield ask("timer checkpoint", Code.GET_TIMER_CHECK_POINT)
    yield ask("timer metrics", Code.GET_TIMER_METRICS)
    yield ask("all request modes", Code.GET_ALL_MESSAGE_REQUEST_MODE)
    yield ask("runtime", Code.GET_BROKER_RUNTIME_INFO)
    yield ask("settings", Code.GET_BROKER_CONFIG)


# --- changing things ---------------------------------------------------------------------------------


def reset(name: str, topic: str = TOPIC, group: str = GROUP, timestamp: int = -1, **more: Given) -> Case:
    return ask(
        f"reset {name}",
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        topic=topic,
        group=group,
        timestamp=timestamp,
        isForce=True,
        **more,
    )


def changes() -> Iterable[Case]:
    yield reset("to the end")
    yield offset_of("before the reset is taken", GROUP, TOPIC, 0)
    yield pull("after the reset", offset=2)
    yield pull("after the reset was told", offset=2)
    yield reset("to the beginning", timestamp=0)
    yield pull("after the reset to the beginning", offset=2)
    yield reset("of one queue", queueId=0, offset=1)
    yield reset("of one queue beyond", queueId=0, offset=1000)
    yield reset("of one queue to no number", queueId=0)
    yield reset("of no topic", topic="nobody")
    yield reset("of no group", group="nobody-resets")
    yield from spoilt(reset("spoilt", "one"))
    yield ask(
        "status of nobody",
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        topic=TOPIC,
        group="nobody",
        clientAddr="",
    )
    yield ask("clone", Code.CLONE_GROUP_OFFSET, srcGroup=GROUP, destGroup="clones", topic=TOPIC)
    yield offset_of("of the clone", "clones", TOPIC, 0)
    yield ask("clone of nobody", Code.CLONE_GROUP_OFFSET, srcGroup="nobody", destGroup="clones2")
    yield ask("clone, no fields", Code.CLONE_GROUP_OFFSET)
    update = Code.UPDATE_BROKER_CONFIG
    yield Case("set", "broker", update, body=b"defaultTopicQueueNums=6\n")
    yield Case("set nothing", "broker", update)
    yield Case("set a path", "broker", update, body=b"brokerConfigPath=/etc/passwd\n")
    yield Case("set the kind of path", "broker", update, body=b"storePathRootDir=/etc\n")
    yield Case("set rubbish", "broker", update, body=b"\x00\xff\n")
    yield Case("set a word for a number", "broker", update, body=b"defaultTopicQueueNums=many\n")
    yield Case("set what is not known", "broker", update, body=b"noSuchSetting=1\n")
    for name, code in (
        ("clean expired queues", Code.CLEAN_EXPIRED_CONSUMEQUEUE),
        ("clean unused topics", Code.CLEAN_UNUSED_TOPIC),
        ("delete expired segments", Code.DELETE_EXPIRED_COMMITLOG),
    ):
        yield ask(name, code)
    yield create("to be deleted", "doomed")
    yield send("to what will be deleted", "doomed", properties=unique(40))
    for topic in ("doomed", "nobody", "TBW102", "SCHEDULE_TOPIC_XXXX", "", "a b", LONG_NAME):
        yield ask(f"delete topic {topic[:20]!r}", Code.DELETE_TOPIC_IN_BROKER, topic=topic)
    yield ask("delete topic, no fields", Code.DELETE_TOPIC_IN_BROKER)
    yield ask("config of what was deleted", Code.GET_TOPIC_CONFIG, topic="doomed")
    yield pull("of what was deleted", "doomed")
    for group in ("second", "nobody", ""):
        yield ask(f"delete group {group!r}", Code.DELETE_SUBSCRIPTIONGROUP, groupName=group, cleanOffset=True)
    yield ask("delete group, no fields", Code.DELETE_SUBSCRIPTIONGROUP)
    yield ask("config of the deleted group", Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def unknown() -> Iterable[Case]:
    for code in (
        Code.QUERY_BROKER_OFFSET, Code.GET_TOPIC_CONFIG_LIST, Code.GET_TOPIC_NAME_LIST,
        Code.TRIGGER_DELETE_FILES, Code.GET_CLIENT_CONFIG, Code.SUSPEND_CONSUMER,
        Code.WHO_CONSUME_THE_MESSAGE,
        16, 999, 0, -1, 32767, 1 << 30,
    ):  # fmt: skip
        yield ask(f"unknown {int(code)}", code)
    for code in (Code.GET_ROUTEINFO_BY_TOPIC, Code.REGISTER_BROKER, Code.PUT_KV_CONFIG):
        yield ask(f"asked of the wrong server {int(code)}", code, topic=TOPIC)
    yield from twins(ask("unknown", 998))


def administration() -> Iterable[Case]:
    yield from clients()
    yield from sends_back()
    yield from statistics()
    yield from changes()
    yield from unknown()

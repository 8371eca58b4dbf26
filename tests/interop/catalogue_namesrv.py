"""The catalogue's third part: what brokers, clients and administrators ask a name server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hotfire.protocol.codes import RequestCode as Code
from tests.interop.asking import Case, Given, spoilt, twins
from tests.interop.catalogue import BROKER_NAME, CLUSTER, LONG_NAME, TOPIC, _config

V4_9_3, V4_9_4 = 399, 401
VERSION_OF_TABLE = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}


def ask(name: str, code: int, *, body: bytes = b"", connection: str = "first", **fields: Given) -> Case:
    return Case(name, "namesrv", code, fields or None, body, connection=connection)


def route(name: str, topic: str, **rest: Any) -> Case:
    return Case(f"route {name}", "namesrv", Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, **rest)


def routes() -> Iterable[Case]:
    yield route("of a topic", TOPIC)
    yield route("for an old client", TOPIC, version=V4_9_3)
    yield route("for a client of 4.9.4", TOPIC, version=V4_9_4)
    strict = {"topic": TOPIC, "acceptStandardJsonOnly": True}
    yield Case("route in strict JSON", "namesrv", Code.GET_ROUTEINFO_BY_TOPIC, strict, version=V4_9_3)
    for name in ("nobody", "", "a b", LONG_NAME, "TBW102", CLUSTER, BROKER_NAME, "SELF_TEST_TOPIC"):
        yield route(f"of {name[:20]!r}", name)
    yield from spoilt(route("spoilt", TOPIC))
    yield from twins(route("twin", TOPIC))
    yield ask("cluster", Code.GET_BROKER_CLUSTER_INFO)
    yield ask("all topics of the names", Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    yield ask("topics of the cluster", Code.GET_TOPICS_BY_CLUSTER, cluster=CLUSTER)
    yield ask("topics of no cluster", Code.GET_TOPICS_BY_CLUSTER, cluster="nowhere")
    yield ask("topics of a cluster, no fields", Code.GET_TOPICS_BY_CLUSTER)
    yield ask("system topics of the names", Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    yield ask("unit topics", Code.GET_UNIT_TOPIC_LIST)
    yield ask("unit subscriptions", Code.GET_HAS_UNIT_SUB_TOPIC_LIST)
    yield ask("unit subscriptions of others", Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    yield ask("member group", Code.GET_BROKER_MEMBER_GROUP, clusterName=CLUSTER, brokerName=BROKER_NAME)
    yield ask(
        "member group of nobody", Code.GET_BROKER_MEMBER_GROUP, clusterName=CLUSTER, brokerName="nobody"
    )
    yield ask("member group, no fields", Code.GET_BROKER_MEMBER_GROUP)


def values() -> Iterable[Case]:
    yield ask("value of nothing", Code.GET_KV_CONFIG, namespace="mine", key="k")
    yield ask("values of nothing", Code.GET_KVLIST_BY_NAMESPACE, namespace="mine")
    yield ask("delete nothing", Code.DELETE_KV_CONFIG, namespace="mine", key="k")
    yield ask("put", Code.PUT_KV_CONFIG, namespace="mine", key="k", value="v")
    yield ask("put again", Code.PUT_KV_CONFIG, namespace="mine", key="k", value="w")
    yield ask("value", Code.GET_KV_CONFIG, namespace="mine", key="k")
    yield ask("value of another key", Code.GET_KV_CONFIG, namespace="mine", key="other")
    yield ask("values", Code.GET_KVLIST_BY_NAMESPACE, namespace="mine")
    yield ask("delete", Code.DELETE_KV_CONFIG, namespace="mine", key="k")
    yield ask("value after it was deleted", Code.GET_KV_CONFIG, namespace="mine", key="k")
    yield ask("values after all were deleted", Code.GET_KVLIST_BY_NAMESPACE, namespace="mine")
    yield from spoilt(ask("put spoilt", Code.PUT_KV_CONFIG, namespace="mine", key="k", value="v"))
    yield from spoilt(ask("value spoilt", Code.GET_KV_CONFIG, namespace="mine", key="k"))
    yield from spoilt(ask("delete spoilt", Code.DELETE_KV_CONFIG, namespace="mine", key="k"))
    yield ask("values, no fields", Code.GET_KVLIST_BY_NAMESPACE)
    yield ask("put wide text", Code.PUT_KV_CONFIG, namespace="ü", key="漢", value='🔥 " \\ \n')
    yield ask("value of wide text", Code.GET_KV_CONFIG, namespace="ü", key="漢")
    yield ask("values of wide text", Code.GET_KVLIST_BY_NAMESPACE, namespace="ü")


def registration(name: str, broker: str, topics: Iterable[str], **changed: Given) -> Case:
    table = {topic: _config(topic) for topic in topics}
    body = {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": VERSION_OF_TABLE, "mappingDataVersion": VERSION_OF_TABLE,
            "topicConfigTable": table,
            "topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {},
        },
    }  # fmt: skip
    fields = {
        **_broker(broker),
        "haServerAddr": "10.9.9.9:10912",
        "compressed": False,
        "bodyCrc32": 0,
        **changed,
    }
    return ask(
        f"register {name}", Code.REGISTER_BROKER, body=json.dumps(body).encode(), connection=broker, **fields
    )


def _broker(name: str, broker_id: int = 0) -> dict[str, Any]:
    address = f"10.9.9.{9 + broker_id}:10911"
    return {"brokerName": name, "brokerAddr": address, "clusterName": "Second", "brokerId": broker_id}


def brokers() -> Iterable[Case]:
    yield registration("a broker", "made-up", ["theirs", "both"])
    yield registration("it again", "made-up", ["theirs", "both"])
    yield registration("its slave", "made-up", ["theirs", "both"], **_broker("made-up", 1))
    yield route("of another broker", "theirs")
    yield ask("cluster of two", Code.GET_BROKER_CLUSTER_INFO)
    yield ask("member group of two", Code.GET_BROKER_MEMBER_GROUP, clusterName="Second", brokerName="made-up")
    yield ask("topics of the second cluster", Code.GET_TOPICS_BY_CLUSTER, cluster="Second")
    yield ask("system topics of two", Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    version = json.dumps(VERSION_OF_TABLE).encode()
    yield ask(
        "same version", Code.QUERY_DATA_VERSION, body=version, connection="made-up", **_broker("made-up")
    )
    other = json.dumps({**VERSION_OF_TABLE, "counter": 2}).encode()
    yield ask(
        "other version", Code.QUERY_DATA_VERSION, body=other, connection="made-up", **_broker("made-up")
    )
    yield ask("version of nobody", Code.QUERY_DATA_VERSION, body=version, **_broker("nobody", 5))
    yield ask("version, no body", Code.QUERY_DATA_VERSION, **_broker("made-up"))
    yield ask("heartbeat of a broker", Code.BROKER_HEARTBEAT, connection="made-up", **_broker("made-up"))
    yield ask("heartbeat of no broker", Code.BROKER_HEARTBEAT, **_broker("nobody", 5))
    yield ask("wipe", Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="made-up")
    yield route("after the wipe", "theirs")
    yield ask("wipe again", Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="made-up")
    yield ask("unwipe", Code.ADD_WRITE_PERM_OF_BROKER, brokerName="made-up")
    yield route("after the wipe was undone", "theirs")
    yield ask("wipe nobody", Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="nobody")
    yield ask("unwipe nobody", Code.ADD_WRITE_PERM_OF_BROKER, brokerName="nobody")
    yield ask("wipe, no fields", Code.WIPE_WRITE_PERM_OF_BROKER)
    yield ask("delete a topic of the names", Code.DELETE_TOPIC_IN_NAMESRV, topic="both")
    yield route("of the deleted", "both")
    yield ask(
        "delete a topic of a cluster", Code.DELETE_TOPIC_IN_NAMESRV, topic="theirs", clusterName="nowhere"
    )
    yield ask("delete nobody's topic", Code.DELETE_TOPIC_IN_NAMESRV, topic="nobody")
    yield ask("delete a topic, no fields", Code.DELETE_TOPIC_IN_NAMESRV)
    queues = {
        "queueDatas": [
            {"brokerName": "made-up", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0}
        ]
    }
    yield ask(
        "register a topic", Code.REGISTER_TOPIC_IN_NAMESRV, topic="single", body=json.dumps(queues).encode()
    )
    yield route("of the registered topic", "single")
    yield ask("register a topic, no body", Code.REGISTER_TOPIC_IN_NAMESRV, topic="single2")
    yield from spoilt(registration("spoilt", "spoilt-broker", ["s"]))
    yield ask(
        "register, no body", Code.REGISTER_BROKER, connection="bare", haServerAddr="", **_broker("bare", 3)
    )
    yield ask(
        "register, not JSON",
        Code.REGISTER_BROKER,
        body=b"{",
        connection="bare",
        haServerAddr="",
        **_broker("bare", 3),
    )
    yield registration("with a wrong checksum", "wrong", ["w1", "w2"], bodyCrc32=12345, **_broker("wrong", 4))
    yield ask("unregister a broker", Code.UNREGISTER_BROKER, connection="made-up", **_broker("made-up"))
    yield ask("unregister its slave", Code.UNREGISTER_BROKER, connection="made-up", **_broker("made-up", 1))
    yield Case("route of what left", "namesrv", Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "theirs"}, until=17)
    yield ask("unregister no broker", Code.UNREGISTER_BROKER, **_broker("nobody", 5))
    yield ask("unregister a broker, no fields", Code.UNREGISTER_BROKER)


def settings() -> Iterable[Case]:
    yield ask("settings of the names", Code.GET_NAMESRV_CONFIG)
    update = Code.UPDATE_NAMESRV_CONFIG
    yield ask("set nothing of the names", update)
    yield ask("set the names", update, body=b"enableAllTopicList=true\n")
    yield ask("set a path of the names", update, body=b"kvConfigPath=/etc/passwd\n")
    yield ask("set the path of the names", update, body=b"configStorePath=/etc/passwd\n")
    yield ask("set what the names do not know", update, body=b"noSuchSetting=1\n")


def unknown() -> Iterable[Case]:
    for code in (Code.SEND_MESSAGE_V2, Code.PULL_MESSAGE, Code.HEART_BEAT, 999, 0, -1, 1 << 30):
        yield ask(f"unknown to the names {int(code)}", code, topic=TOPIC)


def names() -> Iterable[Case]:
    yield from routes()
    yield from values()
    yield from brokers()
    yield from settings()
    yield from unknown()

"""Lists of topics, members and clusters, and what an administrator may change."""

from hotfire.model import (
    DataVersion,
    QueueData,
    RouteData,
    TopicConfig,
)
from hotfire.namesrv.config import NameServerConfig
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    MemberGroupReply,
    TopicList,
    decode_body,
    encode_body,
)
from hotfire.protocol.command import Command
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U, queues


def test_write_permission_is_taken_from_one_broker_and_given_back() -> None:
    """Wiping changes perm 6 to 4 for every topic of that broker only, and counts them."""
    asked = Asked()
    asked.register(FakeBroker("broker-a"), [T, U])
    asked.register(FakeBroker("broker-b", port=20911), [T, TopicConfig("V")])
    wiped = asked.ask(requests.WipeWritePermOfBroker(broker_name="broker-a"))
    assert wiped.fields == {"wipeTopicCount": "2"}
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 4), ("broker-b", 4, 4, 6)]
    assert queues(asked.route("U")) == [("broker-a", 8, 8, 4)]
    given = asked.ask(requests.AddWritePermOfBroker(broker_name="broker-a"))
    assert given.fields == {"addTopicCount": "2"}
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 6), ("broker-b", 4, 4, 6)]
    assert asked.ask(requests.WipeWritePermOfBroker(broker_name="nobody")).fields == {"wipeTopicCount": "0"}


def test_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    """With a cluster name only that cluster's brokers lose the topic."""
    asked = Asked()
    asked.register(FakeBroker("broker-a"), [T, U])
    asked.register(FakeBroker("broker-b", port=20911, cluster="Second"), [T, U])
    asked.ask(requests.DeleteTopicInNamesrv(topic="T", cluster_name="Second"))
    assert [name for name, *_ in queues(asked.route("T"))] == ["broker-a"]
    asked.ask(requests.DeleteTopicInNamesrv(topic="T", cluster_name="Nowhere"))
    assert asked.route("T") is not None
    asked.ask(requests.DeleteTopicInNamesrv(topic="U"))
    assert asked.route("U") is None


def topic_list(asked: Asked, request: requests.Request) -> tuple[str, ...]:
    reply = asked.ask(request)
    assert (reply.code, reply.fields) == (0, None)
    return decode_body(TopicList, reply.body).topics


def test_lists_of_topics() -> None:
    """All topics, those of a cluster, the system's own, and those by unit flags."""
    asked = Asked()
    asked.register(FakeBroker("broker-a"), [T, TopicConfig("Unit", sys_flag=1)])
    asked.register(
        FakeBroker("broker-b", port=20911, cluster="Second"),
        [TopicConfig("Sub", sys_flag=2), TopicConfig("Both", sys_flag=3)],
    )
    assert topic_list(asked, requests.GetAllTopicListFromNameserver()) == ("Both", "Sub", "T", "Unit")
    assert topic_list(asked, requests.GetTopicsByCluster(cluster="Second")) == ("Both", "Sub")
    assert topic_list(asked, requests.GetTopicsByCluster(cluster="Nowhere")) == ()
    assert topic_list(asked, requests.GetUnitTopicList()) == ("Both", "Unit")
    assert topic_list(asked, requests.GetHasUnitSubTopicList()) == ("Both", "Sub")
    assert topic_list(asked, requests.GetHasUnitSubUnunitTopicList()) == ("Sub",)
    system = decode_body(TopicList, asked.ask(requests.GetSystemTopicListFromNs()).body)
    assert system.topics == ("DefaultCluster", "Second", "broker-a", "broker-b")
    assert system.broker_addr == "10.0.0.1:10911"


def test_lists_may_be_switched_off() -> None:
    """enableAllTopicList and enableTopicList off: the lists are refused with `disable`."""
    asked = Asked(NameServerConfig(enable_all_topic_list=False, enable_topic_list=False))
    for request in (requests.GetAllTopicListFromNameserver(), requests.GetTopicsByCluster(cluster="C")):
        reply = asked.ask(request)
        assert (reply.code, reply.remark) == (1, "disable")


def test_data_version_is_compared_and_returned() -> None:
    """A broker hears whether its topics changed since it registered, and which edition we have."""
    asked = Asked()
    broker = FakeBroker()

    def query() -> Command:
        return asked.ask(
            requests.QueryDataVersion(
                broker_name=broker.name,
                broker_addr=broker.address,
                cluster_name=broker.cluster,
                broker_id=0,
                body=encode_body(broker.version),
            )
        )

    assert (query().fields, query().body) == ({"changed": "true"}, b"")
    registered = broker.version
    asked.register(broker, [T, U])
    assert query().fields == {"changed": "false"}
    broker.version = broker.version.next(asked.now_ms)
    reply = query()
    assert reply.fields == {"changed": "true"}
    assert decode_body(DataVersion, reply.body) == registered


def test_topic_can_be_registered_for_known_brokers_only() -> None:
    """REGISTER_TOPIC_IN_NAMESRV adds queues on brokers we know, and nothing if one is unknown."""
    asked = Asked()
    asked.register(FakeBroker(), [T, U])
    for brokers, expected in ((("broker-a", "broker-x"), None), (("broker-a",), [("broker-a", 2, 2, 6)])):
        body = encode_body(RouteData(tuple(QueueData(name, 2, 2, 6) for name in brokers)))
        asked.ask(requests.RegisterTopicInNamesrv(topic="New", body=body))
        route = asked.route("New")
        assert (None if route is None else queues(route)) == expected
    assert asked.ask(requests.RegisterTopicInNamesrv(topic="Newer")).code == 0, (
        "no queues at all are no error"
    )


def test_members_of_a_broker_name() -> None:
    """The addresses behind a broker name; none for a name we do not know."""
    asked = Asked()
    for broker_id in (1, 0):
        asked.register(FakeBroker(id=broker_id, port=10911 + broker_id), [T, U])
    for name, expected in (("broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.1:10912"}), ("broker-x", {})):
        reply = asked.ask(requests.GetBrokerMemberGroup(cluster_name="DefaultCluster", broker_name=name))
        group = decode_body(MemberGroupReply, reply.body).group
        assert group is not None
        assert group.addresses == expected


def test_topics_missing_from_a_registration_go_only_when_so_configured() -> None:
    """deleteTopicWithBrokerRegistration decides whether an absent topic is forgotten."""
    for configured in (False, True):
        asked = Asked(NameServerConfig(delete_topic_with_broker_registration=configured))
        broker = FakeBroker()
        asked.register(broker, [T, U])
        broker.version = broker.version.next(asked.now_ms)
        asked.register(broker, [T, TopicConfig("V")])
        assert (asked.route("U") is None) is configured


def test_no_routes_before_brokers_had_time_to_register() -> None:
    """needWaitForService: routes are refused for the first seconds and given after them."""
    asked = Asked(NameServerConfig(need_wait_for_service=True, wait_seconds_for_service=45))
    asked.register(FakeBroker(), [T, U])
    asked.now_ms += 44_999
    reply = asked.ask(requests.GetRouteInfoByTopic(topic="T"))
    assert (reply.code, reply.remark) == (1, "name server not ready")
    asked.now_ms += 1
    assert asked.route("T") is not None

"""What a name server promises brokers and clients, asked through its plain handle function."""

import logging
import zlib
from collections.abc import Callable

import pytest

from hotfire.errors import ConfigError
from hotfire.model import (
    BrokerRegistration,
    ClusterInfo,
    DataVersion,
    QueueData,
    RouteData,
    TopicConfig,
    TopicTable,
)
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import KvTable
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    KVTable,
    MemberGroupReply,
    TopicList,
    decode_body,
    encode_body,
    loads_standard,
)
from hotfire.protocol.command import Command
from hotfire.protocol.registration import encode_registration
from tests.unit.namesrv.fakes import Asked, FakeBroker, FakeConnection

T = TopicConfig("T", 4, 4)
U = TopicConfig("U", 8, 8)


def queues(route: RouteData | None) -> list[tuple[str, int, int, int]]:
    assert route is not None
    return [(one.broker_name, one.read_queues, one.write_queues, one.perm) for one in route.queues]


# --- routes ----------------------------------------------------------------------------------------


@pytest.mark.promise(2)
def test_route_has_one_queue_data_per_master() -> None:
    """Two masters with one topic: two QueueData, each with its own counts and permission."""
    asked = Asked()
    a, b = FakeBroker("broker-a"), FakeBroker("broker-b", port=20911)
    asked.register(a, [TopicConfig("T", 4, 6, 6, sys_flag=2), U])
    asked.register(b, [TopicConfig("T", 8, 2, 4), U])
    route = asked.route("T")
    assert queues(route) == [("broker-a", 4, 6, 6), ("broker-b", 8, 2, 4)]
    assert route is not None
    assert route.queues[0].sys_flag == 2
    assert {broker.name: dict(broker.addresses) for broker in route.brokers} == {
        "broker-a": {0: a.address},
        "broker-b": {0: b.address},
    }


@pytest.mark.promise(3)
def test_route_lists_master_and_slaves_by_id() -> None:
    """A master and two slaves, in any order of arrival: ids 0, 1, 2 with their addresses."""
    asked = Asked()
    brokers = [FakeBroker(id=broker_id, port=10911 + 10 * broker_id) for broker_id in (2, 0, 1)]
    for broker in brokers:
        asked.register(broker, [T, U])
    route = asked.route("T")
    assert route is not None
    (data,) = route.brokers
    assert (data.cluster, data.name) == ("DefaultCluster", "broker-a")
    assert data.addresses == {0: "10.0.0.1:10911", 1: "10.0.0.1:10921", 2: "10.0.0.1:10931"}


@pytest.mark.promise(12)
def test_known_topic_has_a_route_and_unknown_is_code_17() -> None:
    """A known topic answers its whole route, an unknown one TOPIC_NOT_EXIST with its name."""
    asked = Asked()
    asked.register(FakeBroker(), [T, U])
    reply = asked.ask(requests.GetRouteInfoByTopic(topic="T"))
    assert (reply.code, reply.fields, reply.remark, reply.flag, reply.opaque) == (0, None, None, 1, 7)
    assert loads_standard(reply.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        ],
    }
    unknown = asked.ask(requests.GetRouteInfoByTopic(topic="V"))
    assert unknown.code == 17
    assert unknown.remark is not None
    assert unknown.remark.startswith("No topic route info in name server for the topic: V\n")


def test_route_keys_are_bare_for_clients_before_4_9_4() -> None:
    """Clients that read only bare keys get them; newer ones, and who asks for it, get standard JSON."""
    asked = Asked()
    asked.register(FakeBroker(), [T, U])
    bare, quoted = b'{0:"10.0.0.1:10911"}', b'{"0":"10.0.0.1:10911"}'
    assert bare in asked.ask(requests.GetRouteInfoByTopic(topic="T"), version=400).body
    assert quoted in asked.ask(requests.GetRouteInfoByTopic(topic="T"), version=401).body
    asking = requests.GetRouteInfoByTopic(topic="T", accept_standard_json_only=True)
    assert quoted in asked.ask(asking, version=100).body


def test_changed_topic_replaces_its_queue_data() -> None:
    """A topic made with 4 queues and changed to 8: the route shows 4, then 8, never both."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [U, TopicConfig("Other")])
    broker.version = broker.version.next(asked.now_ms)
    asked.register(broker, [T])  # a broker tells of one new topic by sending that one alone
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 6)]
    assert queues(asked.route("U")) == [("broker-a", 8, 8, 6)]
    broker.version = broker.version.next(asked.now_ms)
    asked.register(broker, [TopicConfig("T", 8, 8)])
    assert queues(asked.route("T")) == [("broker-a", 8, 8, 6)]


def test_same_data_version_changes_nothing_but_fills_gaps() -> None:
    """Re-registering an edition we have keeps what administrators changed, and adds only missing topics."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [T, U])
    asked.ask(requests.WipeWritePermOfBroker(broker_name="broker-a"))
    asked.ask(requests.DeleteTopicInNamesrv(topic="U"))
    asked.register(broker, [T, U])
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 4)]
    assert queues(asked.route("U")) == [("broker-a", 8, 8, 6)]


def test_single_topic_of_an_unknown_broker_is_refused() -> None:
    """An increment from a broker we do not know fails and leaves no trace; its full table is taken."""
    asked = Asked()
    broker = FakeBroker()
    refused = asked.register(broker, [T])
    assert (refused.code, refused.remark, refused.fields) == (1, "register broker failed", {})
    assert asked.route("T") is None
    empty = ClusterInfo({}, {})
    assert decode_body(ClusterInfo, asked.ask(requests.GetBrokerClusterInfo()).body) == empty
    assert asked.register(broker, [T, U]).code == 0
    assert asked.route("T") is not None


def test_only_the_master_or_its_smallest_slave_tells_topics() -> None:
    """A slave's registration changes topics only while it is the smallest id of a 5.x broker."""
    asked = Asked()
    master, first, second = (FakeBroker(id=one, port=10911 + 10 * one) for one in range(3))
    asked.register(second, [T, U], enable_acting_master=None)  # before 5.x: slaves never tell topics
    assert asked.route("T") is None
    asked.register(first, [T, U])
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 6)]
    second.version = second.version.next(asked.now_ms)
    asked.register(second, [TopicConfig("T", 1, 1), U])
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 6)]
    asked.register(master, [TopicConfig("T", 16, 16), U])
    assert queues(asked.route("T")) == [("broker-a", 16, 16, 6)]


@pytest.mark.promise(5)
def test_slave_learns_its_masters_ha_address() -> None:
    """A slave's registration is answered with the master's address and HA address, once there is one."""
    asked = Asked()
    master, slave = FakeBroker(), FakeBroker(id=1, port=10921)
    assert asked.register(slave, [T, U]).fields == {}
    assert asked.register(master, [T, U]).fields == {}
    assert asked.register(slave, [T, U]).fields == {
        "haServerAddr": "10.0.0.1:10912",
        "masterAddr": "10.0.0.1:10911",
    }
    asked.server.disconnected(master.connection, asked.now_ms)
    assert asked.register(slave, [T, U]).fields == {}


def test_address_holds_one_id() -> None:
    """A slave that comes back as master is not listed under its old id any more."""
    asked = Asked()
    broker = FakeBroker(id=1)
    asked.register(broker, [T, U])
    broker.id = 0
    asked.register(broker, [T, U])
    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: broker.address}


def test_older_state_does_not_take_an_id_over() -> None:
    """Two addresses claim one id: the one with the older state gets no entry, the newer takes it."""
    asked = Asked()
    holder, claimant = FakeBroker(version=DataVersion(5, 1, 1)), FakeBroker(port=20911)
    asked.register(holder, [T, U])
    claimant.version = DataVersion(4, 1, 1)
    reply = asked.register(claimant, [T, U])
    assert (reply.code, reply.fields) == (0, {})
    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: holder.address}
    asked.server.disconnected(claimant.connection, asked.now_ms)
    assert asked.route("T") is not None
    claimant.version = DataVersion(6, 1, 1)
    asked.register(claimant, [T, U])
    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: claimant.address}


def test_broker_that_moves_to_another_cluster_leaves_the_first() -> None:
    """One broker name belongs to one cluster, and goes completely when its connection does."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [T, U])
    broker.cluster = "Second"
    asked.register(broker, [T, U])
    info = decode_body(ClusterInfo, asked.ask(requests.GetBrokerClusterInfo()).body)
    assert info.clusters == {"Second": ("broker-a",)}
    assert info.brokers["broker-a"].cluster == "Second"
    asked.server.disconnected(broker.connection, asked.now_ms)
    assert decode_body(ClusterInfo, asked.ask(requests.GetBrokerClusterInfo()).body) == ClusterInfo({}, {})


def test_filter_servers_are_listed_by_broker_address() -> None:
    """A broker's filter servers appear in routes to it and go when it reports none."""
    asked = Asked()
    a, b = FakeBroker(), FakeBroker("broker-b", port=20911)
    asked.register(a, [T, U], filter_servers=("10.0.0.9:1", "10.0.0.9:2"))
    asked.register(b, [T, U])
    route = asked.route("T")
    assert route is not None
    assert route.filter_servers == {a.address: ("10.0.0.9:1", "10.0.0.9:2")}
    asked.register(a, [T, U])
    route = asked.route("T")
    assert route is not None
    assert route.filter_servers == {}


# --- how brokers go --------------------------------------------------------------------------------


@pytest.mark.promise(8)
def test_silent_broker_is_gone_after_120_to_130_seconds() -> None:
    """A broker that falls silent stays for two minutes, is gone ten seconds later, and is hung up on."""
    asked = Asked()
    silent, alive = FakeBroker(), FakeBroker("broker-b", port=20911)
    asked.register(silent, [T, U])
    asked.register(alive, [T, U])
    for _ in range(4):
        asked.pass_time(30_000)
        asked.register(alive, [T, U])
    assert [name for name, *_ in queues(asked.route("T"))] == ["broker-a", "broker-b"]
    asked.pass_time(10_000)
    route = asked.route("T")
    assert [name for name, *_ in queues(route)] == ["broker-b"]
    assert route is not None
    assert [broker.name for broker in route.brokers] == ["broker-b"]
    assert (silent.connection.closed, alive.connection.closed) == (True, False)


def test_broker_may_choose_its_own_timeout() -> None:
    """heartbeatTimeoutMillis of the registration counts, and any sign of life starts it anew."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [T, U], heartbeat_timeout_millis=10_000)
    alive: list[Callable[[], requests.Request]] = [
        lambda: requests.BrokerHeartbeat(
            cluster_name=broker.cluster, broker_addr=broker.address, broker_name=broker.name
        ),
        lambda: requests.QueryDataVersion(
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
            broker_id=0,
            body=encode_body(broker.version),
        ),
    ]
    for sign in alive:
        asked.pass_time(9_000)
        oneway = sign().to_command(oneway=True)
        assert asked.server.handle(broker.connection, oneway, asked.now_ms) is None
    asked.pass_time(9_000)
    assert asked.route("T") is not None
    asked.pass_time(7_000)
    assert asked.route("T") is None


def test_closed_connection_removes_its_brokers_at_once() -> None:
    """When the connection of a registration closes the broker is gone, without waiting for any scan."""
    asked = Asked()
    gone, stays = FakeBroker(), FakeBroker("broker-b", port=20911)
    asked.register(gone, [T, U])
    asked.register(stays, [T, TopicConfig("V")])
    asked.server.disconnected(gone.connection, asked.now_ms)
    assert [name for name, *_ in queues(asked.route("T"))] == ["broker-b"]
    assert asked.route("U") is None
    info = decode_body(ClusterInfo, asked.ask(requests.GetBrokerClusterInfo()).body)
    assert info.clusters == {"DefaultCluster": ("broker-b",)}


def test_reconnected_broker_survives_the_end_of_its_old_connection() -> None:
    """A broker that registered again over a new connection stays when the old one closes late."""
    asked = Asked()
    broker = FakeBroker()
    old = broker.connection
    asked.register(broker, [T, U])
    broker.connection = FakeConnection()
    asked.register(broker, [T, U])
    asked.server.disconnected(old, asked.now_ms)
    assert asked.route("T") is not None


def test_unregistered_broker_is_gone_with_its_topics() -> None:
    """Unregistering the last address of a name removes name, cluster and topics; a slave's leaves them."""
    asked = Asked()
    master, slave = FakeBroker(), FakeBroker(id=1, port=10921)
    for broker in (master, slave):
        asked.register(broker, [T, U])
    for broker, left in ((master, {1: slave.address}), (slave, {})):
        reply = asked.ask(
            requests.UnregisterBroker(
                broker_name=broker.name,
                broker_addr=broker.address,
                cluster_name=broker.cluster,
                broker_id=broker.id,
            )
        )
        assert (reply.code, reply.fields) == (0, None)
        route = asked.route("T")
        assert (dict(route.brokers[0].addresses) if route else {}) == left
    assert decode_body(TopicList, asked.ask(requests.GetAllTopicListFromNameserver()).body).topics == ()


# --- acting masters --------------------------------------------------------------------------------


def test_smallest_slave_acts_as_master_when_allowed() -> None:
    """With the feature on, a group that lost its master shows its smallest slave as id 0, read-only."""
    asked = Asked(NameServerConfig(support_acting_master=True))
    brokers = [FakeBroker(id=one, port=10911 + 10 * one) for one in range(3)]
    for broker in brokers:
        asked.register(broker, [T, U], enable_acting_master=True)
    asked.server.disconnected(brokers[0].connection, asked.now_ms)
    route = asked.route("T")
    assert route is not None
    assert queues(route) == [("broker-a", 4, 4, 4)]
    assert route.brokers[0].addresses == {0: brokers[1].address, 2: brokers[2].address}
    brokers[1].version = brokers[1].version.next(asked.now_ms)
    asked.register(brokers[1], [T, U], enable_acting_master=True)
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 4)]


def test_slave_does_not_act_as_master_unasked() -> None:
    """By default a group without a master is shown as it is."""
    asked = Asked()
    asked.register(FakeBroker(id=1), [T, U], enable_acting_master=True)
    route = asked.route("T")
    assert route is not None
    assert list(route.brokers[0].addresses) == [1]


# --- registration bodies ---------------------------------------------------------------------------


def test_registration_with_a_wrong_checksum_is_refused() -> None:
    """bodyCrc32 other than the body's is an error and registers nothing; the right one is taken."""
    asked = Asked()
    broker = FakeBroker()
    body = broker.registration([T, U]).body
    crc = zlib.crc32(body) & 0x7FFF_FFFF
    refused = asked.register(broker, [T, U], body_crc32=crc ^ 1)
    assert (refused.code, refused.remark) == (1, "crc32 not match")
    assert asked.route("T") is None
    assert asked.register(broker, [T, U], body_crc32=crc).code == 0


def test_compressed_and_ancient_registrations_are_read() -> None:
    """The zlib form, and the topics-only body of brokers before 3.0.11."""
    table = TopicTable({"T": T, "U": U}, DataVersion(0, 1, 1))
    asked = Asked()
    fields = {
        name: value
        for name, value in vars(FakeBroker().registration()).items()
        if name not in ("body", "compressed")
    }
    compressed = requests.RegisterBroker(
        **fields, compressed=True, body=encode_registration(BrokerRegistration(table), compressed=True)
    )
    assert asked.ask(compressed).code == 0
    assert asked.route("U") is not None

    asked = Asked()
    assert asked.ask(requests.RegisterBroker(**fields, body=encode_body(table)), version=36).code == 0
    assert asked.route("U") is not None


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}'])
def test_broken_registration_is_an_error_and_registers_nothing(body: bytes) -> None:
    """A body that cannot be read is answered with SYSTEM_ERROR, and the connection goes on."""
    asked = Asked()
    reply = asked.ask(
        requests.RegisterBroker(
            broker_name="b",
            broker_addr="a:1",
            cluster_name="c",
            ha_server_addr="h:1",
            broker_id=0,
            body=body,
        )
    )
    assert reply.code == 1
    assert reply.remark
    assert asked.route("T") is None


# --- lists and administration ----------------------------------------------------------------------


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


# --- key-value table -------------------------------------------------------------------------------


def test_key_value_table() -> None:
    """Put, get, list, delete; what is missing is QUERY_NOT_FOUND and says what."""
    asked = Asked()
    missing = asked.ask(requests.GetKvConfig(namespace="N", key="k"))
    assert (missing.code, missing.fields, missing.remark) == (22, {}, "No config item, Namespace: N Key: k")
    assert asked.ask(requests.GetKvListByNamespace(namespace="N")).code == 22
    asked.ask(requests.PutKvConfig(namespace="N", key="k", value="v"))
    asked.ask(requests.PutKvConfig(namespace="N", key="l", value="w"))
    assert asked.ask(requests.GetKvConfig(namespace="N", key="k")).fields == {"value": "v"}
    listed = asked.ask(requests.GetKvListByNamespace(namespace="N"))
    assert decode_body(KVTable, listed.body).table == {"k": "v", "l": "w"}
    asked.ask(requests.DeleteKvConfig(namespace="N", key="k"))
    assert asked.ask(requests.GetKvConfig(namespace="N", key="k")).code == 22


def test_order_configuration_goes_to_brokers_and_routes() -> None:
    """Registrations are answered with all order configurations; routes carry theirs when enabled."""
    asked = Asked(NameServerConfig(order_message_enable=True))
    asked.ask(requests.PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"))
    reply = asked.register(FakeBroker(), [T, U])
    assert decode_body(KVTable, reply.body).table == {"T": "broker-a:4"}
    route, other = asked.route("T"), asked.route("U")
    assert route is not None
    assert other is not None
    assert (route.order_topic_conf, other.order_topic_conf) == ("broker-a:4", None)


def test_key_value_table_is_saved_before_it_is_seen() -> None:
    """Each change is handed to be saved whole; a failure to save refuses the change and changes nothing."""
    saved: list[bytes] = []
    asked = Asked(kv=KvTable(save=saved.append))
    asked.ask(requests.PutKvConfig(namespace="N", key="k", value="v"))
    assert KvTable(saved[-1]).get("N", "k") == "v"
    assert saved[-1] == b'{"configTable":{"N":{"k":"v"}}}'

    def fail(_: bytes) -> None:
        raise OSError("disk full")

    asked = Asked(kv=KvTable(saved[-1], save=fail))
    refused = asked.ask(requests.PutKvConfig(namespace="N", key="k", value="other"))
    assert (refused.code, refused.remark) == (1, "disk full")
    assert asked.ask(requests.GetKvConfig(namespace="N", key="k")).fields == {"value": "v"}


@pytest.mark.parametrize("saved", [b"", b"[]", b'{"configTable":{"N":1}}', b'{"configTable":{"N":{"k":1}}}'])
def test_unreadable_key_value_file_is_an_error(saved: bytes) -> None:
    """A damaged file stops the start instead of being taken for an empty table."""
    with pytest.raises(ConfigError, match="key-value file"):
        KvTable(saved)


def test_key_value_table_is_logged_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    """After a minute, then every ten, the log shows every entry."""
    asked = Asked()
    asked.ask(requests.PutKvConfig(namespace="N", key="k", value="v"))
    with caplog.at_level(logging.INFO, logger="hotfire.namesrv"):
        asked.pass_time(59_000, step_ms=1000)
        assert not caplog.messages
        asked.pass_time(1_000, step_ms=1000)
        assert "kv namespace=N key=k value=v" in caplog.messages
        caplog.clear()
        asked.pass_time(599_000, step_ms=1000)
        assert not caplog.messages
        asked.pass_time(1_000, step_ms=1000)
        assert "kv namespace=N key=k value=v" in caplog.messages


# --- settings --------------------------------------------------------------------------------------


def test_settings_are_shown_and_some_can_be_changed() -> None:
    """GET_NAMESRV_CONFIG prints all; UPDATE changes what may change and refuses the rest with a reason."""
    asked = Asked()
    shown = asked.ask(requests.GetNamesrvConfig()).body.decode().splitlines()
    assert "listenPort=9876" in shown
    assert "scanNotActiveBrokerInterval=5000" in shown
    assert asked.ask(requests.UpdateNamesrvConfig(body=b"scanNotActiveBrokerInterval=6000\n")).code == 0
    assert asked.server.config.scan_interval_ms == 6000
    for body, code, remark in (
        (b"kvConfigPath=/etc/passwd\n", 16, "kvConfigPath cannot be changed while running"),
        (b"scanNotActiveBrokerInterval=0\n", 29, "scanNotActiveBrokerInterval=0: must be an integer"),
        (b"colour=red\n", 29, "colour: there is no such setting"),
    ):
        refused = asked.ask(requests.UpdateNamesrvConfig(body=body))
        assert refused.code == code
        assert (refused.remark or "").startswith(remark)


# --- dispatch --------------------------------------------------------------------------------------


@pytest.mark.promise(73)
def test_unknown_code_is_not_supported() -> None:
    """A code nobody declared, and one only brokers serve, are answered with code 3."""
    asked = Asked()
    for code in (9999, 10):
        reply = asked.ask(Command(code, opaque=5))
        assert (reply.code, reply.opaque, reply.flag) == (3, 5, 1)
        assert reply.remark == f" request type {code} not supported"


def test_missing_field_is_named_and_the_connection_goes_on() -> None:
    """A request without a mandatory field is a SYSTEM_ERROR that names it."""
    asked = Asked()
    reply = asked.ask(Command(105))
    assert reply.code == 1
    assert "topic" in (reply.remark or "")


def test_oneway_and_stray_replies_are_not_answered() -> None:
    """A oneway request is carried out in silence; a reply we did not ask for is ignored."""
    asked = Asked()
    broker = FakeBroker()
    oneway = broker.registration([T, U]).to_command(oneway=True)
    assert asked.server.handle(broker.connection, oneway, asked.now_ms) is None
    assert asked.route("T") is not None
    assert asked.server.handle(broker.connection, Command(0, flag=1), asked.now_ms) is None

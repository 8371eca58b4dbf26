"""Routes: what a name server makes of registrations, and what clients get to see of it."""

import pytest

from hotfire.model import (
    ClusterInfo,
    DataVersion,
    RouteData,
    TopicConfig,
)
from hotfire.namesrv.config import NameServerConfig
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    decode_body,
    loads_standard,
)
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U, queues


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
    assert asked.ask(requests.GetRouteInfoByTopic()).code == 17, "none was named"


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


@pytest.mark.promise(6)
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


@pytest.mark.promise(4)
def test_cluster_lists_its_brokers() -> None:
    """Two brokers of one cluster, one of another: each name under its cluster, with its address."""
    asked = Asked()
    for number, (name, cluster) in enumerate([("a", "Left"), ("b", "Left"), ("c", "Right")]):
        asked.register(FakeBroker(name, port=10911 + 10 * number, cluster=cluster), [T, U])
    body = asked.ask(requests.GetBrokerClusterInfo()).body
    info = decode_body(ClusterInfo, body)
    assert info.clusters == {"Left": ("a", "b"), "Right": ("c",)}
    assert {name: data.addresses for name, data in info.brokers.items()} == {
        "a": {0: "10.0.0.1:10911"},
        "b": {0: "10.0.0.1:10921"},
        "c": {0: "10.0.0.1:10931"},
    }


def test_routes_may_be_kept_to_a_zone() -> None:
    """A client that asks for its zone gets the brokers there, and those whose master is gone."""
    asked = Asked()
    near, far = FakeBroker(), FakeBroker("broker-b", port=20911)
    orphan = FakeBroker("broker-c", id=1, port=30911)
    asked.register(near, [T, U], zone_name="East")
    asked.register(far, [T, U], zone_name="west", filter_servers=("10.0.0.9:1",))
    asked.register(orphan, [T, U], zone_name="west", enable_acting_master=True)

    def names(**fields: object) -> set[str]:
        reply = asked.ask(requests.GetRouteInfoByTopic(topic="T", **fields))  # type: ignore[arg-type]
        route = decode_body(RouteData, reply.body)
        assert {one.broker_name for one in route.queues} == {one.name for one in route.brokers}
        assert all(at == far.address for at in route.filter_servers)
        assert bool(route.filter_servers) == ("broker-b" in {one.name for one in route.brokers})
        return {one.name for one in route.brokers}

    everybody = {"broker-a", "broker-b", "broker-c"}
    assert names(zone_mode=True, zone_name="east") == {"broker-a", "broker-c"}
    assert names(zone_mode=True, zone_name="west") == {"broker-b", "broker-c"}
    assert names(zone_mode=True) == names(zone_name="east") == names() == everybody

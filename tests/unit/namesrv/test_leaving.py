"""How brokers go: in silence, with their connection, or with a goodbye."""

from collections.abc import Callable

import pytest

from hotfire.model import (
    ClusterInfo,
    TopicConfig,
)
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    TopicList,
    decode_body,
    encode_body,
)
from tests.unit.namesrv.fakes import Asked, FakeBroker, FakeConnection, T, U, queues


@pytest.mark.promise(8, 44)
def test_silent_broker_is_gone_after_120_to_130_seconds() -> None:
    """A broker that falls silent stays for two minutes, is gone ten seconds later with its filter servers,
    and is hung up on."""
    asked = Asked()
    silent, alive = FakeBroker(), FakeBroker("broker-b", port=20911)
    asked.register(silent, [T, U], filter_servers=("10.0.0.9:1",))
    asked.register(alive, [T, U])
    for _ in range(4):
        asked.pass_time(30_000)
        asked.register(alive, [T, U])
    route = asked.route("T")
    assert [name for name, *_ in queues(route)] == ["broker-a", "broker-b"]
    assert route is not None
    assert route.filter_servers == {silent.address: ("10.0.0.9:1",)}
    asked.pass_time(10_000)
    route = asked.route("T")
    assert [name for name, *_ in queues(route)] == ["broker-b"]
    assert route is not None
    assert route.filter_servers == {}
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

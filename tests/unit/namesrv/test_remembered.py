"""What a name server remembers to be quick: encoded routes and registrations it knows. Never a stale one."""

import random
from typing import Any

import pytest

from hotfire.model import DataVersion, QueueData, RouteData, TopicConfig
from hotfire.namesrv import handlers
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.namesrv import NameServer
from hotfire.protocol import requests
from hotfire.protocol.bodies import encode_body
from tests.unit.namesrv.fakes import START_MS, Asked, FakeBroker, T, U, queues

TOPICS = ["T0", "T1", "T2"]


def routes(asked: Asked) -> dict[str, bytes]:
    """Every route as it is answered to old clients and to new ones."""
    return {
        f"{topic} {version}": asked.ask(requests.GetRouteInfoByTopic(topic=topic), version=version).body
        for topic in TOPICS
        for version in (400, 513)
    }


@pytest.mark.parametrize("seed", range(20))
def test_remembered_routes_are_those_of_now(seed: int) -> None:
    """Whatever happens to brokers and topics, a route asked for before is answered as if it never was."""
    rng = random.Random(seed)
    asked = Asked(NameServerConfig(support_acting_master=rng.random() < 0.5))
    brokers = [
        FakeBroker(name, id=number, port=10911 + 100 * place + number)
        for place, name in enumerate(("a", "b"))
        for number in (0, 1)
    ]

    def register() -> None:
        broker = rng.choice(brokers)
        if rng.random() < 0.7:
            broker.version = DataVersion(0, START_MS, rng.randrange(100))
        topics = [TopicConfig(name, rng.randint(1, 3), 2) for name in rng.sample(TOPICS, rng.randint(2, 3))]
        fields: dict[str, Any] = {
            "enable_acting_master": rng.random() < 0.5,
            "zone_name": rng.choice([None, "east"]),
            "filter_servers": rng.choice([(), ("10.0.0.9:1",)]),
        }
        asked.register(broker, topics, **fields)

    def unregister() -> None:
        broker = rng.choice(brokers)
        asked.ask(
            requests.UnregisterBroker(
                broker_name=broker.name,
                broker_addr=broker.address,
                cluster_name=broker.cluster,
                broker_id=broker.id,
            )
        )

    def tell_topic() -> None:
        body = encode_body(RouteData((QueueData(rng.choice("ab"), rng.randint(1, 9), 1, 6),)))
        asked.ask(requests.RegisterTopicInNamesrv(topic=rng.choice(TOPICS), body=body))

    changes = [
        register, register, register, unregister, tell_topic,
        lambda: asked.server.disconnected(rng.choice(brokers).connection, asked.now_ms),
        lambda: asked.pass_time(rng.choice([1000, 200_000]), step_ms=5000),
        lambda: asked.ask(requests.WipeWritePermOfBroker(broker_name=rng.choice("ab"))),
        lambda: asked.ask(requests.AddWritePermOfBroker(broker_name=rng.choice("ab"))),
        lambda: asked.ask(requests.DeleteTopicInNamesrv(topic=rng.choice(TOPICS))),
        lambda: asked.ask(
            requests.DeleteTopicInNamesrv(topic=rng.choice(TOPICS), cluster_name="DefaultCluster")
        ),
    ]  # fmt: skip
    for _ in range(60):
        rng.choice(changes)()
        remembered = routes(asked)
        assert remembered == routes(asked)
        asked.server.state.bodies.clear()
        assert remembered == routes(asked)


def test_settings_and_order_configuration_count_at_once() -> None:
    """A setting changed over the wire and a new order configuration are in the very next route."""
    asked = Asked()
    slave = FakeBroker(id=1)
    asked.register(slave, [T, U], enable_acting_master=True)
    before = asked.route("T")
    assert before is not None
    assert before.brokers[0].master is None
    asked.ask(requests.UpdateNamesrvConfig(body=b"supportActingMaster=true"))
    after = asked.route("T")
    assert after is not None
    assert after.brokers[0].master == slave.address
    asked.ask(requests.UpdateNamesrvConfig(body=b"orderMessageEnable=true"))
    asked.ask(requests.PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"))
    ordered = asked.route("T")
    assert ordered is not None
    assert ordered.order_topic_conf == "broker-a:4"


def test_the_same_registration_again_is_a_sign_of_life_and_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 30 s a broker repeats all its topics. Unchanged, they are not read again; the broker lives on."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [T, U])
    read: list[bytes] = []
    decode = handlers.decode_registration

    def counted(*words: Any, **more: Any) -> Any:
        read.append(words[0])
        return decode(*words, **more)

    monkeypatch.setattr(handlers, "decode_registration", counted)
    for _ in range(10):
        asked.pass_time(30_000, step_ms=5000)
        assert asked.register(broker, [T, U]).code == 0
    assert not read
    assert asked.route("T") is not None
    asked.ask(requests.DeleteTopicInNamesrv(topic="T"))
    assert asked.route("T") is None
    asked.register(broker, [T, U])
    assert queues(asked.route("T")) == [("broker-a", 4, 4, 6)]
    broker.version = DataVersion(0, 2, 2)
    asked.register(broker, [TopicConfig("T", 1, 1), U])
    assert queues(asked.route("T")) == [("broker-a", 1, 1, 6)]
    assert len(read) == 2


def test_a_renewed_registration_belongs_to_its_new_connection() -> None:
    """The old connection's end does not take a broker that has registered over another one meanwhile."""
    asked = Asked()
    broker = FakeBroker()
    asked.register(broker, [T, U])
    old, broker.connection = broker.connection, FakeBroker().connection
    asked.register(broker, [T, U])
    server: NameServer = asked.server
    server.disconnected(old, asked.now_ms)
    assert asked.route("T") is not None
    server.disconnected(broker.connection, asked.now_ms)
    assert asked.route("T") is None

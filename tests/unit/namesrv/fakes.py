"""Brokers as they look from a name server: registrations to send, and a connection that remembers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hotfire.model import BrokerRegistration, DataVersion, RouteData, TopicConfig, TopicTable
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import KvTable
from hotfire.namesrv.namesrv import NameServer
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.command import Command
from hotfire.protocol.registration import encode_registration
from hotfire.protocol.requests import GetRouteInfoByTopic, RegisterBroker, Request

START_MS = 1_000_000
T = TopicConfig("T", 4, 4)
U = TopicConfig("U", 8, 8)


class FakeConnection:
    """Enough of a connection for a heart."""

    peer = ("127.0.0.1", 1)
    born_host = bytes(8)
    state: Any = None

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        raise AssertionError("a handler writes nothing by itself")

    def close(self) -> None:
        self.closed = True

    @property
    def is_clogged(self) -> bool:
        return False

    @property
    def is_flooded(self) -> bool:
        return False

    def hold(self) -> None:
        raise AssertionError("a handler holds nobody")


@dataclass
class FakeBroker:
    """One broker process and what it would register."""

    name: str = "broker-a"
    id: int = 0
    port: int = 10911
    cluster: str = "DefaultCluster"
    host: str = "10.0.0.1"
    connection: FakeConnection = field(default_factory=FakeConnection)
    version: DataVersion = field(default_factory=lambda: DataVersion(0, 1, 1))

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def registration(
        self, topics: Iterable[TopicConfig] = (), *, filter_servers: tuple[str, ...] = (), **fields: Any
    ) -> RegisterBroker:
        table = TopicTable({topic.name: topic for topic in topics}, self.version)
        fields = {"enable_acting_master": False, **fields}
        return RegisterBroker(
            broker_name=self.name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            ha_server_addr=f"{self.host}:{self.port + 1}",
            broker_id=self.id,
            body=encode_registration(BrokerRegistration(table, filter_servers)),
            **fields,
        )


class Asked:
    """A name server with a clock a test moves."""

    def __init__(self, config: NameServerConfig | None = None, kv: KvTable | None = None) -> None:
        self.now_ms = START_MS
        self.server = NameServer(config or NameServerConfig(), now_ms=START_MS, kv=kv)

    def ask(
        self, request: Request | Command, connection: FakeConnection | None = None, version: int = 513
    ) -> Command:
        command = request if isinstance(request, Command) else request.to_command(opaque=7)
        command.version = version
        reply = self.server.handle(connection or FakeConnection(), command, self.now_ms)
        assert reply is not None
        return reply

    def register(self, broker: FakeBroker, topics: Iterable[TopicConfig] = (), **fields: Any) -> Command:
        return self.ask(broker.registration(topics, **fields), broker.connection)

    def route(self, topic: str) -> RouteData | None:
        reply = self.ask(GetRouteInfoByTopic(topic=topic))
        return decode_body(RouteData, reply.body) if reply.code == 0 else None

    def pass_time(self, ms: int, step_ms: int = 100) -> None:
        """Let time pass as the server's ticks do."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += min(step_ms, end_ms - self.now_ms)
            self.server.tick(self.now_ms)


def queues(route: RouteData | None) -> list[tuple[str, int, int, int]]:
    """Broker, read queues, write queues and permission of each."""
    assert route is not None
    return [(one.broker_name, one.read_queues, one.write_queues, one.perm) for one in route.queues]

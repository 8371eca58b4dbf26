"""Registration bodies: every form a broker may send, and those that are refused."""

import zlib

import pytest

from hotfire.model import (
    BrokerRegistration,
    DataVersion,
    TopicTable,
)
from hotfire.namesrv import routes as routes_module
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    encode_body,
)
from hotfire.protocol.registration import encode_registration
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U


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


def test_brokers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused, those known go on, and a place that is free again is given away."""
    monkeypatch.setattr(routes_module, "BROKERS_MAX", 2)
    asked = Asked()
    a, b, c = (FakeBroker(name, port=10911 + 10 * number) for number, name in enumerate("abc"))
    assert [asked.register(one, [T, U]).code for one in (a, b, c, a)] == [0, 0, 1, 0]
    asked.server.disconnected(b.connection, asked.now_ms)
    assert asked.register(c, [T, U]).code == 0

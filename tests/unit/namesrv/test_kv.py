"""The key-value table: what is put is kept, shown, logged and handed to brokers."""

import logging

import pytest

from hotfire.errors import ConfigError
from hotfire.namesrv import kv as kv_module
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import KvTable
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    KVTable,
    decode_body,
)
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U


def test_key_value_table() -> None:
    """Put, get, list, delete; what is missing is QUERY_NOT_FOUND and says what."""
    asked = Asked()
    missing = asked.ask(requests.GetKvConfig(namespace="N", key="k"))
    assert (missing.code, missing.fields, missing.remark) == (22, {}, "No config item, Namespace: N Key: k")
    assert asked.ask(requests.GetKvListByNamespace(namespace="N")).code == 22
    assert asked.ask(requests.GetKvConfig(key="k")).code == 22
    assert asked.ask(requests.GetKvListByNamespace()).code == 22
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


@pytest.mark.promise(16)
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


def test_the_table_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would make it larger than it may be is refused with the numbers; the table is as before."""
    monkeypatch.setattr(kv_module, "TABLE_BYTES_MAX", 1000)
    asked = Asked()
    assert asked.ask(requests.PutKvConfig(namespace="N", key="k", value="v" * 900)).code == 0
    refused = asked.ask(requests.PutKvConfig(namespace="N", key="l", value="v" * 900))
    assert refused.code == 1
    assert "1000 are allowed" in (refused.remark or "")
    assert asked.ask(requests.GetKvConfig(namespace="N", key="l")).code == 22
    assert asked.ask(requests.DeleteKvConfig(namespace="N", key="k")).code == 0
    assert asked.ask(requests.PutKvConfig(namespace="N", key="l", value="v" * 900)).code == 0

"""What the name server writes into its log from time to time: its tables, as an operator reads them."""

import logging

import pytest

from hotfire.model import TopicConfig
from hotfire.namesrv import namesrv as namesrv_module
from hotfire.protocol import requests
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U


def printed(asked: Asked, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the next printing."""
    with caplog.at_level(logging.INFO, logger="hotfire.namesrv"):
        asked.pass_time(60_000, step_ms=1000)
    return caplog.messages


def test_each_broker_is_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Name, id, cluster, address, how long ago it was heard of, and how many topics its name has."""
    asked = Asked()
    master = FakeBroker()
    slave = FakeBroker(id=1, port=10921, connection=master.connection)
    asked.register(master, [T, U, TopicConfig("V", 1, 1)])
    asked.register(slave, [T, U, TopicConfig("V", 1, 1)])
    asked.register(FakeBroker("broker-b", port=20911, cluster="Other"), [T, U])
    asked.pass_time(30_000)
    asked.register(master, [T, U, TopicConfig("V", 1, 1)])
    with caplog.at_level(logging.INFO, logger="hotfire.namesrv"):
        asked.pass_time(30_000, step_ms=1000)
    assert caplog.messages == [
        "topics=3 brokers=2 clusters=2 live=3",
        "broker=broker-a id=0 cluster=DefaultCluster address=10.0.0.1:10911 ha=10.0.0.1:10912 "
        "heard_s_ago=30.0 topics=3",
        "broker=broker-a id=1 cluster=DefaultCluster address=10.0.0.1:10921 ha=10.0.0.1:10922 "
        "heard_s_ago=60.0 topics=3",
        "broker=broker-b id=0 cluster=Other address=10.0.0.1:20911 ha=10.0.0.1:20912 "
        "heard_s_ago=60.0 topics=2",
        "kv_items=0",
    ]


def test_what_is_printed_has_an_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more brokers or keys than that the first are shown, and how many are not; a name has its length."""
    monkeypatch.setattr(namesrv_module, "PRINTED_MAX", 2)
    asked = Asked()
    for number in range(5):
        asked.register(FakeBroker(f"{number}{'b' * 1000}", port=10911 + 10 * number), [T, U])
        asked.ask(requests.PutKvConfig(namespace="N", key=f"k{number}", value="v" * 10_000))
    lines = printed(asked, caplog)
    assert len([line for line in lines if line.startswith("broker=")]) == 2
    assert len([line for line in lines if line.startswith("kv namespace=")]) == 2
    assert lines[-2:] == ["brokers_not_printed=3", "kv_items_not_printed=3"]
    assert max(map(len, lines)) < 5000

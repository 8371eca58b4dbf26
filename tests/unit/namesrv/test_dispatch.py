"""Requests as such: settings over the wire, unknown codes, missing fields, oneway."""

import pytest

from hotfire.protocol import requests
from hotfire.protocol.command import Command
from tests.unit.namesrv.fakes import Asked, FakeBroker, T, U


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
    reply = asked.ask(Command(102))
    assert reply.code == 1
    assert "namespace" in (reply.remark or "")


def test_oneway_and_stray_replies_are_not_answered() -> None:
    """A oneway request is carried out in silence; a reply we did not ask for is ignored."""
    asked = Asked()
    broker = FakeBroker()
    oneway = broker.registration([T, U]).to_command(oneway=True)
    assert asked.server.handle(broker.connection, oneway, asked.now_ms) is None
    assert asked.route("T") is not None
    assert asked.server.handle(broker.connection, Command(0, flag=1), asked.now_ms) is None

"""Settings shown and changed while the broker runs: those declared changeable, to what they allow."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.broker.settings_file import SettingsFile
from hotfire.protocol.command import Command
from hotfire.protocol.requests import GetBrokerConfig, UpdateBrokerConfig
from hotfire.settings import load_properties, settings_of
from tests.unit.broker.harness import FOUND, Harness, send_request

NO_PERMISSION, TOPIC_NOT_EXIST = 16, 17
Make = Callable[..., Harness]


def change(heart: Harness, text: str) -> Command:
    return heart.ask(UpdateBrokerConfig(body=text.encode()))


def shown(heart: Harness) -> dict[str, str]:
    reply = heart.ask(GetBrokerConfig())
    assert reply.code == 0
    assert reply.fields is not None
    assert list(reply.fields) == ["version"]
    return load_properties(bytes(reply.body).decode())


def test_every_setting_is_shown(heart: Harness) -> None:
    """As key=value lines, by the names the reference gives them."""
    settings = shown(heart)
    assert set(settings) == {one.key for one in settings_of(BrokerConfig)}
    assert (settings["brokerName"], settings["flushDiskType"]) == ("broker-a", "SYNC_FLUSH")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("storePathRootDir=/elsewhere\n", NO_PERMISSION, "storePathRootDir cannot be changed while running"),
        ("listenPort=1\n", NO_PERMISSION, "listenPort cannot be changed while running"),
        ("brokerConfigPath=/etc/passwd\n", 1, "brokerConfigPath: there is no such setting"),
        ("brokerPermission=x\n", 1, "brokerPermission=x: must be an integer from 0 to 6"),
        ("brokerPermission=7\n", 1, "brokerPermission=7: must be an integer from 0 to 6"),
        ("brokerPermission=4\nlistenPort=1\n", NO_PERMISSION, "listenPort"),
        ("defaultTopicQueueNums=4097\n", 1, "must be an integer from 1 to 4096"),
        ("defaultTopicQueueNums=4096\nqueuesMax=1\n", 29, "queuesMax is 1"),
    ],
)
def test_nothing_else_is_changed(heart: Harness, text: str, code: int, words: str) -> None:
    """Refused by name and reason, and nothing of the request is taken."""
    before = shown(heart)
    reply = change(heart, text)
    assert reply.code == code
    assert words in (reply.remark or "")
    assert shown(heart) == before


def test_a_change_counts_at_once(heart: Harness) -> None:
    """Permission to read and to write in order, topics by their first message: also where the lane serves."""
    heart.create_topic("T", 1)
    heart.create_topic("O", 1, order=True)
    assert (heart.send().code, heart.send(topic="O").code) == (0, 0)
    assert (heart.pull().code, heart.pull().code) == (FOUND, FOUND)
    assert change(heart, "brokerPermission=2\n").code == 0
    assert heart.pull().code == NO_PERMISSION
    assert change(heart, "brokerPermission=4\n").code == 0
    assert heart.pull().code == FOUND
    assert heart.send(topic="O").code == NO_PERMISSION
    assert change(heart, "brokerPermission=6\n").code == 0
    assert heart.send(topic="O").code == 0
    assert heart.ask(send_request("New1")).code == 0
    assert change(heart, "autoCreateTopicEnable=false\n").code == 0
    assert heart.ask(send_request("New2")).code == TOPIC_NOT_EXIST
    assert change(heart, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=3\n").code == 0
    assert heart.ask(send_request("New2", default_topic_queue_nums=9)).code == 0
    made = heart.broker.topics.get("New2")
    assert made is not None
    assert made.write_queues == 3


def test_name_servers_hear_of_a_permission(heart: Harness) -> None:
    """They are told at once, with a newer edition of the topics."""
    told: list[int] = []
    heart.broker.topics_changed = lambda: told.append(heart.broker.topics.registration().data_version.counter)
    before = heart.broker.topics.version.counter
    change(heart, "brokerPermission=4\n")
    assert told
    assert told[-1] > before


def test_limits_reach_whoever_keeps_them(heart: Harness) -> None:
    """Every changeable setting is seen by all that hold the settings."""
    broker = heart.broker
    assert (
        change(heart, "parkedPullsMax=7\ntopicsMax=60000\ngroupsMax=1\nlongPollingEnable=false\n").code == 0
    )
    assert broker.parked.count_max == 7
    for holder in (broker.topics, broker.groups, broker.fast):
        assert holder._config is broker.config
    assert broker.config.long_polling_enable is False


def test_changes_are_kept_in_the_file_of_the_start(heart: Harness, tmp_path: Path) -> None:
    """Only there, only their lines; without a file they last until the broker stops, which the reply says."""
    assert "until the broker stops" in (change(heart, "topicsMax=60000\n").remark or "")
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nbrokerName=broker-a\ntopicsMax=1\nunknown = x\ntopicsMax=2\n")
    heart.broker.settings_file = SettingsFile(file)
    reply = change(heart, "topicsMax=70000\nbrokerPermission=4\n")
    assert (reply.code, reply.remark) == (0, None)
    assert (
        file.read_text() == "# ours\nbrokerName=broker-a\ntopicsMax=70000\nunknown = x\nbrokerPermission=4\n"
    )
    assert [path.name for path in tmp_path.iterdir() if "conf" in path.name] == ["broker.conf"]


def test_what_cannot_be_kept_is_not_changed(heart: Harness, tmp_path: Path) -> None:
    """A file that cannot be written refuses the change."""
    heart.broker.settings_file = SettingsFile(tmp_path / "gone" / "broker.conf")
    reply = change(heart, "topicsMax=70000\n")
    assert reply.code == 1
    assert "nothing was changed" in (reply.remark or "")
    assert heart.broker.config.topics_max == 50_000


def test_too_much_is_refused(heart: Harness) -> None:
    """A body of settings is bounded before it is looked at."""
    assert change(heart, "a" * 70_000).code == 29

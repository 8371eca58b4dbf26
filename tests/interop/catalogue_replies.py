"""Replies to requests that nobody waits for, and filter servers, put to a broker by hand."""

from __future__ import annotations

from collections.abc import Iterable

from hotfire.protocol.codes import RequestCode as Code
from tests.interop.asking import Case
from tests.interop.catalogue import LETTERS, send_fields, unique

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKED = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000"}


def reply(
    name: str, topic: str = REPLY_TOPIC, *, code: int = Code.SEND_REPLY_MESSAGE_V2, **more: str
) -> Case:
    fields = send_fields(topic, {"properties": unique(900, **ASKED, **more)})
    if code == Code.SEND_REPLY_MESSAGE_V2:
        fields = {LETTERS[key]: value for key, value in fields.items()}
    return Case(f"reply {name}", "broker", code, fields, b"answer")


def replies() -> Iterable[Case]:
    yield reply("to nobody named")
    yield reply("to nobody named, V1", code=Code.SEND_REPLY_MESSAGE)
    yield reply("to nobody there", REPLY_TO_CLIENT="10.0.0.1@gone")
    yield reply("into a topic of the broker's", "SCHEDULE_TOPIC_XXXX", REPLY_TO_CLIENT="10.0.0.1@gone")
    yield reply("into a topic of no name", "no topic!", REPLY_TO_CLIENT="10.0.0.1@gone")


def filter_servers() -> Iterable[Case]:
    """Last of all: routes tell of one from then on."""
    yield Case(
        "register filter server",
        "broker",
        Code.REGISTER_FILTER_SERVER,
        {"filterServerAddr": "127.0.0.1:1"},
        connection="filter server",
    )
    classes = {"consumerGroup": "readers", "topic": "T", "className": "C", "classCRC": 0}
    yield Case("register filter class", "broker", Code.REGISTER_MESSAGE_FILTER_CLASS, classes)

"""Replies to requests: passed on to the client that waits, kept in the log, and told to who replied."""

import tracemalloc
from typing import Any

import pytest

from hotfire.broker.handlers import reply as replies
from hotfire.protocol.command import Command
from hotfire.protocol.record import SysFlag, parse_properties
from hotfire.protocol.requests import (
    PushReplyMessageToClient,
    SendMessage,
    SendReply,
    SendReplyMessage,
    SendReplyMessageV2,
    UnregisterClient,
)
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, FakeConnection, Harness, send_request

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKED = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "MSG_TYPE": "reply"}


def reply_request(
    named: dict[str, str] | None = None, *, declared: type[SendMessage] = SendReplyMessageV2, **fields: Any
) -> SendMessage:
    given = {"body": b"answer", **fields}
    made = send_request(TOPIC, named=ASKED if named is None else named, **given)
    return declared(**{field.name: getattr(made, field.name) for field in made.fields}, body=made.body)


@pytest.fixture
def asker(heart: Harness) -> FakeConnection:
    connection = heart.connect(50_200)
    heart.beat_producer("asker", "PG", connection)
    return connection


def take_push(asker: FakeConnection) -> tuple[Command, PushReplyMessageToClient]:
    command = asker.take_one()
    return command, PushReplyMessageToClient.from_command(command)


@pytest.mark.parametrize("declared", [SendReplyMessage, SendReplyMessageV2])
def test_a_reply_reaches_who_asked_and_is_kept(
    heart: Harness, asker: FakeConnection, declared: type[SendMessage]
) -> None:
    """Who replied hears of it only when the client has answered and the reply is on the disk."""
    (opaque,) = heart.receive(reply_request(declared=declared))
    heart.settle()
    command, push = take_push(asker)
    assert (push.topic, push.body, push.producer_group) == (TOPIC, b"answer", "PG")
    assert (push.born_host, push.store_host) == ("127.0.0.1:50001", "10.1.2.3:10911")
    named = parse_properties((push.properties or "").encode())
    assert named.items() >= {**ASKED, "PUSH_REPLY_TIME": str(START_MS)}.items()
    assert heart.connection.take() == []
    heart.receive_bytes_of(command.reply(0), asker)
    answer = heart.connection.take_one()
    assert (answer.opaque, answer.code, answer.remark) == (opaque, 0, None)
    told = SendReply.from_command(answer)
    (record,) = heart.log_records()
    assert told.msg_id == record.message_id
    assert (told.queue_id, told.queue_offset) == (0, 0)
    assert (record.topic, record.body) == (TOPIC, b"answer")
    kept = parse_properties(record.properties)
    assert kept.items() >= ASKED.items()
    assert not {"PUSH_REPLY_TIME", "CLUSTER", "MSG_REGION"} & kept.keys()


def test_without_an_asker_the_reply_is_kept_and_refused(heart: Harness, asker: FakeConnection) -> None:
    """Gone, unregistered or never named: the remarks of the reference, and the place of what was kept."""
    unnamed = heart.ask(reply_request({"CORRELATION_ID": "c"}))
    assert (unnamed.code, unnamed.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert SendReply.from_command(unnamed).queue_offset == 0
    unknown = heart.ask(reply_request({**ASKED, "REPLY_TO_CLIENT": "other"}))
    assert (unknown.code, unknown.remark) == (
        1,
        "push reply message fail, channel of <other> not found.",
    )
    assert heart.ask(UnregisterClient(client_id="asker", producer_group="PG"), asker).code == 0
    assert heart.ask(reply_request()).remark == "push reply message fail, channel of <asker> not found."
    assert asker.take() == []
    assert len(heart.log_records()) == 3


def test_an_asker_that_refuses_goes_or_is_silent(heart: Harness, asker: FakeConnection) -> None:
    """Who replied is told that it was not reached, at the latest after ten seconds."""
    heart.receive(reply_request())
    heart.settle()
    command, _ = take_push(asker)
    heart.receive_bytes_of(command.reply(1), asker)
    refused = heart.connection.take_one()
    assert (refused.code, refused.remark) == (1, "push reply message to askerfail.")
    heart.receive(reply_request())
    heart.settle()
    heart.pass_time(replies.PUSH_MS_MAX - 100)
    assert heart.connection.take() == []
    heart.pass_time(200)
    assert heart.connection.take_one().code == 1
    heart.receive(reply_request())
    heart.settle()
    heart.disconnect(asker)
    assert heart.connection.take_one().code == 1


def test_the_connection_that_came_last_gets_the_reply(heart: Harness, asker: FakeConnection) -> None:
    """A client that dialled anew is not looked for on the connection it left behind."""
    newer = heart.connect(50_201)
    heart.beat_producer("asker", "PG", newer)
    heart.beat_producer("asker", "PG2", newer)
    heart.receive(reply_request())
    heart.settle()
    assert asker.take() == []
    take_push(newer)
    heart.disconnect(newer)
    heart.connection.take()
    heart.receive(reply_request())
    heart.settle()
    take_push(asker)


def test_replies_need_not_be_kept(make: Make) -> None:
    """storeReplyMessageEnable=false: passed on all the same, with the id 0 for a message kept nowhere."""
    heart = make(store_reply_message_enable=False)
    asker = heart.connect(50_200)
    heart.beat_producer("asker", "PG", asker)
    heart.receive(reply_request())
    heart.settle()
    heart.receive_bytes_of(take_push(asker)[0].reply(0), asker)
    answer = heart.connection.take_one()
    assert (answer.code, SendReply.from_command(answer).msg_id) == (0, "0")
    assert heart.log_records() == []


def test_replies_on_their_way_pin_no_bodies(make: Make) -> None:
    """64 replies of 256 KiB that nobody has answered yet: little is kept of each, and not its body."""
    heart = make(store_reply_message_enable=False)
    asker = heart.connect(50_200)
    heart.beat_producer("asker", "PG", asker)
    body = bytes(1 << 18)
    heart.receive(reply_request(body=body))
    tracemalloc.start()
    try:
        for _ in range(64):
            heart.receive(reply_request(body=body))
            asker.take()
        assert len(heart.broker.asks) == 65
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_compressed_reply_can_be_read_from_the_log(heart: Harness, asker: FakeConnection) -> None:
    """Its record says how the body is compressed."""
    heart.receive(reply_request(sys_flag=SysFlag.COMPRESSED | SysFlag.ZLIB))
    heart.settle()
    (record,) = heart.log_records()
    assert record.sys_flag & SysFlag.COMPRESSED
    assert record.sys_flag & SysFlag.COMPRESSION_MASK == SysFlag.ZLIB

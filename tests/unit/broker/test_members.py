"""Who is there and who reads what, as administrators see it; and what only a client can tell of itself."""

import json
from typing import Any

import pytest

from hotfire.broker import asks
from hotfire.model import MessageQueue
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import VERSION, LanguageCode
from hotfire.protocol.command import Command
from hotfire.protocol.members import ConsumerStatus, ConsumeTimeSpans
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetEarliestStoreTime,
    GetProducerConnectionList,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    Request,
    SendReply,
    UpdateConsumerOffset,
)
from tests.unit.broker.damage import inquire
from tests.unit.broker.harness import START_MS, FakeConnection, Harness, tagged

T_SUBSCRIPTION = {
    "classFilterMode": False,
    "codeSet": [],
    "expressionType": "TAG",
    "subString": "*",
    "subVersion": 1,
    "tagsSet": [],
    "topic": "T",
}


@pytest.fixture
def client(heart: Harness) -> FakeConnection:
    """Client `a`: a producer of PG and a consumer of T in group CG."""
    connection = heart.connect(50_100)
    heart.beat_producer("a", "PG", connection)
    heart.beat("a", "CG", tagged("T", "*"), connection=connection)
    connection.take()
    return connection


def told(reply: Command) -> Any:
    """The reply's JSON; all of these have no fields and no remark."""
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    return json.loads(reply.body)


def commit(heart: Harness, offset: int, queue_id: int = 0) -> None:
    request = UpdateConsumerOffset(topic="T", consumer_group="CG", queue_id=queue_id, commit_offset=offset)
    assert heart.ask(request).code == 0


# --- who is there ---


def test_a_group_and_its_clients(heart: Harness, client: FakeConnection) -> None:
    """Field by field what the reference answers."""
    assert told(heart.ask(GetConsumerConnectionList(consumer_group="CG"))) == {
        "connectionSet": [
            {"clientAddr": "127.0.0.1:50100", "clientId": "a", "language": "JAVA", "version": 513}
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {"T": T_SUBSCRIPTION},
    }
    gone = heart.ask(GetConsumerConnectionList(consumer_group="other"))
    assert (gone.code, gone.remark) == (206, "the consumer group[other] not online")


def test_producers_by_group(heart: Harness, client: FakeConnection) -> None:
    connection = {"clientAddr": "127.0.0.1:50100", "clientId": "a", "language": "JAVA", "version": 513}
    found = heart.ask(GetProducerConnectionList(producer_group="PG"))
    assert told(found) == {"connectionSet": [connection]}
    gone = heart.ask(GetProducerConnectionList(producer_group="other"))
    assert (gone.code, gone.remark) == (1, "the producer group[other] not exist")
    assert told(heart.ask(GetAllProducerInfo())) == {
        "data": {
            "PG": [
                {
                    "clientId": "a",
                    "language": "JAVA",
                    "lastUpdateTimestamp": START_MS,
                    "remoteIP": "/127.0.0.1:50100",
                    "version": 513,
                }
            ]
        }
    }


@pytest.mark.promise(44)
def test_the_silent_are_in_no_list_after_120_s(heart: Harness, client: FakeConnection) -> None:
    """A client that still has its connection but says nothing: neither consumer nor producer any more."""
    heart.pass_time(120_000, step_ms=5000)
    assert heart.ask(GetConsumerConnectionList(consumer_group="CG")).code == 0
    assert heart.ask(GetProducerConnectionList(producer_group="PG")).code == 0
    heart.pass_time(11_000, step_ms=1000)
    assert heart.ask(GetConsumerConnectionList(consumer_group="CG")).code == 206
    assert heart.ask(GetProducerConnectionList(producer_group="PG")).code == 1
    assert told(heart.ask(GetAllProducerInfo())) == {"data": {}}


def test_who_reads_what(heart: Harness, client: FakeConnection) -> None:
    """Groups of a topic are those that subscribe now and those that have read; topics of a group likewise."""
    assert told(heart.ask(QueryTopicConsumeByWho(topic="T"))) == {"groupList": ["CG"]}
    assert told(heart.ask(QueryTopicsByConsumer(group="CG")))["topicList"] == []
    commit(heart, 0)
    subscribed = told(heart.ask(QuerySubscriptionByConsumer(group="CG", topic="T")))
    assert subscribed == {"group": "CG", "subscriptionData": T_SUBSCRIPTION, "topic": "T"}
    heart.disconnect(client)
    assert told(heart.ask(QueryTopicConsumeByWho(topic="T"))) == {"groupList": ["CG"]}, "it has read"
    assert told(heart.ask(QueryTopicConsumeByWho(topic="other"))) == {"groupList": []}
    assert told(heart.ask(QueryTopicsByConsumer(group="CG"))) == {
        "brokerAddr": "10.1.2.3:10911",
        "topicList": ["T"],
    }
    gone = told(heart.ask(QuerySubscriptionByConsumer(group="CG", topic="T")))
    assert gone == {"group": "CG", "topic": "T"}


# --- how late ---


def test_how_late_a_group_is(heart: Harness, client: FakeConnection) -> None:
    """Store times of the first, the last and the last consumed message, and how long the next has waited."""
    for number in range(4):
        heart.now_ms = START_MS + number * 1000
        heart.send(queue_id=0)
        heart.send(queue_id=1)
    commit(heart, 2)
    commit(heart, 4, queue_id=1)
    heart.now_ms = START_MS + 10_000
    reply = inquire(heart, QueryConsumeTimeSpan(topic="T", group="CG"))
    spans = decode_body(ConsumeTimeSpans, reply.body).spans
    times = [(s.min_timestamp, s.max_timestamp, s.consume_timestamp, s.delay_ms) for s in spans]
    first, last = START_MS, START_MS + 3000
    assert times == [
        (first, last, START_MS + 1000, 8000),
        (first, last, last, 0),
        (-1, -1, -1, 0),
        (-1, -1, -1, 0),
    ]
    assert [s.queue for s in spans] == [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
    assert spans[0].consume_text.endswith(":000")
    assert len(spans[0].min_text) == len("2026-11-16#17:36:45:806")
    stranger = decode_body(
        ConsumeTimeSpans, inquire(heart, QueryConsumeTimeSpan(topic="T", group="new")).body
    ).spans
    assert [s.delay_ms for s in stranger] == [10_000, 10_000, 0, 0], "its next message is the first"
    missing = heart.ask(QueryConsumeTimeSpan(topic="no", group="CG"))
    assert (missing.code, missing.remark) == (17, "topic[no] not exist")


def test_the_first_message_of_a_queue_tells_its_time(heart: Harness) -> None:
    """-1 where there is none: empty queue, unknown queue, unknown topic."""
    heart.now_ms = START_MS + 77
    heart.send()
    heart.send()
    places = [("T", 0), ("T", 1), ("T", 99), ("no", 0)]
    replies = [inquire(heart, GetEarliestStoreTime(topic=topic, queue_id=i)) for topic, i in places]
    assert [reply.fields for reply in replies] == [
        {"timestamp": str(START_MS + 77)},
        *[{"timestamp": "-1"}] * 3,
    ]


# --- what only the client knows ---


def passed_on(heart: Harness, client: FakeConnection, request: Request) -> Command:
    """The question as the client gets it."""
    heart.receive(request)
    while not client._unread:
        heart.ring()
    assert heart.connection.take() == [], "answered before the client was"
    return client.take_one()


def reply_of(heart: Harness, client: FakeConnection, question: Command, **answer: Any) -> Command:
    heart.receive_bytes_of(Command(opaque=question.opaque, flag=1, **answer), client)
    return heart.connection.take_one()


def running(client_id: str = "a") -> GetConsumerRunningInfo:
    return GetConsumerRunningInfo(consumer_group="CG", client_id=client_id, jstack_enable=False)


def test_running_info_is_the_clients_own(heart: Harness, client: FakeConnection) -> None:
    """The question reaches the client as it was asked, and the answer the one who asked, body and all."""
    question = passed_on(heart, client, running())
    assert (question.code, question.flag) == (307, 0)
    assert question.fields == {"consumerGroup": "CG", "clientId": "a", "jstackEnable": "false"}
    answer = reply_of(heart, client, question, code=0, body=b'{"properties":{}}')
    assert (answer.code, answer.flag, answer.fields, answer.remark) == (0, 1, None, None)
    assert answer.body == b'{"properties":{}}'
    assert (answer.language, answer.version) == (LanguageCode.JAVA, VERSION)
    question = passed_on(heart, client, running())
    old = reply_of(heart, client, question, code=0, language=LanguageCode.PYTHON, version=409)
    assert (old.language, old.version) == (LanguageCode.PYTHON, 409)  # the client's own, too
    refused = reply_of(heart, client, passed_on(heart, client, running()), code=1, remark="no such group")
    assert (refused.code, refused.remark, refused.body) == (1, "no such group", b"")


def test_a_client_that_does_not_answer(heart: Harness, client: FakeConnection) -> None:
    """After 10 s the one who asked is told so; a late answer is dropped, and so is a stranger's."""
    question = passed_on(heart, client, running())
    stranger = heart.connect(50_200)
    heart.receive_bytes_of(Command(0, question.opaque, 1, body=b"{}"), stranger)
    heart.pass_time(9_950)
    assert heart.connection.take() == []
    heart.pass_time(50)
    late = heart.connection.take_one()
    assert (late.code, late.remark) == (207, "consumer <CG> <a> Timeout: no answer within 10000 ms")
    heart.receive_bytes_of(Command(0, question.opaque, 1, body=b"{}"), client)
    assert heart.connection.take() == []
    assert len(heart.broker.asks) == 0


def test_a_client_that_goes(heart: Harness, client: FakeConnection) -> None:
    """Whoever asked need not wait for the deadline; if he went as well nobody is answered."""
    passed_on(heart, client, running())
    heart.disconnect(client)
    gone = heart.connection.take_one()
    assert (gone.code, gone.remark) == (207, "consumer <CG> <a> Timeout: it went")
    nobody = heart.ask(running())
    assert (nobody.code, nobody.remark) == (1, "The Consumer <CG> <a> not online")


def test_questions_are_bounded(
    heart: Harness, client: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks, "ASKED_MAX", 2)
    heart.receive(running(), running(), running())
    refused = heart.connection.take_one()
    assert refused.code == 2
    assert refused.remark == "2 questions to clients are under way; try again later"
    assert len(client.take()) == 2


def test_one_message_again_to_one_consumer(heart: Harness, client: FakeConnection) -> None:
    """The broker finds the message by its id and hands it over with the flags the client needs."""
    heart.send(body=b"first")
    sent = SendReply.from_command(heart.send(body=b"again"))
    request = ConsumeMessageDirectly(consumer_group="CG", client_id="a", msg_id=sent.msg_id, topic="T")
    question = passed_on(heart, client, request)
    assert question.code == 309
    assert question.fields == {
        "consumerGroup": "CG",
        "clientId": "a",
        "msgId": sent.msg_id,
        "brokerName": "broker-a",
        "topic": "T",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    (record,) = iter_records(question.body)
    assert (record.body, record.message_id) == (b"again", sent.msg_id)
    done = reply_of(heart, client, question, code=0, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert done.body == b'{"consumeResult":"CR_SUCCESS"}'
    bad = heart.ask(ConsumeMessageDirectly(consumer_group="CG", client_id="a", msg_id="xyz"))
    assert bad.code == 1
    assert (bad.remark or "").startswith("message id 'xyz': 32 or 56 hex digits")
    elsewhere = sent.msg_id[:-4] + "FFFF"
    missing = inquire(heart, ConsumeMessageDirectly(consumer_group="CG", client_id="a", msg_id=elsewhere))
    assert (missing.code, missing.remark) == (1, f"no message with the id {elsewhere}")


def test_offsets_the_clients_hold(heart: Harness, client: FakeConnection) -> None:
    """All clients of the group are asked, or the one that is named; who does not answer is left out."""
    other = heart.connect(50_101)
    heart.beat("b", "CG", tagged("T", "*"), connection=other)
    other.take()
    client.take()
    heart.receive(GetConsumerStatus(topic="T", group="CG"))
    held = encode_body(ConsumerStatus(queues={MessageQueue("T", "broker-a", 0): 3}))
    question = client.take_one()
    assert (question.code, question.fields) == (221, {"topic": "T", "group": "CG"})
    heart.receive_bytes_of(Command(0, question.opaque, 1, body=held), client)
    assert heart.connection.take() == []
    heart.pass_time(5000)
    reply = heart.connection.take_one()
    assert (reply.code, reply.remark) == (0, "not set any response code")
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    expected = '{"consumerTable":{"a":{' + queue + ':3}},"messageQueueTable":{}}'
    assert reply.body.decode() == expected
    other.take()
    heart.receive(GetConsumerStatus(topic="T", group="CG", client_addr="b"))
    assert client.take() == []
    heart.receive_bytes_of(Command(0, other.take_one().opaque, 1, body=b"nonsense"), other)
    assert decode_body(ConsumerStatus, heart.connection.take_one().body).clients == {}
    nobody = heart.ask(GetConsumerStatus(topic="T", group="CG", client_addr="zz"))
    assert decode_body(ConsumerStatus, nobody.body).clients == {}
    none = heart.ask(GetConsumerStatus(topic="T", group="other"))
    assert (none.code, none.remark) == (1, "No Any Consumer online in the consumer group: [other]")

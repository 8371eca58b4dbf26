"""Queues the broker shares among members of a group that let it, and the modes administrators set."""

import json
from typing import Any

import pytest

from hotfire.broker import modes
from hotfire.broker.routes import Queues, Then
from hotfire.model import MessageQueue
from hotfire.protocol.assignment import (
    Assignment,
    AssignmentQuery,
    Assignments,
    RequestMode,
    RequestModes,
)
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import (
    DeleteSubscriptionGroup,
    DeleteTopicInBroker,
    GetAllMessageRequestMode,
    QueryAssignment,
    SetMessageRequestMode,
)
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import Harness, tagged

QUEUES: Queues = tuple(
    MessageQueue("T", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)
)


def query(client: str = "c1", **changed: Any) -> QueryAssignment:
    wanted = {"topic": "T", "consumer_group": "G", "message_model": "CLUSTERING", "strategy_name": "AVG"}
    return QueryAssignment(body=encode_body(AssignmentQuery(**{**wanted, "client_id": client, **changed})))


def places(reply: Command) -> list[tuple[str, int]] | None:
    assert reply.code == 0, reply
    found = decode_body(Assignments, reply.body).assignments
    return None if found is None else [(one.queue.broker_name[-1], one.queue.queue_id) for one in found]


@pytest.fixture
def group(heart: Harness) -> Harness:
    """A broker that knows T to be on two brokers, and members c1 and c2 of G."""
    heart.broker.find_queues = lambda topic, then: then(QUEUES if topic == "T" else None)
    for number, client in enumerate(("c2", "c1")):
        heart.beat(client, "G", tagged("T", "*"), connection=heart.connect(60_000 + number))
    return heart


@pytest.mark.promise(114)
def test_members_get_their_shares_of_the_queues_of_all_brokers(group: Harness) -> None:
    """In the order of client ids, whoever came first; by the strategy the member names."""
    assert places(group.ask(query("c1"))) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert places(group.ask(query("c2"))) == [("b", 0), ("b", 1), ("b", 2), ("b", 3)]
    circle = group.ask(query("c2", strategy_name="AVG_BY_CIRCLE"))
    assert places(circle) == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]


def test_broadcasters_get_everything(group: Harness) -> None:
    """Whoever they are."""
    reply = group.ask(query("c9", message_model="BROADCASTING", consumer_group="Other", strategy_name=None))
    assert len(places(reply) or []) == len(QUEUES)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "Other"}, {"topic": "two words"}, {"consumer_group": "Other"}, {"strategy_name": None},
        {"strategy_name": "CONSISTENT_HASH"}, {"client": ""},
    ],
)  # fmt: skip
def test_what_cannot_be_said_lets_the_member_keep_what_it_has(
    group: Harness, changed: dict[str, Any]
) -> None:
    """No list at all; an empty one would take its queues away."""
    reply = group.ask(query(**changed))
    assert (reply.code, bytes(reply.body)) == (0, b"{}")


def test_who_is_no_member_has_no_queues(group: Harness) -> None:
    assert places(group.ask(query("c9"))) == []


def test_the_reply_is_in_javas_form(group: Harness) -> None:
    """Each queue with its mode; no field map."""
    group.broker.find_queues = lambda topic, then: then(QUEUES[:1])
    reply = group.ask(query("c1"))
    assert bytes(reply.body) == (
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T"},'
        b'"mode":"PULL"}]}'
    )
    assert reply.fields is None


def test_a_member_waits_for_the_name_servers_and_nobody_else_does(group: Harness) -> None:
    """Others are served meanwhile; who has gone is not answered."""
    waiting: list[Then] = []
    group.broker.find_queues = lambda topic, then: waiting.append(then)
    gone = group.connect(60_010)
    (first,) = group.receive(query("c1"))
    group.receive(query("c2"), to=gone)
    (second,) = group.receive(GetAllMessageRequestMode())
    while group.store.queries.waiting:
        group.ring()
    assert group.connection.take_one().opaque == second
    group.disconnect(gone)
    for then in waiting:
        then(QUEUES)
    reply = group.connection.take_one()
    assert (reply.opaque, places(reply)) == (first, [("a", 0), ("a", 1), ("a", 2), ("a", 3)])
    assert not gone.take()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"topic":"T","consumerGroup":"G"}', "lacks messageModel"),
        (b'{"topic":"T","consumerGroup":"G","messageModel":"SHOUTING"}', "not CLUSTERING or BROADCASTING"),
        (b"{}", "lacks topic"),
        (b"", "JSON"),
    ],
)
def test_a_question_that_is_none_is_refused(group: Harness, body: bytes, words: str) -> None:
    reply = group.ask(QueryAssignment(body=body))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert words in (reply.remark or "")


# --- modes ---


def set_mode(**changed: Any) -> SetMessageRequestMode:
    mode = RequestMode(**{"topic": "T", "consumer_group": "G", **changed})
    return SetMessageRequestMode(body=encode_body(mode))


def kept(heart: Harness) -> dict[str, Any]:
    tree = json.loads(bytes(heart.ask(GetAllMessageRequestMode()).body))
    table: dict[str, Any] = tree["messageRequestModeMap"]
    return table


def on_disk(heart: Harness) -> Any:
    return json.loads((heart.root / "config" / "messageRequestMode.json").read_text())[
        "messageRequestModeMap"
    ]


def test_a_mode_is_kept_as_apache_keeps_it(heart: Harness) -> None:
    """In messageRequestMode.json before it is answered, across restarts, with the number of shared queues."""
    assert heart.ask(set_mode(pop_share_queues=3)).code == 0
    wanted = {"T": {"G": {"consumerGroup": "G", "mode": "PULL", "popShareQueueNum": 3, "topic": "T"}}}
    assert kept(heart) == on_disk(heart) == wanted
    heart.reopen()
    assert kept(heart) == wanted


def test_popping_is_refused_with_a_reason(heart: Harness) -> None:
    reply = heart.ask(set_mode(mode="POP"))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "popping is not served" in (reply.remark or "")
    assert kept(heart) == {}


def test_a_group_that_popped_from_apaches_broker_pulls_here(make: Make) -> None:
    """What that broker wrote is kept and shown; members are told to pull, which reads the same queues."""
    heart = make()
    heart.create_topic("T")
    heart.close()
    popped = RequestModes({"T": {"G": RequestMode("T", "G", "POP", 8)}})
    (heart.root / "config" / "messageRequestMode.json").write_bytes(encode_body(popped))
    heart.open()
    heart.broker.find_queues = lambda topic, then: then(QUEUES)
    heart.beat("c1", "G", tagged("T", "*"), connection=heart.connect(60_000))
    reply = heart.ask(query("c1"))
    assert decode_body(Assignments, reply.body).assignments == tuple(map(Assignment, QUEUES))
    assert heart.ask(set_mode(consumer_group="H")).code == 0
    assert kept(heart)["T"]["G"]["mode"] == on_disk(heart)["T"]["G"]["mode"] == "POP"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "%RETRY%G"}, ResponseCode.NO_PERMISSION),
        ({"topic": "Other"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumer_group": "two words"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_mode_of_what_is_not_there_is_refused(heart: Harness, changed: dict[str, str], code: int) -> None:
    assert heart.ask(set_mode(**changed)).code == code
    assert kept(heart) == {}


def test_modes_go_with_their_topic_and_group(heart: Harness) -> None:
    heart.create_topic("U")
    for topic, name in (("T", "G"), ("T", "H"), ("U", "G")):
        assert heart.ask(set_mode(topic=topic, consumer_group=name)).code == 0
    heart.ask(DeleteSubscriptionGroup(group_name="G", clean_offset=False))
    assert {topic: list(groups) for topic, groups in kept(heart).items()} == {"T": ["H"]}
    heart.ask(DeleteTopicInBroker(topic="T"))
    assert kept(heart) == on_disk(heart) == {}


def test_there_is_a_limit_to_the_modes(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known already may still change."""
    monkeypatch.setattr(modes, "MODES_MAX", 1)
    assert heart.ask(set_mode()).code == 0
    refused = heart.ask(set_mode(consumer_group="H"))
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "at most 1 are" in (refused.remark or "")
    assert heart.ask(set_mode(pop_share_queues=2)).code == 0

"""The permission hook: every request says what it needs, and every road to a handler leads by it."""

import dataclasses
import typing

import pytest

from hotfire.broker.access import Access, Need, needed
from hotfire.broker.call import HANDLERS
from hotfire.model import ConsumerData, Heartbeat, MessageQueue, ProducerData, Subscription
from hotfire.protocol.bodies import LockBatch, encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.requests import (
    REQUESTS,
    CloneGroupOffset,
    GetBrokerRuntimeInfo,
    HeartBeat,
    LockBatchMq,
    Request,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateTopicList,
)
from tests.unit.broker.harness import Harness, pull_request, send_request

NO_PERMISSION = 16


def example(declared: type[Request]) -> Request:
    """Any request of that kind: texts are the field's name, numbers 1."""
    hints = typing.get_type_hints(declared)
    values: dict[str, object] = {}
    for field in dataclasses.fields(declared):  # type: ignore[arg-type]  # requests are dataclasses
        kinds = {hints[field.name], *typing.get_args(hints[field.name])}
        values[field.name] = (
            b"{}" if bytes in kinds else f"a-{field.name}" if str in kinds else bool in kinds or 1
        )
    return declared(**values)


@pytest.mark.parametrize("declared", REQUESTS.values(), ids=lambda declared: declared.__name__)
def test_every_request_says_what_it_needs(declared: type[Request]) -> None:
    """Each declaration resolves: a verb, a kind, and the name given; only the cluster has none."""
    found = needed(example(declared))
    named = [need for need in declared.needs if need.field not in (None, "body")]
    assert len([need for need in found if need.kind != "cluster"]) == len(named)
    for need in found:
        assert need.kind in ("topic", "group", "cluster")
        assert bool(need.name) == (need.kind != "cluster")
        assert need.name.startswith("a-") or need.kind == "cluster"


def test_names_in_bodies_are_found() -> None:
    """Heartbeats, locks and lists name topics and groups inside only."""
    consumer = ConsumerData("CG", subscriptions=(Subscription("T1"), Subscription("T2")))
    beat = HeartBeat(body=encode_body(Heartbeat("c", (ProducerData("PG"),), (consumer,))))
    assert set(needed(beat)) == {
        Need("use", "group", "CG"),
        Need("use", "group", "PG"),
        Need("read", "topic", "T1"),
        Need("read", "topic", "T2"),
    }
    lock = LockBatchMq(body=encode_body(LockBatch("CG", "c", (MessageQueue("T", "b", 0),))))
    assert set(needed(lock)) == {Need("use", "group", "CG"), Need("read", "topic", "T")}
    topics = UpdateAndCreateTopicList(body=b'{"topicConfigList":[{"topicName":"T1"},{"topicName":"T2"}]}')
    assert needed(topics) == [Need("manage", "topic", "T1"), Need("manage", "topic", "T2")]
    group = UpdateAndCreateSubscriptionGroup(body=b'{"groupName":"G"}')
    assert needed(group) == [Need("manage", "group", "G")]
    clone = CloneGroupOffset(src_group="A", dest_group="B")
    assert needed(clone) == [Need("manage", "group", "A"), Need("manage", "group", "B")]


def test_every_handler_is_behind_the_hook(heart: Harness) -> None:
    """With a policy that allows nothing, whatever needs something is refused; the lane serves nothing."""
    heart.create_topic("T", 1)
    heart.send()
    heart.pull()
    asked: list[Need] = []

    def refuse(connection: object, need: Need) -> bool:
        asked.append(need)
        return False

    heart.broker.access = Access(refuse)
    for declared in HANDLERS:
        request = example(declared)
        if not needed(request):
            continue
        asked.clear()
        reply = heart.ask(request)
        assert (declared, reply.code) == (declared, NO_PERMISSION)
        assert asked == needed(request)[:1]
    for request in (send_request(), pull_request()):
        assert heart.ask(request).code == NO_PERMISSION


def test_a_policy_sees_who_asks_for_what(heart: Harness) -> None:
    """One that allows reading lets a pull through and a send not."""
    heart.create_topic("T", 1)
    heart.send(body=b"x")
    heart.broker.access = Access(lambda connection, need: need.verb in ("read", "use"))
    assert heart.pull().code == 0
    refused = heart.send()
    assert (refused.code, refused.remark) == (NO_PERMISSION, "no permission to write topic[T]")
    assert heart.ask(GetBrokerRuntimeInfo()).remark == "no permission to manage cluster[]"
    heart.broker.access = Access()
    assert heart.send().code == 0


def test_a_body_that_is_none_is_the_peers_mistake(heart: Harness) -> None:
    """What cannot be read cannot be judged: refused, and the broker goes on."""
    heart.broker.access = Access(lambda connection, need: True)
    reply = heart.ask(Command(code=HeartBeat.code, body=b"{nonsense"))
    assert reply.code == 1

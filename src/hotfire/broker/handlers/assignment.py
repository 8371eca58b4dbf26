"""Members of a group that let their broker decide ask which queues are theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.allocation import AVERAGELY, BY_CIRCLE, ids_in_order
from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.broker.handlers.beside import answer_beside, without_body
from hotfire.broker.handlers.clients import check_names
from hotfire.broker.routes import Queues
from hotfire.errors import BrokerRefused
from hotfire.model import RETRY_PREFIX, check_topic_name
from hotfire.protocol.assignment import (
    BROADCASTING,
    POP,
    Assignment,
    AssignmentQuery,
    Assignments,
    RequestMode,
)
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

STRATEGIES = {strategy.name: strategy for strategy in (AVERAGELY, BY_CIRCLE)}
"""As in the reference. The others are told by each client what a broker cannot know: rooms, queues, nodes."""


@handles(QueryAssignment)
def query(broker: Broker, call: Call[QueryAssignment]) -> Outcome:
    """A share of all queues of the topic, those on other brokers too: name servers are asked where it is."""
    wanted = decode_body(AssignmentQuery, call.request.body)
    check_names(wanted.client_id, wanted.consumer_group, wanted.strategy_name or "")
    try:
        check_topic_name(wanted.topic)
    except BrokerRefused:  # no topic may have that name: there is none
        return answer(None)
    waiting = without_body(call)  # name servers may take their time

    def tell(queues: Queues | None) -> None:
        if not waiting.connection.closed:
            broker.serve(waiting, QueryAssignment, lambda: answer(assigned(broker, wanted, queues)))

    broker.find_queues(wanted.topic, tell)
    return PARKED


def assigned(broker: Broker, wanted: AssignmentQuery, queues: Queues | None) -> Queues | None:
    """What the member is to read. None when that cannot be said: it then keeps what it has."""
    if queues is None or wanted.message_model == BROADCASTING:
        return queues
    group = broker.clients.consumers.get(wanted.consumer_group)
    strategy = STRATEGIES.get(wanted.strategy_name or "")
    if group is None or strategy is None or not queues or not wanted.client_id:
        return None
    client_ids = ids_in_order(group.client_ids)
    if wanted.client_id not in client_ids:
        return ()
    return tuple(strategy.share(wanted.client_id, queues, client_ids))


def answer(queues: Queues | None) -> Answer:
    """Whatever mode is kept for the group: popping is not served yet, and pulling reads the same queues."""
    found = None if queues is None else tuple(Assignment(queue) for queue in queues)
    return Answer(body=encode_body(Assignments(found)))


@handles(SetMessageRequestMode)
def set_mode(broker: Broker, call: Call[SetMessageRequestMode]) -> Outcome:
    wanted = decode_body(RequestMode, call.request.body)
    if wanted.topic.startswith(RETRY_PREFIX):
        raise BrokerRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if broker.topics.get(wanted.topic) is None:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic:.300}] not exist")
    try:
        group = broker.groups.find(wanted.consumer_group, call.now_ms)
    except BrokerRefused:  # no group may have that name
        group = None
    if group is None:
        raise BrokerRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
    if wanted.mode == POP:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION,
            f"mode POP of group[{wanted.consumer_group}] and topic[{wanted.topic}]: popping is not served, "
            "set PULL",
        )
    broker.modes.put(wanted)
    return Answer()


@handles(GetAllMessageRequestMode)
def modes(broker: Broker, call: Call[GetAllMessageRequestMode]) -> Outcome:
    table = broker.modes.all()
    return answer_beside(broker, call, lambda _: encode_body(table))

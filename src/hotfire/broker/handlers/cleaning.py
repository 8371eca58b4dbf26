"""Clean-ups that administrators ask for; the broker does them by itself sooner or later, but for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.broker import changes
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.model import LMQ_PREFIX
from hotfire.protocol.requests import CleanExpiredConsumeQueue, CleanUnusedTopic, DeleteExpiredCommitLog

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

UNUSED_A_TIME_MAX = 100
"""Topics whose queues go with one request: each takes a rename and a sync."""


@handles(DeleteExpiredCommitLog)
def delete_expired(broker: Broker, call: Call[DeleteExpiredCommitLog]) -> Outcome:
    broker.store.delete_expired()
    return Answer()


@handles(CleanExpiredConsumeQueue)
def clean_queues(broker: Broker, call: Call[CleanExpiredConsumeQueue]) -> Outcome:
    """Nothing is left to do: queues follow the log, some at each tick, whenever one of its segments goes."""
    return Answer()


@handles(CleanUnusedTopic)
def clean_unused(broker: Broker, call: Call[CleanUnusedTopic]) -> Outcome:
    """Queues of topics that do not exist, left by whoever removed the topic from the table by hand."""
    known = {topic.name for topic in broker.topics} | broker.topics.system_names()
    unused = [
        name
        for name in broker.store.deletions.topics_besides(known)
        if not name.startswith(LMQ_PREFIX) and not broker.topics.is_system(name)
    ]
    if unused:
        changes.delete_topics(broker, unused[:UNUSED_A_TIME_MAX], call.now_ms)
    return Answer()

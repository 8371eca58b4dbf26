"""Changes that reach every part of a broker: topics that go, other settings, members that come, another time.

Each is on disk before anyone sees it. Knows the parts of the broker; whether a change is allowed is its
handler's affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from hotfire.broker.config import BrokerConfig
from hotfire.broker.handlers.pull import topic_gone
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import encode
from hotfire.protocol.requests import NotifyConsumerIdsChanged
from hotfire.settings import to_properties

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

NOT_KEPT = "in effect until the broker stops: it was started without a configuration file to keep it in"


def delete_topics(broker: Broker, names: list[str], now_ms: int) -> None:
    """Topics, their queues and offsets.

    First the store's word that they are gone: a crash or a full disk behind it leaves an empty topic, one
    before it nothing changed; never a topic without some of its messages.
    """
    if broker.config.is_slave:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{names[0]}] is not deleted: this slave's log is a copy of its master's, and could not go "
            "on; delete it at the master",
        )
    if broker.config.has_followers:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{names[0]}] is not deleted: slaves may copy this log, and a deletion is not copied yet; "
            "delete topics while brokerRole is ASYNC_MASTER and haListenPort 0, then begin each slave with a "
            "new copy of this store, see `hotfire store snapshot`",
        )
    left = broker.store.deletions.delete(names)
    try:
        broker.topics.remove(names, now_ms)
        broker.modes.forget_topics(names)
    finally:
        broker.fast.revoke_all()  # conditions go with their topic
        for name in names:
            broker.fast.topic_removed(name)
            if (topic := broker.topics.get(name)) is not None:
                broker.fast.topic_changed(topic)  # nobody sends to the queues it had
            broker.offsets.forget_topic(name)
            broker.conditions.forget_topic(name)
            broker.statistics.forget_topic(name)
            broker.timers.metrics.forget(name)
        for queue in left:
            for pull in broker.parked.on_queue(queue):
                broker.parked.remove(pull)
                broker.revive(topic_gone, pull)


def clock_moved(broker: Broker, by_ms: int) -> None:
    """The wall clock was set: every deadline moves along."""
    broker.waiting.clock_moved(by_ms)
    broker.statistics.clock_moved(by_ms)
    broker.parked.clock_moved(by_ms)
    broker.asks.clock_moved(by_ms)
    broker.locks.clock_moved(by_ms)
    broker.clients.clock_moved(by_ms)
    broker.delays.clock_moved(by_ms)
    broker.transactions.clock_moved(by_ms)
    broker.store.clock_moved(by_ms)


def forget_former_lives(broker: Broker) -> None:
    """At a start: a crash may have come between a deletion and the next write of the offsets."""

    def end_of(topic: str, queue_id: int) -> int:
        queue = broker.store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.max

    for name in broker.store.deletions.ends:
        broker.offsets.forget_beyond(name, partial(end_of, name))


def configure(broker: Broker, config: BrokerConfig, now_ms: int) -> str | None:
    """Take these settings at once; a remark when they will not outlive this process."""
    before, changed = to_properties(broker.config), to_properties(config)
    changed = {key: value for key, value in changed.items() if before[key] != value}
    broker.topics.configure(config, now_ms)  # refuses what has no room, before anything is taken
    if broker.settings_file is not None:
        try:
            broker.settings_file.keep(changed)
        except BrokerRefused:
            broker.topics.configure(broker.config, now_ms)
            raise
    broker.config = config
    broker.config_version = broker.config_version.next(now_ms)
    broker.groups.configure(config)
    broker.fast.configure(config, broker.topics)
    broker.backlogs.configure(config)
    broker.timers.config = config
    broker.parked.count_max = config.parked_pulls_max
    broker.topics_changed()
    return None if broker.settings_file is not None else NOT_KEPT


def tell_members(broker: Broker, groups: Iterable[str]) -> None:
    """Tell every member that its group changed, so that it rebalances at once."""
    for name in groups:
        broker.fast.revoke(name)
        group, config = broker.clients.consumers.get(name), broker.groups.get(name)
        if group is None:
            broker.conditions.leave(name, broker.now_ms)
        wanted = broker.config.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )
        if group is None or group.is_broadcast or not wanted:  # who reads everything has none to share with
            continue
        for connection in group.members:
            notice = NotifyConsumerIdsChanged(consumer_group=name)
            connection.write(encode(notice.to_command(opaque=broker.asks.number(), oneway=True)))

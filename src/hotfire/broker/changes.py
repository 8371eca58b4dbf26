"""Changes that reach every part of a broker: topics that go, other settings, members that come.

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
    left = broker.store.deletions.delete(names)
    try:
        broker.topics.remove(names, now_ms)
        broker.modes.forget_topics(names)
    finally:
        for name in names:
            broker.fast.topic_removed(name)
            if (topic := broker.topics.get(name)) is not None:
                broker.fast.topic_changed(topic)  # nobody sends to the queues it had
            broker.offsets.forget_topic(name)
            broker.statistics.forget_topic(name)
        for queue in left:
            for pull in broker.parked.on_queue(queue):
                broker.parked.remove(pull)
                broker.revive(topic_gone, pull)


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
    broker.parked.count_max = config.parked_pulls_max
    broker.topics_changed()
    return None if broker.settings_file is not None else NOT_KEPT


def tell_members(broker: Broker, groups: Iterable[str]) -> None:
    """Tell every member that its group changed, so that it rebalances at once."""
    for name in groups:
        broker.fast.revoke(name)
        group, config = broker.clients.consumers.get(name), broker.groups.get(name)
        wanted = broker.config.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )
        if group is None or group.is_broadcast or not wanted:  # who reads everything has none to share with
            continue
        for connection in group.members:
            notice = NotifyConsumerIdsChanged(consumer_group=name)
            connection.write(encode(notice.to_command(opaque=broker.asks.number(), oneway=True)))

"""An optional limit to how far behind the consumers of a topic may be: beyond it sends are refused.

Of use where a queue must not grow without end while its consumers take what they can. Off by default.
"""

from __future__ import annotations

import logging
import re

from hotfire.broker.config import BrokerConfig
from hotfire.broker.offsets import Offsets
from hotfire.errors import BrokerRefused
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

ATTRIBUTE = "backlog.max"
LOOK_PERIOD_MS = 100
"""Between two looks at all groups for one queue; in between it may only seem fuller than it is."""
_COUNT = re.compile(r"[0-9]{1,18}")


def backlog_max(config: BrokerConfig, topic: TopicConfig) -> int:
    """Messages a queue of the topic may be behind; 0 for no limit."""
    text = topic.attributes.get(ATTRIBUTE)
    return config.topic_backlog_max if text is None or not _COUNT.fullmatch(text) else int(text)


class Backlogs:
    """How far the slowest group of each limited queue is."""

    def __init__(self, config: BrokerConfig, store: Store, offsets: Offsets) -> None:
        self._config = config
        self._store = store
        self._offsets = offsets
        self._slowest: dict[tuple[str, int], tuple[int, str | None, int]] = {}
        """Queue -> offset and name of its slowest group, and when that was looked up."""

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def check(self, topic: TopicConfig, queue_id: int, now_ms: int) -> None:
        """Refuse a message to a queue that has its fill."""
        limit = backlog_max(self._config, topic)
        if not limit:
            return
        queue = self._store.queue(topic.name, queue_id)
        offset, group, looked_ms = self._slowest.get((topic.name, queue_id), (0, None, 0))
        if queue.next - offset >= limit and not 0 <= now_ms - looked_ms < LOOK_PERIOD_MS:
            offset, group = self._offsets.slowest(topic.name, queue_id) or (queue.min, None)
            offset = max(offset, queue.min)
            self._slowest[topic.name, queue_id] = offset, group, now_ms
        backlog = queue.next - offset
        if backlog >= limit:
            who = f"group[{group}] is" if group is not None else "no group consumes it, it is"
            raise BrokerRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[BACKLOG]broker busy, topic[{topic.name}] queueId[{queue_id}] is full: {who} {backlog} "
                f"messages behind, the limit is {limit}; send later, or let its consumers catch up",
            )

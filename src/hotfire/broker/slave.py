"""A broker that copies its master's log and refuses everything that would write to it (SLAVE).

It is the ordinary broker, whose own work rests. What its master sends is placed in the turn by `following`,
which hears here when a turn is done. A message's topic is there before the message is acknowledged: tables
are asked of the master only now and then, and whoever takes over must be able to serve what it holds.
"""

from __future__ import annotations

from collections.abc import Callable

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.model import TopicConfig
from hotfire.protocol.record import Host
from hotfire.store.config import delays_ms
from hotfire.store.replica import Replica
from hotfire.store.store import Store


class Slave(Broker):
    """A broker whose log is another's."""

    def __init__(self, config: BrokerConfig, store: Store, advertised: Host, now_ms: int) -> None:
        super().__init__(config, store, advertised, now_ms)
        delays = delays_ms(config.message_delay_level)
        self.replica = Replica(store, config.mapped_file_size_commit_log, delays)
        self.on_turn_done: Callable[[int], None] = lambda now_ms: None

    def place(self, now_ms: int) -> bool:
        """Append some of what has arrived; False when more of it has to wait."""
        try:
            return self.replica.place()
        finally:
            self._know_topics(now_ms)
            if self.store.journal.pending:
                self.wants_turn = True

    def _know_topics(self, now_ms: int) -> None:
        """Topics of queues that begin, as wide as they have to be until the master is asked about them."""
        queues, self.replica.new_queues = self.replica.new_queues, []
        wider: dict[str, TopicConfig] = {}
        for name, queue_id in queues:
            topic = wider.get(name) or self.topics.get(name)
            if topic is None or queue_id >= max(topic.read_queues, topic.write_queues):
                wider[name] = TopicConfig(name, queue_id + 1, queue_id + 1)
        if wider:
            self.topics.put_all(wider.values(), now_ms)

    def _turn_done(self, now_ms: int) -> None:
        super()._turn_done(now_ms)
        self.on_turn_done(now_ms)

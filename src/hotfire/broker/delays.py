"""All that is parked for later: delay levels and times of their own, as the heart drives them together."""

from __future__ import annotations

from hotfire.broker.config import BrokerConfig
from hotfire.broker.fastlane import FastLane
from hotfire.broker.schedule import Fetch, Schedule
from hotfire.broker.timermetrics import TimerMetrics
from hotfire.broker.timers import Timers
from hotfire.store.config import delays_ms
from hotfire.store.store import Store


class Delays:
    """The schedule of levels, and the timers."""

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._is_slave = config.is_slave
        """How far a slave's are delivered is its master's word."""
        progress, period_ms = store.table("delayOffset.json"), config.flush_delay_offset_interval
        self.schedule = Schedule(store, delays_ms(config.message_delay_level), progress, period_ms)
        self.timers = Timers(store, config, TimerMetrics(store.table("timermetrics")))

    def use(self, fast: FastLane) -> None:
        """Let the lane do of the timers' work what it can."""
        fast.take_timers(self.timers.queue, self.timers.files.wheel)
        self.timers.delivery.lane = fast.lane

    def load(self, now_ms: int) -> None:
        self.schedule.load(now_ms)
        self.timers.load(now_ms)

    def tick(self, now_ms: int) -> None:
        self.schedule.tick(now_ms)
        self.timers.tick(now_ms)

    def advance(self) -> None:
        self.schedule.advance()
        self.timers.advance()

    def due_ms(self) -> int | None:
        due = [at for at in (self.schedule.due_ms(), self.timers.due_ms()) if at is not None]
        return min(due, default=None)

    def clock_moved(self, by_ms: int) -> None:
        self.schedule.clock_moved(by_ms)
        self.timers.clock_moved(by_ms)

    def fetched(self, token: object, error: int) -> bool:
        """Whether a cold read was ours; then what it brought is dealt with."""
        if isinstance(token, Fetch):
            self.schedule.fetched(token, error)
        elif isinstance(token, Timers):
            token.fetched(error)
        else:
            return False
        return True

    def save(self, now_ms: int) -> None:
        if self._is_slave:
            return
        self.schedule.save(now_ms)
        self.timers.save(now_ms)

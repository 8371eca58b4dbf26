"""The broker's heart: read -> decode -> handle -> append -> sync once -> reply -> wake.

One loop owns one store. A pass over the sockets fills a turn of the log; the flusher writes and syncs it
while the next one fills. A reply that promises a record waits here until the log is readable past it. This
class is a plain function of (connection, bytes, now): sockets, time and disk arrive from outside, so that the
program that serves users is the program a simulator runs.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from hotfire import core
from hotfire.broker import changes, handlers
from hotfire.broker.access import Access
from hotfire.broker.asks import Asks
from hotfire.broker.backlog import Backlogs
from hotfire.broker.call import HANDLERS, PARKED, Answer, AnswerWhenReadable, Call, Outcome, Refused, Task
from hotfire.broker.clients import Clients
from hotfire.broker.cold import ColdReads
from hotfire.broker.conditions import Conditions
from hotfire.broker.config import BrokerConfig
from hotfire.broker.delays import Delays
from hotfire.broker.fastlane import NEXT_FULL, NEXT_MUCH, NEXT_PARTIAL, NEXT_SEGMENT, FastLane
from hotfire.broker.groups import Groups
from hotfire.broker.locks import QueueLocks
from hotfire.broker.modes import Modes
from hotfire.broker.offsets import Offsets
from hotfire.broker.parked import Parked, ParkedPull
from hotfire.broker.routes import Then
from hotfire.broker.settings_file import SettingsFile
from hotfire.broker.statistics import Statistics
from hotfire.broker.topics import Topics
from hotfire.broker.transactions import Transactions
from hotfire.broker.waiting import One, Waiting
from hotfire.broker.waking import Waking
from hotfire.errors import (
    BrokerRefused,
    LocalProtocolError,
    MalformedRequest,
    RemoteProtocolError,
    StoreBusy,
    StoreError,
    StoreReadOnly,
)
from hotfire.model import DataVersion, TopicConfig
from hotfire.net.heart import Connection, Heart, Watch
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command, decode, encode, encode_parts, frame_size
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host, encode_properties
from hotfire.protocol.requests import REQUESTS, Request, SendReply
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

EXPIRE_PERIOD_MS = 10_000
RECHECK_PERIOD_MS = 5_000
COUNT_PERIOD_MS = 1_000
HANDLED_PER_PASS_MAX = 32
"""Requests of one connection that handlers serve before the others have their turn: some 3 ms."""


class Broker(Heart):
    """Topics, groups, clients, parked pulls and replies in waiting, around one store."""

    def __init__(self, config: BrokerConfig, store: Store, advertised: Host, now_ms: int) -> None:
        super().__init__()
        self.config = config
        self.store = store
        self.address = f"{advertised.ip}:{advertised.port}"
        self.store_host = advertised
        self.suffix = encode_properties(
            {
                "MSG_REGION": config.region_id,
                "TRACE_ON": "true" if config.trace_on else "false",
                "CLUSTER": config.broker_cluster_name,
            }
        )
        self.started_ms = now_ms
        self._is_slave = config.is_slave
        self.unique_ids = UniqueIds(advertised.address, os.getpid(), now_ms)
        self.topics = Topics(config, store.table("topics.json"))
        self.groups = Groups(config, store.table("subscriptionGroup.json"))
        self.modes = Modes(store.table("messageRequestMode.json"))
        self.offsets = Offsets(store.table("consumerOffset.json"))
        self.clients = Clients(config.channel_expired_timeout, lambda: self.topics_changed())
        self.conditions = Conditions(config, store, now_ms)
        self.asks, self.locks = Asks(), QueueLocks()
        self.parked = Parked(config.parked_pulls_max, config.parked_pulls_per_connection_max)
        self.waking = Waking(self.parked)
        self.cold = ColdReads()
        self.delays = Delays(store, config)
        self.schedule, self.timers = self.delays.schedule, self.delays.timers
        self.transactions = Transactions(self)
        self._own_work = () if self._is_slave else (self.delays, self.transactions)
        self.backlogs = Backlogs(config, store, self.offsets)
        self.access = Access()
        self.statistics = Statistics(config.broker_cluster_name, now_ms)
        self.fast = FastLane(config, store, advertised, self.suffix, self.transactions.outcomes.places)
        self.has_lane = self.fast.lane is not None
        self.delays.use(self.fast)
        self.settings_file: SettingsFile | None = None  # the one given at the start, if any
        self.config_version = DataVersion()
        self.topics_changed: Callable[[], None] = lambda: None
        self.when_registered: Callable[[Callable[[], None]], None] = lambda tell: tell()
        """Called when name servers have to be told; and what calls back once they were."""
        self.find_queues: Callable[[str, Then], None] = lambda topic, then: then(None)
        self.waiting = Waiting(self.statistics.took)
        self._postponed: deque[Callable[[], None]] = deque()
        """Answers of queries that store something and found the turn full."""
        self.now_ms = now_ms
        """Of the last tick or ring, for work that began with an earlier request."""
        self._saved_offsets_ms = self._expired_ms = self._rechecked_ms = self._counted_ms = now_ms
        self.sends_handled = self.flush_timeouts = 0
        self.topics.on_change = self._topic_changed
        self.topics.on_remove = lambda name: self.topics_changed()
        self.topics.load(now_ms)
        self.groups.load(now_ms)
        self.offsets.load()
        changes.forget_former_lives(self)
        self.delays.load(now_ms)
        self.transactions.load(now_ms)
        for topic in self.topics:
            self.fast.topic_changed(topic)

    # --- what the server calls ---

    def watches(self) -> list[Watch]:
        return [
            (self.store.fileno(), self._turn_done),
            (self.store.reader_fileno(), self._reads_done),
            (self.store.queries.fileno(), self._queries_done),
        ]

    def receive(self, connection: Connection, data: memoryview, now_ms: int) -> int:
        at, size, widened_at, handled = 0, len(data), -1, 0
        lane = self.lane(now_ms)
        while at < size and handled < HANDLED_PER_PASS_MAX and not connection.is_clogged:
            if lane is not None:
                consumed, following, waiting, ready, pulls = lane.serve(
                    data, at, connection.born_host, now_ms
                )
                at += consumed
                self.transactions.lane_has_served(now_ms)
                if waiting is not None:
                    self.transactions.tell(One(connection, waiting), now_ms)
                if ready is not None:
                    connection.write(ready)
                self._count_pulls(pulls)
                if following in (NEXT_PARTIAL, NEXT_MUCH):
                    break
                # Once per frame: should the next segment not do either, the handler says why
                if following == NEXT_SEGMENT and widened_at != at and self._add_segment():
                    widened_at = at
                    continue
                if following == NEXT_FULL:
                    self._hold(connection)
                    break
            frame = frame_size(data, at)
            if not frame or at + frame > size:
                break
            try:
                self._serve(connection, decode(data[at : at + frame]), now_ms)
            except BlockingIOError:  # the turn is full: this frame is served when it has been written
                self._hold(connection)
                break
            at += frame
            handled += 1
        self._hand_over_soon()
        return at

    def lane(self, now_ms: int) -> core.Lane | None:
        self.doing = "lane"
        is_served = self._takes_sends(now_ms) and self.access.is_open
        return self.fast.lane if is_served else None  # handlers refuse what is to be refused

    def served(self, replies: core.Replies | None, pulls: list[core.Pull], now_ms: int) -> None:
        self.transactions.lane_has_served(now_ms)
        if replies is not None:
            self.transactions.tell(replies, now_ms)
        self._count_pulls(pulls)
        self._hand_over_soon()

    def _count_pulls(self, pulls: list[core.Pull]) -> None:
        for token, queue_id, offset, next_offset, messages, pulled_bytes in pulls:
            self.statistics.delivered(token, messages, pulled_bytes)
            self.offsets.carry(token[0], token[1], queue_id, offset)
            self.offsets.pulled(token, queue_id, next_offset)

    def _takes_sends(self, now_ms: int) -> bool:
        return (
            self.store.is_writeable
            and not self._is_slave
            and now_ms >= self.config.start_accept_send_request_time_stamp
            and self.waiting.longest_ms(now_ms) <= self.config.wait_time_mills_in_send_queue
        )

    def _add_segment(self) -> bool:
        """Room for what the lane holds; False when there is none, and the handler refuses the message."""
        try:
            self.store.add_segment()
        except OSError:
            return False
        return True

    def _hold(self, connection: Connection) -> None:
        connection.hold()
        self.held.append(connection)

    def turn(self, now_ms: int) -> None:
        """Hand the filled turn to the flusher; if it still has the one before, the end of that does it."""
        self.wants_turn = False
        self.transactions.write_ops(now_ms)
        self.store.submit()
        self._revive_some(now_ms)

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.doing = "store"
        self.waking.wake(self.store.tick(now_ms))
        for work in self._own_work:
            self.doing = type(work).__name__
            work.tick(now_ms)
        if self.store.fault is not None:
            self._drop_replies()
        if now_ms - self._counted_ms >= COUNT_PERIOD_MS:
            self.count(now_ms)
        self.doing = "held pulls"
        # the disk takes too long: the messages are kept, their fate is open
        late_ms = now_ms - self.config.sync_flush_timeout
        self.flush_timeouts += self.waiting.time_out(late_ms) + self.transactions.untold.time_out(late_ms)
        if now_ms - self._rechecked_ms >= RECHECK_PERIOD_MS:
            self._rechecked_ms = now_ms
            self.waking.wake(self.parked.queues())
        self._revive_some(now_ms)
        self.asks.expire(now_ms)
        if now_ms - self._expired_ms >= EXPIRE_PERIOD_MS:
            self._expired_ms = now_ms
            self.doing = "clients"
            changes.tell_members(self, self.clients.expire(now_ms))
            self.locks.expire(now_ms)
        passed_ms = now_ms - self._saved_offsets_ms
        if passed_ms >= self.config.flush_consumer_offset_interval or self.offsets.is_urgent:
            self.doing = "offsets"
            if self.offsets.save_beside(now_ms):
                self._saved_offsets_ms = now_ms
            self.groups.save_owed()
        self.conditions.tick(now_ms)
        self._hand_over_soon()

    def due_ms(self) -> int | None:
        return min((due for work in self._own_work if (due := work.due_ms()) is not None), default=None)

    def clock_moved(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self._rechecked_ms += by_ms
        self._expired_ms += by_ms
        self._saved_offsets_ms += by_ms
        self._counted_ms += by_ms
        changes.clock_moved(self, by_ms)

    def drained(self, connection: Connection, now_ms: int) -> None:
        self.cold.drained(connection)
        self._revive_some(now_ms)

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        self.parked.disconnected(connection)
        self.cold.disconnected(connection)
        self.asks.disconnected(connection)
        changes.tell_members(self, self.clients.disconnected(connection))

    def close(self, now_ms: int) -> None:
        """Write the tables and close the store. Replies still waiting are sent as their turns complete."""
        self.transactions.write_ops(now_ms)
        self.groups.save_owed()
        try:
            self.offsets.save(now_ms)
            self.conditions.save(now_ms)
        except OSError as error:  # messages matter more: the log is closed properly all the same
            log.error("offsets not written, messages will be delivered again reason=%s", error)
        self.store.close(lambda: self.delays.save(now_ms))
        self.timers.close()
        if self.store.fault is None:
            self.waiting.release(self.store.acknowledged_end, now_ms)

    def count(self, now_ms: int) -> None:
        """Bring the statistics up to date: for whoever asks, and once a second for their spans."""
        self._counted_ms = now_ms
        self.statistics.stored(self.store.journal.take_shown(), now_ms)
        self.statistics.tick(now_ms)

    @property
    def messages_stored(self) -> int:
        """Messages accepted since the start."""
        lane = self.fast.lane
        return self.sends_handled + (lane.sends if lane is not None else 0)

    # --- turns ---

    def _hand_over_soon(self) -> None:
        self.wants_turn = self.wants_turn or self.store.journal.pending > 0

    def _turn_done(self, now_ms: int) -> None:
        self.now_ms = now_ms
        try:
            woken = self.store.complete()
        except StoreReadOnly:
            self._drop_replies()
            return
        self.transactions.write_ops(now_ms)
        self.store.submit()  # what arrived meanwhile is the next turn, and the flusher must not idle
        self.waiting.release(self.store.acknowledged_end, now_ms)
        self.waking.wake(woken)
        self._revive_some(now_ms)
        self._go_on()

    def _go_on(self) -> None:
        """There is room in the turn again for what the broker itself stores."""
        while self._postponed:
            try:
                self._postponed[0]()
            except BlockingIOError:
                break
            self._postponed.popleft()
        for work in self._own_work:
            work.advance()
        self._hand_over_soon()

    def wait(self, end: int, replies: One | core.Replies, now_ms: int) -> None:
        """Send the replies once the log is safe up to `end`."""
        if end > self.store.acknowledged_end:
            self.waiting.add(end, replies, now_ms)
        else:
            replies.send(now_ms)

    def _drop_replies(self) -> None:
        """The store failed: nobody may be told that these records are safe. Their clients are hung up on."""
        for connection in (*self.waiting.drop(), *self.transactions.untold.drop(), *self.held):
            connection.close()
        self.held.clear()

    def _queries_done(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for token, future in self.store.queries.answers():
            asked = cast("handlers.query.Asked | Task", token)

            def serve(asked: handlers.query.Asked | Task = asked, future: Any = future) -> None:
                if isinstance(asked, Task):
                    asked.then(future)
                elif not asked.call.connection.closed:
                    self.serve(asked.call, asked.declared, lambda: asked.answer(future.result()))

            try:
                serve()
            except BlockingIOError:
                self._postponed.append(serve)
        self._hand_over_soon()

    def _reads_done(self, now_ms: int) -> None:
        for token, error in self.store.fetched():
            try:
                if not self.delays.fetched(token, error):
                    handlers.pull.fetched(self, token, error)
            except Exception:
                log.exception("cold read failed")  # those behind it want their answers
        self._revive_some(now_ms)
        self._hand_over_soon()

    # --- parked pulls, and those in line ---

    def _revive_some(self, now_ms: int) -> None:
        """Go on with some of the pulls that have reason to; with others in the next pass."""
        self.waking.go_on(
            now_ms,
            lambda pull: self.revive(handlers.pull.arrived, pull),
            lambda pull: self.revive(handlers.pull.resume, pull),
        )
        is_more_in_line = self.cold.go_on()
        if is_more_in_line or self.waking.has_more(now_ms):
            self.wants_turn = True

    def revive(self, work: Callable[[Broker, ParkedPull], None], pull: ParkedPull) -> None:
        """Go on with a parked pull. Whatever befalls it is its own answer: those behind it want theirs."""
        try:
            work(self, pull)
        except Exception as error:
            log.exception("held pull failed peer=%s:%d", *pull.connection.peer)
            self.parked.remove(pull)
            handlers.pull.fail(self, pull, error)

    # --- requests ---

    def _serve(self, connection: Connection, command: Command, now_ms: int) -> None:
        if command.is_response:
            self.asks.answered(connection, command)
            return
        self.doing = command.code
        declared = REQUESTS.get(command.code)
        handler = None if declared is None else HANDLERS.get(declared)
        if declared is None or handler is None:
            remark = f" request type {command.code} not supported"
            self._reply(
                connection, command, Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            )
            return
        try:
            call = Call(connection, command, declared.from_command(command), now_ms)
        except MalformedRequest as error:
            self._reply(connection, command, Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return

        def work() -> Outcome:
            self.access.check(call)  # in here, so that its refusal is a reply
            return handler(self, call)

        self.serve(call, declared, work)

    def serve(self, call: Call[Any], declared: type[Request], work: Callable[[], Outcome]) -> None:
        """Send what `work` comes to: its outcome, or the refusal its error stands for."""
        connection, command = call.connection, call.command
        try:
            outcome = work()
        except BlockingIOError:
            raise
        except RemoteProtocolError as error:  # a body that is not what its code says
            outcome = Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
            if declared.reply is not SendReply:  # whose fields clients read unguarded
                # As Java's exception path: a reply made anew, without the field map of the one begun.
                self._reply(connection, command, outcome)
                return
        except Refused as refusal:
            outcome = refusal.answer
        except BrokerRefused as error:
            outcome = Answer(code=error.code, remark=error.remark)
        except StoreBusy as error:
            outcome = Answer(code=ResponseCode.SYSTEM_BUSY, remark=str(error))
        except StoreError as error:
            outcome = Answer(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                remark = f"{os.strerror(error.errno)}: {self.store.space_text()}"
                outcome = Answer(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
            else:
                log.exception("request failed code=%d peer=%s:%d", command.code, *connection.peer)
                outcome = Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        self.answer(connection, command, declared, outcome, call.now_ms)

    def answer(
        self,
        connection: Connection,
        command: Command,
        declared: type[Request],
        outcome: Outcome,
        now_ms: int = 0,
    ) -> None:
        """Send an outcome now, or keep it until the log is safe."""
        if outcome is PARKED or command.is_oneway:
            return
        if isinstance(outcome, AnswerWhenReadable):
            frame = b"".join(self._frame(command, declared, outcome.answer))
            self.wait(outcome.end, One(connection, frame), now_ms)
        elif isinstance(outcome, Answer):
            for part in self._frame(command, declared, outcome):
                connection.write(part)

    def _frame(self, command: Command, declared: type[Request], answer: Answer) -> tuple[bytes, ...]:
        try:
            return encode_parts(self._command(command, declared, answer))
        except LocalProtocolError as error:  # more than any client takes: it is told, and others go on
            return (encode(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))),)

    def _command(self, command: Command, declared: type[Request], answer: Answer) -> Command:
        fields: dict[str, str] | None = None if declared.reply is None else {}
        if isinstance(answer.fields, dict):
            fields = answer.fields
        elif answer.fields is not None:
            fields = answer.fields.to_fields()
        elif declared.reply is SendReply:  # refusals of sends carry these two as well
            fields = {
                "TRACE_ON": "true" if self.config.trace_on else "false",
                "MSG_REGION": self.config.region_id,
            }
        return answer.to(command, fields)

    def _reply(self, connection: Connection, command: Command, answer: Answer) -> None:
        if not command.is_oneway:
            connection.write(encode(command.reply(answer.code, remark=answer.remark, body=answer.body)))

    # --- groups and topics ---

    def _topic_changed(self, topic: TopicConfig) -> None:
        self.fast.topic_changed(topic)
        self.topics_changed()

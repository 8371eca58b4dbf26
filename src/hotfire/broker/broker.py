"""The broker's heart: read -> decode -> handle -> append -> sync once -> reply -> wake.

One loop owns one store. A pass over the sockets fills a turn of the log; the flusher writes and syncs it
while the next one fills. A reply that promises a record waits here until the log is readable past it. This
class is a plain function of (connection, bytes, now): sockets, time and disk arrive from outside, so that the
program that serves users is the program a simulator runs.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from hotfire import core
from hotfire.broker import access, handlers
from hotfire.broker.call import HANDLERS, PARKED, Answer, AnswerWhenReadable, Call, Outcome, Refused
from hotfire.broker.clients import Clients
from hotfire.broker.cold import ColdReads
from hotfire.broker.config import BrokerConfig, BrokerRole
from hotfire.broker.fastlane import NEXT_FULL, NEXT_MUCH, NEXT_PARTIAL, NEXT_SEGMENT, FastLane
from hotfire.broker.groups import Groups
from hotfire.broker.offsets import Offsets
from hotfire.broker.parked import Parked, ParkedPull
from hotfire.broker.topics import Topics
from hotfire.errors import (
    BrokerRefused,
    MalformedRequest,
    RemoteProtocolError,
    StoreBusy,
    StoreError,
    StoreReadOnly,
)
from hotfire.model import TopicConfig
from hotfire.net.heart import Connection, Heart, Watch
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command, decode, encode, frame_size
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host, encode_properties
from hotfire.protocol.requests import REQUESTS, NotifyConsumerIdsChanged, Request, SendReply
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

EXPIRE_PERIOD_MS = 10_000
RECHECK_PERIOD_MS = 5_000
STILL_EMPTY: dict[str, dict[str, Any]] = {
    "delayOffset.json": {"offsetTable": {}},
    "consumerFilter.json": {"filterDataByTopic": {}},
}
"""Tables of what is not served yet. One that another broker has filled stays as it is."""


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
        self._is_slave = config.broker_role is BrokerRole.SLAVE
        self.unique_ids = UniqueIds(advertised.address, os.getpid(), now_ms)
        self.topics = Topics(config, store.table("topics.json"))
        self.groups = Groups(config, store.table("subscriptionGroup.json"))
        self.offsets = Offsets(store.table("consumerOffset.json"))
        self.clients = Clients(config.channel_expired_timeout)
        self.parked = Parked(config.parked_pulls_max, config.parked_pulls_per_connection_max)
        self.cold = ColdReads()
        self.fast = FastLane(config, store, advertised, self.suffix)
        self.topics_changed: Callable[[], None] = lambda: None
        """Called when name servers have to be told."""
        self._waiting: deque[tuple[int, Connection, bytes, int]] = deque()
        """Replies by the end of the log they wait for, and since when."""
        self._opaque = 0
        self._saved_offsets_ms = self._expired_ms = self._rechecked_ms = now_ms
        self.sends_handled = self.flush_timeouts = 0
        self.topics.on_change = self._topic_changed
        self.topics.load(now_ms)
        self.groups.load(now_ms)
        self.offsets.load()
        for topic in self.topics:
            self.fast.topic_changed(topic)
        for name, empty in STILL_EMPTY.items():  # the reference's broker expects to find them
            table = store.table(name)
            if table.load() is None:
                table.save(empty)

    # --- what the server calls ---

    def watches(self) -> list[Watch]:
        return [
            (self.store.fileno(), self._turn_done),
            (self.store.reader_fileno(), self._reads_done),
            (self.store.queries.fileno(), self._queries_done),
        ]

    def receive(self, connection: Connection, data: memoryview, now_ms: int) -> int:
        at, size, widened_at = 0, len(data), -1
        lane = self.fast.lane if self.store.is_writeable and not self._is_slave else None  # handlers refuse
        while at < size and not connection.is_clogged:
            if lane is not None:
                consumed, following, waiting, ready, commits = lane.serve(
                    data, at, connection.born_host, now_ms
                )
                at += consumed
                if waiting is not None:
                    self._wait(self.store.end, connection, waiting, now_ms)
                if ready is not None:
                    connection.write(ready)
                for (topic, group), queue_id, offset in commits:
                    if offset >= 0:
                        self.offsets.commit(topic, group, queue_id, offset)
                if following == NEXT_PARTIAL:
                    break
                if following == NEXT_MUCH:
                    continue
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
        if self.store.journal.pending:
            self.wants_turn = True
        return at

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
        self.store.submit()

    def tick(self, now_ms: int) -> None:
        self._wake(self.store.tick(now_ms))
        if self.store.fault is not None:
            self._drop_replies()
        self._time_out_replies(now_ms)
        for pull in self.parked.due(now_ms):
            self._revive(handlers.pull.resume, pull)
        if now_ms - self._rechecked_ms >= RECHECK_PERIOD_MS:
            self._rechecked_ms = now_ms
            self._wake(self.parked.queues())
        if now_ms - self._expired_ms >= EXPIRE_PERIOD_MS:
            self._expired_ms = now_ms
            self._notify(self.clients.expire(now_ms))
        if now_ms - self._saved_offsets_ms >= self.config.flush_consumer_offset_interval:
            self._saved_offsets_ms = now_ms
            self.offsets.save_beside(now_ms)
            self.groups.save_owed()
        if self.store.journal.pending:
            self.wants_turn = True

    def clock_moved(self, by_ms: int) -> None:
        self._waiting = deque((end, to, data, since + by_ms) for end, to, data, since in self._waiting)
        self._rechecked_ms += by_ms
        self._expired_ms += by_ms
        self._saved_offsets_ms += by_ms
        self.parked.clock_moved(by_ms)
        self.clients.clock_moved(by_ms)
        self.store.clock_moved(by_ms)

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        self.parked.disconnected(connection)
        self.cold.disconnected(connection)
        self._notify(self.clients.disconnected(connection))

    def close(self, now_ms: int) -> None:
        """Write the tables and close the store. Replies still waiting are sent as their turns complete."""
        self.groups.save_owed()
        try:
            self.offsets.save(now_ms)
        except OSError as error:  # messages matter more: the log is closed properly all the same
            log.error("offsets not written, messages will be delivered again reason=%s", error)
        self.store.close()
        if self.store.fault is None:
            self._release_replies()

    @property
    def messages_stored(self) -> int:
        """Messages accepted since the start."""
        lane = self.fast.lane
        return self.sends_handled + (lane.sends if lane is not None else 0)

    # --- turns ---

    def _turn_done(self, now_ms: int) -> None:
        try:
            woken = self.store.complete()
        except StoreReadOnly:
            self._drop_replies()
            return
        self.store.submit()  # what arrived meanwhile is the next turn, and the flusher must not idle
        self._release_replies()
        self._wake(woken)

    def _wait(self, end: int, connection: Connection, replies: bytes, now_ms: int) -> None:
        """Send the replies once the log is safe up to `end`."""
        if end > self.store.acknowledged_end:
            self._waiting.append((end, connection, replies, now_ms))
        else:
            connection.write(replies)

    def _release_replies(self) -> None:
        waiting, safe = self._waiting, self.store.acknowledged_end
        while waiting and waiting[0][0] <= safe:
            _, connection, data, _ = waiting.popleft()
            connection.write(data)

    def _time_out_replies(self, now_ms: int) -> None:
        """The disk takes too long: say so. The messages are kept, their fate is open."""
        waiting, late = self._waiting, now_ms - self.config.sync_flush_timeout
        while waiting and waiting[0][3] <= late:
            _, connection, data, _ = waiting.popleft()
            connection.write(with_code(data, ResponseCode.FLUSH_DISK_TIMEOUT))
            self.flush_timeouts += 1

    def _drop_replies(self) -> None:
        """The store failed: nobody may be told that these records are safe. Their clients are hung up on."""
        for _, connection, _, _ in self._waiting:
            connection.close()
        for connection in self.held:
            connection.close()
        self._waiting.clear()
        self.held.clear()

    def _queries_done(self, now_ms: int) -> None:
        for token, future in self.store.queries.answers():
            asked = cast("handlers.query.Asked", token)

            def work(asked: handlers.query.Asked = asked, future: Future[Any] = future) -> Outcome:
                return asked.answer(future.result())

            if not asked.call.connection.closed:
                self.serve(asked.call, asked.declared, work)

    def _reads_done(self, now_ms: int) -> None:
        for token, data in self.store.fetched():
            try:
                handlers.pull.fetched(self, token, data)
            except Exception:
                log.exception("cold pull failed")  # those behind it want their answers

    # --- parked pulls ---

    def _wake(self, queues: list[core.Queue]) -> None:
        for queue in queues:
            for pull in self.parked.on_queue(queue):
                if queue.max > pull.scanned:
                    self._revive(handlers.pull.arrived, pull)

    def _revive(self, work: Callable[[Broker, ParkedPull], None], pull: ParkedPull) -> None:
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
            return  # answers to our own requests; nothing we send asks for one yet
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
            access.check(call)  # in here, so that its refusal is a reply
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
            self._wait(
                outcome.end, connection, encode(self._command(command, declared, outcome.answer)), now_ms
            )
        elif isinstance(outcome, Answer):
            connection.write(encode(self._command(command, declared, outcome)))

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
        return command.reply(answer.code, fields=fields, remark=answer.remark, body=answer.body)

    def _reply(self, connection: Connection, command: Command, answer: Answer) -> None:
        if not command.is_oneway:
            connection.write(encode(command.reply(answer.code, remark=answer.remark, body=answer.body)))

    # --- groups and topics ---

    def _topic_changed(self, topic: TopicConfig) -> None:
        self.fast.topic_changed(topic)
        self.topics_changed()

    def members_changed(self, groups: set[str]) -> None:
        self._notify(groups)

    def _notify(self, groups: set[str]) -> None:
        """Tell every member that its group changed, so that it rebalances at once."""
        for name in groups:
            self.fast.revoke(name)
            group = self.clients.consumers.get(name)
            config = self.groups.get(name)
            wanted = self.config.notify_consumer_ids_changed_enable and (
                config is None or config.notify_consumer_ids_changed_enable
            )
            if group is None or not wanted:
                continue
            for connection in group.members:
                self._opaque = (self._opaque + 1) & 0x7FFFFFFF
                notice = NotifyConsumerIdsChanged(consumer_group=name)
                connection.write(encode(notice.to_command(opaque=self._opaque, oneway=True)))


def with_code(frames: bytes, code: int) -> bytes:
    """The same replies with another code."""
    out, at = bytearray(), 0
    while at < len(frames):
        size = frame_size(frames, at)
        out += encode(dataclasses.replace(decode(frames[at : at + size]), code=code))
        at += size
    return bytes(out)

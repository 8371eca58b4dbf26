"""A broker's heart without sockets: commands in, frames out, time and turns moved by hand.

Owns what a server does around a heart: it keeps what was not consumed, hands over turns, calls the watches
when their descriptors ring and releases who was held. Nothing here sleeps; what is awaited is a descriptor.
"""

from __future__ import annotations

import dataclasses
import select
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotfire.broker.broker import Broker
from hotfire.broker.call import Task
from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import ROLES
from hotfire.model import ConsumerData, Heartbeat, ProducerData, Subscription
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.command import Command, encode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.filters import tag_subscription
from hotfire.protocol.record import Host, Record, encode_properties, iter_records
from hotfire.protocol.requests import (
    HeartBeat,
    PullMessage,
    Request,
    SendMessage,
    SendMessageV2,
    UpdateAndCreateTopic,
)
from hotfire.store.disk import Disk
from hotfire.store.store import Store

START_MS = 1_800_000_000_000
STORE_HOST = Host.parse("10.1.2.3", 10911)
SEGMENT_BYTES = 1 << 20
SMALL_INDEX = {"max_hash_slot_num": 500, "max_index_num": 1000}
RING_TIMEOUT_S = 10.0
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21


class FakeConnection:
    """A peer as the heart sees it, which remembers every frame written to it."""

    def __init__(self, port: int = 50_001) -> None:
        self.peer = ("127.0.0.1", port)
        host = Host.parse(*self.peer)
        self.born_host = host.address + host.port.to_bytes(4)
        self.state: Any = None
        self.closed = False
        self.is_clogged = self.is_flooded = False
        self.is_held = False
        self.kept = b""
        self._reader = FrameReader()
        self._unread: list[Command] = []

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._unread.extend(self._reader.receive_data(data))

    def close(self) -> None:
        self.closed = True

    def hold(self) -> None:
        self.is_held = True

    def take(self) -> list[Command]:
        """Frames written since the last call."""
        taken, self._unread = self._unread, []
        return taken

    def take_one(self) -> Command:
        (command,) = self.take()
        return command


class Harness:
    """One broker over a store in `root`."""

    def __init__(
        self, root: Path, *, now_ms: int = START_MS, turn_bytes_max: int = 32 << 20, **settings: Any
    ) -> None:
        self.root = root
        self.now_ms = now_ms
        self._turn_bytes_max = turn_bytes_max
        chosen = {
            "broker_name": "broker-a",
            "mapped_file_size_commit_log": SEGMENT_BYTES,
            **SMALL_INDEX,
            **settings,
        }
        self.config = BrokerConfig(store_path_root_dir=str(root), **chosen)
        self._opaque = 0
        self.is_open = False
        self.open()

    # --- life ---

    def open(self) -> None:
        self.disk = Disk(self.root)
        config = dataclasses.replace(self.config.store(), turn_bytes_max=self._turn_bytes_max)
        self.store = Store(self.disk, config)
        self.store.open()
        self.broker: Broker = ROLES[self.config.broker_role](self.config, self.store, STORE_HOST, self.now_ms)
        self.connection = self.connect()
        self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.broker.close(self.now_ms)

    def reopen(self) -> None:
        self.close()
        self.open()

    def image(self, name: str) -> None:
        """The files as they are now, in a directory beside: what a kill leaves.

        What the disk's own thread is at is done first, for a copy takes longer than a kill.
        """
        self.store._disk.beside(lambda: None).result()
        shutil.copytree(self.root, self.root.parent / name)
        (self.root.parent / name / "lock").unlink(missing_ok=True)

    def connect(self, port: int = 50_001) -> FakeConnection:
        connection = FakeConnection(port)
        self.broker.connected(connection, self.now_ms)
        return connection

    def disconnect(self, connection: FakeConnection) -> None:
        connection.closed = True
        self.broker.disconnected(connection, self.now_ms)

    # --- what a server does ---

    def receive(self, *requests: Request | Command, to: FakeConnection | None = None) -> list[int]:
        """Give the heart these requests in one read; their opaques."""
        commands = [self.command(request) for request in requests]
        self.receive_bytes(b"".join(encode(command) for command in commands), to=to)
        return [command.opaque for command in commands]

    def receive_bytes(self, data: bytes, to: FakeConnection | None = None) -> None:
        connection = to or self.connection
        connection.kept += data
        consumed = -1
        while consumed and connection.kept and not connection.is_held:  # one pass serves so many only
            consumed = self.broker.receive(connection, memoryview(connection.kept), self.now_ms)
            connection.kept = connection.kept[consumed:]

    def receive_bytes_of(self, command: Command, to: FakeConnection) -> None:
        """Give the heart a command as it is, with the number it has: an answer."""
        self.receive_bytes(encode(command), to=to)

    def command(self, request: Request | Command) -> Command:
        self._opaque += 1
        if isinstance(request, Command):
            return dataclasses.replace(request, opaque=self._opaque)
        return request.to_command(opaque=self._opaque)

    def turn(self) -> None:
        if self.broker.wants_turn:
            self.broker.turn(self.now_ms)

    def settle(self) -> None:
        """Drive turns and cold reads until neither the heart nor the disk has more to do."""
        self.turn()
        while self.broker.wants_turn or self.is_disk_busy:
            if not self.broker.wants_turn:
                self.ring()
            self.turn()

    @property
    def is_disk_busy(self) -> bool:
        return self.store.fault is None and bool(
            self.store.journal.busy
            or self.store.journal.pending
            or self.store._reading._reader.queued
            or self.store.queries._own
            or any(isinstance(question.token, Task) for question in self.store.queries._asked)
        )

    def ring(self) -> None:
        """Wait for one of the heart's descriptors and call its watch, as the server's loop does."""
        watches = dict(self.broker.watches())
        ready, _, _ = select.select(list(watches), [], [], RING_TIMEOUT_S)
        assert ready, "no descriptor rang"
        for fd in ready:
            watches[fd](self.now_ms)
        held, self.broker.held[:] = list(self.broker.held), []
        for connection in held:
            assert isinstance(connection, FakeConnection)
            if not connection.closed:
                connection.is_held = False
                self.receive_bytes(b"", to=connection)

    def pass_time(self, ms: int, step_ms: int = 50) -> None:
        """Let time pass as the server's ticks do."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += min(step_ms, end_ms - self.now_ms)
            self.tick()

    def tick(self) -> None:
        self.broker.tick(self.now_ms)
        self.settle()

    # --- questions ---

    def ask(self, request: Request | Command, connection: FakeConnection | None = None) -> Command:
        """One request and its reply, the disk driven as far as it takes."""
        asker = connection or self.connection
        before = asker.take()
        assert not before, f"frames nobody looked at: {before}"
        (opaque,) = self.receive(request, to=asker)
        self.settle()
        while self.store.queries.waiting:
            self.ring()
        reply = asker.take_one()
        assert (reply.opaque, reply.flag) == (opaque, 1)
        return reply

    def send(self, **fields: Any) -> Command:
        return self.ask(send_request(**fields))

    def pull(self, **fields: Any) -> Command:
        return self.ask(pull_request(**fields))

    def create_topic(self, name: str, queues: int = 4, *, perm: int = 6, order: bool = False) -> None:
        reply = self.ask(
            UpdateAndCreateTopic(
                topic=name,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=order,
            )
        )
        assert reply.code == 0, reply

    def beat(
        self,
        client_id: str,
        group: str,
        *subscriptions: Subscription,
        connection: FakeConnection | None = None,
        model: str = "CLUSTERING",
    ) -> Command:
        """A consumer's heartbeat; change notices that come with it stay unread."""
        consumer = ConsumerData(group, message_model=model, subscriptions=subscriptions)
        return self._beat(Heartbeat(client_id, consumers=(consumer,)), connection or self.connection)

    def beat_producer(self, client_id: str, group: str, connection: FakeConnection | None = None) -> Command:
        return self._beat(Heartbeat(client_id, (ProducerData(group),)), connection or self.connection)

    def _beat(self, heartbeat: Heartbeat, connection: FakeConnection) -> Command:
        (opaque,) = self.receive(HeartBeat(body=encode_body(heartbeat)), to=connection)
        frames = connection.take()
        (reply,) = [frame for frame in frames if frame.is_response]
        connection._unread = [frame for frame in frames if not frame.is_response]
        assert reply.opaque == opaque
        return reply

    def log_records(self) -> list[Record]:
        """The records in the log's files, read from the disk."""
        records: list[Record] = []
        for segment in sorted((self.root / "commitlog").iterdir()):
            data = segment.read_bytes()
            used = self.store.readable_end - int(segment.name)
            records.extend(iter_records(data[: max(0, min(used, len(data)))]))
        return records


# --- requests ---


def properties(**named: str) -> str:
    """The property string of a message; a unique key unless `UNIQ_KEY=""`."""
    given = {"UNIQ_KEY": "AC11000100002A9F0000000000000001", **named}
    return encode_properties({name: value for name, value in given.items() if value}).decode()


def send_request(
    topic: str = "T",
    queue_id: int = 0,
    *,
    body: bytes = b"body",
    named: dict[str, str] | None = None,
    v1: bool = False,
    **fields: Any,
) -> SendMessage:
    made: dict[str, Any] = {
        "producer_group": "PG",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": START_MS - 5,
        "flag": 0,
        "properties": properties(**(named or {})),
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
        "body": body,
    }
    return (SendMessage if v1 else SendMessageV2)(**{**made, **fields})


def pull_request(
    offset: int = 0,
    topic: str = "T",
    queue_id: int = 0,
    *,
    group: str = "CG",
    flag: int = SUBSCRIPTION,
    expression: str | None = "*",
    **fields: Any,
) -> PullMessage:
    """A pull that brings its own subscription unless `flag` says otherwise."""
    made: dict[str, Any] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": flag,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "subscription": expression,
        "sub_version": 0,
        "expression_type": "TAG",
    }
    return PullMessage(**{**made, **fields})


def bodies(reply: Command) -> list[bytes]:
    return [record.body for record in iter_records(reply.body)]


def codes(replies: Sequence[Command]) -> list[int]:
    return [reply.code for reply in replies]


def next_offset(reply: Command) -> int:
    assert reply.fields is not None
    return int(reply.fields["nextBeginOffset"])


def tagged(topic: str, expression: str, version: int = 1) -> Subscription:
    return tag_subscription(topic, expression, version)

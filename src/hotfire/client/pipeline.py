"""The quick way of a later send: from the message into the connection's buffer, in one compiled call.

Open to plain messages of topics whose route is known and whose brokers are connected; `core.SendPipe` says
what is plain. Everything else goes the ordinary way, and so does a send that strands here: this module owns
speed, and no rule of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from hotfire.client.choosing import Rotation
from hotfire.client.instance import ClientInstance
from hotfire.client.limits import Permits
from hotfire.client.messages import Outgoing, send_request
from hotfire.client.results import SendResult
from hotfire.client.routes import TopicRoute
from hotfire.core import SendPipe
from hotfire.errors import HotfireError, Timeout
from hotfire.model import Message, MessageQueue
from hotfire.net.clock import clocks_of, time_of
from hotfire.net.peer import Peer
from hotfire.protocol.command import FRAME_BYTES_MAX, Buffer, Command, encode
from hotfire.protocol.ids import UniqueIds

Target = tuple[MessageQueue, int, bytes, bytes, bytes, bytes]


class Stranded(NamedTuple):
    """A send that ended unanswered, or with an answer that takes more reading."""

    future: asyncio.Future[SendResult]
    message: Message
    message_id: str
    queue: MessageQueue
    deadline: float


OnStranded = Callable[[Stranded, Peer, "Command | HotfireError"], None]


def target(queue: MessageQueue, group: str) -> Target:
    """The frame of a send to `queue`, cut where messages differ: birth, properties, opaque."""
    outgoing = Outgoing((Message(queue.topic, b"-"),), "", "-", b"")
    frame = encode(send_request(outgoing, queue, group=group, now_ms=0).to_command(opaque=0))
    head, _, rest = frame[8:].partition(b'"g":"0"')
    middle, _, rest = rest.partition(b'"i":"-"')
    tail, _, end = rest.partition(b'"opaque":0')
    assert end, "the frame of a send has these fields"
    return (
        queue, queue.queue_id, head + b'"g":"', b'"' + middle + b'"i":"', b'"' + tail + b'"opaque":', end
    )  # fmt: skip


class Pipe:
    """One connection's sends under way; its rider."""

    def __init__(self, peer: Peer, core: SendPipe, permits: Permits, on_stranded: OnStranded) -> None:
        self.peer = peer
        self.core = core
        self.flush_is_due = False
        self.idle: asyncio.Future[None] | None = None
        self._permits = permits
        self._on_stranded = on_stranded
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        peer.rider = self

    def flush_soon(self) -> None:
        # Once per pass of the loop: a single system call takes all that were sent in it.
        self.flush_is_due = True
        self._loop.call_soon(self.has_room)

    def has_room(self) -> None:
        self.flush_is_due = False
        if self.core.unsent:
            self.peer.write_for_rider(self.core.take)
        self._watch()

    def _watch(self) -> None:
        due = self.core.next_deadline
        if self._timer is None and due is not None:
            self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for left in self.core.expire(self._loop.time()):
            late = Timeout(f"{self.peer.address}: no reply to a send in time")
            self._on_stranded(Stranded(*left), self.peer, late)
        self._watch()

    def receive(self, data: Buffer) -> bytes:
        rest, resolved = self.core.receive(data)
        self._permits.used -= resolved
        self._tell_idle()
        return rest

    def answered(self, reply: Command) -> None:
        left = self.core.pop(reply.opaque)
        if left is not None:
            self._on_stranded(Stranded(*left), self.peer, reply)

    def lost(self, error: HotfireError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for left in self.core.clear():
            self._on_stranded(Stranded(*left), self.peer, type(error)(*error.args))
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self.idle is not None and not self.core.in_flight and not self.idle.done():
            self.idle.set_result(None)


class Lane(NamedTuple):
    """A topic's queues in the order of their turns; without a pipe where there is no connection yet."""

    route: TopicRoute
    targets: list[tuple[Pipe | None, Target]]


class Pipelines:
    """The quick way of one producer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        rotation: Rotation,
        permits: Permits,
        on_stranded: OnStranded,
        *,
        new_ids: Callable[[], UniqueIds],
        plain_body_max: int,
        timeout_s: float,
    ) -> None:
        self._instance = instance
        self._group = group
        self._rotation = rotation
        self._permits = permits
        self._on_stranded = on_stranded
        self._new_ids = new_ids
        self._ids = new_ids()
        self._plain_body_max = plain_body_max
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._now_ms, self._time = clocks_of(self._loop)[0], time_of(self._loop)
        self._pipes: dict[str, Pipe] = {}
        self._lanes: dict[str, Lane] = {}

    def send(self, message: Message) -> asyncio.Future[SendResult] | None:
        """The send, begun; None when it has to go the ordinary way."""
        topic = getattr(message, "topic", "")  # what is no message goes the ordinary way, which says so
        try:
            lane = self._lanes.get(topic)
        except TypeError:  # no text; the ordinary way says so, too
            return None
        permits = self._permits
        if (
            lane is None
            or permits.used >= permits.count_max
            or self._instance.routes.peek(topic) is not lane.route
        ):
            return None
        turns = self._rotation.turns
        turn = turns[topic]
        pipe, aim = lane.targets[turn % len(lane.targets)]
        if pipe is None or pipe.peer.closed:
            return None
        now = self._now_ms()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if not pipe.core.send(
            message, aim, future, now, self._ids.month_ms(now), self._time() + self._timeout_s
        ):
            return None
        turns[topic] = turn + 1
        permits.used += 1
        if not pipe.flush_is_due:
            pipe.flush_soon()
        return future

    def learn(self, topic: str) -> None:
        """Look at the topic's route and connections: later sends may take the quick way."""
        route = self._instance.routes.peek(topic)
        lane = self._lanes.get(topic)
        if route is None or not route.write_queues:
            return
        if lane is not None and lane.route is route:
            if all(pipe is not None and not pipe.peer.closed for pipe, _ in lane.targets):
                return
            targets = [aim for _, aim in lane.targets]
        else:
            targets = [target(queue, self._group) for queue in route.write_queues]
        self._lanes[topic] = Lane(route, [(self._pipe(route, aim[0].broker_name), aim) for aim in targets])

    def _pipe(self, route: TopicRoute, broker_name: str) -> Pipe | None:
        address = route.master(broker_name)
        peer = None if address is None else self._instance.connections.current(address)
        if peer is None:
            return None
        pipe = self._pipes.get(peer.address)
        if pipe is not None and pipe.peer is peer:
            return pipe
        if peer.rider is not None:
            return None  # another producer of this client rides here
        ids = self._new_ids()  # of its own: the pipe counts by itself
        core = SendPipe(Message, SendResult, ids.prefix, self._plain_body_max, FRAME_BYTES_MAX - 4)
        pipe = self._pipes[peer.address] = Pipe(peer, core, self._permits, self._on_stranded)
        return pipe

    def under_way(self) -> list[asyncio.Future[None]]:
        """For each connection with sends under way, a future of their end."""
        busy = [pipe for pipe in self._pipes.values() if pipe.core.in_flight]
        for pipe in busy:
            pipe.idle = pipe.idle or self._loop.create_future()
        return [pipe.idle for pipe in busy if pipe.idle is not None]

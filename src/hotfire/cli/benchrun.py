"""One run of a load: find the queues, dial, let `core.load.Load` work, and take its figures meanwhile.

Owns the run's order: warm up, measure, send no more, wait for what is under way. Ctrl-C ends the measuring,
and the figures so far are the run's.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from hotfire.cli.benchframes import MARK_BYTES, MARKED_BYTES, pull_frames, send_frames
from hotfire.cli.benchplan import DRAIN_S, Outcome, Plan, Target
from hotfire.cli.latencies import Latencies
from hotfire.client.admin import Admin
from hotfire.client.routes import TopicRoute
from hotfire.core.load import Load
from hotfire.errors import (
    ConfigError,
    ConnectError,
    HotfireError,
    NoRoute,
    RemoteProtocolError,
    TopicNotExist,
)
from hotfire.protocol.command import decode

SLICE_S = 0.1
DIAL_TIMEOUT_S = 5.0
ROUTE_TIMEOUT_S = 10.0
HOPELESS_REFUSALS = 1000
IN_FLIGHT_BYTES_MAX = 1 << 30
GROUP = "hotfire-bench"


# --- before --------------------------------------------------------------------------------------------


async def find(plan: Plan) -> Target:
    """The topic's queues; one that is to be written is made when it is not there."""
    async with Admin(plan.namesrv) as admin:
        try:
            route = await admin.route(plan.topic)
        except (NoRoute, TopicNotExist):
            if plan.mode == "pull":
                raise
            await admin.create_topic(plan.topic, queues=plan.queues)
            route = await _route_to_come(admin, plan.topic)
        stats = await admin.topic_stats(plan.topic)
    offsets = {one.queue: (one.min_offset, one.max_offset) for one in stats.queues}
    addresses = {name: route.master(name) for name in {one.broker_name for one in offsets}}
    target = Target(
        plan.topic, {name: one for name, one in addresses.items() if one}, route.write_queues, offsets
    )
    _check_target(plan, target)
    return target


async def _route_to_come(admin: Admin, topic: str) -> TopicRoute:
    """A topic just made is known once its broker has told the name server."""
    async with asyncio.timeout(ROUTE_TIMEOUT_S):
        while True:
            try:
                return await admin.route(topic)
            except (NoRoute, TopicNotExist):
                await asyncio.sleep(0.1)


def check(plan: Plan) -> None:
    """What cannot be measured is said before anyone is asked."""
    if plan.mode == "e2e" and plan.size < MARKED_BYTES:
        raise ConfigError(f"--size {plan.size}: to tell how late it is a message takes {MARKED_BYTES} bytes")
    under_way = plan.connections * plan.window * plan.batch * plan.size
    if under_way > IN_FLIGHT_BYTES_MAX:
        raise ConfigError(
            f"{plan.connections} connections × {plan.window} requests × {plan.batch} messages × {plan.size} "
            f"bytes: {under_way >> 20} MiB at once, at most {IN_FLIGHT_BYTES_MAX >> 20}; take less of one"
        )


def _check_target(plan: Plan, target: Target) -> None:
    if plan.mode == "pull" and not any(first < end for first, end in target.offsets.values()):
        raise ConfigError(
            f"topic {plan.topic} holds no message to pull; "
            f"`hotfire bench send --topic {plan.topic}` puts some there"
        )
    if plan.mode != "pull" and not any(queue.broker_name in target.addresses for queue in target.writable):
        raise ConfigError(f"topic {plan.topic} has no queue that may be written; choose another --topic")


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        made = socket.create_connection((host.strip("[]"), int(port)), DIAL_TIMEOUT_S)
    except OSError as error:
        raise ConnectError(
            f"broker {address}: {error.strerror or error}; is it reachable from here?"
        ) from None
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    return made


def _add_writers(plan: Plan, target: Target, load: Load, mark: bytes, dialled: ExitStack) -> None:
    """Connections take turns with the brokers; each writes to all queues of its own."""
    brokers = sorted({queue.broker_name for queue in target.writable} & set(target.addresses))
    for index in range(plan.connections):
        broker = brokers[index % len(brokers)]
        queues = [queue for queue in target.writable if queue.broker_name == broker]
        turn = index // len(brokers) % len(queues)  # so that not all begin with the same queue
        frames = send_frames(
            queues[turn:] + queues[:turn],
            size=plan.size, batch=plan.batch, mark=mark, group=GROUP, kind=plan.kind,
        )  # fmt: skip
        connection = dialled.enter_context(_dial(target.addresses[broker]))
        load.add_writer(connection.fileno(), plan.window, plan.batch, frames)


def _add_pullers(plan: Plan, target: Target, load: Load, dialled: ExitStack) -> None:
    """Each connection has a window of pulls under way, each in a queue of its own while there are."""
    full = sorted(queue for queue, (first, end) in target.offsets.items() if first < end)
    brokers = sorted({queue.broker_name for queue in full} & set(target.addresses))
    for index in range(plan.connections):
        broker = brokers[index % len(brokers)]
        own = [queue for queue in full if queue.broker_name == broker]
        turn = index // len(brokers) * plan.window
        queues = [own[(turn + at) % len(own)] for at in range(plan.window)]
        places = [(target.offsets[queue][0],) * 2 for queue in queues]
        frames = pull_frames(queues, count=plan.batch, group=GROUP, wait=False, kind=plan.kind)
        load.add_reader(dialled.enter_context(_dial(target.addresses[broker])).fileno(), frames, places)


def _add_groups(plan: Plan, target: Target, load: Load, dialled: ExitStack) -> None:
    """Each group waits at the end of every queue, on a connection for each broker."""
    for number in range(plan.groups):
        for broker, address in sorted(target.addresses.items()):
            queues = sorted(queue for queue in target.offsets if queue.broker_name == broker)
            places = [(target.offsets[queue][1], -1) for queue in queues]
            frames = pull_frames(queues, count=32, group=f"{GROUP}-{number}", wait=True, kind=plan.kind)
            load.add_reader(dialled.enter_context(_dial(address)).fileno(), frames, places)


# --- the run -------------------------------------------------------------------------------------------

Tell = Callable[[float, float], None]
"""Called with the seconds gone by and the messages of the second before."""


def run(plan: Plan, target: Target, tell: Tell, *, compiled: bool) -> Outcome:
    outcome = Outcome(plan, target, compiled)
    mark = secrets.token_bytes(MARK_BYTES)
    load = Load(mark, float(plan.rate or 0))
    with ExitStack() as dialled:
        dialled.callback(load.close)
        if plan.mode == "pull":
            _add_pullers(plan, target, load, dialled)
            load.deliveries_max = plan.count or 0
        else:
            if plan.mode == "e2e":
                _add_groups(plan, target, load, dialled)
                load.run(0.0)  # readers ask before anything is sent
            _add_writers(plan, target, load, mark, dialled)
            load.sends_max = plan.count or 0
        with _Interrupt() as interrupt:
            _measure(plan, load, outcome, tell, interrupt)
            _drain(plan, load)
        _take_figures(plan, load, outcome)
        outcome.is_interrupted = interrupt.has_come
    return outcome


class _Interrupt:
    """Ctrl-C as a flag, looked at between slices: nothing is counted by half. A second one is obeyed."""

    def __init__(self) -> None:
        self.has_come = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        if self.has_come:
            raise KeyboardInterrupt
        self.has_come = True


def _done(plan: Plan, load: Load) -> int:
    return load.delivered if plan.mode == "pull" else load.acked


def _measure(plan: Plan, load: Load, outcome: Outcome, tell: Tell, interrupt: _Interrupt) -> None:
    def run_on(left_s: float) -> bool:
        return load.run(min(SLICE_S, left_s)) and not interrupt.has_come and not _is_over(plan, load)

    is_going = True
    began = time.monotonic()
    while is_going and (left := began + plan.warm_up_s - time.monotonic()) > 0:
        is_going = run_on(left)
    load.clear()
    began = before = told = time.monotonic()
    done_first = done_before = done_told = _done(plan, load)
    arrived_first = load.delivered
    while is_going and (left := began + plan.seconds - before) > 0:
        is_going = run_on(left)
        now, done = time.monotonic(), _done(plan, load)
        outcome.samples.append((now - began, (done - done_before) / max(now - before, 1e-9)))
        before, done_before = now, done
        if now - told >= 1.0:
            tell(now - began, (done - done_told) / (now - told))
            told, done_told = now, done
    outcome.seconds = before - began
    outcome.messages = done_before - done_first
    outcome.arrived = load.delivered - arrived_first


def _is_over(plan: Plan, load: Load) -> bool:
    """All is sent, nobody is left to talk to, or all that is said is no."""
    if load.sends_max and load.asked >= load.sends_max and not load.in_flight:
        return True
    if load.lost:
        return plan.mode == "e2e" or load.lost >= plan.connections
    return not _done(plan, load) and sum(load.codes.values()) > HOPELESS_REFUSALS * plan.batch


def _drain(plan: Plan, load: Load) -> None:
    """Answers under way are waited for, and readers get what was acknowledged."""
    load.stop()
    until = time.monotonic() + DRAIN_S
    while plan.mode != "pull" and time.monotonic() < until:
        has_arrived = load.delivered_own >= plan.groups * load.acked or load.lost
        if has_arrived and not load.in_flight:
            break
        load.run(SLICE_S / 10)


def _take_figures(plan: Plan, load: Load, outcome: Outcome) -> None:
    outcome.acked, outcome.delivered = load.acked, load.delivered
    outcome.answers = Latencies.of(load.answer_latencies)
    outcome.deliveries = Latencies.of(load.delivery_latencies)
    outcome.codes, outcome.refusal = load.codes, _remark(load.refusal)
    outcome.unanswered = load.unanswered + load.in_flight * plan.batch
    outcome.lost_connections = load.lost
    outcome.missed, outcome.repeated = _misplaced(plan, load)
    if plan.mode == "e2e":
        outcome.missing = max(plan.groups * load.acked - load.delivered_own, 0)


def _misplaced(plan: Plan, load: Load) -> tuple[int, int]:
    """Who begins again at the beginning may find it moved, when the broker has deleted what is old."""
    return (0, 0) if plan.mode == "pull" else (load.missed, load.repeated)


def _remark(frame: bytes) -> str:
    if not frame:
        return ""
    try:
        reply = decode(frame)
    except RemoteProtocolError as error:
        return str(error)
    return f"code {reply.code}: {reply.remark or 'no remark'}"


def prepare(plan: Plan) -> Target:
    check(plan)
    try:
        return asyncio.run(find(plan))
    except TimeoutError:
        raise HotfireError(
            f"topic {plan.topic} was made, and no name server knows it after {ROUTE_TIMEOUT_S:g} s; try again"
        ) from None

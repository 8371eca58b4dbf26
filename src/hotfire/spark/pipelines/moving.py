"""A backlog on its way from one topic to another: what is to be moved, and how brokers remember it.

A move is a round with a fixed end. While one is under way a group of its own, RESHARD-<group>, has two sets
of offsets: where the round ends in the topic it leaves, and where the other topic's queues were when it
began. So any machine can go on with a round whose process was killed: what lies in the other topic behind
that place, and names a message of the round, is there already. When every message is there, the group that
reads the topic is moved to the round's end, and RESHARD-<group> is deleted: where there is none, no round is
under way.

When all offsets are written the group is sealed: nobody may consume with it, and how many offsets it has is
kept where a group has the number of its tries. One that is not sealed is the beginning of a round that sent
nothing. With the seal a queue without an offset is one that joined later; and fewer offsets than it says are
a broker that is away, without which nobody knows what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotfire.client.admin import Admin
from hotfire.errors import ConfigError, ConsumerNotOnline
from hotfire.model import GROUP_CHARACTERS_MAX, TOPIC_QUEUES_MAX, MessageQueue, SubscriptionGroup
from hotfire.spark.offsets import Range

PREFIX = "RESHARD-"


@dataclass(frozen=True, slots=True)
class Way:
    """From which topic and group to which."""

    group: str
    topic: str
    target: str
    target_group: str

    @property
    def memory(self) -> str:
        """The group whose offsets tell of a round under way."""
        name = PREFIX + self.group
        if len(name) > GROUP_CHARACTERS_MAX:
            raise ConfigError(
                f"group {self.group} has {len(self.group)} characters; a round is remembered as {PREFIX}…, "
                f"for which it may have {GROUP_CHARACTERS_MAX - len(PREFIX)}"
            )
        return name


@dataclass(frozen=True, slots=True)
class Round:
    """What is moved at once."""

    way: Way
    ranges: tuple[Range, ...]
    """Of queues in which something is to be moved."""
    ends: Mapping[MessageQueue, int]
    """Of every queue of the topic."""
    queues: tuple[MessageQueue, ...]
    """Those it is moved to, in the order of their turns."""
    arrived: Mapping[MessageQueue, int]
    """Where they were when the round began."""
    is_resumed: bool

    @property
    def count(self) -> int:
        return sum(one.count for one in self.ranges)

    @property
    def first_turn(self) -> int:
        """Rounds go on where the one before it ended, so that queues stay even over all of them."""
        return sum(self.arrived.values()) % len(self.queues)


# --- before ----------------------------------------------------------------------------------------


async def check_stopped(admin: Admin, group: str, *, force: bool) -> int:
    """How many consumers of the group are connected: none, unless the operator takes it upon himself."""
    try:
        there = (await admin.connections(group)).clients
    except ConsumerNotOnline:
        return 0
    if not force:
        names = ", ".join(one.client_id for one in there[:3])
        raise ConfigError(
            f"{len(there)} consumers of group {group} are connected, {names}{'…' if len(there) > 3 else ''}: "
            "stop them first, or what they consume meanwhile is moved as well; --force moves all the same"
        )
    return len(there)


async def make_target(admin: Admin, way: Way, times: int) -> tuple[MessageQueue, ...]:
    """The topic to move to, with `times` the queues on each broker, made unless it is there; its queues."""
    known = set(await admin.topics(include_system=True))
    if way.topic not in known:
        raise ConfigError(f"topic {way.topic} does not exist; `hotfire topic list` shows which do")
    if way.target not in known:
        configs = await admin.topic_configs(way.topic)
        most = max(config.write_queues for config in configs.values()) * times
        if most > TOPIC_QUEUES_MAX:
            raise ConfigError(
                f"--times {times}: {most} queues on one broker, at most {TOPIC_QUEUES_MAX} can be"
            )
        for broker, config in configs.items():
            await admin.create_topic(way.target, queues=config.write_queues * times, brokers=[broker])
    return tuple(sorted((await admin.route(way.target)).write_queues))


async def make_group(admin: Admin, group: str, places: Mapping[MessageQueue, int]) -> None:
    """The group that reads the target, at these places in queues of which it has committed nothing."""
    topic = next(iter(places)).topic
    await _know_group(admin, group)
    for queue, offset in (await admin.offsets(group, topic)).items():
        if offset is None and queue in places:
            await admin.set_offset(group, queue, places[queue])


async def _know_group(admin: Admin, group: str) -> None:
    if group not in await admin.groups(include_system=True):
        await admin.create_group(group)


# --- rounds ----------------------------------------------------------------------------------------


async def next_round(
    admin: Admin, way: Way, queues: tuple[MessageQueue, ...], *, allow_loss: bool = False
) -> Round:
    """The round under way, or else a new one: from where the group is to where its topic ends now."""
    spans = {
        one.queue: (one.min_offset, one.max_offset) for one in (await admin.topic_stats(way.topic)).queues
    }
    committed = await admin.offsets(way.group, way.topic)
    if all(offset is None for offset in committed.values()):
        raise ConfigError(
            f"group {way.group} has committed nothing of topic {way.topic}: there is no place to move from; "
            f"`hotfire offset reset {way.group} {way.topic} --to earliest` makes one"
        )
    remembered = await _remembered(admin, way)
    if remembered is not None and all(
        (committed.get(queue) or 0) >= end for queue, end in remembered[0].items()
    ):
        # It was cut short when all was done but this.
        await admin.delete_group(way.memory, clean_offsets=True)
        remembered = None
    if remembered is None:
        ends = {queue: end for queue, (_, end) in spans.items()}
        arrived = {one.queue: one.max_offset for one in (await admin.topic_stats(way.target)).queues}
    else:
        ends, arrived = remembered
    arrived = {queue: arrived.get(queue, 0) for queue in queues}
    ranges = []
    for queue, end in sorted(ends.items()):
        first = spans.get(queue, (0, 0))[0]
        place = committed.get(queue)
        if place is not None and place < first and not allow_loss:
            raise ConfigError(
                f"queue {queue.broker_name}:{queue.queue_id} of topic {way.topic} begins at {first}, and "
                f"group {way.group} is at {place}: {first - place} messages left the log unread; "
                "--allow-loss goes on without them"
            )
        place = max(first if place is None else place, first)
        if end > place:
            ranges.append(Range(queue, place, end))
    return Round(way, tuple(ranges), ends, queues, arrived, remembered is not None)


async def _remembered(
    admin: Admin, way: Way
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]] | None:
    """Ends and arrivals of a round under way. One whose beginning was cut short has sent nothing yet."""
    sealed = await _sealed(admin, way.memory)
    if sealed is None:
        return None
    ends: dict[MessageQueue, int] = {}
    arrived: dict[MessageQueue, int] = {}
    for topic, places in ((way.topic, ends), (way.target, arrived)):
        if topic in await admin.topics(include_system=True):
            for queue, offset in (await admin.offsets(way.memory, topic)).items():
                if offset is not None:
                    places[queue] = offset
    known = len(ends) + len(arrived)
    if known < sealed:
        give_up = f"give it up by `hotfire group delete {way.memory} --offsets --yes`"
        elsewhere = {queue.topic for queue in await _places(admin, way.memory)} - {way.topic, way.target}
        if elsewhere:
            raise ConfigError(
                f"a round of group {way.group} with topic {min(elsewhere)} is under way: finish it first, or "
                f"{give_up}"
            )
        raise ConfigError(
            f"a round of group {way.group} from {way.topic} to {way.target} is under way, and of its "
            f"{sealed} queues {sealed - known} are in no route: start their brokers to go on; or {give_up}, "
            "after which what it sent is sent again"
        )
    return ends, arrived


async def _sealed(admin: Admin, memory: str) -> int | None:
    """How many offsets a round under way has been remembered by; None when there is none."""
    seals = [
        config.retry_times_max
        for config in (await admin.group_configs(memory)).values()
        if not config.consume_enable
    ]
    return max(seals, default=None)


async def _places(admin: Admin, group: str) -> list[MessageQueue]:
    return [one.queue for one in (await admin.lag(group)).queues]


async def remember(admin: Admin, one: Round) -> None:
    """Keep the round's ends where a kill does not reach them. Nothing may be sent before this is done."""
    memory = one.way.memory
    if await admin.group_configs(memory):  # of a beginning that was cut short
        await admin.delete_group(memory, clean_offsets=True)
    await admin.create_group(memory)
    places = [*one.arrived.items(), *one.ends.items()]
    for queue, offset in places:
        await admin.set_offset(memory, queue, offset)
    await admin.create_group(SubscriptionGroup(memory, consume_enable=False, retry_times_max=len(places)))


async def finish(admin: Admin, one: Round) -> None:
    """Every message of the round has arrived: the group that read the topic goes on behind them."""
    committed = await admin.offsets(one.way.group, one.way.topic)
    for queue, end in sorted(one.ends.items()):
        place = committed.get(queue)
        if place is None or place < end:  # and never back, to what it has done with
            await admin.set_offset(one.way.group, queue, end)
    await admin.delete_group(one.way.memory, clean_offsets=True)

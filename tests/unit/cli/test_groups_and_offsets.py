"""group and offset: how far a group is, and letting it go on elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from hotfire import (
    ConsumeContext,
    ConsumeFrom,
    Consumer,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
)
from hotfire.testing.blocking import BlockingCluster
from hotfire.testing.cluster import Cluster
from tests.unit.cli.shell import Shell

FIRST, OTHER = "broker-0:0", "broker-1:0"
Seen = TypeVar("Seen")


@pytest.fixture
def billing(cluster: BlockingCluster, terminal: Shell, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A group that has read two of the five messages of a topic; its name, and the topic's."""
    name = request.node.name.replace("[", "-").rstrip("]").replace(".", "-").replace("+", "p")
    topic, group = f"t-{name}"[:60], f"g-{name}"[:60]
    cluster.create_topic(topic, queues=1)
    terminal.send(topic, *"abcd", queue=FIRST)
    terminal.send(topic, "e", queue=OTHER)
    terminal.run("group", "create", group)
    terminal.run("offset", "set", group, topic, "--queue", FIRST, "--offset", "2")
    return group, topic


def committed(terminal: Shell, group: str, topic: str) -> dict[str, int | None]:
    rows = terminal.json("offset", "show", group, topic)["queues"]
    return {row["queue"]: row["committed"] for row in rows}


def test_lag_is_what_is_left_to_read(terminal: Shell, billing: tuple[str, str]) -> None:
    """Each queue's lag is its end less what was committed; the total is their sum."""
    group, topic = billing
    found = terminal.json("group", "lag", group, "--topic", topic)
    rows = {row["queue"]: row for row in found["queues"]}
    assert (rows[FIRST]["committed"], rows[FIRST]["end"], rows[FIRST]["lag"]) == (2, 4, 2)
    assert found["lag"] == sum(row["lag"] for row in found["queues"])
    printed = terminal.run("group", "lag", group, "--topic", topic)
    assert printed.splitlines()[0].split()[:5] == ["TOPIC", "QUEUE", "COMMITTED", "END", "LAG"]
    assert f"{found['lag']} messages behind" in printed


def test_lag_and_offsets_tell_the_same(terminal: Shell, billing: tuple[str, str]) -> None:
    """A queue of which nothing is committed shows that in both, and what its lag counts from."""
    group, topic = billing
    terminal.send(topic, "f", queue=OTHER)
    for offset in (None, 0):
        if offset is not None:
            terminal.run("offset", "set", group, topic, "--queue", OTHER, "--offset", str(offset))
        for words in (("group", "lag", group, "--topic", topic), ("offset", "show", group, topic)):
            rows = {row["queue"]: row for row in terminal.json(*words)["queues"]}
            assert {name: (row["committed"], row["lag"]) for name, row in rows.items()} == {
                FIRST: (2, 2),
                OTHER: (offset, 2),
            }, words
            note = "committed -: nothing yet, and the lag counts from offset 0"
            assert (note in terminal.run(*words).splitlines()) == (offset is None)


def test_retries_nobody_has_read_are_behind_too(
    cluster: BlockingCluster, terminal: Shell, billing: tuple[str, str]
) -> None:
    """What waits in the group's retry topic is shown and counted, also while the group has read none."""
    group, topic = billing
    retries = f"%RETRY%{group}"
    cluster.create_topic(retries, queues=1)
    assert {row["topic"] for row in terminal.json("group", "lag", group)["queues"]} == {topic}
    terminal.send(retries, "again", "and again")
    found = terminal.json("group", "lag", group)
    rows = {(row["topic"], row["queue"]): row for row in found["queues"]}
    assert (rows[retries, FIRST]["committed"], rows[retries, FIRST]["end"]) == (None, 2)
    assert found["lag"] == sum(row["lag"] for row in found["queues"]) == 4
    shown = terminal.json("group", "show", group)
    assert {"topic": retries, "lag": 2} in shown["topics"]


@pytest.mark.parametrize(
    ("place", "first", "other"),
    [("earliest", 0, 0), ("latest", 4, 1), ("-1", 1, None), ("+1", 3, None), ("-100", 0, None), ("1h", 0, 0)],
)
def test_a_group_goes_on_where_it_is_told(
    terminal: Shell, billing: tuple[str, str], place: str, first: int, other: int | None
) -> None:
    """To an end, a time, or so many messages on or back, within what there is; from and to are told."""
    group, topic = billing
    moved = terminal.json("offset", "reset", group, topic, "--to", place)["queues"]
    assert {"queue": FIRST, "from": 2, "to": first} in moved
    assert committed(terminal, group, topic) == {FIRST: first, OTHER: other}


def test_skipping_leaves_nothing_to_read(terminal: Shell, billing: tuple[str, str]) -> None:
    """skip is reset --to latest."""
    group, topic = billing
    assert terminal.run("offset", "skip", group, topic).splitlines()[1].split() == [FIRST, "2", "4"]
    assert committed(terminal, group, topic) == {FIRST: 4, OTHER: 1}


def test_an_offset_that_is_not_there_is_refused(terminal: Shell, billing: tuple[str, str]) -> None:
    """A queue or an offset that the topic does not have: what it has is told, and nothing is changed."""
    group, topic = billing
    beyond = terminal.refused("offset", "set", group, topic, "--queue", FIRST, "--offset", "5")
    assert f"--offset 5: queue {FIRST} of topic {topic} holds 0 to 4" in beyond
    nowhere = terminal.refused("offset", "set", group, topic, "--queue", "broker-7:0", "--offset", "0")
    assert f"has no queue broker-7:0; it has {FIRST}, {OTHER}" in nowhere
    assert committed(terminal, group, topic)[FIRST] == 2


def test_a_shift_needs_a_place_to_count_from(cluster: BlockingCluster, terminal: Shell) -> None:
    """A group that has committed nothing cannot go so many messages on; what it can do is said."""
    cluster.create_topic("fresh", queues=1)
    terminal.run("group", "create", "newcomers")
    error = terminal.refused("offset", "reset", "newcomers", "fresh", "--to", "+5")
    assert "has committed nothing of topic fresh" in error
    assert "earliest, latest or a time" in error
    assert "has committed nothing" in terminal.run("offset", "show", "newcomers", "fresh")


def test_where_there_is_nothing_to_list_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """On a new cluster lists are empty, exit 0, and a word on stderr says so and what makes one."""
    with Cluster() as fresh:
        shell = Shell(fresh.namesrv, capsys)
        assert shell.call("group", "list") == (
            0, "", "no group yet: a first consumer makes one, or `hotfire group create`\n"
        )  # fmt: skip
        assert shell.call("topic", "list") == (
            0, "", "no topic yet: a first message makes one, or `hotfire topic create`\n"
        )  # fmt: skip
        assert shell.json("group", "list") == []


def test_lag_says_that_it_counts_what_a_filter_lets_pass(terminal: Shell, billing: tuple[str, str]) -> None:
    """Until its next commit a group that wants some tags seems behind with the others."""
    group, topic = billing
    note = f"of {topic} it wants 'pay': what it does not want counts until its next commit"

    def look() -> str:
        return terminal.run("group", "lag", group)

    assert note in asyncio.run(beside_a_reader(terminal, group, topic, look, tags="pay")).splitlines()
    assert "it wants" not in asyncio.run(beside_a_reader(terminal, group, topic, look))
    assert "it wants" not in look()


def test_a_group_that_has_committed_nothing_is_not_called_up_to_date(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """What its consumers subscribe to counts, on every broker; with nobody there it is not known: never 0."""
    cluster.create_topic("unread", queues=1)
    terminal.send("unread", *"abcd")
    terminal.send("unread", "e", queue=OTHER)

    def look() -> list[Any]:
        printed = [terminal.run("group", action, "hung") for action in ("lag", "show")]
        return [*(terminal.json("group", action, "hung") for action in ("lag", "show")), *printed]

    lag, shown, *printed = asyncio.run(beside_a_reader(terminal, "hung", "unread", look))
    rows = {row["queue"]: (row["committed"], row["lag"]) for row in lag["queues"]}
    assert rows == {FIRST: (None, 4), OTHER: (None, 1)}
    assert lag["lag"] == shown["lag"] == 5
    assert shown["topics"] == [{"topic": "unread", "lag": 5}]
    assert "committed -: nothing yet, and the lag counts from offset 0" in printed[0].splitlines()
    assert "of unread some queues have no commit yet: their lag counts from offset 0" in printed[1]
    assert all(text.splitlines()[-1].startswith("5 messages behind") for text in printed)
    lag, shown, *printed = look()
    assert (lag["lag"], lag["queues"], shown["lag"]) == (None, [], None)
    unknown = "group hung has committed nothing yet: how far behind it is, is not known"
    assert [text.splitlines()[-1] for text in printed] == [unknown, unknown]
    assert "group hung has committed nothing; add --yes" in terminal.refused("group", "delete", "hung")


async def beside_a_reader(
    terminal: Shell, group: str, topic: str, look: Callable[[], Seen], *, tags: str = "*"
) -> Seen:
    """What is seen while a consumer of the group is there, which has the topic's queues and reads nothing."""
    is_ours = asyncio.Event()

    def assigned(queues: Sequence[MessageQueue]) -> None:
        consumer.pause(queues)
        is_ours.set()

    consumer = PullConsumer(terminal.namesrv, group=group, auto_commit=False, on_assigned=assigned)
    consumer.subscribe(topic, tags)
    async with consumer:
        await is_ours.wait()
        return await asyncio.to_thread(look)


@pytest.mark.promise(205)
def test_a_group_that_fails_is_named_with_its_errors_and_its_lag(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four fail: how often, in which topic, how far behind, what was given up. One is only slow."""

    async def consume(own: Cluster, shell: Shell) -> list[Any]:
        await own.create_topic("T", queues=1)
        async with AsyncExitStack() as stack:
            may_go_on, held = asyncio.Event(), asyncio.Event()

            async def fail(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
                context.delay_level = -1 if message.body == b"0" else 0  # the first is given up at once
                return ConsumeResult.RETRY

            async def hang(message: ReceivedMessage) -> None:
                held.set()
                await may_go_on.wait()

            async def handle(message: ReceivedMessage) -> None:
                return

            listeners = {"fails": fail, "stuck": fail, "slow": hang, "well": handle}
            for group, listener in listeners.items():
                consumer = Consumer(
                    own.namesrv,
                    group=group,
                    consume_from=ConsumeFrom.FIRST,
                    concurrency=1,
                    orderly=group == "stuck",
                    instance_name=group,
                )
                consumer.subscribe("T", listener)
                await stack.enter_async_context(consumer)
                await consumer.ready()
            producer = await stack.enter_async_context(Producer(own.namesrv))
            for number in range(5):
                await producer.send(Message("T", b"%d" % number))
            await held.wait()
            await own.clock.turn(30)
            told = await asyncio.to_thread(shell.json, "group", "failing")
            lines = await asyncio.to_thread(shell.run, "group", "failing")
            may_go_on.set()
        gone = [await asyncio.to_thread(call, "group", "failing") for call in (shell.run, shell.json)]
        return [told, lines, *gone]

    async def scenario() -> list[Any]:
        async with Cluster() as own:
            shell = Shell(own.namesrv, capsys)
            assert (await asyncio.to_thread(shell.run, "group", "failing")) == "none of 0 groups fails\n"
            return await consume(own, shell)

    (stuck, fails), lines, after, (left,) = asyncio.run(scenario())
    assert (stuck["group"], stuck["lag"], stuck["failedIn"], stuck["deadLetters"]) == ("stuck", 5, "T", 0)
    assert (fails["group"], fails["lag"], fails["deadLetters"]) == ("fails", fails["waiting"], 1)
    assert min(stuck["failedInHour"], fails["failedInHour"]) >= 5
    assert [(one["consumers"], one["silent"]) for one in (stuck, fails)] == [(1, 0), (1, 0)]
    assert "slow" not in lines
    assert "%DLQ%GROUP" in lines
    assert "fails" in after, "nobody is there any more, and its dead letters are"
    assert "stuck" not in after
    assert (left["group"], left["consumers"], left["failedInHour"]) == ("fails", 0, None)
    assert "failedInHour: as connected consumers tell" in after


def test_groups_are_listed_shown_and_deleted(terminal: Shell, billing: tuple[str, str]) -> None:
    """create, list, show, delete: a group is there on every broker, and then on none."""
    group, topic = billing
    assert group in terminal.run("group", "list").split()
    assert "TOOLS_CONSUMER" not in terminal.run("group", "list").split()
    assert "TOOLS_CONSUMER" in terminal.json("group", "list", "--all")
    shown = terminal.json("group", "show", group)
    assert shown["consumers"] == []
    assert shown["topics"] == [
        {"topic": topic, "lag": 2}
    ]  # a broker tells of topics the group has read there
    assert "no consumer is connected" in terminal.run("group", "show", group)
    assert f"group {group} is " in terminal.refused("group", "delete", group)
    deleted = terminal.run("group", "delete", group, "--yes", "--offsets")
    assert deleted == f"group {group} deleted on broker-0, broker-1\n"
    assert group not in terminal.run("group", "list").split()
    assert f"group {group} does not exist" in terminal.refused("group", "show", group)


def test_a_group_that_is_not_there_is_told_with_those_that_are(
    terminal: Shell, billing: tuple[str, str]
) -> None:
    """Those of users: the system's own are no help to who mistyped a name."""
    group, _ = billing
    error = terminal.refused("group", "lag", "nobody")
    assert "group nobody does not exist on any broker; there are " in error
    assert group in error
    assert "CID_" not in error
    assert "TOOLS_CONSUMER" not in error

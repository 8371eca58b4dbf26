"""send, tail and topic: where messages go, from where they are read, and what happens to topics."""

import io
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from hotfire.places import Place, reset_place, start_place, time_ms
from hotfire.testing.blocking import BlockingCluster
from tests.unit.cli.shell import Shell


def bodies(terminal: Shell, topic: str, *words: str) -> list[str]:
    out = terminal.run("tail", topic, "--no-follow", "--json", *words)
    return [json.loads(line)["body"] for line in out.splitlines()]


def test_a_message_goes_to_the_queue_that_was_chosen(cluster: BlockingCluster, terminal: Shell) -> None:
    """--queue BROKER:ID decides; one that does not exist is refused, and those that do are named."""
    cluster.create_topic("chosen", queues=2)
    sent = terminal.json("send", "chosen", "x", "--queue", "broker-1:1", "--property", "colour=red")
    assert (sent["broker"], sent["queueId"]) == ("broker-1", 1)
    error = terminal.refused("send", "chosen", "x", "--queue", "broker-1:2")
    assert "topic chosen has no queue broker-1:2; it has broker-0:0 to broker-0:1, broker-1:0" in error


def test_lines_travel_in_batches(cluster: BlockingCluster, terminal: Shell, tmp_path: Any) -> None:
    """With --batch lines of a file go out together: each batch in one queue, its offsets in a row."""
    cluster.create_topic("batched", queues=2)
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(50)))
    printed = terminal.run("send", "batched", "--file", str(file), "--batch", "20", "--json")
    results = [json.loads(line) for line in printed.splitlines()]
    assert len(results) == 50
    for batch in (results[:20], results[20:40], results[40:]):
        assert len({(one["broker"], one["queueId"]) for one in batch}) == 1
        first = batch[0]["queueOffset"]
        assert [one["queueOffset"] for one in batch] == list(range(first, first + len(batch)))
    assert sorted(bodies(terminal, "batched", "--from", "earliest"), key=int) == [str(n) for n in range(50)]


def test_a_delay_level_is_the_brokers_to_keep(cluster: BlockingCluster, terminal: Shell) -> None:
    """A delayed message is stored, and not there to read before its time."""
    cluster.create_topic("delayed", queues=1)
    terminal.run("send", "delayed", "later", "--delay-level", "18")
    terminal.run("send", "delayed", "now")
    assert bodies(terminal, "delayed", "--from", "earliest") == ["now"]


def test_tail_begins_at_a_time(cluster: BlockingCluster, terminal: Shell) -> None:
    """--from TIME shows what was stored then or later; --count ends it."""
    cluster.create_topic("timed", queues=1)
    terminal.send("timed", "a", "b")
    while time.time_ns() // 1_000_000 <= stored_ms(terminal, "timed"):
        pass
    terminal.send("timed", "c", "d")
    times = [one["storeTimestamp"] for one in messages(terminal, "timed")]
    third = datetime.fromtimestamp(times[2] / 1000, UTC).isoformat(timespec="milliseconds")
    assert bodies(terminal, "timed", "--from", third) == ["c", "d"]
    assert bodies(terminal, "timed", "--from", "1h", "--count", "3") == ["a", "b", "c"]
    assert bodies(terminal, "timed", "--from", "1") == ["b", "c", "d"]


def messages(terminal: Shell, topic: str) -> list[Any]:
    out = terminal.run("tail", topic, "--no-follow", "--json", "--from", "earliest")
    return [json.loads(line) for line in out.splitlines()]


def stored_ms(terminal: Shell, topic: str) -> int:
    return max(one["storeTimestamp"] for one in messages(terminal, topic))


def test_tail_as_a_group_commits_what_it_printed(cluster: BlockingCluster, terminal: Shell) -> None:
    """With --group what it printed is committed, and the next goes on there: --from is for new groups."""
    cluster.create_topic("shared", queues=1)
    terminal.send("shared", "a", "b")
    read = ["tail", "shared", "--group", "readers", "--from", "earliest", "--count"]
    code, out, err = terminal.call(*read, "2")
    assert (code, [line.split()[-1] for line in out.splitlines()], err) == (0, ["a", "b"], "")
    rows = terminal.json("offset", "show", "readers", "shared")["queues"]
    assert {row["queue"]: row["committed"] for row in rows}["broker-0:0"] == 2
    terminal.send("shared", "c")
    code, out, err = terminal.call("tail", "shared", "--group", "readers", "--count", "1")
    assert (code, out.split()[-1], err) == (0, "c", "")
    terminal.send("shared", "d")
    code, out, err = terminal.call(*read, "1")
    assert (code, out.split()[-1]) == (0, "d")
    (line,) = err.splitlines()
    assert "group readers goes on at its offsets; --from counts for a new group" in line


def test_tail_by_a_condition(cluster: BlockingCluster, terminal: Shell) -> None:
    """--sql, with a group and without; a wrong one is refused with the place of its mistake."""
    cluster.create_topic("priced", queues=1)
    for price in ("5", "15", "25"):
        terminal.run(
            "send", "priced", price, "--property", f"price={price}", "--quiet", "--queue", "broker-0:0"
        )
    assert bodies(terminal, "priced", "--from", "earliest", "--sql", "price > 10") == ["15", "25"]
    read = ["tail", "priced", "--group", "cheap", "--from", "earliest", "--count", "1", "--sql", "price < 10"]
    assert terminal.run(*read).split()[-1] == "5"
    assert "column 8, at the end" in terminal.refused("tail", "priced", "--sql", "price >")


def test_retries_are_no_topics_of_users(cluster: BlockingCluster, terminal: Shell) -> None:
    """The list leaves the groups' retry topics out, unless it is to show everything."""
    for topic in ("seen", "%RETRY%billing", "%DLQ%billing"):
        cluster.create_topic(topic, queues=1)
    assert {"seen", "%DLQ%billing"} <= {*terminal.json("topic", "list")}
    assert not [topic for topic in terminal.json("topic", "list") if topic.startswith("%RETRY%")]
    assert {"seen", "%RETRY%billing"} <= {*terminal.json("topic", "list", "--all")}


def test_topic_stats_count_what_is_there(cluster: BlockingCluster, terminal: Shell) -> None:
    """Each queue with its ends, and a total."""
    cluster.create_topic("counted", queues=2)
    terminal.send("counted", "a", "b", queue="broker-0:1")
    found = terminal.json("topic", "stats", "counted")
    assert found["messages"] == 2
    ends = {row["queue"]: (row["min"], row["max"]) for row in found["queues"]}
    assert ends == {"broker-0:0": (0, 0), "broker-0:1": (0, 2), "broker-1:0": (0, 0), "broker-1:1": (0, 0)}
    printed = terminal.run("topic", "stats", "counted")
    assert printed.splitlines()[0].split() == ["QUEUE", "MIN", "MAX", "MESSAGES", "LAST", "STORED"]
    assert "2 messages in 4 queues" in printed


def test_a_topic_is_made_where_it_was_wanted(terminal: Shell) -> None:
    """create says which brokers have it now; --brokers chooses, and a name that is none is refused."""
    made = terminal.json("topic", "create", "placed", "--brokers", "broker-1", "--queues", "3")
    assert [one["broker"] for one in made["brokers"]] == ["broker-1"]
    route = terminal.json("topic", "route", "placed")
    assert [(one["broker"], one["writeQueues"]) for one in route["brokers"]] == [("broker-1", 3)]
    assert "no broker broker-9; it has broker-0, broker-1" in terminal.refused(
        "topic", "create", "placed", "--brokers", "broker-9"
    )


def test_a_topic_grows_at_a_word_and_shrinks_only_on_purpose(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """Queues that hold messages do not get out of sight by mistake; to grow is told, and so is to shrink."""
    create = ("topic", "create", "resized", "--brokers", "broker-0")
    assert "grew" not in terminal.run(*create, "--queues", "2")
    assert "grew" not in terminal.run(*create, "--queues", "2")
    assert "topic resized grew from 2 to 4 queues on broker-0" in terminal.run(*create, "--queues", "4")
    terminal.send("resized", "a", queue="broker-0:0")
    terminal.send("resized", "b", "c", queue="broker-0:3")
    error = terminal.refused(*create, "--queues", "3")
    assert "topic resized has 4 queues on broker-0: with 3, 2 messages could no longer be read" in error
    assert "give --queues 4 or more, or add --shrink" in error
    assert terminal.json("topic", "stats", "resized")["messages"] == 3
    made = terminal.json("topic", "create", "resized", "--brokers", "broker-1", "--queues", "2")
    assert made["brokers"][0]["before"] is None, "on another broker it is new"
    assert "shrank from 4 to 3 queues on broker-0" in terminal.run(*create, "--queues", "3", "--shrink")
    assert terminal.json("topic", "stats", "resized")["messages"] == 1


def test_a_topic_is_deleted_only_on_purpose(cluster: BlockingCluster, terminal: Shell) -> None:
    """Without --yes it is told how many messages would go; with it they and the topic are gone."""
    cluster.create_topic("unloved", queues=1)
    terminal.send("unloved", "a", "b")
    assert "topic unloved has 2 messages on broker-0, broker-1" in terminal.refused(
        "topic", "delete", "unloved"
    )
    assert "unloved" in terminal.run("topic", "list").split()
    assert "with 2 messages" in terminal.run("topic", "delete", "unloved", "--yes")
    assert "unloved" not in terminal.run("topic", "list").split()
    assert "topic unloved does not exist" in terminal.refused("topic", "delete", "unloved", "--yes")


def test_places_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends, offsets, shifts and times in every form the help names; anything else is no place."""
    assert start_place("17") == Place("offset", 17)
    assert reset_place("-17") == Place("shift", -17)
    assert reset_place("+3") == Place("shift", 3)
    assert (start_place("earliest"), reset_place("latest")) == (Place("earliest"), Place("latest"))
    hour_ms, now_ms = 3_600_000, time.time_ns() // 1_000_000
    assert abs((time_ms("2h") or 0) - (now_ms - 2 * hour_ms)) < hour_ms
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert time_ms("2026-01-31T10:30") == 1_769_855_400_000
    assert (time_ms("0:30") or 0) % (24 * hour_ms) == hour_ms // 2
    monkeypatch.undo()
    time.tzset()
    for text in ("soon", "25:00", "2026-13-01", "17"):
        with pytest.raises(Exception, match="is neither earliest"):
            reset_place(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [("a\n\nb\n", "1 empty line was"), ("\n\na\r\n\r\n", "3 empty lines were"), ("a\n \n", "")],
)
def test_empty_lines_are_told(terminal: Shell, tmp_path: Any, text: str, told: str) -> None:
    """A message needs a body: lines without one are left out, and counted."""
    file = tmp_path / "lines"
    file.write_text(text)
    code, out, err = terminal.call("send", "empty-lines", "--file", str(file))
    assert (code, out.count("SEND_OK")) == (0, len([line for line in text.split("\n") if line.rstrip("\r")]))
    assert (f"{told} left out: a message needs a body" in err) if told else "left out" not in err


def test_lines_from_a_pipe_in_batches(
    cluster: BlockingCluster, terminal: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Standard input is a file like any other, and is cut into batches likewise."""
    cluster.create_topic("piped", queues=1)
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\n")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("hotfire.cli.send.open", lambda *_, **__: file.open("rb"), raising=False)
    assert terminal.run("send", "piped", "--batch", "2", "--file", "-").count("SEND_OK") == 3
    assert sorted(bodies(terminal, "piped", "--from", "earliest")) == ["a", "b", "c"]

"""hotfire message: show, find, trace."""

import json

from hotfire import ConsumeFrom, Message, ReceivedMessage
from hotfire.cli.message import _missing
from hotfire.client.searching import Found
from hotfire.sync import Consumer, Producer
from hotfire.testing.blocking import BlockingCluster
from hotfire.testing.ports import free_port
from tests.unit.cli.shell import Shell

IDS = ("messageId", "offsetMessageId")


def test_a_message_is_shown_by_either_id(cluster: BlockingCluster, terminal: Shell) -> None:
    """With all its properties, and which groups have it behind them."""
    cluster.create_topic("shown", queues=1)
    sent = terminal.json("send", "shown", "x", "--key", "k1")
    terminal.run("tail", "shown", "--from", "earliest", "--count", "1", "--group", "readers")
    shown = terminal.json("message", "show", sent["offsetMessageId"])
    assert (shown["body"], shown["messageId"]) == ("x", sent["messageId"])
    assert [(one["group"], one["fate"]) for one in shown["consumedBy"]] == [("readers", "consumed")]
    again = terminal.run("message", "show", sent["messageId"], "--topic", "shown")
    assert "KEYS=k1" in again
    assert "readers" in again
    error = terminal.refused("message", "show", "0" * 32, "--topic", "shown")
    assert "topic shown has no message of which 000" in error


def test_an_id_that_is_none_is_told_with_what_one_looks_like(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """A producer's id and a place want their topic; with it they are found; anything else is no id."""
    cluster.create_topic("placed", queues=1)
    sent = terminal.json("send", "placed", "x", "--queue", "broker-1:0")
    error = terminal.refused("message", "show", sent["messageId"])
    assert f"{sent['messageId']} is an id that a producer gave" in error
    assert "add --topic TOPIC" in error
    for words in ("nonsense", "xy" * 16, "00" * 15):
        error = terminal.refused("message", "show", words)
        assert f"{words!r} is no message id of 32 or 56 hexadecimal digits" in error
    assert "of which topic? add --topic TOPIC" in terminal.refused("message", "show", "broker-1/0@0")
    shown = terminal.json("message", "show", "broker-1/0@0", "--topic", "placed")
    assert (shown["body"], shown["offsetMessageId"]) == ("x", sent["offsetMessageId"])
    for offset in ("1", "77"):
        error = terminal.refused("message", "show", f"broker-1/0@{offset}", "--topic", "placed")
        assert f"broker-1/0 of topic placed has no message at {offset}; it holds 0 to 1" in error
    assert "there is no queue broker-1/9" in terminal.refused(
        "message", "show", "broker-1/9@0", "--topic", "placed"
    )


def test_what_is_found_can_be_shown_and_nothing_found_is_said(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """A line for people has the id that `message show` takes; without a line there is a word on stderr."""
    cluster.create_topic("sought", queues=1)
    sent = terminal.json("send", "sought", "x", "--key", "k")
    (line,) = terminal.run("message", "find", "sought", "--key", "k").splitlines()
    assert sent["offsetMessageId"] in line.split()
    assert (
        terminal.call("message", "find", "sought", "--key", "other")[2]
        == "no message of topic sought was found with the key other\n"
    )
    code, out, err = terminal.call("message", "find", "sought", "--from", "2020-01-01", "--to", "2020-01-02")
    assert (code, out, err) == (0, "", "no message of topic sought was found stored in that span\n")


def test_messages_are_found_and_what_is_left_is_told(cluster: BlockingCluster, terminal: Shell) -> None:
    """By key the newest, by time the oldest; what was not shown can be asked for."""
    cluster.create_topic("found", queues=2)
    with Producer(cluster.namesrv) as producer:
        for number in range(5):
            producer.send(Message("found", b"%d" % number, keys=("k",)))
    lines = terminal.run("message", "find", "found", "--key", "k", "--json").splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == ["0", "1", "2", "3", "4"]
    out = terminal.run("message", "find", "found", "--from", "1h", "--count", "2", "--json")
    assert len(out.splitlines()) == 2
    assert "give --key KEY, or a span" in terminal.refused("message", "find", "found")


def test_a_trace_is_a_table(cluster: BlockingCluster, terminal: Shell) -> None:
    """By the producer's id, or by that of the place, as `message find` shows it; nothing told is fine."""
    cluster.create_topic("traced", queues=1)
    with Producer(cluster.namesrv, group="tracing", trace=True) as producer:
        sent = producer.send(Message("traced", b"x"))
    assert "tracing" in terminal.run("message", "trace", sent.message_id)
    (entry,) = terminal.json("message", "trace", sent.message_id)
    assert (entry["kind"], entry["topic"], entry["is_success"]) == ("Pub", "traced", True)
    (line,) = terminal.run("message", "find", "traced", "--from", "1h").splitlines()
    (place,) = (word for word in line.split() if len(word) == 32)
    assert place != sent.message_id
    assert "tracing" in terminal.run("message", "trace", place)
    assert terminal.json("message", "trace", place) == [entry]
    assert terminal.json("message", "trace", "00") == []
    untold = terminal.json("send", "traced", "y")
    for given, told_of in (("00", "00"), *((untold[name], untold["messageId"]) for name in IDS)):
        code, out, err = terminal.call("message", "trace", given)
        assert (code, out) == (0, "")
        assert err.startswith(f"nothing was told of message {told_of}: ")
        assert err.count("\n") == 1


def test_a_place_whose_broker_is_not_there_is_no_fault_of_the_name_server(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """The address came from the id: that is said, and how the message is found without it."""
    cluster.create_topic("away", queues=1)
    sent = terminal.json("send", "away", "x", "--queue", "broker-0:0")
    nowhere = sent["offsetMessageId"][:8] + f"{free_port():08X}" + sent["offsetMessageId"][16:]
    error = terminal.refused("message", "show", nowhere)
    assert f"message id {nowhere} names this address" in error
    assert "name server" not in error


def test_a_consumer_tells_of_itself_and_handles_a_message_again(
    cluster: BlockingCluster, terminal: Shell
) -> None:
    """group status: its queues and stacks; message consume: the listener's verdict, exit code 1 if bad."""
    cluster.create_topic("handled", queues=1)
    bodies: list[bytes] = []

    def handle(message: ReceivedMessage) -> bool:
        bodies.append(message.body)
        return len(bodies) < 3

    consumer = Consumer(cluster.namesrv, group="handlers", consume_from=ConsumeFrom.FIRST)
    consumer.subscribe("handled", handle)
    with consumer:
        sent = terminal.json("send", "handled", "x", "--queue", "broker-0:0")
        consumer.ready()
        status = terminal.json("group", "status", "handlers", "--stacks")
        ((client_id, told),) = status.items()
        assert told["properties"]["consumerGroup"] == "handlers"
        assert "thread MainThread" in told["stacks"]
        assert "broker-0:0" in terminal.run("group", "status", "handlers", "--client", client_id)
        assert "has no consumer me; it has" in terminal.refused(
            "group", "status", "handlers", "--client", "me"
        )
        words = ["message", "consume", sent["offsetMessageId"], "--group", "handlers", "--client", client_id]
        while not bodies:
            pass
        assert terminal.json(*words)["result"] == "CR_SUCCESS"
        code, out, _ = terminal.call(*words)
        assert code == 1
        assert "CR_LATER" in out


def test_a_second_too_full_for_a_key_is_told_with_two_ways_on() -> None:
    """Asking again from the oldest shown would show the same again."""
    (line,) = _missing(Found([], is_more=True, crowded_ms=1_800_000_005_000), by_time=False)
    assert line.startswith("there may be more: 0 shown")
    assert "--from 1800000004000 --to 1800000005000 without --key shows all of that second" in line
    assert line.endswith("--to 1800000004000 goes on before it")

"""What the lane must leave to the handlers, each case once a difference between the two."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.protocol.codes import RequestCode, ResponseCode, Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.record import Host, iter_records, java_hash, parse_properties
from tests.wire.transcript import Bench, Peer, frames_of

pytestmark = pytest.mark.core
NOW_MS = 1_794_771_400_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store", NOW_MS)
    yield made
    made.close()


def send_fields(unique: str, topic: str = "orders", tag: str = "TagA", more: str = "") -> dict[str, str]:
    properties = f"UNIQ_KEY\x01{unique}\x02TAGS\x01{tag}\x02{more}"
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return fields | {"i": properties}


def pull_fields(
    sys_flag: int, expression: str | None, group: str = "readers", topic: str = "orders"
) -> dict[str, str]:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(sys_flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
    }
    return fields if expression is None else fields | {"subscription": expression}


class Client:
    """Asks one thing at a time."""

    def __init__(self, bench: Bench, number: int = 1) -> None:
        self.bench = bench
        self.peer: Peer = bench.peer(number)
        self.kind = Serialization.JSON

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> list[Command]:
        """All that was written to this client meanwhile."""
        before = len(self.peer.replies)
        self.bench.receive(
            self.peer, encode(Command(code, fields=fields, body=body, serialization=self.kind))
        )
        self.bench.settle()
        return [decode(frame) for frame in frames_of(bytes(self.peer.replies[before:]))]

    def send(
        self, body: bytes = b"body", topic: str = "orders", tag: str = "TagA", more: str = ""
    ) -> Command:
        (reply,) = self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(tag, topic, tag, more), body)
        return reply

    def pull(
        self, sys_flag: int, expression: str | None, group: str = "readers", topic: str = "orders"
    ) -> Command:
        (reply,) = self.ask(RequestCode.PULL_MESSAGE, pull_fields(sys_flag, expression, group, topic))
        return reply

    def subscribe(self, tag: str, group: str = "readers", topic: str = "orders") -> None:
        subscription = (
            f'{{"codeSet":[{java_hash(tag)}],"expressionType":"TAG","subString":"{tag}","subVersion":1,'
            f'"tagsSet":["{tag}"],"topic":"{topic}"}}'
        )
        body = (
            f'{{"clientID":"c","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
            f'"consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING",'
            f'"subscriptionDataSet":[{subscription}]}}],"producerDataSet":[]}}'
        )
        self.ask(RequestCode.HEART_BEAT, {}, body.encode())


def tags(reply: Command) -> list[str]:
    return [parse_properties(record.properties)["TAGS"] for record in iter_records(reply.body)]


def served(bench: Bench) -> tuple[int, int]:
    lane = bench.broker.fast.lane
    assert lane is not None
    return lane.sends, lane.pulls


def test_a_message_no_segment_can_hold_is_refused(bench: Bench) -> None:
    """It is answered, and not a single segment is made in the vain hope that it fits the next one."""
    client = Client(bench)
    client.send()
    before = sorted(path.name for path in (bench.root / "commitlog").iterdir())
    reply = client.send(b"x" * bench.config.mapped_file_size_commit_log)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "does not fit a log segment" in (reply.remark or "")
    assert sorted(path.name for path in (bench.root / "commitlog").iterdir()) == before
    assert client.send().code == ResponseCode.SUCCESS
    assert served(bench)[0] == 1


def test_a_pull_of_everything_lets_nobody_else_pull_everything(bench: Bench) -> None:
    """A pull whose own header asks for all tags leaves the group's agreed filter as it was."""
    client = Client(bench)
    for tag in ("TagA", "TagB"):
        client.send(tag=tag)
    client.subscribe("TagA")
    for _ in range(2):
        assert tags(client.pull(4, None)) == ["TagA", "TagB"]
        assert tags(client.pull(4, "*")) == ["TagA", "TagB"]
        assert tags(client.pull(4, "TagB")) == ["TagB"]
        assert tags(client.pull(0, None)) == ["TagA"]
        assert tags(client.pull(0, "*")) == ["TagA"]
    assert served(bench)[1] > 0


def test_a_group_name_cannot_spell_anothers_grant(bench: Bench) -> None:
    """Group, topic and expression are told apart whatever bytes a name holds."""
    client = Client(bench)
    client.kind = Serialization.ROCKETMQ
    client.send(topic="orders")
    client.send(topic="secrets", tag="secrets")
    for _ in range(2):
        client.pull(4, "secrets", group="readers", topic="orders")
    stolen = client.pull(0, None, group="readers\0orders", topic="secrets")
    assert stolen.code != ResponseCode.SUCCESS
    assert stolen.body == b""


def test_a_broker_that_may_not_be_written_takes_no_ordered_message(tmp_path: Path) -> None:
    """The reference refuses sends to ordered topics then, and only to those."""
    bench = Bench(tmp_path / "store", NOW_MS, broker_permission=4)
    client = Client(bench)
    for topic, order in (("ordered", "true"), ("loose", "false")):
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": order,
        }
        client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert client.send(topic="ordered").code == ResponseCode.NO_PERMISSION
    assert client.send(topic="loose").code == ResponseCode.SUCCESS
    assert served(bench)[0] == 1
    bench.close()


@pytest.mark.parametrize("fast_lane_enable", [True, False])
def test_a_log_that_failed_refuses_sends(fast_lane_enable: bool, tmp_path: Path) -> None:
    """The message of the failed turn is never acknowledged; every later one is refused with the reason."""
    bench = Bench(tmp_path / "store", NOW_MS, fast_lane_enable=fast_lane_enable)
    first, second = Client(bench, 1), Client(bench, 2)
    assert first.send().code == ResponseCode.SUCCESS
    assert first.send().code == ResponseCode.SUCCESS
    closed = os.open("/dev/null", os.O_RDONLY)
    for fd in bench.store._log.segments.values():
        os.dup2(closed, fd)
    os.close(closed)
    with pytest.raises(ValueError, match="not enough values"):
        first.send()
    assert first.peer.closed
    for _ in range(2):
        reply = second.send()
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "Bad file descriptor" in (reply.remark or "")
    bench.close()


@pytest.mark.parametrize("region_size", [1, 90, 170, 255])
def test_a_long_run_is_answered_frame_by_frame(region_size: int, tmp_path: Path) -> None:
    """2,000 requests in one buffer, with the longest texts the lane takes, get 2,000 whole replies."""
    address = Host.parse("2001:db8::1", 10911)
    bench = Bench(tmp_path / "store", NOW_MS, advertised=address, region_id="r" * region_size)
    client = Client(bench)
    client.send()
    client.pull(4, "*")
    before = len(client.peer.replies)
    run = b"".join(
        encode(Command(RequestCode.SEND_MESSAGE_V2, opaque=-1 - n, fields=send_fields("u" * 255), body=b"b"))
        + encode(
            Command(
                RequestCode.PULL_MESSAGE, opaque=-5000 - n, fields=pull_fields(4, "*") | {"maxMsgNums": "1"}
            )
        )
        for n in range(1000)
    )
    bench.receive(client.peer, run)
    bench.settle()
    replies = [decode(frame) for frame in frames_of(bytes(client.peer.replies[before:]))]
    assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}
    assert sorted(reply.opaque for reply in replies) == [*range(-5999, -4999), *range(-1000, 0)]
    assert served(bench) == (1000, 1000)
    bench.close()


def test_long_values_of_binary_headers_stay_in_the_lane(bench: Bench) -> None:
    """Properties of 128 bytes and more are as ordinary as short ones, in both serialisations."""
    client = Client(bench)
    client.send()
    for client.kind in Serialization:
        for size in (1, 126, 127, 128, 200, 300, 5000):
            assert client.send(more=f"k\x01{'v' * size}\x02").code == ResponseCode.SUCCESS
    assert served(bench)[0] == 14

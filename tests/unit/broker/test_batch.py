"""A batch is several sends in one: the same records, consecutive, or none at all."""

import random
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.broker.handlers.batch import MESSAGES_MAX
from hotfire.protocol.batch import BatchMessage, encode_batch
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, encode
from hotfire.protocol.record import encode_properties, iter_records, parse_properties
from hotfire.protocol.requests import QueryMessage, SendBatchMessage, SendMessage, SendMessageV2
from tests.unit.broker.conftest import LANE, Make
from tests.unit.broker.harness import Harness, bodies, pull_request, send_request

HEADER = "WAIT\x01true\x02UNIQ_KEY\x01BATCH0000000000000000000000000001\x02"
HEAD_BYTES = 20


def message(number: int, **named: str) -> BatchMessage:
    given = {"UNIQ_KEY": f"{number:032d}", "WAIT": "true", **named}
    properties = encode_properties({name: value for name, value in given.items() if value})
    return BatchMessage(b"body %d" % number, properties.removesuffix(b"\x02"), flag=number)


def batch_request(
    *messages: BatchMessage, kind: type[SendMessage] = SendBatchMessage, **fields: Any
) -> SendMessage:
    like = send_request(**{"properties": HEADER, "batch": True, "body": encode_batch(messages), **fields})
    return kind(**{field.name: getattr(like, field.name) for field in like.fields}, body=like.body)


@pytest.mark.promise(147, 148)
@pytest.mark.parametrize("kind", [SendBatchMessage, SendMessageV2, SendMessage])
def test_a_batch_is_as_many_records_in_one_queue(heart: Harness, kind: type[SendMessage], shape: str) -> None:
    """One request, ten records with consecutive offsets, each with its own id, key, tag and flag."""
    heart.send(queue_id=2)
    reply = heart.ask(
        batch_request(*(message(i, TAGS=f"T{i}", KEYS=f"k{i}") for i in range(10)), kind=kind, queue_id=2)
    )
    assert (reply.code, reply.remark) == (0, None)
    assert reply.fields is not None
    assert reply.fields["queueId"] == "2"
    assert reply.fields["queueOffset"] == "1"
    assert reply.fields["transactionId"] == "BATCH0000000000000000000000000001"
    records = heart.log_records()[1:]
    assert [record.queue_offset for record in records] == list(range(1, 11))
    assert {record.queue_id for record in records} == {2}
    assert [record.flag for record in records] == list(range(10))
    assert reply.fields["msgId"].split(",") == [record.message_id for record in records]
    assert len(set(reply.fields["msgId"].split(","))) == 10
    assert bodies(heart.ask(pull_request(1, queue_id=2))) == [b"body %d" % i for i in range(10)]
    assert [r.body for r in iter_records(heart.ask(pull_request(1, queue_id=2, expression="T7")).body)] == [
        b"body 7"
    ]
    lane = heart.broker.fast.lane
    if shape == LANE and kind is not SendMessage:
        assert lane is not None
        assert lane.sends == 11
    assert heart.broker.messages_stored == 11


def test_messages_are_stored_as_they_came(heart: Harness) -> None:
    """Nothing is added to the properties of a batch's messages: no region, no cluster."""
    heart.ask(batch_request(message(1), BatchMessage(b"", b"", 5)))
    first, second = heart.log_records()
    named = parse_properties(first.properties)
    named.pop("__CRC32#", None)
    assert named == {"UNIQ_KEY": f"{1:032d}", "WAIT": "true"}
    assert (second.body, second.flag) == (b"", 5)
    assert set(parse_properties(second.properties)) <= {"__CRC32#"}


def test_each_message_of_a_batch_is_found_by_its_keys(heart: Harness) -> None:
    """Unique key and keys of every message are in the index."""
    heart.ask(batch_request(*(message(i, KEYS="common " + f"own{i}") for i in range(3))))
    for key, count in (("own1", 1), ("common", 3), (f"{2:032d}", 1)):
        query = QueryMessage(topic="T", key=key, max_num=10, begin_timestamp=0, end_timestamp=1 << 60)
        heart.receive(query)
        heart.settle()
        heart.ring()
        assert len(bodies(heart.connection.take_one())) == count


def test_a_batch_without_a_key_of_its_own(heart: Harness) -> None:
    """Older clients give only the messages one: the reply has no transaction id then."""
    reply = heart.ask(batch_request(message(1), properties="WAIT\x01true"))
    assert reply.code == 0
    assert reply.fields is not None
    assert "transactionId" not in reply.fields


def test_a_checksum_that_came_along_is_left_out(make: Make) -> None:
    """It was another record's: kept at the end of this one it would make it look harmed."""
    heart = make(enabled_append_prop_crc=False)
    heart.create_topic("T")
    false_sum = BatchMessage(b"b", b"A\x011\x02__CRC32#\x010123456789\x02")
    assert heart.ask(batch_request(message(1), false_sum)).code == 0
    assert parse_properties(heart.log_records()[1].properties) == {"A": "1"}
    assert len(bodies(heart.ask(pull_request()))) == 2


@pytest.mark.promise(147)
@pytest.mark.parametrize(
    ("messages", "fields", "code", "said"),
    [
        ([message(1), message(2, DELAY="3")], {}, 13, "message 1 of the batch asks for delay level 3"),
        ([message(1, TIMER_DELAY_SEC="3")], {}, 13, "message 0 of the batch"),
        ([message(1)], {"properties": HEADER + "DELAY\x011\x02"}, 13, "the batch asks for delay level 1"),
        ([message(1)], {"topic": "%RETRY%g"}, 13, "does not support retry group %RETRY%g"),
        ([message(1)], {"sys_flag": 4}, 13, "transaction"),
        ([message(1)], {"sys_flag": 0x80}, 13, "does not keep batches whole"),
        ([message(1)], {"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
        ([message(1)], {"queue_id": 4}, 29, "queueId[4]"),
        ([], {}, 13, "no body"),
        ([BatchMessage(b"x" * 3000)] * 3, {}, 13, "8192B, this one has 9066B"),
        ([BatchMessage(b"x", b"y" * 32_767)], {}, 13, None),
    ],
)
def test_what_no_batch_may_be(
    make: Make, messages: list[BatchMessage], fields: dict[str, Any], code: int, said: str | None
) -> None:
    """Refused with its reason, and nothing of it stored."""
    heart = make(max_message_size=8192 if said and "8192" in said else 1 << 20)
    heart.create_topic("T")
    reply = heart.ask(batch_request(*messages, **fields))
    assert reply.code == code, reply
    if said is not None:
        assert said in (reply.remark or "")
    assert heart.log_records() == []
    assert heart.ask(batch_request(message(1))).fields["queueOffset"] == "0"  # type: ignore[index]


@pytest.mark.core
def test_as_many_messages_as_can_be_counted(make: Make) -> None:
    """Their ids make the largest reply there is, larger than any header we take of a request."""
    heart = make(mapped_file_size_commit_log=16 << 20)
    heart.create_topic("T")
    reply = heart.ask(batch_request(*[BatchMessage(b"")] * MESSAGES_MAX))
    assert reply.code == 0
    assert reply.fields is not None
    assert len(reply.fields["msgId"].split(",")) == MESSAGES_MAX


def test_more_messages_than_can_be_counted(make: Make) -> None:
    heart = make(mapped_file_size_commit_log=16 << 20)
    heart.create_topic("T")
    reply = heart.ask(batch_request(*[BatchMessage(b"")] * (MESSAGES_MAX + 1)))
    assert reply.code == 13
    assert f"at most {MESSAGES_MAX}" in (reply.remark or "")
    assert heart.log_records() == []


def test_every_cut_and_every_wrong_length_is_refused_whole(heart: Harness) -> None:
    """A batch that ends early or whose lengths do not agree stores nothing, and the broker goes on."""
    sound = encode_batch([message(1), message(2)])
    half = len(sound) // 2
    for cut in range(1, len(sound)):
        if cut != half:
            assert heart.ask(batch_request(body=sound[:cut])).code == 1, cut
    rng = random.Random(7)
    for at in (0, 1, 2, 3, 16, 17, 18, 19, HEAD_BYTES + 6, HEAD_BYTES + 7, half, half + 3, half + 19):
        for value in (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)):
            if sound[at] != value:
                harmed = sound[:at] + bytes([value]) + sound[at + 1 :]
                assert heart.ask(batch_request(body=harmed)).code == 1, (at, value)
    assert heart.log_records() == []
    assert heart.ask(batch_request(body=sound)).code == 0


def test_a_batch_lies_in_one_segment(make: Make) -> None:
    """One that does not fit the rest of a segment begins the next; one larger than any is refused."""
    heart = make(mapped_file_size_commit_log=1 << 16)
    heart.create_topic("T")
    for number in range(12):
        reply = heart.ask(batch_request(*(BatchMessage(b"x" * 1000) for _ in range(11))))
        assert reply.code == 0, reply
        assert reply.fields is not None
        places = [int(one[16:], 16) // (1 << 16) for one in reply.fields["msgId"].split(",")]
        assert len(set(places)) == 1, (number, places)
    reply = heart.ask(batch_request(*(BatchMessage(b"x" * 1000) for _ in range(64))))
    assert reply.code == 14
    assert "does not fit a log segment" in (reply.remark or "")
    heart.reopen()
    assert heart.store.queue("T", 0).max == 12 * 11


def test_a_batch_may_be_one_way(heart: Harness) -> None:
    request = batch_request(message(1), message(2))
    heart.receive_bytes(encode(request.to_command(opaque=5, oneway=True)))
    heart.settle()
    assert heart.connection.take() == []
    assert len(heart.log_records()) == 2


def some_batch(rng: random.Random) -> Command:
    def some(usual: Any, *odd: Any) -> Any:
        return usual if rng.random() < 0.97 else rng.choice(odd)

    messages = []
    for _ in range(rng.choice([1, 2, 5, 30])):
        named = {"UNIQ_KEY": f"{rng.randrange(10**6):032d}", "TAGS": rng.choice(["", "A", " ", "标签"])}
        named["KEYS"] = rng.choice(["", "a b", " ", " ".join(str(i) for i in range(200))])
        named.update(some({}, {"DELAY": "1"}, {"DELAY": "0"}, {"TIMER_X": "1"}, {"__CRC32#": "0123456789"}))
        raw = some(
            encode_properties({k: v for k, v in named.items() if v}), b"", b"\xff\x01\x02", b"KEYS\x01"
        )
        messages.append(
            BatchMessage(
                rng.randbytes(some(rng.choice([1, 100]), 0, 3000)), raw[: some(None, -1)], rng.randrange(9)
            )
        )
    body = encode_batch(messages)
    request = batch_request(
        kind=some(SendBatchMessage, SendMessageV2, SendMessage),
        body=some(body, body[:-1], body + b"\0"),
        topic=some("T", "New", "%RETRY%g"),
        queue_id=some(rng.randrange(4), 9, -1),
        properties=some(HEADER, None, "WAIT\x01false", "x", "DELAY\x012\x02"),
        sys_flag=some(0, 1, 4, 0x10, 0x40),
        reconsume_times=some(0, 3, None),
        batch=some(True, False),
    )
    return request.to_command(
        serialization=some(Serialization.JSON, Serialization.ROCKETMQ), oneway=some(False, True)
    )


def transcript(
    root: Path, seed: int, *, lane: bool, crc: bool
) -> tuple[dict[int, bytes], list[bytes], list[bytes]]:
    rng = random.Random(seed)
    random.seed(seed)  # the choice of a queue for -1
    heart = Harness(
        root, fast_lane_enable=lane, enabled_append_prop_crc=crc, mapped_file_size_commit_log=1 << 17
    )
    heart.broker.unique_ids.next = lambda now_ms: f"{now_ms:032d}"  # type: ignore[method-assign]
    heart.create_topic("T", 4)
    replies: dict[int, bytes] = {}
    for opaque in range(1, 120):
        command = some_batch(rng)
        command.opaque = opaque
        heart.receive_bytes(encode(command))
        if rng.random() < 0.3:
            heart.settle()
            heart.now_ms += rng.randrange(50)
    heart.settle()
    for reply in heart.connection.take():
        replies[reply.opaque] = encode(reply)
    served = heart.broker.fast.lane
    assert served is None or served.sends > 100, "the lane served next to nothing"
    heart.close()
    log = [file.read_bytes() for file in sorted((root / "commitlog").iterdir())]
    index = [file.read_bytes()[8:] for file in sorted((root / "index").iterdir())]
    return replies, log, index


@pytest.mark.core
@pytest.mark.parametrize("seed", range(6))
def test_lane_and_handler_store_the_same_batches(seed: int, in_memory: Path) -> None:
    """Sound, odd and broken batches: replies, log and key index are equal with the lane and without it."""
    assert core.COMPILED, core.WHY_PLAIN
    crc = seed % 2 == 0
    with_lane = transcript(in_memory / "with", seed, lane=True, crc=crc)
    without = transcript(in_memory / "without", seed, lane=False, crc=crc)
    assert with_lane[0].keys() == without[0].keys()
    for opaque, reply in without[0].items():
        assert with_lane[0][opaque] == reply, f"seed {seed} opaque {opaque}"
    assert with_lane[1] == without[1]
    assert with_lane[2] == without[2]


def test_a_topic_without_queues_takes_none(heart: Harness) -> None:
    """A producer may have made it with none: a batch for any of its queues is refused by name."""
    heart.ask(send_request("Z", default_topic_queue_nums=0))
    reply = heart.ask(batch_request(message(1), topic="Z", queue_id=-1))
    assert (reply.code, reply.remark) == (29, "topic[Z] has no write queues")

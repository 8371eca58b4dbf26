"""A send: what is stored, what is answered, and where it goes."""

from collections import Counter

import pytest

from hotfire.model import TopicConfig
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command
from hotfire.protocol.record import (
    Host,
    Record,
    SysFlag,
    parse_offset_message_id,
    parse_properties,
    record_checksum_ok,
)
from hotfire.protocol.requests import GetMaxOffset, SendReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import (
    START_MS,
    STORE_HOST,
    Harness,
    bodies,
    next_offset,
    properties,
    pull_request,
    send_request,
)

pytestmark = pytest.mark.core


def test_both_codes_store_the_same_record(heart: Harness) -> None:
    """SEND_MESSAGE and SEND_MESSAGE_V2 are two spellings of one request: field by field the same record."""
    for v1 in (True, False):
        fields = {"flag": 7, "sys_flag": SysFlag.COMPRESSED, "reconsume_times": 2, "body": b"\x00\xffbody"}
        reply = heart.send(queue_id=3, v1=v1, named={"TAGS": "A", "KEYS": "k1 k2"}, **fields)
        assert reply.code == 0, reply.remark
    first, second = heart.log_records()
    for record in (first, second):
        assert (record.topic, record.queue_id, record.body) == ("T", 3, b"\x00\xffbody")
        assert (record.flag, record.sys_flag, record.reconsume_times) == (7, SysFlag.COMPRESSED, 2)
        assert (record.born_timestamp, record.store_timestamp) == (START_MS - 5, START_MS)
        assert (record.born_host, record.store_host) == (Host.parse("127.0.0.1", 50_001), STORE_HOST)
        assert parse_properties(record.properties)["KEYS"] == "k1 k2"
    assert (first.queue_offset, second.queue_offset) == (0, 1)


@pytest.mark.promise(41)
@pytest.mark.parametrize("v1", [False, True])
def test_reply_says_where_the_record_lies(heart: Harness, v1: bool) -> None:
    """The message id decodes to the broker's address and the record's place in the log; opaque is echoed."""
    for number in range(3):
        reply = heart.send(queue_id=number % 2, v1=v1, body=b"%d" % number)
        told = SendReply.from_command(reply)
        record = heart.log_records()[-1]
        host, offset = parse_offset_message_id(told.msg_id)
        assert (host, offset) == (STORE_HOST, record.physical_offset)
        assert (told.queue_id, told.queue_offset) == (record.queue_id, record.queue_offset)
        assert told.msg_id == record.message_id
        assert (record.queue_id, record.queue_offset, record.body) == (
            number % 2,
            number // 2,
            b"%d" % number,
        )
        assert told.transaction_id == parse_properties(record.properties)["UNIQ_KEY"]


@pytest.mark.parametrize("opaque", [0, 1, 2**31 - 1, -1, -(2**31)])
def test_any_opaque_comes_back(heart: Harness, opaque: int) -> None:
    """A reply carries the request's opaque, whatever 32-bit number it is."""
    command = send_request().to_command(opaque=opaque)
    heart.command = lambda request: command  # type: ignore[assignment, method-assign, return-value]
    assert heart.ask(command).opaque == opaque


def test_binary_headers_are_served_alike(heart: Harness) -> None:
    """A request in the binary header form stores the same record; the reply is JSON, the server's choice."""
    command = send_request().to_command(serialization=Serialization.ROCKETMQ)
    reply = heart.ask(command)
    assert (reply.code, reply.serialization) == (0, Serialization.JSON)
    assert bodies(heart.pull()) == [b"body"]


@pytest.mark.promise(122)
def test_a_queue_keeps_the_order_of_arrival(heart: Harness) -> None:
    """Messages of one queue get offsets in the order they were sent, over several turns and connections."""
    connections = [heart.connect(port) for port in (50_002, 50_003)]
    sent = []
    for number in range(100):
        body = b"%03d" % number
        sent.append(body)
        heart.receive(send_request(body=body), to=connections[number % 2])
        if number % 7 == 0:
            heart.settle()
    heart.settle()
    received: list[bytes] = []
    while len(received) < 100:
        received.extend(bodies(heart.pull(offset=len(received))))
    assert received == sent


@pytest.mark.promise(38)
@pytest.mark.parametrize("v1", [False, True])
def test_queue_below_zero_means_any(heart: Harness, v1: bool) -> None:
    """1000 sends with queue id -1 reach every write queue, none of them rarely."""
    heart.create_topic("Eight", 8)
    heart.receive(*[send_request("Eight", -1, v1=v1) for _ in range(1000)])
    heart.settle()
    replies = [SendReply.from_command(reply) for reply in heart.connection.take()]
    hits = Counter(reply.queue_id for reply in replies)
    assert sorted(hits) == list(range(8))
    assert min(hits.values()) > 60, hits  # 125 expected; below 60 is a one in 10^9 accident
    stored = [heart.ask(GetMaxOffset(topic="Eight", queue_id=i)).fields for i in range(8)]
    assert [int((fields or {})["offset"]) for fields in stored] == [hits[i] for i in range(8)]


# --- properties ---


def stored_properties(heart: Harness, request_properties: str | None) -> tuple[bytes, SendReply]:
    reply = heart.ask(send_request(properties=request_properties))
    assert reply.code == 0, reply.remark
    stored = heart.log_records()[-1].properties
    head, _, crc = stored.rpartition(b"__CRC32#\x01")
    assert len(crc) == 11, stored
    return head, SendReply.from_command(reply)


OURS = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


def test_properties_are_kept_as_sent_and_ours_follow(heart: Harness) -> None:
    """A well-formed property string is stored byte for byte, then region, trace switch and cluster."""
    sent = properties(TAGS="Blau", KEYS="a b", 名="值")
    stored, _ = stored_properties(heart, sent)
    assert stored == sent.encode() + OURS
    stored, _ = stored_properties(heart, sent.removesuffix("\x02"))  # some clients leave the last mark out
    assert stored == sent.encode() + OURS


@pytest.mark.parametrize("sent", [None, "", "TAGS\x01A\x02", "garbage", "\x01\x02\x02", "K\x01v\x01w\x02"])
def test_missing_unique_key_is_made(heart: Harness, sent: str | None) -> None:
    """A message without a unique key gets one of its own, and the reply tells it."""
    first, told = stored_properties(heart, sent)
    second, told_next = stored_properties(heart, sent)
    made = [parse_properties(each)["UNIQ_KEY"] for each in (first, second)]
    assert made == [told.transaction_id, told_next.transaction_id]
    assert len(set(made)) == 2
    assert all(len(bytes.fromhex(key)) == 16 for key in made)
    assert first.endswith(OURS)
    if sent and "TAGS" in sent:
        assert parse_properties(first)["TAGS"] == "A"


def test_properties_of_ours_cannot_be_forged(heart: Harness) -> None:
    """Region, trace switch, cluster, pop handle and checksum are the broker's to write, once."""
    forged = {
        "MSG_REGION": "Mars",
        "TRACE_ON": "false",
        "CLUSTER": "Other",
        "POP_CK": "0 1 2",
        "__CRC32#": "0000000000",
    }
    stored, _ = stored_properties(heart, properties(TAGS="A", **forged))
    assert parse_properties(stored) == {
        "UNIQ_KEY": "AC11000100002A9F0000000000000001",
        "TAGS": "A",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert [stored.count(name) for name in (b"MSG_REGION", b"CLUSTER", b"POP_CK", b"__CRC32#")] == [
        1,
        1,
        0,
        0,
    ]


def test_settings_of_region_trace_and_cluster_are_followed(make: Make) -> None:
    """regionId, traceOn and brokerClusterName show in the record and in the reply."""
    heart = make(region_id="Moon", trace_on=False, broker_cluster_name="C1")
    reply = heart.send()
    assert reply.fields is not None
    assert (reply.fields["MSG_REGION"], reply.fields["TRACE_ON"]) == ("Moon", "false")
    named = parse_properties(heart.log_records()[0].properties)
    assert (named["MSG_REGION"], named["TRACE_ON"], named["CLUSTER"]) == ("Moon", "false", "C1")


def test_records_carry_a_checksum_over_all_of_them(make: Make) -> None:
    """With enabledAppendPropCRC each stored record proves itself whole; without, none has the property."""
    for name, wanted in (("with", True), ("without", False)):
        heart = make(name, enabled_append_prop_crc=wanted)
        heart.send()
        heart.send(v1=True)
        for record in heart.log_records():
            start = record.physical_offset
            data = (heart.root / "commitlog" / f"{0:020d}").read_bytes()[start : start + record.size]
            assert record_checksum_ok(data, require_crc=wanted)
            assert (b"__CRC32#" in record.properties) is wanted


# --- automatic creation ---


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (16, 8), (8, 8), (1, 1)])
def test_first_message_creates_its_topic(make: Make, asked: int, made: int) -> None:
    """An unknown topic is made from TBW102 with as many queues as the client asks for, its own at most."""
    heart = make()
    told: list[str] = []
    heart.broker.topics_changed = lambda: told.append("changed")
    reply = heart.send(topic="New", default_topic_queue_nums=asked)
    assert reply.code == 0, reply.remark
    assert heart.broker.topics.get("New") == TopicConfig("New", made, made, perm=6)
    assert told, "name servers were not told"
    assert bodies(heart.pull(topic="New")) == [b"body"]


def test_without_automatic_creation_an_unknown_topic_is_refused(make: Make) -> None:
    """autoCreateTopicEnable=false: code 17, the topic named, nothing made."""
    heart = make(auto_create_topic_enable=False)
    for v1 in (False, True):
        reply = heart.send(topic="New", v1=v1)
        assert reply.code == 17
        assert "New" in (reply.remark or "")
    assert heart.broker.topics.get("New") is None
    assert heart.log_records() == []


def test_template_must_allow_to_be_inherited(heart: Harness) -> None:
    """A topic that does not pass its permissions on, or does not exist, is no template."""
    for template in ("T", "Nowhere", ""):
        assert heart.send(topic="New", default_topic=template).code == 17


def test_creation_survives_a_restart(make: Make) -> None:
    """A topic that a message created is there after the restart, and its messages are."""
    heart = make()
    heart.send(topic="New", queue_id=2, body=b"kept")
    heart.reopen()
    assert heart.broker.topics.get("New") == TopicConfig("New", 4, 4, perm=6)
    reply = heart.pull(topic="New", queue_id=2)
    assert (bodies(reply), next_offset(reply)) == ([b"kept"], 1)
    assert heart.send(topic="New", queue_id=2).code == 0
    assert next_offset(heart.pull(topic="New", queue_id=2)) == 2


# --- time ---


@pytest.mark.promise(40)
def test_store_time_never_decreases(heart: Harness) -> None:
    """The clock is set back by an hour, then runs on, then the broker restarts: store times only grow."""
    clocks = [START_MS, START_MS + 1000, START_MS - 3_600_000, START_MS - 3_599_000, START_MS + 2000]
    for clock in clocks:
        heart.now_ms = clock
        heart.receive(send_request(), send_request(v1=True), send_request(queue_id=1))
        heart.settle()
    heart.now_ms = START_MS - 10_000_000
    heart.reopen()
    heart.send()
    heart.send(v1=True)
    times = [record.store_timestamp for record in heart.log_records()]
    assert len(times) == 17
    assert times == sorted(times)
    assert times[0] == START_MS
    assert times[3:12] == [START_MS + 1000] * 9
    assert times[12:] == [START_MS + 2000] * 5


def test_a_message_may_be_born_at_any_time(heart: Harness) -> None:
    """The producer's clock is the producer's affair."""
    for born in (0, 1, START_MS + 10**9, 2**62):
        assert heart.send(born_timestamp=born).code == 0
    assert [record.born_timestamp for record in heart.log_records()] == [0, 1, START_MS + 10**9, 2**62]


def test_ipv6_producers_are_stored_with_their_address(heart: Harness) -> None:
    """A producer on IPv6 is in the record in full, and consumers can decode it."""
    host = Host.parse("2001:db8::1", 1234)
    heart.connection.born_host = host.address + host.port.to_bytes(4)
    for v1 in (False, True):
        assert heart.send(v1=v1).code == 0
    for record in heart.log_records():
        assert isinstance(record, Record)
        assert record.born_host == host
        assert record.sys_flag & SysFlag.BORN_HOST_V6
    assert len(bodies(heart.pull())) == 2


def test_request_after_request_on_one_read(heart: Harness) -> None:
    """Sends, pulls and questions in one read are answered each by its own kind."""
    requests = [
        send_request(),
        pull_request(),
        Command(9999),
        send_request(v1=True),
        GetMaxOffset(topic="T", queue_id=0),
        send_request(queue_id=99),
    ]
    opaques = heart.receive(*requests)
    heart.settle()
    by_opaque = {reply.opaque: reply.code for reply in heart.connection.take()}
    assert [by_opaque[opaque] for opaque in opaques] == [0, 19, 3, 0, 0, 29]

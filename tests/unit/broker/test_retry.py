"""What a consumer could not handle: back to its group, later each time, in the end to the dead letters."""

import dataclasses
from typing import Any

import pytest

from hotfire.model import SubscriptionGroup, TopicConfig
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.record import Host, Record, SysFlag, iter_records, parse_properties
from hotfire.protocol.requests import ConsumerSendMsgBack, UpdateAndCreateSubscriptionGroup
from hotfire.store.config import DELAY_LEVELS, delays_ms
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, STORE_HOST, FakeConnection, Harness, bodies, send_request

pytestmark = pytest.mark.core

RETRY, DEAD = "%RETRY%CG", "%DLQ%CG"
DELAYS_MS = delays_ms(DELAY_LEVELS)


def pulled(heart: Harness, topic: str = "T", offset: int = 0) -> list[Record]:
    return list(iter_records(heart.pull(topic=topic, offset=offset).body))


def ask_beside(heart: Harness, request: ConsumerSendMsgBack | Command) -> Command:
    """One request whose answer comes from beside the loop."""
    (opaque,) = heart.receive(request)
    heart.settle()
    replies = heart.connection.take()
    while not replies:
        heart.ring()
        heart.settle()
        replies = heart.connection.take()
    (reply,) = replies
    assert reply.opaque == opaque
    return reply


def back(record: Record, *, level: int = 0, **fields: Any) -> ConsumerSendMsgBack:
    made = {"group": "CG", "origin_msg_id": "id", "origin_topic": record.topic, **fields}
    return ConsumerSendMsgBack(offset=record.physical_offset, delay_level=level, **made)


def send_back(heart: Harness, record: Record, level: int = 0, **fields: Any) -> Command:
    return ask_beside(heart, back(record, level=level, **fields))


def one(heart: Harness) -> Record:
    """The only message of topic T."""
    heart.send(body=b"bad", named={"TAGS": "A", "KEYS": "k"}, flag=5, sys_flag=SysFlag.COMPRESSED)
    (record,) = pulled(heart)
    return record


@pytest.mark.promise(162)
def test_a_failed_message_comes_again(heart: Harness) -> None:
    """Failed once: 10 s later in the group's retry topic, reconsumeTimes 1, with the topic it came from."""
    record = one(heart)
    reply = send_back(heart, record)
    assert (reply.code, reply.remark, reply.fields) == (0, None, None)
    retry = heart.broker.topics.get(RETRY)
    assert retry is not None
    assert (retry.read_queues, retry.write_queues, retry.perm) == (1, 1, 6)
    heart.now_ms += 9999
    heart.tick()
    assert pulled(heart, RETRY) == []
    heart.now_ms += 1
    heart.tick()
    (again,) = pulled(heart, RETRY)
    assert (again.body, again.flag, again.sys_flag) == (b"bad", 5, SysFlag.COMPRESSED)
    assert (again.reconsume_times, again.queue_id) == (1, 0)
    assert (again.born_host, again.born_timestamp) == (record.born_host, record.born_timestamp)
    assert again.store_host == STORE_HOST
    named = parse_properties(again.properties)
    assert named["RETRY_TOPIC"] == "T"
    assert named["ORIGIN_MESSAGE_ID"] == record.message_id
    assert (named["WAIT"], named["DELAY"], named["TAGS"], named["KEYS"]) == ("false", "3", "A", "k")
    assert (named["REAL_TOPIC"], named["REAL_QID"]) == (RETRY, "0")
    assert len(pulled(heart)) == 1, "its own topic has it once"


def test_a_group_with_more_queues_than_its_retry_topic_loses_nothing(heart: Harness) -> None:
    """Given more retry queues later: messages go only to queues of the topic that consumers read."""
    record = one(heart)
    send_back(heart, record)
    group = SubscriptionGroup("CG", retry_queues=1000)
    assert heart.ask(UpdateAndCreateSubscriptionGroup(body=encode_body(group))).code == 0
    for _ in range(4):
        assert send_back(heart, record).code == 0
    heart.now_ms += 10_000
    heart.tick()
    assert len(pulled(heart, RETRY)) == 5


def test_send_backs_are_counted_for_the_topic_the_message_came_from(heart: Harness) -> None:
    """Whatever the request says: its words are the peer's, and each would be kept."""
    record = one(heart)
    assert send_back(heart, record, origin_topic="x" * 10_000).code == 0
    heart.now_ms += 10_000
    heart.tick()
    (again,) = pulled(heart, RETRY)
    assert send_back(heart, again).code == 0
    assert list(heart.broker.statistics._sent_back) == [("T", "CG")]


@pytest.mark.promise(163)
@pytest.mark.promise(164)
@pytest.mark.promise(165)
def test_sixteen_tries_then_the_dead_letters(heart: Harness) -> None:
    """Redelivered after 10 s, 30 s, 1 m … 2 h, 16 times; the 17th failure lays it aside, to be read."""
    record = one(heart)
    first = record
    waits = []
    for times in range(1, 17):
        assert send_back(heart, record).code == 0
        sent_ms = heart.now_ms
        due_ms = heart.broker.due_ms()
        assert due_ms is not None
        heart.now_ms = due_ms - 1
        heart.tick()
        assert pulled(heart, RETRY, offset=times - 1) == [], "early"
        heart.now_ms = due_ms
        heart.tick()
        (record,) = pulled(heart, RETRY, offset=times - 1)
        assert record.reconsume_times == times
        waits.append(due_ms - sent_ms)
    assert waits == list(DELAYS_MS[2:])
    assert heart.broker.topics.get(DEAD) is None
    assert send_back(heart, record).code == 0
    dead = heart.broker.topics.get(DEAD)
    assert dead is not None
    assert (dead.perm, dead.read_queues, dead.write_queues) == (6, 1, 1)
    assert heart.broker.due_ms() is None, "it does not come again"
    heart.pass_time(1000)
    assert pulled(heart, RETRY, offset=16) == []
    (letter,) = pulled(heart, DEAD)
    assert letter.body == b"bad"
    named = parse_properties(letter.properties)
    assert (named["RETRY_TOPIC"], named["ORIGIN_MESSAGE_ID"]) == ("T", first.message_id)
    assert named["DELAY"] == "0"
    # usable for another try: whoever reads the dead letters sends it to its topic again, or fails there, too
    assert heart.send(topic="T", body=letter.body).code == 0
    assert bodies(heart.pull(offset=1)) == [b"bad"]
    assert heart.send(topic=DEAD, body=b"by hand").code == 0


@pytest.mark.parametrize(
    ("fields", "reconsumed", "topic"),
    [
        ({"level": -1}, 0, DEAD),
        ({"level": 5}, 0, RETRY),
        ({"max_reconsume_times": 0}, 0, DEAD),
        ({"max_reconsume_times": 3}, 2, RETRY),
        ({"max_reconsume_times": 3}, 3, DEAD),
        ({"max_reconsume_times": 20}, 16, RETRY),
        ({}, 15, RETRY),
        ({}, 16, DEAD),
    ],
)
def test_who_decides_when_it_is_dead(
    heart: Harness, fields: dict[str, Any], reconsumed: int, topic: str
) -> None:
    """The consumer by a level below 0 or its own limit; the group's 16 otherwise."""
    heart.send(reconsume_times=reconsumed)
    (record,) = pulled(heart)
    assert send_back(heart, record, **fields).code == 0
    stored = heart.log_records()[-1]
    named = parse_properties(stored.properties)
    assert (named.get("REAL_TOPIC") or stored.topic) == topic
    if topic == RETRY:
        assert stored.queue_id + 1 == fields.get("level", min(3 + reconsumed, 18))
    assert stored.reconsume_times == reconsumed + 1


def test_clients_before_3_4_9_have_no_limit_of_their_own(heart: Harness) -> None:
    """The header's limit counts from that version on; before, the group's does."""
    record = one(heart)
    command = back(record, max_reconsume_times=0).to_command()
    assert ask_beside(heart, dataclasses.replace(command, version=120)).code == 0
    assert heart.log_records()[-1].topic == "SCHEDULE_TOPIC_XXXX"
    assert ask_beside(heart, dataclasses.replace(command, version=121)).code == 0
    assert heart.log_records()[-1].topic == DEAD


@pytest.mark.parametrize("offset", [-1, 1, 91, 10**6, 2**63 - 1])
def test_an_offset_that_is_no_record_is_refused(heart: Harness, offset: int) -> None:
    """Whatever number a peer sends as an offset, only a whole record that begins there is taken."""
    record = dataclasses.replace(one(heart), physical_offset=offset)
    end = heart.store.end
    reply = send_back(heart, record)
    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {offset}")
    assert heart.store.end == end


def test_refusals(make: Make) -> None:
    """Unknown group 26, broker or retry topic not writable 16, group without retry queues: taken as done."""
    heart = make(auto_create_subscription_group=False)
    heart.create_topic("T")
    assert heart.send().code == 0
    (record,) = iter_records((heart.root / "commitlog" / ("0" * 20)).read_bytes()[: heart.store.end])
    reply = heart.ask(back(record))
    assert reply.code == 26
    assert "subscription group not exist, CG" in (reply.remark or "")
    heart.close()
    heart = make("second")
    heart.create_topic("T")
    record = one(heart)
    heart.broker.topics.put(TopicConfig(RETRY, 1, 1, perm=4), START_MS)
    reply = heart.ask(back(record))
    assert (reply.code, reply.remark) == (16, f"the topic[{RETRY}] sending message is forbidden")
    object.__setattr__(heart.config, "broker_permission", 4)
    reply = heart.ask(back(record))
    assert reply.code == 16
    assert "sending message is forbidden" in (reply.remark or "")


def test_a_full_turn_delays_the_answer_and_loses_nothing(make: Make) -> None:
    """Send-backs that find the turn full are stored with the next one, each once, each answered."""
    heart = make(turn_bytes_max=4096)
    heart.create_topic("T")
    heart.send(body=bytes(1000))
    (record,) = pulled(heart)
    heart.receive(*[back(record) for _ in range(20)])
    replies: list[Command] = []
    while len(replies) < 20:
        heart.ring()
        heart.settle()
        replies += heart.connection.take()
    assert {reply.code for reply in replies} == {0}
    assert len({reply.opaque for reply in replies}) == 20
    assert len(heart.log_records()) == 21


def test_a_peer_that_left_is_not_waited_for(heart: Harness) -> None:
    """Its send-back is not stored after it has gone: it will fail over to another way, and not twice."""
    record = one(heart)
    peer: FakeConnection = heart.connect(50_009)
    heart.receive(back(record), to=peer)
    heart.disconnect(peer)
    heart.ring()
    heart.settle()
    assert len(heart.log_records()) == 1


# --- a consumer's own sends to its retry topic ---


@pytest.mark.parametrize(
    ("times", "limit", "topic"), [(1, None, RETRY), (16, None, RETRY), (17, None, DEAD), (2, 1, DEAD)]
)
def test_what_a_consumer_sends_to_its_retry_topic(
    heart: Harness, times: int, limit: int | None, topic: str
) -> None:
    """Above the limit it goes to the dead letters at once; the reply names the queue that was asked for."""
    named = {"DELAY": "4", "RETRY_TOPIC": "T"}
    for v1 in (False, True):
        reply = heart.ask(
            send_request(
                RETRY, 0, v1=v1, named=named, reconsume_times=times, max_reconsume_times=limit, body=b"own"
            )
        )
        assert reply.code == 0, reply.remark
    heart.now_ms += 30_000
    heart.tick()
    found = pulled(heart, topic)
    assert [record.body for record in found] == [b"own", b"own"]
    assert found[0].reconsume_times == times
    assert parse_properties(found[0].properties)["DELAY"] == ("4" if topic == RETRY else "-1")


def test_an_unknown_group_has_no_retry_topic(make: Make) -> None:
    """Code 26 where groups are not made by themselves."""
    heart = make(auto_create_subscription_group=False)
    reply = heart.ask(send_request(RETRY, 0))
    assert reply.code == 26
    assert "subscription group not exist, CG" in (reply.remark or "")


def test_who_holds_queues_locked_goes_to_the_dead_letters(
    heart: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer in order tries where it stands; what it sends to its retry topic it has given up."""
    monkeypatch.setattr(heart.broker.locks, "holds", lambda group, now_ms: group == "CG")
    assert heart.ask(send_request(RETRY, 0, named={"DELAY": "3"}, reconsume_times=1)).code == 0
    assert len(pulled(heart, DEAD)) == 1


def test_ipv6_births_are_kept(heart: Harness) -> None:
    """A record born on an IPv6 host is stored again as such, by a broker on IPv4."""
    heart.connection.born_host = bytes(15) + b"\x01" + (5).to_bytes(4)
    heart.send()
    (record,) = pulled(heart)
    assert send_back(heart, record).code == 0
    assert heart.log_records()[-1].born_host == Host(bytes(15) + b"\x01", 5)

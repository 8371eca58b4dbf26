"""A pull: what it finds, what it is told otherwise, and whose filter counts."""

import dataclasses
import os
from dataclasses import replace
from typing import Any

import pytest

from hotfire.model import SubscriptionGroup
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records, java_hash
from hotfire.protocol.requests import LitePullMessage, PullReply
from tests.unit.broker.conftest import LANE, Make
from tests.unit.broker.harness import (
    COMMIT,
    FOUND,
    MOVED,
    NOT_FOUND,
    RETRY,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    bodies,
    next_offset,
    pull_request,
    send_request,
    tagged,
)

pytestmark = pytest.mark.core


def fill(heart: Harness, count: int, *, body_size: int = 3, tags: tuple[str, ...] = ()) -> list[bytes]:
    """So many messages in queue 0, their numbers as bodies, tags in turn."""
    sent = [b"%03d" % number + bytes(body_size - 3) for number in range(count)]
    for number, body in enumerate(sent):
        heart.receive(send_request(body=body, named={"TAGS": tags[number % len(tags)]} if tags else {}))
    heart.settle()
    assert len(heart.connection.take()) == count
    return sent


def told(reply: Command) -> tuple[int, str | None, int, int, int]:
    """Code, status, next, min and max offset."""
    fields = PullReply.from_command(reply)
    return reply.code, reply.remark, fields.next_begin_offset, fields.min_offset, fields.max_offset


# --- statuses ---


@pytest.mark.promise(45)
def test_offsets_outside_the_queue_are_put_right(heart: Harness) -> None:
    """Below min, at max, beyond max: the reference's code, its status, and the next offset worth asking."""
    fill(heart, 10)
    queue = heart.store.queue("T", 0)
    queue.min = 3  # as after older segments were deleted
    for _ in range(2):  # the lane has its grant the second time
        assert told(heart.pull(offset=3))[:3] == (FOUND, "FOUND", 10)
        assert told(heart.pull(offset=2)) == (MOVED, "OFFSET_TOO_SMALL", 3, 3, 10)
        assert told(heart.pull(offset=0)) == (MOVED, "OFFSET_TOO_SMALL", 3, 3, 10)
        assert told(heart.pull(offset=-1)) == (MOVED, "OFFSET_TOO_SMALL", 3, 3, 10)
        assert told(heart.pull(offset=10)) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE", 10, 3, 10)
        assert told(heart.pull(offset=11)) == (MOVED, "OFFSET_OVERFLOW_BADLY", 10, 3, 10)
        assert told(heart.pull(offset=2**62)) == (MOVED, "OFFSET_OVERFLOW_BADLY", 10, 3, 10)


def test_empty_queue_is_left_only_from_elsewhere_than_0(heart: Harness) -> None:
    """Nothing in the queue: at offset 0 wait for it, at any other go back to 0."""
    assert told(heart.pull(queue_id=1)) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert told(heart.pull(queue_id=1, offset=5)) == (MOVED, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)


def test_reply_tells_flags_and_the_master(heart: Harness) -> None:
    """A found pull: 0 as the broker to ask next, and the group's and topic's flags."""
    fill(heart, 1)
    for _ in range(2):
        reply = heart.pull()
        fields = PullReply.from_command(reply)
        assert (fields.suggest_which_broker_id, fields.group_sys_flag, fields.topic_sys_flag) == (0, 0, 0)
        assert fields.forbidden_type is None


def test_pulls_end_at_32_messages_or_as_many_as_asked(heart: Harness) -> None:
    """maxMsgNums up to the broker's own 32; less than one is one."""
    sent = fill(heart, 100)
    for _ in range(2):
        for asked, got in ((32, 32), (33, 32), (1000, 32), (5, 5), (1, 1), (0, 1), (-3, 1)):
            reply = heart.pull(offset=10, max_msg_nums=asked)
            assert bodies(reply) == sent[10 : 10 + got]
            assert next_offset(reply) == 10 + got
    assert bodies(heart.pull(offset=90)) == sent[90:]


def test_pulls_end_at_256_kib(make: Make) -> None:
    """Whatever fewer bytes are asked for, as with the reference; one message always goes, however large."""
    heart = make(mapped_file_size_commit_log=4 << 20)
    heart.create_topic("T")
    sent = fill(heart, 20, body_size=50_000)
    for _ in range(2):
        assert len(bodies(heart.pull())) == 5, "256 KiB hold five of them"
        assert bodies(heart.pull(max_msg_bytes=110_000)) == sent[:5]
        assert bodies(heart.pull(max_msg_bytes=1)) == sent[:5]


def test_records_come_as_they_are_stored(heart: Harness) -> None:
    """The body of a found pull is the log's own bytes, record after record."""
    fill(heart, 5)
    stored = (heart.root / "commitlog" / f"{0:020d}").read_bytes()
    for _ in range(2):
        body = heart.pull().body
        assert body == stored[: len(body)]
        assert [record.queue_offset for record in iter_records(body)] == [0, 1, 2, 3, 4]


# --- filters ---


def test_tags_are_filtered_by_hash(heart: Harness) -> None:
    """`A || C` gets A and C; a tag of equal hash comes along, for the client to tell apart."""
    assert java_hash("Aa") == java_hash("BB")
    sent = fill(heart, 12, tags=("Aa", "BB", "C", "D"))
    for _ in range(2):
        reply = heart.pull(expression="C || D")
        assert (bodies(reply), next_offset(reply)) == ([b for i, b in enumerate(sent) if i % 4 >= 2], 12)
        assert bodies(heart.pull(expression="Aa")) == [b for i, b in enumerate(sent) if i % 4 < 2]
        assert bodies(heart.pull(expression="*")) == sent
        assert bodies(heart.pull(expression="")) == sent
        assert bodies(heart.pull(expression=None)) == sent
        assert told(heart.pull(expression="E"))[:3] == (RETRY, "NO_MATCHED_MESSAGE", 12)


def test_filtering_goes_on_where_it_stopped(heart: Harness) -> None:
    """A pull that found no match in its 800 entries says where to go on; nothing wanted is passed over."""
    tags = ["no"] * 900
    tags[850] = "yes"
    for tag in tags:
        heart.receive(send_request(named={"TAGS": tag}))
    heart.settle()
    heart.connection.take()
    offset, found = 0, []
    for _ in range(10):
        reply = heart.pull(offset=offset, expression="yes")
        found.extend(record.queue_offset for record in iter_records(reply.body))
        offset = next_offset(reply)
        if offset == 900:
            break
    assert (offset, found) == (900, [850])


@pytest.mark.promise(154)
def test_unwanted_messages_stay_off_the_wire(heart: Harness) -> None:
    """One in a hundred matches: the consumer gets one hundredth of the bytes stored."""
    fill(heart, 1000, tags=("rare",) + ("usual",) * 99)
    offset, received, count = 0, 0, 0
    while offset < 1000:
        reply = heart.pull(offset=offset, expression="rare")
        received += len(reply.body)
        count += len(bodies(reply))
        offset = next_offset(reply)
    assert count == 10
    assert 0.008 < received / heart.store.end < 0.012


def test_filtering_does_not_touch_the_log(heart: Harness) -> None:
    """Tags are compared in the queue: of messages that do not match, the log is not read at all."""
    fill(heart, 10, tags=("A", "B"))
    log = heart.root / "commitlog" / f"{0:020d}"
    os.truncate(log, 0)  # whoever reads it gets nothing
    assert told(heart.pull(expression="C"))[:3] == (RETRY, "NO_MATCHED_MESSAGE", 10)
    assert told(heart.pull(expression="C"))[:3] == (RETRY, "NO_MATCHED_MESSAGE", 10)
    reply = heart.pull(expression="A")
    assert reply.code == 1, "the log is gone, and a match must say so"
    assert "offset 0" in (reply.remark or "")


@pytest.mark.promise(218)
def test_two_groups_filter_one_topic_each_its_own_way(heart: Harness) -> None:
    """Filters belong to the group: one topic, two groups, two expressions, two results."""
    sent = fill(heart, 10, tags=("A", "B"))
    first, second = heart.connect(50_100), heart.connect(50_101)
    heart.beat("c1", "G1", tagged("T", "A"), connection=first)
    heart.beat("c2", "G2", tagged("T", "B"), connection=second)
    first.take(), second.take()
    for _ in range(3):
        one = heart.ask(pull_request(group="G1", flag=0, expression=None), first)
        two = heart.ask(pull_request(group="G2", flag=0, expression=None), second)
        assert (bodies(one), bodies(two)) == (sent[::2], sent[1::2])


# --- whose subscription ---


def test_heartbeat_says_what_a_group_wants(heart: Harness) -> None:
    """Without the subscription flag the members' heartbeats decide, and the request's own text does not."""
    sent = fill(heart, 4, tags=("A", "B"))
    heart.beat("c", "CG", tagged("T", "A", version=5))
    heart.connection.take()
    for _ in range(2):
        assert bodies(heart.pull(flag=0, sub_version=5, expression="B")) == sent[::2]
        assert bodies(heart.pull(flag=0, sub_version=4, expression=None)) == sent[::2]
        assert bodies(heart.pull(flag=SUBSCRIPTION, expression="B")) == sent[1::2]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"expression": "||"}, 23, "parse"),
        ({"expression": "||||"}, 23, "parse"),
        ({"flag": 0, "group": "Nobody"}, 24, "group info not exist"),
        ({"flag": 0, "topic": "Other"}, 24, "subscription not exist"),
        ({"flag": 0, "sub_version": 6}, 25, "not latest"),
        ({"topic": "Nowhere"}, 17, "Nowhere"),
        ({"queue_id": 4}, 29, "queueId[4]"),
        ({"queue_id": -1}, 29, "queueId[-1]"),
        ({"topic": "Closed"}, 16, "Closed"),
        ({"group": "Shut"}, 16, "Shut"),
        ({"group": "two words"}, 29, "two words"),
        ({"expression_type": "XPATH", "expression": "//a"}, 1, "XPATH"),
    ],
)
def test_pulls_that_are_refused(heart: Harness, fields: dict[str, Any], code: int, words: str) -> None:
    """Each check of the reference: its code, its remark, and never a message; asked twice, said twice."""
    fill(heart, 3)
    heart.create_topic("Other")
    heart.create_topic("Closed", perm=2)
    heart.broker.groups._groups["Shut"] = SubscriptionGroup("Shut", consume_enable=False)
    heart.beat("c", "CG", tagged("T", "*", version=5))
    heart.connection.take()
    assert bodies(heart.pull()), "sound pulls are served"
    for _ in range(2):
        reply = heart.pull(**fields)
        assert (reply.code, reply.body) == (code, b"")
        assert words in (reply.remark or ""), reply.remark


def test_group_must_exist_when_none_is_made(make: Make) -> None:
    """autoCreateSubscriptionGroup=false: code 26 with the group's name, unless it is one of the broker's."""
    heart = make(auto_create_subscription_group=False)
    heart.create_topic("T")
    reply = heart.pull(group="Stranger")
    assert reply.code == 26
    assert "Stranger" in (reply.remark or "")
    assert heart.pull(group="TOOLS_CONSUMER").code == NOT_FOUND
    assert heart.broker.groups.get("Stranger") is None


def test_what_forbids_a_pull_is_told(make: Make) -> None:
    """Broker, group, topic or broadcasting: forbiddenType says which of them said no."""
    heart = make()
    heart.create_topic("T")
    heart.create_topic("Closed", perm=2)
    groups = heart.broker.groups._groups
    groups["Shut"] = SubscriptionGroup("Shut", consume_enable=False)
    groups["Quiet"] = SubscriptionGroup("Quiet", consume_broadcast_enable=False)
    heart.beat("c", "Quiet", tagged("T", "*"), model="BROADCASTING")
    heart.connection.take()
    kinds = [
        heart.pull(group="Shut"),
        heart.pull(topic="Closed"),
        heart.pull(group="Quiet", flag=0),
        make("closed", broker_permission=2).pull(topic="BenchmarkTest"),
    ]
    assert [(reply.code, (reply.fields or {})["forbiddenType"]) for reply in kinds] == [
        (16, "2"),
        (16, "3"),
        (16, "4"),
        (16, "1"),
    ]


def test_a_group_forbidden_a_topic_is_told_so(make: Make) -> None:
    """By the table Apache's broker keeps; it holds for those whom their heartbeats subscribe, as there."""
    heart = make()
    heart.create_topic("T")
    heart.beat("c", "CG", tagged("T", "*"), tagged("BenchmarkTest", "*"))
    heart.close()
    file = heart.root / "config" / "subscriptionGroup.json"
    file.write_text(file.read_text().replace('"forbiddenTable":{}', '"forbiddenTable":{"CG":{"T":4,"E":2}}'))
    heart.open()
    heart.beat("c", "CG", tagged("T", "*"), tagged("BenchmarkTest", "*"))
    heart.connection.take()
    refused = heart.pull(flag=0, expression=None)
    assert (refused.code, refused.fields) == (16, {"forbiddenType": "5"})
    assert refused.remark == "the consumer group[CG] is forbidden for topic[T]"
    assert heart.pull(flag=0, expression=None, topic="BenchmarkTest").code == NOT_FOUND
    assert heart.pull().code == NOT_FOUND, "who brings his own subscription is not asked"


def test_lite_pulls_can_be_switched_off(make: Make) -> None:
    """Refused as if the broker were not to be read, with words of its own; other pulls go on."""
    heart = make(lite_pull_message_enable=False)
    heart.create_topic("T")
    refused = heart.ask(dataclasses.replace(pull_request().to_command(), code=361))
    assert (refused.code, refused.fields) == (16, {"forbiddenType": "1"})
    assert refused.remark == "the broker[10.1.2.3] for lite pull consumer is forbidden"
    assert heart.pull().code == NOT_FOUND


def test_far_behind_a_group_is_sent_where_it_says(make: Make) -> None:
    """Only with slaveReadEnable: brokerId near the end, whichBrokerWhenConsumeSlowly far behind it."""
    heart = make(slave_read_enable=True)
    heart.create_topic("T")
    fill(heart, 3)
    heart.broker.groups._groups["CG"] = SubscriptionGroup(
        "CG", broker_id=5, which_broker_when_consume_slowly=7
    )
    for _ in range(2):  # neither time by the lane, which always answers 0
        assert (heart.pull().fields or {})["suggestWhichBrokerId"] == "5"
    heart.store._reading.memory_window = 1
    assert (heart.pull().fields or {})["suggestWhichBrokerId"] == "7"


def test_filter_kinds_not_served_are_refused_whoever_names_them(heart: Harness) -> None:
    """A group whose heartbeat subscribes by another kind is told so; it is not left with an empty topic."""
    fill(heart, 2)
    heart.beat("c", "CG", replace(tagged("T", "//a"), kind="XPATH"))
    heart.connection.take()
    reply = heart.pull(flag=0, expression=None, expression_type=None)
    assert (reply.code, reply.body) == (1, b"")
    assert "XPATH" in (reply.remark or "")


# --- the lane's grants ---


def test_second_pull_takes_the_fast_lane(heart: Harness, shape: str) -> None:
    """The first pull of a group is checked in full; the next ones are the lane's, with equal bytes."""
    fill(heart, 3)
    heart.beat("c", "CG", tagged("T", "*"))
    heart.connection.take()
    replies = [heart.pull(flag=flag) for flag in (0, 0, SUBSCRIPTION, SUBSCRIPTION)]
    assert len({(reply.code, str(reply.fields), reply.remark, reply.body) for reply in replies}) == 1
    lane = heart.broker.fast.lane
    assert (lane.pulls if lane is not None else None) == (2 if shape == LANE else None)


def test_a_changed_subscription_counts_at_once(heart: Harness) -> None:
    """The group subscribes anew: not one message of the old filter is delivered after its heartbeat."""
    sent = fill(heart, 6, tags=("A", "B"))
    for version, expression, wanted in ((1, "A", sent[::2]), (2, "B", sent[1::2]), (3, "*", sent)):
        heart.beat("c", "CG", tagged("T", expression, version))
        heart.connection.take()
        for _ in range(3):
            assert bodies(heart.pull(flag=0, sub_version=1)) == wanted  # of a member that lags behind


def test_a_subscription_given_up_is_refused_at_once(heart: Harness) -> None:
    """A heartbeat without the topic, an unregistration, a lost connection: the next pull is refused."""
    fill(heart, 2)
    heart.create_topic("Other")

    def pulls() -> int:
        heart.connection.take()
        for _ in range(2):
            reply = heart.pull(flag=0)
        return reply.code

    heart.beat("c", "CG", tagged("T", "*"))
    assert pulls() == FOUND
    heart.beat("c", "CG", tagged("Other", "*"))
    assert pulls() == 24
    other = heart.connect(50_100)
    heart.beat("d", "CG", tagged("T", "*"), connection=other)
    assert pulls() == FOUND
    heart.disconnect(other)
    heart.beat("c", "CG")
    assert pulls() == 24


def test_header_subscription_is_no_licence_for_others(heart: Harness) -> None:
    """A pull that brings its own filter, even none, does not open the topic to pulls that bring none."""
    fill(heart, 2)
    for expression in (None, "", "*", "A"):
        for _ in range(2):
            heart.pull(expression=expression, sub_version=9)
        assert heart.pull(flag=0, expression=None).code == 24
    heart.beat("c", "CG", tagged("T", "A"))
    heart.connection.take()
    assert heart.pull(flag=0, expression=None).code == RETRY, "the heartbeat's filter lets nothing through"


def test_topic_closed_for_reading_is_closed_at_once(heart: Harness) -> None:
    """Permission and queue count changed by an administrator count for the next pull."""
    fill(heart, 2)
    assert [heart.pull().code for _ in range(2)] == [FOUND, FOUND]
    heart.create_topic("T", perm=2)
    assert heart.pull().code == 16
    heart.create_topic("T", perm=6)
    assert [heart.pull().code for _ in range(2)] == [FOUND, FOUND]
    heart.send(queue_id=3)
    assert [heart.pull(queue_id=3).code for _ in range(2)] == [FOUND, FOUND]
    heart.create_topic("T", 2)
    assert heart.pull(queue_id=3).code == 29
    assert heart.send(queue_id=3).code == 29


def test_pull_commits_the_offset_it_carries(heart: Harness) -> None:
    """The commit flag stores commitOffset for the group, found or not; without the flag nothing is stored."""
    fill(heart, 3)
    offsets = heart.broker.offsets
    for _ in range(2):  # by the handler, then by the lane
        heart.pull(commit_offset=99)
        assert offsets.get("T", "CG", 0) is None
    for number in (1, 2, 3):
        heart.pull(flag=SUBSCRIPTION | COMMIT, commit_offset=number)
        assert offsets.get("T", "CG", 0) == number
    for offset in (0, 3):  # by the lane, and by the handler since nothing is there
        heart.pull(offset=offset, flag=SUBSCRIPTION | COMMIT, commit_offset=2)
        assert offsets.get("T", "CG", 0) == 3, "old news that came late moved it backwards"
    assert offsets.get("T", "CG", 1) is None
    heart.pull(flag=SUBSCRIPTION | COMMIT, commit_offset=7, queue_id=99)
    assert offsets.get("T", "CG", 99) is None, "a refused pull commits nothing"
    for _ in range(2):
        assert heart.pull(flag=SUBSCRIPTION | COMMIT, commit_offset=-1).code == FOUND
        assert offsets.get("T", "CG", 0) == 3, "no offset is before the first"


def test_an_offset_behind_the_end_is_not_carried(heart: Harness) -> None:
    """A member knows more than a log that came back with less: its places are to be read again."""
    fill(heart, 3)
    offsets = heart.broker.offsets
    heart.pull(flag=SUBSCRIPTION | COMMIT, commit_offset=1)
    for offset in (7, 0, 0):  # by the handler, then by the lane
        heart.pull(offset=offset, flag=SUBSCRIPTION | COMMIT, commit_offset=7)
        assert offsets.get("T", "CG", 0) == 1
    heart.pull(offset=3, flag=SUBSCRIPTION | COMMIT, commit_offset=3)
    assert offsets.get("T", "CG", 0) == 3


def test_lite_pull_is_a_pull(heart: Harness) -> None:
    """Consumers that keep their own offsets use another code; it means the same, held or not."""
    sent = fill(heart, 2)
    request = pull_request()
    fields = {field.name: getattr(request, field.name) for field in request.fields}
    assert bodies(heart.ask(LitePullMessage(**fields))) == sent
    held = heart.connect(50_100)
    suspended = {**fields, "queue_offset": 2, "sys_flag": SUBSCRIPTION | SUSPEND}
    heart.receive(LitePullMessage(**suspended), to=held)
    heart.send()
    assert bodies(held.take_one()) == [b"body"]

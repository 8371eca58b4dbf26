"""Sends that are refused: the code producers act on, a remark a person can act on, and nothing stored."""

import re
from typing import Any

import pytest

from hotfire.broker.config import BrokerRole
from hotfire.broker.waiting import One
from hotfire.errors import BrokerRefused
from hotfire.model import TopicConfig
from hotfire.protocol.command import Command
from hotfire.protocol.record import PROPERTIES_BYTES_MAX, SysFlag
from hotfire.protocol.requests import SendBatchMessage
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness, bodies, properties, pull_request, send_request

pytestmark = pytest.mark.core


def refused(heart: Harness, v1: bool = False, **fields: Any) -> tuple[int, str]:
    """Code and remark of a refused send, which left no trace in the log and came with its two fields."""
    end = heart.store.end
    reply = heart.send(v1=v1, **fields)
    assert reply.code != 0
    assert heart.store.end == end, "refused and stored"
    assert reply.fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}  # Java reads them unguarded
    assert reply.remark, "refused without a word"
    return reply.code, reply.remark


@pytest.mark.promise(36)
@pytest.mark.promise(37)
@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "two words"}, 29, ["two words", "characters"]),
        ({"topic": "a" * 128}, 29, ["128", "127"]),
        ({"topic": " "}, 29, ["topic", "blank"]),
        ({"topic": "T/../../etc"}, 29, ["T/../../etc"]),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, ["SCHEDULE_TOPIC_XXXX"]),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, ["RMQ_SYS_TRANS_HALF_TOPIC"]),
        ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, 16, ["is forbidden"]),
        ({"topic": "TRANS_CHECK_MAX_TIME_TOPIC"}, 16, ["is forbidden"]),
        ({"topic": "SELF_TEST_TOPIC"}, 16, ["is forbidden"]),
        ({"topic": "OFFSET_MOVED_EVENT"}, 16, ["is forbidden"]),
        ({"topic": "Unknown", "default_topic": "none"}, 17, ["Unknown"]),
        ({"queue_id": 4}, 29, ["queueId[4]", "4 queues", "[T]"]),
        ({"queue_id": 2**31 - 1}, 29, ["2147483647"]),
        ({"body": b""}, 13, ["[T]", "no body"]),
        ({"body": bytes(65_537)}, 13, ["65536", "65537"]),
        ({"named": {"A": "x" * PROPERTIES_BYTES_MAX}}, 13, ["32767"]),
        ({"sys_flag": SysFlag.TRANSACTION_PREPARED}, 13, ["TRAN_MSG", "transaction"]),
        ({"named": {"DELAY": "soon"}}, 1, ["soon", "DELAY"]),
        ({"named": {"TIMER_DELAY_SEC": "three"}}, 13, ["timer", "max delay"]),
        ({"named": {"TIMER_DELIVER_MS": "1900000000000"}}, 13, ["timer", "max delay"]),
        ({"batch": True}, 1, ["batch"]),
    ],
)
def test_refusals(make: Make, fields: dict[str, Any], code: int, words: list[str]) -> None:
    """Each check answers the reference's code, and its remark holds the noun and the number."""
    heart = make(max_message_size=65_536)
    heart.create_topic("T")
    for v1 in (False, True):
        got, remark = refused(heart, v1, **fields)
        assert got == code
        for word in words:
            assert word in remark, remark
        assert heart.send(v1=v1).code == 0, "the connection is still served"


def test_longest_topic_and_properties_are_taken(heart: Harness) -> None:
    """127 characters of topic and 32767 bytes of properties, ours included, are the last that fit."""
    topic = "t" * 127
    assert heart.send(topic=topic).code == 0
    spare = PROPERTIES_BYTES_MAX - len(heart.log_records()[0].properties) - len("A\x01\x02")
    assert heart.send(named={"A": "x" * spare}).code == 0
    assert refused(heart, named={"A": "x" * (spare + 1)})[0] == 13
    assert len(heart.log_records()[1].properties) == PROPERTIES_BYTES_MAX


def test_largest_body_is_taken(make: Make) -> None:
    """maxMessageSize is the largest body that is accepted, by both codes, and comes back whole."""
    heart = make(max_message_size=4096)
    for v1 in (False, True):
        body = bytes(range(256)) * 16
        assert heart.send(body=body, v1=v1).code == 0
        assert refused(heart, v1, body=body + b"x") == (13, refused(heart, v1, body=body + b"x")[1])
    assert bodies(heart.pull()) == [bytes(range(256)) * 16] * 2


def test_the_batch_code_alone_makes_no_batch(heart: Harness) -> None:
    """What makes a batch is its field: the code without it is one message, as with the reference."""
    request = send_request()
    single = SendBatchMessage(
        **{field.name: getattr(request, field.name) for field in request.fields}, body=b"x"
    )
    assert heart.ask(single).code == 0
    assert bodies(heart.pull()) == [b"x"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("e", None, ["field e", "absent"]),
        ("b", None, ["field b", "absent"]),
        ("e", "many", ["field e", "many"]),
        ("g", "9223372036854775808", ["field g", "9223372036854775808"]),
    ],
)
def test_unsound_fields_are_answered(heart: Harness, name: str, value: str | None, words: list[str]) -> None:
    """A missing or unreadable field is code 1 with its name; the connection goes on."""
    command = send_request().to_command()
    assert command.fields is not None
    if value is None:
        del command.fields[name]
    else:
        command.fields[name] = value
    reply = heart.ask(command)
    assert reply.code == 1
    for word in words:
        assert word in (reply.remark or ""), reply.remark
    assert heart.send().code == 0


@pytest.mark.promise(73)
@pytest.mark.parametrize("code", [9999, 0, -1, 200050, 40])
def test_unknown_code_is_not_supported(heart: Harness, code: int) -> None:
    """Any code the broker does not serve gets code 3 and a remark with its number."""
    reply = heart.ask(Command(code))
    assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


@pytest.mark.parametrize(
    "fields", [{}, {"topic": "two words"}, {"queue_id": 99}, {"named": {"DELAY": "soon"}}, {"body": b""}]
)
def test_oneway_is_never_answered(heart: Harness, fields: dict[str, Any]) -> None:
    """A oneway send gets no reply: not when it is stored, not when it is refused."""
    for v1 in (False, True):
        heart.receive(send_request(v1=v1, **fields).to_command(oneway=True))
    heart.receive(Command(9999, flag=2))
    heart.settle()
    assert heart.connection.take() == []
    assert len(heart.log_records()) == (2 if not fields else 0)


def test_replies_nobody_asked_for_are_passed_over(heart: Harness) -> None:
    """A frame with the response flag is not a request, whatever its code."""
    heart.receive(Command(10, flag=1), Command(310, flag=1), Command(9999, flag=3))
    heart.settle()
    assert heart.connection.take() == []
    assert heart.send().code == 0


@pytest.mark.promise(37)
def test_ordered_topic_is_closed_when_the_broker_may_not_be_written(make: Make) -> None:
    """brokerPermission=4: code 16 for an ordered topic, by either code, as the reference has it."""
    heart = make(broker_permission=4)
    heart.create_topic("Ordered", order=True)
    for v1 in (False, True):
        code, remark = refused(heart, v1, topic="Ordered")
        assert code == 16
        assert "forbidden" in remark


@pytest.mark.promise(37)
def test_nothing_is_taken_before_the_time_set(make: Make) -> None:
    """startAcceptSendRequestTimeStamp: code 1 and the time until then; then sends are served."""
    heart = make(start_accept_send_request_time_stamp=START_MS + 1234)
    heart.create_topic("T")
    for v1 in (False, True):
        code, remark = refused(heart, v1)
        assert code == 1
        assert re.fullmatch(r"broker unable to service, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,234", remark)
    heart.now_ms += 1234
    assert [heart.send(v1=v1).code for v1 in (False, True)] == [0, 0]


@pytest.mark.promise(37)
def test_transactions_are_rejected_when_so_configured(make: Make) -> None:
    """rejectTransactionMessage: code 16 and the reference's words."""
    heart = make(reject_transaction_message=True)
    heart.create_topic("T")
    for v1 in (False, True):
        refusal = refused(heart, v1, named={"TRAN_MSG": "true", "PGROUP": "PG"})
        assert refusal == (16, "the broker[10.1.2.3:10911] sending transaction message is forbidden")
        assert heart.send(v1=v1).code == 0


def test_what_a_consumer_sends_back_is_no_half(heart: Harness) -> None:
    """Clients before 4.6.1 leave the mark of a transaction on a retry; it is taken for what it is."""
    reply = heart.send(named={"TRAN_MSG": "true", "DELAY": "3"}, reconsume_times=1)
    assert reply.code == 0, reply.remark


def test_sends_are_refused_while_others_wait_for_the_disk(heart: Harness) -> None:
    """In every form, the compiled one too: age, number and limit, and nothing is stored."""
    heart.broker.waiting.add(1 << 62, One(heart.connect(), b""), heart.now_ms - 2001)
    for v1 in (False, True):
        code, remark = refused(heart, v1)
        assert code == 2
        assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period ")
        assert "2001ms, size of queue: 1" in remark
        assert "2000ms" in remark
    list(heart.broker.waiting.drop())
    assert heart.send().code == 0


# --- a backlog with a limit ---


def limited(heart: Harness, **attributes: str) -> None:
    heart.broker.topics.put(
        TopicConfig("T", 4, 4, attributes={k.replace("_", "."): v for k, v in attributes.items()}), START_MS
    )


@pytest.mark.promise(208)
@pytest.mark.parametrize("how", ["attribute", "setting"])
def test_a_queue_over_its_limit_refuses(make: Make, how: str) -> None:
    """Three messages behind with a limit of three: code 2, topic, queue, backlog and limit named."""
    heart = make(topic_backlog_max=3 if how == "setting" else 0)
    limited(heart, **({"backlog_max": "3"} if how == "attribute" else {}))
    assert [heart.send(v1=v1).code for v1 in (False, True, False)] == [0, 0, 0]
    for v1 in (False, True):
        code, remark = refused(heart, v1)
        assert code == 2
        for word in ("topic[T]", "queueId[0]", "3 messages behind", "limit is 3"):
            assert word in remark
    assert heart.send(queue_id=1).code == 0, "another queue has room"
    heart.now_ms += 100
    heart.broker.offsets.commit("T", "slow", 0, 1)
    heart.broker.offsets.commit("T", "quick", 0, 3)
    assert heart.send().code == 0, "the slowest group took one"
    code, remark = refused(heart)
    assert "group[slow] is 3 messages behind" in remark
    heart.now_ms += 100
    heart.broker.offsets.commit("T", "slow", 0, 4)
    assert heart.send().code == 0
    assert len(heart.log_records()) == 6


@pytest.mark.promise(208)
def test_a_limit_holds_for_any_queue(heart: Harness) -> None:
    """Queue id below 0 finds full queues full, too."""
    limited(heart, backlog_max="1")
    replies = [heart.send(queue_id=-1).code for _ in range(200)]
    assert replies.count(0) == 4
    assert set(replies) == {0, 2}


@pytest.mark.promise(208)
def test_a_peak_is_shaved(make: Make) -> None:
    """5000 messages a second arrive for two seconds, 2000 are taken: the consumer has its 2000 a second
    throughout, the queue fills up to its limit, what comes then is refused with the reason. Once the peak is
    over the rest is taken at the same pace; everything acknowledged comes, once and in order."""
    step_ms, limit, peak_steps = 100, 2000, 20
    heart = make(topic_backlog_max=limit)
    limited(heart)
    taker, senders = heart.connect(50_002), heart.connect(50_003)
    acknowledged: list[bytes] = []
    taken: list[bytes] = []
    backlogs, refusals = [], []
    for step in range(2 * peak_steps):
        heart.now_ms += step_ms
        heart.tick()
        if step < peak_steps:
            sent = [b"%d" % number for number in range(step * 500, step * 500 + 500)]
            opaques = heart.receive(*(send_request(body=body) for body in sent), to=senders)
            heart.settle()
            replies = {reply.opaque: reply for reply in senders.take()}
            for body, opaque in zip(sent, opaques, strict=True):
                if replies[opaque].code == 0:
                    acknowledged.append(body)
                else:
                    refusals.append((step, replies[opaque]))
        due = min(200, len(acknowledged) - len(taken))
        for begin in range(0, due, 20):
            had = bodies(heart.ask(pull_request(len(taken), max_msg_nums=20), taker))
            assert len(had) == min(20, due - begin), f"the consumer had to wait in step {step}"
            taken += had
        heart.broker.offsets.commit("T", "CG", 0, len(taken))
        backlogs.append(len(acknowledged) - len(taken))
    assert taken == acknowledged
    assert max(backlogs) <= limit
    assert all(reply.code == 2 and f"the limit is {limit}" in (reply.remark or "") for _, reply in refusals)
    first = refusals[0][0]
    assert first == 6, "3000 a second more than are taken fill 2000 places in less than 0.7 s"
    kept = len(acknowledged) - (first + 1) * 500 + sum(1 for step, _ in refusals if step == first)
    assert kept == 200 * (peak_steps - first - 1), "from then on as many are let in as are taken"


def test_there_is_no_limit_unless_asked_for(heart: Harness) -> None:
    """By default, and with an attribute that is no number, queues take what comes."""
    limited(heart, backlog_max="many")
    assert {heart.send().code for _ in range(50)} == {0}


def test_message_larger_than_a_segment_is_refused(make: Make) -> None:
    """What can never be stored is refused with both sizes, and the broker goes on."""
    heart = make(mapped_file_size_commit_log=64 << 10)
    heart.create_topic("T")
    for v1 in (False, True):
        for size in (70_000, 65_536 - 8, 65_536 - 200):
            code, remark = refused(heart, v1, body=bytes(size))
            assert code == 14
            assert "65536" in remark
        assert heart.send(v1=v1, body=bytes(65_000)).code == 0
    assert len(list((heart.root / "commitlog").iterdir())) == 2, "segments were made for nothing"


def test_refusals_are_the_tree_clients_know() -> None:
    """Codes 13 and 29 stop a producer's retries, 14, 16 and 17 do not."""
    retriable = {code: BrokerRefused(code).retriable for code in (13, 14, 16, 17, 29)}
    assert retriable == {13: False, 14: True, 16: True, 17: True, 29: False}


def test_control_characters_in_properties_are_no_harm(heart: Harness) -> None:
    """Whatever text arrives as properties, the record stored is sound and can be pulled."""
    for text in ("\x00\x01\x02", "\x02" * 50, "A\x01" + "\x03" * 20 + "\x02", properties(X='\n\t"\\')):
        assert heart.ask(send_request(properties=text)).code == 0
    assert len(bodies(heart.pull())) == 4


@pytest.mark.promise(36)
def test_a_slave_takes_nothing(make: Make) -> None:
    """Code 14 and the reason, in every form of send; nothing is stored."""
    slave = make(broker_role=BrokerRole.SLAVE, broker_id=1)
    for v1 in (False, True):
        reply = slave.ask(send_request(v1=v1))
        assert reply.code == 14
        assert "service not available now: broker[broker-a] is a slave" in (reply.remark or "")
    assert slave.store.end == 0


@pytest.mark.promise(36)
def test_a_store_that_was_shut_down_takes_nothing(heart: Harness) -> None:
    """Code 14, as the reference's, and the reason; the log is as it was."""
    assert heart.send(body=b"before").code == 0
    heart.close()
    log = (heart.root / "commitlog" / ("0" * 20)).read_bytes()
    heart.receive(send_request(body=b"after"))
    reply = heart.connection.take_one()
    assert (reply.code, reply.remark) == (14, "the store is closed: the broker is stopping")
    assert (heart.root / "commitlog" / ("0" * 20)).read_bytes() == log
    heart.open()
    assert bodies(heart.pull()) == [b"before"]


@pytest.mark.promise(36)
def test_a_store_that_failed_takes_nothing(heart: Harness) -> None:
    """Code 14 with the fault and what to do; what was stored before is still read."""
    assert heart.send(body=b"before").code == 0
    heart.store.fail("sync failed: Input/output error")
    for v1 in (False, True):
        code, remark = refused(heart, v1, body=b"after")
        assert code == 14
        assert "sync failed: Input/output error; repair the disk and restart the broker" in remark
    assert bodies(heart.pull()) == [b"before"]


@pytest.mark.promise(36)
def test_a_full_disk_takes_nothing(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 90 % used: code 14, how full it is and the limit; below it sends go on by themselves."""
    assert heart.send(body=b"before").code == 0
    monkeypatch.setattr(heart.disk, "used_ratio", lambda: 0.91)
    look_at_the_disk(heart)
    for v1 in (False, True):
        code, remark = refused(heart, v1, body=b"no")
        assert code == 14
        assert "91.0% used" in remark
        assert "above 90%" in remark
    monkeypatch.setattr(heart.disk, "used_ratio", lambda: 0.5)
    look_at_the_disk(heart)
    assert heart.send(body=b"after").code == 0
    assert bodies(heart.pull()) == [b"before", b"after"]


def look_at_the_disk(heart: Harness) -> None:
    """A tick at which it is looked how full the disk is: a second later, nothing else under way."""
    heart.store._flushing.settle(heart.now_ms, wait=True)
    heart.now_ms += 1000
    heart.tick()

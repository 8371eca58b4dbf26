"""What goes wrong inside one request stays inside it."""

from typing import Any

import pytest

from hotfire.broker import handlers
from hotfire.broker.fastlane import NEXT_SEGMENT, RECORD_BYTES_BESIDE_BODY_MAX
from hotfire.broker.parked import ParkedPull
from hotfire.errors import BrokerRefused
from hotfire.model import RETRY_TOPIC_CHARACTERS_MAX
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import PROPERTIES_BYTES_MAX, Host, Record, SysFlag, encode_record
from tests.unit.broker.harness import (
    FOUND,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    codes,
    pull_request,
    send_request,
)

HOLD = SUBSCRIPTION | SUSPEND


def test_who_may_not_is_told_so(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal by access control is a reply like any other, and the requests behind it are served."""

    def check(call: Any) -> None:
        if call.request.topic == "Secret":
            raise BrokerRefused(ResponseCode.NO_PERMISSION, "topic Secret is not yours")

    monkeypatch.setattr(heart.broker.access, "check", check)
    heart.receive(pull_request(topic="Secret"), send_request(v1=True))
    heart.settle()
    refused, sent = heart.connection.take()
    assert (refused.code, refused.remark) == (16, "topic Secret is not yours")
    assert sent.code == 0


@pytest.mark.parametrize("step", ["arrived", "resume"])
def test_a_held_pull_that_breaks_is_answered_and_the_others_too(
    heart: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """A mistake of ours in one held pull, arriving or due: error 1 for it, and the turn goes on."""
    waiting = [heart.connect(50_100 + number) for number in range(3)]
    for connection in waiting:
        heart.receive(pull_request(flag=HOLD, suspend_timeout_millis=1000), to=connection)
    work = getattr(handlers.pull, step)

    def breaking(broker: Any, pull: ParkedPull) -> None:
        if pull.connection is waiting[1]:
            raise KeyError("a mistake of ours")
        work(broker, pull)

    monkeypatch.setattr(handlers.pull, step, breaking)
    if step == "arrived":
        assert heart.send().code == 0, "the sender is answered as well"
    else:
        heart.pass_time(1000)
    replies = [connection.take_one() for connection in waiting]
    expected = FOUND if step == "arrived" else 19
    assert codes(replies) == [expected, 1, expected]
    assert "a mistake of ours" in (replies[1].remark or "")
    assert "held pull failed" in caplog.text
    assert len(heart.broker.parked) == 0


def test_room_is_made_once_per_message(heart: Harness) -> None:
    """A lane that asks for a segment again and again gets one; then the message is the handler's."""

    class Insatiable:
        sends = asked = 0

        def serve(self, *_: Any) -> tuple[int, int, None, None, tuple[()]]:
            self.asked += 1
            return 0, NEXT_SEGMENT, None, None, ()

    lane = Insatiable()
    heart.broker.fast.lane = lane  # type: ignore[assignment]
    before = len(heart.store._log.segments)
    assert heart.send().code == 0
    assert heart.send().code == 0
    assert lane.asked == 4
    assert len(heart.store._log.segments) <= before + 3


@pytest.mark.parametrize("host", ["10.1.2.3", "::1"])
def test_largest_record_is_as_large_as_thought(host: str) -> None:
    """The longest topic, full properties and the longest addresses: the lane's limit leaves room for all."""
    where = Host.parse(host, 1)
    record = Record(
        topic="%RETRY%" + "t" * (RETRY_TOPIC_CHARACTERS_MAX - 7),
        queue_id=0,
        body=b"",
        born_timestamp=0,
        born_host=where,
        store_timestamp=0,
        store_host=where,
        properties=b"p" * PROPERTIES_BYTES_MAX,
        sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 if where.is_v6 else 0,
    )
    size = len(encode_record(record, append_crc=False))
    assert size == RECORD_BYTES_BESIDE_BODY_MAX - (0 if where.is_v6 else 24)

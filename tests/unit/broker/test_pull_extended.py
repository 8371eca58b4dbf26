"""Pulls of queues whose entries point to their tags."""

import pytest

from tests.unit.broker.conftest import LANE, Make
from tests.unit.broker.harness import SUBSCRIPTION, bodies, send_request, tagged

pytestmark = pytest.mark.core


def test_filters_hold_and_the_lane_keeps_to_what_it_knows(make: Make, shape: str) -> None:
    """Tags are filtered as ever, by the handler; pulls of everything stay with the lane."""
    heart = make(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=64 << 10)
    sent = [b"%03d" % number for number in range(12)]
    for number, body in enumerate(sent):
        heart.receive(send_request(body=body, named={"TAGS": "ABC"[number % 3]}))
    heart.settle()
    heart.connection.take()
    heart.beat("c", "CG", tagged("T", "*"))
    heart.connection.take()
    for _ in range(3):
        assert bodies(heart.pull(flag=0)) == sent
    lane = heart.broker.fast.lane
    served = lane.pulls if lane is not None else None
    assert served == (2 if shape == LANE else None)
    for _ in range(3):
        assert bodies(heart.pull(expression="B", flag=SUBSCRIPTION)) == sent[1::3]
    assert (lane.pulls if lane is not None else None) == served
    heart.reopen()
    assert bodies(heart.pull(expression="A || C", flag=SUBSCRIPTION)) == [
        body for number, body in enumerate(sent) if number % 3 != 1
    ]

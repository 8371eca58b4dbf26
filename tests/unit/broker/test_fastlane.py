"""The lane is a shortcut and nothing else: with it and without it, the same bytes are answered and stored."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.broker.fastlane import GRANTS_MAX, FastLane
from hotfire.model import Subscription, TopicConfig
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, encode
from hotfire.protocol.record import parse_offset_message_id
from hotfire.protocol.requests import (
    EndTransaction,
    GetMaxOffset,
    QueryConsumerOffset,
    SendReply,
    UpdateConsumerOffset,
)
from tests.unit.broker.harness import (
    COMMIT,
    STORE_HOST,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    properties,
    pull_request,
    send_request,
    tagged,
)
from tests.unit.broker.transacting import work

pytestmark = pytest.mark.core

TAGS = ["", "A", "B", "Aa", "BB", "标签"]
STRANGE = ["", "garbage", "\x01\x02", "A\x01", "UNIQ_KEY\x01\x02", "K\x01v\x02\x02", 'K\x01"\\\n\x02']


def some(rng: random.Random, usual: Any, *odd: Any) -> Any:
    """Usually the usual."""
    return usual if rng.random() < 0.93 else rng.choice(odd)


def some_send(rng: random.Random) -> Command:
    named = {"UNIQ_KEY": f"{rng.randrange(10**6):032d}", "TAGS": rng.choice(TAGS)}
    special = {"WAIT": "false", "DELAY": "1", "CLUSTER": "x", "TRAN_MSG": "true", "POP_CK": "1"}
    ordinary = {"KEYS": "a b", "名": "值", "WAIT": "true"}
    named.update([rng.choice(list(some(rng, ordinary, special).items()))])
    text = some(rng, properties(**named), *STRANGE)
    request = send_request(
        topic=some(rng, "T", "U", "New", "bad name", "SCHEDULE_TOPIC_XXXX", "%RETRY%g"),
        queue_id=some(rng, rng.randrange(4), 4, -1, 99),
        body=rng.randbytes(some(rng, rng.choice([1, 10, 300]), 0, 5000)),
        properties=some(rng, text, text.removesuffix("\x02"), None),
        flag=rng.choice([0, 7, -1]),
        sys_flag=some(rng, rng.choice([0, 1, 0x100]), 4, 0x10),
        reconsume_times=some(rng, 0, 1, None),
        born_timestamp=some(rng, 1_800_000_000_000, 0, -5),
        batch=some(rng, False, True),
        v1=some(rng, False, True),
    )
    command = request.to_command(
        serialization=some(rng, Serialization.JSON, Serialization.ROCKETMQ), oneway=some(rng, False, True)
    )
    if some(rng, False, True) and command.fields:
        del command.fields[rng.choice(list(command.fields))]
    return command


def some_half(rng: random.Random) -> Command:
    named = {"TRAN_MSG": some(rng, "true", "True", "false"), "PGROUP": some(rng, "PG", "Other", "")}
    named["UNIQ_KEY"] = f"{rng.randrange(10**6):032d}"
    named.update([rng.choice([("TAGS", rng.choice(TAGS)), ("KEYS", "a b"), ("名", "值"), ("WAIT", "true")])])
    odd = {"DELAY": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9", "TIMER_DELAY_MS": "1000", "REAL_TOPIC": "U"}
    named.update([some(rng, ("K", "v"), ("TRANSACTION_CHECK_TIMES", "1"), *odd.items())])
    return send_request(
        topic=some(rng, "T", "U", "Nowhere", "%RETRY%g", "rmq_sys_wheel_timer"),
        queue_id=some(rng, rng.randrange(2), 9, -1),
        body=rng.randbytes(some(rng, rng.choice([1, 100, 300]), 0, 5000)),
        properties=properties(**{name: value for name, value in named.items() if value}),
        flag=rng.choice([0, 7]),
        sys_flag=some(rng, 4, 0, 8, 12, 5),
        reconsume_times=some(rng, 0, 1),
        batch=some(rng, False, True),
    ).to_command(oneway=some(rng, False, True))


def some_end(rng: random.Random, halves: list[SendReply]) -> Command:
    """The outcome of one of these, as a rule told rightly; some are told again and again."""
    half = rng.choice(halves)
    return EndTransaction(
        topic=some(rng, "T", None),
        producer_group=some(rng, "PG", "Other", ""),
        tran_state_table_offset=some(rng, half.queue_offset, half.queue_offset + 1, 10**9, -1),
        commit_log_offset=some(rng, parse_offset_message_id(half.msg_id)[1], 0, 10**12),
        commit_or_rollback=some(rng, rng.choice([8, 8, 12]), 0, 4, 99),
        from_transaction_check=some(rng, rng.choice([True, False]), None),
        msg_id=some(rng, half.transaction_id or "", "another"),
        transaction_id=some(rng, half.transaction_id, None, "another"),
        broker_name=some(rng, None, "broker"),
    ).to_command(oneway=rng.random() < 0.5)


def some_pull(rng: random.Random) -> Command:
    return pull_request(
        offset=some(rng, rng.randrange(6), 20, -1, 10**6),
        topic=some(rng, "T", "U", "New", "Nowhere"),
        queue_id=some(rng, rng.randrange(4), 9),
        group=some(rng, rng.choice(["CG", "CG", "SQL"]), "CG2", "Never"),
        flag=rng.choice([SUBSCRIPTION, 0, SUBSCRIPTION | COMMIT, COMMIT, SUBSCRIPTION | SUSPEND]),
        expression=some(rng, rng.choice(["*", "A", "A || B"]), "", None, "||"),
        max_msg_nums=some(rng, rng.choice([32, 1, 7]), 64, 1000, 0),
        max_msg_bytes=some(rng, None, 1, 1000),
        commit_offset=rng.randrange(50),
        sub_version=some(rng, 1, 0, 2),
        expression_type=some(rng, "TAG", None, "SQL92"),
    ).to_command()


def some_question(rng: random.Random) -> Command:
    queue = {"topic": "T", "queue_id": rng.randrange(4)}
    return rng.choice(
        [
            GetMaxOffset(**queue).to_command(),
            QueryConsumerOffset(consumer_group="CG", **queue).to_command(),
            UpdateConsumerOffset(consumer_group="CG", commit_offset=rng.randrange(50), **queue).to_command(),
            Command(9999),
            Command(310, flag=1),
        ]
    )


def transcript(root: Path, seed: int, *, lane: bool) -> tuple[dict[int, bytes], list[bytes], object]:
    """What a broker answers to the commands of this seed, by opaque, what its log holds, its offsets."""
    rng = random.Random(seed)
    random.seed(seed)  # the choice of a queue for -1
    heart = Harness(root, fast_lane_enable=lane)
    heart.create_topic("T", 4)
    heart.create_topic("U", 2)
    member = heart.connect(50_100)
    for version in (1, 2):
        condition = rng.choice(["TAGS = 'A'", "TAGS IN ('A', 'B') OR KEYS IS NOT NULL", "TAGS = 'none'"])
        heart.beat("s", "SQL", Subscription("T", condition, "SQL92", version=version), connection=member)
        heart.beat("c", "CG", tagged("T", rng.choice(["*", "A", "B || Aa"]), version), connection=member)
        for data in chunks(rng, [rng.choice([some_send, some_send, some_pull, some_question])(rng)
                                 for _ in range(150)], first_opaque=1000 * version):  # fmt: skip
            heart.receive_bytes(data)
            if rng.random() < 0.3:
                heart.settle()
                heart.now_ms += rng.randrange(50)
        heart.settle()
    heart.pass_time(16_000, step_ms=1000)
    replies = heart.connection.take()
    by_opaque = {reply.opaque: encode(reply) for reply in replies}
    assert len(by_opaque) == len(replies), "a request was answered twice"
    served = heart.broker.fast.lane
    assert served is None or (served.sends > 20 and served.pulls > 0), "the lane served next to nothing"
    heart.close()
    log = [file.read_bytes() for file in sorted((root / "commitlog").iterdir())]
    return by_opaque, log, heart.broker.offsets._offsets


def transactions(root: Path, seed: int, *, lane: bool) -> tuple[list[bytes], list[bytes], object, list[int]]:
    """The same of halves and of how they end. Each read is worked off before the next: the log's order is a
    turn's order, and what has to be looked up is looked up beside the loop.
    """
    rng = random.Random(seed)
    random.seed(seed)
    heart = Harness(root, fast_lane_enable=lane)
    heart.create_topic("T", 4)
    heart.create_topic("U", 2)
    heart.beat_producer("producer", "PG")
    halves: list[SendReply] = []
    replies: list[bytes] = []
    for step in range(120):
        make = rng.choice([some_half, some_half, some_send]) if rng.random() < 0.5 or not halves else None
        command = make(rng) if make is not None else some_end(rng, halves)
        command.opaque = 1000 + step
        heart.receive_bytes(encode(command))
        work(heart)
        for reply in heart.connection.take():
            replies.append(encode(reply))
            if make is some_half and reply.code == 0 and reply.opaque == command.opaque:
                halves.append(SendReply.from_command(reply))
        heart.now_ms += rng.randrange(50)
    outcomes = heart.broker.transactions.outcomes
    open_places = [place for place in range(outcomes.queue.max) if outcomes.is_open(place)]
    counted = heart.broker.transactions.committed, heart.broker.transactions.rolled_back, outcomes.next
    assert bool(outcomes.places.committed) == lane, "the lane ended none, or where there is none"
    for _ in range(7):  # all that are open are asked about
        heart.now_ms += 1000
        for _ in range(2):  # a timer's slot is read beside the loop, and delivered from at the next tick
            heart.tick()
            work(heart)
    replies += [encode(question) for question in heart.connection.take()]
    heart.close()
    log = [file.read_bytes() for file in sorted((root / "commitlog").iterdir())]
    return replies, log, counted, open_places


@pytest.mark.parametrize("seed", range(8))
def test_lane_and_handlers_end_transactions_alike(seed: int, in_memory: Path) -> None:
    """Any mix of halves and outcomes, sound and odd, told once or again: answers, log, what is open, and who
    is asked.
    """
    with_lane = transactions(in_memory / "with", seed, lane=True)
    without = transactions(in_memory / "without", seed, lane=False)
    for left, right in zip(with_lane[0], without[0], strict=True):
        assert left == right, f"seed {seed}"
    for part, left, right in zip(("log", "counts", "open"), with_lane[1:], without[1:], strict=True):
        same = left == right  # pytest would compare a log of megabytes line by line
        assert same, f"seed {seed}: {part}"


def chunks(rng: random.Random, commands: list[Command], first_opaque: int) -> Iterator[bytes]:
    """The commands' bytes, cut anywhere."""
    for number, command in enumerate(commands):
        command.opaque = first_opaque + number
    data = b"".join(map(encode, commands))
    at = 0
    while at < len(data):
        size = rng.choice([1, 3, 100, 1000, 20_000])
        yield data[at : at + size]
        at += size


@pytest.mark.parametrize("seed", range(12))
def test_lane_and_handlers_answer_and_store_alike(seed: int, in_memory: Path) -> None:
    """Any mix of sound, odd and broken requests in any chunks: replies, log and offsets are equal."""
    assert core.COMPILED, core.WHY_PLAIN
    with_lane, stored_with, offsets_with = transcript(in_memory / "with", seed, lane=True)
    without, stored_without, offsets_without = transcript(in_memory / "without", seed, lane=False)
    assert with_lane.keys() == without.keys()
    for opaque in sorted(without):
        assert with_lane[opaque] == without[opaque], f"seed {seed} opaque {opaque}"
    assert stored_with == stored_without
    assert offsets_with == offsets_without


def test_grants_are_bounded(in_memory: Path) -> None:
    """However many groups and expressions come, the lane's table does not grow without end."""
    heart = Harness(in_memory / "store")
    fast = FastLane(heart.config, heart.store, STORE_HOST, b"", heart.broker.transactions.outcomes.places)
    for number in range(GRANTS_MAX + 10):
        fast.grant(f"g{number}", "T", expression="*", version=1, codes=None, group_flag=0)
    assert len(fast._grants) <= GRANTS_MAX
    assert len(fast._keys_of_group) <= GRANTS_MAX
    fast.revoke(f"g{GRANTS_MAX + 9}")
    fast.revoke("never heard of")
    assert f"g{GRANTS_MAX + 9}\0T\0*".encode() not in fast._grants
    heart.close()


def test_lane_is_switched_off_by_setting(in_memory: Path) -> None:
    """fastLaneEnable=false: every request takes the handlers' road."""
    heart = Harness(in_memory / "store", fast_lane_enable=False)
    heart.broker.fast.topic_changed(TopicConfig("T"))
    assert heart.broker.fast.lane is None
    assert heart.send().code == 0
    heart.close()

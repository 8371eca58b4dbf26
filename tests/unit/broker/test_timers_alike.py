"""Timer messages by the compiled core and without it: answers, files and deliveries are equal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.broker import timers
from hotfire.broker.timing import DEQUEUE_MS, ENQUEUE_MS
from hotfire.model import TIMER_TOPIC
from hotfire.protocol.codes import Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.record import Record, parse_properties, without_crc
from hotfire.protocol.requests import RecallMessage
from hotfire.store import timerwheel
from hotfire.store.timerfiles import TimerFiles
from tests.unit.broker.harness import START_MS, Harness, properties, send_request
from tests.unit.broker.test_fastlane import some
from tests.unit.broker.transacting import work

pytestmark = pytest.mark.core

Transcript = tuple[list[Any], dict[str, Any], object]
"""Answers, what is stored, counts."""
WAITS_MS = (1, 40, 999, 1000, 1001, 2345, 4000, 7000)


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of minutes, for each test makes several; and files that are synced at once: when the disk is
    done with them decides which unit goes where.
    """
    monkeypatch.setattr(timerwheel, "SLOTS", 512)
    monkeypatch.setattr(TimerFiles, "flush_beside", TimerFiles.flush)


def some_time(rng: random.Random, now_ms: int) -> dict[str, str]:
    wait = some(rng, rng.choice(WAITS_MS), 0, -1, 30_000, 300_000, 10**9, 10**18)
    name, value = rng.choice(
        [
            ("TIMER_DELAY_SEC", wait // 1000),
            ("TIMER_DELAY_MS", wait),
            ("TIMER_DELIVER_MS", now_ms + wait),
            ("TIMER_DELIVER_MS", now_ms + wait),
        ]
    )
    return {name: some(rng, str(value), f"+{abs(value)}", f"0{abs(value)}", "soon", " 1", "9" * 18, "9" * 30)}


def some_timed(rng: random.Random, now_ms: int) -> Command:
    named = {"UNIQ_KEY": f"{rng.randrange(10**6):032d}"} | some_time(rng, now_ms)
    ordinary = [("TAGS", rng.choice(["A", "标签"])), ("KEYS", "a b"), ("名", "值"), ("WAIT", "true")]
    odd = {
        "TIMER_OUT_MS": str(now_ms + 1000), "TIMER_ROLL_TIMES": "1", "TIMER_SHIFT_MS": "5",
        "TIMER_DEL_UNIQKEY": "T+K", "TIMER_ENQUEUE_MS": "1", "DELAY": "1", "WAIT": "false",
        "TRAN_MSG": "true", "REAL_TOPIC": "U", "__CRC32#": "1",
    }  # fmt: skip
    named.update([some(rng, rng.choice(ordinary), *odd.items())])
    named |= some(rng, {}, some_time(rng, now_ms))
    items = list(named.items())
    rng.shuffle(items)
    text = properties(**dict(items))
    text = some(rng, text, text + "TAGS\x01B\x02", text.removesuffix("\x02"), text + "\x02", text + "bad\x02")
    return send_request(
        topic=some(rng, rng.choice("TU"), "New", "%RETRY%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"),
        queue_id=some(rng, rng.randrange(2), 9, -1),
        body=rng.randbytes(some(rng, rng.choice([1, 100, 300]), 0, 5000)),
        properties=some(rng, text, None, ""),
        flag=rng.choice([0, 7]),
        sys_flag=some(rng, 0, 1, 4, 8),
        reconsume_times=some(rng, 0, 1),
        batch=some(rng, False, True),
        v1=some(rng, False, True),
    ).to_command(
        serialization=some(rng, Serialization.JSON, Serialization.ROCKETMQ), oneway=rng.random() < 0.1
    )


def transcript(root: Path, seed: int, **settings: Any) -> Transcript:
    """What a broker answers to the commands of this seed while time passes, its files, and its counts.

    Each read is worked off before the next: the log's order is a turn's order.
    """
    rng = random.Random(seed)
    random.seed(seed)  # the choice of a queue for -1
    is_calm = seed % 4 < 2  # what was taken back or moved is looked for message by message
    heart = Harness(
        root,
        recall_message_enable=True,
        timer_roll_window_slot=rng.choice([6, 200]),
        timer_congest_num_each_slot=rng.choice([5, 1 << 20]),
        mapped_file_size_timer_log=4096,
        enabled_append_prop_crc=seed % 2 == 0,
        **settings,
    )
    heart.create_topic("T", 2)
    heart.create_topic("U", 2)
    replies: list[bytes] = []
    by_lane = 0
    handles: list[tuple[str, str]] = []
    for step in range(150):
        commands = [some_timed(rng, heart.now_ms) for _ in range(rng.choice([1, 1, 5]))]
        if handles and not is_calm and rng.random() < 0.1:
            topic, handle = rng.choice(handles)
            commands.append(
                RecallMessage(producer_group="PG", topic=topic, recall_handle=handle).to_command()
            )
        for number, command in enumerate(commands):
            command.opaque = 1000 + 10 * step + number
        topics = {command.opaque: (command.fields or {}).get("b", "T") for command in commands}
        heart.receive_bytes(b"".join(map(encode, commands)))
        work(heart)
        for reply in heart.connection.take():
            replies.append(encode(reply))
            if handle := (reply.fields or {}).get("recallHandle"):
                handles.append((topics[reply.opaque], handle))
        if not is_calm and rng.random() < 0.01:
            heart.now_ms += 30_000
            heart.broker.clock_moved(30_000)
        pass_time(heart, rng.choice([0, 1, 50, 50, 300, 1500]))
        if rng.random() < 0.02:
            by_lane += delivered_by_lane(heart)
            heart.close()
            heart.open()
    pass_time(heart, 20_000, step_ms=500)
    by_lane += delivered_by_lane(heart)
    assert not is_calm or heart.broker.fast.lane is None or by_lane > 20, "the lane delivered next to nothing"
    timers = heart.broker.timers
    told = timers.position, timers.read_s, timers.metrics._counts
    if not is_calm:
        records = heart.log_records()
        heart.close()
        return in_no_order(replies, records)
    heart.close()
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for part in ("commitlog", "consumequeue", "index", "timerlog", "timerwheel")
        for path in ([root / part] if (root / part).is_file() else sorted((root / part).rglob("*")))
        if path.is_file()
    }
    return replies, files, told


def in_no_order(replies: list[bytes], records: list[Record]) -> Transcript:
    """What was answered but for places, and what came to each topic but for when."""
    told: list[object] = []
    for reply in map(decode, replies):
        fields = reply.fields or {}
        told.append(
            (reply.opaque, reply.code, reply.remark, fields.get("queueId"), fields.get("recallHandle"))
        )
    stored: dict[str, list[object]] = {}
    for record in records:
        if record.topic != TIMER_TOPIC:
            named = parse_properties(without_crc(record.properties))
            kept = {name: value for name, value in named.items() if name not in (ENQUEUE_MS, DEQUEUE_MS)}
            stored.setdefault(record.topic, []).append((record.queue_id, record.body, sorted(kept.items())))
    return told, {topic: sorted(said, key=repr) for topic, said in stored.items()}, None


def delivered_by_lane(heart: Harness) -> int:
    lane = heart.broker.fast.lane
    return 0 if lane is None else lane.delivered


def pass_time(heart: Harness, ms: int, step_ms: int = 50) -> None:
    end_ms = heart.now_ms + ms
    while heart.now_ms < end_ms:
        heart.now_ms += min(step_ms, end_ms - heart.now_ms)
        for _ in range(3):  # a slot is read beside the loop, and delivered from at the next tick
            heart.tick()
            work(heart)


@pytest.mark.parametrize("seed", range(10))
def test_compiled_and_by_hand_alike(seed: int, in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mix of messages with a time, sound and odd, and restarts: answers, files and counts are equal.

    With recalls and clocks that are set, what comes: of slots that are read beside the loop at the same time,
    which is first, and when, is the disk's affair.
    """
    assert core.COMPILED, core.WHY_PLAIN
    compiled = transcript(in_memory / "compiled", seed, fast_lane_enable=True)
    monkeypatch.setattr(timers, "take_many", lambda *_, **__: None)
    by_hand = transcript(in_memory / "by hand", seed, fast_lane_enable=False)
    for left, right in zip(compiled[0], by_hand[0], strict=True):
        assert left == right, f"seed {seed}"
    assert compiled[1].keys() == by_hand[1].keys()
    for name in compiled[1]:
        same = compiled[1][name] == by_hand[1][name]  # pytest would compare megabytes line by line
        assert same, f"seed {seed}: {name}"
    assert compiled[2] == by_hand[2], f"seed {seed}"


def test_the_lane_does_it(in_memory: Path) -> None:
    """What is plain is parked and copied by the lane, whichever way it asks for a time."""
    heart = Harness(in_memory / "store")
    heart.create_topic("T")
    lane = heart.broker.fast.lane
    assert lane is not None
    asked = [("TIMER_DELAY_SEC", 2), ("TIMER_DELAY_MS", 1500), ("TIMER_DELIVER_MS", START_MS + 1700)]
    for number in range(30):
        name, value = asked[number % 3]
        reply = heart.send(named={"UNIQ_KEY": f"{number:032d}", name: str(value)})
        assert "recallHandle" in (reply.fields or {})
    pass_time(heart, 3000)
    assert (lane.sends, lane.delivered, heart.broker.sends_handled) == (30, 30, 0)
    assert heart.broker.timers.delivery.moved == 30
    heart.close()


def test_what_was_copied_is_told_whatever_fails_after_it(in_memory: Path) -> None:
    """An error behind some copies waits for the next call: copies nobody knows of would be made again."""
    heart = Harness(in_memory / "store")
    heart.create_topic("T")
    for number in range(2):
        heart.send(named=timed(number, 2500))
    lane, queue = heart.broker.fast.lane, heart.broker.timers.queue
    assert lane is not None
    parked = [queue.entry(index) for index in range(2)]
    entries: list[Any] = [(one[0], one[1]) for one in parked if one is not None]
    rest = set[str](), START_MS + 9000, 0, 0, 1 << 40, 0
    assert lane.deliver([*entries, ("no", "entry")], 0, *rest) == (2, [(b"T", 2)])
    with pytest.raises(TypeError):
        lane.deliver([*entries, ("no", "entry")], 2, *rest)
    heart.close()


def test_what_was_taken_back_is_left_and_the_rest_goes_by_the_lane(in_memory: Path) -> None:
    """One of a second that was taken back does not hold up those beside it, nor does it come."""
    heart = Harness(in_memory / "store", recall_message_enable=True)
    heart.create_topic("T")
    handles = []
    for number in range(20):
        reply = heart.send(body=b"%d" % number, named=timed(number, 2500))
        handles.append((reply.fields or {})["recallHandle"])
    recall = RecallMessage(producer_group="PG", topic="T", recall_handle=handles[7])
    assert heart.ask(recall).code == 0
    pass_time(heart, 4000)
    lane = heart.broker.fast.lane
    assert lane is not None
    assert lane.delivered > 0
    came = [record.body for record in heart.log_records() if record.topic == "T"]
    assert came == [b"%d" % number for number in range(20) if number != 7]
    heart.close()


def test_what_waited_over_a_restart_goes_by_the_lane(in_memory: Path) -> None:
    """Due after the log's end as the start found it: no copy can have been made, and none is looked for."""
    heart = Harness(in_memory / "store")
    heart.create_topic("T")
    for number in range(9):
        heart.send(named=timed(number, 100 if number == 4 else 2500))
    pass_time(heart, 200)
    heart.reopen()
    pass_time(heart, 4000)
    lane = heart.broker.fast.lane
    assert lane is not None
    assert (lane.delivered, heart.broker.timers.delivery.moved) == (8, 8)
    heart.close()


def timed(number: int, delay_ms: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"{number:032d}", "TIMER_DELAY_MS": str(delay_ms)}


def test_switched_off_the_lane_parks_none(in_memory: Path) -> None:
    """timerWheelEnable=false is refused as ever."""
    heart = Harness(in_memory / "store", timer_wheel_enable=False)
    heart.create_topic("T")
    assert heart.send(named={"TIMER_DELAY_SEC": "3"}).code == 1
    heart.close()


def units_of(data: bytes, wheel: bytes, end: int = 0, file_bytes: int = 1 << 20) -> Any:
    return core.timer_units(data, wheel, START_MS, START_MS // 1000, 200_000, end, file_bytes)


@pytest.mark.parametrize("seed", range(5))
def test_harmed_records_end_what_is_taken_up(seed: int, in_memory: Path) -> None:
    """Cut or changed anywhere: units of the records before the harm, and none too many."""
    rng = random.Random(seed)
    heart = Harness(in_memory / "store")
    heart.create_topic("T")
    for number in range(8):
        due = START_MS + 1000 + 300 * number
        heart.send(named={"UNIQ_KEY": f"{number:032d}", "TIMER_DELIVER_MS": str(due)})
    log = (heart.root / "commitlog").glob("*")
    data = next(iter(log)).read_bytes()[: heart.store.readable_end]
    heart.close()
    wheel = bytes(512 * timerwheel.SLOT_BYTES)
    sound = units_of(data, wheel)
    assert (sound[0], len(sound[1])) == (len(data), 8 * 52)
    assert sound[3] == [(b"T", 8)]
    for _ in range(2000):
        harmed = bytearray(data[: rng.choice([len(data), rng.randrange(len(data))])])
        for _ in range(rng.choice([0, 1, 3])):
            if harmed:
                harmed[rng.randrange(len(harmed))] = rng.randrange(256)
        consumed, units, heads, topics, _, following = units_of(bytes(harmed), wheel)
        assert consumed <= len(harmed)
        assert len(units) % 52 == 0
        assert sum(count for _, count in topics) == len(units) // 52 == sum(head[3] for head in heads)
        if harmed[:consumed] == data[:consumed]:
            assert units == sound[1][: len(units)]
            assert not units or following == len(units) // 52


def test_a_file_of_the_timer_log_takes_whole_units(in_memory: Path) -> None:
    """Where no unit and the file's end have room, none is made."""
    heart = Harness(in_memory / "store")
    heart.create_topic("T")
    for number in range(8):
        heart.send(named={"UNIQ_KEY": f"{number:032d}", "TIMER_DELAY_MS": "1500"})
    log = (heart.root / "commitlog").glob("*")
    data = next(iter(log)).read_bytes()[: heart.store.readable_end]
    heart.close()
    wheel = bytes(512 * timerwheel.SLOT_BYTES)
    for room, units in ((67, 0), (68, 1), (119, 1), (120, 2)):
        assert len(units_of(data, wheel, 4096 - room, 4096)[1]) == 52 * units
    for bad in ((b"", 0, 4096), (wheel, -1, 4096), (wheel, 0, 0)):
        with pytest.raises(ValueError, match="timer_units"):
            units_of(data, *bad)

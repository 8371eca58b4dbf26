"""Generators of load that check what comes back: a broker that answers wrongly gets no figure."""

import itertools
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.drivers import OUR_SOURCES, SOME_REFUSED
from hotfire.protocol.record import Host, Record, encode_record
from tests.unit.bench.answering import Answering, Reply, Replying

HOST = Host(bytes((127, 0, 0, 1)), 10911)
COUNT, KEYS, BODY_BYTES = 400, 10, 32
WRONG = 4
FILLER = bytes(ord("a") + k * 7 % 26 for k in range(BODY_BYTES))
NOT_FOUND, BUSY = 19, 2


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("generators")
    for name in ("askgen", "txgen", "timergen"):
        source = OUR_SOURCES / f"{name}.c"
        command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", place / name, source]
        subprocess.run(command, check=True)
    return place


def record(number: int, body: bytes | None = None) -> bytes:
    content = b"%016d" % number + FILLER[16:] if body is None else body
    return encode_record(Record("t", 0, content, 1, HOST, 2, HOST), append_crc=True)


def run(program: Path, replying: Replying, *words: object) -> tuple[int, int]:
    """Exit status, and how many it counted."""
    with Answering(replying) as broker:
        host, _, port = broker.rpartition(":")
        done = subprocess.run(
            [program, host, port, "t", *map(str, words)], capture_output=True, text=True, check=False
        )
    counted = re.search(r"acked=(\d+)", done.stdout)
    return done.returncode, 0 if counted is None else int(counted[1])


# --- queries by key ---


def keyed(fields: Mapping[str, str]) -> list[int]:
    return list(range(int(fields["key"].removeprefix("key-")), COUNT, KEYS))


QUERY_ANSWERS: dict[str, Replying] = {
    "right": lambda _, fields, __: (0, {}, b"".join(map(record, keyed(fields)[-32:]))),
    "one too few": lambda _, fields, __: (0, {}, b"".join(map(record, keyed(fields)[-31:]))),
    "one twice": lambda _, fields, __: (
        0,
        {},
        b"".join(map(record, [keyed(fields)[0], *keyed(fields)[:31]])),
    ),
    "of another key": lambda _, fields, __: (0, {}, b"".join(record(n + 1) for n in keyed(fields)[:32])),
    "empty": lambda _, __, ___: (0, {}, b""),
    "cut": lambda _, fields, __: (0, {}, b"".join(map(record, keyed(fields)[-32:]))[:-1]),
    "refused": lambda _, __, ___: (22, {}, b""),
}


@pytest.mark.parametrize("answer", QUERY_ANSWERS)
def test_queries_must_bring_what_was_asked_for(tools: Path, answer: str) -> None:
    """Exactly as many as there are, up to 32, each once and of that key; a refusal is never counted."""
    words = ("keys", COUNT, BODY_BYTES, KEYS, 2, 2, 0.3)
    status, counted = run(tools / "askgen", QUERY_ANSWERS[answer], *words)
    assert status == {"right": 0, "refused": SOME_REFUSED}.get(answer, WRONG)
    assert (counted > 0) == (answer == "right")


# --- pulls by a condition ---


def pulling(passes: list[int]) -> Replying:
    """One queue of COUNT messages, of which these are handed out, ten at a time."""

    def reply(_: int, fields: Mapping[str, str], __: bytes) -> Reply:
        offset = int(fields["queueOffset"])
        if offset >= COUNT:
            return NOT_FOUND, {"nextBeginOffset": str(offset)}, b""
        found = [n for n in passes if n >= offset][:10]
        following = found[-1] + 1 if found else COUNT
        return (0 if found else 20), {"nextBeginOffset": str(following)}, b"".join(map(record, found))

    return reply


MATCHING = [n for n in range(COUNT) if n % 40 < 4]


@pytest.mark.parametrize(
    ("passes", "status"),
    [(MATCHING, 0), (MATCHING[:-1], WRONG), ([*MATCHING, COUNT - 1], WRONG), ([], WRONG)],
    ids=["right", "one lost", "one too many", "nothing"],
)
def test_pulls_must_bring_what_the_condition_is_true_of(tools: Path, passes: list[int], status: int) -> None:
    """All of them in each round through a queue, and no others."""
    words = ("sql", COUNT, BODY_BYTES, 1, 1, 32, 0.3, "group", 1)
    assert run(tools / "askgen", pulling(passes), *words)[0] == status


def test_a_reader_that_never_comes_to_the_end_has_no_figure(tools: Path) -> None:
    """A round that was not finished was not checked."""

    def slow(_: int, fields: Mapping[str, str], __: bytes) -> Reply:
        time.sleep(0.1)
        return 20, {"nextBeginOffset": str(int(fields["queueOffset"]) + 1)}, b""

    assert run(tools / "askgen", slow, "sql", COUNT, BODY_BYTES, 1, 1, 32, 0.3, "group", 1)[0] == WRONG


# --- transactions ---


@pytest.mark.parametrize("busy", [False, True])
def test_a_transaction_counts_when_its_commit_is_answered(tools: Path, busy: bool) -> None:
    """The commit names the half by its places in queue and log, as the half's answer told them."""
    halves = itertools.count(1)
    committed: list[tuple[int, int]] = []

    def reply(code: int, fields: Mapping[str, str], _: bytes) -> Reply:
        if code == 310:
            number = next(halves)
            told = {
                "msgId": f"7F00000100002A9F{number * 100:016X}",
                "queueId": "0",
                "queueOffset": str(number),
            }
            return (BUSY if busy and number % 3 == 0 else 0), told, b""
        assert code == 37
        assert fields["commitOrRollback"] == "8"
        committed.append((int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])))
        return 0, {}, b""

    status, counted = run(tools / "txgen", reply, 1, 4, BODY_BYTES, 0.3, 4)
    assert status == (SOME_REFUSED if busy else 0)
    assert counted == len(committed) > 0
    assert all(log_offset == number * 100 for number, log_offset in committed)
    assert len(set(committed)) == len(committed)


# --- timers ---


@pytest.mark.parametrize("fault", ["", "early", "twice", "another body"])
def test_a_timer_message_must_come_once_and_in_time(tools: Path, fault: str) -> None:
    """Not more than a second early, not twice, and as it was sent."""
    parked: list[tuple[int, bytes]] = []

    def reply(code: int, fields: Mapping[str, str], body: bytes) -> Reply:
        if code == 310:
            due = re.search("TIMER_DELIVER_MS\x01(\\d+)", fields["i"])
            assert due is not None
            parked.append((int(due[1]), body))
            return 0, {}, b""
        time.sleep(0.02)
        offset = int(fields["queueOffset"])
        now_ms = time.time() * 1000 + (1 << 40 if fault == "early" else 0)
        ready = sorted(parked) if len(parked) == 20 else []
        if fault == "twice":
            ready = [ready[0], *ready] if ready else []
        if fault == "another body":
            ready = [(due, body[:-1] + b"?") for due, body in ready]
        if offset >= len(ready) or ready[offset][0] > now_ms:
            return NOT_FOUND, {}, b""
        return 0, {}, record(0, ready[offset][1])

    ahead_ms = 5000 if fault == "early" else 50
    words = (1, 4, BODY_BYTES, 20, ahead_ms, 20, 1, 0)
    status, counted = run(tools / "timergen", reply, *words)
    assert status == (WRONG if fault else 0)
    assert counted == (0 if fault == "another body" else 20)


@pytest.mark.parametrize("busy", [False, True])
def test_timer_messages_may_be_left_to_wait(tools: Path, busy: bool) -> None:
    """The run ends when all are taken, whenever they are due; those that were not are told of."""
    numbers = itertools.count()

    def reply(code: int, _: Mapping[str, str], __: bytes) -> Reply:
        if code == 310:
            return (BUSY if busy and next(numbers) % 5 == 0 else 0), {}, b""
        time.sleep(0.02)
        return NOT_FOUND, {}, b""

    status, counted = run(tools / "timergen", reply, 1, 4, BODY_BYTES, 20, 3_600_000, 20, 1, 2)
    assert status == (SOME_REFUSED if busy else 0)
    assert counted == (16 if busy else 20)

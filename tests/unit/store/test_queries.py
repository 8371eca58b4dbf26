"""Looking for messages by key, by offset and by time."""

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hotfire.protocol.record import decode_record, iter_records, key_hash
from hotfire.store.disk import Bell
from hotfire.store.keyline import Found, Together, Wanted
from hotfire.store.queries import Looker, Queries
from tests.unit.store.driven import NOW_MS, Driven, Sent, ring


def ask(driven: Driven) -> Any:
    ring(driven.store.queries.fileno())
    ((_, future),) = driven.store.queries.answers()
    return future.result()


def by_key(
    driven: Driven, topic: str, key: str, count: int = 64, begin: int = 0, end: int = 1 << 60
) -> list[bytes]:
    driven.store.queries.by_key(topic, key, count, begin, end, None)
    return [record.body for record in iter_records(ask(driven))]


def by_time(driven: Driven, timestamp: int, *, upper: bool = False) -> int:
    driven.store.offset_by_time("t", 0, timestamp, upper=upper, token=None)
    found = ask(driven)
    assert isinstance(found, int)
    return found


def send(driven: Driven, body: bytes, **properties: str) -> Sent:
    sent = driven.send("t", 0, body, **properties)
    driven.turn()
    return sent


@pytest.mark.promise(30)
def test_every_word_of_the_keys_and_the_unique_key_find_it(tmp_path: Path) -> None:
    """KEYS="a b" and a unique key: each of the three; and the tag, which is not a key of anyone's."""
    with Driven(tmp_path) as driven:
        send(driven, b"one", KEYS="a b", UNIQ_KEY="u1", TAGS="red")
        send(driven, b"other", KEYS="c")
        for key in ("a", "b", "u1", "T#red"):
            assert by_key(driven, "t", key) == [b"one"], key
        for key in ("a b", "red", "u", ""):
            assert by_key(driven, "t", key) == [], key
        assert by_key(driven, "other", "a") == []


def test_what_a_slow_question_looks_at_stays_though_a_later_one_is_answered(tmp_path: Path) -> None:
    """The broker's own, asked later, has its answer first: files wait for the client's all the same."""
    with Driven(tmp_path) as driven:
        send(driven, b"one")
        queries, reading, goes_on = driven.store.queries, driven.store._reading, threading.Event()
        queries.look(lambda _: goes_on.wait(), "slow")
        queries.look(lambda _: "quick", "own", own=True)
        asked = reading.asked
        ring(queries.fileno())
        assert [(token, future.result()) for token, future in queries.answers()] == [("own", "quick")]
        assert (queries.waiting, reading.is_read(0, asked)) == (1, True)
        goes_on.set()
        ring(queries.fileno())
        assert [token for token, _ in queries.answers()] == ["slow"]
        assert (queries.waiting, reading.is_read(0, asked)) == (0, False)


@pytest.mark.promise(157)
def test_a_time_range_bounds_what_a_key_finds(tmp_path: Path) -> None:
    """Three with the key, one of them outside the range: two. Over several files, newest first when many."""
    with Driven(tmp_path, index_entries=4) as driven:
        for i in range(9):
            send(driven, b"%d" % i, KEYS="k")
            driven.now_ms += 10_000
        assert len(list((tmp_path / "index").iterdir())) == 3
        assert by_key(driven, "t", "k") == [b"%d" % i for i in range(9)]
        middle = by_key(driven, "t", "k", begin=NOW_MS + 30_000, end=NOW_MS + 50_000)
        assert middle == [b"3", b"4", b"5"]
        assert by_key(driven, "t", "k", end=NOW_MS + 10_000) == [b"0", b"1"]
        assert by_key(driven, "t", "k", count=2) == [b"7", b"8"]
    with driven.on(tmp_path) as again:
        assert by_key(again, "t", "k") == [b"%d" % i for i in range(9)]


@pytest.mark.promise(29, 159)
def test_keys_of_one_hash_and_of_one_slot_are_told_apart(tmp_path: Path) -> None:
    """`Aa` and `BB` have one hash, others share a slot: each query gives its own messages, newest last."""
    assert key_hash("t", "Aa") == key_hash("t", "BB")
    slots = 8
    twins = [
        f"k{i}" for i in itertools.islice((i for i in range(1000) if key_hash("t", f"k{i}") % slots == 3), 5)
    ]
    with Driven(tmp_path, index_slots=slots, index_entries=100) as driven:
        for round_ in range(3):
            for key in ("Aa", "BB", *twins):
                send(driven, f"{key} {round_}".encode(), KEYS=key)
        for key in ("Aa", "BB", *twins):
            assert by_key(driven, "t", key) == [f"{key} {round_}".encode() for round_ in range(3)]


@pytest.mark.promise(31)
def test_without_an_index_consumption_is_unharmed(tmp_path: Path) -> None:
    """messageIndexEnable=false: no file under index/, keys find nothing, queues are as ever."""
    with Driven(tmp_path, index_enable=False) as driven:
        send(driven, b"one", KEYS="k")
        assert not (tmp_path / "index").exists()
        assert by_key(driven, "t", "k") == []
        driven.check(driven.sent)
    indexed = Driven(tmp_path).open()  # switched on later, it is made of what the log has
    assert by_key(indexed, "t", "k") == [b"one"]
    indexed.store.close()


@pytest.mark.promise(158)
def test_both_ends_of_a_time_range_are_found_in_a_queue(tmp_path: Path) -> None:
    """Lower: the first at or after a time. Upper: the last at or before it. Over many files of a queue."""
    with Driven(tmp_path) as driven:
        times = []
        for i in range(40):
            driven.now_ms = NOW_MS + (i // 3) * 1000
            send(driven, b"")
            times.append(driven.now_ms)
        for at in range(NOW_MS - 500, times[-1] + 1000, 250):
            lower = next((i for i, stored in enumerate(times) if stored >= at), len(times))
            upper = max((i for i, stored in enumerate(times) if stored <= at), default=0)
            assert by_time(driven, at) == lower
            assert by_time(driven, at, upper=True) == upper


def test_an_unknown_queue_has_no_times(tmp_path: Path) -> None:
    """Nothing stored: offset 0, and no file is made for the asking."""
    with Driven(tmp_path) as driven:
        assert by_time(driven, NOW_MS) == 0
        assert not (tmp_path / "consumequeue").exists()


def test_only_what_is_readable_is_found(tmp_path: Path) -> None:
    """A record whose turn is not complete has no offset, no key and no time yet."""
    with Driven(tmp_path) as driven:
        first = send(driven, b"one", KEYS="k")
        second = driven.send("t", 0, b"two", KEYS="k")
        assert by_key(driven, "t", "k") == [b"one"]
        driven.store.queries.record_at(first.physical, None)
        assert decode_record(ask(driven)).body == b"one"
        driven.store.queries.record_at(second.physical, None)
        assert ask(driven) is None
        assert by_time(driven, NOW_MS + 1) == 1
        driven.turn()
        assert by_key(driven, "t", "k") == [b"one", b"two"]


@pytest.mark.promise(46)
def test_a_hundred_segments_are_searched_by_their_names(tmp_path: Path) -> None:
    """A log offset leads to its file without looking into others."""
    with Driven(tmp_path, segment_bytes=4096) as driven:
        while driven.store.end < 100 * 4096:
            driven.send("t", 0, bytes(900))
            driven.turn()
        for sent in driven.sent[::7]:
            driven.store.queries.record_at(sent.physical, None)
            assert decode_record(ask(driven)).queue_offset == sent.queue_offset


def test_a_harmed_record_is_not_found(tmp_path: Path) -> None:
    """Neither by offset nor by key."""
    with Driven(tmp_path) as driven:
        sent = send(driven, b"harmed", KEYS="k")
        file = tmp_path / "commitlog" / ("0" * 20)
        data = bytearray(file.read_bytes())
        data[sent.end - 40] ^= 1
        file.write_bytes(data)
        driven.store.queries.record_at(sent.physical, None)
        assert ask(driven) is None
        assert by_key(driven, "t", "k") == []


def test_a_bell_that_nobody_holds_leaves_no_descriptor() -> None:
    """Stores are given up without being closed, by simulated losses of power: thousands in one process."""
    bell = Bell()
    descriptor = bell.fileno()
    os.fstat(descriptor)
    del bell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def calls_of(queries: Queries, *, is_shared: bool) -> list[int]:
    """How many questions each call has that is made from now on, while messages are stored or not."""
    line, calls = queries._keyed, list[int]()
    ask = line._ask

    def counted(wanted: list[Wanted], token: Together) -> None:
        calls.append(len(wanted))
        ask(wanted, token)

    line._ask, line._is_shared = counted, lambda: is_shared
    return calls


def test_questions_that_come_meanwhile_are_answered_together(tmp_path: Path) -> None:
    """However many wait there are two calls under way, each question has its own answer, in their order."""
    with Driven(tmp_path) as driven:
        for number in range(30):
            send(driven, b"%d" % number, KEYS=f"k{number}")
        queries, goes_on = driven.store.queries, threading.Event()
        calls = calls_of(queries, is_shared=False)
        queries.look(lambda _: goes_on.wait(), "slow")
        for number in range(30):
            queries.by_key("t", f"k{number}", 1, 0, 1 << 60, number)
        assert (queries.waiting, calls) == (31, [1, 1])
        goes_on.set()
        found: list[Any] = []
        while queries.waiting:
            ring(queries.fileno())
            found += queries.answers()
            assert queries.waiting == 31 - len(found)
        assert [token for token, _ in found] == ["slow", *range(30)]
        bodies = [record.body for _, answer in found[1:] for record in iter_records(answer.result())]
        assert bodies == [b"%d" % number for number in range(30)]
        assert (sum(calls), max(calls)) == (30, 8)


def test_while_messages_are_stored_each_question_has_a_call_of_its_own(tmp_path: Path) -> None:
    """There is a rest after each call: several questions in one would be felt by those who send."""
    with Driven(tmp_path) as driven:
        send(driven, b"one", KEYS="k")
        queries = driven.store.queries
        calls = calls_of(queries, is_shared=True)
        for number in range(12):
            queries.by_key("t", "k", 1, 0, 1 << 60, number)
        while queries.waiting:
            ring(queries.fileno())
            queries.answers()
        assert calls == [1] * 12


def test_a_call_that_fails_fails_its_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them waits for ever, and the next is answered."""
    with Driven(tmp_path) as driven:
        send(driven, b"one", KEYS="k")

        def fail(look: Looker, wanted: object) -> list[Found]:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(Looker, "by_keys", fail)
            driven.store.queries.by_key("t", "k", 1, 0, 1 << 60, None)
            with pytest.raises(MemoryError):
                ask(driven)
        assert by_key(driven, "t", "k") == [b"one"]

"""Transactions over restarts: of our own, of a crash between two steps, of stores the reference wrote."""

import dataclasses
import tarfile
from pathlib import Path

import pytest

from hotfire import core
from hotfire.broker import halves
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Host, decode_record, parse_properties
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import STORE_HOST, Harness
from tests.unit.broker.transacting import (
    COMMIT,
    GROUP,
    HALF,
    INTERVAL_MS,
    OP,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    answer,
    append,
    killed,
    outcome,
    pass_time,
    prepare,
    questions,
    say,
    stored,
    visible,
    work,
)
from tests.wire.golden import GOLDEN

pytestmark = pytest.mark.core

SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"


@pytest.fixture
def heart(heart: Harness) -> Harness:
    heart.beat_producer("producer", GROUP)
    return heart


def progress(heart: Harness) -> tuple[int | None, int | None]:
    offsets = heart.broker.offsets
    return offsets.get(HALF, SYSTEM_GROUP, 0), offsets.get(OP, SYSTEM_GROUP, 0)


def reopen(heart: Harness) -> None:
    heart.reopen()
    heart.beat_producer("producer", GROUP)


def ask_all(heart: Harness, kind: int) -> list[str | None]:
    """Answer everything the broker asks for two intervals; what it asked about."""
    asked = []
    for _ in range(3):
        pass_time(heart, INTERVAL_MS, 1000)
        heart.beat_producer("producer", GROUP)
        for question in questions(heart.connection):
            asked.append(question.msg_id)
            say(heart, answer(question, kind))
    return asked


def test_what_was_ended_stays_ended_and_the_rest_is_asked_about(heart: Harness) -> None:
    """After a clean restart: commits and rollbacks are not repeated, an open half is asked about."""
    done, back, still = (prepare(heart, n, b"%d" % n) for n in (1, 2, 3))
    say(heart, outcome(done, COMMIT), outcome(back, ROLLBACK))
    reopen(heart)
    say(heart, outcome(done, COMMIT), outcome(back, COMMIT))
    assert visible(heart) == [b"1"]
    assert ask_all(heart, COMMIT) == [still.transaction_id]
    assert visible(heart) == [b"1", b"3"]


def test_an_outcome_told_after_a_restart_counts_at_once(heart: Harness) -> None:
    """The producer's word about a half of a former life."""
    half = prepare(heart, body=b"told")
    reopen(heart)
    say(heart, outcome(half, COMMIT), outcome(half, COMMIT))
    assert visible(heart) == [b"told"]
    assert ask_all(heart, COMMIT) == []


def test_a_producer_that_ends_with_its_last_word_is_heard(heart: Harness) -> None:
    """The connection closes while the half is looked up: the outcome counts all the same."""
    half = prepare(heart, body=b"last word")
    reopen(heart)
    heart.receive(outcome(half, COMMIT).to_command(oneway=True))
    heart.disconnect(heart.connection)
    heart.connection = heart.connect(50_002)
    assert visible(heart) == [b"last word"]


def test_after_a_kill_nothing_is_lost_and_nothing_repeated(heart: Harness, make: Make) -> None:
    """Ops in the log are enough: progress on the disk may be as old as it likes."""
    first, second, third = (prepare(heart, n, b"%d" % n) for n in (1, 2, 3))
    say(heart, outcome(first, COMMIT), outcome(second, ROLLBACK))
    again = killed(heart, make, "killed")
    assert progress(again) == (None, None)
    assert ask_all(again, COMMIT) == [third.transaction_id]
    assert sorted(visible(again)) == [b"1", b"3"]


def test_a_copy_without_its_op_is_not_made_again(heart: Harness, make: Make) -> None:
    """The crash came between the commit's copy and its op: neither question nor outcome repeats it."""
    for number in (1, 2):
        half = prepare(heart, number, b"%d" % number)
        record = stored(heart, HALF)[-1]
        append(heart, halves.committed(record))
    assert visible(heart) == [b"1", b"2"]
    again = killed(heart, make, "killed")
    say(again, outcome(half, COMMIT))
    assert ask_all(again, COMMIT) == []
    assert visible(again) == [b"1", b"2"]
    assert b"".join(op.body for op in stored(again, OP)) in (b"1,0,", b"0,1,")


def test_a_delayed_copy_without_its_op_is_not_made_again(heart: Harness, make: Make) -> None:
    """The same for one that is parked by its delay level, and for one that was delivered meanwhile."""
    half = prepare(heart, 1, b"late", DELAY="1")
    again = killed(heart, make, "before")
    record = stored(again, HALF)[-1]
    say(again, outcome(half, COMMIT))
    assert stored(again, "SCHEDULE_TOPIC_XXXX")[0].physical_offset > record.physical_offset
    outcomes = again.broker.transactions.outcomes
    outcomes.places = core.Halves(outcomes.queue)  # as if its op had been lost
    pass_time(again, 2000)
    assert visible(again) == [b"late"]
    assert ask_all(again, COMMIT) == []
    assert visible(again) == [b"late"]


def test_a_half_stored_anew_without_an_op_for_the_old_place(heart: Harness, make: Make) -> None:
    """The crash came between the two: one question, one delivery, whichever place the outcome names."""
    half = prepare(heart, 1, b"one")
    record = stored(heart, HALF)[0]
    append(heart, halves.again(record, 1))
    asked = killed(heart, make, "asked")
    assert ask_all(asked, COMMIT) == [half.transaction_id]
    assert visible(asked) == [b"one"]
    told = killed(heart, make, "told")
    say(told, outcome(half, COMMIT))
    assert visible(told) == [b"one"]
    assert ask_all(told, COMMIT) == []
    assert visible(told) == [b"one"]


def test_what_was_rolled_back_under_a_new_place_stays_so(heart: Harness, make: Make) -> None:
    """A late commit for a half that was asked about and rolled back delivers nothing, also after a kill."""
    half = prepare(heart, 1, b"never")
    pass_time(heart, TIMEOUT_MS)
    (question,) = questions(heart.connection)
    say(heart, answer(question, ROLLBACK))
    say(heart, outcome(half, COMMIT))
    again = killed(heart, make, "killed")
    say(again, outcome(half, COMMIT), answer(question, COMMIT))
    assert ask_all(again, COMMIT) == []
    assert visible(again) == visible(heart) == []


def test_progress_counts_what_is_on_the_disk_only(heart: Harness) -> None:
    """An outcome moves the offsets of CID_RMQ_SYS_TRANS once its op is synced, never before."""
    half = prepare(heart)
    heart.tick()
    before = progress(heart)
    heart.receive(outcome(half, COMMIT).to_command(oneway=True))
    heart.broker.turn(heart.now_ms)  # handed to the flusher, whose bell is not heard yet
    heart.broker.transactions.advance()
    assert progress(heart) == before != (1, 1)
    work(heart)
    heart.tick()
    assert progress(heart) == (1, 1)


def test_progress_is_read_back(heart: Harness) -> None:
    """A clean restart goes on where it was: nothing that was dealt with is read again."""
    for number in range(20):
        say(heart, outcome(prepare(heart, number), COMMIT))
    heart.tick()
    assert progress(heart) == (20, len(stored(heart, OP)))
    reopen(heart)
    transactions = heart.broker.transactions
    assert transactions.outcomes.next == 20
    assert transactions.due_ms() is None


def test_progress_beyond_the_queue_is_corrected(heart: Harness, make: Make) -> None:
    """Offsets of another store do not hide halves that come."""
    for topic in (HALF, OP):
        heart.broker.offsets.commit(topic, SYSTEM_GROUP, 0, 1000)
    reopen(heart)
    half = prepare(heart, body=b"seen")
    say(heart, outcome(half, COMMIT))
    assert visible(heart) == [b"seen"]


@pytest.mark.parametrize("body", [b"0,2,", b"0,2", b"0", b"x,,0,99999,-1, 2 ,"])
def test_ops_of_every_version_are_understood(heart: Harness, make: Make, body: bytes) -> None:
    """Lists with commas, one number without, and what is neither."""
    for number in range(3):
        prepare(heart, number, b"%d" % number)
    record = dataclasses.replace(halves.op(b"", 0, STORE_HOST, heart.now_ms), body=body)
    append(heart, record)
    again = killed(heart, make, "killed")
    ask_all(again, COMMIT)
    left = [b"1", b"2"] if body == b"0" else [b"1"]
    assert sorted(visible(again)) == left


def test_an_immune_half_of_the_reference_knows_its_first_place(heart: Harness, make: Make) -> None:
    """It stores an immune half anew with its first offset; an op for that ends it too."""
    half = prepare(heart, 1, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    record = stored(heart, HALF)[0]
    named = halves.encode_properties(
        parse_properties(halves.without_crc(record.properties)) | {"TRAN_PREPARED_QUEUE_OFFSET": "0"}
    )
    # another key, so that nothing but the property leads to the first place
    named = named.replace(half.transaction_id.encode(), b"AC11000100002A9F00000000000000FF")  # type: ignore[union-attr]
    append(heart, dataclasses.replace(record, properties=named))
    append(heart, halves.op(b"0,", 0, STORE_HOST, heart.now_ms))
    again = killed(heart, make, "killed")
    assert ask_all(again, COMMIT) == []


def test_nobody_is_told_of_an_end_before_it_is_known_what_is_open(
    heart: Harness, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its op cannot be placed yet: after a kill the producer would be asked about what it was told."""
    for number in range(3):
        say(heart, outcome(prepare(heart, number), COMMIT))
    monkeypatch.setattr("hotfire.broker.outcomes.LOADED_MAX", 1)
    again = killed(heart, make, "killed")
    with monkeypatch.context() as patched:
        patched.setattr(again.broker.transactions, "_load_more", lambda: None)
        half = prepare(again, 50)
        assert again.ask(outcome(half, ROLLBACK)).code == ResponseCode.SYSTEM_BUSY
    for _ in range(5):
        again.tick()
        work(again)
    assert again.ask(outcome(half, ROLLBACK)).code == 0
    assert [op.body for op in stored(again, OP)][3:] == [b"%d," % (half.queue_offset or 0)]


def test_many_ops_are_read_beside_the_loop(
    heart: Harness, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not wait for all of them; outcomes told meanwhile wait until it is known what is open."""
    for number in range(12):
        half = prepare(heart, number, b"%d" % number)
        if number < 11:
            say(heart, outcome(half, COMMIT))
    for name in ("LOADED_MAX", "LOADED_BESIDE_MAX"):
        monkeypatch.setattr(f"hotfire.broker.outcomes.{name}", 3)
    again = killed(heart, make, "killed")
    assert not again.broker.transactions.outcomes.is_loaded
    say(again, outcome(half, COMMIT))
    assert b"11" not in visible(again)
    for _ in range(5):
        again.tick()
        work(again)
    assert again.broker.transactions.outcomes.is_loaded
    assert visible(again) == [b"%d" % number for number in range(12)]
    assert ask_all(again, COMMIT) == []


def test_without_an_index_what_is_open_is_still_asked_about(make: Make) -> None:
    """messageIndexEnable=false: outcomes and questions work as ever, over a restart too."""
    heart = make(message_index_enable=False)
    heart.create_topic("T")
    told, asked = prepare(heart, 1, b"told"), prepare(heart, 2, b"asked")
    reopen(heart)
    say(heart, outcome(told, COMMIT))
    assert ask_all(heart, COMMIT) == [asked.transaction_id]
    assert visible(heart) == [b"told", b"asked"]


def test_a_store_of_the_reference_is_gone_on_with(make: Make, tmp_path: Path) -> None:
    """Halves it left open are asked about under its own group; what it ended is not."""
    with tarfile.open(GOLDEN / "store" / "store.tar.xz") as archive:
        archive.extractall(tmp_path / "golden", filter="data")
    (root,) = [path.parent for path in (tmp_path / "golden").rglob("commitlog")]
    heart = make(
        root,
        now_ms=1_794_772_000_000,
        mapped_file_size_commit_log=next((root / "commitlog").iterdir()).stat().st_size,
        mapped_file_size_consume_queue=4000,
    )
    group = "PG_tx"
    heart.beat_producer("producer", group)
    records = [decode_record(heart.store.queries.record_now(at)) for at in half_places(heart)]  # type: ignore[arg-type]
    copies = {r.prepared_transaction_offset for r in all_of(heart, "tx")}
    outcomes = heart.broker.transactions.outcomes
    open_keys = {
        parse_properties(r.properties)["UNIQ_KEY"]
        for r in records
        if outcomes.is_open(r.queue_offset) and r.physical_offset not in copies
    }
    asked: set[str | None] = set()
    for _ in range(4):
        pass_time(heart, INTERVAL_MS, 1000)
        heart.beat_producer("producer", group)
        asked.update(question.msg_id for question in questions(heart.connection))
    assert asked == open_keys
    assert copies, "the golden store holds committed messages"


def half_places(heart: Harness) -> list[int]:
    queue = heart.store.find_queue(HALF, 0)
    assert queue is not None
    heart.store._queues[HALF, 0].show(0)
    return [entry[0] for i in range(queue.min, queue.max) if (entry := queue.entry(i)) is not None]


def all_of(heart: Harness, topic: str) -> list[halves.Record]:
    found = []
    for queue_id in heart.store.queue_ids(topic):
        offset = 0
        while True:
            read = heart.store.read(topic, queue_id, offset, count_max=32, bytes_max=1 << 20)
            if not read.pieces:
                break
            for at, _, _ in read.pieces:
                found.append(decode_record(heart.store.queries.record_now(at)))  # type: ignore[arg-type]
            offset = read.next_offset
    return found


def test_unknown_is_no_outcome_for_a_former_life_either(heart: Harness) -> None:
    """UNKNOWN over a restart leaves the half open."""
    half = prepare(heart, body=b"open")
    reopen(heart)
    say(heart, outcome(half, UNKNOWN))
    assert visible(heart) == []
    assert ask_all(heart, COMMIT) == [half.transaction_id]
    assert visible(heart) == [b"open"]


def test_hosts_of_both_families_are_written(make: Make) -> None:
    """An op of a broker that listens on IPv6 is a sound record."""
    op = halves.op(b"7,", 0, Host.parse("::1", 10911), 5)
    assert halves.ended_by(decode_record(halves.encode_record(op, append_crc=False))) == [7]

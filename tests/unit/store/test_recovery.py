"""What a start does with what it finds: lost queues made anew, damage refused, foreign files named."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import Record, SysFlag, decode_record, encode_record
from hotfire.store import deriving, recovery
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.reading import ReadStatus
from tests.unit.store.driven import Driven, message, tree

pytestmark = pytest.mark.core

FIRST = "00000000000000000000"


@pytest.fixture
def driven(in_memory: Path) -> Driven:
    """Records over three queues and several segments, all readable."""
    driven = Driven(in_memory / "store", segment_bytes=4096).open()
    for i in range(60):
        driven.send("orders" if i % 3 else "stock", i % 2, b"body %d" % i * 5, TAGS=f"t{i % 4}", KEYS=f"k{i}")
        if i % 5 == 0:
            driven.turn()
    driven.turn()
    return driven


# --- queues are derived ---


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/orders", "consumequeue/orders/1"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_queues_come_back_byte_for_byte(driven: Driven, in_memory: Path, lost: str, clean: bool) -> None:
    """All queues, those of one topic or a single one: what is missing is made anew from the log."""
    driven.tick(1000)
    if clean:
        driven.store.close()
    image = driven.crash_image(in_memory / "image")
    before = tree(image.root, below="consumequeue")
    shutil.rmtree(image.root / lost)
    with image:
        assert tree(image.root, below="consumequeue") == before
        image.check(driven.sent)
        assert image.send("orders", 1, b"next").queue_offset == count(driven, "orders", 1)
    if not clean:
        driven.store.close()


def test_queues_half_made_are_not_believed(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild cut off by a crash begins again at the next start."""
    driven.store.close()
    before = tree(driven.root, below="consumequeue")
    shutil.rmtree(driven.root / "consumequeue")
    put, left = deriving.derive, iter(range(25))

    def crash_half_way(*arguments: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        put(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(deriving, "derive", crash_half_way)
        patch.setattr(deriving.Deriving, "many", lambda *_: (0, 0, 0))
        half = driven.on(driven.root)
        with pytest.raises(KeyboardInterrupt):
            half.open()
    image = half.crash_image(in_memory / "image")
    assert tree(image.root, below="consumequeue") != before
    with image:
        assert tree(image.root, below="consumequeue") == before
        image.check(driven.sent)


def test_a_hole_left_by_a_cut_off_rebuild_is_filled(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages reach the disk in any order: a rebuild that was cut off is not believed, however it looks."""
    with Driven(in_memory / "store", queue_file_bytes=2000) as driven:
        for i in range(40):
            driven.send("t", 0, b"%d" % i)
        driven.turn()
    shutil.rmtree(driven.root / "consumequeue")
    half = driven.on(driven.root)
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_cut", lambda *_: 1 / 0)  # the rebuild is through, the start is not
        (driven.root / "abort").write_bytes(b"1")
        with pytest.raises(ZeroDivisionError):
            half.open()
    image = half.crash_image(in_memory / "image")
    file = image.root / "consumequeue" / "t" / "0" / FIRST
    entries = bytearray(file.read_bytes())
    entries[20:40] = bytes(20)
    file.write_bytes(entries)
    with image:
        image.check(driven.sent)


def test_a_queue_that_begins_behind_zero_keeps_its_entries(driven: Driven, in_memory: Path) -> None:
    """Older segments gone and the queues with them: the rest is there after this start and after the next."""
    driven.store.close()
    (driven.root / "commitlog" / FIRST).unlink()
    shutil.rmtree(driven.root / "consumequeue")
    image = driven.on(driven.root).open()
    for _ in range(2):
        for topic, queue_id in (("orders", 0), ("orders", 1), ("stock", 0), ("stock", 1)):
            kept = [
                s for s in driven.sent if (s.topic, s.queue_id) == (topic, queue_id) and s.physical >= 4096
            ]
            queue = image.store.find_queue(topic, queue_id)
            assert queue is not None
            assert (queue.min, queue.max) == (kept[0].queue_offset, kept[-1].queue_offset + 1)
            found = image.store.read(topic, queue_id, 0, count_max=32, bytes_max=1 << 20)
            assert (found.status, found.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, kept[0].queue_offset)
            records, following = [], kept[0].queue_offset
            while following < queue.max:
                got, following = image.pull(topic, queue_id, following)
                records += got
            assert [r.body for r in records] == [s.body for s in kept]
        image = image.reopened()
    image.store.close()


def test_half_transactions_get_no_entry(in_memory: Path) -> None:
    """Prepared and rolled-back records are in the log and in no queue, also when it is made anew."""
    with Driven(in_memory / "store") as driven:
        driven.send("t", 0, b"seen")
        for kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
            data = encode_at_end(driven, message("t", 0, b"unseen"), kind)
            driven.store.journal.append(data, None, 0, 0)
        driven.send("t", 0, b"seen too")
        driven.turn()
    shutil.rmtree(driven.root / "consumequeue")
    with driven.on(driven.root) as again:
        assert [r.body for r in again.pull_all("t", 0)] == [b"seen", b"seen too"]


# --- damage ---


def test_damage_below_the_durable_mark_is_passed_over(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault where the log was known to be on the disk: named, and only that record is lost."""
    driven.store.close()
    broken = driven.sent[30]
    start = broken.physical - broken.physical % 4096
    segment = driven.root / "commitlog" / f"{start:020d}"
    flip(segment, broken.physical - start + 90)
    shutil.rmtree(driven.root / "consumequeue")  # so that the log is read from its beginning
    before = tree(driven.root, below="commitlog")
    rest = [sent for sent in driven.sent if sent is not broken]
    for _ in range(2):  # and so it is the next time
        with driven.on(driven.root) as again:
            assert again.store.recovered.damage in ([(broken.physical, broken.end)], [])
            assert {(r.topic, r.queue_id, r.queue_offset) for r in all_records(again)} == {
                (sent.topic, sent.queue_id, sent.queue_offset) for sent in rest
            }
        assert tree(driven.root, below="commitlog") == before
    assert f"{segment} byte {broken.physical - start} " in caplog.text
    assert "checksum" in caplog.text


def all_records(driven: Driven) -> list[Record]:
    queues = {(sent.topic, sent.queue_id) for sent in driven.sent}
    return [record for topic, queue_id in sorted(queues) for record in driven.pull_all(topic, queue_id)]


def test_the_same_damage_above_the_mark_is_a_torn_tail(driven: Driven, in_memory: Path) -> None:
    """What was never called durable is cut, whatever it is."""
    image = driven.crash_image(in_memory / "image")
    image.forget_mark()
    broken = driven.sent[30]
    start = broken.physical - broken.physical % 4096
    flip(image.root / "commitlog" / f"{start:020d}", broken.physical - start + 90)
    with image:
        assert image.store.recovered.end == broken.physical
        image.check([sent for sent in driven.sent if sent.end <= broken.physical])
        assert not any(image.log_bytes()[broken.physical :])
    driven.store.close()


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "flipped", "the reference's"])
def test_without_a_sound_checkpoint_the_whole_log_is_read(driven: Driven, damage: str) -> None:
    """A checkpoint that cannot be believed costs time, not messages."""
    driven.store.close()
    file = driven.root / "checkpoint"
    if damage == "missing":
        file.unlink()
    elif damage == "flipped":
        flip(file, 72)
    else:
        file.write_bytes({"empty": b"", "short": file.read_bytes()[:80]}.get(damage, bytes(4096)))
    with driven.on(driven.root) as again:
        assert again.store.recovered.records == len(driven.sent)
        again.check(driven.sent)


def test_a_sound_checkpoint_spares_the_reading(driven: Driven, in_memory: Path) -> None:
    """After a crash only what came behind the checkpoint is read again."""
    driven.tick(1000)
    later = [driven.send("orders", 0, b"later %d" % i) for i in range(3)]
    driven.turn()
    with driven.crash_image(in_memory / "image") as image:
        assert image.store.was_unclean
        assert image.store.recovered.records == len(later)
        image.check(driven.sent)
    driven.store.close()
    with driven.on(driven.root) as again:
        assert not again.store.was_unclean
        assert again.store.recovered.records == 0
        again.check(driven.sent)


def test_store_time_never_goes_back(driven: Driven, in_memory: Path) -> None:
    """The clock set back, within a run, over a crash and over a restart: store times do not decrease."""
    driven.now_ms -= 3_600_000
    driven.send("stock", 0, b"an hour ago")
    driven.turn()
    image = driven.crash_image(in_memory / "image").open()
    image.now_ms -= 3_600_000
    image.send("stock", 0, b"two hours ago")
    image.turn()
    image = image.reopened()
    image.now_ms -= 3_600_000
    image.send("stock", 0, b"three hours ago")
    image.turn()
    log = image.log_bytes()
    times = [decode_record(log, sent.physical).store_timestamp for sent in image.sent]
    assert times == sorted(times)
    image.store.close()
    driven.store.close()


def test_checksums_may_be_switched(in_memory: Path) -> None:
    """Records written while the checksum over them was off are believed after it is on, and the reverse."""
    driven = Driven(in_memory / "store", append_crc=False).open()
    for append_crc in (False, True, False, True):
        for i in range(3):
            driven.send("t", 0, b"%d %d" % (append_crc, i))
        driven.turn()
        image = driven.crash_image(in_memory / f"image{len(driven.sent)}")
        driven.store.close()
        driven = Driven(image.root, append_crc=append_crc)
        driven.sent = image.sent
        driven.open()
        driven.check(driven.sent)
    driven.store.close()
    for lost in ("consumequeue", "checkpoint"):  # either makes the next start read all of the log
        shutil.move(driven.root / lost, in_memory / lost)
        with driven.on(driven.root) as again:
            assert again.store.recovered.records == len(driven.sent)
            again.check(driven.sent)


# --- what is not ours ---


def test_a_second_broker_is_refused(driven: Driven) -> None:
    """One directory has one owner; the second is told which directory and what to do."""
    code = (
        "import sys; from hotfire.store.store import Store; from hotfire.store.disk import Disk;"
        "from hotfire.store.config import StoreConfig; Store(Disk(sys.argv[1]), StoreConfig()).open()"
    )
    command = [sys.executable, "-c", code, str(driven.root)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"StoreError: store {driven.root} is in use by another broker: stop it" in second.stderr
    assert (driven.root / "lock").read_bytes() == b"lock"
    driven.store.close()
    with driven.on(driven.root) as again:  # the lock went with its owner
        again.check(driven.sent)


def test_another_segment_size_is_refused(driven: Driven) -> None:
    """A store made with other segments names file, both sizes and the setting; nothing changes."""
    driven.store.close()
    before = tree(driven.root)
    with pytest.raises(
        StoreCorrupt, match="has 4096 bytes, configured are 8192: set mappedFileSizeCommitLog"
    ):
        Driven(driven.root, segment_bytes=8192).open()
    assert tree(driven.root) == before


def test_another_queue_file_size_is_refused(driven: Driven) -> None:
    """The same for queue files, which would otherwise be read as other entries."""
    driven.store.close()
    before = tree(driven.root)
    with pytest.raises(
        StoreCorrupt, match="has 140 bytes, configured are 200: set mappedFileSizeConsumeQueue"
    ):
        Driven(driven.root, segment_bytes=4096, queue_file_bytes=200).open()
    assert tree(driven.root) == before


def test_a_missing_segment_is_refused(driven: Driven) -> None:
    """A hole in the log is named, not skipped."""
    driven.store.close()
    (driven.root / "commitlog" / f"{4096:020d}").unlink()
    with pytest.raises(StoreCorrupt, match=f"log segment {4096:020d} is missing before {8192:020d}"):
        driven.on(driven.root).open()


def test_the_last_segment_missing_is_damage(driven: Driven) -> None:
    """A log shorter than it was known to be durable is refused."""
    driven.store.close()
    for segment in sorted((driven.root / "commitlog").iterdir())[2:]:
        segment.unlink()
    with pytest.raises(StoreCorrupt, match="but was durable up to"):
        driven.on(driven.root).open()


def test_a_foreign_file_among_the_segments_is_named(driven: Driven) -> None:
    """What is not a segment is not guessed at."""
    driven.store.close()
    (driven.root / "commitlog" / "notes.txt").write_text("hello")
    with pytest.raises(StoreCorrupt, match=r"commitlog/notes\.txt is not a log segment: move it away"):
        driven.on(driven.root).open()


def test_a_segment_never_finished_is_removed(driven: Driven) -> None:
    """A crash while the next segment was being made leaves nothing that matters."""
    driven.store.close()
    leftover = driven.root / "commitlog" / f"{1 << 20:020d}.new"
    leftover.write_bytes(bytes(100))
    with driven.on(driven.root) as again:
        assert not leftover.exists()
        again.check(driven.sent)


def test_an_unknown_checkpoint_is_the_references() -> None:
    """The reference's checkpoint gives its times and no offsets; ours round-trips."""
    ours = Checkpoint(1, 2, 3, 4, 5, derived=6, durable=7, entries=8, summed_from=9, is_ours=True)
    data = ours.encode()
    assert len(data) == 512
    assert Checkpoint.decode(data) == ours
    reference = data[:40] + bytes(472)
    assert Checkpoint.decode(reference) == Checkpoint(1, 2, 3, 4, 5)


def test_marks_older_than_the_references_last_write_say_nothing() -> None:
    """The reference's broker changes its own times and keeps ours as they are: then ours are not believed."""
    data = bytearray(Checkpoint(1, 2, 3, derived=6, durable=7, entries=8, summed_from=0).encode())
    data[7] += 1
    assert Checkpoint.decode(bytes(data)) == Checkpoint(2, 2, 3)


def test_without_marks_a_fault_before_good_records_is_damage(driven: Driven) -> None:
    """No checkpoint: what lies behind a fault may have been acknowledged, so it is kept and served."""
    for _ in range(60):
        driven.send("t", 0, bytes(400))
    driven.turn()
    driven.store.close()
    (driven.root / "checkpoint").unlink()
    first = driven.root / "commitlog" / f"{0:020d}"
    flip(first, driven.sent[3].physical + 100)
    before = {path: path.read_bytes() for path in (driven.root / "commitlog").iterdir()}
    with driven.on(driven.root) as again:
        assert again.store.recovered.damage == [(driven.sent[3].physical, driven.sent[4].physical)]
        assert len(all_records(again)) == len(driven.sent) - 1
    assert {path: path.read_bytes() for path in (driven.root / "commitlog").iterdir()} == before


def test_abort_says_whether_it_was_closed(driven: Driven) -> None:
    """`abort` with our process id is there while the store is open and gone after a clean close."""
    abort = driven.root / "abort"
    assert abort.read_text() == str(os.getpid())
    driven.store.close()
    assert not abort.exists()


# --- helpers ---


def count(driven: Driven, topic: str, queue_id: int) -> int:
    return sum((sent.topic, sent.queue_id) == (topic, queue_id) for sent in driven.sent)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x55
    file.write_bytes(data)


def encode_at_end(driven: Driven, record: Record, kind: int) -> bytes:
    placed = replace(record, sys_flag=kind, physical_offset=driven.store.end)
    data = encode_record(placed, append_crc=True)
    assert driven.store.journal.reserve(len(data)) == driven.store.end
    return data

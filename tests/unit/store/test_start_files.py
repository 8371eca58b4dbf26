"""Files that stand beside the log: the key index at its real size, and the checkpoint a start goes by."""

import re
import struct
from datetime import datetime
from pathlib import Path

import pytest

from hotfire.protocol.record import key_hash
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.dump import index_rows
from hotfire.store.layout import look
from tests.unit.store.driven import NOW_MS, Driven

DEFAULT = StoreConfig()
HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">Iqii")


@pytest.mark.promise(27)
def test_an_index_file_is_420_000_040_bytes_named_by_its_time(tmp_path: Path) -> None:
    """40 bytes of header, 5 000 000 slots of 4, 20 000 000 entries of 20; yyyyMMddHHmmssSSS; the header's six
    fields are where they belong, and so are slot and entry of a key."""
    real = {"index_slots": DEFAULT.index_slots, "index_entries": DEFAULT.index_entries}
    with Driven(tmp_path / "store", **real) as driven:
        driven.now_ms += 7
        first = driven.send("t", 0, b"one", KEYS="a")
        driven.turn()
        driven.now_ms += 5000
        last = driven.send("t", 0, b"two", KEYS="b c")
        driven.turn()
        (file,) = (tmp_path / "store" / "index").iterdir()
        assert file.stat().st_size == 40 + 5_000_000 * 4 + 20_000_000 * 20 == 420_000_040
        assert file.stat().st_blocks * 512 < 40 << 20, "room is taken as it is needed"
        assert re.fullmatch(r"\d{17}", file.name)
        named = datetime.strptime(file.name[:14], "%Y%m%d%H%M%S").astimezone()
        assert (int(named.timestamp()) * 1000, file.name[14:]) == (NOW_MS, "007")
        with file.open("rb") as opened:
            header = HEADER.unpack(opened.read(40))
            assert header == (NOW_MS + 7, NOW_MS + 5007, first.physical, last.physical, 3, 4)
            hash_ = key_hash("t", "b")
            opened.seek(40 + hash_ % 5_000_000 * 4)
            assert int.from_bytes(opened.read(4)) == 2
            opened.seek(40 + 5_000_000 * 4 + 2 * 20)
            assert ENTRY.unpack(opened.read(20)) == (hash_, last.physical, 5, 0)


@pytest.mark.promise(27, 28)
def test_the_headers_fields_can_be_read(tmp_path: Path) -> None:
    """`store dump` names the six, with the numbers of what was stored, in every file."""
    with Driven(tmp_path / "store", index_slots=16, index_entries=5) as driven:
        for n in range(10):
            driven.send("t", 0, b"", KEYS=f"k{n}")
            driven.turn()
            driven.now_ms += 1000
    rows = [row for row in index_rows(look(Disk(tmp_path / "store"))) if "indexCount" in row]
    assert [row["indexCount"] for row in rows] == [5, 5, 3]
    for number, row in enumerate(rows):
        mine = driven.sent[number * 4 : number * 4 + 4]
        assert (row["beginPhyOffset"], row["endPhyOffset"]) == (mine[0].physical, mine[-1].physical)
        begin = NOW_MS + number * 4000
        assert (row["beginTimestamp"], row["endTimestamp"]) == (begin, begin + (len(mine) - 1) * 1000)
        slots = {key_hash("t", f"k{number * 4 + n}") % 16 for n in range(len(mine))}
        assert row["hashSlotCount"] == len(slots)


@pytest.mark.promise(35)
def test_an_unclean_start_reads_the_log_from_the_checkpoint_on(tmp_path: Path) -> None:
    """4096 bytes; the first 24 are the store times of what was flushed of log, queues and index. After a
    crash only what came later is read, though it fills several segments before and behind."""
    driven = Driven(tmp_path / "store", segment_bytes=4096).open()
    checkpoint = tmp_path / "store" / "checkpoint"
    for n in range(40):
        driven.send("t", n % 2, bytes(300), KEYS=f"k{n}")
        driven.turn()
        driven.now_ms += 100
    flushed_ms = driven.now_ms - 100
    driven.tick(1000)
    before = checkpoint.read_bytes()
    assert len(before) == 4096
    assert struct.unpack_from(">qqq", before) == (flushed_ms, flushed_ms, flushed_ms)
    later = []
    for n in range(20):
        later.append(driven.send("t", n % 2, bytes(300)))
        driven.turn()
        driven.now_ms += 10
    assert struct.unpack_from(">qqq", checkpoint.read_bytes()) == (flushed_ms,) * 3, "flushed too early"
    image = driven.crash_image(tmp_path / "image")
    with image:
        assert image.store.was_unclean
        assert image.store.recovered.records == len(later)
        image.check(driven.sent)
    assert later[0].physical // 4096 > 1
    assert later[-1].physical // 4096 > later[0].physical // 4096
    flushed_last_ms = driven.now_ms - 10
    driven.tick(1000)
    assert struct.unpack_from(">qqq", checkpoint.read_bytes()) == (flushed_last_ms,) * 3
    driven.store.close()
    assert struct.unpack_from(">qqq", (tmp_path / "image" / "checkpoint").read_bytes())[0] == flushed_last_ms

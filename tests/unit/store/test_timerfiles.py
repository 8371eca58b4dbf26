"""The timers' files: layout as the reference's, chains, and agreement after any kind of end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hotfire.store import timerwheel
from hotfire.store.disk import Disk
from hotfire.store.timercheck import FILE as CHECK_FILE
from hotfire.store.timercheck import TimerCheck
from hotfire.store.timerfiles import Resumed, TimerFiles
from hotfire.store.timerlog import BLANK_MAGIC, DELETE, NONE, ROLL, UNIT_BYTES, Unit
from hotfire.store.timerwheel import TimerWheel

FILE_BYTES = 4096
PER_FILE = (FILE_BYTES - 16) // UNIT_BYTES
START_S = 1_700_000_000


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerwheel, "SLOTS", 1000)


def unit(number: int, *, second: int = 5, magic: int = 1) -> Unit:
    time_ms = (START_S + second) * 1000 + number % 1000
    return Unit(NONE, magic, START_S * 1000, time_ms, number * 100, 100, 77)


def opened(root: Path, *, was_unclean: bool = False) -> tuple[TimerFiles, Resumed]:
    files = TimerFiles(Disk(root), FILE_BYTES)
    return files, files.open(was_unclean=was_unclean)


def chain(files: TimerFiles, second: int = 5) -> list[int]:
    """Numbers of the units in a slot, oldest first."""
    head = files.wheel.get(START_S + second)
    if head is None:
        return []
    return [found.physical // 100 for found in files.log.chain(START_S + second, head.last)][::-1]


def check(files: TimerFiles, count: int) -> TimerCheck:
    return TimerCheck(START_S * 1000, files.log.end, count, count, 0, 1, 1, is_ours=True)


def test_bytes_are_the_references(tmp_path: Path) -> None:
    """Units of 52 bytes and slots of 32, where and as the reference puts them."""
    files, _ = opened(tmp_path)
    first, second = unit(3), unit(4, magic=1 | ROLL)
    files.add([first, second])
    data = (tmp_path / "timerlog" / "00000000000000000000").read_bytes()
    assert len(data) == FILE_BYTES
    assert struct.unpack(">iqiqiqiiq", data[:52]) == (52, -1, 1, START_S * 1000, 5003, 300, 100, 77, 0)
    assert struct.unpack(">iqiqiqiiq", data[52:104]) == (52, 0, 3, START_S * 1000, 5004, 400, 100, 77, 0)
    wheel = (tmp_path / "timerwheel").read_bytes()
    at = (START_S + 5) % 1000 * 32
    assert (len(wheel), struct.unpack(">qqqii", wheel[at : at + 32])) == (32_000, (START_S + 5, 0, 52, 2, 0))
    files.flush(check(files, 2))
    kept = (tmp_path / CHECK_FILE).read_bytes()
    assert (len(kept), struct.unpack(">7q", kept[:56])) == (4096, (START_S * 1000, 104, 2, 2, 0, 1, 1))
    files.close()


def test_a_deletion_counts_backwards(tmp_path: Path) -> None:
    """As the reference counts: a slot's number is of messages that will come."""
    files, _ = opened(tmp_path)
    files.add([unit(1), unit(2), unit(3, magic=1 | DELETE)])
    head = files.wheel.get(START_S + 5)
    assert head is not None
    assert head.count == 1
    files.close()


def test_files_end_in_a_blank_and_chains_cross_them(tmp_path: Path) -> None:
    """A unit that has no room goes to the next file; what is left says so."""
    files, _ = opened(tmp_path)
    numbers = list(range(PER_FILE * 2 + 3))
    for begin in range(0, len(numbers), 10):
        files.add([unit(number) for number in numbers[begin : begin + 10]])
    names = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert names == [f"{n * FILE_BYTES:020d}" for n in range(3)]
    data = (tmp_path / "timerlog" / names[0]).read_bytes()[PER_FILE * UNIT_BYTES :]
    assert struct.unpack(">iqi", data[:16]) == (len(data), 0, BLANK_MAGIC)
    assert chain(files) == numbers
    assert [found.physical // 100 for _, found in files.log.units(0, files.log.end)] == numbers
    files.close()


@pytest.mark.parametrize("kept", [0, 1, PER_FILE, PER_FILE + 5])
def test_what_the_checkpoint_does_not_know_is_forgotten(tmp_path: Path, kept: int) -> None:
    """After a crash: slots end where the checkpoint does, and zeros follow."""
    files, _ = opened(tmp_path)
    for number in range(kept):
        files.add([unit(number, second=5 + number % 3)])
    files.flush(check(files, kept))
    end = files.log.end
    for number in range(kept, kept + 7):
        files.add([unit(number, second=5 + number % 4)])
    files.close()
    again, resumed = opened(tmp_path, was_unclean=True)
    assert (again.log.end, resumed.check.queue_offset) == (end, kept)
    for second in range(4):
        assert chain(again, 5 + second) == [n for n in range(kept) if n % 3 == second and second < 3]
    assert again.log.unit(end) is None
    again.close()


@pytest.mark.parametrize("gone", ["timerwheel", "stale wheel", "our mark"])
def test_the_wheel_is_made_of_the_timer_log(tmp_path: Path, gone: str) -> None:
    """Without it, or with the one of another broker that lags behind its log: every unit has its slot."""
    files, _ = opened(tmp_path)
    files.add([unit(0), unit(1)])
    old = (tmp_path / "timerwheel").read_bytes()
    files.add([unit(2), unit(3, second=9)])
    files.flush(check(files, 4))
    files.close()
    if gone == "timerwheel":
        (tmp_path / "timerwheel").unlink()
    else:  # as the reference's broker leaves it: no mark of ours, its log ahead of what it says
        theirs = replace(TimerCheck.decode((tmp_path / CHECK_FILE).read_bytes()) or TimerCheck(), log_end=52)
        (tmp_path / CHECK_FILE).write_bytes(theirs.body().ljust(4096, b"\0"))
        if gone == "stale wheel":
            (tmp_path / "timerwheel").write_bytes(old)
    again, resumed = opened(tmp_path)
    assert not resumed.is_lost
    assert (chain(again), chain(again, 9)) == ([0, 1, 2], [3])
    assert again.log.end == 4 * UNIT_BYTES
    if gone != "timerwheel":
        assert resumed.last_unit is not None
        assert resumed.last_unit.physical == 300
    again.close()


@pytest.mark.parametrize("size", [0, 52])
def test_a_file_that_was_being_made_is_made_anew(tmp_path: Path, size: int) -> None:
    """A crash came between its name and its size: its units are found again all the same."""
    files, _ = opened(tmp_path)
    files.add([unit(0)])
    (tmp_path / "timerlog" / f"{FILE_BYTES:020d}").write_bytes(bytes(size))
    files.add([unit(number) for number in range(1, PER_FILE + 5)])
    files.flush(check(files, PER_FILE + 5))
    files.close()
    again, resumed = opened(tmp_path)
    assert not resumed.is_lost
    assert chain(again) == list(range(PER_FILE + 5))
    again.close()


class Killed(BaseException):
    """Nothing is done any more by this process."""


def killed_start(root: Path, stores: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a start that is killed after so many stores into the wheel came so far."""
    left = stores

    def struck(inner: Callable[..., None]) -> Callable[..., None]:
        def outer(wheel: TimerWheel, value: object) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            inner(wheel, value)

        return outer

    with monkeypatch.context() as patch:
        for name in ("put", "clear"):
            patch.setattr(TimerWheel, name, struck(getattr(TimerWheel, name)))
        files = TimerFiles(Disk(root), FILE_BYTES)
        try:
            files.open(was_unclean=True)
        except Killed:
            return True
        finally:
            files.close()
    return False


@pytest.mark.parametrize("stores", range(9))
@pytest.mark.parametrize("gone", ["checkpoint behind", "timerwheel", "stale wheel"])
def test_a_start_that_is_killed_leaves_all_to_the_next(
    tmp_path: Path, gone: str, stores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between any two stores into the wheel, once and again: all units the log holds have slots."""
    files, _ = opened(tmp_path)
    files.add([unit(number, second=5 + number % 2) for number in range(6)])
    old = (tmp_path / "timerwheel").read_bytes()
    if gone != "checkpoint behind":
        files.add([unit(6), unit(7, second=6)])
    files.flush(check(files, 8))
    files.add([unit(8), unit(9, second=6), unit(10, second=7)])
    files.close()
    wanted = [[0, 2, 4], [1, 3, 5], []]
    if gone != "checkpoint behind":
        wanted = [[0, 2, 4, 6], [1, 3, 5, 7], []]
    if gone == "timerwheel":
        (tmp_path / "timerwheel").unlink()
    elif gone == "stale wheel":
        theirs = TimerCheck.decode((tmp_path / CHECK_FILE).read_bytes()) or TimerCheck()
        (tmp_path / CHECK_FILE).write_bytes(theirs.body().ljust(4096, b"\0"))
        (tmp_path / "timerwheel").write_bytes(old)
        wanted = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9], [10]]
    while killed_start(tmp_path, stores, monkeypatch) and stores:
        stores -= 1
    again, resumed = opened(tmp_path, was_unclean=True)
    assert not resumed.is_lost
    assert [chain(again, second) for second in (5, 6, 7)] == wanted
    assert [path.name for path in tmp_path.glob("timerwheel*")] == ["timerwheel"]
    again.close()


@pytest.mark.parametrize("torn", range(4))
def test_a_slot_whose_words_are_mixed_leads_nowhere_wrong(tmp_path: Path, torn: int) -> None:
    """Any word of a slot may be an old one after a power cut: no other slot's messages are taken for its."""
    files, _ = opened(tmp_path)
    files.add([unit(0)])
    files.flush(check(files, 1))
    files.add([unit(1, second=9)])
    files.close()
    data = bytearray((tmp_path / "timerwheel").read_bytes())
    at = (START_S + 9) % 1000 * 32 + torn * 8
    data[at : at + 8] = bytes(8)
    (tmp_path / "timerwheel").write_bytes(data)
    again, _ = opened(tmp_path, was_unclean=True)
    assert (chain(again), chain(again, 9)) == ([0], [])
    again.add([unit(1, second=9)])
    assert chain(again, 9) == [1]
    again.close()


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_a_timer_log_that_is_gone_is_told(tmp_path: Path, whose: str) -> None:
    """Then everything is to be taken up again, and nothing of the old wheel is believed."""
    files, _ = opened(tmp_path)
    files.add([unit(0)])
    files.flush(check(files, 1))
    files.close()
    if whose != "ours":
        theirs = replace(TimerCheck.decode((tmp_path / CHECK_FILE).read_bytes()) or TimerCheck(), counter=9)
        (tmp_path / CHECK_FILE).write_bytes(theirs.body().ljust(4096, b"\0"))
    (tmp_path / "timerlog" / "00000000000000000000").unlink()
    again, resumed = opened(tmp_path)
    assert (resumed.is_lost, chain(again), again.log.end) == (True, [], 0)
    again.close()


def test_files_whose_messages_have_left_are_dropped(tmp_path: Path) -> None:
    """The oldest go when the last of their messages is gone from the log; never the newest."""
    files, _ = opened(tmp_path)
    for number in range(PER_FILE * 3):
        files.add([unit(number)])
    files.log.drop_below((PER_FILE - 1) * 100)
    assert len(list((tmp_path / "timerlog").iterdir())) == 3
    files.log.drop_below(PER_FILE * 100)
    assert len(list((tmp_path / "timerlog").iterdir())) == 2
    files.log.drop_below(1 << 40)
    assert len(list((tmp_path / "timerlog").iterdir())) == 1
    files.close()


def test_checkpoints_of_others_are_told_from_ours() -> None:
    """One changed field, and our mark no longer speaks for it."""
    ours = TimerCheck(1, 2, 3, 4, 5, 6, 7).encode()
    found = TimerCheck.decode(ours)
    assert found is not None
    assert found.is_ours
    changed = TimerCheck.decode(ours[:8] + b"\1" + ours[9:])
    assert changed is None or not changed.is_ours
    assert TimerCheck.decode(bytes(4096)) is None
    assert TimerCheck.decode(b"short") is None

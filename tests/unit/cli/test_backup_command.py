"""hotfire store snapshot and restore as a person meets them: one line for each outcome."""

from pathlib import Path

import pytest

from hotfire.cli import main
from tests.unit.store.driven import SMALL, Driven

CONF = {
    "mappedFileSizeCommitLog": SMALL["segment_bytes"],
    "mappedFileSizeConsumeQueue": SMALL["queue_file_bytes"],
    "maxHashSlotNum": SMALL["index_slots"],
    "maxIndexNum": SMALL["index_entries"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Driven(tmp_path / "store") as driven:
        for number in range(20):
            driven.send(f"t{number % 2}", number % 4, b"m%d" % number)
        driven.turn()
    (tmp_path / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in CONF.items()))
    return tmp_path


def test_there_and_back(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The snapshot says where the log ends, the restore what the store holds."""
    assert main(["store", "snapshot", str(root / "store"), str(root / "taken")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"snapshot {root}/taken: log 0 to ")
    assert said.out.endswith(", 0 segments linked, 1 copied\n")
    conf = str(root / "broker.conf")
    assert main(["store", "restore", str(root / "taken"), str(root / "again"), "-c", conf]) == 0
    said = capsys.readouterr()
    first, *topics = said.out.splitlines()
    assert first.startswith(f"restored {root}/again: log 0 to ")
    assert first.endswith(", 20 records, all sound")
    assert topics == ["t0  queues 2  messages 10", "t1  queues 2  messages 10"]
    assert said.err == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["snapshot", "store", "store"], "exists: choose another name"),
        (["snapshot", "nowhere", "taken"], "nowhere/commitlog has no log segment"),
        (["restore", "store", "again"], "store has no snapshot.json"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    action, *names = words
    assert main(["store", action, *(str(root / name) for name in names)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hotfire store: ")
    assert complaint in said.err
    assert len(said.err.splitlines()) == 1
    assert sorted(path.name for path in root.iterdir()) == ["broker.conf", "store"]

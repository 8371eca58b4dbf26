"""Recovery's two ways, record by record and many at a time, leave the same store."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hotfire import core
from hotfire.protocol.record import SysFlag, encode_properties
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.deriving import Deriving
from tests.unit.store.driven import Driven, message, tree

pytestmark = [pytest.mark.core, pytest.mark.skipif(not core.COMPILED, reason="compares the compiled core")]

TOPICS = ["orders", "stock", "batches", "SCHEDULE_TOPIC_XXXX", "\u00fc"]
FLAGS = [
    0,
    0,
    0,
    SysFlag.MULTI_TAGS,
    SysFlag.TRANSACTION_PREPARED,
    SysFlag.TRANSACTION_COMMIT,
    SysFlag.TRANSACTION_ROLLBACK,
    SysFlag.INNER_BATCH,
]
Sends = list[tuple[int, int, int, int, int, str, bool]]

sends = st.lists(
    st.tuples(
        st.integers(0, len(TOPICS) - 1),
        st.integers(0, 2),
        st.sampled_from(FLAGS),
        st.integers(0, 300),
        st.integers(0, 4000),
        st.sampled_from(["", "a", "a b  c", " ".join(f"k{i}" for i in range(80))]),
        st.booleans(),
    ),
    max_size=60,
)


def build(root: Path, wanted: Sends, *, queue_ext: bool, index: bool) -> Driven:
    """A store of these records, closed; nothing of what was derived is to be believed."""
    driven = Driven(
        root,
        segment_bytes=4096,
        queue_ext=queue_ext,
        queue_ext_file_bytes=4096,  # else 48 MiB for each queue, copied and compared each time
        index_enable=index,
        index_entries=120,
    )
    (root / "batchconsumequeue" / "batches").mkdir(parents=True)
    with driven:
        for number, (topic, queue_id, flag, body, later_ms, keys, tagged) in enumerate(wanted):
            properties = {"UNIQ_KEY": f"u{number}", "KEYS": keys, "TAGS": f"t{number % 5}" if tagged else ""}
            stored = encode_properties({name: value for name, value in properties.items() if value})
            record = replace(message(TOPICS[topic], queue_id, bytes(body), stored), sys_flag=flag)
            driven.now_ms += later_ms
            driven.store.append(record, driven.now_ms)
            if number % 7 == 0:
                driven.turn()
        driven.turn()
    return driven


def disbelieve(root: Path, damage: tuple[int, int] | None) -> None:
    """As after a crash, everything to be read; at `damage` one byte of the log is another."""
    (root / "abort").write_bytes(b"1")
    data = (root / "checkpoint").read_bytes()
    checkpoint = replace(Checkpoint.decode(data), derived=0)
    (root / "checkpoint").write_bytes(checkpoint.encode() + data[512:])
    if damage is not None and checkpoint.durable:
        segment, at = divmod(damage[0] % checkpoint.durable, 4096)
        with (root / "commitlog" / f"{segment * 4096:020d}").open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ damage[1]]))


def outcome(driven: Driven) -> tuple[object, ...]:
    """What a start found and left behind."""
    with driven:
        recovered = driven.store.recovered
        queues = {
            key: (q.entries.min, q.entries.max, q.entries.next) for key, q in driven.store._queues.items()
        }
        files = {name: data for name, data in tree(driven.root).items() if name not in ("abort", "lock")}
        return recovered, queues, files


@given(
    wanted=sends,
    queue_ext=st.booleans(),
    index=st.booleans(),
    damage=st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)),
    lost=st.sampled_from(["", "index", "consumequeue", "consumequeue/orders"]),
)
@example(wanted=[(0, 0, 0, 20, 1, "a", True)] * 50, queue_ext=False, index=True, damage=None, lost="")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_leave_the_same_store(
    in_memory: Path,
    wanted: Sends,
    queue_ext: bool,
    index: bool,
    damage: tuple[int, int] | None,
    lost: str,
) -> None:
    """Queues, index, log and checkpoint are byte for byte the same, whichever way they were made."""
    with tempfile.TemporaryDirectory(dir=in_memory) as temporary:
        driven = build(Path(temporary) / "store", wanted, queue_ext=queue_ext, index=index)
        disbelieve(driven.root, damage)
        if lost:
            shutil.rmtree(driven.root / lost, ignore_errors=True)
        fast = outcome(driven.crash_image(Path(temporary) / "many"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Deriving, "many", none_at_once)
            assert outcome(driven.crash_image(Path(temporary) / "one")) == fast


def none_at_once(
    _: Deriving, view: memoryview, base: int, last: int, summed_from: int
) -> tuple[int, int, int]:
    return 0, 0, last


def test_ordinary_records_are_done_many_at_a_time(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store of ordinary messages nearly all records are derived without a call each."""
    driven = build(in_memory / "store", [(0, 0, 0, 20, 1, "a", True)] * 400, queue_ext=False, index=True)
    disbelieve(driven.root, None)
    counted, one = [], Deriving.one

    def count(self: Deriving, *arguments: object) -> None:
        counted.append(arguments)
        one(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Deriving, "one", count)
    image = driven.crash_image(in_memory / "image")
    with image:
        assert image.store.recovered.records == 400
    assert len(counted) < 100  # the ends of files seven entries long, and their first records

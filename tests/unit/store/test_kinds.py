"""Stores of other kinds are refused by name and left as they are."""

from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.errors import ConfigError, StoreError
from hotfire.settings import from_properties
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.store import Store
from tests.unit.store.driven import Driven, tree
from tests.wire.golden import unpack_store

FOREIGN = [
    ("consumequeue/CURRENT", "queues in RocksDB"),
    ("config/topics/CURRENT", "topics, groups or offsets in RocksDB"),
    ("config/subscriptionGroups/CURRENT", "topics, groups or offsets in RocksDB"),
    ("config/consumerOffsets/CURRENT", "topics, groups or offsets in RocksDB"),
    ("config/rdb/CURRENT", "topics, groups or offsets in RocksDB"),
    ("dledger-n0/data/00000000000000000000", "DLedger's layout"),
]
FINE = [
    "rocksdbstore/CURRENT",
    "rocksdbstore/000004.log",
    "kvStore/CURRENT",
    "timerwheel",
    "timerlog/00000000000000000000",
    "compaction/position-checkpoint",
    "batchconsumequeue/t/0/00000000000000000000",
    "config/users/CURRENT",
    "config/timercheck",
    "epochFileCheckpoint",
    "brokerIdentity",
    "consumequeue/stray",
    "dledger-notes",
]


def lay(root: Path, name: str, data: bytes = b"x") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


@pytest.fixture
def filled(in_memory: Path) -> Driven:
    with Driven(in_memory / "store") as driven:
        for number in range(20):
            driven.send("t", 0, b"m%d" % number)
        driven.turn()
    return driven


@pytest.mark.parametrize(("name", "words"), FOREIGN)
@pytest.mark.parametrize("is_new", [True, False])
def test_foreign_stores_are_refused(
    filled: Driven, in_memory: Path, name: str, words: str, is_new: bool
) -> None:
    """Each kind by its mark, with or without a log of ours beside it; not one file is made or changed."""
    root = in_memory / "new" if is_new else filled.root
    lay(root, name)
    before = tree(root)
    with pytest.raises(StoreError, match=words) as refused:
        filled.on(root).open()
    assert str(root) in str(refused.value)
    assert "nothing was changed" in str(refused.value)
    assert tree(root) == before


def test_what_lies_beside_a_store_is_left_alone(filled: Driven) -> None:
    """Files of Apache's other services do not keep the store from opening and stay as they are."""
    for name in FINE:
        lay(filled.root, name, name.encode())
    with filled.on(filled.root) as again:
        again.check(again.sent)
    for name in FINE:
        assert (filled.root / name).read_bytes() == name.encode()


def test_a_store_of_a_later_version_is_refused(filled: Driven) -> None:
    """Its checkpoint is not taken for Apache's."""
    path = filled.root / "checkpoint"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"HOTFIRE1", b"HOTFIRE2"))
    before = tree(filled.root)
    with pytest.raises(StoreError, match=r"later Hotfire.*HOTFIRE2.*HOTFIRE1"):
        filled.on(filled.root).open()
    assert tree(filled.root) == before


def test_queues_without_a_log_are_refused(in_memory: Path) -> None:
    """A store of the reference whose log was kept in another directory is not opened as an empty one."""
    unpack_store("store", in_memory)
    root = in_memory / "store"
    (root / "commitlog").rename(in_memory / "elsewhere")
    before = tree(root)
    config = StoreConfig(segment_bytes=262144, queue_file_bytes=4000, index_slots=500, index_entries=1000)
    with pytest.raises(StoreError, match=r"has queues \(consumequeue/.*and no log.*storePathCommitLog"):
        Store(Disk(root), config).open()
    assert tree(root) == before


@pytest.mark.parametrize("missing", [1, 2])
def test_a_log_that_ends_before_its_queues_is_refused(in_memory: Path, missing: int) -> None:
    """The reference's newest segments lie in another directory: its store is not begun anew before them."""
    for path in unpack_store("store", in_memory)[-missing:]:
        path.unlink()
    root = in_memory / "store"
    config = StoreConfig(segment_bytes=262144, queue_file_bytes=4000, index_slots=500, index_entries=1000)
    with pytest.raises(StoreError, match=r"goes on to a record at \d+: segments are missing"):
        Store(Disk(root), config).open()


def test_the_log_may_be_a_link_to_another_directory(filled: Driven, in_memory: Path) -> None:
    """As the error says it may: everything is found, appended to and found again."""
    (filled.root / "commitlog").rename(in_memory / "elsewhere")
    (filled.root / "commitlog").symlink_to(in_memory / "elsewhere")
    again = filled.on(filled.root)
    for _ in range(2):
        with again:
            for number in range(100):
                again.send("t", 0, b"more%d" % number)
            again.turn()
            again.check(again.sent)
        again = again.on(again.root)
    assert len(list((in_memory / "elsewhere").iterdir())) > 3


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("storeType", "defaultRocksDB", "storeType=defaultRocksDB: queues are kept in files only"),
        ("enableDLegerCommitLog", "true", "DLedger is not served"),
        ("storePathDLedgerCommitLog", "/a,/b", "DLedger is not served"),
        ("storePathCommitLog", "/data1/commitlog,/data2/commitlog", "log in several directories"),
        ("readOnlyCommitLogStorePaths", "/old", "log in several directories"),
        ("storePathCommitLog", "/data1/commitlog", "looked for in /store/commitlog only"),
    ],
)
def test_settings_of_other_kinds_are_refused(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_properties(BrokerConfig, {"storePathRootDir": "/store", key: value})


@pytest.mark.parametrize(
    "properties",
    [
        {"storeType": "default", "enableDLegerCommitLog": "false"},
        {"storePathRootDir": "/store", "storePathCommitLog": "/store/commitlog"},
        {"storePathRootDir": "/store/", "storePathCommitLog": "/store/commitlog/"},
        {"storePathRootDir": "~/store", "storePathCommitLog": "~/store/commitlog"},
    ],
)
def test_settings_that_say_what_is_so_anyway_are_taken(properties: dict[str, str]) -> None:
    assert from_properties(BrokerConfig, properties)[1] == ()

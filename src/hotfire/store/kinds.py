"""Store directories of other kinds, told by what lies in them and refused by name; nothing is touched.

Apache's broker can keep the same things in other places. Each is recognised by a file that only it makes:

    consumequeue/CURRENT      the queues are in RocksDB (storeType=defaultRocksDB, or written twice)
    config/<table>/CURRENT    tables are in RocksDB: topics, subscriptionGroups, consumerOffsets; rdb for all
    dledger-<id>/             the log is DLedger's (enableDLegerCommitLog=true), in a layout of its own
    consumequeue without log  the log is elsewhere (storePathCommitLog), or part of it (several directories)
    checkpoint "HOTFIREn"     written by a later Hotfire, whose marks this one cannot read

What is beside the log and fine is left alone: `rocksdbstore`, which Apache's broker always makes, `kvStore`,
timer files, `compaction`, `batchconsumequeue`, the epoch file.
"""

from __future__ import annotations

from hotfire.errors import StoreError
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import MAGIC, MAGIC_AT, Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk
from hotfire.store.queuefloor import last_below
from hotfire.store.scan import NEVER
from hotfire.store.tables import ROOT as TABLE_ROOT

ABORT_FILE = "abort"
SNAPSHOT_FILE = "snapshot.json"
ROCKSDB_MARK = "CURRENT"
ROCKSDB_TABLES = ("topics", "subscriptionGroups", "consumerOffsets", "rdb")
DLEDGER_PREFIX = "dledger-"
OURS = b"HOTFIRE"


def refuse_foreign(disk: Disk) -> None:
    """Raise StoreError when the directory keeps its log, queues or tables in a way we cannot read."""
    for look in (
        _snapshot,
        _rocksdb_queues,
        _rocksdb_tables,
        _dledger,
        _later_hotfire,
        _log_elsewhere,
        _log_in_part,
    ):
        reason = look(disk)
        if reason is not None:
            raise StoreError(f"store {disk.root} {reason}; nothing was changed")


def refuse_unreadable(disk: Disk) -> None:
    """Raise StoreError when not even the log can be read; queues and tables may be wherever they are."""
    for look in (_snapshot, _dledger, _later_hotfire):
        reason = look(disk)
        if reason is not None:
            raise StoreError(f"store {disk.root} {reason}; nothing was changed")


def has_foreign_queues(disk: Disk) -> bool:
    """Whether the queues are kept in a way we cannot read."""
    return _rocksdb_queues(disk) is not None


def refuse_snapshot(disk: Disk) -> None:
    reason = _snapshot(disk)
    if reason is not None:
        raise StoreError(f"{disk.root} {reason}; nothing was changed")


def _snapshot(disk: Disk) -> str | None:
    if not disk.exists(SNAPSHOT_FILE):
        return None
    return "is a snapshot: make a store of it with `hotfire store restore` first, so that it stays as it is"


def _rocksdb_queues(disk: Disk) -> str | None:
    if not disk.exists(f"{QUEUE_ROOT}/{ROCKSDB_MARK}"):
        return None
    return (
        f"keeps its queues in RocksDB ({QUEUE_ROOT}/{ROCKSDB_MARK}; storeType=defaultRocksDB), which is not "
        "read here: export topics, groups and offsets to config/*.json with mqadmin rocksDBConfigToJson, "
        f"then move {QUEUE_ROOT} away to have the queues made anew from the log"
    )


def _rocksdb_tables(disk: Disk) -> str | None:
    for table in ROCKSDB_TABLES:
        mark = f"{TABLE_ROOT}/{table}/{ROCKSDB_MARK}"
        if disk.exists(mark):
            return (
                f"keeps topics, groups or offsets in RocksDB ({mark}), which is not read here: export them "
                f"to config/*.json with mqadmin rocksDBConfigToJson, then move {TABLE_ROOT}/{table} away"
            )
    return None


def _dledger(disk: Disk) -> str | None:
    for name in disk.names("."):
        if name.startswith(DLEDGER_PREFIX) and disk.names(name):
            return (
                f"keeps its log in DLedger's layout ({name}; enableDLegerCommitLog=true), which is not read "
                "here: choose another directory, and let the old broker's consumers finish first"
            )
    return None


def _later_hotfire(disk: Disk) -> str | None:
    magic = (disk.read_whole(CHECKPOINT_FILE) or b"")[MAGIC_AT : MAGIC_AT + len(MAGIC)]
    if not magic.startswith(OURS) or magic == MAGIC:
        return None
    return (
        f"was written by a later Hotfire (checkpoint {magic.decode('ascii', 'replace')}, known is "
        f"{MAGIC.decode()}): start it with that version or a later one"
    )


def _log_elsewhere(disk: Disk) -> str | None:
    if any(name.isdecimal() for name in disk.names(LOG_ROOT)):
        return None
    for topic in disk.names(QUEUE_ROOT):
        for queue in disk.names(f"{QUEUE_ROOT}/{topic}"):
            if queue.isdecimal() and disk.names(f"{QUEUE_ROOT}/{topic}/{queue}"):
                return (
                    f"has queues ({QUEUE_ROOT}/{topic}/{queue}) and no log: its log is elsewhere "
                    f"(storePathCommitLog) or lost; put its segments into {LOG_ROOT}, or move {QUEUE_ROOT} "
                    "away to begin with nothing"
                )
    return None


def _log_in_part(disk: Disk) -> str | None:
    """Left cleanly by Apache's broker, and its queues point behind the log. Ours has marks of its own."""
    names = [name for name in disk.names(LOG_ROOT) if name.isdecimal()]
    checkpoint = Checkpoint.decode(disk.read_whole(CHECKPOINT_FILE))
    if not names or checkpoint.is_ours or disk.exists(ABORT_FILE):
        return None
    log_end = int(names[-1]) + disk.size(f"{LOG_ROOT}/{names[-1]}")
    for topic in disk.names(QUEUE_ROOT):
        for queue in disk.names(f"{QUEUE_ROOT}/{topic}"):
            directory = f"{QUEUE_ROOT}/{topic}/{queue}"
            files = [name for name in disk.names(directory) if name.isdecimal()]
            last = last_below(disk, f"{directory}/{files[-1]}", NEVER)[1] if files else -1
            if last >= log_end:
                return (
                    f"has a log up to {log_end}, but {directory} goes on to a record at {last}: segments are "
                    f"missing or lie elsewhere (storePathCommitLog); put them into {LOG_ROOT}"
                )
    return None

"""Store directories that pass between Hotfire and Apache's broker, and those that do not."""

import re
from pathlib import Path

import pytest

from hotfire.errors import StoreError
from hotfire.protocol.record import java_hash, parse_properties
from hotfire.store.disk import Disk
from hotfire.store.kinds import refuse_foreign
from hotfire.store.queueext import QueueExt
from tests.peers.apache import ApacheCluster, mqadmin
from tests.peers.ports import free_port
from tests.unit.store.driven import Driven, tree

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
OURS = {
    "segment_bytes": 1 << 20,
    "queue_file_bytes": 6000,
    "index_slots": 500,
    "index_entries": 1000,
    "queue_ext": True,
    "queue_ext_file_bytes": 1 << 16,
}
SIZES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "1000",
    "mappedFileSizeConsumeQueueExt": "65536",
}
MESSAGES = 3400
"""More than one extension file holds, less than one log segment."""
SEEN = re.compile(
    r"idx: (\d+)\nConsumeQueueData\{physicOffset=(\d+).*?tagsCode=(\d+), "
    r"extendDataJson='\{\"msgStoreTime\":(\d+),"
)


def test_apache_reads_our_queue_extensions_and_goes_on_with_them(tmp_path: Path) -> None:
    """What it tells of our entries is right, also behind a file's end; what it adds we read, and go on."""
    with Driven(tmp_path / "store", **OURS) as driven:
        for number in range(MESSAGES):
            driven.now_ms += 3
            driven.send("T", 0, b"%d" % number, TAGS=f"tag{number % 3}", UNIQ_KEY=f"K{number}")
        driven.turn()
    files = sorted((tmp_path / "store/consumequeue_ext/T/0").iterdir())
    assert [int(path.name) for path in files] == [0, 65536]
    with ApacheCluster(tmp_path, settings={**SIZES, "enableConsumeQueueExt": "true"}) as cluster:
        admin = ["-t", "T", "-b", cluster.broker]
        mqadmin(["updateTopic", *admin, "-r", "1", "-w", "1"], cluster.namesrv, directory=tmp_path)
        for first in ("0", "3270", "3390"):
            command = ["queryCq", *admin, "-q", "0", "-i", first, "-c", "10"]
            check_told(driven, mqadmin(command, cluster.namesrv, directory=tmp_path), int(first))
        sending = ["sendMessage", "-t", "T", "-p", "theirs", "-c", "tag1", "-b", "broker-a", "-i", "0"]
        mqadmin(sending, cluster.namesrv, directory=tmp_path)
    assert (driven.root / "rocksdbstore" / "CURRENT").exists()  # which it always makes, and we do not mind
    with driven.on(driven.root) as again:
        again.now_ms = 1 << 42
        again.send("T", 0, b"ours", TAGS="tag1")
        again.turn()
        records, _ = again.pull("T", 0, MESSAGES - 2, codes=(java_hash("tag1"),))
        assert [record.body for record in records][-2:] == [b"theirs", b"ours"]
        assert all(parse_properties(record.properties)["TAGS"] == "tag1" for record in records)
        last = again.store.queue("T", 0).entry(MESSAGES)
        assert last is not None
        ext = QueueExt(Disk(again.root), "T", 0, 1 << 16)
        ext.load()
        unit = ext.get(last[2])
        assert unit is not None
        assert (unit.tags, unit.store_time) == (java_hash("tag1"), records[-2].store_timestamp)
        ext.close()


def check_told(driven: Driven, output: str, first: int) -> None:
    told = [tuple(map(int, match)) for match in SEEN.findall(output)]
    wanted = [
        (index, sent.physical, java_hash(f"tag{index % 3}"), driven.now_ms - 3 * (MESSAGES - 1 - index))
        for index, sent in enumerate(driven.sent)
    ]
    assert told == wanted[first : first + 10], output


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"storeType": "defaultRocksDB"}, r"queues in RocksDB \(consumequeue/CURRENT"),
        ({"configManagerVersion": "v2"}, r"offsets in RocksDB \(config/rdb/CURRENT"),
        (
            {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "g",
                "dLegerPeers": "n0-127.0.0.1:0",
                "dLegerSelfId": "n0",
            },
            r"DLedger's layout \(dledger-n0",
        ),
    ],
)
def test_stores_apache_makes_otherwise_are_known_by_their_marks(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    """Its broker makes one with the setting; it is refused by name and stays as it is."""
    if "dLegerPeers" in settings:
        settings = settings | {"dLegerPeers": f"n0-127.0.0.1:{free_port()}"}
    with ApacheCluster(tmp_path, settings={**SIZES, **settings}):
        pass
    before = tree(tmp_path / "store")
    with pytest.raises(StoreError, match=words):
        refuse_foreign(Disk(tmp_path / "store"))
    assert tree(tmp_path / "store") == before

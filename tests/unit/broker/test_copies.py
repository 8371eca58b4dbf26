"""A master and slaves that copy its log, without sockets: who is told what, and when; what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig, BrokerRole, FlushDiskType
from hotfire.broker.copies import Copies
from hotfire.broker.master import Master
from hotfire.broker.slave import Slave
from hotfire.errors import ConfigError, RemoteProtocolError, StoreReadOnly
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.ha import Batch, BatchReader, encode_report
from hotfire.protocol.record import Record
from hotfire.protocol.requests import DeleteTopicInBroker
from hotfire.store.disk import Disk
from hotfire.store.replica import CopiedStore, Unfit
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import STORE_HOST, FakeConnection, bodies, codes, send_request

pytestmark = pytest.mark.core
OK, NOT_AVAILABLE, SLAVE_TIMEOUT = 0, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT
SEGMENT_BYTES = 16 << 10


class Line(FakeConnection):
    """A slave's connection: what the master writes to it, read as a slave reads it."""

    def __init__(self, port: int = 40_001) -> None:
        super().__init__(port)
        self._batches = BatchReader()
        self.received: list[Batch] = []

    def write(self, data: bytes) -> None:
        self.received += self._batches.receive(data)

    def take_batches(self) -> list[Batch]:
        taken, self.received = self.received, []
        return taken


class Pair:
    """A SYNC_MASTER and a slave, and the line between them, moved by hand."""

    def __init__(self, make: Make, **settings: object) -> None:
        self.master = make("master", **{"broker_role": BrokerRole.SYNC_MASTER, **settings})
        self.slave = make(
            "slave", broker_role=BrokerRole.SLAVE, broker_id=1,
            mapped_file_size_commit_log=self.master.config.mapped_file_size_commit_log,
        )  # fmt: skip
        self.master.create_topic("T")
        self.line = Line()

    @property
    def copies(self) -> Copies:
        assert isinstance(self.master.broker, Master)
        return self.master.broker.copies

    @property
    def following(self) -> Slave:
        assert isinstance(self.slave.broker, Slave)
        return self.slave.broker

    def dial(self) -> None:
        self.line = Line(self.line.peer[1] + 1)
        self.copies.connected(self.line, self.master.now_ms)
        self.report(self.following.replica.begin())

    def report(self, offset: int) -> None:
        self.copies.receive(self.line, memoryview(encode_report(offset)), self.master.now_ms)

    def copy(self) -> None:
        """What the master has for the slave, appended there."""
        self.copies.pump(self.master.now_ms)
        self.master.settle()
        for batch in self.line.take_batches():
            self.following.replica.take(batch.offset, batch.data)
        while not self.following.place(self.slave.now_ms):
            self.slave.settle()
        self.slave.settle()

    def acknowledge(self) -> None:
        self.report(self.following.replica.safe_end)

    def logs(self) -> tuple[bytes, bytes]:
        end = self.slave.store.end
        return _log(self.master.root)[:end], _log(self.slave.root)[:end]


def _log(root: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))


@pytest.fixture
def pair(make: Make) -> Pair:
    return Pair(make)


@pytest.mark.promise(56)
def test_a_send_is_answered_once_a_slave_has_it(pair: Pair) -> None:
    """Safe at the master, sent to the slave, safe there: nothing is said before the slave says so."""
    pair.dial()
    pair.master.receive(send_request(), send_request(v1=True))
    pair.master.settle()
    assert pair.master.connection.take() == []
    pair.copy()
    assert pair.master.connection.take() == []
    pair.acknowledge()
    assert codes(pair.master.connection.take()) == [OK, OK]
    ours, theirs = pair.logs()
    assert pair.slave.store.end == pair.master.store.end
    assert ours == theirs
    assert bodies(pair.slave.pull()) == [b"body", b"body"]


def test_wait_false_waits_for_no_slave(pair: Pair) -> None:
    """Who asks not to wait is answered at once."""
    pair.dial()
    pair.master.receive(send_request(named={"WAIT": "false"}))
    assert codes(pair.master.connection.take()) == [OK]


@pytest.mark.promise(56)
def test_without_a_slave_the_answer_says_so(pair: Pair) -> None:
    """No slave: SLAVE_NOT_AVAILABLE, after the master's own sync, and the message is stored."""
    pair.master.receive(send_request())
    assert pair.master.connection.take() == []
    pair.master.settle()
    assert codes(pair.master.connection.take()) == [NOT_AVAILABLE]
    assert bodies(pair.master.pull()) == [b"body"]


def test_a_slave_far_behind_is_not_waited_for(make: Make) -> None:
    """Further behind than haMaxGapNotInSync it is as good as none."""
    pair = Pair(make, ha_max_gap_not_in_sync=1000)
    pair.dial()
    pair.master.receive(send_request(body=bytes(2000)))
    pair.master.settle()
    assert codes(pair.master.connection.take()) == [NOT_AVAILABLE]


@pytest.mark.promise(56)
def test_a_slave_that_takes_too_long_is_told_of(pair: Pair) -> None:
    """After slaveTimeout: FLUSH_SLAVE_TIMEOUT, not before; the message is stored and copied all the same."""
    pair.dial()
    pair.master.receive(send_request())
    pair.master.settle()
    pair.master.pass_time(2900)
    assert pair.master.connection.take() == []
    pair.master.pass_time(200)
    assert codes(pair.master.connection.take()) == [SLAVE_TIMEOUT]
    pair.copy()
    pair.acknowledge()
    assert pair.master.connection.take() == []
    assert bodies(pair.slave.pull()) == [b"body"]


def test_others_are_served_while_replies_wait_for_a_slave(pair: Pair) -> None:
    """A slow slave is not a slow disk: sends are taken, each answered by its own time."""
    pair.dial()
    for _ in range(3):
        pair.master.receive(send_request())
        pair.master.settle()
        pair.master.pass_time(1000)
    pair.master.pass_time(200)
    assert codes(pair.master.connection.take()) == [SLAVE_TIMEOUT]
    pair.copy()
    pair.acknowledge()
    assert codes(pair.master.connection.take()) == [OK, OK]


def test_two_copies_are_waited_for_where_two_are_asked_for(make: Make) -> None:
    """inSyncReplicas counts the master: three of them are two slaves."""
    pair = Pair(make, in_sync_replicas=3)
    pair.dial()
    pair.master.receive(send_request())
    pair.master.settle()
    assert codes(pair.master.connection.take()) == [NOT_AVAILABLE]
    second = Line(40_500)
    pair.copies.connected(second, pair.master.now_ms)
    pair.copies.receive(second, memoryview(encode_report(0)), pair.master.now_ms)
    pair.master.receive(send_request())
    pair.master.settle()
    pair.copy()
    pair.acknowledge()
    assert pair.master.connection.take() == []
    end = encode_report(pair.master.store.end)
    pair.copies.receive(second, memoryview(end), pair.master.now_ms)
    assert codes(pair.master.connection.take()) == [OK]


def test_a_stop_answers_those_who_wait(pair: Pair) -> None:
    """What is stored and not known to be copied is said to be just that."""
    pair.dial()
    pair.master.receive(send_request())
    pair.master.close()
    assert codes(pair.master.connection.take()) == [SLAVE_TIMEOUT]


def test_only_what_is_on_the_disk_is_sent(make: Make) -> None:
    """ASYNC_FLUSH: what is written may be gone after a power cut, and a slave must not be ahead."""
    pair = Pair(make, flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    pair.dial()
    pair.master.receive(send_request())
    pair.master.settle()
    pair.copies.pump(pair.master.now_ms)
    assert pair.line.take_batches() == []
    pair.master.pass_time(200)
    pair.copy()
    pair.acknowledge()
    assert codes(pair.master.connection.take()) == [OK]


def test_batches_keep_to_their_size_and_their_segment(make: Make) -> None:
    """None has more than haTransferBatchSize or lies in two segments; the slave's files are the master's."""
    pair = Pair(make, mapped_file_size_commit_log=SEGMENT_BYTES, ha_transfer_batch_size=1024)
    for number in range(40):
        pair.master.receive(send_request(body=bytes([number]) * 1500))
        pair.master.settle()
    pair.dial()
    pair.copies.pump(pair.master.now_ms)
    pair.master.settle()
    batches = pair.line.received
    assert sum(len(batch.data) for batch in batches) == pair.master.store.end > 3 * SEGMENT_BYTES
    for batch in batches:
        last = batch.offset + len(batch.data) - 1
        assert len(batch.data) <= 1024
        assert batch.offset // SEGMENT_BYTES == last // SEGMENT_BYTES
    pair.copy()
    ours, theirs = pair.logs()
    assert pair.slave.store.end == pair.master.store.end
    assert ours == theirs
    pair.slave.reopen()
    read: list[bytes] = []
    while found := bodies(pair.slave.pull(offset=len(read))):
        read += found
    assert read == [bytes([number]) * 1500 for number in range(40)]


def test_an_acknowledgement_of_what_was_not_sent_is_refused(pair: Pair) -> None:
    """Beyond what it was sent, or less than before: the slave is hung up on, and nobody is told OK."""
    pair.dial()
    pair.master.receive(send_request())
    pair.master.settle()
    with pytest.raises(RemoteProtocolError, match=f"acknowledges {pair.master.store.end + 1}"):
        pair.report(pair.master.store.end + 1)
    assert pair.master.connection.take() == []


def test_a_slave_with_more_than_the_master_is_refused(pair: Pair) -> None:
    """Both numbers are said, and nothing is sent."""
    pair.copies.connected(pair.line, pair.master.now_ms)
    with pytest.raises(RemoteProtocolError, match=r"up to 5000 .* ends at 0"):
        pair.report(5000)
    assert pair.line.take_batches() == []


def test_heartbeats_and_silence(pair: Pair) -> None:
    """A heartbeat after 5 s without anything to send; a slave silent for 20 s is closed."""
    pair.dial()
    now_ms = pair.master.now_ms
    pair.copies.tick(now_ms + 4999)
    assert pair.line.take_batches() == []
    pair.copies.tick(now_ms + 5000)
    assert pair.line.take_batches() == [Batch(0, b"")]
    pair.copies.tick(now_ms + 20_000)
    assert not pair.line.closed
    pair.copies.tick(now_ms + 20_001)
    assert pair.line.closed


def test_nothing_is_read_for_a_slave_that_takes_nothing(pair: Pair) -> None:
    """A clogged line gets no more until it has drained."""
    pair.dial()
    pair.line.is_clogged = True
    pair.master.receive(send_request())
    pair.master.settle()
    pair.copies.tick(pair.master.now_ms)
    assert pair.line.take_batches() == []
    pair.line.is_clogged = False
    pair.copies.drained(pair.line, pair.master.now_ms)
    assert len(pair.line.take_batches()) == 1


# --- the slave's side ---


def test_a_copy_goes_on_where_it_ended(pair: Pair) -> None:
    """Stopped and started in between: the log goes on, compared with the master's before that."""
    for number in range(6):
        pair.master.receive(send_request(body=b"%d" % number))
        pair.master.settle()
        if number in (1, 3):
            pair.dial()
            pair.copy()
            pair.slave.reopen()
    pair.dial()
    pair.copy()
    ours, theirs = pair.logs()
    assert pair.slave.store.end == pair.master.store.end
    assert ours == theirs
    assert bodies(pair.slave.pull()) == [b"%d" % number for number in range(6)]


def test_a_record_that_is_harmed_on_its_way_is_not_acknowledged(pair: Pair) -> None:
    """One bit of its body: nothing of it is written, and nothing said of it."""
    pair.master.receive(send_request(body=b"x" * 100))
    pair.master.settle()
    pair.dial()
    pair.copies.pump(pair.master.now_ms)
    pair.master.settle()
    ((offset, data),) = pair.line.take_batches()
    harmed = data.replace(b"x", b"y", 1)
    pair.following.replica.take(offset, harmed)
    with pytest.raises(Unfit, match=r"not sound: .*checksum"):
        pair.following.place(pair.slave.now_ms)
    pair.slave.settle()
    assert pair.slave.store.end == pair.following.replica.begin() == 0


@pytest.mark.parametrize(
    ("slave_bytes", "said"),
    [
        (SEGMENT_BYTES * 2, "the master ends a segment at 16384, ours would end at 32768"),
        (SEGMENT_BYTES // 2, "of our segment"),
    ],
)
def test_a_slave_with_segments_of_another_size_says_which_setting(
    make: Make, slave_bytes: int, said: str
) -> None:
    """Where the master's segment ends and ours does not, or the other way round, the setting is named."""
    pair = Pair(make, mapped_file_size_commit_log=SEGMENT_BYTES)
    pair.slave = make(
        "odd", broker_role=BrokerRole.SLAVE, broker_id=1, mapped_file_size_commit_log=slave_bytes
    )
    for _ in range(20):
        pair.master.ask(send_request(body=b"x" * 1500))
    pair.dial()
    with pytest.raises(Unfit, match=said) as caught:
        pair.copy()
    assert f"mappedFileSizeCommitLog is {slave_bytes} here, and must be as on the master" in str(caught.value)


def test_a_part_of_a_record_waits_for_its_rest(pair: Pair) -> None:
    """Cut anywhere: what is acknowledged are whole records."""
    pair.master.receive(send_request(body=b"x" * 100), send_request(body=b"y" * 100))
    pair.master.settle()
    pair.dial()
    pair.copies.pump(pair.master.now_ms)
    pair.master.settle()
    ((_, data),) = pair.line.take_batches()
    first = int.from_bytes(data[:4])
    for at in range(len(data)):
        pair.following.replica.take(at, data[at : at + 1])
        assert pair.following.place(pair.slave.now_ms)
        pair.slave.settle()
        assert pair.following.replica.safe_end in (0, first, len(data))
    assert pair.following.replica.safe_end == len(data)


def test_a_copy_takes_no_message_of_its_own(tmp_path: Path) -> None:
    """Whoever in the broker tries: one record of our own, and the logs would have parted."""
    store = CopiedStore(Disk(tmp_path), BrokerConfig(mapped_file_size_commit_log=SEGMENT_BYTES).store())
    store.open()
    with pytest.raises(StoreReadOnly, match="copy of the master's"):
        store.append(Record("T", 0, b"x", 0, STORE_HOST, 0, STORE_HOST), 0)
    assert store.end == 0
    store.close()


def diverge(pair: Pair, *, longer: bool) -> None:
    """The slave goes on by itself, as a master of its own, while the master takes other messages."""
    pair.master.receive(send_request(body=b"both"))
    pair.master.settle()
    pair.dial()
    pair.copy()
    pair.slave.close()
    pair.slave.config = replace(pair.slave.config, broker_role=BrokerRole.ASYNC_MASTER, broker_id=0)
    pair.slave.open()
    pair.slave.receive(send_request(body=b"slave's"))
    pair.slave.settle()
    if not longer:
        pair.master.receive(send_request(body=b"master" * 10))
        pair.master.settle()
    pair.slave.close()
    pair.slave.config = replace(pair.slave.config, broker_role=BrokerRole.SLAVE, broker_id=1)
    pair.slave.open()


@pytest.mark.parametrize("longer", [False, True])
def test_a_log_that_went_another_way_is_noticed_and_kept(pair: Pair, longer: bool) -> None:
    """Said with both numbers; nothing of the slave's is written over."""
    diverge(pair, longer=longer)
    kept, end = _log(pair.slave.root), pair.slave.store.end
    pair.dial()
    pair.copies.tick(pair.master.now_ms + 5000)
    with pytest.raises(Unfit, match=rf"ours (ends )?at {end}"):
        pair.copy()
    assert _log(pair.slave.root) == kept
    assert pair.slave.store.end == end
    assert pair.following.replica.safe_end <= pair.master.store.end


def test_a_master_that_sends_from_elsewhere_is_refused(pair: Pair) -> None:
    """A gap, or a log whose beginning is gone: nothing is appended."""
    pair.following.replica.begin()
    with pytest.raises(Unfit, match="begins at 4096 and ours is empty"):
        pair.following.replica.take(4096, b"x")


def test_a_message_is_served_though_its_topic_was_never_told(pair: Pair) -> None:
    """The master was lost before anyone asked it for its topics."""
    pair.master.create_topic("new")
    pair.master.receive(send_request(topic="new", queue_id=2))
    pair.master.settle()
    pair.dial()
    pair.copy()
    topic = pair.following.topics.get("new")
    assert topic is not None
    assert topic.read_queues == 3
    pair.slave.reopen()
    assert bodies(pair.slave.pull(topic="new", queue_id=2)) == [b"body"]


@pytest.mark.promise(188)
def test_a_slave_becomes_a_master_by_its_settings(pair: Pair) -> None:
    """Stopped, set, started: it has all that was copied, and takes sends behind it."""
    pair.master.receive(*[send_request(body=b"%d" % number) for number in range(5)])
    pair.master.settle()
    pair.dial()
    pair.copy()
    assert pair.slave.ask(send_request()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    pair.slave.close()
    pair.slave.config = replace(pair.slave.config, broker_role=BrokerRole.ASYNC_MASTER, broker_id=0)
    pair.slave.open()
    pair.slave.receive(send_request(body=b"5"))
    pair.slave.settle()
    assert codes(pair.slave.connection.take()) == [OK]
    assert bodies(pair.slave.pull()) == [b"%d" % number for number in range(6)]


def test_a_topic_is_not_deleted_where_slaves_may_follow(pair: Pair) -> None:
    """Deletions are not copied: a slave would call the topic's next life a log that went another way."""
    reply = pair.master.ask(DeleteTopicInBroker(topic="T"))
    assert reply.code != OK
    assert "not copied yet" in (reply.remark or "")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"broker_role": BrokerRole.SLAVE}, "brokerId"),
        ({"broker_id": 1}, "brokerId"),
        ({"broker_role": BrokerRole.SLAVE, "broker_id": 1}, "namesrvAddr"),
        ({"broker_role": BrokerRole.SLAVE, "broker_id": 1, "ha_master_address": "10.0.0.1:1"}, "namesrvAddr"),
        (
            {
                "broker_role": BrokerRole.SLAVE,
                "broker_id": 1,
                "namesrv_addr": "10.0.0.1:1",
                "ha_master_address": "nowhere",
            },
            "host:port",
        ),
    ],
)
def test_roles_that_make_no_sense_are_refused(settings: dict[str, object], said: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=said):
        BrokerConfig(**settings).check_role()  # type: ignore[arg-type]

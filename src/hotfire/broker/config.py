"""Every setting of a broker, declared once. Names in files and on the wire are Apache's."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass
from pathlib import Path

from hotfire.errors import ConfigError
from hotfire.model import Perm
from hotfire.settings import Form, setting
from hotfire.store.commitlog import ROOT as LOG_DIRECTORY
from hotfire.store.config import StoreConfig

# Both become properties of every message, which control characters separate; replies of sends spell the
# region as it is, between quotes.
REGION = Form(
    r"[ !#-\[\]-~]{1,255}", "1 to 255 printable ASCII characters without quotation mark and backslash"
)
CLUSTER = Form(r"[^\x00-\x1f]{1,255}", "1 to 255 characters without control characters")


class FlushDiskType(enum.Enum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of one broker process."""

    broker_name: str = setting(
        socket.gethostname() or "DEFAULT_BROKER", "Name shared by a master and its slaves."
    )
    broker_cluster_name: str = setting("DefaultCluster", "Cluster this broker belongs to.", form=CLUSTER)
    broker_role: BrokerRole = setting(  # noqa: RUF009  # it makes a field
        BrokerRole.ASYNC_MASTER, "ASYNC_MASTER, SYNC_MASTER or SLAVE; slaves are not served yet."
    )
    broker_id: int = setting(0, "0 is the master; slaves have higher ids.", low=0)
    listen_port: int = setting(10911, "Port for clients; 0 picks a free one.", low=0, high=65535)
    bind_address: str = setting("0.0.0.0", "Address to listen on.")  # noqa: S104  # as the reference does
    broker_ip1: str | None = setting(
        None, "Address clients are told to dial; the machine's own when absent.", name="brokerIP1"
    )
    namesrv_addr: str = setting("", "Name servers, host:port separated by ';'.")
    store_path_root_dir: str = setting("~/store", "Directory of the log, the queues and the tables.")
    store_type: str = setting("default", "Queues in files, `default`; others are refused.")
    enable_d_leger_commit_log: bool = setting(
        False, "A log kept by DLedger is refused.", name="enableDLegerCommitLog"
    )
    store_path_commit_log: str | None = setting(
        None, "Directory of the log: `commitlog` below storePathRootDir; others are refused."
    )
    store_path_d_ledger_commit_log: str | None = setting(
        None, "Directories of DLedger's log; refused.", name="storePathDLedgerCommitLog"
    )
    read_only_commit_log_store_paths: str | None = setting(None, "More directories of the log; refused.")
    broker_permission: int = setting(Perm.READ_WRITE, "4 read, 2 write.", low=0, high=6, reload=True)
    default_topic_queue_nums: int = setting(8, "Queues of the template topic TBW102.", low=1, reload=True)
    auto_create_topic_enable: bool = setting(True, "A first message creates its topic.", reload=True)
    auto_create_subscription_group: bool = setting(True, "A first consumer creates its group.", reload=True)
    topics_max: int = setting(50_000, "Topics at once.", low=1, reload=True)
    groups_max: int = setting(20_000, "Consumer groups at once.", low=1, reload=True)
    queues_max: int = setting(
        400_000, "Queues of all topics at once, 1 KiB of memory each.", low=1, reload=True
    )
    cluster_topic_enable: bool = setting(True, "Make a topic named like the cluster.")
    broker_topic_enable: bool = setting(True, "Make a topic named like the broker.")
    region_id: str = setting("DefaultRegion", "Region written into every message.", form=REGION)
    trace_on: bool = setting(True, "Tell clients that tracing is welcome.")
    flush_disk_type: FlushDiskType = setting(  # noqa: RUF009  # it makes a field
        FlushDiskType.SYNC_FLUSH, "SYNC_FLUSH acknowledges what is on the disk, ASYNC_FLUSH what is written."
    )
    flush_interval_commit_log: int = setting(500, "ASYNC_FLUSH: time between syncs.", unit="ms", low=1)
    flush_interval_consume_queue: int = setting(1000, "Time between syncs of the queues.", unit="ms", low=1)
    mapped_file_size_commit_log: int = setting(
        1 << 30, "Size of a log segment.", unit="bytes", low=4096, aliases=("mapedFileSizeCommitLog",)
    )
    mapped_file_size_consume_queue: int = setting(
        6_000_000, "Size of a queue file.", unit="bytes", low=20, aliases=("mapedFileSizeConsumeQueue",)
    )
    enable_consume_queue_ext: bool = setting(
        False, "Queue entries point to files with the tags, the store time and room for filters."
    )
    mapped_file_size_consume_queue_ext: int = setting(
        48 << 20, "Size of such a file.", unit="bytes", low=64 << 10, high=1 << 30
    )
    message_index_enable: bool = setting(True, "Index messages by their keys.")
    max_hash_slot_num: int = setting(5_000_000, "Hash slots of an index file.", low=1, high=1 << 30)
    max_index_num: int = setting(20_000_000, "Entries of an index file.", low=2, high=1 << 30)
    enabled_append_prop_crc: bool = setting(
        True, "Records end in a checksum over all of them.", name="enabledAppendPropCRC"
    )
    max_message_size: int = setting(4 << 20, "Largest body.", unit="bytes", low=1024, high=15 << 20)
    long_polling_enable: bool = setting(True, "Hold pulls until there is something to answer.", reload=True)
    short_polling_time_mills: int = setting(1000, "How long to hold without long polling.", unit="ms", low=0)
    parked_pulls_max: int = setting(100_000, "Pulls held at once.", low=1, reload=True)
    parked_pulls_per_connection_max: int = setting(8192, "Pulls held at once for one connection.", low=1)
    notify_consumer_ids_changed_enable: bool = setting(True, "Tell a group when a member comes or goes.")
    channel_expired_timeout: int = setting(
        120_000, "A silent client is forgotten after this.", unit="ms", low=1000
    )
    flush_consumer_offset_interval: int = setting(
        5000, "Time between writes of the offsets.", unit="ms", low=10
    )
    register_name_server_period: int = setting(
        30_000, "Time between registrations.", unit="ms", low=1000, high=60_000
    )
    register_broker_timeout_mills: int = setting(
        24_000, "How long a name server may take.", unit="ms", low=100
    )
    fast_lane_enable: bool = setting(True, "Serve ordinary sends and pulls by the compiled lane.")

    def __post_init__(self) -> None:
        if self.broker_role is BrokerRole.SLAVE or self.broker_id:
            raise ConfigError(
                f"brokerRole={self.broker_role.name} brokerId={self.broker_id}: replication is not served, "
                "so this broker would hold no copy of anything; start a master, with brokerId=0"
            )

        self._refuse_foreign_store()

    def _refuse_foreign_store(self) -> None:
        """A log or queues kept where we do not look would be passed over, and a store begun beside them."""
        if self.store_type.lower() != "default":
            raise ConfigError(
                f"storeType={self.store_type}: queues are kept in files only; set storeType=default, "
                "and begin with a store whose queues are not in RocksDB"
            )
        if self.enable_d_leger_commit_log or self.store_path_d_ledger_commit_log:
            raise ConfigError(
                "enableDLegerCommitLog=true or storePathDLedgerCommitLog: a log kept by DLedger is not "
                "served; remove both settings and choose an empty storePathRootDir"
            )
        path, home = self.store_path_commit_log, self.root / LOG_DIRECTORY
        if self.read_only_commit_log_store_paths or (path and "," in path):
            raise ConfigError(
                f"storePathCommitLog={path} "
                f"readOnlyCommitLogStorePaths={self.read_only_commit_log_store_paths}: a log in several "
                f"directories is not served; move all segments into {home} and remove both settings"
            )
        if path and Path(path).expanduser().absolute() != home.absolute():
            raise ConfigError(
                f"storePathCommitLog={path}: the log is looked for in {home} only; move it there, or make "
                f"{home} a symbolic link to it, and remove the setting"
            )

    def store(self) -> StoreConfig:
        return StoreConfig(
            segment_bytes=self.mapped_file_size_commit_log,
            queue_file_bytes=self.mapped_file_size_consume_queue // 20 * 20,
            queue_ext=self.enable_consume_queue_ext,
            queue_ext_file_bytes=self.mapped_file_size_consume_queue_ext,
            sync_flush=self.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            append_crc=self.enabled_append_prop_crc,
            index_enable=self.message_index_enable,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            flush_interval_ms=self.flush_interval_commit_log,
            queue_flush_interval_ms=self.flush_interval_consume_queue,
        )

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in self.namesrv_addr.split(";") if address.strip())

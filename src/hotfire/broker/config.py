"""Every setting of a broker, declared once. Names in files and on the wire are Apache's."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass
from pathlib import Path

from hotfire.errors import ConfigError
from hotfire.model import TOPIC_QUEUES_MAX, TRACE_TOPIC, Perm
from hotfire.net.peer import split_address
from hotfire.net.tls_settings import TlsClientConfig, TlsServerConfig
from hotfire.protocol.ha import BATCH_BYTES_MAX
from hotfire.settings import Form, setting
from hotfire.store.commitlog import ROOT as LOG_DIRECTORY
from hotfire.store.config import DELAY_LEVELS, RetentionConfig, StoreConfig, delays_ms

# Both become properties of every message, which control characters separate; replies of sends spell the
# region as it is, between quotes.
REGION = Form(
    r"[ !#-\[\]-~]{1,255}", "1 to 255 printable ASCII characters without quotation mark and backslash"
)
LEVELS = Form(r"\d+[smhd]( \d+[smhd])*", "times like 1s 5m 2h, separated by spaces")
HOURS = Form(r"([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*", "hours 00 to 23, separated by ';'")
TOPIC = Form(r"[%|a-zA-Z0-9_-]{1,127}", "1 to 127 letters, digits, _, -, % or |")
CLUSTER = Form(r"[^\x00-\x1f]{1,255}", "1 to 255 characters without control characters")


class FlushDiskType(enum.Enum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True)
class BrokerConfig(TlsServerConfig, TlsClientConfig):
    """Settings of one broker process."""

    broker_name: str = setting(
        socket.gethostname() or "DEFAULT_BROKER", "Name shared by a master and its slaves."
    )
    broker_cluster_name: str = setting("DefaultCluster", "Cluster this broker belongs to.", form=CLUSTER)
    broker_role: BrokerRole = setting(  # noqa: RUF009  # it makes a field
        BrokerRole.ASYNC_MASTER,
        "SYNC_MASTER acknowledges what a slave has too, SLAVE copies its master's log, ASYNC_MASTER neither.",
    )
    broker_id: int = setting(0, "0 is the master; slaves have higher ids.", low=0)
    listen_port: int = setting(10911, "Port for clients; 0 picks a free one.", low=0, high=65535)
    bind_address: str = setting("0.0.0.0", "Address to listen on.")  # noqa: S104  # as the reference does
    broker_ip1: str | None = setting(
        None, "Address clients are told to dial; the machine's own when absent.", name="brokerIP1"
    )
    broker_ip2: str | None = setting(
        None, "Address slaves are told to dial; that of brokerIP1 when absent.", name="brokerIP2"
    )
    ha_listen_port: int = setting(
        0, "Port for slaves. 0: a SYNC_MASTER takes listenPort + 1, an ASYNC_MASTER none.", low=0, high=65535
    )
    ha_master_address: str | None = setting(
        None, "SLAVE: where the log comes from, host:port of haListenPort; name servers tell when absent."
    )
    ha_transfer_batch_size: int = setting(
        32 << 10, "Log bytes sent to a slave in one piece.", unit="bytes", low=1024, high=BATCH_BYTES_MAX
    )
    ha_send_heartbeat_interval: int = setting(
        5000, "Master and slave say something at least so often.", unit="ms", low=100
    )
    ha_housekeeping_interval: int = setting(
        20_000, "Either hangs up on the other after such a silence.", unit="ms", low=100
    )
    ha_max_gap_not_in_sync: int = setting(
        256 << 20, "SYNC_MASTER: a slave further behind is not waited for.", unit="bytes", low=0
    )
    slave_timeout: int = setting(
        3000, "SYNC_MASTER: a slower slave is answered FLUSH_SLAVE_TIMEOUT.", unit="ms", low=1, reload=True
    )
    in_sync_replicas: int = setting(
        1, "SYNC_MASTER: copies before a message is safe, the master's counted; never fewer than two.", low=1
    )
    connections_max: int = setting(
        60_000, "Connections at once; fewer where the limit of open files is low.", low=16
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "A connection that says nothing for so long is closed.", unit="s", low=1
    )
    rocketmq_home: str = setting(
        "", "Where Apache's broker is installed; told by ROCKETMQ_HOME, and not needed."
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
    default_topic_queue_nums: int = setting(
        8, "Queues of the template topic TBW102.", low=1, high=TOPIC_QUEUES_MAX, reload=True
    )
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
    trace_topic_enable: bool = setting(False, "Make the topic to which clients write their traces.")
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "That topic's name.", form=TOPIC)
    store_reply_message_enable: bool = setting(
        True, "Keep replies to requests in the cluster's reply topic, too.", reload=True
    )
    flush_disk_type: FlushDiskType = setting(  # noqa: RUF009  # it makes a field
        FlushDiskType.SYNC_FLUSH, "SYNC_FLUSH acknowledges what is on the disk, ASYNC_FLUSH what is written."
    )
    flush_interval_commit_log: int = setting(500, "ASYNC_FLUSH: time between syncs.", unit="ms", low=1)
    flush_commit_log_timed: bool = setting(True, "ASYNC_FLUSH: by the clock, not with every few pages.")
    flush_commit_log_least_pages: int = setting(4, "ASYNC_FLUSH: pages of 4 KiB worth a sync.", low=0)
    flush_commit_log_thorough_interval: int = setting(
        10_000, "ASYNC_FLUSH: fewer pages than that are synced after this.", unit="ms", low=1
    )
    sync_flush_timeout: int = setting(
        5000, "SYNC_FLUSH: a slower disk is answered FLUSH_DISK_TIMEOUT.", unit="ms", low=1, reload=True
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000, "ASYNC_FLUSH: a write that takes longer turns senders away.", unit="ms", low=1
    )
    dirty_bytes_max: int = setting(
        256 << 20, "ASYNC_FLUSH: unsynced bytes beyond which senders wait for the disk.", unit="bytes", low=0
    )
    cold_read_bytes_per_second: int = setting(
        16 << 20,
        "What consumers far behind get from the disk while messages are stored, or twice what is stored if"
        " that is more; those who send feel it. At least 1 MiB; 0: as fast as the disk gives it.",
        unit="bytes",
        low=0,
    )
    transient_store_pool_enable: bool = setting(
        False, "ASYNC_FLUSH: acknowledge what is in locked memory, write it every 200 ms. A crash loses that."
    )
    transient_store_pool_size: int = setting(5, "Buffers of that pool, each of a segment's size.", low=1)
    commit_interval_commit_log: int = setting(200, "Time between writes of that pool.", unit="ms", low=1)
    commit_commit_log_least_pages: int = setting(4, "Pages of it worth a write.", low=0)
    commit_commit_log_thorough_interval: int = setting(
        200, "Fewer pages are written after this.", unit="ms", low=1
    )
    delete_when: str = setting("04", "Hours at which expired segments go, separated by ';'.", form=HOURS)
    file_reserved_time: int = setting(72, "Age at which a segment is expired.", unit="hours", low=0)
    disk_max_used_space_ratio: int = setting(
        75, "Above this, expired segments go at any hour.", unit="%", low=10, high=95
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85, "Above this, the oldest segments go, whatever their age.", unit="%", low=30, high=95
    )
    disk_space_warning_level_ratio: int = setting(
        90, "Above this, nothing more is stored.", unit="%", low=35, high=100
    )
    clean_file_forcibly_enable: bool = setting(True, "Let unexpired segments go when the disk is that full.")
    clean_resource_interval: int = setting(10_000, "Time between looks for them.", unit="ms", low=1)
    delete_commit_log_files_interval: int = setting(100, "Time between two removals.", unit="ms", low=0)
    delete_file_batch_max: int = setting(10, "Segments removed in one go.", low=1)
    destroy_maped_file_interval_forcibly: int = setting(
        120_000, "A segment still read is removed after this.", unit="ms", low=0
    )
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
    enable_property_filter: bool = setting(
        True, "Serve subscriptions by SQL92 conditions on properties.", reload=True
    )
    enable_calc_filter_bit_map: bool = setting(
        False, "With enableConsumeQueueExt: note beside each entry which conditions its message passes."
    )
    expect_consumer_num_use_filter: int = setting(32, "Groups such notes are sized for.", low=1, high=1024)
    max_error_rate_of_bloom_filter: int = setting(
        20, "How many of them may be wrong, and are looked at in vain.", unit="%", low=1, high=99
    )
    filter_data_clean_time_span: int = setting(
        86_400_000, "Conditions of a group without members are forgotten after this.", unit="ms", low=0
    )
    filter_support_retry: bool = setting(
        False, "A condition on a retry topic is that on the message's first topic.", reload=True
    )
    message_index_enable: bool = setting(True, "Index messages by their keys.")
    max_hash_slot_num: int = setting(5_000_000, "Hash slots of an index file.", low=1, high=1 << 30)
    max_index_num: int = setting(20_000_000, "Entries of an index file.", low=2, high=1 << 30)
    flush_delay_offset_interval: int = setting(
        1000, "Time between writes of the progress of delayed messages.", unit="ms", low=10
    )
    message_delay_level: str = setting(DELAY_LEVELS, "Times of the delay levels, lowest first.", form=LEVELS)
    timer_wheel_enable: bool = setting(True, "Take messages with a time of delivery of their own.")
    timer_max_delay_sec: int = setting(
        259_200, "Longest such delay.", unit="s", low=1, high=100 * 366 * 86_400, reload=True
    )
    timer_precision_ms: int = setting(
        1000, "Seconds, as the files count; delivery is to the millisecond.", unit="ms", low=1000, high=1000
    )
    timer_roll_window_slot: int = setting(
        172_800, "Longer ones are put into the wheel anew each time.", unit="s", low=2, high=7 * 86_400 - 60
    )
    timer_congest_num_each_slot: int = setting(
        (1 << 31) - 1, "Messages due in one second; more are refused.", low=1, high=(1 << 31) - 1, reload=True
    )
    timer_flush_interval_ms: int = setting(1000, "Time between syncs of their files.", unit="ms", low=10)
    mapped_file_size_timer_log: int = setting(
        100 << 20, "Size of a file of the timer log.", unit="bytes", low=4096, high=1 << 30
    )
    recall_message_enable: bool = setting(
        False, "Let producers take back messages that wait for their time.", reload=True
    )
    enabled_append_prop_crc: bool = setting(
        True, "Records end in a checksum over all of them.", name="enabledAppendPropCRC"
    )
    max_message_size: int = setting(4 << 20, "Largest body.", unit="bytes", low=1024, high=15 << 20)
    start_accept_send_request_time_stamp: int = setting(
        0, "Sends are refused until then, in ms since 1970.", unit="ms", low=0, reload=True
    )
    reject_transaction_message: bool = setting(False, "Refuse transactional messages.", reload=True)
    transaction_time_out: int = setting(
        6000, "How long a producer may take before it is asked how a transaction ended.", unit="ms", low=1,
        reload=True,
    )  # fmt: skip
    transaction_check_interval: int = setting(
        30_000, "Time between two such questions.", unit="ms", low=1, reload=True
    )
    transaction_check_max: int = setting(
        15, "Questions before a message nobody knows about is laid aside.", low=1, reload=True
    )
    wait_time_mills_in_send_queue: int = setting(
        2000, "Sends are refused while others have waited longer for the disk.", unit="ms", low=1, reload=True
    )
    topic_backlog_max: int = setting(
        0,
        "A queue whose slowest group is so many messages behind takes no more; 0 for no limit. "
        "The topic attribute backlog.max goes before it.",
        low=0,
        reload=True,
    )
    lite_pull_message_enable: bool = setting(True, "Serve clients that keep their own offsets.", reload=True)
    slave_read_enable: bool = setting(
        False, "Tell groups that read far behind to ask a slave, as their settings say.", reload=True
    )
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
        30_000, "Time between registrations; never more than 60 s.", unit="ms", low=1000
    )
    register_broker_timeout_mills: int = setting(
        24_000, "How long a name server may take.", unit="ms", low=100
    )
    load_balance_poll_name_server_interval: int = setting(
        30_000, "How long a route holds by which queues are shared among members.", unit="ms", low=100
    )
    fast_lane_enable: bool = setting(True, "Serve ordinary sends and pulls by the compiled lane.")

    def __post_init__(self) -> None:
        self._refuse_foreign_store()

    def check_role(self) -> None:
        """A slave has an id above 0 and somebody to ask for its master; nobody else has."""
        if self.is_slave != bool(self.broker_id):
            raise ConfigError(
                f"brokerRole={self.broker_role.name} brokerId={self.broker_id}: a slave has a "
                "brokerId above 0, a master has 0; change one of the two"
            )
        if self.is_slave and not self.name_servers:
            raise ConfigError(
                "brokerRole=SLAVE asks name servers where its master is, whose topics, groups and offsets it "
                "copies: set namesrvAddr; haMasterAddress says only where the log comes from"
            )
        if self.ha_master_address:
            split_address(self.ha_master_address)

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    @property
    def has_followers(self) -> bool:
        """Whether slaves may follow this broker."""
        role = self.broker_role
        return role is BrokerRole.SYNC_MASTER or (role is BrokerRole.ASYNC_MASTER and self.ha_listen_port > 0)

    def refuse_replication(self) -> None:
        """Of the brokers started together none is a slave: they share no name, and would copy nothing."""
        if self.is_slave or self.broker_id:
            raise ConfigError(
                f"brokerRole={self.broker_role.name} brokerId={self.broker_id}: replication is not served, "
                "so this broker would hold no copy of anything; start a master, with brokerId=0"
            )

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
            # what is copied is as its master wrote it, with the checksum or without
            append_crc=self.enabled_append_prop_crc and not self.is_slave,
            index_enable=self.message_index_enable,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            flush_interval_ms=self.flush_interval_commit_log,
            queue_flush_interval_ms=self.flush_interval_consume_queue,
            flush_timed=self.flush_commit_log_timed,
            flush_least_pages=self.flush_commit_log_least_pages,
            flush_thorough_interval_ms=self.flush_commit_log_thorough_interval,
            dirty_bytes_max=self.dirty_bytes_max,
            delays_ms=delays_ms(self.message_delay_level),
            busy_ms=self.os_page_cache_busy_time_out_mills,
            cold_bytes_per_s=self.cold_read_bytes_per_second,
            pool_buffers=self.transient_store_pool_size if self.has_pool else 0,
            commit_interval_ms=self.commit_interval_commit_log,
            commit_least_pages=self.commit_commit_log_least_pages,
            commit_thorough_interval_ms=self.commit_commit_log_thorough_interval,
            retention=RetentionConfig(
                hours=tuple(int(hour) for hour in self.delete_when.split(";")),
                reserved_hours=self.file_reserved_time,
                disk_clean_ratio=self.disk_max_used_space_ratio / 100,
                disk_force_ratio=self.disk_space_clean_forcibly_ratio / 100,
                disk_refuse_ratio=self.disk_space_warning_level_ratio / 100,
                may_force=self.clean_file_forcibly_enable,
                period_ms=self.clean_resource_interval,
                batch_max=self.delete_file_batch_max,
                pause_ms=self.delete_commit_log_files_interval,
                forced_after_ms=self.destroy_maped_file_interval_forcibly,
            ),
        )

    @property
    def has_pool(self) -> bool:
        """SYNC_FLUSH acknowledges what is on the disk: there a pool would only hold it up."""
        is_async = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_store_pool_enable and is_async and not self.is_slave

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in self.namesrv_addr.split(";") if address.strip())

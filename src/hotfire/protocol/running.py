"""Bodies in which a consumer tells administrators how it is: its settings, queues, rates, one message's fate.

Declared as in `bodies`, names in the order Java writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotfire.model import MessageQueue, Subscription
from hotfire.protocol.bodies import declare, flag, int32, int64, items, nested, number, table, text
from hotfire.protocol.members import queue


@dataclass(slots=True, frozen=True)
class QueueInfo:
    """One queue a consumer has. Times are wall time in ms; the `droped` of the wire is Java's spelling."""

    commit_offset: int = 0
    cached_min_offset: int = 0
    cached_max_offset: int = 0
    cached_count: int = 0
    cached_mib: int = 0
    transaction_min_offset: int = 0
    transaction_max_offset: int = 0
    transaction_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_ms: int = 0
    dropped: bool = False
    last_pull_ms: int = 0
    last_consume_ms: int = 0


@dataclass(slots=True, frozen=True)
class ConsumeStatus:
    """How well a consumer is doing with a topic."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_count: int = 0


@dataclass(slots=True, frozen=True)
class ConsumerRunningInfo:
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    subscriptions: tuple[Subscription, ...] = ()
    queues: Mapping[MessageQueue, QueueInfo] = field(default_factory=dict, hash=False)
    pop_queues: Mapping[MessageQueue, object] = field(default_factory=dict, hash=False)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict, hash=False)
    user_info: Mapping[str, str] = field(default_factory=dict, hash=False)
    stacks: str | None = None


@dataclass(slots=True, frozen=True)
class DirectResult:
    """What became of a message that an administrator gave to one consumer."""

    result: str
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_ms: int = 0


declare(
    QueueInfo,
    ("cachedMsgCount", "cached_count", int32),
    ("cachedMsgMaxOffset", "cached_max_offset", int64),
    ("cachedMsgMinOffset", "cached_min_offset", int64),
    ("cachedMsgSizeInMiB", "cached_mib", int32),
    ("commitOffset", "commit_offset", int64),
    ("droped", "dropped", flag),
    ("lastConsumeTimestamp", "last_consume_ms", int64),
    ("lastLockTimestamp", "last_lock_ms", int64),
    ("lastPullTimestamp", "last_pull_ms", int64),
    ("locked", "locked", flag),
    ("transactionMsgCount", "transaction_count", int32),
    ("transactionMsgMaxOffset", "transaction_max_offset", int64),
    ("transactionMsgMinOffset", "transaction_min_offset", int64),
    ("tryUnlockTimes", "try_unlock_times", int64),
)
declare(
    ConsumeStatus,
    ("consumeFailedMsgs", "consume_failed_count", int64),
    ("consumeFailedTPS", "consume_failed_tps", number),
    ("consumeOKTPS", "consume_ok_tps", number),
    ("consumeRT", "consume_rt", number),
    ("pullRT", "pull_rt", number),
    ("pullTPS", "pull_tps", number),
)
declare(
    ConsumerRunningInfo,
    ("jstack", "stacks", text),
    ("mqPopTable", "pop_queues", table(queue, lambda value: value)),
    ("mqTable", "queues", table(queue, nested(QueueInfo))),
    ("properties", "properties", table(text, text)),
    ("statusTable", "statuses", table(text, nested(ConsumeStatus))),
    ("subscriptionSet", "subscriptions", items(nested(Subscription))),
    ("userConsumerInfo", "user_info", table(text, text)),
    bare_keys=True,
)
declare(
    DirectResult,
    ("autoCommit", "auto_commit", flag),
    ("consumeResult", "result", text),
    ("order", "order", flag),
    ("remark", "remark", text),
    ("spentTimeMills", "spent_ms", int64),
)

"""The broker's settings and its state, shown; and the settings that may be changed while it runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hotfire import settings
from hotfire.broker import changes
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.handlers.beside import answer_beside
from hotfire.errors import BrokerRefused, ConfigError
from hotfire.protocol.bodies import KVTable, encode_body, to_json
from hotfire.protocol.codes import VERSION, ResponseCode
from hotfire.protocol.javajson import dumps
from hotfire.protocol.requests import (
    BrokerConfigReply,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    UpdateBrokerConfig,
)
from hotfire.store.commitlog import ROOT as LOG_DIRECTORY
from hotfire.store.queries import Looker

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")

BODY_BYTES_MAX = 64 << 10
VERSION_TEXT = "V5_5_0"
NO_POOL = 0x7FFFFFFF


@handles(UpdateBrokerConfig)
def update(broker: Broker, call: Call[UpdateBrokerConfig]) -> Outcome:
    """Only what is declared changeable, and only to values its declaration allows; all of it or nothing."""
    body = call.request.body
    if len(body) > BODY_BYTES_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{len(body)} bytes of settings, at most {BODY_BYTES_MAX} are taken",
        )
    try:
        given = settings.load_properties(body.decode("utf-8"))
        config = settings.updated(broker.config, given)
    except UnicodeDecodeError:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "the settings are not UTF-8 text") from None
    except settings.NotReloadable as error:
        raise BrokerRefused(ResponseCode.NO_PERMISSION, str(error)) from None
    except ConfigError as error:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if config == broker.config:
        return Answer()
    host, port = call.connection.peer
    log.info("settings changed peer=%s:%d keys=%s", host, port, ",".join(sorted(given)))
    return Answer(remark=changes.configure(broker, config, call.now_ms))


@handles(GetBrokerConfig)
def show(broker: Broker, call: Call[GetBrokerConfig]) -> Outcome:
    text = settings.format_properties(settings.to_properties(broker.config))
    version = dumps(to_json(broker.config_version)).decode()
    return Answer(BrokerConfigReply(version=version), body=text.encode())


@handles(GetBrokerRuntimeInfo)
def runtime_info(broker: Broker, call: Call[GetBrokerRuntimeInfo]) -> Outcome:
    broker.count(call.now_ms)
    table = runtime_table(broker, call.now_ms)

    def work(look: Looker) -> bytes:
        stored = look.earliest_store_time()
        return encode_body(KVTable({**table, "earliestMessageTimeStamp": str(stored)}))

    return answer_beside(broker, call, work)


def runtime_table(broker: Broker, now_ms: int) -> dict[str, str]:
    """What `clusterList` and `brokerStatus` print, and more that others read. Positions are log offsets."""
    store, total = broker.store, broker.store.queries.disk.total_bytes()
    state: dict[str, object] = {
        **_messages(broker),
        "brokerVersionDesc": VERSION_TEXT,
        "brokerVersion": VERSION,
        "brokerActive": "true" if store.fault is None else "false",
        "bootTimestamp": broker.started_ms,
        "runtime": _span(now_ms - broker.started_ms),
        "startAcceptSendRequestTimeStamp": 0,
        "commitLogMinOffset": store.min_offset,
        "commitLogMaxOffset": store.end,
        "commitLogDiskRatio": f"{store.queries.disk.used_ratio():.2f}",
        f"commitLogDiskRatio_{broker.config.root / LOG_DIRECTORY}": f"{store.queries.disk.used_ratio():.2f}",
        "consumeQueueDiskRatio": f"{store.queries.disk.used_ratio():.2f}",
        "commitLogDirCapacity": f"Total : {_size(total)}, Free : {_size(store.queries.disk.free_bytes())}.",
        "dispatchBehindBytes": store.dispatch_behind,
        "dispatchMaxBuffer": 0,
        "pageCacheLockTimeMills": store.busy_ms,
        "loopHeldTimes": broker.lag.held_count,
        "loopHeldMaxTimeMills": round(broker.lag.held_max_s * 1e3),
        "remainHowManyDataToFlush": _size(store.end - store.flushed_end),
        "remainTransientStoreBufferNumbs": NO_POOL,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": 100_000,
        **{
            f"scheduleMessageOffset_{level}": f"{delivered},{end}"
            for level, (delivered, end) in broker.schedule.progress().items()
        },
        "timerReadBehind": max(0, now_ms // 1000 - broker.timers.read_s),
        "timerOffsetBehind": broker.timers.queue.max - broker.timers.position,
        "timerCongestNum": 0,
        "timerEnqueueTps": 0.0,
        "timerDequeueTps": 0.0,
    }
    # There are no pools of threads: what waits is what is parked. Capacities are those the reference has.
    waiting = {"pull": len(broker.parked), "query": store.queries.waiting}
    capacities = {"send": 10_000, "pull": broker.config.parked_pulls_max, "litePull": 100_000}
    for name, capacity in (capacities | {"query": 20_000, "ack": 100_000}).items():
        state[f"{name}ThreadPoolQueueSize"] = waiting.get(name, 0)
        state[f"{name}ThreadPoolQueueCapacity"] = capacity
        state[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return {key: str(value) for key, value in state.items()}


def _messages(broker: Broker) -> dict[str, object]:
    statistics = broker.statistics
    totals = statistics.totals
    times = max(1, totals.stored)  # the reference's own floor: it divides by it
    found = statistics.rates("found")
    return {
        "putTps": statistics.rates("stored"),
        "getTransferredTps": statistics.rates("delivered"),
        "getTransferedTps": statistics.rates("delivered"),  # as clients of 4.x spell it
        "getFoundTps": found,
        "getMissTps": statistics.rates("missed"),
        "getTotalTps": statistics.rates("found", "missed"),
        "msgPutTotalYesterdayMorning": statistics.stored_mornings[0],
        "msgPutTotalTodayMorning": statistics.stored_mornings[1],
        "msgPutTotalTodayNow": statistics.own_stored,
        "msgGetTotalYesterdayMorning": statistics.delivered_mornings[0],
        "msgGetTotalTodayMorning": statistics.delivered_mornings[1],
        "msgGetTotalTodayNow": statistics.own_delivered,
        "putMessageTimesTotal": times,
        "putMessageSizeTotal": totals.stored_bytes,
        "putMessageAverageSize": totals.stored_bytes / times,
        "putMessageFailedTimes": statistics.failed,
        "putMessageEntireTimeMax": statistics.longest_store_ms,
        "putMessageDistributeTime": statistics.store_times_text(),
        "putLatency99": f"{statistics.store_time_below(0.99):.2f}",
        "putLatency999": f"{statistics.store_time_below(0.999):.2f}",
        "getMessageEntireTimeMax": statistics.longest_read_ms,
    }


def _span(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: int) -> str:
    """Bytes as the reference prints them.

    >>> _size(316), _size(3160), _size(252 << 30)
    ('316 B', '3.1 KiB', '252.0 GiB')
    """
    if count < 1024:
        return f"{count} B"
    size, units = float(count), "KMGTPE"
    at = -1
    while size >= 1024 and at < len(units) - 1:
        size /= 1024
        at += 1
    return f"{size:.1f} {units[at]}iB"

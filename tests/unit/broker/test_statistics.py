"""Counts over time: what was stored and delivered, over the spans Apache's tools ask for."""

import json
import re
import time
from typing import Any

import pytest

from hotfire.broker.statistics import DAY, HOUR, MINUTE, Count, Statistics, Sum
from hotfire.protocol.bodies import KVTable, decode_body
from hotfire.protocol.requests import GetBrokerRuntimeInfo, ViewBrokerStatsData
from tests.unit.broker.harness import START_MS, Harness, pull_request, send_request

CLUSTER = "DefaultCluster"


def test_a_window_is_what_came_between_two_ticks() -> None:
    """What came in the present tick is not counted yet; what is older than the span no longer."""
    count = Count(0)
    count.add(0, 1, 10, 100)
    assert count.over(MINUTE, 9_999) == Sum(0, 0.0, 0.0), "no tick is over"
    assert count.over(MINUTE, 10_000) == Sum(10, 1.0, 10.0)
    assert count.over(MINUTE, 10_000, of_bytes=True) == Sum(100, 10.0, 100.0)
    assert count.over(MINUTE, 60_000) == Sum(10, 10 / 60, 10.0)
    assert count.over(MINUTE, 70_000) == Sum(0, 0.0, 0.0)
    count.add(65_000, 1, 6, 60)
    assert count.over(MINUTE, 69_999) == Sum(10, 10 / 60, 10.0)
    assert count.over(MINUTE, 70_000) == Sum(6, 0.1, 6.0)
    assert count.over(HOUR, 600_000) == Sum(16, 16 / 600, 8.0)
    assert count.over(DAY, 3_600_000) == Sum(16, 16 / 3600, 8.0)


def test_marks_are_bounded() -> None:
    """A count that grows for days keeps no more than its spans need, and is right at every tick."""
    count = Count(0)
    for second in range(0, 200_000, 5):
        count.add(second * 1000, 1, 1, 1)
        if second % 3600 == 0 and second > 90_000:
            assert count.over(MINUTE, second * 1000).sum == 12
            assert count.over(HOUR, second * 1000).sum == 720
            assert count.over(DAY, second * 1000).sum == 24 * 720
    assert sum(len(marks) for marks in count._marks) <= 7 + 7 + 25


def test_a_young_count_has_a_shorter_window() -> None:
    """A topic's first messages count over the time since, not over a minute it did not have."""
    count = Count(25_000)
    count.add(25_000, 1, 10, 10)
    assert count.over(MINUTE, 29_999) == Sum(0, 0.0, 0.0)
    assert count.over(MINUTE, 30_000) == Sum(10, 1.0, 10.0)
    assert count.over(MINUTE, 40_000) == Sum(10, 0.5, 10.0)


def test_mornings_are_remembered() -> None:
    """Totals when yesterday and today began, by the broker's own midnight."""
    day_ms = 86_400_000
    statistics = Statistics(CLUSTER, START_MS)
    now = START_MS
    for messages in (5, 7, 9):
        statistics.stored([(("T", 0), messages, messages)], now)
        now += day_ms
        statistics.tick(now)
    assert statistics.stored_mornings == (12, 21)
    assert statistics.own_stored == 21


def test_at_midnight_the_totals_become_the_morning_s(heart: Harness) -> None:
    """As Java 5.5.0 answers: 7 messages on one day and 3 on the next, sent and read; nobody asks between."""
    heart.create_topic("T", 1)

    def send_and_read(count: int) -> dict[str, str]:
        for _ in range(count):
            heart.send()
            heart.pull(offset=heart.broker.statistics.own_delivered)
            heart.broker.count(heart.now_ms)
        table = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
        names = ("TotalYesterdayMorning", "TotalTodayMorning", "TotalTodayNow")
        return {way: " ".join(table[f"msg{way}{name}"] for name in names) for way in ("Put", "Get")}

    assert send_and_read(7) == {"Put": "0 0 7", "Get": "0 0 7"}
    local = time.localtime(heart.now_ms / 1000)
    until_ms = ((24 - local.tm_hour) * 3600 - local.tm_min * 60 - local.tm_sec) * 1000
    heart.now_ms += until_ms - 1000
    heart.pass_time(3000, step_ms=1000)
    assert send_and_read(3) == {"Put": "0 7 10", "Get": "0 7 10"}
    heart.pass_time(86_400_000, step_ms=3_600_000)
    assert send_and_read(0) == {"Put": "7 10 10", "Get": "7 10 10"}


def test_rates_are_of_the_last_seconds() -> None:
    """10 seconds, a minute and ten minutes, from one sample a second."""
    statistics = Statistics(CLUSTER, START_MS)
    for second in range(1, 701):
        statistics.stored([(("T", 0), 2 if second > 640 else 1, 1)], START_MS + second * 1000)
        statistics.tick(START_MS + second * 1000)
    assert statistics.rates("stored") == f"2.0 2.0 {(540 + 120) / 600}"
    statistics.clock_moved(-3_600_000)
    assert statistics.rates("stored") == f"2.0 2.0 {(540 + 120) / 600}"


def test_counts_of_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups read however many topics, so many counts are kept."""
    monkeypatch.setattr("hotfire.broker.statistics.GROUP_COUNTS_MAX", 3)
    statistics = Statistics(CLUSTER, START_MS)
    for group in range(5):
        statistics.delivered(("T", f"G{group}"), 1, 1)
        statistics.settle(START_MS)
    known = [group for group in range(5) if statistics.windows("GROUP_GET_NUMS", f"T@G{group}", START_MS)]
    assert known == [2, 3, 4]


# --- the broker's ---


def view(heart: Harness, name: str, key: str) -> Any:
    reply = heart.ask(ViewBrokerStatsData(stats_name=name, stats_key=key))
    return json.loads(bytes(reply.body)) if reply.code == 0 else (reply.code, reply.remark)


@pytest.mark.promise(42)
def test_counters_grow_by_what_was_sent(heart: Harness) -> None:
    """1000 sends, by lane and handler: the topic's, the broker's and the status' counts grow by 1000 and the
    bytes stored; and so do those of the group that reads them."""
    heart.create_topic("T", 1)
    before = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    for _ in range(20):
        heart.receive(*[send_request(v1=number % 2 == 0) for number in range(50)])
        heart.settle()
    heart.connection.take()
    after = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    assert int(after["msgPutTotalTodayNow"]) - int(before["msgPutTotalTodayNow"]) == 1000
    assert int(after["putMessageTimesTotal"]) == 1000
    size = heart.store.end
    assert int(after["putMessageSizeTotal"]) - int(before["putMessageSizeTotal"]) == size
    assert float(after["putMessageAverageSize"]) == size / 1000
    offset = 0
    while offset < 1000:
        reply = heart.ask(pull_request(offset, group="CG"))
        assert reply.fields is not None
        offset = int(reply.fields["nextBeginOffset"])
    heart.pass_time(10_000, step_ms=1000)
    minute = {"avgpt": 1.0, "sum": 1000, "tps": 100.0}
    none = {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    assert view(heart, "TOPIC_PUT_NUMS", "T") == {"statsDay": none, "statsHour": none, "statsMinute": minute}
    assert view(heart, "TOPIC_PUT_SIZE", "T")["statsMinute"]["sum"] == size
    assert view(heart, "GROUP_GET_NUMS", "T@CG")["statsMinute"]["sum"] == 1000
    assert view(heart, "GROUP_GET_SIZE", "T@CG")["statsMinute"]["sum"] == size
    assert view(heart, "BROKER_PUT_NUMS", CLUSTER)["statsMinute"] == {**minute, "avgpt": 0.0}
    assert view(heart, "BROKER_GET_NUMS", CLUSTER)["statsMinute"]["sum"] == 1000
    table = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    assert table["putTps"].split()[0] == "100.0"
    assert table["getTransferredTps"].split()[0] == "100.0"
    assert (table["msgGetTotalTodayNow"], table["msgPutTotalTodayNow"]) == ("1000", "1000")


@pytest.mark.promise(42)
def test_time_spent_storing_is_counted(heart: Harness) -> None:
    """The longest time a message took to be safe, and how many took how long."""
    heart.create_topic("T", 1)
    heart.receive(send_request())
    heart.now_ms += 30
    heart.settle()
    heart.connection.take()
    table = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    assert table["putMessageEntireTimeMax"] == "30"
    assert "[10~50ms]:1 " in table["putMessageDistributeTime"]
    assert table["putLatency99"] == "30.00"


def test_what_nothing_happened_to_has_no_count(heart: Harness) -> None:
    """Refused in the reference's words; a deleted group's counts go with it."""
    heart.create_topic("T", 1)
    remark = "The stats <TOPIC_PUT_NUMS> <T> not exist"
    assert view(heart, "TOPIC_PUT_NUMS", "T") == (1, remark)
    assert view(heart, "NOPE", "T") == (1, "The stats <NOPE> <T> not exist")
    assert view(heart, "BROKER_PUT_NUMS", "broker-a") == (
        1,
        "The stats <BROKER_PUT_NUMS> <broker-a> not exist",
    )
    heart.send()
    heart.pull()
    assert view(heart, "TOPIC_PUT_NUMS", "T")["statsMinute"]["sum"] == 0
    assert isinstance(view(heart, "GROUP_GET_NUMS", "T@CG"), dict)
    heart.broker.statistics.forget_group("CG")
    assert view(heart, "GROUP_GET_NUMS", "T@CG") == (1, "The stats <GROUP_GET_NUMS> <T@CG> not exist")


def test_a_start_counts_anew(heart: Harness) -> None:
    """Messages of former lives are in the log, not in the counts."""
    heart.send()
    heart.reopen()
    table = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    assert (table["msgPutTotalTodayNow"], table["putMessageSizeTotal"]) == ("0", "0")
    assert int(table["commitLogMaxOffset"]) > 0
    assert int(table["earliestMessageTimeStamp"]) == START_MS


def test_runtime_info_has_every_key_of_the_reference(heart: Harness) -> None:
    """Whoever reads a key of Java 5.5.0's answer finds it; paths of its own disk are its own."""
    keys = re.findall(
        r"\w+",
        "msgPutTotalTodayNow brokerActive sendThreadPoolQueueHeadWaitTimeMills putMessageDistributeTime "
        "queryThreadPoolQueueHeadWaitTimeMills remainHowManyDataToFlush msgGetTotalTodayNow timerEnqueueTps "
        "queryThreadPoolQueueSize timerOffsetBehind bootTimestamp msgPutTotalYesterdayMorning "
        "msgGetTotalYesterdayMorning pullThreadPoolQueueSize commitLogMinOffset "
        "pullThreadPoolQueueHeadWaitTimeMills runtime dispatchMaxBuffer putTps getTransferredTps getMissTps "
        "litePullThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize getTotalTps consumeQueueDiskRatio "
        "litePullThreadPoolQueueSize pageCacheLockTimeMills ackThreadPoolQueueSize commitLogDiskRatio "
        "getFoundTps EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills "
        "putMessageFailedTimes putLatency999 timerReadBehind commitLogMaxOffset getMessageEntireTimeMax "
        "msgPutTotalTodayMorning putMessageTimesTotal putLatency99 msgGetTotalTodayMorning brokerVersionDesc "
        "startAcceptSendRequestTimeStamp sendThreadPoolQueueSize putMessageEntireTimeMax "
        "earliestMessageTimeStamp commitLogDirCapacity timerCongestNum remainTransientStoreBufferNumbs "
        "ackThreadPoolQueueCapacity queryThreadPoolQueueCapacity putMessageAverageSize dispatchBehindBytes "
        "putMessageSizeTotal sendThreadPoolQueueCapacity timerDequeueTps pullThreadPoolQueueCapacity "
        "litePullThreadPoolQueueCapacity",
    )
    heart.pass_time(61_000, step_ms=1000)
    table = decode_body(KVTable, heart.ask(GetBrokerRuntimeInfo()).body).table
    assert not set(keys) - set(table)
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"
    for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert [float(part) for part in table[name].split(" ")] == [0.0, 0.0, 0.0]

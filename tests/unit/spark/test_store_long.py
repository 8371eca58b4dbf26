"""A store that is larger than memory, read whole: every message comes, and memory does not grow with it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.meter import anonymous_bytes
from tests.peers.hotfire import HotfireProcess, executable
from tests.peers.process import LineProcess

MESSAGES = int(os.environ.get("HOTFIRE_LONG_MESSAGES", 50_000_000))
BYTES_PER_MESSAGE = 420
"""Record, queue entry, index entry, and what the index's slots take."""
DISK_SHARE_MAX = 0.5
TOPIC, QUEUES, BODY_BYTES = "long", 8, 128
LIMIT_S = 1500.0
PARTS = 4
"""Memory is at its height when a quarter is read, and grows no more."""
GROWTH_MAX, GROWTH_BYTES_MAX = 1.1, 64 << 20

# The JVM has all of its heap from the start: what grows is what Arrow, the sockets or the workers keep.
READ = """
import json, sys
from hotfire.spark.session import session
heap = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch"}
spark = session("local[2]", confs=heap)
def read(**limits):
    source = spark.read.format("hotfire-store").options(path=sys.argv[1], topics=sys.argv[2], **limits)
    source.load().createOrReplaceTempView("stored")
    return spark.sql(
        "select queueId, count(*), min(queueOffset), max(queueOffset), sum(length(body)),"
        " sum(length(msgId) + size(properties)) > 0 from stored group by queueId"
    ).collect()
print("ready", flush=True)
read(endingOffset=sys.argv[3])
print("part", flush=True)
print(json.dumps(sorted(map(list, read()))), flush=True)
spark.stop()
"""


def affordable(place: Path) -> int:
    return min(MESSAGES, int(shutil.disk_usage(place).free * DISK_SHARE_MAX / BYTES_PER_MESSAGE))


def fill(directory: Path, messages: int) -> Path:
    """The store of a broker that was filled and has stopped."""
    with HotfireProcess(directory, flush_disk_type="ASYNC_FLUSH") as server:
        command = [str(executable()), "bench", "send", "-n", server.namesrv, "--topic", TOPIC]
        shape = ["--count", str(messages), "--queues", str(QUEUES), "--size", str(BODY_BYTES)]
        subprocess.run(
            [*command, *shape, "--seconds", str(LIMIT_S)], check=True, capture_output=True, timeout=LIMIT_S
        )
        server.stop()
        return server.store


def watched(process: LineProcess) -> tuple[list[int], list[int]]:
    """Anonymous memory of the process and all below it: while a part is read, and while all of it is."""
    process.wait_line(lambda line: line == "ready", what="start of Spark", timeout_s=120)
    part: list[int] = []
    whole: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while process.alive and not any(line.startswith("[[") for line in process.lines()):
        assert time.monotonic() < deadline, f"not read in {LIMIT_S} s"
        (whole if "part" in process.lines() else part).append(anonymous_bytes(process.pid))
        time.sleep(0.25)
    return part, whole


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_great_store_is_read_with_flat_memory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Fifty million messages, or as many as half of the free disk takes: all come, in no more memory than
    a part of them takes."""
    messages = affordable(tmp_path)
    store = fill(tmp_path / "broker", messages)
    process = LineProcess(
        [sys.executable, "-c", READ, str(store), TOPIC, str(messages // QUEUES // PARTS)],
        log=tmp_path / "spark.log",
    )
    try:
        began = time.monotonic()
        part, whole = watched(process)
        line = process.wait_line(lambda line: line.startswith("[["), what="the counts", timeout_s=60)
        seconds = time.monotonic() - began
    finally:
        process.kill()
        shutil.rmtree(store, ignore_errors=True)
    found = json.loads(line)
    assert len(found) == QUEUES
    assert sum(count for _, count, *_ in found) == messages
    for _, count, first, last, body_bytes, has_all in found:
        assert (first, last, body_bytes, has_all) == (0, count - 1, count * BODY_BYTES, True)
    told = "" if messages == MESSAGES else " (the disk has no room for more)"
    record_property("messages", f"{messages:,}{told}")
    record_property("rows/s, the part among them", f"{messages * (1 + 1 / PARTS) / seconds:,.0f}")
    record_property(f"MiB at most, 1 / {PARTS} and all of it", f"{max(part) >> 20}, {max(whole) >> 20}")
    assert max(whole) <= max(part) * GROWTH_MAX + GROWTH_BYTES_MAX

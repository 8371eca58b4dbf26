"""What messages that wait for their time take of memory: `python -m tests.unit.broker.timermemory N DIR`.

Prints the anonymous memory of a broker without them and with them, in bytes. A process of its own, for that
of others would be counted too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hotfire.broker.put import put
from hotfire.protocol.record import Host, Record, encode_properties
from tests.unit.broker.harness import START_MS, STORE_HOST, Harness

SECONDS = 7200
PER_TURN = 2000


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def park(heart: Harness, first: int, count: int) -> None:
    """So many messages, spread over two hours."""
    for number in range(first, first + count):
        due = START_MS + 60_000 + number * 7919 % (SECONDS * 1000)
        named = {"UNIQ_KEY": f"{number:032d}", "TIMER_DELIVER_MS": str(due)}
        record = Record(
            topic="T", queue_id=0, body=b"x" * 100, born_timestamp=START_MS,
            born_host=Host.parse("127.0.0.1", 1), store_timestamp=0, store_host=STORE_HOST,
            properties=encode_properties(named),
        )  # fmt: skip
        put(heart.broker, record, heart.now_ms)
    heart.broker.wants_turn = True
    heart.settle()


def main(count: int, root: Path) -> None:
    heart = Harness(
        root, mapped_file_size_commit_log=256 << 20, max_index_num=4_000_000, max_hash_slot_num=500_000
    )
    heart.create_topic("T")
    timers = heart.broker.timers
    park(heart, 0, PER_TURN)
    while timers.position < PER_TURN:
        heart.tick()
    before = anonymous_bytes()
    for first in range(PER_TURN, count, PER_TURN):
        park(heart, first, PER_TURN)
        while timers.position < first + PER_TURN:
            heart.tick()
    after = anonymous_bytes()
    assert timers.position == count
    assert timers.metrics.waiting("T") == count
    print(before, after)  # noqa: T201  # what the program is for
    heart.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

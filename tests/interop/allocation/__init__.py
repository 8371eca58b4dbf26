"""What the Java client's strategies make of queues and clients: layouts, the program, the record.

`python -m tests.interop.allocation` records `tests/unit/allocation.json` anew; unit tests hold our strategies
against the record, and an interop test the record against the classes of the Java client.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.apache import admin_command
from tests.peers.process import LineProcess

SOURCE = Path(__file__).with_name("Allocation.java")
RECORD = Path(__file__).parents[2] / "unit" / "allocation.json"
SHARE_TIMEOUT_S = 60.0
QUEUES_MAX, CLIENTS_MAX = 20, 7
ODD_NAMES = (
    "north@a", "north@a@", "north@a@b", "north@", "south@broker-10", "south@broker-2", "south@Broker-2",
    "west@ä", "west@\uff01", "west@\U0001f600", "plain", "n",
)  # fmt: skip

Layout = dict[str, Any]


def layouts() -> Iterator[Layout]:
    """Every number of queues and clients, in three rooms; then names whose order or room is not plain, and a
    client that is named twice; then many of both."""
    for count in range(QUEUES_MAX + 1):
        for clients in range(1, CLIENTS_MAX + 1):
            rng = random.Random(f"{count} {clients}")
            brokers = [f"{rng.choice(['north', 'south', 'east'])}@broker-{letter}" for letter in "abc"]
            places = rng.sample([(broker, number) for broker in brokers for number in range(8)], count)
            yield _layout([("T", *place) for place in places], [_client(rng) for _ in range(clients)])
    for seed in range(60):
        rng = random.Random(seed)
        topics = rng.sample(["T", "t", "topic-1", "topic-10", "%RETRY%g"], 2)
        every = [
            (topic, name, number) for topic in topics for name in ODD_NAMES for number in (0, 1, 2, 10, 11)
        ]
        ids = [*(_client(rng) for _ in range(rng.randint(1, 4))), *rng.sample(ODD_NAMES, 4)]
        if seed % 5 == 0:
            ids.append(ids[0])
        rng.shuffle(ids)
        yield _layout(rng.sample(every, rng.randint(1, 30)), ids)
    rng = random.Random("many")
    yield _layout(
        [("T", f"north@b{broker}", number) for broker in range(4) for number in range(50)],
        [_client(rng) for _ in range(30)],
    )


def _client(rng: random.Random) -> str:
    room = rng.choice(["north", "south", "west"])
    return f"{room}@10.0.{rng.randrange(256)}.{rng.randrange(256)}@{rng.randrange(1, 65536)}"


def _layout(queues: list[tuple[str, str, int]], clients: list[str]) -> Layout:
    return {"queues": [list(queue) for queue in queues], "clients": clients}


def shared_by_java(directory: Path) -> list[Layout]:
    """Each layout with what the classes of the Java client make of it."""
    directory.mkdir(parents=True, exist_ok=True)
    process = LineProcess(admin_command(directory, SOURCE), log=directory / "allocation.err")
    try:
        shared, seen = [], 0
        for layout in layouts():
            process.tell(json.dumps(layout))
            line = process.wait_line(
                lambda text: text.startswith("shares "), what="shares", timeout_s=SHARE_TIMEOUT_S, after=seen
            )
            seen = len(process.lines())
            shared.append({**layout, "shares": json.loads(line.removeprefix("shares "))})
    finally:
        process.kill()
    return shared


def recorded() -> list[Layout]:
    layouts: list[Layout] = json.loads(RECORD.read_text())
    return layouts


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        shared = shared_by_java(Path(place))
    lines = ",\n".join(json.dumps(layout, separators=(",", ":")) for layout in shared)
    RECORD.write_text(f"[\n{lines}\n]\n")
    sys.stdout.write(f"{len(shared)} layouts, {RECORD.stat().st_size} bytes\n")
    return 0

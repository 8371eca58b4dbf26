"""Delay levels by the real clock: a broker in a process of its own, and when what it kept was delivered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from hotfire.net.peer import Peer
from hotfire.protocol.record import Record, iter_records, parse_properties
from hotfire.protocol.requests import SendMessageV2
from tests.broker.programs import running, up
from tests.peers import remoting
from tests.peers.pulling import pull

TOPIC, PARKED_TOPIC = "Delayed", "SCHEDULE_TOPIC_XXXX"
LEVEL, DELAY_MS = 1, 1000
COUNT, APART_S = 50, 0.02
LATE_MS_MAX = 100
ROUNDS = 3
TIMEOUT_S = 20.0
HELD = 2


async def send_delayed(peer: Peer, count: int) -> None:
    """One after the other, so that they are due at moments of their own."""
    for number in range(count):
        sent = SendMessageV2(
            producer_group="delays",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=f"UNIQ_KEY\x01{number}\x02DELAY\x01{LEVEL}\x02",
            body=b"late, but not too late",
        )
        await peer.ask(sent, TIMEOUT_S)
        await asyncio.sleep(APART_S)


async def read(peer: Peer, topic: str, first: int, count: int) -> list[Record]:
    """So many messages of queue 0, by pulls that are held until there is something."""
    found: list[Record] = []
    while len(found) < count:
        asked = pull("delays", topic, 0, first + len(found))
        asked = replace(asked, sys_flag=asked.sys_flag | HELD, suspend_timeout_millis=5000)
        found += iter_records((await peer.invoke(asked, TIMEOUT_S)).body)
    return found


async def lateness_ms(address: str, round_number: int) -> list[int]:
    """Of each message of a round: when it was stored for its readers, less when that was due."""
    first = round_number * COUNT
    async with await Peer.connect(address) as sender, await Peer.connect(address) as reader:
        reading = asyncio.create_task(read(reader, TOPIC, first, COUNT))
        await send_delayed(sender, COUNT)
        delivered = await reading
        parked = await read(reader, PARKED_TOPIC, first, COUNT)
    due = {name(record): record.store_timestamp + DELAY_MS for record in parked}
    assert [name(record) for record in delivered] == [str(number) for number in range(COUNT)]
    assert all(due[name(record)] >= record.born_timestamp + DELAY_MS for record in delivered)
    return [record.store_timestamp - due[name(record)] for record in delivered]


def name(record: Record) -> str:
    return parse_properties(record.properties)["UNIQ_KEY"]


def test_a_delayed_message_comes_on_time_to_a_tenth_of_a_second(tmp_path: Path) -> None:
    """Fifty messages at level 1, an otherwise idle broker: none a millisecond early, half of them less than
    100 ms late. A machine that is busy with other work may be late, so it has three tries; none may be early.
    """
    told: list[float] = []
    with running(tmp_path, *up(tmp_path)) as program:
        remoting.create_topic(program.broker, TOPIC, 1)
        for number in range(ROUNDS):
            late_ms = asyncio.run(lateness_ms(program.broker, number))
            assert min(late_ms) >= 0, late_ms
            told.append(median(late_ms))
            if told[-1] < LATE_MS_MAX:
                break
    assert told[-1] < LATE_MS_MAX, told

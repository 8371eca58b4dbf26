"""Searches find the same in one store, be it served by Apache's broker or by ours, and whoever wrote it.

The index is in many small files, the messages come over some seconds, for an index of keys knows no less, and
some keys have more messages than an answer takes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotfire import Message, Producer, QueueReader, ReceivedMessage
from hotfire.client.searching import Found
from hotfire.net.peer import Peer
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import ViewMessageById
from tests.interop import stores
from tests.interop.clients import Server
from tests.interop.content import content
from tests.peers import jars, remoting
from tests.peers.hotfire import HotfireProcess
from tests.peers.process import poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

OURS, THEIRS, QUEUES, COUNT = "written-by-us", "written-by-them", 4, 600
SIZES = {**stores.SIZES, "maxHashSlotNum": "60", "maxIndexNum": "300"}
INDEX_FILES_MIN = 8
PART, PART_S = 50, 0.3
EVERY, LAST = "every", f"number-{COUNT - 1}"
ALIKE = "Aa", "BB"
"""An index of keys holds their hashes, and these have the same. Apache's broker answers with both and leaves
it to the client to tell them apart; ours does that itself, so that by the wire they are not compared."""
AT_MOST = 1, 2, 7, 32, 64, 1000
SPAN_MAX_MS = 1 << 50


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's broker")


@contextmanager
def hotfire(directory: Path, store: Path) -> Iterator[HotfireProcess]:
    """Its end is an orderly one."""
    with stores.hotfire(directory, store, SIZES) as server:
        yield server
        assert server.terminate() == 0


# --- what is there ---


def message(topic: str, number: int) -> Message:
    wanted = content(number)
    keys = [EVERY, f"fourth-{number % 4}", f"number-{number}", *(wanted.keys or "").split()]
    keys += [ALIKE[number // 20 % 2]] if number % 20 == 0 else []
    return Message(
        topic, wanted.body, tag=wanted.tags, keys=[key.replace(" ", "-") for key in keys],
        properties=wanted.properties,
    )  # fmt: skip


async def send(server: Server, topic: str) -> None:
    async with Producer(server.namesrv, timeout_s=stores.TIMEOUT_S) as producer:
        for first in range(0, COUNT, PART):
            await asyncio.gather(*(producer.send(message(topic, n)) for n in range(first, first + PART)))
            await asyncio.sleep(PART_S)  # time is to pass for the index


def fill(server: Server, topic: str) -> None:
    remoting.create_topic(server.broker, topic, QUEUES)
    stores.await_route(server, topic, QUEUES)
    asyncio.run(send(server, topic))


def await_index(server: Server, topic: str) -> None:
    """Apache's broker makes it beside the log."""
    asked = {"topic": topic, "key": LAST, "maxNum": 1, "beginTimestamp": 0, "endTimestamp": SPAN_MAX_MS}
    poll_until(
        lambda: remoting.ask(server.broker, remoting.QUERY_MESSAGE, asked).code == remoting.SUCCESS,
        what=f"{LAST} in the index",
        timeout_s=stores.TIMEOUT_S,
    )


# --- what is asked ---


def shown(found: Found) -> tuple[list[str], bool, int | None]:
    return [one.message_id for one in found.messages], found.is_more, found.crowded_ms


async def by_client(server: Server, topic: str) -> tuple[dict[str, Any], list[ReceivedMessage]]:
    """Every kind of question a client has, with their answers as plain values; and all messages."""
    told: dict[str, Any] = {}
    async with QueueReader(server.namesrv) as reader:
        every = await reader.find_by_time(topic, 0, 1 << 60, count_max=2 * COUNT)
        told["all"] = shown(every)
        times = [one.store_timestamp_ms for one in every.messages]
        third, half = times[COUNT // 3], times[COUNT // 2]
        told["span"] = shown(await reader.find_by_time(topic, third, half, count_max=COUNT))
        told["part of a span"] = shown(await reader.find_by_time(topic, third, half, count_max=10))
        for index in range(0, COUNT, 37):
            key = (content(index).keys or "none").split()[-1]  # few keys, on many messages
            told[f"key {index}"] = shown(await reader.find_by_key(topic, key))
            told[f"key {index} in span"] = shown(
                await reader.find_by_key(topic, key, begin_ms=third, end_ms=half)
            )
            unique = every.messages[index].message_id
            told[f"id {index}"] = shown(await reader.find_by_key(topic, unique, unique=True))
        told["no such key"] = shown(await reader.find_by_key(topic, "none of them"))
        for key, count_max in itertools.product((EVERY, "fourth-1", *ALIKE), (10, 64, 150, COUNT)):
            for begin, end in ((0, SPAN_MAX_MS), (third, half), (third + 1, half - 1)):
                told[f"{key} from {begin} to {end}, {count_max}"] = shown(
                    await reader.find_by_key(topic, key, begin_ms=begin, end_ms=end, count_max=count_max)
                )
    peer = await Peer.connect(server.broker)
    for one in every.messages[::50]:
        offset = int(one.offset_message_id[-16:], 16)
        whole, beside = [await peer.invoke(ViewMessageById(offset=at), 10.0) for at in (offset, offset + 1)]
        told[f"place {offset}"] = whole.code, bytes(whole.body)
        told[f"beside {offset}"] = beside.code
    await peer.close()
    return told, every.messages


def by_wire(server: Server, topic: str, times: list[int]) -> dict[str, Any]:
    """Each answer itself: which records, in which order, and how far the index says it is."""
    told: dict[str, Any] = {}
    first, third, half, last = times[0], times[COUNT // 3], times[COUNT // 2], times[-1]
    spans = [
        (0, SPAN_MAX_MS), (third, half), (third - 1, half + 1), (third + 1, half - 1), (0, third),
        (half, SPAN_MAX_MS), (third, third), (0, first - 5000), (last + 5000, SPAN_MAX_MS), (half, third),
    ]  # fmt: skip
    keys = (EVERY, "fourth-2", "number-7", LAST, "none of them")
    for key, (begin, end), count in itertools.product(keys, spans, AT_MOST):
        span = {"beginTimestamp": begin, "endTimestamp": end}
        asked = {"topic": topic, "key": key, "maxNum": count, **span}
        answer = remoting.ask(server.broker, remoting.QUERY_MESSAGE, asked)
        found = [record.physical_offset for record in iter_records(answer.body)]
        told[f"{key} by wire from {begin} to {end}, {count}"] = (
            answer.code,
            found,
            sorted(answer.fields.items()),
        )
    moments = [at + by for at in (first, third, half, last) for by in (-5000, -1, 0, 1, 5000)]
    for queue, at, boundary in itertools.product(range(QUEUES), moments, ("lower", "upper")):
        asked = {"topic": topic, "queueId": queue, "timestamp": at, "boundaryType": boundary}
        answer = remoting.ask(server.broker, remoting.SEARCH_OFFSET_BY_TIMESTAMP, asked)
        told[f"{boundary} offset of {at} in {queue}"] = answer.code, sorted(answer.fields.items())
    return told


def everything(server: Server, topic: str) -> dict[str, Any]:
    stores.await_route(server, topic, QUEUES)
    await_index(server, topic)
    told, every = asyncio.run(by_client(server, topic))
    assert len(every) == COUNT
    assert len(told[f"fourth-1 from 0 to {SPAN_MAX_MS}, {COUNT}"][0]) == COUNT // 4, "more than a page"
    return told | by_wire(server, topic, [one.store_timestamp_ms for one in every])


def same(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert theirs.keys() == ours.keys()
    differing = {name: (told, ours[name]) for name, told in theirs.items() if ours[name] != told}
    assert not differing, f"{len(differing)} of {len(theirs)}: {differing}"[:3000]


@pytest.mark.promise(156, 157, 158)
def test_searches_find_the_same_in_one_store(tmp_path: Path) -> None:
    """By time over all queues, by key, by key and span, by unique id, by place in the log: of what one broker
    wrote the other says the same, also where there is more than an answer takes. Apache's opens a store of
    ours, goes on with its log and its index, and gives it back."""
    store = tmp_path / "store"
    with hotfire(tmp_path / "hotfire", store) as server:
        fill(server, OURS)
        by_writer = everything(server, OURS)
    assert len(list((store / "index").iterdir())) >= INDEX_FILES_MIN
    with stores.apache(tmp_path / "apache", store, SIZES) as theirs:
        same(everything(theirs, OURS), by_writer)
        fill(theirs, THEIRS)
        by_them = {topic: everything(theirs, topic) for topic in (THEIRS, OURS)}
    with hotfire(tmp_path / "again", store) as server:
        for topic, told in by_them.items():
            same(told, everything(server, topic))

"""Searches of our client find the same in one store, be it served by Apache's broker or by ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotfire import QueueReader
from hotfire.client.searching import Found
from hotfire.net.peer import Peer
from hotfire.protocol.requests import ViewMessageById
from tests.interop import stores
from tests.interop.clients import Server
from tests.interop.content import content
from tests.interop.stores import apache, hotfire
from tests.peers import jars, remoting

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, QUEUES, COUNT = "searched", 4, 600


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's broker")


def shown(found: Found) -> tuple[list[str], bool]:
    return [one.message_id for one in found.messages], found.is_more


async def everything(server: Server) -> dict[str, Any]:
    """Every kind of question, with their answers as plain values."""
    told: dict[str, Any] = {}
    async with QueueReader(server.namesrv) as reader:
        every = await reader.find_by_time(TOPIC, 0, 1 << 60, count_max=2 * COUNT)
        told["all"] = shown(every)
        times = [one.store_timestamp_ms for one in every.messages]
        third, half = times[COUNT // 3], times[COUNT // 2]
        told["span"] = shown(await reader.find_by_time(TOPIC, third, half, count_max=COUNT))
        told["part of a span"] = shown(await reader.find_by_time(TOPIC, third, half, count_max=10))
        for index in range(0, COUNT, 37):
            key = (content(index).keys or "none").split()[-1]  # few keys, on many messages
            told[f"key {index}"] = shown(await reader.find_by_key(TOPIC, key))
            told[f"key {index} in span"] = shown(
                await reader.find_by_key(TOPIC, key, begin_ms=third, end_ms=half)
            )
            unique = every.messages[index].message_id
            told[f"id {index}"] = shown(await reader.find_by_key(TOPIC, unique, unique=True))
        told["no such key"] = shown(await reader.find_by_key(TOPIC, "none of them"))
    peer = await Peer.connect(server.broker)
    for message in every.messages[::50]:
        offset = int(message.offset_message_id[-16:], 16)
        whole, beside = [await peer.invoke(ViewMessageById(offset=at), 10.0) for at in (offset, offset + 1)]
        told[f"place {offset}"] = whole.code, bytes(whole.body)
        told[f"beside {offset}"] = beside.code
    await peer.close()
    return told


@pytest.mark.promise(156, 157, 158)
def test_searches_find_the_same_in_one_store(tmp_path: Path) -> None:
    """By time over all queues, by key, by key and span, by unique id, by place in the log."""
    store = tmp_path / "store"
    with hotfire(tmp_path / "hotfire", store) as ours:
        remoting.create_topic(ours.broker, TOPIC, QUEUES)
        stores.await_route(ours, TOPIC, QUEUES)
        stores.send_contents(ours, TOPIC, range(COUNT))
        by_us = asyncio.run(everything(ours))
        assert ours.terminate() == 0
    assert len(by_us["all"][0]) == COUNT
    with apache(tmp_path / "apache", store) as theirs:
        stores.await_route(theirs, TOPIC, QUEUES)
        by_them = asyncio.run(everything(theirs))
    differing = {name: (by_them[name], told) for name, told in by_us.items() if by_them[name] != told}
    assert not differing, str(differing)[:3000]

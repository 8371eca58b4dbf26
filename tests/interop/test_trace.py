"""Apache's tools read what our client tells of its messages, and ask it how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire import (
    Consumer,
    Message,
    Producer,
    QueueReader,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import BrokerRefused
from hotfire.model import TRACE_TOPIC
from tests.interop.clients import Server
from tests.interop.mqadmin import Mqadmin
from tests.interop.traces import read_by_java

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_apaches_tools_ask_about_our_client(
    server: Server, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """queryMsgTraceById shows who sent and who consumed; consumerStatus queues, settings and stacks."""
    topic, group = unique("traced"), unique("tracers")
    outputs: dict[str, str] = {}

    async def scenario(admin: Mqadmin) -> str:
        loop = asyncio.get_running_loop()
        seen: list[ReceivedMessage] = []
        came = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            came.set()

        async def run(*words: str) -> None:
            outputs[words[0]] = await loop.run_in_executor(None, lambda: admin.run(*words))

        async with Producer(server.namesrv, group=f"{group}-p", trace=True) as producer:
            sent = await producer.send(Message(topic, b"x", keys=("traced-key",)))
            consumer = Consumer(server.namesrv, group=group, consume_from=ConsumeFrom.FIRST, trace=True)
            consumer.subscribe(topic, handle)
            async with consumer:
                await came.wait()
                client_id = consumer._running.instance.client_id
                await run("consumerStatus", "-g", group, "-i", client_id, "-s")
        await run("queryMsgTraceById", "-i", sent.message_id)
        await run("sendMsgStatus", "-b", "broker-a", "-s", "16", "-c", "3")
        return topic

    with Mqadmin(server.namesrv, directory=tmp_path) as admin:
        asyncio.run(scenario(admin))
    trace = outputs["queryMsgTraceById"]
    rows = [line.split() for line in trace.splitlines() if line.startswith(("Pub", "Sub"))]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("Pub", f"{group}-p", "success"),
        ("Sub", group, "success"),
    ], trace
    status = outputs["consumerStatus"]
    for word in ("#Consumer Properties#", "PROP_CONSUME_TYPE", topic, "#Consumer jstack#", "test_trace.py"):
        assert word in status, status
    assert outputs["sendMsgStatus"].count("SEND_OK") == 3, outputs["sendMsgStatus"]


def test_java_reads_how_our_transactions_ended_and_what_we_took_back(
    server: Server, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Its own reader finds each field where Java's producers write it."""
    topic, group = unique("ended"), unique("enders")
    ends = {
        b"paid": TransactionState.COMMIT,
        b"void": TransactionState.ROLLBACK,
        b"slow": TransactionState.UNKNOWN,
    }
    ids: list[str] = []

    async def scenario() -> list[bytes]:
        async def execute(message: Message, arg: object) -> TransactionState:
            return ends[message.body]

        async def check(message: ReceivedMessage) -> TransactionState:
            return TransactionState.UNKNOWN

        async with TransactionProducer(
            server.namesrv, group=group, execute=execute, check=check, trace=True
        ) as producer:
            await producer.send(Message(topic, b"first"))  # the topic is there from now on
            for body in ends:
                told = await producer.send_in_transaction(Message(topic, body, tag="a", keys=(group,)))
                ids.append(told.sent.message_id)
            late = await producer.send(Message(topic, b"late", delay_ms=60_000))
            ids.append(late.message_id)
            with suppress(BrokerRefused):  # unless the broker is told to allow it; both are told of
                await producer.recall(late)
        async with QueueReader(server.namesrv) as reader:
            found = await reader.messages_by_key(TRACE_TOPIC, group)
            found += await reader.messages_by_key(TRACE_TOPIC, ids[3])
        return list({message.message_id: message.body for message in found}.values())

    entries = read_by_java(tmp_path, asyncio.run(scenario()))
    assert all(entry[2:5] == ["DefaultRegion", group, topic] for entry in entries), entries
    ended = [entry for entry in entries if entry[0] == "EndTransaction"]
    assert [(entry[5], entry[6], entry[7], entry[9], entry[11], entry[12]) for entry in ended] == [
        (ids[0], "a", group, "Trans_msg_Commit", "COMMIT_MESSAGE", "false"),
        (ids[1], "a", group, "Trans_msg_Commit", "ROLLBACK_MESSAGE", "false"),
        (ids[2], "a", group, "Trans_msg_Commit", "UNKNOW", "false"),
    ]
    assert [entry[10] for entry in ended] == ids[:3]
    (recalled,) = [entry for entry in entries if entry[0] == "Recall"]
    assert recalled[5] == ids[3]
    assert recalled[6] in ("true", "false")

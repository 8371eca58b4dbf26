"""What a producer promises of batches: together in one queue, an id each, split when too large."""

import asyncio
from pathlib import Path

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client.batches import prepare_batches
from hotfire.client.messages import received_messages
from hotfire.errors import LocalProtocolError, SystemBusy
from hotfire.model import ReceivedMessage, TopicConfig
from hotfire.net.peer import Peer
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.command import Command
from hotfire.protocol.record import parse_properties
from hotfire.protocol.requests import SendMessage, SendReply
from tests.peers.pulling import pull
from tests.unit.client.cluster import SYSTEM_BUSY, Cluster, ScriptedBroker, run
from tests.unit.client.real import real_cluster

T = TopicConfig("T", 4, 4)


def take(broker: ScriptedBroker, send: SendMessage) -> Command:
    """Store a batch, in memory."""
    count = len(decode_batch(send.body))
    earlier = sum(len(decode_batch(one.body)) for one in broker.sends[:-1] if one.queue_id == send.queue_id)
    ids = ",".join(f"{earlier + n:032X}" for n in range(count))
    reply = SendReply(queue_id=send.queue_id, msg_id=ids, queue_offset=earlier)
    return Command(0, fields=reply.to_fields())


@pytest.mark.promise(147)
@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "needs a message"),
        ([Message("T", b"x"), Message("U", b"x")], "to U"),
        ([Message("T", b"x"), Message("T", b"x", wait_stored=False)], "wait_stored"),
        ([Message("T", b"x"), Message("T", b"x", delay_level=1)], "delayed"),
        ([Message("%RETRY%G", b"x")], "retry"),
        ([Message("T", b"x"), Message("T", b"")], "empty"),
        ([Message("T", b"x"), Message("T", bytes(4 << 20))], "send it alone"),
        ([Message("T", b"x"), Message("T", b"x", tag="\x01")], "TAGS"),
    ],
)
def test_what_may_not_travel_together_is_refused(messages: list[Message], problem: str) -> None:
    """Each violation is an error of ours, and not even the messages before it are sent."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=take)
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(LocalProtocolError, match=problem):
                await producer.send_batch(messages)
            await producer.send_batch([Message("T", b"fine")])
        assert len(broker.sends) == 1

    run(scenario)


@pytest.mark.promise(148)
def test_a_batch_is_one_request_and_each_message_has_its_id() -> None:
    """Ten messages: one request 320, uncompressed, ten ids in it and ten results with offsets in a row."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=take)
        messages = [Message("T", b"a" * 5000, tag="t", keys=(f"k{n}",), flag=n) for n in range(10)]
        async with Producer(cluster.namesrv) as producer:
            results = await producer.send_batch(iter(messages))
        (send,) = broker.sends
        assert (send.code, send.batch, send.sys_flag, send.flag) == (320, True, 0, 0)
        parts = decode_batch(send.body)
        inside = [parse_properties(part.properties) for part in parts]
        assert [part.body for part in parts] == [message.body for message in messages]
        assert [part.flag for part in parts] == list(range(10))
        assert [one["UNIQ_KEY"] for one in inside] == [result.message_id for result in results]
        assert [(one["TAGS"], one["KEYS"], one["WAIT"]) for one in inside] == [
            ("t", f"k{n}", "true") for n in range(10)
        ]
        whole = parse_properties((send.properties or "").encode())
        assert set(whole) == {"UNIQ_KEY", "WAIT"}
        assert len({*(result.message_id for result in results), whole["UNIQ_KEY"]}) == 11
        assert [result.queue_offset for result in results] == list(range(10))
        assert [result.offset_message_id for result in results] == [f"{n:032X}" for n in range(10)]
        assert len({result.queue for result in results}) == 1

    run(scenario)


@pytest.mark.promise(147, 148)
def test_a_batch_is_stored_in_a_row(tmp_path: Path) -> None:
    """A real broker: consecutive offsets in one queue, each message under its own id, none missing."""

    async def scenario() -> None:
        async with real_cluster(tmp_path) as cluster, Producer(cluster.namesrv) as producer:
            for count in (10, 1, 300):
                messages = [Message("T", b"%d" % n, tag="a") for n in range(count)]
                results = await producer.send_batch(messages)
                first = results[0]
                assert [r.queue_offset for r in results] == [
                    *range(first.queue_offset, first.queue_offset + count)
                ]
                async with await Peer.connect(cluster.brokers[0].advertised) as peer:
                    stored = await _read(peer, first.queue, first.queue_offset, count)
                assert [(m.message_id, m.body, m.offset_message_id) for m in stored] == [
                    (r.message_id, m.body, r.offset_message_id)
                    for r, m in zip(results, messages, strict=True)
                ]

    asyncio.run(scenario())


async def _read(peer: Peer, queue: MessageQueue, offset: int, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        request = pull("TOOLS_CONSUMER", queue.topic, queue.queue_id, offset + len(found))
        reply = await peer.ask(request, 5.0)
        found += received_messages(reply.body, queue.broker_name)
    return found[:count]


def test_too_much_for_one_request_is_split() -> None:
    """Messages beyond the size limit make several requests, each within it, all in order; a failure tells
    what was stored before."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=take)
        messages = [Message("T", b"%03d" % n + bytes(700)) for n in range(10)]
        async with Producer(cluster.namesrv, message_bytes_max=2048) as producer:
            results = await producer.send_batch(messages, queue=MessageQueue("T", "broker-a", 1))
            assert len(broker.sends) == 5
            assert all(len(send.body) <= 2048 for send in broker.sends)
            assert [part.body for send in broker.sends for part in decode_batch(send.body)] == [
                message.body for message in messages
            ]
            assert [result.queue_offset for result in results] == list(range(10))

            def refuse_third(one: ScriptedBroker, send: SendMessage) -> Command | None:
                return take(one, send) if len(one.sends) <= 7 else SYSTEM_BUSY(one, send)

            broker.behave = refuse_third
            with pytest.raises(SystemBusy) as caught:
                await producer.send_batch(messages, queue=MessageQueue("T", "broker-a", 1))
            assert [result.queue_offset for result in caught.value.results] == [10, 11, 12, 13]

    run(scenario)


def test_requests_hold_a_bounded_number() -> None:
    """No more than 32767 messages in one request, however small they are."""
    ids = (f"{n:032X}" for n in range(1 << 20))
    batches = list(prepare_batches([Message("T", b"x")] * 40_000, lambda: next(ids), body_bytes_max=1 << 24))
    assert [len(batch.ids) for batch in batches] == [32_767, 7_233]

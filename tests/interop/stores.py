"""One store directory, served by turns by Hotfire and by Apache's broker: filled, read, asked, compared.

Owns the sizes both are started with, the reading of whole queues and the lookups by key and by time, all on
the wire.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from hotfire.client.messages import received_messages
from hotfire.client.producer import Producer
from hotfire.model import Message, ReceivedMessage
from hotfire.net.peer import Peer
from hotfire.protocol.record import Record, encode_record, iter_records, parse_properties
from hotfire.protocol.requests import PullMessage
from tests.interop.clients import Server
from tests.interop.content import content
from tests.peers import remoting
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess
from tests.peers.process import poll_until

SUBSCRIPTION = 4
TIMEOUT_S = 20.0
QUERY_MAX = 64
FAR_FUTURE_MS = 1 << 50
SIZES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "1000",
}
APACHES = {
    "waitTimeMillsInSendQueue": "5000",
    "messageIndexSafe": "true",
    "commitLogRecoverMaxNum": "1000",
}
"""Cold and on few cores Apache's broker refuses sends that waited 200 ms. After a crash it throws index files
away, and makes them anew only when told that keys matter, of the last ten segments if not told better."""

Place = tuple[str, int, int]
"""Topic, queue, offset."""
Records = dict[Place, Record]


def hotfire(directory: Path, store: Path, sizes: Mapping[str, str] = SIZES) -> HotfireProcess:
    """Hotfire on this store; the last setting of a name counts."""
    arguments = [f"--set={name}={value}" for name, value in sizes.items()]
    return HotfireProcess(directory, arguments=[*arguments, f"--set=storePathRootDir={store}"])


def apache(directory: Path, store: Path, sizes: Mapping[str, str] = SIZES) -> ApacheCluster:
    return ApacheCluster(directory, settings={"storePathRootDir": str(store), **APACHES, **sizes})


# --- filling ---


def send_contents(server: Server, topic: str, indexes: Iterable[int]) -> None:
    """The messages of these numbers, by our own producer; every one acknowledged."""

    async def send() -> None:
        async with Producer(server.namesrv, timeout_s=TIMEOUT_S) as producer:
            for index in indexes:
                await producer.send(message(topic, index))

    asyncio.run(send())


def message(topic: str, index: int) -> Message:
    wanted = content(index)
    keys = tuple((wanted.keys or "").split())
    return Message(topic, wanted.body, tag=wanted.tags, keys=keys, properties=wanted.properties)


def await_route(server: Server, topic: str, queues: int) -> None:
    poll_until(
        lambda: remoting.queue_count(server.namesrv, topic) == queues,
        what=f"route to {queues} queues of {topic}",
        timeout_s=TIMEOUT_S,
    )


def await_saved(store: Path, table: str, text: str) -> None:
    """Tables are written from time to time; wait until this one says so."""
    poll_until(
        lambda: text in (store / "config" / table).read_text(), what=f"{text} in {table}", timeout_s=TIMEOUT_S
    )


# --- reading ---


def read_topic(server: Server, topic: str, queues: int, *, group: str) -> Records:
    """Every record of a topic, pulled queue by queue."""
    return read_queues(server, {topic: range(queues)}, group=group)


def read_queues(server: Server, queues: Mapping[str, Iterable[int]], *, group: str) -> Records:
    async def read() -> Records:
        found: Records = {}
        async with await Peer.connect(server.broker) as peer:
            for topic, queue_ids in queues.items():
                for queue_id in queue_ids:
                    await _read_queue(peer, group, topic, queue_id, found)
        return found

    return asyncio.run(read())


async def _read_queue(peer: Peer, group: str, topic: str, queue_id: int, found: Records) -> None:
    offset, end = 0, 1
    while offset < end:
        pull = PullMessage(
            consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
            sys_flag=SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
        )  # fmt: skip
        reply = await peer.invoke(pull, TIMEOUT_S)
        assert reply.fields is not None, reply
        assert "maxOffset" in reply.fields, f"pull of {topic}/{queue_id} at {offset}: {reply}"
        for record in iter_records(reply.body):
            assert record.queue_offset == offset, f"{topic}/{queue_id} skips from {offset}: {record}"
            found[topic, queue_id, offset] = record
            offset += 1
        end = int(reply.fields["maxOffset"])
        assert offset == int(reply.fields["nextBeginOffset"]), f"{topic}/{queue_id} at {offset}: {reply}"


def contents_differ(records: Records, expected: Iterable[int]) -> list[str]:
    """What is wrong with the messages, each of which should be there once."""
    wrong, seen = [], []
    for place, record in records.items():
        (received,) = received_messages(record_bytes(record), "broker-a")
        index = int(received.properties.get("index", "-1"))
        seen.append(index)
        wrong += [f"{place}: {line}" for line in _differences(received, index)]
    missing = sorted(set(expected) - set(seen))
    extra = sorted(set(seen) - set(expected))
    if missing or extra or len(seen) != len(set(seen)):
        wrong.append(f"missing {missing[:5]}, nobody sent {extra[:5]}, {len(seen)} in all")
    return wrong


def record_bytes(record: Record) -> bytes:
    return encode_record(record, append_crc=False)


def _differences(received: ReceivedMessage, index: int) -> list[str]:
    wanted = content(index)
    facts = [
        ("body", wanted.body, received.body),
        ("keys", tuple((wanted.keys or "").split()), received.keys),
        ("tag", wanted.tags, received.tag),
        (
            "properties",
            wanted.properties,
            {name: received.properties.get(name) for name in wanted.properties},
        ),
    ]
    return [
        f"{name} should be {right!r:.60}, is {seen!r:.60}" for name, right, seen in facts if right != seen
    ]


# --- asking ---


def keys_in(records: Records) -> dict[tuple[str, str], list[int]]:
    """(topic, key) -> physical offsets of the messages that have it, as the index should answer."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records.values():
        for key in _keys(record):
            found[record.topic, key].append(record.physical_offset)
    return {key: sorted(offsets) for key, offsets in found.items() if len(offsets) <= QUERY_MAX}


def _keys(record: Record) -> set[str]:
    properties = parse_properties(record.properties)
    return {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}


def ask_keys(server: Server, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
    """QUERY_MESSAGE for each: offsets of the messages that really have the key."""
    answers = {}
    for topic, key in keys:
        span = {"beginTimestamp": 0, "endTimestamp": FAR_FUTURE_MS}
        fields = {"topic": topic, "key": key, "maxNum": QUERY_MAX, **span}
        answer = remoting.ask(server.broker, remoting.QUERY_MESSAGE, fields)
        assert answer.code in (remoting.SUCCESS, remoting.QUERY_NOT_FOUND), answer
        answers[topic, key] = _holding(iter_records(answer.body), topic, key)
    return answers


def _holding(records: Iterable[Record], topic: str, key: str) -> list[int]:
    """Those that have the key itself and not just its hash, each once."""
    return sorted(
        {record.physical_offset for record in records if record.topic == topic and key in _keys(record)}
    )


def time_answers(records: Records, topic: str, queue_id: int, times: Iterable[int]) -> dict[int, int]:
    """The smallest offset stored at or after each time, the queue's end when there is none."""
    of_queue = sorted(
        (offset, record.store_timestamp)
        for (of_topic, of_id, offset), record in records.items()
        if (of_topic, of_id) == (topic, queue_id)
    )
    end = of_queue[-1][0] + 1
    return {time: next((offset for offset, stored in of_queue if stored >= time), end) for time in times}


def ask_times(server: Server, topic: str, queue_id: int, times: Iterable[int]) -> dict[int, int]:
    answers = {}
    for time in times:
        fields = {"topic": topic, "queueId": queue_id, "timestamp": time}
        answer = remoting.call(server.broker, remoting.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        answers[time] = int(answer.fields["offset"])
    return answers

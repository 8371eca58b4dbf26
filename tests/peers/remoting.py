"""Just enough of the remoting protocol to ask a server one question and read its answer.

Written apart from hotfire.protocol on purpose: a mistake there must not hide itself here.
JSON headers only, one blocking connection per call.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.peers.process import poll_until

QUERY_MESSAGE = 12
QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_TOPIC = 17
SEARCH_OFFSET_BY_TIMESTAMP = 29
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_CONSUMER_LIST_BY_GROUP = 38
UNREGISTER_BROKER = 104
GET_ROUTE_BY_TOPIC = 105
SEND_MESSAGE_V2 = 310

STORED_TIMEOUT_S = 60.0
SUCCESS = 0
QUERY_NOT_FOUND = 22
_opaque = itertools.count(1)


class Refused(Exception):
    """The server answered with a code other than success."""


@dataclass(frozen=True)
class Answer:
    code: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes


def ask(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = 5.0,
) -> Answer:
    """One request, one answer, whatever its code. Raises OSError when nobody serves the address."""
    host, _, port = address.rpartition(":")
    header = {
        "code": code,
        "extFields": {name: _text(value) for name, value in (fields or {}).items()},
        "flag": 0,
        "language": "JAVA",
        "opaque": next(_opaque),
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    encoded = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        (length,) = struct.unpack(">i", _read_exactly(connection, 4))
        frame = _read_exactly(connection, length)
    (marked,) = struct.unpack(">i", frame[:4])
    assert marked >> 24 == 0, f"a JSON request to {address} was answered with header type {marked >> 24}"
    answered: dict[str, Any] = json.loads(frame[4 : 4 + marked])
    assert answered["opaque"] == header["opaque"], f"opaque {answered['opaque']} for {header['opaque']}"
    return Answer(
        answered["code"], answered.get("remark"), answered.get("extFields") or {}, frame[4 + marked :]
    )


def call(address: str, code: int, fields: Mapping[str, object] | None = None, *, body: bytes = b"") -> Answer:
    """As `ask`, but anything other than success is an exception."""
    answer = ask(address, code, fields, body=body)
    if answer.code != SUCCESS:
        raise Refused(f"request {code} {fields} to {address}: code {answer.code}: {answer.remark}")
    return answer


def create_topic(broker: str, topic: str, queues: int) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    call(broker, UPDATE_AND_CREATE_TOPIC, fields)


def unregister_broker(namesrv: str, name: str, address: str) -> None:
    """Make a name server forget a broker, until that registers again."""
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster", "brokerId": 0}
    call(namesrv, UNREGISTER_BROKER, fields)


def brokers(namesrv: str) -> list[str]:
    """Addresses of the brokers a name server knows, by the topic every broker makes."""
    found = route(namesrv, "BenchmarkTest") or {"brokerDatas": []}
    return [one["brokerAddrs"]["0"] for one in found["brokerDatas"]]


def route(namesrv: str, topic: str) -> dict[str, Any] | None:
    """The topic's route, or None while the name server does not know it."""
    answer = ask(namesrv, GET_ROUTE_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
    return _java_json(answer.body) if answer.code == SUCCESS else None


def queue_count(namesrv: str, topic: str) -> int:
    """Read queues of a topic over all brokers; 0 while it has no route."""
    found = route(namesrv, topic)
    return sum(queue["readQueueNums"] for queue in found["queueDatas"]) if found else 0


def stored_count(namesrv: str, broker: str, topic: str) -> int:
    """Messages in all queues of a topic that lives on one broker."""
    total = 0
    for queue in range(queue_count(namesrv, topic)):
        fields = {"topic": topic, "queueId": queue}
        total += int(call(broker, GET_MAX_OFFSET, fields).fields["offset"])
        total -= int(call(broker, GET_MIN_OFFSET, fields).fields["offset"])
    return total


def await_stored(namesrv: str, broker: str, topic: str, count: int) -> None:
    """Wait until so many messages can be pulled: the queues of Apache's broker follow its log by a moment."""
    poll_until(
        lambda: stored_count(namesrv, broker, topic) >= count,
        what=f"{count} messages in {topic} of {broker}",
        timeout_s=STORED_TIMEOUT_S,
    )


def max_offsets(broker: str, topic: str, queues: int) -> list[int]:
    asked = ({"topic": topic, "queueId": queue} for queue in range(queues))
    return [int(call(broker, GET_MAX_OFFSET, fields).fields["offset"]) for fields in asked]


def committed_offsets(
    broker: str, topic: str, group: str, queues: int, *, default: int | None = None
) -> list[int]:
    """The group's next offset to read in each queue; `default` where it has committed none."""
    offsets = []
    for queue in range(queues):
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "setZeroIfNotFound": False}
        if default is None:
            del fields["setZeroIfNotFound"]
        answer = ask(broker, QUERY_CONSUMER_OFFSET, fields)
        if answer.code == QUERY_NOT_FOUND and default is not None:
            offsets.append(default)
        elif answer.code != SUCCESS:
            raise Refused(f"offset of {group} in {topic}/{queue} at {broker}: code {answer.code}")
        else:
            offsets.append(int(answer.fields["offset"]))
    return offsets


def consumer_ids(broker: str, group: str) -> list[str]:
    """Client ids the broker counts as live members of a group."""
    answer = ask(broker, GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return sorted(json.loads(answer.body)["consumerIdList"]) if answer.code == SUCCESS else []


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 16))
        if not part:
            raise ConnectionError("the server closed the connection before its answer was complete")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _java_json(body: bytes) -> dict[str, Any]:
    """Java's writer leaves integer keys bare (`{0:"127.0.0.1:10911"}`), which json refuses."""
    quoted = re.sub(r"([{,])(-?\d+):", r'\1"\2":', body.decode())
    decoded: dict[str, Any] = json.loads(quoted)
    return decoded


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

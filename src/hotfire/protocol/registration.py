"""What a broker tells the name servers, in the two forms its body can have.

Plain, it is the JSON of `bodies`. Compressed, a zlib stream of parts, each an int32 size and that many
bytes of text:

    data version as JSON
    int32 count of topics, then per topic one line:
        name, read queues, write queues, perm, filter type, attributes as JSON; a space between them
    filter servers as JSON
    int32 count of queue mappings, then per mapping JSON       from 5.0 on; we write none and skip them

Owns the compressed form and its limits; knows no request.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

from hotfire.errors import RemoteProtocolError
from hotfire.model import BrokerRegistration, DataVersion, TopicConfig, TopicTable
from hotfire.protocol.bodies import decode_body, dumps, encode_body, from_json, loads_standard
from hotfire.protocol.command import Buffer

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""What a compressed registration may grow to; about a million topics."""

_SIZE = struct.Struct(">i")


def encode_registration(registration: BrokerRegistration, *, compressed: bool = False) -> bytes:
    """The body of REGISTER_BROKER."""
    if not compressed:
        return encode_body(registration)
    topics = registration.topic_table.topics
    parts = [_sized(encode_body(registration.topic_table.data_version)), _SIZE.pack(len(topics))]
    parts += (_sized(_topic_line(config)) for config in topics.values())
    parts += (_sized(dumps(list(registration.filter_servers))), _SIZE.pack(0))
    return zlib.compress(b"".join(parts), 9)


class RegistrationEncoder:
    """The plain form, again and again: a topic that did not change is not encoded anew.

    A broker with thousands of topics says them all every 30 seconds and whenever one of them changes.
    """

    _NO_TOPICS = b'"topicConfigTable":{}'

    def __init__(self) -> None:
        self._parts: dict[str, tuple[TopicConfig, bytes]] = {}

    def encode(self, registration: BrokerRegistration) -> bytes:
        """The bytes of `encode_registration`."""
        table = registration.topic_table
        frame = encode_body(replace(registration, topic_table=replace(table, topics={})))
        before, found, after = frame.rpartition(self._NO_TOPICS)  # the last: filter servers may say anything
        assert found
        known, self._parts = self._parts, {}
        for name, config in table.topics.items():
            part = known.get(name)
            if part is None or (part[0] is not config and part[0] != config):
                part = (config, dumps(name) + b":" + encode_body(config))
            self._parts[name] = part
        topics = b",".join([part for _, part in self._parts.values()])
        return b"".join((before, self._NO_TOPICS[:-1], topics, b"}", after))


def decode_registration(body: Buffer, *, compressed: bool = False) -> BrokerRegistration:
    """The registration in a body of REGISTER_BROKER; a broker without topics may send none at all."""
    if not body:
        return BrokerRegistration(TopicTable())
    if not compressed:
        return decode_body(BrokerRegistration, body)
    parts = _Parts(_inflate(body))
    data_version = decode_body(DataVersion, parts.next("data version"))
    configs = [_parse_topic_line(parts.next("topic")) for _ in range(parts.count("topics"))]
    filter_servers = loads_standard(parts.next("filter servers"))
    if not isinstance(filter_servers, list) or not all(isinstance(server, str) for server in filter_servers):
        raise RemoteProtocolError("compressed registration: filter servers are not an array of strings")
    topics = {config.name: config for config in configs}
    return BrokerRegistration(TopicTable(topics, data_version), tuple(filter_servers))


def _sized(part: bytes) -> bytes:
    return _SIZE.pack(len(part)) + part


def _topic_line(config: TopicConfig) -> bytes:
    head = f"{config.name} {config.read_queues} {config.write_queues} {config.perm} {config.filter_type} "
    return head.encode() + dumps(dict(config.attributes))


def _parse_topic_line(line: bytes) -> TopicConfig:
    try:
        name, read_queues, write_queues, perm, filter_type, *attributes = line.decode("utf-8").split(" ", 5)
        tree = {
            "topicName": name,
            "readQueueNums": read_queues,
            "writeQueueNums": write_queues,
            "perm": perm,
            "topicFilterType": filter_type,
        }
    except ValueError:
        raise RemoteProtocolError(f"compressed registration: {line[:80]!r} is not a topic") from None
    if attributes and attributes[0]:
        tree["attributes"] = loads_standard(attributes[0].encode())
    return from_json(TopicConfig, tree)


def _inflate(body: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"compressed registration of {len(body)} bytes: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError(
            f"compressed registration of {len(body)} bytes ends early or inflates beyond {INFLATED_BYTES_MAX}"
        )
    return data


class _Parts:
    """The sized parts of an inflated registration, taken one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def count(self, what: str) -> int:
        """A count of parts to come; each takes at least its size word."""
        return self._int32(what, lambda left: left // _SIZE.size)

    def next(self, what: str) -> bytes:
        size = self._int32(what, lambda left: left)
        self.at += size
        return self.data[self.at - size : self.at]

    def _int32(self, what: str, highest: Callable[[int], int]) -> int:
        left = len(self.data) - self.at - _SIZE.size
        if left < 0:
            raise RemoteProtocolError(f"compressed registration ends before its {what}")
        (value,) = _SIZE.unpack_from(self.data, self.at)
        self.at += _SIZE.size
        if not 0 <= value <= highest(left):
            raise RemoteProtocolError(f"compressed registration: {what} {value}, {left} bytes are left")
        return int(value)

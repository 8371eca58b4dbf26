"""Several messages in one send: the body of SEND_BATCH_MESSAGE.

    at  size  field
     0     4  total size of this message
     4     4  magic, 0
     8     4  CRC, 0
    12     4  flag
    16     4  body size, then body
           2  properties size, then properties

one after the other. Topic, queue, birth and system flag are the request's. Owns this layout only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hotfire.errors import LocalProtocolError, RemoteProtocolError
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import PROPERTIES_BYTES_MAX

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
_FIXED = _HEAD.size + _PROPERTIES_SIZE.size


class BatchMessage(NamedTuple):
    """One message of a batch; `properties` are raw bytes."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    parts: list[bytes] = []
    for body, properties, flag in messages:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {len(properties)} bytes in a batch, at most {PROPERTIES_BYTES_MAX} fit"
            )
        size = _FIXED + len(body) + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: Buffer) -> Sequence[BatchMessage]:
    """The messages in `data`, which must be nothing else."""
    whole = bytes(data)
    messages: list[BatchMessage] = []
    at = 0
    while at < len(whole):
        if len(whole) - at < _FIXED:
            raise RemoteProtocolError(
                f"batch: {len(whole) - at} bytes at {at}, a message has at least {_FIXED}"
            )
        size, _, _, flag, body_size = _HEAD.unpack_from(whole, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_size + _PROPERTIES_SIZE.size
        if body_size < 0 or properties_at > len(whole):
            raise RemoteProtocolError(
                f"batch: body of {body_size} bytes at {at}, {len(whole) - at} bytes are left"
            )
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(whole, body_at + body_size)
        end = properties_at + properties_size
        if properties_size < 0 or end > len(whole) or end != at + size:
            raise RemoteProtocolError(f"batch: message at {at} says {size} bytes, its parts make {end - at}")
        messages.append(BatchMessage(whole[body_at : body_at + body_size], whole[properties_at:end], flag))
        at = end
    return messages

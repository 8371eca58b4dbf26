"""What the client commands share: a loop that Ctrl-C ends, messages as text."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from hotfire.client.dialling import TlsChoice, tls_context, unverified
from hotfire.errors import ConfigError
from hotfire.model import ReceivedMessage


def run_client(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end; Ctrl-C cancels, and is raised once everything is closed."""
    return asyncio.run(work)


def tls_of(args: argparse.Namespace) -> TlsChoice:
    """How to dial, as the options say."""
    if args.tls_trust is not None and args.tls_unverified:
        raise ConfigError(
            f"--tls-trust {args.tls_trust} with --tls-unverified: either is verified, or not; drop one"
        )
    if args.tls_unverified:
        return unverified()
    if args.tls_trust is None:
        return bool(args.tls)
    return tls_context(str(args.tls_trust), said="--tls-trust ") or False


def message_json(message: ReceivedMessage) -> str:
    """One line of JSON. A body that is not UTF-8 comes as `bodyBase64`."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp_ms,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "reconsumeTimes": message.reconsume_times,
    }
    if message.compression:
        shown["compression"] = message.compression
    text = _text(message)
    if text is None:
        shown["bodyBase64"] = base64.b64encode(message.body).decode()
    else:
        shown["body"] = text
    return json.dumps(shown, ensure_ascii=False)


def message_line(message: ReceivedMessage, *, with_id: bool = False) -> str:
    """One line for people: where, when, perhaps the id of that place, tag, keys, body."""
    stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000).astimezone()
    queue = message.queue
    parts = [
        f"{queue.broker_name}/{queue.queue_id}@{message.queue_offset}",
        stored.isoformat(sep=" ", timespec="milliseconds")[:23],
    ]
    if with_id:
        parts.append(message.offset_message_id)
    if message.tag:
        parts.append(f"tag={message.tag}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    text = _text(message)
    if text is None:
        kind = f"{message.compression}-compressed" if message.compression else "binary"
        parts.append(f"<{len(message.body)} bytes, {kind}>")
    else:
        # One message, one line, and nothing that moves the cursor.
        parts.append("".join(one if one.isprintable() else repr(one)[1:-1] for one in text))
    return "  ".join(parts)


def _text(message: ReceivedMessage) -> str | None:
    if message.compression:
        return None
    try:
        return message.body.decode("utf-8")
    except UnicodeDecodeError:
        return None

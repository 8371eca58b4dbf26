"""What a client asks for in a small story, told so that two clients can be held against each other.

The stories are `PlainRows.java` and `python/plainrows.py`, with the clients as they come. Each client talks
to one broker through a proxy of its own. Of a story are kept, for each kind of request, which values its
fields had, and the order in which kinds of requests were first used.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hotfire import Message, Producer
from hotfire.client.admin import Admin
from hotfire.model import retry_topic
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import parse_properties
from tests.interop.clients import Server
from tests.interop.compare import Answer, Layout, lay_out
from tests.interop.proxy import Frame, RecordingProxy
from tests.interop.rowrun import CLIENTS
from tests.interop.transcripts import Exchange, Naming, merged
from tests.peers.process import LineProcess

STORIES = ("plain-send", "plain-push", "plain-orderly", "plain-lite")
JAVA, OURS = "java550", "python"
MESSAGES, QUEUES = 5, 2
TOLD_TIMEOUT_S = 120.0
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_PROPERTIES = "fields/i"
_UNIQUE_ID = re.compile(r"\b[0-9A-F]{32,56}\b")


@dataclass
class Conversations:
    """All stories of one client."""

    requests: dict[str, Answer]
    """Kinds of requests by story, each with the values of its fields."""
    calls: dict[str, list[int]]
    """The codes each story asked its servers for, in order."""

    def first_uses(self, story: str) -> list[int]:
        return list(dict.fromkeys(self.calls[story]))


def record(server: Server, place: Path) -> dict[str, Conversations]:
    """Both clients tell all stories, at the same time."""
    asyncio.run(_prepare(server))
    with ThreadPoolExecutor(2) as threads:
        running = {label: threads.submit(_follow, label, server, place) for label in (JAVA, OURS)}
        return {label: one.result() for label, one in running.items()}


async def _prepare(server: Server) -> None:
    """Topics with something in them. Retry topics too: members that come before theirs wait for it."""
    async with Admin(server.namesrv) as admin, Producer(server.namesrv) as producer:
        for topic in (f"{label}-{story}" for label in (JAVA, OURS) for story in STORIES):
            await admin.create_topic(topic, queues=QUEUES)
            if topic.endswith(STORIES[0]):
                continue
            await admin.create_topic(retry_topic(topic), queues=1)
            for index in range(MESSAGES):
                message = Message(topic, f"body {index}".encode(), tag="a", keys=(f"key-{index}",))
                await producer.send(message)


def _follow(label: str, server: Server, place: Path) -> Conversations:
    with RecordingProxy(server.namesrv, server.broker) as proxy:
        stories = [f"{story}={MESSAGES}/alone" for story in STORIES]
        command = [*CLIENTS[label](place), "rows", label, proxy.namesrv, "1", *stories]
        process = LineProcess(command, log=place / f"{label}.err")
        try:
            process.wait_line(
                lambda line: line.startswith('{"event":"finished"'), what="end", timeout_s=TOLD_TIMEOUT_S
            )
            failures = [line for line in process.lines() if line.startswith('{"event":"row-failed"')]
            assert not failures, failures
        finally:
            process.kill()
        frames = proxy.frames()
    addresses = {server.broker: "<broker>", proxy.broker: "<broker>", f"{label}-plain": "plain"}
    return _told(frames, Naming(label, STORIES, addresses))


def _told(frames: Sequence[Frame], naming: Naming) -> Conversations:
    layouts: dict[tuple[str, str, int], list[Layout]] = defaultdict(list)
    calls: dict[str, list[int]] = defaultdict(list)
    for frame, request in _requests(frames):
        story = naming.row(Exchange(frame.side, True, request, None))
        calls[story].append(request.code)
        name = f"{story}: client asks {frame.side} {request.code}"
        layouts[name, f"to {frame.side}", request.code].append(naming.clean(_laid(request)))
    requests = {
        name: Answer(where, code, "seen", merged(seen))  # type: ignore[arg-type]
        for (name, where, code), seen in sorted(layouts.items())
    }
    return Conversations(requests, calls)


def _requests(frames: Sequence[Frame]) -> Iterator[tuple[Frame, Command]]:
    for frame in frames:
        if frame.from_client and not (command := frame.command()).is_response:
            yield frame, command


def _laid(request: Command) -> Layout:
    """Properties one by one, of batches too; ids that producers give look as their addresses do."""
    layout = lay_out(request, {})
    if request.code in SENDS:
        assert request.fields is not None
        del layout[_PROPERTIES]
        layout |= _property_layout(_PROPERTIES, request.fields["i"])
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        layout.pop("body/text", None)
        layout["body"] = "batch"
        for number, one in enumerate(decode_batch(request.body)):
            layout |= _property_layout(f"body/{number}/properties", one.properties)
            layout[f"body/{number}/body"] = one.body.decode()
            layout[f"body/{number}/flag"] = one.flag
    return {
        path: _UNIQUE_ID.sub("<unique id>", value) if isinstance(value, str) else value
        for path, value in layout.items()
    }


def _property_layout(path: str, text: str | bytes) -> Layout:
    properties = parse_properties(text if isinstance(text, bytes) else text.encode())
    order = ", ".join(properties)
    return {f"{path} in order": order} | {f"{path}/{name}": value for name, value in properties.items()}

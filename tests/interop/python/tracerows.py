"""Java's clients tell of their messages, and ours reads it: first the old one, then the new one."""

from __future__ import annotations

import json

from tests.interop.python.child import Child, java
from tests.interop.python.row import Row

ENTRIES = 3


async def traced_by_java(row: Row) -> None:
    await row.create_topic(2)
    for part, version in (("java498", "4.9.8"), ("java550", "5.5.0")):
        child = await Child(row, part, java(version)).start()
        await row.until("the end of Java's part", lambda child=child: child.wrote('"event":"over"'))  # type: ignore[misc]
        sent = [event for event in map(json.loads, child.lines) if event["event"] == "sent"]
        for event in sent:
            message_id = event["msgId"]

            async def is_told(message_id: str = message_id) -> bool:
                return len(await row.reader.trace(message_id)) >= ENTRIES

            await row.until(f"trace of {message_id}", is_told)
            for entry in await row.reader.trace(message_id):
                row.write("told", part=part, index=event["index"], **entry._asdict())
        await child.kill()


STORIES = {"trace-java": traced_by_java}

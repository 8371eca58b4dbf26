"""What passed the proxy, told as situations that two runs of one program share.

How often a client pulls depends on the moment; what it is answered in a situation does not. So exchanges are
gathered by row, server, request code and reply code, and each situation keeps, for every path of the frames
in it, the set of values seen. A path with many values is kept by its type alone. Two runs are then compared
as the catalogue's answers are, by `compare` and the same list of what may differ; a situation that only one
run came to is a difference too, unless `volatile.toml` says that it depends on the moment.

Timers and threads of two programs never fall twice in the same way, and no list foresees all of it. So a row
in which something differs is told again: a way of ours shows each time, a moment does not.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.model import RETRY_PREFIX
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from tests.interop.compare import VOLATILE, Answer, Difference, Layout, Leaf, lay_out
from tests.interop.proxy import Frame

VALUES_MAX = 4
"""More different values than this are kept by their type: they are numbers of messages, not states."""
EMPTY_HANDED = {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
MISSING = "(missing)"
EVERY_ROW = "every row"
"""What belongs to no row by its name, such as a heartbeat of nobody."""
_NUMBERED = re.compile(r"(?<=/)\d+(?=/|$)")
_CLIENT_ID = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}@[\w#@.:-]+")
_RETRY_TOPIC = re.compile(rf"{RETRY_PREFIX}[\w-]+")
_HOST_AND_PORT = re.compile(r"127\.0\.0\.1:\d+")


@dataclass(frozen=True)
class Exchange:
    """A request and its reply, if it got one. `by_client`: the client asked; else the broker did."""

    side: str
    by_client: bool
    request: Command
    reply: Command | None


def exchanges(frames: Iterable[Frame]) -> Iterator[Exchange]:
    """Requests with their replies, by connection, direction and opaque."""
    open_requests: dict[tuple[int, bool, int], tuple[Frame, Command]] = {}
    for frame in frames:
        command = frame.command()
        if not command.is_response:
            if command.is_oneway:
                yield Exchange(frame.side, frame.from_client, command, None)
            else:
                open_requests[frame.connection, frame.from_client, command.opaque] = frame, command
            continue
        asked = open_requests.pop((frame.connection, not frame.from_client, command.opaque), None)
        if asked is not None:
            yield Exchange(frame.side, not frame.from_client, asked[1], command)
    for frame, command in open_requests.values():
        yield Exchange(frame.side, frame.from_client, command, None)


class Naming:
    """Which row an exchange belongs to, and the words that differ between two runs for no reason."""

    def __init__(self, client: str, rows: Sequence[str], addresses: Mapping[str, str]) -> None:
        longest_first = sorted(rows, key=len, reverse=True)
        self._row = re.compile(f"{re.escape(client)}-({'|'.join(map(re.escape, longest_first))})(?![a-z])")
        self._addresses = addresses

    def row(self, exchange: Exchange) -> str:
        texts = list((exchange.request.fields or {}).values())
        if exchange.request.body[:1] == b"{":
            texts.append(exchange.request.body.decode(errors="replace"))
        for text in texts:
            if match := self._row.search(text):
                return match[1]
        return EVERY_ROW

    def clean(self, layout: Layout) -> Layout:
        """Paths without counters, values without ports and process ids; one retry topic is like another."""
        return {self._path(path): self._value(value) for path, value in layout.items()}

    @staticmethod
    def _path(path: str) -> str:
        return _RETRY_TOPIC.sub(RETRY_PREFIX, _CLIENT_ID.sub("<id>", path))

    def _value(self, value: Leaf) -> Leaf:
        if not isinstance(value, str):
            return value
        for address, name in self._addresses.items():
            value = value.replace(address, name)
        return _HOST_AND_PORT.sub("<peer>", _CLIENT_ID.sub("<id>", value))


def situations(frames: Iterable[Frame], naming: Naming) -> dict[str, Answer]:
    """Every situation by its name, with what was seen in it."""
    gathered: dict[tuple[str, str, int], list[Layout]] = defaultdict(list)
    for exchange in exchanges(frames):
        row, code, side = naming.row(exchange), exchange.request.code, exchange.side
        asker, asked = ("client", side) if exchange.by_client else (side, "client")
        request = naming.clean(lay_out(exchange.request, {}))
        gathered[f"{row}: {asker} asks {asked} {code}", f"to {asked}", code].append(request)
        if exchange.reply is not None:
            reply = naming.clean(lay_out(exchange.reply, {}))
            name = f"{row}: {asked} answers {code} with {_status(exchange.reply)}"
            gathered[name, asked, code].append(reply)
    return {
        name: Answer(where, code, "seen", merged(layouts))  # type: ignore[arg-type]
        for (name, where, code), layouts in sorted(gathered.items())
    }


def _status(reply: Command) -> str:
    """The code; of a pull that got nothing also why not, for an empty queue is not the end of a full one."""
    return f"{reply.code} {reply.remark}" if reply.code in EMPTY_HANDED else str(reply.code)


def merged(layouts: Sequence[Layout]) -> Layout:
    """One layout that says of each path what was seen there; entries of lists count as one path."""
    seen: dict[str, set[Leaf]] = defaultdict(set)
    holders: dict[str, int] = defaultdict(int)
    for layout in layouts:
        for path in {_NUMBERED.sub("*", path) for path in layout}:
            holders[path] += 1
        for path, value in layout.items():
            seen[_NUMBERED.sub("*", path)].add(value)
    whole: Layout = {}
    for path, values in seen.items():
        if holders[path] < len(layouts):
            values.add(MISSING)
        whole[path] = _told(values)
    return whole


def _told(values: set[Leaf]) -> Leaf:
    if len(values) == 1:
        return next(iter(values))
    missing = " or missing" if MISSING in values else ""
    values = values - {MISSING}
    if len(values) > VALUES_MAX:
        return f"many {sorted({type(value).__name__ for value in values})}{missing}"
    return " | ".join(sorted(map(repr, values))) + missing


# --- moments -----------------------------------------------------------------------------------------


@dataclass
class Moment:
    """A situation that a run may or may not come to, of one client only if it is named."""

    where: str
    code: int
    reply: int | None
    reason: str
    row: str | None = None
    client: str | None = None
    used: int = 0

    def covers(self, one: Difference) -> bool:
        if one.path != "outcome" or one.where != self.where or one.code != self.code:
            return False
        if self.row is not None and not one.case.startswith(f"{self.row}: "):
            return False
        return self.reply is None or f"{one.case} ".partition(" with ")[2].startswith(f"{self.reply} ")


def read_moments(path: Path = VOLATILE, *, client: str | None = None) -> list[Moment]:
    """Those of a client, or all."""
    entries = tomllib.loads(path.read_text()).get("moment", [])
    moments = [Moment(**{"reply": None, **entry}) for entry in entries]
    return [moment for moment in moments if client is None or moment.client in (None, client)]


def beyond_moments(found: Iterable[Difference], moments: Sequence[Moment]) -> list[Difference]:
    """What is left when situations that depend on the moment are taken away. Marks the entries needed."""
    left = []
    for one in found:
        covering = [moment for moment in moments if moment.covers(one)]
        for moment in covering:
            moment.used += 1
        if not covering:
            left.append(one)
    return left


# --- told again --------------------------------------------------------------------------------------


def rows_in(found: Iterable[Difference], rows: Sequence[str]) -> list[str]:
    """The rows to be told again for these differences; all of them if one belongs to none."""
    named = {one.case.partition(": ")[0] for one in found}
    return list(rows) if EVERY_ROW in named else [row for row in rows if row in named]


def shown_again(
    before: Iterable[Difference], again: Iterable[Difference], broken: Container[str] = ()
) -> list[Difference]:
    """Those that are at the same place as one of those seen when it was told again, whatever their values.
    A row that broke off when it was told again proves nothing."""
    places = {(one.case, one.path) for one in again}
    whole = {case for case, path in places if path == "outcome"}
    return [
        one
        for one in before
        if (one.case, one.path) in places or one.case in whole or one.case.partition(": ")[0] in broken
    ]

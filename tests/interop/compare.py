"""Two servers' answers to one request, held against each other field by field.

An answer is laid out as a table of paths and plain values: its code, whether it has a remark, every
extField, every leaf of a JSON body, every field and property of each record. Two tables differ where a path
is only in one of them or a value is not the same. Nothing is forgiven but by an entry of `volatile.toml`,
which names request, path and reason; an entry that forgives nothing any more is itself a failure.

Owns the layout and the judgement. Knows no socket: see `catalogue` and `transcripts` for who asks.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from hotfire.errors import HotfireError
from hotfire.model import RETRY_PREFIX, MessageQueue
from hotfire.protocol import javajson
from hotfire.protocol.codes import LanguageCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records, parse_properties

VOLATILE = Path(__file__).with_name("volatile.toml")
REMARK_IS_PART_OF_THE_ANSWER = {0, 19, 20, 21}
"""Codes with which clients read the remark as a status. A refusal's remark is for people: there has to be
one, and ours may say more."""

Where = Literal["broker", "namesrv", "client"]
Leaf = str | int | float | bool | None
Layout = dict[str, Leaf]
HOWS = {"differs", "type", "times", "absent", "is", "lacks", "some"}
_MISSING = "(missing)"


@dataclass(frozen=True)
class Answer:
    """What came of one request. `outcome` is `reply`, `silence`, or `closed`."""

    where: Where
    code: int
    outcome: str
    layout: Layout


@dataclass(frozen=True)
class Difference:
    case: str
    where: str
    code: int
    path: str
    apache: Leaf
    hotfire: Leaf

    def __str__(self) -> str:
        return (
            f"{self.case} (request {self.code} to the {self.where}) {self.path}: "
            f"apache {self.apache!r:.300}, hotfire {self.hotfire!r:.300}"
        )


# --- laying out --------------------------------------------------------------------------------------


def lay_out(command: Command, names: Mapping[str, str]) -> Layout:
    """A frame as paths and leaves. `names` are texts to be read as others, such as a peer's own address."""
    layout: Layout = {
        "code": command.code,
        "flag": command.flag,
        "language": LanguageCode(command.language).name,
        "version": command.version,
        "serialization": command.serialization.name,
    }
    remark = command.remark
    if command.is_response and command.code not in REMARK_IS_PART_OF_THE_ANSWER:
        layout["remark"] = "absent" if remark is None else "present"
    else:
        layout["remark"] = "absent" if remark is None else "text " + _named(remark, names)
    if command.fields is None:
        layout["fields"] = "(null)"
    else:
        layout["fields"] = "map"
        for key, value in command.fields.items():
            layout[f"fields/{key}"] = _named(value, names)
            if value.startswith("{"):
                del layout[f"fields/{key}"]
                _lay_json(layout, f"fields/{key}", json.loads(_named(value, names)))
    _lay_body(layout, command.body, names)
    return layout


def _lay_body(layout: Layout, body: bytes, names: Mapping[str, str]) -> None:
    if not body:
        layout["body"] = "none"
        return
    if body[:1] in b"{[":
        try:
            tree = javajson.loads(_named(body.decode(), names).encode())
        except (HotfireError, UnicodeDecodeError):
            pass
        else:
            _lay_json(layout, "body", tree)
            return
    try:
        records = list(iter_records(body))
    except HotfireError:
        records = []
    if records:
        layout["body"] = "records"
        layout["body/count"] = len(records)
        for number, record in enumerate(records):
            _lay_record(layout, f"body/{number}", record, names)
        return
    try:
        text = _named(body.decode(), names)
    except UnicodeDecodeError:
        layout["body"] = "bytes"
        layout["body/size"] = len(body)
        return
    lines = [line.partition("=") for line in text.splitlines()]
    if lines and all(middle for _, middle, _ in lines):
        layout["body"] = "properties"
        layout.update({f"body/{key}": value for key, _, value in lines})
    else:
        layout["body"] = "text"
        layout["body/text"] = text


def _lay_json(layout: Layout, path: str, tree: Any) -> None:
    """Objects by key; bare keys told apart from quoted ones; arrays are sets to Java and so have no order."""
    if isinstance(tree, dict):
        layout[path] = "{}"
        for key, value in tree.items():
            _lay_json(layout, f"{path}/{_key(key)}", value)
    elif isinstance(tree, list):
        layout[path] = "[]"
        for number, value in enumerate(sorted(tree, key=_canonical)):
            _lay_json(layout, f"{path}/{_step(number, value)}", value)
    else:
        layout[path] = tree


def _step(number: int, value: Any) -> str:
    """An entry goes by its text or its only key where it has one, so that one more does not move the rest."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), list):
        return _key(next(iter(value)))
    return str(number)


def _canonical(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ",".join(sorted(f"{_key(key)}:{_canonical(value)}" for key, value in tree.items())) + "}"
    return repr(sorted(map(_canonical, tree))) if isinstance(tree, list) else repr(tree)


def _key(key: object) -> str:
    if isinstance(key, MessageQueue):
        return f"<{key.topic} {key.broker_name} {key.queue_id}>"
    if isinstance(key, int):
        return f"#{key}"
    return str(key)


def _lay_record(layout: Layout, path: str, record: Any, names: Mapping[str, str]) -> None:
    for name in (
        "topic", "queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "born_timestamp",
        "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc", "size", "magic",
    ):  # fmt: skip
        layout[f"{path}/{name}"] = getattr(record, name)
    for name in ("born_host", "store_host"):
        host = getattr(record, name)
        layout[f"{path}/{name}"] = _named(f"{host.ip}:{host.port}", names)
    layout[f"{path}/body"] = record.body.hex() if len(record.body) < 64 else f"{len(record.body)} bytes"
    for key, value in parse_properties(record.properties).items():
        layout[f"{path}/properties/{key}"] = _named(value, names)


def _named(text: str, names: Mapping[str, str]) -> str:
    for told, meant in names.items():
        text = text.replace(told, meant)
    return text


# --- what may differ ---------------------------------------------------------------------------------


@dataclass
class Volatile:
    """One forgiven path. `how`: `differs` (both have it), `type` (both have one of the same type), `times`
    (all that either saw are moments), `absent` (it may be there or not), `lacks` (Hotfire has it not), `is`
    (each side has just what is named), `some` (of the values that a row saw, one side has some and the other
    the same and more). `sometimes` says that whether it is needed depends on the moment."""

    where: str
    code: tuple[int, ...]
    path: str
    how: str
    reason: str
    case: str | None = None
    sometimes: bool = False
    apache: Leaf = None
    hotfire: Leaf = None
    used: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        steps = self.path.split("/")
        if self.how not in HOWS:
            raise ValueError(f"{self.path}: how is {self.how!r}, not one of {sorted(HOWS)}")
        if len(self.reason) < 20:
            raise ValueError(f"{self.path} of {self.code}: a reason has more to say than {self.reason!r}")
        if not self.code:
            raise ValueError(f"{self.path}: name the requests; an entry for all of them swallows too much")
        whole = steps[0] == "*" or (self.path == "body/*" and self.how != "lacks")
        if whole or any("*" in step and step != "*" for step in steps):
            raise ValueError(f"{self.path}: * stands for one whole step, and never for all there is")
        of_an_answer = not self.where.startswith("to ") and self.path.startswith("fields/")
        if of_an_answer and self.how == "differs" and self.sometimes and self.case is None:
            raise ValueError(
                f"{self.path}: a moment of rows; name them, or it forgives the catalogue as well"
            )
        if self.how != "is" and self.path in ("code", "remark", "body", "fields"):
            raise ValueError(f'{self.path} decides what an answer is: say with how = "is" what each side has')

    def forgives(self, one: Difference) -> bool:
        return (
            one.where == self.where
            and one.code in self.code
            and (self.case is None or fnmatchcase(one.case, self.case))
            and _matches(self.path, one.path)
            and self._allows(one.apache, one.hotfire)
        )

    def _allows(self, apache: Leaf, hotfire: Leaf) -> bool:
        if self.how == "is":
            return (apache, hotfire) == (self.apache, self.hotfire)
        if self.how == "absent":
            return True
        if self.how == "lacks":
            return hotfire == _MISSING
        if self.how == "some":
            theirs, ours = _values(apache), _values(hotfire)
            return theirs <= ours or ours <= theirs
        if self.how == "times":
            return _are_times(apache) and _are_times(hotfire)
        if _MISSING in (apache, hotfire):
            return False
        return self.how == "differs" or type(apache) is type(hotfire)


@dataclass
class Refusal:
    """Requests no official client sends: Hotfire refuses them by one code, Apache takes them in some way.

    The whole answer is another then, so all of it is forgiven; but only for the cases named, and as long as
    Hotfire's code is the one that is stated.
    """

    where: str
    case: tuple[str, ...]
    hotfire: int
    reason: str
    used: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if len(self.reason) < 20:
            raise ValueError(f"{self.case}: a reason has more to say than {self.reason!r}")
        if any(len(pattern.replace("*", "").strip()) < 6 for pattern in self.case):
            raise ValueError(f"{self.case}: a pattern that short covers answers nobody thought of")

    def covers(self, one: Difference) -> bool:
        return (
            one.path == "code"
            and one.where == self.where
            and one.hotfire == self.hotfire
            and any(fnmatchcase(one.case, pattern) for pattern in self.case)
        )


def _values(told: Leaf) -> set[str]:
    """The values a situation was seen with, as `transcripts` writes them; one retry topic is like another.

    >>> sorted(_values("'a' | '%RETRY%g-1' or missing")), _values(7), _values("(missing)")
    (['%RETRY%', 'a'], {'7'}, set())
    """
    values = {value.strip("'") for value in str(told).removesuffix(" or missing").split(" | ")}
    return {RETRY_PREFIX if value.startswith(RETRY_PREFIX) else value for value in values} - {_MISSING}


def _are_times(told: Leaf) -> bool:
    """Whether all the values seen are milliseconds of our days; `transcripts` keeps many by their type."""
    return told == "many ['int']" or all(re.fullmatch(r"[12]\d{12}", one) for one in str(told).split(" | "))


def _matches(pattern: str, path: str) -> bool:
    wanted, steps = pattern.split("/"), path.split("/")
    return len(wanted) == len(steps) and all(a in ("*", b) for a, b in zip(wanted, steps, strict=True))


def read_volatile(path: Path = VOLATILE) -> list[Volatile]:
    """The allow-list; `code` and `path` may be one or several."""
    entries = tomllib.loads(path.read_text()).get("volatile", [])
    return [made for entry in entries for made in _made(dict(entry))]


def read_refusals(path: Path = VOLATILE) -> list[Refusal]:
    entries = tomllib.loads(path.read_text()).get("refusal", [])
    return [Refusal(**{**entry, "case": tuple(entry["case"])}) for entry in entries]


def _made(entry: dict[str, Any]) -> Iterable[Volatile]:
    codes, paths = entry.pop("code"), entry.pop("path")
    for path in paths if isinstance(paths, list) else [paths]:
        yield Volatile(code=tuple(codes) if isinstance(codes, list) else (codes,), path=path, **entry)


# --- judging -----------------------------------------------------------------------------------------


def differences(apache: Mapping[str, Answer], hotfire: Mapping[str, Answer]) -> list[Difference]:
    """Every path in which the answers to a case are not the same, in the order of the cases."""
    found = []
    for case in [*apache, *(case for case in hotfire if case not in apache)]:
        theirs, ours = apache.get(case), hotfire.get(case)
        one = theirs or ours
        assert one is not None
        if theirs is None or ours is None or theirs.outcome != ours.outcome:
            outcome = [_MISSING if each is None else each.outcome for each in (theirs, ours)]
            found.append(Difference(case, one.where, one.code, "outcome", *outcome))
            continue
        found += [
            Difference(case, one.where, one.code, path, left, right)
            for path, left, right in _unlike(theirs.layout, ours.layout)
        ]
    return found


def _unlike(apache: Layout, hotfire: Layout) -> Iterable[tuple[str, Leaf, Leaf]]:
    for path in [*apache, *(path for path in hotfire if path not in apache)]:
        left, right = apache.get(path, _MISSING), hotfire.get(path, _MISSING)
        if left != right or type(left) is not type(right):
            yield path, left, right


def unforgiven(
    found: Sequence[Difference], allowed: Sequence[Volatile], refusals: Sequence[Refusal] = ()
) -> list[Difference]:
    """What no entry forgives. Marks the entries that were needed."""
    refused = set()
    for one in found:
        for refusal in refusals:
            if refusal.covers(one):
                refusal.used += 1
                refused.add(one.case)
    left = []
    for one in found:
        if one.case in refused:
            continue
        entries = [entry for entry in allowed if entry.forgives(one)]
        for entry in entries:
            entry.used += 1
        if not entries:
            left.append(one)
    return left


def unused(allowed: Sequence[Volatile | Refusal]) -> list[Volatile | Refusal]:
    """Entries that forgave nothing: what they speak of is no longer so, and they go."""
    return [entry for entry in allowed if not entry.used and not getattr(entry, "sometimes", False)]

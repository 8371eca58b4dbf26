"""How options of a Spark format are declared, once: reading them, refusing unknown ones, and the docs' table.

Names are Kafka's connector's where the meaning is the same, so that a query moves over by its format's name.
Spark hands options over as text and without regard to case; whatever cannot be read is told with the name,
the value and what would do, before anything is asked of a broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from hotfire.errors import ConfigError

SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark may hand over beside ours, and that say nothing to us where we do not declare them."""

_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*$")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 0.001}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)
_TIMES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def text(value: str) -> str:
    return value


def yes_or_no(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def count(value: str) -> int:
    if not value.strip().isdigit() or int(value) < 1:
        raise ValueError("a number of 1 or more")
    return int(value)


def milliseconds(value: str) -> int:
    if not value.strip().isdigit():
        raise ValueError("milliseconds since 1970")
    return int(value)


def span_s(value: str) -> float:
    """`15m`, `10s`, `250ms`; a bare number is milliseconds, as in Spark."""
    found = _TIME.match(value)
    if found is None:
        raise ValueError("a time like 15m, 10s or 250ms")
    return float(found[1]) * _UNITS_S[found[2]]


def size(value: str) -> int:
    """`64m`, `1g`, or bytes."""
    found = _SIZE.match(value)
    if found is None or float(found[1]) <= 0:
        raise ValueError("a size like 64m, 1g, or a number of bytes")
    return int(float(found[1]) * _TIMES[found[2].lower()])


def names(value: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(",") if part.strip())
    if not parts:
        raise ValueError("names with commas between them")
    return parts


def json_object(value: str) -> dict[str, Any]:
    try:
        read = json.loads(value)
    except ValueError as error:
        raise ValueError(f"JSON ({error})") from None
    if not isinstance(read, dict):
        raise ValueError("a JSON object")
    return read


def one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return read


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `read` turns its text into a value, or raises ValueError with what would do."""

    name: str
    read: Callable[[str], Any]
    default: Any
    says: str


class Options:
    """The options of one use of a format, read and checked."""

    def __init__(self, declared: Iterable[Option], given: Mapping[str, str], format_name: str) -> None:
        self._declared = {option.name.lower(): option for option in declared}
        self._values: dict[str, Any] = {}
        for name, value in given.items():
            option = self._declared.get(name.lower())
            if option is None:
                self._refuse_unknown(name, format_name)
                continue
            try:
                self._values[option.name] = option.read(str(value))
            except ValueError as error:
                raise ConfigError(f"option {option.name} is {value!r}, and must be {error}") from None

    def _refuse_unknown(self, name: str, format_name: str) -> None:
        if name.lower() in SPARKS_OWN:
            return
        near = get_close_matches(name.lower(), self._declared, 1, 0.75)
        hint = f"; did you mean {self._declared[near[0]].name}?" if near else ""
        raise ConfigError(f"format {format_name} has no option {name}{hint}")

    def has(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, self._declared[name.lower()].default)

"""Typed structs <-> the text fields of a command's header.

Declare a struct once and it is the type, the parser and the writer. A field `queue_id` travels as
`queueId`; where the wire's name does not follow that rule, `wire("...")` gives it. Owns how single
values look as text (they are Java's `toString`); knows no request.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self, dataclass_transform, get_args, get_type_hints

from hotfire.errors import BadField, MissingField

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")


def wire(name: str, *, default: Any = dataclasses.MISSING) -> Any:
    """A field whose name on the wire is `name`."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"wire": name})
    return dataclasses.field(default=default, metadata={"wire": name})


def camel_case(name: str) -> str:
    """
    >>> camel_case("suggest_which_broker_id")
    'suggestWhichBrokerId'
    """
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def parse_int32(text: str) -> int:
    return _parse_integer(text, 32)


def parse_int64(text: str) -> int:
    return _parse_integer(text, 64)


def _parse_integer(text: str, bits: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("is not an integer")
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"does not fit {bits} bits")
    return value


def parse_bool(text: str) -> bool:
    """Java's parseBoolean: everything but "true", in any case, is false."""
    return text.lower() == "true"


def write_bool(value: bool) -> str:
    return "true" if value else "false"


_CODECS: dict[object, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    str: (str, str),
    bool: (parse_bool, write_bool),
    Int32: (parse_int32, str),
    Int64: (parse_int64, str),
}


class Field(NamedTuple):
    """One field as parser and writer see it."""

    name: str
    wire_name: str
    parse: Callable[[str], Any]
    write: Callable[[Any], str]
    mandatory: bool
    default: Any
    is_text: bool


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(wire,))
class FieldStruct:
    """Base of request and reply structs; subclasses become frozen, keyword-only dataclasses."""

    fields: ClassVar[tuple[Field, ...]] = ()
    has_body: ClassVar[bool] = False

    def __init_subclass__(cls, *, names: Mapping[str, str] | None = None, **rest: Any) -> None:
        """`names` maps field names to wire names for a subclass that only spells its parent differently."""
        super().__init_subclass__(**rest)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        hints = get_type_hints(cls, include_extras=True)
        declared = dataclasses.fields(cls)  # type: ignore[arg-type]  # it became a dataclass two lines up
        cls.has_body = any(field.name == "body" for field in declared)
        cls.fields = tuple(
            _describe(cls, field, hints[field.name], names or {})
            for field in declared
            if field.name != "body"
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, str] | None, *, body: bytes = b"") -> Self:
        """The struct these fields spell. Unknown fields are ignored, as the protocol wants."""
        given = fields or {}
        values: dict[str, Any] = {}
        for name, wire_name, parse, _, mandatory, default, is_text in cls.fields:
            text = given.get(wire_name)
            # A binary header cannot tell "" from null, so an empty number is an absent one.
            if text is None or (not text and not is_text):
                if mandatory:
                    raise MissingField(cls.__name__, wire_name)
                values[name] = default
                continue
            try:
                values[name] = parse(text)
            except ValueError as error:
                raise BadField(cls.__name__, wire_name, f"{error}: {text!r:.60}") from None
        if cls.has_body:
            values["body"] = body
        return cls(**values)

    def to_fields(self) -> dict[str, str]:
        """Fields by wire name in the order they are declared; those that are None are left out."""
        fields = {}
        for field in self.fields:
            value = getattr(self, field.name)
            if value is not None:
                fields[field.wire_name] = field.write(value)
        return fields


def _describe(cls: type, field: dataclasses.Field[Any], hint: Any, names: Mapping[str, str]) -> Field:
    kinds = (
        [kind for kind in get_args(hint) if kind is not type(None)]
        if type(None) in get_args(hint)
        else [hint]
    )
    if len(kinds) != 1 or kinds[0] not in _CODECS:
        raise TypeError(f"{cls.__name__}.{field.name}: {hint} is none of str, bool, Int32, Int64 (or None)")
    if field.default_factory is not dataclasses.MISSING:
        raise TypeError(f"{cls.__name__}.{field.name}: a field's default is a plain value")
    parse, write = _CODECS[kinds[0]]
    mandatory = field.default is dataclasses.MISSING
    return Field(
        name=field.name,
        wire_name=names.get(field.name) or field.metadata.get("wire") or camel_case(field.name),
        parse=parse,
        write=write,
        mandatory=mandatory,
        default=None if mandatory else field.default,
        is_text=kinds[0] is str,
    )

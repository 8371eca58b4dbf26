"""What a request is: a code, typed fields, the reply it gets, and what its sender must be allowed to do.

Owns the base classes and the registry that refuses a code twice. The requests themselves are declared
in `requests`; how fields become text is in `fields`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from hotfire.errors import BadField
from hotfire.protocol.codes import RequestCode, Serialization
from hotfire.protocol.command import FRAME_BYTES_MAX, ONEWAY_FLAG, Command
from hotfire.protocol.fields import FieldStruct

# --- permissions -----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Permission:
    """The right to do `verb` to what `field` names; `field` None means the whole cluster.

    The field may be `body` where topics or groups are only named in there.
    """

    verb: Literal["read", "write", "use", "manage", "peer"]
    field: str | None = None


def read(field: str) -> Permission:
    """Take messages or offsets of the topic."""
    return Permission("read", field)


def write(field: str) -> Permission:
    """Put messages into the topic."""
    return Permission("write", field)


def use(field: str) -> Permission:
    """Act as a member of the group."""
    return Permission("use", field)


def manage(field: str | None = None) -> Permission:
    """Change or inspect the topic or group, or with no field the cluster."""
    return Permission("manage", field)


def peer() -> Permission:
    """Be a broker of the cluster."""
    return Permission("peer")


# --- the two kinds of struct -----------------------------------------------------------------------


class Reply(FieldStruct):
    """Fields of a successful reply."""

    @classmethod
    def from_command(cls, command: Command) -> Self:
        return cls.from_fields(command.fields, body=command.body)


class NoFields(Reply):
    """An empty field map, which Java sends where a header class exists and nothing is set."""


NAMES_BYTES_MAX = 2 << 20
"""Of a body that names topics and groups: it is taken apart while everyone waits. A client with ten thousand
subscriptions needs less."""

REQUESTS: dict[int, type[Request]] = {}
"""Every request by its code."""


class Request(FieldStruct):
    """Base of all requests. A subclass states its code, its reply and what it needs."""

    code: ClassVar[RequestCode]
    reply: ClassVar[type[Reply] | None]
    needs: ClassVar[tuple[Permission, ...]]
    body_bytes_max: ClassVar[int]

    def __init_subclass__(
        cls, *, code: RequestCode, reply: type[Reply] | None, needs: Sequence[Permission], **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        if code in REQUESTS:
            raise TypeError(f"request code {code}: both {REQUESTS[code].__name__} and {cls.__name__}")
        declared = {field.name for field in cls.fields} | ({"body"} if cls.has_body else set())
        for need in needs:
            if need.field is not None and need.field not in declared:
                raise TypeError(
                    f"{cls.__name__} needs to {need.verb} {need.field}, which it does not declare"
                )
        cls.code, cls.reply, cls.needs = RequestCode(code), reply, tuple(needs)
        is_named_in_body = any(need.field == "body" for need in needs)
        cls.body_bytes_max = NAMES_BYTES_MAX if is_named_in_body else FRAME_BYTES_MAX
        REQUESTS[code] = cls

    @classmethod
    def from_command(cls, command: Command) -> Self:
        """The request in `command`; MissingField or BadField name what is wrong with it."""
        if len(command.body) > cls.body_bytes_max:
            problem = f"has {len(command.body)} bytes, at most {cls.body_bytes_max} are taken"
            raise BadField(cls.__name__, "body", problem)
        return cls.from_fields(command.fields, body=command.body)

    def to_command(
        self, *, opaque: int = 0, oneway: bool = False, serialization: Serialization = Serialization.JSON
    ) -> Command:
        return Command(
            code=self.code,
            opaque=opaque,
            flag=ONEWAY_FLAG if oneway else 0,
            fields=self.to_fields() or None,
            body=getattr(self, "body", b""),
            serialization=serialization,
        )

"""Who may do what. Every request declares what it needs; this is the one place that judges it.

`needed` resolves a request's declaration into what it asks for: (verb, kind of resource, name), also where
names only stand in the body. A policy, once there is one, is a function of that list and the peer. Until then
everyone may do everything the request's own checks allow.

The compiled lane does not come by here: it serves sends to topics in its table, and pulls it was granted
after a handler, behind this check, had served the same group and topic. Neither knows who is asking. So it
serves only while `is_open`: a broker with a policy serves every request by its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from hotfire.broker.call import Call
from hotfire.errors import BrokerRefused
from hotfire.net.heart import Connection
from hotfire.protocol.bodies import loads_standard
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.request import Permission
from hotfire.protocol.requests import Request

Kind = Literal["topic", "group", "cluster"]
TOPIC_NAMES = frozenset({"topic", "topicName"})
GROUP_NAMES = frozenset({"group", "groupName", "consumerGroup", "producerGroup"})
"""What bodies call the topics and groups they name."""


class Need(NamedTuple):
    """One thing a request must be allowed to do. The cluster has no name."""

    verb: str
    kind: Kind
    name: str


Policy = Callable[[Connection, Need], bool]


class Access:
    """The judgement over requests."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy

    @property
    def is_open(self) -> bool:
        """Whether everyone may do everything."""
        return self._policy is None

    def check(self, call: Call[Any]) -> None:
        """Raise NO_PERMISSION unless the caller may do all that the request needs."""
        if self._policy is None:
            return
        for need in needed(call.request):
            if not self._policy(call.connection, need):
                raise BrokerRefused(
                    ResponseCode.NO_PERMISSION, f"no permission to {need.verb} {need.kind}[{need.name:.300}]"
                )


def needed(request: Request) -> list[Need]:
    """What `request` must be allowed to do, each thing once. A body that is no JSON is the peer's mistake."""
    found: dict[Need, None] = {}
    for permission in type(request).needs:
        found.update(dict.fromkeys(_resolve(request, permission)))
    return list(found)


def _resolve(request: Request, permission: Permission) -> Iterator[Need]:
    verb, field = permission.verb, permission.field
    if field is None:
        yield Need(verb, "cluster", "")
    elif field == "body":
        body: bytes = getattr(request, "body", b"")
        for kind, name in _named_in(loads_standard(body) if body else {}):
            # whoever acts as a group's member reads the topics it names
            yield Need("read" if verb == "use" and kind == "topic" else verb, kind, name)
    else:
        name = getattr(request, field)
        if name is not None:  # an optional field that is absent names nothing
            yield Need(verb, "topic" if _is_topic(verb, field) else "group", name)


def _is_topic(verb: str, field: str) -> bool:
    return verb in ("read", "write") or field == "topic" or field.endswith("_topic")


def _named_in(tree: Any) -> Iterator[tuple[Kind, str]]:
    """Topics and groups anywhere in a body, in the order they are met; the parser has bounded its depth."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if isinstance(value, str) and key in TOPIC_NAMES:
                yield "topic", value
            elif isinstance(value, str) and key in GROUP_NAMES:
                yield "group", value
            else:
                yield from _named_in(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from _named_in(item)

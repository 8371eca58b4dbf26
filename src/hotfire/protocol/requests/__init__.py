"""Every request Hotfire speaks, declared once: code, fields, reply, permissions.

This table is the only place that says what a request looks like. Broker, name server, client, access
control and the docs read it; a handler is registered for one of these classes, so a handler for an
undeclared code cannot exist, and a code declared twice fails at import. `reply` is the struct of a
successful reply's fields: `None` when Java sends no field map at all, `NoFields` when it sends an
empty one. Field order of replies is the order seen on the wire. What travels in a body is in `bodies`;
what a request is, in `request`.
"""

from __future__ import annotations

from hotfire.protocol.command import Command
from hotfire.protocol.request import REQUESTS as REQUESTS
from hotfire.protocol.request import NoFields as NoFields
from hotfire.protocol.request import Permission as Permission
from hotfire.protocol.request import Reply as Reply
from hotfire.protocol.request import Request as Request
from hotfire.protocol.requests.admin import *
from hotfire.protocol.requests.clients import *
from hotfire.protocol.requests.messages import *
from hotfire.protocol.requests.naming import *
from hotfire.protocol.requests.offsets import *


def decode_request(command: Command) -> Request | None:
    """The typed request, or None when its code is not declared here (answer: not supported)."""
    declared = REQUESTS.get(command.code)
    return None if declared is None else declared.from_command(command)

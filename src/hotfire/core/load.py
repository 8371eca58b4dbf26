"""The generator of load, compiled or plain: a door of its own, for who keeps a store needs no sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.core import COMPILED

if TYPE_CHECKING or COMPILED:
    from hotfire.core._core import Load
else:
    from hotfire.core.plain_load import Load

__all__ = ["Load"]

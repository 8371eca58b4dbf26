"""By which mode groups ask for a topic's messages, where an administrator said so: messageRequestMode.json.

Every change is on disk before it is visible to anyone. Whether a mode can be served is its handler's affair.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hotfire.errors import BrokerRefused
from hotfire.protocol.assignment import RequestMode, RequestModes
from hotfire.protocol.bodies import from_json, to_json
from hotfire.protocol.codes import ResponseCode
from hotfire.store.tables import Table

MODES_MAX = 5_000
"""Each is some 100 bytes of a table that is written whole for every change."""

ModeTable = Mapping[str, Mapping[str, RequestMode]]


class Modes:
    """Topic and group -> RequestMode."""

    def __init__(self, table: Table) -> None:
        self._table = table
        stored = table.load_as(lambda tree: from_json(RequestModes, tree))
        self._modes: ModeTable = {} if stored is None else stored.modes

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._modes.values())

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get(topic, {}).get(group)

    def all(self) -> RequestModes:
        """All there are now: nothing of it changes any more."""
        return RequestModes(self._modes)

    def put(self, mode: RequestMode) -> None:
        if self.get(mode.topic, mode.consumer_group) is None and len(self) >= MODES_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(self)} modes of topics and groups are kept already, at most {MODES_MAX} are; "
                "those of deleted topics and groups go with them",
            )
        groups = {**self._modes.get(mode.topic, {}), mode.consumer_group: mode}
        self._save({**self._modes, mode.topic: groups})

    def forget_topics(self, names: Collection[str]) -> None:
        self._save({topic: groups for topic, groups in self._modes.items() if topic not in names})

    def forget_group(self, name: str) -> None:
        left = {
            topic: {group: mode for group, mode in groups.items() if group != name}
            for topic, groups in self._modes.items()
        }
        self._save({topic: groups for topic, groups in left.items() if groups})

    def _save(self, modes: ModeTable) -> None:
        if modes != self._modes:
            self._table.save(to_json(RequestModes(modes)))
            self._modes = modes

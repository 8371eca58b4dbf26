"""Consumer groups as the broker keeps them: one SubscriptionGroup each, in subscriptionGroup.json.

Who is alive in a group is `clients`' affair.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from contextlib import suppress

from hotfire import model
from hotfire.broker.config import BrokerConfig
from hotfire.errors import BrokerRefused
from hotfire.model import DataVersion, SubscriptionGroup
from hotfire.protocol import bodies
from hotfire.protocol.bodies import from_json, to_json
from hotfire.protocol.codes import FAQ, ResponseCode
from hotfire.store.tables import Table

log = logging.getLogger("hotfire.broker")

_GROUP_TABLE = bodies.table(bodies.text, bodies.nested(SubscriptionGroup))


class Groups:
    """Group name -> SubscriptionGroup."""

    def __init__(self, config: BrokerConfig, table: Table) -> None:
        self._config = config
        self._table = table
        self._groups: dict[str, SubscriptionGroup] = {}
        self._is_owing = False
        self._spelled: dict[str, str] = {}
        self._forbidden: object = {}
        """What groups may not read of topics: Apache's, kept as it is until it is served."""
        self._version = DataVersion()

    def load(self, now_ms: int) -> None:
        stored = self._table.load_as(_read)
        if stored is not None:
            self._version, self._groups, self._forbidden = stored
            self._spelled = _spelled(self._groups.values())
        self._put([name for name in model.SYSTEM_GROUPS if name not in self._groups], now_ms)

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def find(self, name: str, now_ms: int) -> SubscriptionGroup | None:
        """The group, made on its first use where that is allowed."""
        found = self.find_all([name], now_ms)
        return found[0] if found else None

    def find_all(self, names: Iterable[str], now_ms: int) -> list[SubscriptionGroup]:
        """Those of the groups that exist; new ones made where that is allowed, all in one write or none."""
        wanted = dict.fromkeys(names)
        new = [name for name in wanted if name not in self._groups and self._may_make(name)]
        for name in new:
            model.check_group_name(name)
        count, groups_max = len(self._groups) + len(new), self._config.groups_max
        if new and count > groups_max:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"group[{new[0]}] would make {count} groups, groupsMax is {groups_max}",
            )
        self._put(new, now_ms)
        return [self._groups[name] for name in wanted if name in self._groups]

    def _may_make(self, name: str) -> bool:
        return self._config.auto_create_subscription_group or model.is_system_group(name)

    def require(self, name: str, now_ms: int) -> SubscriptionGroup:
        group = self.find(name, now_ms)
        if group is None:
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, {FAQ}",
            )
        return group

    def _put(self, names: list[str], now_ms: int) -> None:
        """Make these groups, on disk first.

        A full disk keeps no one from reading: these groups hold defaults only and are written when it has
        room.
        """
        if not names:
            return
        made = {name: SubscriptionGroup(name) for name in names}
        version, more = self._version.next(now_ms), _spelled(made.values())
        try:
            self._save(version, {**self._spelled, **more})
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.warning("groups are not on disk reason=%s groups=%s", error.strerror, ",".join(names)[:500])
            self._is_owing = True
        self._version = version
        self._groups.update(made)
        self._spelled.update(more)

    def save_owed(self) -> None:
        """Write what a full disk did not take."""
        if self._is_owing:
            with suppress(OSError):  # still full; said when it began
                self._save(self._version, self._spelled)

    def _save(self, version: DataVersion, spelled: dict[str, str]) -> None:
        self._table.save(
            {
                "dataVersion": to_json(version),
                "forbiddenTable": self._forbidden,
                "subscriptionGroupTable": dict(spelled),
            }
        )
        self._is_owing = False


def _spelled(groups: Iterable[SubscriptionGroup]) -> dict[str, str]:
    """Each group as text: to spell all of them for each new one would take seconds."""
    return {group.name: bodies.spelled(to_json(group)) for group in groups}


def _read(tree: dict[str, object]) -> tuple[DataVersion, dict[str, SubscriptionGroup], object]:
    groups = _GROUP_TABLE(tree.get("subscriptionGroupTable", {}))
    version = from_json(DataVersion, tree.get("dataVersion", {}))
    return version, {group.name: group for group in groups.values()}, tree.get("forbiddenTable") or {}

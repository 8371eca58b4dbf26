"""Consumer groups as the broker keeps them: one SubscriptionGroup each, in subscriptionGroup.json.

Who is alive in a group is `clients`' affair.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
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

FORBIDDEN_READ = 1 << 2
"""The bit of the permission to read, as the reference keeps it."""
FORBIDDEN_TOPICS_MAX = 10_000
GroupTable = tuple[DataVersion, dict[str, SubscriptionGroup], dict[str, dict[str, int]]]
_FORBIDDEN_TABLE = bodies.table(bodies.text, bodies.table(bodies.text, bodies.int32))
_GROUP_TABLE = bodies.table(bodies.text, bodies.nested(SubscriptionGroup))


class Groups:
    """Group name -> SubscriptionGroup."""

    def __init__(self, config: BrokerConfig, table: Table) -> None:
        self._config = config
        self._table = table
        self._groups: dict[str, SubscriptionGroup] = {}
        self._is_owing = False
        self._spelled: dict[str, str] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        """Group -> topic -> bits of what the group may not do there; the reference knows one of reading."""
        self._version = DataVersion()

    def load(self, now_ms: int) -> None:
        stored = self._table.load_as(read_groups)
        if stored is not None:
            self._version, self._groups, self._forbidden = stored
            self._spelled = _spelled(self._groups.values())
        self._put([name for name in model.SYSTEM_GROUPS if name not in self._groups], now_ms)

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def may_read(self, name: str, topic: str) -> bool:
        """Whether the group was not forbidden to read the topic."""
        return not self._forbidden.get(name, {}).get(topic, 0) & FORBIDDEN_READ

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

    # --- administration ---

    @property
    def version(self) -> DataVersion:
        return self._version

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def __iter__(self) -> Iterator[SubscriptionGroup]:
        return iter(self._groups.values())

    def spelled(self) -> dict[str, str]:
        """Every group as JSON of the wire, for whoever reads it beside the loop."""
        return dict(self._spelled)

    def forbidden(self) -> dict[str, dict[str, int]]:
        return {group: dict(topics) for group, topics in self._forbidden.items()}

    def put_all(self, groups: Iterable[SubscriptionGroup], now_ms: int) -> None:
        """Create or replace groups: all of them in one write, or none."""
        changed = {group.name: group for group in groups if self._groups.get(group.name) != group}
        if not changed:
            return
        count, groups_max = len(self._groups.keys() | changed.keys()), self._config.groups_max
        if count > max(groups_max, len(self._groups)):
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"group[{next(iter(changed))}] would make {count} groups, groupsMax is {groups_max}",
            )
        version, spelled = self._version.next(now_ms), {**self._spelled, **_spelled(changed.values())}
        self._save(version, spelled, self._forbidden)
        self._version, self._spelled = version, spelled
        self._groups.update(changed)

    def adopt(self, table: GroupTable) -> None:
        """Be like this table of the master's."""
        version, groups, forbidden = table
        if version == self._version and groups == self._groups and forbidden == self._forbidden:
            return
        spelled = {name: text for name, text in self._spelled.items() if name in groups}
        spelled |= _spelled(group for name, group in groups.items() if self._groups.get(name) != group)
        self._save(version, spelled, forbidden)
        self._version, self._spelled, self._groups, self._forbidden = version, spelled, groups, forbidden

    def remove(self, name: str, now_ms: int) -> None:
        if name not in self._groups and name not in self._forbidden:
            return
        spelled = {group: text for group, text in self._spelled.items() if group != name}
        forbidden = {group: topics for group, topics in self._forbidden.items() if group != name}
        version = self._version.next(now_ms)
        self._save(version, spelled, forbidden)
        self._version, self._spelled, self._forbidden = version, spelled, forbidden
        self._groups.pop(name, None)

    def forbid_reading(self, group: str, topic: str, is_forbidden: bool, now_ms: int) -> None:
        """Only of this topic: the reference, when it allows one again, allows all of the group's."""
        if self.may_read(group, topic) != is_forbidden:
            return
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.pop(topic, 0) ^ FORBIDDEN_READ
        if bits:
            topics[topic] = bits
        if len(topics) > FORBIDDEN_TOPICS_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"group[{group}] would be forbidden {len(topics)} topics, at most {FORBIDDEN_TOPICS_MAX} fit",
            )
        if group not in self._groups and is_forbidden:
            raise BrokerRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        forbidden = {**self._forbidden, group: topics}
        if not topics:
            del forbidden[group]
        version = self._version.next(now_ms)
        self._save(version, self._spelled, forbidden)
        self._version, self._forbidden = version, forbidden

    # --- keeping ---

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
            self._save(version, {**self._spelled, **more}, self._forbidden)
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
                self._save(self._version, self._spelled, self._forbidden)

    def _save(
        self, version: DataVersion, spelled: dict[str, str], forbidden: dict[str, dict[str, int]]
    ) -> None:
        self._table.save(
            {
                "dataVersion": to_json(version),
                "forbiddenTable": forbidden,
                "subscriptionGroupTable": dict(spelled),
            }
        )
        self._is_owing = False


def _spelled(groups: Iterable[SubscriptionGroup]) -> dict[str, str]:
    """Each group as text: to spell all of them for each new one would take seconds."""
    return {group.name: bodies.spelled(to_json(group)) for group in groups}


def read_groups(tree: dict[str, object]) -> GroupTable:
    """A table as it is on disk and on the wire."""
    groups = _GROUP_TABLE(tree.get("subscriptionGroupTable", {}))
    version = from_json(DataVersion, tree.get("dataVersion", {}))
    forbidden = _FORBIDDEN_TABLE(tree.get("forbiddenTable") or {})
    return version, {group.name: group for group in groups.values()}, forbidden

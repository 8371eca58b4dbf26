"""Consumer groups as the broker keeps them: one SubscriptionGroup each, in subscriptionGroup.json.

Who is alive in a group is `clients`' affair.
"""

from __future__ import annotations

from hotfire import model
from hotfire.broker.config import BrokerConfig
from hotfire.errors import BrokerRefused
from hotfire.model import DataVersion, SubscriptionGroup
from hotfire.protocol import bodies
from hotfire.protocol.bodies import from_json, to_json
from hotfire.protocol.codes import FAQ, ResponseCode
from hotfire.store.tables import Table

_GROUP_TABLE = bodies.table(bodies.text, bodies.nested(SubscriptionGroup))


class Groups:
    """Group name -> SubscriptionGroup."""

    def __init__(self, config: BrokerConfig, table: Table) -> None:
        self._config = config
        self._table = table
        self._groups: dict[str, SubscriptionGroup] = {}
        self._version = DataVersion()

    def load(self, now_ms: int) -> None:
        stored = self._table.load_as(_read)
        if stored is not None:
            self._version, self._groups = stored
        missing = [name for name in model.SYSTEM_GROUPS if name not in self._groups]
        if missing:
            self._put(missing, now_ms)

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def find(self, name: str, now_ms: int) -> SubscriptionGroup | None:
        """The group, made on its first use where that is allowed."""
        group = self._groups.get(name)
        if group is not None:
            return group
        if not (self._config.auto_create_subscription_group or model.is_system_group(name)):
            return None
        model.check_group_name(name)
        self._put([name], now_ms)
        return self._groups[name]

    def require(self, name: str, now_ms: int) -> SubscriptionGroup:
        group = self.find(name, now_ms)
        if group is None:
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, {FAQ}",
            )
        return group

    def _put(self, names: list[str], now_ms: int) -> None:
        """Make these groups: on disk first, so that what could not be kept does not exist."""
        groups = {**self._groups, **{name: SubscriptionGroup(name) for name in names}}
        version = self._version.next(now_ms)
        self._table.save(
            {
                "dataVersion": to_json(version),
                "forbiddenTable": {},
                "subscriptionGroupTable": {name: to_json(group) for name, group in groups.items()},
            }
        )
        self._groups, self._version = groups, version


def _read(tree: dict[str, object]) -> tuple[DataVersion, dict[str, SubscriptionGroup]]:
    groups = _GROUP_TABLE(tree.get("subscriptionGroupTable", {}))
    return from_json(DataVersion, tree.get("dataVersion", {})), groups

"""The name server's key-value table: namespaces of texts, kept for administrators and ordered topics.

The only thing a name server is told that brokers do not tell it again, so it is the only thing worth a
file. Owns the table and the file's content (`kvConfig.json` of Apache's name server); where and how the
bytes are kept is a function it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hotfire.errors import ConfigError, RemoteProtocolError
from hotfire.protocol.bodies import dumps, loads_standard

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"

TABLE_BYTES_MAX = 16 << 20
"""The whole table is written at every change, and anyone may put."""

Save = Callable[[bytes], None]


class KvTable:
    """A change is saved before it is seen; when saving fails the table is as before."""

    def __init__(self, saved: bytes | None = None, save: Save | None = None) -> None:
        self._namespaces = {} if saved is None else _parse(saved)
        self._save = save

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All of a namespace; None when nothing was ever put into it."""
        return self._namespaces.get(namespace)

    def items(self) -> list[tuple[str, str, str]]:
        """Every namespace, key and value."""
        return [
            (namespace, key, value)
            for namespace, held in self._namespaces.items()
            for key, value in held.items()
        ]

    def put(self, namespace: str, key: str, value: str) -> None:
        self._replace(namespace, {**self._namespaces.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        held = self._namespaces.get(namespace, {})
        if key in held:
            self._replace(namespace, {other: value for other, value in held.items() if other != key})

    def _replace(self, namespace: str, held: dict[str, str]) -> None:
        namespaces = {**self._namespaces, namespace: held}
        content = dumps({"configTable": namespaces})
        if len(content) > TABLE_BYTES_MAX:
            raise ConfigError(
                f"the key-value table would take {len(content)} bytes, and {TABLE_BYTES_MAX} are allowed: "
                "delete entries nobody needs"
            )
        if self._save is not None:
            self._save(content)
        self._namespaces = namespaces


def _parse(saved: bytes) -> dict[str, dict[str, str]]:
    try:
        tree = loads_standard(saved)
    except RemoteProtocolError as error:
        raise ConfigError(f"key-value file of {len(saved)} bytes: {error}") from None
    namespaces = tree.get("configTable") if isinstance(tree, dict) else None
    if not isinstance(namespaces, dict) or not all(_is_texts(held) for held in namespaces.values()):
        raise ConfigError('key-value file: expected {"configTable":{namespace:{key:value}}} with texts')
    return namespaces


def _is_texts(held: object) -> bool:
    return isinstance(held, dict) and all(isinstance(value, str) for value in held.values())

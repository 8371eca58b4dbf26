"""The filter server's settings, and the filters an operator installed.

A filter is a function of one message that says whether to deliver it. It is named in the configuration, or by
an entry point of an installed package; code that a client sends is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from hotfire.errors import ConfigError
from hotfire.net.tls_settings import TlsClientConfig, TlsServerConfig
from hotfire.settings import setting

ENTRY_POINTS = "hotfire.filters"
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w.$-]{0,254})=(?P<place>[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterServerConfig(TlsServerConfig, TlsClientConfig):
    """Names are those of Apache's filtersrv.properties where it has the same setting."""

    bind_address: str = setting("0.0.0.0", "Address to listen on.")  # noqa: S104  # consumers come from anywhere
    listen_port: int = setting(0, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    filter_server_ip: str | None = setting(
        None, "The address consumers are told; else this machine's.", name="filterServerIP"
    )
    connect_which_broker: str = setting("127.0.0.1:10911", "The broker to serve, host:port.")
    filters: str = setting(
        "", "Filters, name=module:function with commas between; beside entry points `hotfire.filters`."
    )
    connections_max: int = setting(10_000, "Connections at once.", low=16)
    server_channel_max_idle_time_seconds: int = setting(
        120, "A connection that says nothing for so long is closed.", unit="s", low=1
    )
    filter_timeout_millis: int = setting(
        1000, "What a filter may take for the messages of one pull.", unit="ms", low=1, high=60_000
    )
    filter_start_timeout_millis: int = setting(
        10_000, "What a filter's process may take to start.", unit="ms", low=100, high=120_000
    )
    filter_memory_max: int = setting(
        512 << 20, "Address space of a filter's process.", unit="bytes", low=128 << 20
    )
    pulls_per_filter_max: int = setting(1000, "Pulls that wait for one filter.", low=1)


def installed(config: FilterServerConfig) -> dict[str, str]:
    """Where each filter is, as module:function, by name. The configuration goes before entry points."""
    points = entry_points(group=ENTRY_POINTS)  # may be written with spaces, and name extras behind
    found: dict[str, str] = {point.name: f"{point.module}:{point.attr or ''}" for point in points}
    found.update(named(config.filters))
    if not found:
        raise ConfigError(
            "no filter is installed: set filters=name=module:function, or install a package with an entry "
            f"point of the group {ENTRY_POINTS}"
        )
    return found


def named(text: str) -> Mapping[str, str]:
    filters: dict[str, str] = {}
    for part in (one.strip() for one in text.split(",")):
        if not part:
            continue
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise ConfigError(f"filters={part:.100}: write name=module:function, with commas between several")
        filters[pair["name"]] = pair["place"]
    return filters

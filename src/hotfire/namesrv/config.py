"""The name server's settings."""

from __future__ import annotations

from dataclasses import dataclass

from hotfire.net.tls_settings import TlsServerConfig
from hotfire.protocol.codes import Serialization
from hotfire.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(TlsServerConfig):
    """Names and defaults are those of Apache's namesrv.conf where it has the same setting."""

    bind_address: str = setting("0.0.0.0", "Address to listen on.")  # noqa: S104  # brokers come from anywhere
    listen_port: int = setting(9876, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    rocketmq_home: str = setting(
        "", "Where Apache's name server is installed; told by ROCKETMQ_HOME, and not needed."
    )
    connections_max: int = setting(
        60_000, "Connections at once; fewer where the limit of open files is low.", low=16
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "A connection that says nothing for so long is closed.", unit="s", low=1
    )
    kv_config_path: str | None = setting(
        "~/namesrv/kvConfig.json", "File that keeps the key-value table; none keeps it in memory only."
    )
    scan_interval_ms: int = setting(
        5_000,
        "How often to look for brokers that fell silent.",
        name="scanNotActiveBrokerInterval",
        unit="ms",
        low=100,
        high=10_000,  # beyond this a silent broker would stay for more than 130 s
        reload=True,
    )
    order_message_enable: bool = setting(
        False, "Add a topic's order configuration to its route.", reload=True
    )
    return_order_topic_config_to_broker: bool = setting(
        True, "Answer registrations with the order configuration of all topics.", reload=True
    )
    support_acting_master: bool = setting(
        False, "Show the smallest slave as master while a broker that allows it has none.", reload=True
    )
    delete_topic_with_broker_registration: bool = setting(
        False, "Forget topics of a broker that its registration no longer lists.", reload=True
    )
    enable_all_topic_list: bool = setting(True, "Answer requests for the list of all topics.", reload=True)
    enable_topic_list: bool = setting(True, "Answer requests for other lists of topics.", reload=True)
    need_wait_for_service: bool = setting(
        False, "Give out no routes until waitSecondsForService after the start.", reload=True
    )
    wait_seconds_for_service: int = setting(
        45, "How long brokers get to register before routes are given out.", unit="s", low=0, high=3600
    )
    serialize_type: Serialization = setting(  # noqa: RUF009  # it makes a field
        Serialization.JSON, "Header serialisation of replies.", name="rocketmq.serialize.type"
    )

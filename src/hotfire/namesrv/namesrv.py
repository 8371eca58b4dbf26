"""The name server as one value: commands in, replies out, time passed in.

Owns the journey of a command (decode, find its handler, turn refusals into replies) and the two things
that happen by the clock: the scan for silent brokers and the printing of the tables. Knows
connections only as things that can be closed; who listens and reads is `net`.
"""

from __future__ import annotations

import logging

from hotfire.errors import BrokerRefused, HotfireError, RemoteProtocolError
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.handlers import HANDLERS, Origin, State
from hotfire.namesrv.kv import KvTable
from hotfire.namesrv.routes import LiveBroker, RouteTable
from hotfire.net.heart import CommandHeart, Connection
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import RESPONSE_FLAG, Command
from hotfire.protocol.requests import REQUESTS

log = logging.getLogger("hotfire.namesrv")

KV_PRINT_FIRST_MS = 60_000
KV_PRINT_INTERVAL_MS = 600_000
PRINTED_MAX = 1000
"""Lines of brokers and of keys each: whoever registers ten thousand is not to fill the log with them."""


class NameServer(CommandHeart):
    """Handles one command at a time, at once. `kv` brings what was saved and how to save.

    >>> server = NameServer(NameServerConfig(), now_ms=0)
    >>> server.state.routes.route("orders") is None
    True
    """

    def __init__(self, config: NameServerConfig, *, now_ms: int, kv: KvTable | None = None) -> None:
        super().__init__()
        self.state = State(config, RouteTable(), KvTable() if kv is None else kv, now_ms)
        self._scan_at_ms = now_ms + config.scan_interval_ms
        self._print_at_ms = now_ms + KV_PRINT_FIRST_MS

    @property
    def config(self) -> NameServerConfig:
        """The settings in force; requests may change some of them."""
        return self.state.config

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        for live in self.state.routes.disconnected(connection):
            _log_gone(live, "its connection closed")

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._scan_at_ms:
            self._scan_at_ms = now_ms + self.config.scan_interval_ms
            self._scan(now_ms)
        if now_ms >= self._print_at_ms:
            self._print_at_ms = now_ms + KV_PRINT_INTERVAL_MS
            self._print_tables(now_ms)

    def clock_moved(self, by_ms: int) -> None:
        self._scan_at_ms += by_ms
        self._print_at_ms += by_ms
        self.state.routes.clock_moved(by_ms)

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        """The reply; None for a oneway request, which is carried out all the same, and for a stray reply."""
        if command.is_response:
            return None
        reply = self._reply(connection, command, now_ms)
        if command.is_oneway:
            return None
        reply.opaque = command.opaque
        reply.flag = RESPONSE_FLAG
        reply.serialization = self.config.serialize_type
        return reply

    def _reply(self, connection: Connection, command: Command, now_ms: int) -> Command:
        kind = REQUESTS.get(command.code)
        handler = None if kind is None else HANDLERS.get(kind)
        if kind is None or handler is None:
            remark = f" request type {command.code} not supported"
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            request = kind.from_command(command)
            return handler(self.state, request, Origin(connection, command.version, now_ms))
        except BrokerRefused as refusal:
            code, remark = refusal.code, refusal.remark
        except RemoteProtocolError as error:
            # Java's exception path: a reply made anew, without the field map of the one that was begun.
            return Command(int(ResponseCode.SYSTEM_ERROR), remark=str(error))
        except (HotfireError, OSError) as error:
            # The key-value file could not be written; the table is unchanged.
            log.error("request=%s refused error=%s", kind.__name__, error)
            code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
        # Java makes the empty field map before it knows that the request fails.
        return Command(code, remark=remark, fields=None if kind.reply is None else {})

    def _scan(self, now_ms: int) -> None:
        for live in self.state.routes.expire(now_ms):
            _log_gone(live, f"silent for more than {live.timeout_ms} ms")
            live.connection.close()

    def _print_tables(self, now_ms: int) -> None:
        routes = self.state.routes
        clusters = routes.cluster_info().clusters
        brokers = routes.live_brokers()
        topics = routes.topic_counts()
        log.info(
            "topics=%d brokers=%d clusters=%d live=%d",
            len(routes.topics()), len(topics), len(clusters), len(brokers),
        )  # fmt: skip
        for live in brokers[:PRINTED_MAX]:
            broker = live.broker
            log.info(
                "broker=%.255s id=%d cluster=%.255s address=%.255s ha=%.255s heard_s_ago=%.1f topics=%d",
                broker.name, broker.id, broker.cluster, broker.address, live.ha_address,
                (now_ms - live.updated_ms) / 1e3, topics.get(broker.name, 0),
            )  # fmt: skip
        items = self.state.kv.items()
        log.info("kv_items=%d", len(items))
        for namespace, key, value in items[:PRINTED_MAX]:
            log.info("kv namespace=%.255s key=%.255s value=%.4000s", namespace, key, value)
        for what, count in (("brokers", len(brokers)), ("kv_items", len(items))):
            if count > PRINTED_MAX:
                log.info("%s_not_printed=%d", what, count - PRINTED_MAX)


def _log_gone(live: LiveBroker, why: str) -> None:
    broker = live.broker
    log.warning("broker=%s id=%d address=%s removed: %s", broker.name, broker.id, broker.address, why)

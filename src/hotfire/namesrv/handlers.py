"""What a name server answers: one plain function per request.

A handler takes the state, the typed request and where it came from, changes the state and returns the
reply's content. Which requests there are is `HANDLERS`; opaque, flags and serialisation of replies are
`namesrv`'s. Remarks are worded as the reference implementation words them where tools show them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from hotfire.errors import BrokerRefused, ConfigError
from hotfire.model import BrokerRegistration, DataVersion, RouteData, TopicTable
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.kv import ORDER_NAMESPACE, KvTable
from hotfire.namesrv.routes import UNIT_FLAG, UNIT_SUB_FLAG, Broker, RouteTable, within_zone
from hotfire.net.heart import Connection
from hotfire.protocol import requests
from hotfire.protocol.bodies import (
    BrokerMemberGroup,
    KVTable,
    MemberGroupReply,
    TopicList,
    decode_body,
    encode_body,
)
from hotfire.protocol.codes import FAQ, ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.registration import decode_registration
from hotfire.settings import NotReloadable, format_properties, load_properties, to_properties, updated

V3_0_11 = 37
"""From here on a registration holds more than the topics."""

V4_9_4 = 401
"""From here on clients read a route only if it is standard JSON; older ones read bare keys only."""


ROUTE_BODIES_MAX = 8192


class RouteBodies:
    """Routes as they were last encoded, while the tables they were made of stand still."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, bool], bytes] = {}
        self._edition = -1

    def get(self, topic: str, bare_keys: bool, edition: int) -> bytes | None:
        if edition != self._edition:
            self.clear()
            self._edition = edition
        return self._bodies.get((topic, bare_keys))

    def put(self, topic: str, bare_keys: bool, body: bytes) -> None:
        if len(self._bodies) >= ROUTE_BODIES_MAX:
            self.clear()
        self._bodies[topic, bare_keys] = body

    def clear(self) -> None:
        self._bodies.clear()


@dataclass(slots=True)
class State:
    """All a name server knows."""

    config: NameServerConfig
    routes: RouteTable
    kv: KvTable
    started_ms: int
    bodies: RouteBodies = field(default_factory=RouteBodies)


class Origin(NamedTuple):
    """Where a request came from, and when."""

    connection: Connection
    version: int
    now_ms: int


AnyRequest = TypeVar("AnyRequest", bound=requests.Request)
Handler = Callable[[State, Any, Origin], Command]

HANDLERS: dict[type[requests.Request], Handler] = {}


def handles(
    *kinds: type[AnyRequest],
) -> Callable[
    [Callable[[State, AnyRequest, Origin], Command]], Callable[[State, AnyRequest, Origin], Command]
]:
    def register(
        handler: Callable[[State, AnyRequest, Origin], Command],
    ) -> Callable[[State, AnyRequest, Origin], Command]:
        for kind in kinds:
            assert kind not in HANDLERS, f"two handlers of {kind.__name__}"
            HANDLERS[kind] = handler
        return handler

    return register


def done(reply: requests.Reply | None = None, *, body: bytes = b"", remark: str | None = None) -> Command:
    fields = None if reply is None else reply.to_fields()
    return Command(ResponseCode.SUCCESS, fields=fields, body=body, remark=remark)


# --- brokers ---------------------------------------------------------------------------------------


@handles(requests.RegisterBroker)
def register_broker(state: State, request: requests.RegisterBroker, origin: Origin) -> Command:
    if request.body_crc32 and zlib.crc32(request.body) & 0x7FFF_FFFF != request.body_crc32:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    broker = Broker(request.cluster_name, request.broker_name, request.broker_id, request.broker_addr)
    digest = _digest(request, origin.version)
    registered = state.routes.renew(broker, digest, origin.connection, origin.now_ms)
    if registered is None:
        registered = state.routes.register(
            broker,
            _registration(request, origin.version),
            ha_address=request.ha_server_addr,
            connection=origin.connection,
            now_ms=origin.now_ms,
            timeout_ms=request.heartbeat_timeout_millis,
            acting_master=request.enable_acting_master,
            zone_name=request.zone_name,
            delete_missing=state.config.delete_topic_with_broker_registration,
            digest=digest,
        )
    if registered is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "register broker failed")
    reply = requests.RegisterBrokerReply(
        ha_server_addr=registered.ha_address, master_addr=registered.master_address
    )
    ordered = state.kv.namespace(ORDER_NAMESPACE)
    if ordered is None or not state.config.return_order_topic_config_to_broker:
        return done(reply)
    return done(reply, body=encode_body(KVTable(ordered)))


def _registration(request: requests.RegisterBroker, version: int) -> BrokerRegistration:
    if version >= V3_0_11:
        return decode_registration(request.body, compressed=request.compressed)
    return BrokerRegistration(decode_body(TopicTable, request.body) if request.body else TopicTable())


def _digest(request: requests.RegisterBroker, version: int) -> bytes:
    """Two registrations with the same one say the same."""
    rest = (
        request.ha_server_addr, request.heartbeat_timeout_millis, request.enable_acting_master,
        request.compressed, request.zone_name, version,
    )  # fmt: skip
    digest = hashlib.blake2b(repr(rest).encode(), digest_size=16)
    digest.update(request.body)
    return digest.digest()


@handles(requests.UnregisterBroker)
def unregister_broker(state: State, request: requests.UnregisterBroker, _: Origin) -> Command:
    state.routes.unregister(
        Broker(request.cluster_name, request.broker_name, request.broker_id, request.broker_addr)
    )
    return done()


@handles(requests.QueryDataVersion)
def query_data_version(state: State, request: requests.QueryDataVersion, origin: Origin) -> Command:
    """Tell a broker whether it needs to register again; with acting masters this is its heartbeat."""
    version = decode_body(DataVersion, request.body)
    state.routes.touch(request.cluster_name, request.broker_addr, origin.now_ms)
    known = state.routes.data_version(request.cluster_name, request.broker_addr)
    reply = requests.DataVersionReply(changed=known != version)
    return done(reply, body=b"" if known is None else encode_body(known))


@handles(requests.BrokerHeartbeat)
def broker_heartbeat(state: State, request: requests.BrokerHeartbeat, origin: Origin) -> Command:
    state.routes.touch(request.cluster_name, request.broker_addr, origin.now_ms)
    return done()


@handles(requests.RegisterTopicInNamesrv)
def register_topic(state: State, request: requests.RegisterTopicInNamesrv, _: Origin) -> Command:
    if request.body:
        state.routes.register_topic(request.topic, decode_body(RouteData, request.body).queues)
    return done()


@handles(requests.GetBrokerMemberGroup)
def get_broker_member_group(state: State, request: requests.GetBrokerMemberGroup, _: Origin) -> Command:
    members = state.routes.members(request.broker_name)
    group = BrokerMemberGroup(request.cluster_name, request.broker_name, members)
    # The remark is Java's default for a reply whose remark nobody set.
    return done(body=encode_body(MemberGroupReply(group)), remark="not set any response code")


# --- clients ---------------------------------------------------------------------------------------


@handles(requests.GetRouteInfoByTopic)
def get_route(state: State, request: requests.GetRouteInfoByTopic, origin: Origin) -> Command:
    config = state.config
    ready_ms = state.started_ms + config.wait_seconds_for_service * 1000
    if config.need_wait_for_service and origin.now_ms < ready_ms:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "name server not ready")
    standard = origin.version >= V4_9_4 or bool(request.accept_standard_json_only)
    zone = request.zone_name if request.zone_mode else None
    is_common = not config.order_message_enable and not zone
    if is_common:
        body = state.bodies.get(request.topic, not standard, state.routes.edition)
        if body is not None:
            return done(body=body)
    route = state.routes.route(request.topic, acting_master=config.support_acting_master)
    if route is None:
        raise BrokerRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {request.topic}{FAQ}",
        )
    if config.order_message_enable:
        route = replace(route, order_topic_conf=state.kv.get(ORDER_NAMESPACE, request.topic))
    if zone:
        route = within_zone(route, zone)
    body = encode_body(route, bare_keys=not standard)
    if is_common:
        state.bodies.put(request.topic, not standard, body)
    return done(body=body)


@handles(requests.GetBrokerClusterInfo)
def get_cluster_info(state: State, _: requests.GetBrokerClusterInfo, __: Origin) -> Command:
    return done(body=encode_body(state.routes.cluster_info()))


# --- lists of topics -------------------------------------------------------------------------------


def _topic_list(enabled: bool, topics: Callable[[], tuple[str, ...]]) -> Command:
    if not enabled:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "disable")
    return done(body=encode_body(TopicList(topics())))


@handles(requests.GetAllTopicListFromNameserver)
def get_all_topics(state: State, _: requests.GetAllTopicListFromNameserver, __: Origin) -> Command:
    return _topic_list(state.config.enable_all_topic_list, state.routes.topics)


@handles(requests.GetTopicsByCluster)
def get_topics_by_cluster(state: State, request: requests.GetTopicsByCluster, _: Origin) -> Command:
    return _topic_list(
        state.config.enable_topic_list, lambda: state.routes.topics_of_cluster(request.cluster)
    )


@handles(requests.GetSystemTopicListFromNs)
def get_system_topics(state: State, _: requests.GetSystemTopicListFromNs, __: Origin) -> Command:
    topics, address = state.routes.system_topics()
    return done(body=encode_body(TopicList(topics, address)))


@handles(requests.GetUnitTopicList)
def get_unit_topics(state: State, _: requests.GetUnitTopicList, __: Origin) -> Command:
    return _topic_list(
        state.config.enable_topic_list, lambda: state.routes.topics_with_flags(wanted=UNIT_FLAG)
    )


@handles(requests.GetHasUnitSubTopicList)
def get_unit_sub_topics(state: State, _: requests.GetHasUnitSubTopicList, __: Origin) -> Command:
    return _topic_list(
        state.config.enable_topic_list, lambda: state.routes.topics_with_flags(wanted=UNIT_SUB_FLAG)
    )


@handles(requests.GetHasUnitSubUnunitTopicList)
def get_unit_sub_only_topics(state: State, _: requests.GetHasUnitSubUnunitTopicList, __: Origin) -> Command:
    return _topic_list(
        state.config.enable_topic_list,
        lambda: state.routes.topics_with_flags(wanted=UNIT_SUB_FLAG, unwanted=UNIT_FLAG),
    )


# --- administration --------------------------------------------------------------------------------


@handles(requests.WipeWritePermOfBroker)
def wipe_write_perm(state: State, request: requests.WipeWritePermOfBroker, _: Origin) -> Command:
    count = state.routes.wipe_write_perm(request.broker_name)
    return done(requests.WipeWritePermReply(wipe_topic_count=count))


@handles(requests.AddWritePermOfBroker)
def add_write_perm(state: State, request: requests.AddWritePermOfBroker, _: Origin) -> Command:
    count = state.routes.add_write_perm(request.broker_name)
    return done(requests.AddWritePermReply(add_topic_count=count))


@handles(requests.DeleteTopicInNamesrv)
def delete_topic(state: State, request: requests.DeleteTopicInNamesrv, _: Origin) -> Command:
    state.routes.delete_topic(request.topic, request.cluster_name or None)
    return done()


@handles(requests.PutKvConfig)
def put_kv(state: State, request: requests.PutKvConfig, _: Origin) -> Command:
    state.kv.put(request.namespace, request.key, request.value)
    return done()


@handles(requests.GetKvConfig)
def get_kv(state: State, request: requests.GetKvConfig, _: Origin) -> Command:
    value = state.kv.get(request.namespace, request.key)
    if value is None:
        raise BrokerRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {request.namespace} Key: {request.key}",
        )
    return done(requests.KvReply(value=value))


@handles(requests.DeleteKvConfig)
def delete_kv(state: State, request: requests.DeleteKvConfig, _: Origin) -> Command:
    state.kv.delete(request.namespace, request.key)
    return done()


@handles(requests.GetKvListByNamespace)
def get_kv_list(state: State, request: requests.GetKvListByNamespace, _: Origin) -> Command:
    held = state.kv.namespace(request.namespace)
    if held is None:
        raise BrokerRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.namespace}")
    return done(body=encode_body(KVTable(held)))


@handles(requests.UpdateNamesrvConfig)
def update_config(state: State, request: requests.UpdateNamesrvConfig, _: Origin) -> Command:
    try:
        state.config = updated(state.config, load_properties(request.body.decode("utf-8", "replace")))
        state.bodies.clear()
    except NotReloadable as error:
        raise BrokerRefused(ResponseCode.NO_PERMISSION, str(error)) from None
    except ConfigError as error:
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    return done()


@handles(requests.GetNamesrvConfig)
def get_config(state: State, _: requests.GetNamesrvConfig, __: Origin) -> Command:
    return done(body=format_properties(to_properties(state.config)).encode())

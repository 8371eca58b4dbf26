"""Bodies of the Java side, JSON or nearly, read and written again."""

from collections import Counter

import pytest

from hotfire.model import (
    BrokerRegistration,
    ClusterInfo,
    DataVersion,
    Heartbeat,
    RouteData,
    SubscriptionGroup,
    TopicConfig,
    TopicTable,
)
from hotfire.protocol.batch import decode_batch, encode_batch
from hotfire.protocol.bodies import (
    ClientConfig,
    ConsumerList,
    KVTable,
    LockBatch,
    LockedQueues,
    MemberGroupReply,
    TopicList,
    decode_body,
    encode_body,
)
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.javajson import dumps_bare_keys, loads
from hotfire.protocol.record import encode_record, iter_records
from hotfire.protocol.registration import decode_registration, encode_registration
from tests.wire.golden import frames

REQUEST_BODIES: dict[int, type] = {
    RequestCode.HEART_BEAT: Heartbeat,
    RequestCode.REGISTER_BROKER: BrokerRegistration,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.LOCK_BATCH_MQ: LockBatch,
    RequestCode.UNLOCK_BATCH_MQ: LockBatch,
    RequestCode.CHECK_CLIENT_CONFIG: ClientConfig,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroup,
}
REPLY_BODIES: dict[int, type] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: RouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_BROKER_MEMBER_GROUP: MemberGroupReply,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: TopicList,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerList,
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicTable,
    RequestCode.GET_TOPIC_CONFIG: TopicConfig,
    RequestCode.GET_BROKER_RUNTIME_INFO: KVTable,
    RequestCode.LOCK_BATCH_MQ: LockedQueues,
}


def test_json_bodies_come_back_byte_for_byte() -> None:
    """Bare integer keys, object keys and non-ASCII text included."""
    bodies = [frame.body for frame in frames() if frame.body[:1] in (b"{", b"[")]
    assert len(bodies) == 615
    for body in bodies:
        assert dumps_bare_keys(loads(body)) == body


def test_typed_bodies_come_back_byte_for_byte() -> None:
    """Each declared body becomes a value and the same bytes again; no kind goes unseen."""
    seen: Counter[type] = Counter()
    for frame in frames():
        kinds = REPLY_BODIES if frame.facts["dir"] == "response" else REQUEST_BODIES
        kind = kinds.get(frame.request_code)
        if kind is None or not frame.body:
            continue
        seen[kind] += 1
        assert encode_body(decode_body(kind, frame.body)) == frame.body, frame.key
    assert set(seen) == {*REQUEST_BODIES.values(), *REPLY_BODIES.values()}


def test_registrations_survive_compression() -> None:
    """The compressed form carries the same topics, version and filter servers."""
    bodies = [
        f.body for f in frames() if f.facts["name"] == "REGISTER_BROKER" and f.facts["dir"] == "request"
    ]
    assert bodies
    for body in bodies:
        plain = decode_registration(body)
        assert encode_registration(plain) == body
        inflated = decode_registration(encode_registration(plain, compressed=True), compressed=True)
        assert inflated.topic_table.topics == plain.topic_table.topics
        assert inflated.topic_table.data_version == plain.topic_table.data_version
        assert inflated.filter_servers == plain.filter_servers


def test_pulled_records_come_back_byte_for_byte() -> None:
    """A pull reply's body is records and nothing else."""
    pulls = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
    bodies = [f.body for f in frames() if f.request_code in pulls and f.facts["dir"] == "response" and f.body]
    assert len(bodies) > 50
    for body in bodies:
        assert b"".join(encode_record(record, append_crc=False) for record in iter_records(body)) == body


def test_batches_come_back_byte_for_byte() -> None:
    """What clients pack into one send, unpacked and packed again."""
    bodies = [f.body for f in frames() if f.facts["code"] == RequestCode.SEND_BATCH_MESSAGE and f.body]
    assert len(bodies) == 6
    for body in bodies:
        messages = decode_batch(body)
        assert len(messages) > 1
        assert encode_batch(messages) == body


@pytest.mark.parametrize("bare_keys", [False, True])
def test_routes_are_read_with_quoted_and_with_bare_keys(bare_keys: bool) -> None:
    """Which of the two a name server writes depends on its version and ours."""
    for frame in frames():
        if frame.request_code == RequestCode.GET_ROUTEINFO_BY_TOPIC and frame.facts["dir"] == "response":
            route = decode_body(RouteData, frame.body) if frame.body else RouteData()
            assert decode_body(RouteData, encode_body(route, bare_keys=bare_keys)) == route

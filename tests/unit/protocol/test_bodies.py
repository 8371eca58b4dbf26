"""Bodies <-> shared values."""

import contextlib
import dataclasses
import inspect
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire import model
from hotfire.errors import RemoteProtocolError
from hotfire.protocol import assignment, bodies, consumerfilter, members, reports, running
from hotfire.protocol.bodies import decode_body, encode_body, from_json, to_json
from hotfire.protocol.registration import INFLATED_BYTES_MAX, decode_registration, encode_registration

texts = st.text(max_size=8)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
flags = st.booleans()
text_tables = st.dictionaries(texts, texts, max_size=3)
text_lists = st.lists(texts, max_size=3).map(tuple)
queues = st.builds(model.MessageQueue, texts, texts, int32)
versions = st.builds(model.DataVersion, int64, int64, int64)
# A name with a space cannot be told from the next column of a compressed topic.
names = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=8)
topics = st.builds(model.TopicConfig, names, int32, int32, int32, names, int32, flags, text_tables)
addresses = st.dictionaries(int64, texts, max_size=3)
brokers = st.builds(model.BrokerData, texts, texts, addresses, flags, st.none() | texts)
queue_data = st.builds(model.QueueData, texts, int32, int32, int32, int32)
subscriptions = st.builds(
    model.Subscription, texts, texts, texts, text_lists, st.lists(int32, max_size=3).map(tuple), int64, flags
)
consumers = st.builds(
    model.ConsumerData, texts, texts, texts, texts, st.lists(subscriptions, max_size=2).map(tuple), flags
)
topic_tables = st.builds(
    model.TopicTable,
    st.lists(topics, max_size=3).map(lambda configs: {config.name: config for config in configs}),
    versions,
    st.none() | versions,
)
VALUES: dict[type, st.SearchStrategy[Any]] = {
    model.MessageQueue: queues,
    model.DataVersion: versions,
    model.TopicConfig: topics,
    model.TopicTable: topic_tables,
    model.BrokerRegistration: st.builds(model.BrokerRegistration, topic_tables, text_lists),
    model.QueueData: queue_data,
    model.BrokerData: brokers,
    model.RouteData: st.builds(
        model.RouteData,
        st.lists(queue_data, max_size=2).map(tuple),
        st.lists(brokers, max_size=2).map(tuple),
        st.dictionaries(texts, text_lists, max_size=2),
        st.none() | texts,
    ),
    model.ClusterInfo: st.builds(
        model.ClusterInfo,
        st.dictionaries(texts, brokers, max_size=2),
        st.dictionaries(texts, text_lists, max_size=2),
    ),
    model.Subscription: subscriptions,
    model.ConsumerData: consumers,
    model.ProducerData: st.builds(model.ProducerData, texts),
    model.Heartbeat: st.builds(
        model.Heartbeat,
        texts,
        st.lists(st.builds(model.ProducerData, texts), max_size=2).map(tuple),
        st.lists(consumers, max_size=2).map(tuple),
        st.none() | int32,
        st.none() | flags,
    ),
    model.SubscriptionGroup: st.builds(
        model.SubscriptionGroup, texts, flags, flags, flags, flags, int32, int32, text_tables, int64, int64,
        flags, int32, int32, st.none() | st.lists(text_tables, max_size=2).map(tuple), text_tables,
    ),
    bodies.TopicList: st.builds(bodies.TopicList, text_lists, st.none() | texts),
    bodies.ConsumerList: st.builds(bodies.ConsumerList, text_lists),
    bodies.KVTable: st.builds(bodies.KVTable, text_tables),
    bodies.LockBatch: st.builds(
        bodies.LockBatch, texts, texts, st.lists(queues, max_size=2).map(tuple), st.none() | flags
    ),
    bodies.LockedQueues: st.builds(bodies.LockedQueues, st.lists(queues, max_size=2).map(tuple)),
    bodies.ClientConfig: st.builds(bodies.ClientConfig, texts, texts, subscriptions, st.none() | texts),
    bodies.BrokerMemberGroup: st.builds(bodies.BrokerMemberGroup, texts, texts, addresses),
    bodies.MemberGroupReply: st.builds(
        bodies.MemberGroupReply, st.none() | st.builds(bodies.BrokerMemberGroup, texts, texts, addresses)
    ),
}  # fmt: skip
numbers = st.floats(allow_nan=False, allow_infinity=False)
windows = st.builds(reports.StatsWindow, int64, numbers, numbers)
topic_offsets = st.builds(reports.TopicOffset, int64, int64, int64)
lags = st.builds(reports.OffsetLag, int64, int64, int64, int64)
consume_stats = st.builds(reports.ConsumeStats, numbers, st.dictionaries(queues, lags, max_size=2))
entries = st.builds(reports.QueueEntry, int64, int32, int64, flags, st.none() | texts, st.none() | texts)
groups = VALUES[model.SubscriptionGroup]
VALUES |= {
    reports.TopicOffset: topic_offsets,
    reports.TopicStats: st.builds(
        reports.TopicStats, st.dictionaries(queues, topic_offsets, max_size=2), numbers
    ),
    reports.OffsetLag: lags,
    reports.ConsumeStats: consume_stats,
    reports.ConsumeStatsList: st.builds(
        reports.ConsumeStatsList,
        texts,
        st.lists(
            st.dictionaries(texts, st.lists(consume_stats, max_size=1).map(tuple), max_size=2), max_size=2
        ).map(tuple),
        int64,
        int64,
    ),
    reports.StatsWindow: windows,
    reports.BrokerStatsData: st.builds(reports.BrokerStatsData, windows, windows, windows),
    reports.GroupForbidden: st.builds(reports.GroupForbidden, texts, texts, flags),
    reports.CorrectionOffsets: st.builds(
        reports.CorrectionOffsets, st.dictionaries(int32, int64, max_size=3)
    ),
    reports.QueueEntry: entries,
    reports.QueueEntries: st.builds(
        reports.QueueEntries,
        int64,
        int64,
        st.lists(entries, max_size=2).map(tuple),
        st.none() | subscriptions,
        st.none() | texts,
    ),
    reports.TopicConfigList: st.builds(reports.TopicConfigList, st.lists(topics, max_size=2).map(tuple)),
    reports.GroupConfigList: st.builds(reports.GroupConfigList, st.lists(groups, max_size=2).map(tuple)),
    reports.GroupTable: st.builds(
        reports.GroupTable,
        versions,
        st.dictionaries(texts, st.dictionaries(texts, int32, max_size=2), max_size=2),
        st.dictionaries(texts, groups, max_size=2),
    ),
}
clients = st.builds(members.ClientConnection, texts, texts, texts, int32)
client_lists = st.lists(clients, max_size=2).map(tuple)
producers = st.builds(members.ProducerInfo, texts, texts, texts, int32, int64)
producer_lists = st.lists(producers, max_size=2).map(tuple)
offsets = st.dictionaries(queues, int64, max_size=2)
queue_infos = st.builds(
    running.QueueInfo, int64, int64, int64, int32, int32, int64, int64, int32, flags, int64, int64, flags,
    int64, int64,
)  # fmt: skip
rates = st.floats(0, 1e9, allow_nan=False)
consume_statuses = st.builds(running.ConsumeStatus, rates, rates, rates, rates, rates, int64)
spans = st.builds(members.QueueTimeSpan, queues, int64, int64, int64, int64, texts, texts, texts)
VALUES |= {
    members.ClientConnection: clients,
    members.ConsumerConnection: st.builds(
        members.ConsumerConnection, client_lists, texts, texts, texts,
        st.dictionaries(texts, subscriptions, max_size=2),
    ),
    members.ProducerConnection: st.builds(members.ProducerConnection, client_lists),
    members.ProducerInfo: producers,
    members.ProducerTable: st.builds(
        members.ProducerTable, st.dictionaries(texts, producer_lists, max_size=2)
    ),
    members.GroupList: st.builds(members.GroupList, text_lists),
    members.GroupSubscription: st.builds(
        members.GroupSubscription, texts, texts, st.none() | subscriptions
    ),
    members.ResetOffsets: st.builds(members.ResetOffsets, offsets),
    members.ConsumerStatus: st.builds(
        members.ConsumerStatus, st.dictionaries(texts, offsets, max_size=2), offsets
    ),
    members.QueueTimeSpan: spans,
    members.ConsumeTimeSpans: st.builds(members.ConsumeTimeSpans, st.lists(spans, max_size=2).map(tuple)),
    running.QueueInfo: queue_infos,
    running.ConsumeStatus: consume_statuses,
    running.ConsumerRunningInfo: st.builds(
        running.ConsumerRunningInfo,
        text_tables,
        st.lists(subscriptions, max_size=2).map(tuple),
        st.dictionaries(queues, queue_infos, max_size=2),
        st.just({}),
        st.dictionaries(texts, consume_statuses, max_size=2),
        text_tables,
        st.none() | texts,
    ),
    running.DirectResult: st.builds(running.DirectResult, texts, flags, flags, st.none() | texts, int64),
}  # fmt: skip
ways = st.sampled_from([assignment.PULL, assignment.POP])
assigned = st.builds(assignment.Assignment, queues, ways)
modes = st.builds(assignment.RequestMode, texts, texts, ways, int32)
VALUES |= {
    assignment.AssignmentQuery: st.builds(
        assignment.AssignmentQuery,
        texts,
        texts,
        st.sampled_from([assignment.CLUSTERING, assignment.BROADCASTING]),
        texts,
        st.none() | texts,
    ),
    assignment.Assignment: assigned,
    assignment.Assignments: st.builds(
        assignment.Assignments, st.none() | st.lists(assigned, max_size=2).map(tuple)
    ),
    assignment.RequestMode: modes,
    assignment.RequestModes: st.builds(
        assignment.RequestModes,
        st.dictionaries(texts, st.dictionaries(texts, modes, max_size=2), max_size=2),
    ),
}
bits = st.builds(consumerfilter.BloomBits, int32, st.lists(int32, max_size=3).map(tuple))
filters = st.builds(
    consumerfilter.ConsumerFilter,
    texts, texts, texts, texts, st.none() | bits, int64, int64, flags, int64,
)  # fmt: skip
topic_filters = st.builds(consumerfilter.TopicFilters, texts, st.dictionaries(texts, filters, max_size=2))
VALUES |= {
    consumerfilter.BloomBits: bits,
    consumerfilter.ConsumerFilter: filters,
    consumerfilter.TopicFilters: topic_filters,
    consumerfilter.FilterTable: st.builds(
        consumerfilter.FilterTable, st.dictionaries(texts, topic_filters, max_size=2)
    ),
}
TABLES = bodies._TABLES


def test_every_table_is_tested_and_whole() -> None:
    """Each declared body is below, fills every attribute once, and lists its names as Java sorts them."""
    assert set(VALUES) == set(TABLES)
    for cls, columns in TABLES.items():
        assert sorted(attribute for _, attribute, _ in columns) == sorted(inspect.signature(cls).parameters)
        assert [name for name, _, _ in columns] == sorted(name for name, _, _ in columns)


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_values_round_trip(cls: type, data: st.DataObject) -> None:
    """A value is the same after the wire."""
    value = data.draw(VALUES[cls])
    assert from_json(cls, to_json(value)) == value
    assert decode_body(cls, encode_body(value)) == value


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_any_shape_gives_a_value_or_the_error(cls: type, data: st.DataObject) -> None:
    """Known names with values of any shape are read or refused as the peer's fault."""
    tree_names = st.sampled_from([name for name, _, _ in TABLES[cls]])
    tree = data.draw(st.dictionaries(tree_names, json_trees) | json_trees)
    with contextlib.suppress(RemoteProtocolError):
        value: Any = from_json(cls, tree)
        assert from_json(cls, to_json(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """A body from anyone is a value or the peer's fault."""
    for cls in (model.Heartbeat, model.RouteData):
        with contextlib.suppress(RemoteProtocolError):
            decode_body(cls, data)


def test_errors_name_the_place() -> None:
    """The message leads to the value that is wrong."""
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":7}]}]}'
    with pytest.raises(
        RemoteProtocolError, match="Heartbeat consumerDataSet subscriptionDataSet topic is int, not a string"
    ):
        decode_body(model.Heartbeat, body)
    with pytest.raises(RemoteProtocolError, match="Heartbeat lacks clientID"):
        decode_body(model.Heartbeat, b"{}")


def test_older_peers() -> None:
    """What 4.9 and older leave out is unknown, and a former name is understood."""
    heartbeat = decode_body(model.Heartbeat, b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[]}')
    assert (heartbeat.fingerprint, heartbeat.without_sub) == (None, None)
    queue = b'{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":1,"writeQueueNums":4}'
    assert decode_body(model.QueueData, queue).sys_flag == 1
    assert decode_body(model.DataVersion, b'{"counter":5,"timestamp":7}') == model.DataVersion(0, 7, 5)


def test_cluster_bodies_have_bare_keys_and_routes_quoted_ones() -> None:
    """As the 5.5.0 name server writes them; an old client's route has bare ones."""
    broker = model.BrokerData("c", "b", {0: "1.2.3.4:10911"})
    assert b'{0:"1.2.3.4:10911"}' in encode_body(model.ClusterInfo({"b": broker}, {"c": ("b",)}))
    route = model.RouteData(brokers=(broker,))
    assert b'{"0":"1.2.3.4:10911"}' in encode_body(route)
    assert b'{0:"1.2.3.4:10911"}' in encode_body(route, bare_keys=True)


# --- registrations ---------------------------------------------------------------------------------


@given(VALUES[model.BrokerRegistration])
def test_compressed_registrations_keep_what_the_name_server_needs(
    registration: model.BrokerRegistration,
) -> None:
    """Everything but the flags a topic's line has no place for."""
    found = decode_registration(encode_registration(registration, compressed=True), compressed=True)
    assert found.filter_servers == registration.filter_servers
    assert found.topic_table.data_version == registration.topic_table.data_version
    assert found.topic_table.topics == {
        name: dataclasses.replace(config, sys_flag=0, order=False)
        for name, config in registration.topic_table.topics.items()
    }


@given(VALUES[model.BrokerRegistration], st.data())
def test_damaged_registrations_are_read_or_refused(
    registration: model.BrokerRegistration, data: st.DataObject
) -> None:
    """Damage outside or inside the compression is the peer's fault."""
    body = encode_registration(registration, compressed=True)
    inside = bytearray(zlib.decompress(body))
    at = data.draw(st.integers(0, len(inside) - 1))
    inside[at] ^= data.draw(st.integers(1, 255))
    for damaged in (body[: at % len(body)] or b"\x00", zlib.compress(inside), zlib.compress(inside[:at])):
        with contextlib.suppress(RemoteProtocolError):
            decode_registration(damaged, compressed=True)


def test_a_bomb_does_not_go_off() -> None:
    """A few kilobytes that inflate to gigabytes are refused at the limit."""
    packer = zlib.compressobj(9)
    bomb = (
        b"".join(packer.compress(bytes(1 << 20)) for _ in range(INFLATED_BYTES_MAX // (1 << 20) + 1))
        + packer.flush()
    )
    with pytest.raises(RemoteProtocolError, match="inflates beyond"):
        decode_registration(bomb, compressed=True)


def test_an_empty_registration() -> None:
    """A broker may register without any topic."""
    assert decode_registration(b"").topic_table.topics == {}

"""Who is alive: heartbeats, member lists, and the news of joins and leaves."""

import dataclasses

import pytest

from hotfire.broker.clients import Clients
from hotfire.broker.handlers import clients as clients_handler
from hotfire.broker.handlers.clients import GROUPS_PER_HEARTBEAT_MAX
from hotfire.model import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    Subscription,
    SubscriptionGroup,
    TopicConfig,
)
from hotfire.protocol.bodies import ClientConfig, ConsumerList, decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import (
    CheckClientConfig,
    GetConsumerListByGroup,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import FakeConnection, Harness, tagged

EVERYTHING = tagged("T", "*")


def members(heart: Harness, group: str = "CG") -> list[str] | None:
    """Client ids the broker answers; None for "no consumer for this group"."""
    asker = heart.connect(59_999)
    reply = heart.ask(GetConsumerListByGroup(consumer_group=group), asker)
    if reply.code != 0:
        assert (reply.code, reply.remark) == (1, f"no consumer for this group, {group}")
        return None
    return sorted(decode_body(ConsumerList, reply.body).client_ids)


def notices(*connections: FakeConnection) -> list[list[str]]:
    """Groups that each connection was told about since last asked."""
    told = []
    for connection in connections:
        frames = connection.take()
        assert all(frame.is_oneway and not frame.is_response for frame in frames), frames
        assert all(frame.code == 40 for frame in frames), frames
        told.append([NotifyConsumerIdsChanged.from_command(frame).consumer_group for frame in frames])
    return told


def leave(heart: Harness, connection: FakeConnection, client_id: str, group: str = "CG") -> Command:
    (opaque,) = heart.receive(
        UnregisterClient(client_id=client_id, producer_group=None, consumer_group=group), to=connection
    )
    frames = connection.take()
    (reply,) = [frame for frame in frames if frame.is_response]
    assert (reply.opaque, reply.code) == (opaque, 0)
    connection._unread = [frame for frame in frames if not frame.is_response]
    return reply


def test_heartbeat_is_answered_as_5_x_does(heart: Harness) -> None:
    """Success, the broker's version, and that heartbeats of the second kind are understood."""
    reply = heart.beat("c", "CG", EVERYTHING)
    assert (reply.code, reply.version) == (0, 513)
    assert (reply.fields or {})["IS_SUPPORT_HEART_BEAT_V2"] == "true"


def test_members_that_subscribe_differently_are_told_of(
    heart: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Group and both subscriptions are named, once in ten minutes, whoever beats; not when they agree."""
    a, b = heart.connect(50_100), heart.connect(50_101)
    retries = tagged("%RETRY%CG", "*")

    def beat(connection: FakeConnection, client_id: str, *wanted: Subscription) -> list[str]:
        caplog.clear()
        heart.beat(client_id, "CG", *wanted, connection=connection)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert beat(a, "anna", tagged("T", "x || y"), retries) == []
    assert beat(a, "anna", tagged("T", "x", 2), retries) == [], "one may change its mind"
    assert beat(a, "anna", tagged("T", "x || y", 3), retries) == []
    assert beat(b, "bert", tagged("T", "y||x", 4)) == [], "the same, otherwise spelt; and who is polled"
    (told,) = beat(b, "bert", tagged("T", "z", 5), retries)
    assert "group=CG its members subscribe differently" in told
    assert "client='bert' to {'T': 'z'}, others to {'T': 'x || y'}" in told
    heart.now_ms += 30_000
    assert beat(a, "anna", tagged("T", "x || y", 3), retries) == []
    heart.now_ms += 600_000
    (told,) = beat(a, "anna", tagged("T", "x || y", 3), retries)
    assert "client='anna' to {'T': 'x || y'}, others to {'T': 'z'}" in told
    heart.now_ms += 600_000
    assert beat(a, "anna", tagged("T", "z", 6), retries) == []
    (told,) = beat(b, "bert", tagged("U", "*", 7), retries)
    assert "to {'U': '*'}, others to {'T': 'z'}" in told


def beat_all(heart: Harness, consumers: int = 0, producers: int = 0, name: str = "G") -> Command:
    """One heartbeat that names so many groups."""
    beat = Heartbeat(
        "c",
        tuple(ProducerData(f"{name}{number}") for number in range(producers)),
        tuple(ConsumerData(f"{name}{number}") for number in range(consumers)),
    )
    (opaque,) = heart.receive(HeartBeat(body=encode_body(beat)))
    (reply,) = [frame for frame in heart.connection.take() if frame.is_response]
    assert reply.opaque == opaque
    return reply


def test_a_heartbeat_writes_each_table_once(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many new groups with their retry topics: one write of either table; known ones: none. All are kept."""
    written: list[str] = []
    write = heart.disk.write_whole

    def counted(relative: str, data: bytes, *, keep: str | None = None) -> None:
        written.append(relative)
        write(relative, data, keep=keep)

    monkeypatch.setattr(heart.disk, "write_whole", counted)
    assert beat_all(heart, 500).code == 0
    assert sorted(written) == ["config/subscriptionGroup.json", "config/topics.json"]
    assert beat_all(heart, 500).code == 0
    assert len(written) == 2
    assert beat_all(heart, 501).code == 0
    assert len(written) == 4
    heart.reopen()
    for number in (0, 250, 500):
        assert heart.broker.groups.get(f"G{number}") == SubscriptionGroup(f"G{number}")
        assert heart.broker.topics.get(f"%RETRY%G{number}") == TopicConfig(f"%RETRY%G{number}", 1, 1)


@pytest.mark.parametrize("kind", ["consumers", "producers"])
def test_groups_of_one_heartbeat_are_bounded(heart: Harness, kind: str) -> None:
    """One more than a heartbeat may name: refused with number and limit, and nobody became a member."""
    reply = beat_all(heart, **{kind: GROUPS_PER_HEARTBEAT_MAX + 1})  # type: ignore[arg-type]
    assert reply.code == 29
    assert f"{GROUPS_PER_HEARTBEAT_MAX + 1} {kind}" in (reply.remark or "")
    assert f"at most {GROUPS_PER_HEARTBEAT_MAX}" in (reply.remark or "")
    assert heart.broker.groups.get("G0") is None
    assert not heart.broker.clients.consumers
    assert not heart.broker.clients.producers


def test_a_heartbeat_without_measure_is_not_taken_apart(heart: Harness) -> None:
    """Megabytes of names would hold everyone up: refused by their size, and nobody became a member."""
    wanted = tuple(tagged(f"T{number}", "*") for number in range(20_000))
    reply = heart.beat("c", "CG", *wanted)
    assert reply.code == 1
    assert "at most 2097152 are taken" in (reply.remark or "")
    assert not heart.broker.clients.consumers
    assert heart.beat("c", "CG", *wanted[:1000]).code == 0


def test_producers_of_all_clients_are_bounded(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeat after heartbeat with other names: refused beyond the limit; who is known goes on."""
    monkeypatch.setattr(clients_handler, "PRODUCERS_MAX", 3)
    for name in ("P1", "P2", "P3", "P1"):
        assert heart.beat_producer("c", name).code == 0
    reply = heart.beat_producer("c", "P4")
    assert (reply.code, "3 producers are known already" in (reply.remark or "")) == (2, True)
    assert heart.beat_producer("c", "P3").code == 0
    assert heart.beat_producer("c" * 1025, "P1").code == 29
    assert heart.beat_producer("c", "P" * 1025).code == 29
    heart.disconnect(heart.connection)
    assert heart.broker.clients.producer_count == 0
    heart.connection = heart.connect()
    assert heart.beat_producer("c", "P4").code == 0


def test_number_of_groups_is_bounded(make: Make) -> None:
    """groupsMax reached: new groups are refused, all of a heartbeat or none; those that exist go on."""
    heart = make(groups_max=20)
    heart.create_topic("T")
    assert beat_all(heart, 12).code == 0  # and the 8 that are there from the start
    reply = beat_all(heart, 14)
    assert (reply.code, reply.remark) == (29, "group[G12] would make 22 groups, groupsMax is 20")
    assert beat_all(heart, 1, name="H").code == 29
    assert heart.pull(group="New").code == 29
    assert beat_all(heart, 12).code == 0
    assert heart.pull(group="G3").code == 19
    heart.reopen()
    assert beat_all(heart, 12).code == 0


def test_members_are_those_who_beat(heart: Harness) -> None:
    """A group's list holds its living members, each once, and not those of other groups."""
    assert members(heart) is None
    one, two, three = (heart.connect(50_100 + number) for number in range(3))
    heart.beat("c1", "CG", EVERYTHING, connection=one)
    heart.beat("c2", "CG", EVERYTHING, connection=two)
    heart.beat("c2", "CG", EVERYTHING, connection=three)  # dialled again before the old one closed
    heart.beat("c9", "Other", EVERYTHING, connection=three)
    assert members(heart) == ["c1", "c2"]
    assert members(heart, "Other") == ["c9"]
    heart.disconnect(two)
    assert members(heart) == ["c1", "c2"], "still there by its new connection"
    heart.disconnect(three)
    assert members(heart) == ["c1"]
    assert members(heart, "Other") is None


def test_every_member_hears_of_joins(heart: Harness) -> None:
    """The newcomer and all who were there are told, once; a heartbeat that changes nothing is no news."""
    one, two = heart.connect(50_100), heart.connect(50_101)
    heart.beat("c1", "CG", EVERYTHING, connection=one)
    assert notices(one, two) == [["CG"], []]
    heart.beat("c2", "CG", EVERYTHING, connection=two)
    assert notices(one, two) == [["CG"], ["CG"]]
    heart.beat("c1", "CG", EVERYTHING, connection=one)
    heart.beat("c2", "CG", EVERYTHING, connection=two)
    assert notices(one, two) == [[], []]


def test_every_member_hears_of_leaves(heart: Harness) -> None:
    """Unregistered or disconnected: the others hear of it at once."""
    one, two, three = connections = [heart.connect(50_100 + number) for number in range(3)]
    for number, connection in enumerate(connections):
        heart.beat(f"c{number}", "CG", EVERYTHING, connection=connection)
    notices(*connections)
    leave(heart, three, "c2")
    assert notices(one, two, three) == [["CG"], ["CG"], []]
    assert members(heart) == ["c0", "c1"]
    heart.disconnect(two)
    assert notices(one, two, three) == [["CG"], [], []]
    assert members(heart) == ["c0"]
    leave(heart, three, "c2")  # long gone
    leave(heart, one, "c0", group="NeverWas")
    assert notices(one) == [[]]


def test_a_change_of_topics_is_news(heart: Harness) -> None:
    """A member subscribes to another topic or gives one up: everyone rebalances."""
    one, two = heart.connect(50_100), heart.connect(50_101)
    heart.beat("c1", "CG", EVERYTHING, connection=one)
    heart.beat("c2", "CG", EVERYTHING, connection=two)
    notices(one, two)
    heart.beat("c1", "CG", EVERYTHING, tagged("U", "*"), connection=one)
    assert notices(one, two) == [["CG"], ["CG"]]
    heart.beat("c1", "CG", EVERYTHING, connection=one)
    assert notices(one, two) == [["CG"], ["CG"]]
    heart.beat("c1", "CG", tagged("T", "A", version=2), connection=one)
    assert notices(one, two) == [[], []], "another filter moves no queues"


def test_silent_members_are_forgotten_after_120_s(heart: Harness) -> None:
    """120 to 130 s after its last heartbeat a member is gone and the others know; who beats stays."""
    silent, lively = heart.connect(50_100), heart.connect(50_101)
    heart.beat("silent", "CG", EVERYTHING, connection=silent)
    heart.beat_producer("silent", "PG", connection=silent)
    heart.beat("lively", "CG", EVERYTHING, connection=lively)
    notices(silent, lively)
    for _ in range(4):
        heart.pass_time(30_000, step_ms=1000)
        heart.beat("lively", "CG", EVERYTHING, connection=lively)
        assert members(heart) == ["lively", "silent"]
        assert "PG" in heart.broker.clients.producers
    assert notices(silent, lively) == [[], []]
    heart.pass_time(10_000, step_ms=1000)
    assert members(heart) == ["lively"]
    assert "PG" not in heart.broker.clients.producers
    assert notices(silent, lively) == [[], ["CG"]]


def test_an_expired_group_must_subscribe_again(heart: Harness) -> None:
    """With its last member the group's subscriptions go: pulls without one of their own are refused."""
    heart.beat("c", "CG", EVERYTHING)
    heart.connection.take()
    heart.send()
    assert [heart.pull(flag=0).code for _ in range(2)] == [0, 0]
    heart.pass_time(131_000, step_ms=1000)
    assert heart.pull(flag=0).code == 24


def test_groups_that_want_no_notices_get_none(make: Make) -> None:
    """notifyConsumerIdsChangedEnable, of the broker or of the group, silences the news."""
    quiet = make("quiet", notify_consumer_ids_changed_enable=False)
    loud = make("loud")
    group = SubscriptionGroup("CG", notify_consumer_ids_changed_enable=False)
    loud.broker.groups._groups["CG"] = group
    for heart in (quiet, loud):
        connection = heart.connect(50_100)
        heart.beat("c", "CG", EVERYTHING, connection=connection)
        assert notices(connection) == [[]]
        assert members(heart) == ["c"]
    connection = loud.connect(50_101)
    loud.beat("d", "Other", EVERYTHING, connection=connection)
    assert notices(connection) == [["Other"]]


def test_producers_and_consumers_of_one_client(heart: Harness) -> None:
    """One heartbeat may speak for several groups; leaving one keeps the others."""
    heart.beat_producer("c", "PG")
    heart.beat("c", "CG", EVERYTHING)
    heart.beat("c", "CG2", EVERYTHING)
    heart.connection.take()
    leave(heart, heart.connection, "c", "CG")
    assert members(heart) is None
    assert members(heart, "CG2") == ["c"]
    assert list(heart.broker.clients.producers) == ["PG"]
    heart.disconnect(heart.connection)
    assert heart.broker.clients.producers == {}
    assert heart.broker.clients.consumers == {}


def test_first_heartbeat_makes_group_and_retry_topic(heart: Harness) -> None:
    """A consumer group can be sent messages back from its first heartbeat on."""
    heart.beat("c", "CG", EVERYTHING)
    assert heart.broker.groups.get("CG") == SubscriptionGroup("CG")
    assert heart.broker.topics.get("%RETRY%CG") == TopicConfig("%RETRY%CG", 1, 1, perm=6)


def test_groups_are_not_made_where_that_is_switched_off(make: Make) -> None:
    """autoCreateSubscriptionGroup=false: the heartbeat is taken, no group and no topic come of it."""
    heart = make(auto_create_subscription_group=False)
    assert heart.beat("c", "CG", EVERYTHING).code == 0
    assert heart.broker.groups.get("CG") is None
    assert heart.broker.topics.get("%RETRY%CG") is None


def test_heartbeats_without_subscriptions_keep_them(heart: Harness) -> None:
    """The short heartbeat of 5.x clients confirms the member and leaves its subscriptions as they are."""
    heart.beat("c", "CG", tagged("T", "A"))
    heart.connection.take()
    short = Heartbeat("c", consumers=(ConsumerData("CG"),), fingerprint=77, without_sub=True)
    reply = heart.ask(HeartBeat(body=encode_body(short)))
    assert reply.code == 0
    assert heart.broker.clients.consumers["CG"].subscriptions["T"].expression == "A"
    assert heart.connection.take() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":5}', b"\xff\xfe", b"null", b"{}"])
def test_a_heartbeat_that_is_none_is_answered(heart: Harness, body: bytes) -> None:
    """Nonsense in the body: code 1 that says so; the connection and the broker go on."""
    reply = heart.ask(HeartBeat(body=body))
    assert reply.code == 1
    assert "Heartbeat" in (reply.remark or "") or "JSON" in (reply.remark or ""), reply.remark
    assert heart.broker.clients.consumers == {}
    assert not heart.connection.closed


def test_illegal_group_names_are_refused(heart: Harness) -> None:
    """A group name that no topic could be made from is refused with its name."""
    reply = heart.beat("c", "no such group", EVERYTHING)
    assert reply.code == 29
    assert "no such group" in (reply.remark or "")


def test_expiry_is_by_the_last_heartbeat() -> None:
    """At exactly the limit a client still lives; one millisecond later it does not."""
    from hotfire.broker.clients import Member

    clients, connection = Clients(120_000), FakeConnection()
    clients.beat(connection, Heartbeat("c", consumers=(ConsumerData("CG"),)), Member("c", 0, 0, 1000))
    assert clients.expire(121_000) == set()
    assert clients.expire(121_001) == {"CG"}
    assert clients.consumers == {}


# --- heartbeats with a fingerprint ---


def beat_v2(
    heart: Harness, fingerprint: int, *, group: str = "CG", client_id: str = "c", short: bool = False
) -> bool:
    """Whether the client is told that its subscriptions are news (IS_SUB_CHANGE)."""
    consumer = ConsumerData(group, subscriptions=() if short else (EVERYTHING,))
    beat = Heartbeat(client_id, consumers=(consumer,), fingerprint=fingerprint, without_sub=short)
    (opaque,) = heart.receive(HeartBeat(body=encode_body(beat)))
    (reply,) = [frame for frame in heart.connection.take() if frame.is_response]
    assert (reply.opaque, reply.code, set(reply.fields or {})) == (
        opaque,
        0,
        {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"},
    )
    return (reply.fields or {})["IS_SUB_CHANGE"] == "true"


def test_a_fingerprint_that_differs_is_news(heart: Harness) -> None:
    """The same fingerprint again: no news, the short form will do. Another, or none before it: news."""
    assert beat_v2(heart, 7) is False, "the first of a group"
    assert beat_v2(heart, 7) is False
    assert beat_v2(heart, 7, short=True) is False
    assert beat_v2(heart, 8, short=True) is True
    assert beat_v2(heart, 8, short=True) is False
    heart.beat("c", "CG", EVERYTHING)
    heart.connection.take()
    assert beat_v2(heart, 8) is True, "the one before had no fingerprint"
    assert (heart.beat("c", "CG", EVERYTHING).fields or {})["IS_SUB_CHANGE"] == "true", "those always"


def test_a_short_heartbeat_of_a_group_nobody_knows_asks_for_the_long_one(heart: Harness) -> None:
    """A broker that forgot the group, by a restart or by silence, says so instead of serving it nothing."""
    assert beat_v2(heart, 7) is False
    heart.reopen()
    assert beat_v2(heart, 7, short=True) is True
    assert beat_v2(heart, 7) is False
    assert "T" in heart.broker.clients.consumers["CG"].subscriptions


# --- groups that share nothing ---


def test_broadcasting_groups_get_no_notices(heart: Harness) -> None:
    """Every member reads every queue: there is nothing to share out anew when another comes or goes."""
    a, b = heart.connect(50_100), heart.connect(50_101)
    heart.beat("a", "BG", EVERYTHING, connection=a, model="BROADCASTING")
    heart.beat("b", "BG", EVERYTHING, connection=b, model="BROADCASTING")
    assert notices(a, b) == [[], []]
    assert members(heart, "BG") == ["a", "b"]
    leave(heart, b, "b", "BG")
    assert notices(a, b) == [[], []]
    heart.beat("b", "BG", EVERYTHING, connection=b, model="BROADCASTING")
    heart.disconnect(b)
    assert (notices(a), members(heart, "BG")) == ([[]], ["a"])


def test_a_group_that_may_not_be_made_has_no_members(make: Make) -> None:
    """Its heartbeat is answered, as the reference does, and leaves no trace."""
    heart = make(auto_create_subscription_group=False)
    assert heart.beat("c", "CG", EVERYTHING).code == 0
    assert members(heart) is None


# --- before a consumer starts ---


def test_subscriptions_are_checked_beforehand(heart: Harness) -> None:
    """Tags and conditions are served; a wrong condition is told its place, other kinds are refused."""
    wanted = {
        "TAG": ClientConfig("c", "CG", EVERYTHING),
        "SQL92": ClientConfig("c", "CG", dataclasses.replace(EVERYTHING, kind="SQL92", expression="a > 1")),
        "wrong": ClientConfig("c", "CG", dataclasses.replace(EVERYTHING, kind="SQL92", expression="a >")),
        "XPATH": ClientConfig("c", "CG", dataclasses.replace(EVERYTHING, kind="XPATH", expression="//a")),
        "nothing": ClientConfig("c", "CG"),
    }
    replies = {name: heart.ask(CheckClientConfig(body=encode_body(c))) for name, c in wanted.items()}
    assert "column 4, at the end" in (replies["wrong"].remark or "")
    assert replies.pop("wrong").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert {name: (reply.code, reply.remark) for name, reply in replies.items()} == {
        "TAG": (0, None),
        "SQL92": (0, None),
        "XPATH": (1, "The broker does not support consumer to filter message by XPATH"),
        "nothing": (0, None),
    }

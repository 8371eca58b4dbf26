"""How the Java push consumer behaves with our broker: pulls, waits, shares and re-shares as with its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

import pytest

from tests.interop.clients import Clients, Server, averagely, await_commit, held_queues, shared_queues
from tests.peers import remoting
from tests.peers.java_client import Event, JavaClient

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(180),
    # Each client version once, each header serialisation once; the whole matrix is for the data itself.
    pytest.mark.parametrize("clients", [("4.9.8", "ROCKETMQ"), ("5.5.0", "JSON")], indirect=True),
]

PULL_MESSAGE = 11
HEART_BEAT = 34
NOTIFY_CONSUMER_IDS_CHANGED = 40
# All that a push consumer and the name server and broker have to say to each other, pulling apart.
BOOKKEEPING = {
    14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET",
    34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT",
    38: "GET_CONSUMER_LIST_BY_GROUP",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    46: "CHECK_CLIENT_CONFIG",
    105: "GET_ROUTEINFO_BY_TOPIC",
}
HOLD_MS = 15_000  # what a push consumer asks for
RECHECK_MS = 5_000  # a broker may look at held requests this seldom
REFUSALS_MS = 3_000  # after which a started consumer's subscription is known
QUEUES = 8


@pytest.mark.promise(93, 97)
def test_push_is_pulling_in_batches_of_32(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """1000 stored messages reach the push listener by 32 pulls of 32, and by nothing but pulls."""
    topic = unique("topic")
    remoting.create_topic(server.broker, topic, 1)
    clients.send_all(server, topic, 1000)
    consumer = clients.push(server, topic, unique("group"), "batch=32", "capture=true", expect=1000)
    consumer.wait("complete", timeout_s=30)
    consumer.finish()

    codes = Counter(event["code"] for event in consumer.events("request"))
    assert set(codes) - set(BOOKKEEPING) == {PULL_MESSAGE}
    pulls = _pulls(consumer, topic)
    assert {pull["fields"]["maxMsgNums"] for pull in pulls} == {"32"}
    # A pull that overtook its subscription's heartbeat is refused and comes again; count it once.
    offsets = list(dict.fromkeys(int(pull["fields"]["queueOffset"]) for pull in pulls))
    assert offsets == [*range(0, 1000, 32), 1000]
    assert sorted((event["count"] for event in consumer.events("batch")), reverse=True) == [32] * 31 + [8]


@pytest.mark.promise(97)
def test_pull_interval_is_kept(server: Server, clients: Clients, unique: Callable[[str], str]) -> None:
    """With pullInterval 1000 a consumer with work to do pulls once a second."""
    topic = unique("topic")
    remoting.create_topic(server.broker, topic, 1)
    clients.send_all(server, topic, 32 * 5)
    consumer = clients.push(server, topic, unique("group"), "interval=1000", "capture=true", expect=32 * 5)
    consumer.wait("complete", timeout_s=30)
    pulls = {pull["fields"]["queueOffset"]: pull["at"] for pull in _pulls(consumer, topic)}
    gaps = [pulls[str(offset + 32)] - pulls[str(offset)] for offset in range(0, 32 * 4, 32)]
    assert all(990 <= gap <= 1900 for gap in gaps), gaps
    assert 990 <= median(gaps) <= 1300, gaps


@pytest.mark.promise(95)
def test_broker_holds_a_pull_until_a_message_arrives(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """An idle queue costs one pull per hold time; a message sent meanwhile is delivered in milliseconds."""
    topic = unique("topic")
    remoting.create_topic(server.broker, topic, 1)
    consumer = clients.push(server, topic, unique("group"), "capture=true", expect=20)
    # A pull may overtake the heartbeat that announces its subscription; refused, it comes again after 1 s.
    first = consumer.wait("request", lambda event: _is_pull(event, topic), timeout_s=30)
    held = [first]
    while len(held) < 3:
        pull = consumer.wait(
            "request",
            partial(_is_pull, topic=topic, after_ms=held[-1]["at"]),
            timeout_s=(HOLD_MS + RECHECK_MS) / 1000 + 5,
        )
        refused = pull["at"] - first["at"] < REFUSALS_MS
        held = [pull] if refused else [*held, pull]
    gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(held)]
    assert all(HOLD_MS - 50 <= gap <= HOLD_MS + RECHECK_MS + 500 for gap in gaps), gaps
    assert {pull["fields"]["suspendTimeoutMillis"] for pull in held} == {str(HOLD_MS)}

    clients.send(server, topic, 20, "sync", "pace=50").wait("complete", timeout_s=30)
    consumer.wait("complete", timeout_s=5)
    delays = [message["at"] - message["bornAt"] for message in consumer.events("message")]
    # The first of them pays for the sender's connection; none may wait for a deadline or a re-check.
    assert median(delays) < 100, delays
    assert max(delays) < 2000, delays


@pytest.mark.promise(106, 111)
def test_each_group_gets_everything_and_each_member_a_part(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """Two groups of three: 10 000 messages reach each group, and inside a group each goes to one member."""
    topic, names, count = unique("topic"), [unique("group"), unique("group")], 10_000
    remoting.create_topic(server.broker, topic, QUEUES)
    groups = {name: clients.push(server, topic, name, "instances=3", expect=count) for name in names}
    for group in groups.values():
        shared_queues([group], members=3, queues=QUEUES)
    clients.send_all(server, topic, count)
    ends = remoting.max_offsets(server.broker, topic, QUEUES)
    for name, group in groups.items():
        group.wait("complete", timeout_s=60)
        await_commit(server, topic, name, ends)
        received = group.events("message")
        assert sorted(message["index"] for message in received) == list(range(count))
        assert len({message["consumer"] for message in received}) == 3


@pytest.mark.promise(110, 111)
def test_a_join_moves_queues_within_a_second_and_a_death_gives_them_back(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """The broker tells the members who is there; queues go to a newcomer at once, back after its death."""
    topic, group = unique("topic"), unique("group")
    remoting.create_topic(server.broker, topic, QUEUES)
    first = clients.push(server, topic, group, "capture=true")
    first.wait("queues", lambda event: len(event["queues"]) == QUEUES, timeout_s=30)

    second = clients.push(server, topic, group, "capture=true")
    joined_at = second.wait("request", lambda event: event["code"] == HEART_BEAT, timeout_s=30)["at"]
    shrunk = first.wait("queues", lambda event: len(event["queues"]) == QUEUES // 2, timeout_s=30)
    assert shrunk["at"] - joined_at < 1000
    assert _notified(first) >= 1
    shared_queues([first, second], members=2, queues=QUEUES)

    # A third process with three consumers: five members, whose shares follow from the sorted ids alone.
    crowd = clients.push(server, topic, group, "instances=3")
    members = [first, second, crowd]
    shares = shared_queues(members, members=5, queues=QUEUES)
    assert sorted(queue for share in shares.values() for queue in share) == list(range(QUEUES))
    assert sorted(map(len, shares.values())) == [1, 1, 2, 2, 2]
    assert remoting.consumer_ids(server.broker, group) == sorted(shares)

    before = first.position()
    crowd.kill()
    second.kill()
    first.wait("queues", lambda event: len(event["queues"]) == QUEUES, timeout_s=5, after=before)
    assert list(held_queues([first]).values()) == [list(range(QUEUES))]


@pytest.mark.promise(110)
def test_group_is_shared_anew_without_notification_too(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """A consumer that no notification reaches gives its surplus queues up in its next round, every 20 s."""
    topic, group = unique("topic"), unique("group")
    remoting.create_topic(server.broker, topic, QUEUES)
    first = clients.push(server, topic, group, "deaf=true")
    first.wait("queues", lambda event: len(event["queues"]) == QUEUES, timeout_s=30)
    second = clients.push(server, topic, group, "deaf=true", "capture=true")
    joined_at = second.wait("request", lambda event: event["code"] == HEART_BEAT, timeout_s=30)["at"]
    shrunk = first.wait("queues", lambda event: len(event["queues"]) == QUEUES // 2, timeout_s=30)
    assert shrunk["at"] - joined_at < 21_000
    shares = shared_queues([first, second], members=2, queues=QUEUES)
    assert shares == averagely(remoting.consumer_ids(server.broker, group), QUEUES)


def _pulls(consumer: JavaClient, topic: str) -> list[Event]:
    """Pulls of the topic itself; the group's retry topic has its own."""
    return [event for event in consumer.events("request") if _is_pull(event, topic)]


def _is_pull(event: Event, topic: str, after_ms: int = 0) -> bool:
    is_pull = event["code"] == PULL_MESSAGE and event["fields"]["topic"] == topic
    return bool(is_pull and event["at"] > after_ms)


def _notified(consumer: JavaClient) -> int:
    return sum(event["code"] == NOTIFY_CONSUMER_IDS_CHANGED for event in consumer.events("request"))

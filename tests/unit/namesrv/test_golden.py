"""Everything brokers, clients and mqadmin were recorded to ask the reference name server, asked of ours."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.namesrv import NameServer
from hotfire.protocol.bodies import TopicList, decode_body
from hotfire.protocol.codes import RequestCode, Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.registration import decode_registration
from tests.unit.namesrv.fakes import FakeConnection
from tests.wire.golden import GoldenFrame, frames

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
# Connections of one recording are numbered n000 to n999; each recording had one name server.
CLIENTS, MQADMIN, BINARY, MASTER_SLAVE, HEARTBEATS = range(5)


@dataclass
class Replay:
    """One recording's requests in order, with what the reference answered."""

    recording: int
    serialization: Serialization = Serialization.JSON
    registered: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.server = NameServer(NameServerConfig(serialize_type=self.serialization), now_ms=0)
        self.connections: defaultdict[int, FakeConnection] = defaultdict(FakeConnection)
        mine = [
            frame
            for frame in frames()
            if "namesrv" in (frame.facts["to"], frame.facts["from"])
            and frame.facts["conn"] // 1000 == self.recording
        ]
        self.answers = {
            (frame.file, frame.facts["conn"], frame.facts["opaque"]): frame
            for frame in mine
            if frame.facts["dir"] == "response"
        }
        self.questions = sorted(
            (frame for frame in mine if frame.facts["dir"] in ("request", "oneway")),
            key=lambda frame: frame.facts["ts"],
        )

    def ask(self, frame: GoldenFrame) -> Command | None:
        command = decode(frame.data)
        if command.code == RequestCode.REGISTER_BROKER:
            self.registered |= decode_registration(command.body).topic_table.topics.keys()
        connection = self.connections[frame.facts["conn"]]
        return self.server.handle(connection, command, frame.facts["ts"])

    def exchanges(self) -> Iterator[tuple[GoldenFrame, bytes | None, GoldenFrame | None]]:
        """Each question, our answer, and the recorded one.

        The recording is thinned: not every registration is in it. Routes to topics whose registration
        is missing are left out, and counted.
        """
        for question in self.questions:
            reply = self.ask(question)
            answer = self.answers.get((question.file, question.facts["conn"], question.facts["opaque"]))
            if answer is not None and question.facts["code"] == ROUTE and answer.facts["code"] == 0:
                fields = decode(question.data).fields or {}
                if fields["topic"] not in self.registered:
                    self.outcomes["registration not recorded"] += 1
                    continue
            yield question, None if reply is None else encode(reply), answer


@pytest.mark.parametrize(
    ("recording", "serialization", "compared_min"),
    [
        (CLIENTS, Serialization.JSON, 90),
        (BINARY, Serialization.ROCKETMQ, 40),
        (MASTER_SLAVE, Serialization.JSON, 40),
        (HEARTBEATS, Serialization.JSON, 8),
    ],
)
def test_answers_equal_the_reference_byte_for_byte(
    recording: int, serialization: Serialization, compared_min: int
) -> None:
    """Registrations, heartbeats, routes and cluster information of each recording: the same bytes back."""
    replay = Replay(recording, serialization)
    for question, reply, answer in replay.exchanges():
        name = question.facts["name"]
        if question.facts["dir"] == "oneway":
            assert (reply, answer) == (None, None), name
            replay.outcomes["oneway"] += 1
        elif answer is None:
            replay.outcomes["answer not recorded"] += 1
        else:
            assert reply == answer.data, (name, question.facts["scenario"])
            replay.outcomes["equal"] += 1
    assert replay.outcomes["equal"] >= compared_min, replay.outcomes


def test_what_administrators_do_is_answered_as_by_the_reference() -> None:
    """mqadmin's session: headers equal byte for byte; bodies too, up to the order of sets."""
    replay = Replay(MQADMIN)
    # The session begins with the broker registered; the recording before it has that registration.
    before = Replay(CLIENTS).questions
    replay.ask(next(frame for frame in before if frame.facts["code"] == RequestCode.REGISTER_BROKER))

    ours = {RequestCode.GET_NAMESRV_CONFIG}  # names other settings than Java's
    counts = {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER}
    lists = {RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER}
    for question, reply, answer in replay.exchanges():
        assert reply is not None
        assert answer is not None
        code = question.facts["code"]
        got, expected = decode(reply), decode(answer.data)
        if code in counts:
            assert got.fields is not None
            assert got.fields.keys() == (expected.fields or {}).keys()
            continue
        header_size = 8 + int.from_bytes(answer.data[5:8])
        assert reply[4:header_size] == answer.data[4:header_size], question.facts["scenario"]
        if code in lists:
            ours_listed = set(decode_body(TopicList, got.body).topics)
            assert ours_listed <= set(decode_body(TopicList, expected.body).topics)
            assert ours_listed == replay.registered
        elif code not in ours:
            assert got.body == expected.body, question.facts["scenario"]
        replay.outcomes[question.facts["name"]] += 1
    assert len(replay.outcomes) >= 9, replay.outcomes

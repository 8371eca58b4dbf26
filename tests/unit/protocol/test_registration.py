"""Registrations, written again and again and read by the thousand: quicker, and the same to the byte."""

import random
from dataclasses import replace
from typing import Any

import pytest

from hotfire.errors import RemoteProtocolError
from hotfire.model import BrokerRegistration, DataVersion, TopicConfig, TopicTable
from hotfire.protocol import registration as registration_module
from hotfire.protocol.bodies import _read, dumps, from_json, to_json, topic_config
from hotfire.protocol.registration import RegistrationEncoder, decode_registration, encode_registration

STRANGE: list[Any] = [
    None, "", "6", -1, 1 << 31, 1.0, True, [], {}, {"a": "b"}, {"a": 1}, "ZWÖLF", '"topicConfigTable":{}'
]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_what_is_kept_of_a_registration_changes_nothing(seed: int) -> None:
    """Topics come, go and change between registrations: each is written as if it were the first."""
    rng = random.Random(seed)
    encoder = RegistrationEncoder()
    topics: dict[str, TopicConfig] = {}
    for counter in range(40):
        name = rng.choice(["T", "U", 'quo"ted', "süß", "%RETRY%G"])
        if rng.random() < 0.2:
            topics.pop(name, None)
        else:
            attributes = rng.choice([{}, {"message.type": "FIFO"}])
            topics[name] = TopicConfig(
                name, rng.randint(1, 4), order=rng.random() < 0.5, attributes=attributes
            )
        table = TopicTable(dict(topics), DataVersion(0, 1, counter), rng.choice([None, DataVersion()]))
        servers = rng.choice([(), ('"topicConfigTable":{}',)])
        registration = BrokerRegistration(table, servers)
        assert encoder.encode(registration) == encode_registration(registration)
        assert decode_registration(encoder.encode(registration)) == registration


def test_only_topics_that_changed_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred topics, of which one changes: one is encoded; equal values that are copies are not."""
    encoded: list[str] = []
    encode = registration_module.encode_body

    def counted(value: Any) -> bytes:
        if isinstance(value, TopicConfig):
            encoded.append(value.name)
        return encode(value)

    monkeypatch.setattr(registration_module, "encode_body", counted)
    encoder = RegistrationEncoder()
    topics = {f"T{number}": TopicConfig(f"T{number}") for number in range(100)}
    encoder.encode(BrokerRegistration(TopicTable(topics)))
    assert len(encoded) == 100
    topics["T7"] = replace(topics["T7"], perm=4)
    encoder.encode(BrokerRegistration(TopicTable({name: replace(one) for name, one in topics.items()})))
    assert encoded[100:] == ["T7"]


def test_the_quick_way_to_read_a_topic_is_the_common_one() -> None:
    """Every field absent, or of every strange kind: the same topic or the same complaint."""
    sound = to_json(TopicConfig("T", 4, 4))
    cases = [sound, {}, [], None, "T", {**sound, "more": 1}]
    cases += [{name: held for name, held in sound.items() if name != gone} for gone in sound]
    cases += [{**sound, name: value} for name in sound for value in STRANGE]

    def outcome(read: Any, tree: Any) -> Any:
        try:
            return read(tree)
        except ValueError as error:
            return str(error)

    for tree in cases:
        assert outcome(topic_config, tree) == outcome(lambda one: _read(TopicConfig, one), tree), tree
    bad = dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"T": {**sound, "perm": "x"}}}})
    with pytest.raises(RemoteProtocolError, match="perm is 'x', not a 32-bit integer"):
        decode_registration(bad)
    assert from_json(TopicConfig, sound) == TopicConfig("T", 4, 4)

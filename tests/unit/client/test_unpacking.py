"""Messages taken out of a pull's answer at once are those that are taken out one by one."""

import random
import zlib
from dataclasses import replace

import pytest

from hotfire import core
from hotfire.client import unpacking
from hotfire.client.messages import received_messages
from hotfire.client.unpacking import unpack_messages
from hotfire.errors import HotfireError
from hotfire.model import MessageQueue
from hotfire.protocol.record import Host, Record, SysFlag, encode_properties, encode_record

pytestmark = pytest.mark.core

QUEUE = MessageQueue("T", "b", 3)
V4, V6 = Host.parse("10.1.2.3", 1234), Host.parse("2001:db8::1", 10911)

STRANGE = (
    b"", b"\x01", b"\x02", b"\x01\x02", b"a\x01", b"\x01b\x02", b"a\x01b", b"a\x01b\x01c\x02",
    b"\xc3\x01\xe2\x82\x02", b"TAGS\x01\xff\x02", b"KEYS\x01 \t \x02", "KEYS\x01a\u3000b\x02".encode(),
    b"TAGS\x01a\x02TAGS\x01b\x02",
)  # fmt: skip


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(unpacking, "_compiled", None)
    elif core.Unpacker is None:
        pytest.skip("the core is not compiled here")


def record(rng: random.Random) -> bytes:
    """Any record: most ordinary, some with every peculiarity."""
    body = rng.randbytes(rng.randrange(1, 200))
    properties = {"UNIQ_KEY": f"id{rng.random()}", "TAGS": rng.choice("ab"), "KEYS": "k1 k2", "own": "é✓"}
    for name in list(properties):
        if rng.random() < 0.3:
            del properties[name]
    made = Record(
        topic=rng.choice(["T", "T", "T", "%RETRY%g", "long" * 40]),
        queue_id=rng.choice([3, 3, 4]),
        body=body,
        born_timestamp=rng.randrange(1 << 41),
        born_host=V4,
        store_timestamp=rng.randrange(1 << 41),
        store_host=V4,
        properties=encode_properties(properties) + (rng.choice(STRANGE) if rng.random() < 0.3 else b""),
        flag=rng.randrange(5),
        queue_offset=rng.randrange(1 << 40),
        physical_offset=rng.randrange(1 << 50),
        reconsume_times=rng.randrange(3),
    )
    kind = rng.random()
    if kind < 0.1:
        made = replace(made, body=zlib.compress(body), sys_flag=SysFlag.COMPRESSED)
    elif kind < 0.2:
        made = replace(made, born_host=V6, sys_flag=SysFlag.BORN_HOST_V6)
    elif kind < 0.3:
        made = replace(made, store_host=V6, sys_flag=SysFlag.STORE_HOST_V6)
    return encode_record(made, append_crc=rng.random() < 0.7)


def test_equal_to_the_plain_road_for_any_records() -> None:
    """Every field of every message, with and without wanted tags, whatever kind of buffer holds it."""
    for seed in range(100):
        rng = random.Random(seed)
        body = b"".join(record(rng) for _ in range(rng.randrange(1, 20)))
        expected = list(received_messages(body, QUEUE.broker_name))
        assert unpack_messages(body, QUEUE) == expected
        assert unpack_messages(memoryview(body), QUEUE) == expected
        assert unpack_messages(body, QUEUE, ("a",)) == [one for one in expected if one.tag == "a"]
    assert unpack_messages(b"", QUEUE) == []


def test_one_that_was_not_made_is_refused(road: None) -> None:
    """Nothing is written into an object whose places are not known."""
    if core.Unpacker is None:
        pytest.skip("the core is not compiled here")
    bare = core.Unpacker.__new__(core.Unpacker)
    with pytest.raises(TypeError, match="not made"):
        bare.run(record(random.Random(4)), 0, "T", b"T", QUEUE, 3, (), [])
    with pytest.raises((TypeError, AttributeError)):
        bare.__init__(int)  # type: ignore[misc]  # a type without the fields
    with pytest.raises(TypeError, match="not made"):
        bare.run(record(random.Random(4)), 0, "T", b"T", QUEUE, 3, (), [])


def test_damage_is_told_and_never_taken_for_a_message() -> None:
    """Each truncation and flipped byte gives what the plain road gives too, or an error; never a crash."""
    rng = random.Random(1)
    whole = record(random.Random(4)) + record(random.Random(5))
    for cut in range(1, len(whole)):
        with pytest.raises(HotfireError):
            unpack_messages(whole[:cut] if cut != len(record(random.Random(4))) else whole[: cut - 1], QUEUE)
    for _ in range(3000):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            expected = list(received_messages(bytes(data), QUEUE.broker_name))
        except (HotfireError, ValueError):
            expected = None
        try:
            assert unpack_messages(bytes(data), QUEUE) == expected
        except HotfireError:
            assert expected is None

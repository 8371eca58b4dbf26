"""The lane's view of a frame: where it understands one at all, it understands what the full decoder does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.core import _core as compiled
from hotfire.errors import RemoteProtocolError
from hotfire.protocol.codes import RequestCode, Serialization
from hotfire.protocol.command import FRAME_BYTES_MAX, Command, decode, encode, frame_size
from tests.unit.core.made import Guarded
from tests.wire.golden import frames
from tests.wire.test_malformed import mutations

pytestmark = pytest.mark.core
LENGTH_MAX = FRAME_BYTES_MAX - 4
SEED = 20261116
ODD = {"error-missing-header", "acl-signed"}  # no fields; every field twice


def understood(frame: bytes, guarded: Guarded | None = None) -> bool:
    """Whether the lane takes the frame; asserts that it then reads it right, and judges lengths alike."""
    buffer = frame if guarded is None else guarded.holding(frame)
    seen = compiled.read_frame(buffer, LENGTH_MAX)
    try:
        size = frame_size(frame)
    except RemoteProtocolError:
        assert seen == "length"
        return False
    if size == 0 or size > len(frame):
        assert seen == "partial"
        return False
    if isinstance(seen, str):
        assert seen == "strange"
        return False
    command = decode(frame[:size])
    fields = {key.encode(): value.encode() for key, value in (command.fields or {}).items()}
    assert seen == (command.code, command.flag, command.opaque, fields, command.body)
    assert list(seen[3]) == list(fields)
    return True


def test_recorded_frames_are_read_alike() -> None:
    """Every frame of the recordings; the sends and pulls among them are within the lane's dialect."""
    guarded = Guarded()
    taken = 0
    for frame in frames():
        is_taken = understood(frame.data, guarded)
        taken += is_taken
        wanted = frame.facts["code"] in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE)
        if wanted and frame.facts["dir"] in ("request", "oneway") and frame.facts["scenario"] not in ODD:
            assert is_taken, decode(frame.data)
    assert taken > 1000


def test_damaged_frames_are_read_alike() -> None:
    """20,000 damaged frames: most are left to the full decoder, none is misread."""
    guarded = Guarded()
    taken = sum(understood(data, guarded) for data in mutations(20_000, SEED))
    assert taken > 1000


def test_every_cut_is_partial() -> None:
    """Until its last byte is here a frame is not read."""
    guarded = Guarded()
    sends = [frame.data for frame in frames() if frame.facts["code"] == RequestCode.SEND_MESSAGE_V2]
    for data in (sends[0], next(data for data in sends if data[4])):
        for cut in range(len(data)):
            assert not understood(data[:cut], guarded)
        assert understood(data, guarded)
        assert understood(data + b"\xff\xff\xff\xff", guarded)


texts = st.text(max_size=20) | st.text(min_size=100, max_size=300)
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    fields=st.none() | st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    serialization=st.sampled_from(Serialization),
)


@given(commands)
def test_frames_of_any_content_are_read_alike(command: Command) -> None:
    """Any text in names and values, escaped or not, in both serialisations."""
    understood(encode(command), Guarded())


@given(st.data())
def test_binary_headers_of_any_bytes_are_read_alike(data: st.DataObject) -> None:
    """Names and values that are no text, and sizes that look like text, are not taken for text."""
    edges = st.lists(st.sampled_from(b"\x00\x41\x80\xbf\xc2\xc8\xe2\x82\xac\xf0\x9f\x98\x80")).map(bytes)
    pieces = st.tuples(edges, edges | edges.map(lambda text: text + b"\x80" * (200 - len(text) % 64)))
    fields = b"".join(
        len(name).to_bytes(2) + name + len(value).to_bytes(4) + value
        for name, value in data.draw(st.lists(pieces, max_size=3))
    )
    header = bytes(13) + bytes(4) + len(fields).to_bytes(4) + fields
    frame = (4 + len(header)).to_bytes(4) + b"\x01" + len(header).to_bytes(3) + header
    try:
        decode(frame)
    except RemoteProtocolError:
        assert compiled.read_frame(frame, LENGTH_MAX) == "strange"
    else:
        understood(frame, Guarded())


@pytest.mark.parametrize("size", [1, 127, 128, 200, 255, 256, 0x80C2, 60_000])
def test_values_of_any_size_are_within_the_dialect(size: int) -> None:
    """A long property string does not send a binary header the long way round."""
    command = Command(310, fields={"i": "v" * size}, serialization=Serialization.ROCKETMQ)
    assert understood(encode(command))


def test_a_size_that_spells_half_a_character_hides_nothing() -> None:
    """Value size 0xC8 followed by 0x80 is UTF-8 when read across the two; the value is still no text."""
    value = b"\x80" + b"v" * 0xC7
    fields = b"\x00\x01i" + len(value).to_bytes(4) + value
    header = bytes(17) + len(fields).to_bytes(4) + fields
    frame = (4 + len(header)).to_bytes(4) + b"\x01" + len(header).to_bytes(3) + header
    with pytest.raises(RemoteProtocolError):
        decode(frame)
    assert compiled.read_frame(frame, LENGTH_MAX) == "strange"


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":1,"flag":0,"opaque":01,"extFields":{}}',
        b'{"code":1,"flag":0,"opaque":-0,"extFields":{}}',
        b'{"code":1,"flag":0,"opaque":1e2,"extFields":{}}',
        b'{"code":1,"flag":0,"opaque":2147483648,"extFields":{}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"\\ud83d\\ude00"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"\\u00zz"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"x\\u0041\\n\\/\\\\y"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"\\q"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"1","a":"2"}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":1}}',
        b'{"code":1,"code":2,"flag":0,"opaque":1,"extFields":{}}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"\xff"}}',
        b' {\t"code" : 1 ,\n"flag":0,"opaque":1,"extFields":{ "a" : "b" } }\r',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{}} x',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{},}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{},"language":"ELVISH","version":7}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{},"language":"A","language":"B"}',
        b'{"code":1,"flag":0,"opaque":1,"extFields":{},"version":"7"}',
        b"",
        b"{",
        b'{"code":1,"flag":0,"opaque":1,"extFields":{"a":"b',
    ],
)
def test_headers_at_the_edge_are_read_alike(header: bytes) -> None:
    """What JSON allows, forbids, and what only one of two readers might let through."""
    frame = (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
    try:
        decode(frame)
    except RemoteProtocolError:
        assert compiled.read_frame(frame, LENGTH_MAX) == "strange"
    else:
        understood(frame, Guarded())

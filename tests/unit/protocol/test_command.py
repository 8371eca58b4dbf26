"""One frame, both header serialisations."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import LocalProtocolError, RemoteProtocolError
from hotfire.protocol.codes import LanguageCode, Serialization
from hotfire.protocol.command import (
    FRAME_BYTES_MAX,
    JOINED_BODY_BYTES_MAX,
    Command,
    decode,
    encode,
    encode_parts,
    frame_size,
)

VECTORS = json.loads((Path(__file__).parents[2] / "wire" / "vectors.json").read_text("utf-8"))

int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
field_maps = st.dictionaries(st.text(max_size=12), st.text(max_size=40), max_size=6)
json_commands = st.builds(
    Command,
    code=int32,
    opaque=int32,
    flag=int32,
    fields=st.none() | field_maps,
    remark=st.none() | st.text(max_size=30),
    body=st.binary(max_size=60),
    language=st.sampled_from(LanguageCode),
    version=int32,
)
# A binary header cannot tell an empty remark or field map from none.
binary_commands = st.builds(
    Command,
    code=int16,
    opaque=int32,
    flag=int32,
    fields=st.none() | field_maps.filter(bool),
    remark=st.none() | st.text(min_size=1, max_size=30),
    body=st.binary(max_size=60),
    language=st.sampled_from(LanguageCode),
    version=int16,
    serialization=st.just(Serialization.ROCKETMQ),
)
commands = json_commands | binary_commands


def json_frame(header: str | bytes, body: bytes = b"") -> bytes:
    data = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return (4 + len(data) + len(body)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + body


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_recorded_vectors(vector: dict[str, Any]) -> None:
    """A handful of recorded frames, for where the whole recording is not at hand."""
    frame = bytes.fromhex(vector["frame"])
    command = decode(frame)
    assert encode(command) == frame
    assert command.serialization.name == vector["header"]
    for name in ("code", "opaque", "flag", "version", "fields", "remark"):
        assert getattr(command, name) == vector[name]
    assert len(command.body) == vector["body_bytes"]


ROUTE_REQUEST = Command(105, opaque=1, fields={"topic": "TopicTest"}, version=479)


@pytest.mark.parametrize(
    ("serialization", "frame"),
    [
        (
            Serialization.ROCKETMQ,
            "0000002d 01000029 0069 00 01df 00000001 00000000 00000000 00000014"
            "0005 746f706963 00000009 546f70696354657374",
        ),
        (
            Serialization.JSON,
            "00000087 00000083"
            + b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":1,'
            b'"serializeTypeCurrentRPC":"JSON","version":479}'.hex(),
        ),
    ],
)
def test_worked_frames(serialization: Serialization, frame: str) -> None:
    """The two frames worked out by hand in the protocol's description."""
    command = Command(**{**vars_of(ROUTE_REQUEST), "serialization": serialization})
    assert encode(command) == bytes.fromhex(frame)
    assert decode(bytes.fromhex(frame)) == command


def vars_of(command: Command) -> dict[str, Any]:
    return {name: getattr(command, name) for name in Command.__slots__}


@given(commands)
def test_round_trip(command: Command) -> None:
    """What we write is what the peer meant to read."""
    assert decode(encode(command)) == command


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_parts_are_the_frame_and_a_long_body_is_not_copied(over: int) -> None:
    """Written one after the other they are what is written whole; the limit of a frame holds for them too."""
    command = Command(7, fields={"a": "b"}, body=bytes(JOINED_BODY_BYTES_MAX + over))
    parts = encode_parts(command)
    assert b"".join(parts) == encode(command)
    assert len(parts) == (1 if over <= 0 else 2)
    assert over <= 0 or parts[1] is command.body
    with pytest.raises(LocalProtocolError, match="send less at once"):
        encode_parts(Command(7, body=bytes(FRAME_BYTES_MAX)))


@given(commands)
def test_every_truncation_is_refused(command: Command) -> None:
    """No part of a frame passes for a frame."""
    frame = encode(command)
    for end in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode(frame[:end])


@given(commands, st.data())
def test_a_flipped_byte_gives_another_command_or_the_error(command: Command, data: st.DataObject) -> None:
    """Damage never raises anything but the peer's fault, and never passes unseen where it can be seen."""
    frame = bytearray(encode(command))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(frame)
    except RemoteProtocolError:
        return
    header_end = 8 + int.from_bytes(frame[5:8], "big")
    assert found != command or at < header_end  # only JSON text has bytes without meaning


@given(st.binary(max_size=200))
def test_any_header_bytes(header: bytes) -> None:
    """Whatever fills a header, in either serialisation, is a command or the peer's fault."""
    for kind in (0, 1, 2):
        frame = bytearray(json_frame(header))
        frame[4] = kind
        with contextlib.suppress(RemoteProtocolError):
            assert isinstance(decode(frame), Command)


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADER_NAMES = (
    "code",
    "extFields",
    "flag",
    "language",
    "opaque",
    "remark",
    "serializeTypeCurrentRPC",
    "version",
)


@given(st.dictionaries(st.sampled_from(HEADER_NAMES), json_trees))
def test_any_header_shape(header: dict[str, Any]) -> None:
    """Known names with values of any shape are a command that can be sent on, or the peer's fault."""
    try:
        command = decode(json_frame(json.dumps(header)))
    except RemoteProtocolError:
        return
    assert decode(encode(command)) == command


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('{"code":1}', Command(1, version=0)),
        (' {"version": 5 ,\n"code":\t1}\n', Command(1, version=5)),
        ('{"code":"310","opaque":"-7"}', Command(310, opaque=-7, version=0)),
        ('{"code":1,"extFields":{}}', Command(1, fields={}, version=0)),
        ('{"code":1,"extFields":null,"remark":null}', Command(1, version=0)),
        ('{"code":1,"extFields":{"a":null,"b":7,"c":1.50,"d":true,"e":"x"}}',
         Command(1, fields={"b": "7", "c": "1.50", "d": "true", "e": "x"}, version=0)),
        ('{"code":1,"extFields":{"a":"1","a":"2"}}', Command(1, fields={"a": "2"}, version=0)),
        ('{"code":1,"language":"KOTLIN"}', Command(1, language=LanguageCode.OTHER, version=0)),
        ('{"code":1,"language":null}', Command(1, language=LanguageCode.OTHER, version=0)),
        ('{"code":1,"language":"GO","new":{"of":[1,{}]}}', Command(1, language=LanguageCode.GO, version=0)),
        ('{"code":1,"remark":"a\x01b"}', Command(1, remark="a\x01b", version=0)),
        ('{"code":1,"remark":"\\ud83d\\ude00"}', Command(1, remark="\U0001f600", version=0)),
        ('{"code":1,"remark":"\\ud83d!","extFields":{"\\uDE00":"\\ud800"}}',
         Command(1, remark="?!", fields={"?": "?"}, version=0)),
    ],
)  # fmt: skip
def test_lenient_where_java_is(header: str, expected: Command) -> None:
    """Order, absence, unknown names and loosely typed values do not matter."""
    assert decode(json_frame(header)) == expected


@pytest.mark.parametrize(
    "header",
    [
        "", "null", "[]", "1", '"x"', "{}", '{"code":null}', '{"code":true}', '{"code":1.0}', '{"code":"1x"}',
        '{"code":2147483648}', '{"code":1,"opaque":-2147483649}', '{"code":1,"flag":[]}',
        '{"code":NaN}', '{"code":1,"x":Infinity}', '{"code":1,"remark":5}', '{"code":1,"extFields":[]}',
        '{"code":1,"extFields":{"a":{}}}', '{"code":1,"extFields":{"a":[1]}}', '{"code":1}x', "{'code':1}",
        '\ufeff{"code":1}', '{"code":1,}', '{"code":' + "9" * 5000 + "}", "[" * 100_000,
    ],
    ids=lambda header: header[:40],
)  # fmt: skip
def test_refused_headers(header: str) -> None:
    """What is no header is the peer's fault, with the reason in the message."""
    with pytest.raises(RemoteProtocolError):
        decode(json_frame(header))


@pytest.mark.parametrize("header", [b'{"code":1,"remark":"\xff"}', '{"code":1}'.encode("utf-16")])
def test_text_that_is_not_utf8_is_refused(header: bytes) -> None:
    """Bytes are not guessed at."""
    with pytest.raises(RemoteProtocolError):
        decode(json_frame(header))


def test_frame_limits() -> None:
    """A frame of exactly 16 MiB passes, a byte more does not, on either side."""
    room = FRAME_BYTES_MAX - len(encode(Command(1)))
    frame = encode(Command(1, body=bytes(room)))
    assert len(frame) == FRAME_BYTES_MAX
    assert len(decode(frame).body) == room
    with pytest.raises(LocalProtocolError):
        encode(Command(1, body=bytes(room + 1)))
    with pytest.raises(RemoteProtocolError):
        frame_size((FRAME_BYTES_MAX - 3).to_bytes(4, "big"))


def test_codes_beyond_16_bits_need_a_json_header() -> None:
    """A binary header would silently turn POP into another request."""
    with pytest.raises(LocalProtocolError, match="200050"):
        encode(Command(200050, serialization=Serialization.ROCKETMQ))
    assert decode(encode(Command(200050))).code == 200050


def test_surrogates_are_written_as_java_writes_them() -> None:
    """Half a surrogate pair has no UTF-8 form; a question mark stands for it."""
    for serialization in Serialization:
        command = Command(1, fields={"k": "a\ud800"}, remark="\udc00", serialization=serialization)
        found = decode(encode(command))
        assert (found.fields, found.remark) == ({"k": "a?"}, "?")


def test_a_reply_answers_its_request() -> None:
    """Same opaque, response flag, the server's own serialisation."""
    request = Command(105, opaque=77, serialization=Serialization.ROCKETMQ)
    reply = request.reply(17, remark="no route", fields={})
    assert (reply.opaque, reply.code, reply.is_response, reply.is_oneway) == (77, 17, True, False)
    assert reply.serialization is Serialization.JSON

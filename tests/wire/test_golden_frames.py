"""Frames of the Java client, broker, name server and admin tool, read and written again."""

import json
from dataclasses import replace

import pytest

from hotfire.errors import MissingField
from hotfire.protocol.codes import LanguageCode, RequestCode, ResponseCode, Serialization
from hotfire.protocol.command import decode, encode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.requests import REQUESTS, decode_request
from tests.wire.golden import GoldenFrame, frames

# The Java client's signing hook writes the fields a to n a second time into the same binary header, with
# equal values. A map of fields holds each once, so these two come back shorter; all else is equal.
REPEATED_FIELDS = {
    ("client-5.5.0-rocketmq.jsonl", 67, "request", 989),
    ("client-5.5.0-rocketmq-server-rocketmq.jsonl", 2024, "request", 776),
}

# Requests the recorder sent without any field, to see how Java fails.
WITHOUT_FIELDS = "error-missing-header"


def test_the_recordings_are_all_here() -> None:
    """The tests below see every recording, in both serialisations and all directions."""
    assert len(frames()) == 3417
    assert {frame.facts["header_type"] for frame in frames()} == {"JSON", "ROCKETMQ"}
    assert {frame.facts["dir"] for frame in frames()} == {"request", "oneway", "response", "server-request"}


@pytest.mark.promise(62)
def test_frames_come_back_byte_for_byte() -> None:
    """What Java wrote, decoded and encoded again, is what Java wrote."""
    different = {frame.key for frame in frames() if encode(decode(frame.data)) != frame.data}
    assert different == REPEATED_FIELDS


@pytest.mark.promise(62)
def test_the_two_frames_with_repeated_fields_lose_only_the_repetition() -> None:
    """The exceptions are exceptions for the stated reason and no other."""
    for frame in (frame for frame in frames() if frame.key in REPEATED_FIELDS):
        command = decode(frame.data)
        again = encode(command)
        assert decode(again) == command
        assert command.body == frame.body
        assert command.fields is not None
        for name, value in command.fields.items():
            pair = (
                len(name).to_bytes(2, "big") + name.encode() + len(value).to_bytes(4, "big") + value.encode()
            )
            assert frame.header.count(pair) == (1 if name in {"AccessKey", "Signature"} else 2), name


@pytest.mark.promise(63)
def test_headers_mean_what_the_recorder_says() -> None:
    """Code, opaque, flag, language, version, remark and fields are read as the other side meant them."""
    for frame in frames():
        command = decode(frame.data)
        assert (command.code, command.opaque, command.flag) == (
            frame.facts["code"],
            frame.facts["opaque"],
            frame.facts["flag"],
        )
        assert command.serialization.name == frame.facts["header_type"]
        assert command.is_response == (frame.facts["dir"] == "response")
        assert command.language == LanguageCode.JAVA
        assert command.version in {513, 409}
        assert command.body == frame.body
        if command.serialization is Serialization.JSON:
            header = json.loads(frame.header)
            assert command.version == header["version"]
            assert command.remark == header.get("remark")
            assert command.fields == header.get("extFields")


@pytest.mark.promise(63)
def test_unknown_header_keys_and_fields_are_ignored() -> None:
    """A newer peer may send what we never heard of, and be understood."""
    sample = next(
        frame for frame in frames() if frame.facts["name"] == "PULL_MESSAGE" and b"bname" in frame.header
    )
    command = decode(sample.data)
    assert command.fields is not None
    request = decode_request(command)
    assert decode_request(replace(command, fields=command.fields | {"inventedIn": "2031"})) == request

    header = sample.header[:-1] + b',"invented":{"in":[2031,null]}}'
    body_size = len(sample.body)
    frame = (
        (4 + len(header) + body_size).to_bytes(4, "big")
        + len(header).to_bytes(4, "big")
        + header
        + sample.body
    )
    assert decode(frame) == command


def test_code_names_are_the_reference_names() -> None:
    """Every recorded request and response has its number under its name in our tables."""
    unknown = set()
    for frame in frames():
        name = frame.facts["name"]
        if name in RequestCode.__members__:
            assert RequestCode[name] == frame.request_code
        else:
            unknown.add(name)
        if frame.facts["dir"] == "response":
            assert ResponseCode[frame.facts["response_name"]] == frame.facts["code"]
    # One of 5.5.0's that no client needs, and one that does not exist anywhere.
    assert unknown == {"GET_BROKER_LITE_INFO", "99999"}


@pytest.mark.promise(63)
def test_declared_requests_read_and_write_the_recorded_fields() -> None:
    """Each recorded request of a declared code gives a struct that spells the same fields again."""
    seen = set()
    for frame in requests():
        command = decode(frame.data)
        if frame.facts["scenario"] == WITHOUT_FIELDS:
            with pytest.raises(MissingField):
                decode_request(command)
            continue
        request = decode_request(command)
        assert request is not None
        seen.add(request.code)
        written = request.to_fields()
        for name, text in (command.fields or {}).items():
            # The rest are the hooks' own fields: request type and signature.
            assert written.get(name, text) == text, (frame.key, name)
            assert name in written or name in {"ReqT", "AccessKey", "Signature"}, (frame.key, name)
        unsent = written.keys() - (command.fields or {}).keys()
        assert unsent <= {"committed"}, (frame.key, unsent)  # 4.9 does not send it; true is its meaning
        if request.has_body:
            assert request.to_command().body == frame.body
    assert len(seen) >= 35


@pytest.mark.promise(63)
def test_declared_replies_keep_javas_field_order() -> None:
    """A successful JSON reply's struct writes the same fields in the same order."""
    seen = set()
    for frame in frames():
        declared = REQUESTS.get(frame.request_code)
        if frame.facts["dir"] != "response" or frame.facts["code"] != 0 or declared is None:
            continue
        command = decode(frame.data)
        if declared.reply is None:
            assert not command.fields, frame.key
            continue
        written = declared.reply.from_command(command).to_fields()
        assert written == (command.fields or {}), frame.key
        if command.serialization is Serialization.JSON:
            assert list(written) == list(command.fields or {}), frame.key
            seen.add(declared.reply)
    assert len(seen) >= 9


def requests() -> list[GoldenFrame]:
    return [
        frame for frame in frames() if frame.facts["dir"] != "response" and frame.facts["code"] in REQUESTS
    ]


def test_a_recorded_conversation_in_odd_chunks() -> None:
    """The reader finds the same frames however the network cuts them."""
    some = [frame for frame in frames() if len(frame.data) < 2000][:200]
    stream = b"".join(frame.data for frame in some)
    for size in (1, 7, 1000, 65536):
        reader = FrameReader()
        found = [
            command
            for at in range(0, len(stream), size)
            for command in reader.receive_data(stream[at : at + size])
        ]
        assert found == [decode(frame.data) for frame in some]
        assert reader.buffered == 0

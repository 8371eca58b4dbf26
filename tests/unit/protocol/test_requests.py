"""The table of requests, and the fields they are made of."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire.errors import BadField, MalformedRequest, MissingField
from hotfire.protocol import requests
from hotfire.protocol.codes import RequestCode, Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.fields import (
    Field,
    FieldStruct,
    Int32,
    camel_case,
    parse_bool,
    parse_int32,
    parse_int64,
)
from hotfire.protocol.request import read, write
from hotfire.protocol.requests import (
    REQUESTS,
    GetRouteInfoByTopic,
    PullMessage,
    PullReply,
    RegisterBroker,
    Reply,
    Request,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    SendReply,
    UnregisterClient,
    decode_request,
)

REPLIES = sorted(
    (value for value in vars(requests).values() if isinstance(value, type) and issubclass(value, Reply)),
    key=lambda reply: reply.__name__,
)


def field_values(field: Field) -> st.SearchStrategy[Any]:
    if field.parse is parse_bool:
        values: st.SearchStrategy[Any] = st.booleans()
    elif field.parse is parse_int32:
        values = st.integers(-(2**31), 2**31 - 1)
    elif field.parse is parse_int64:
        values = st.integers(-(2**63), 2**63 - 1)
    else:
        values = st.text(max_size=20)
    optional = not field.mandatory and field.default is None
    return st.none() | values if optional else values


def structs(cls: type[FieldStruct]) -> st.SearchStrategy[Any]:
    values = {field.name: field_values(field) for field in cls.fields}
    if cls.has_body:
        values["body"] = st.binary(max_size=30)
    return st.builds(cls, **values)


@pytest.mark.parametrize("cls", REQUESTS.values(), ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_requests_round_trip(cls: type[Request], data: st.DataObject) -> None:
    """Every declared request reaches the other side as it was, in both serialisations."""
    request = data.draw(structs(cls))
    for serialization in Serialization:
        frame = encode(request.to_command(opaque=3, serialization=serialization))
        assert decode_request(decode(frame)) == request


@pytest.mark.parametrize("cls", REPLIES, ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_replies_round_trip(cls: type[Reply], data: st.DataObject) -> None:
    """Every declared reply is read back as it was written."""
    reply = data.draw(structs(cls))
    assert cls.from_command(Command(0, fields=reply.to_fields())) == reply


@given(st.sampled_from(sorted(REQUESTS)), st.data())
def test_any_fields_give_a_request_or_name_the_fault(code: int, data: st.DataObject) -> None:
    """Text from anyone fills a struct or is refused by field; nothing else comes out."""
    names = [field.wire_name for field in REQUESTS[code].fields]
    texts = st.text(max_size=25) | st.integers().map(str) | st.sampled_from(["true", "1e3", " 1", "1_0", "٣"])
    fields = data.draw(st.dictionaries(st.sampled_from(names) if names else st.text(), texts))
    fault: MalformedRequest | None = None
    try:
        assert isinstance(decode_request(Command(code, fields=fields)), REQUESTS[code])
    except MalformedRequest as error:
        fault = error
    if fault is not None:
        assert fault.request == REQUESTS[code].__name__
        assert fault.field in names
        assert not fault.hang_up


def test_an_undeclared_code_is_no_request() -> None:
    """The caller answers `not supported`."""
    assert decode_request(Command(99999)) is None


def test_a_code_cannot_be_declared_twice() -> None:
    """Two structs for one code fail when the module is imported."""
    with pytest.raises(TypeError, match="both PullMessage and Again"):

        class Again(Request, code=RequestCode.PULL_MESSAGE, reply=None, needs=[]):
            topic: str

    assert REQUESTS[RequestCode.PULL_MESSAGE] is PullMessage


def test_a_request_cannot_forget_its_code() -> None:
    """A handler for an undeclared code has no class to be registered for."""
    with pytest.raises(TypeError, match="code"):

        class Nameless(Request):  # type: ignore[call-arg]
            topic: str


def test_a_permission_must_name_a_field() -> None:
    """A permission on a field that is not there would never be checked."""
    with pytest.raises(TypeError, match="needs to read topics"):

        class Misspelt(Request, code=RequestCode.GET_TOPIC_CONFIG_LIST, reply=None, needs=[read("topics")]):
            topic: str

    assert RequestCode.GET_TOPIC_CONFIG_LIST not in REQUESTS


def test_a_field_has_one_of_the_known_types() -> None:
    """Types that have no text form on the wire fail when the module is imported."""
    with pytest.raises(TypeError, match=r"Odd\.share"):

        class Odd(Reply):
            share: float


def test_every_code_belongs_to_its_class() -> None:
    """The registry and the classes agree, and permissions name declared fields."""
    for code, cls in REQUESTS.items():
        assert cls.code == code == RequestCode(code)
        for need in cls.needs:
            assert need.verb in {"read", "write", "use", "manage", "peer"}


def test_send_codes_share_one_struct() -> None:
    """A handler sees one SendMessage, whichever of the three codes it came by."""
    facts: dict[str, Any] = {
        "producer_group": "pg",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 2,
        "sys_flag": 0,
        "born_timestamp": 1700000000000,
        "flag": 0,
        "properties": "TAGS\x01a\x02",
        "broker_name": "broker-a",
        "body": b"hello",
    }
    first, second = SendMessage(**facts), SendMessageV2(**facts)
    assert first.to_fields()["producerGroup"] == second.to_fields()["a"] == "pg"
    assert list(second.to_fields()) == list("abcdefghijkmn")  # no l: it is sent to retry topics only
    for cls in (SendMessage, SendMessageV2, SendBatchMessage):
        request = decode_request(cls(**facts).to_command())
        assert isinstance(request, SendMessage)
        assert request == cls(**facts)
        assert request.needs == (write("topic"),)


@pytest.mark.parametrize("letter", "abcdefgh")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_a_send_without_a_mandatory_field_is_refused(code: RequestCode, letter: str) -> None:
    """The first eight letters must be there."""
    fields = dict.fromkeys("abcdefgh", "1")
    del fields[letter]
    with pytest.raises(MissingField) as caught:
        decode_request(Command(code, fields=fields))
    assert caught.value.field == letter
    with pytest.raises(MissingField):
        decode_request(Command(code))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queueId", "one"),
        ("queueId", "2147483648"),
        ("queueOffset", str(2**63)),
        ("queueId", "1_0"),
        ("queueId", "٣"),
    ],
)
def test_a_bad_number_is_named(name: str, text: str) -> None:
    """The refusal says which request, which field and which text."""
    good = PullMessage(
        consumer_group="g",
        topic="t",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
    )
    with pytest.raises(BadField, match=f"PullMessage: field {name} .*{text}"):
        decode_request(Command(RequestCode.PULL_MESSAGE, fields=good.to_fields() | {name: text}))


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", False), ("yes", False), ("", None)]
)
def test_booleans_are_javas(text: str, value: bool | None) -> None:
    """Everything but true is false, and an empty value is none at all."""
    request = GetRouteInfoByTopic.from_fields({"topic": "T", "acceptStandardJsonOnly": text})
    assert request.accept_standard_json_only is value


def test_names_on_the_wire() -> None:
    """camelCase by rule, and what the rule does not give is spelt out."""
    assert camel_case("body_crc32") == "bodyCrc32"
    assert [field.wire_name for field in UnregisterClient.fields] == [
        "clientID",
        "producerGroup",
        "consumerGroup",
    ]
    assert {field.wire_name for field in RegisterBroker.fields} >= {
        "haServerAddr",
        "bodyCrc32",
        "__ZONE_NAME",
    }
    assert "proxyFrowardClientId" in {field.wire_name for field in PullMessage.fields}


def test_reply_order_is_javas() -> None:
    """Optional fields, too, have their place."""
    send = SendReply(queue_id=1, msg_id="M", queue_offset=2, transaction_id="U", recall_handle="R")
    assert list(send.to_fields()) == [
        "queueId", "transactionId", "msgId", "TRACE_ON", "MSG_REGION", "recallHandle", "queueOffset",
    ]  # fmt: skip
    pull = PullReply(
        suggest_which_broker_id=0,
        next_begin_offset=1,
        min_offset=0,
        max_offset=1,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    assert list(pull.to_fields()) == [
        "suggestWhichBrokerId", "groupSysFlag", "nextBeginOffset", "maxOffset", "minOffset", "topicSysFlag",
    ]  # fmt: skip


def test_structs_are_values() -> None:
    """They compare by content and cannot be changed."""

    class Small(Reply):
        size: Int32 = 1

    assert Small() == Small(size=1)
    with pytest.raises(AttributeError):
        Small().size = 2  # type: ignore[misc]

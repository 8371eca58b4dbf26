"""At the door: what an application hands over is checked once, before anything is done with it.

Owns what may be in a message, and the types of what else is given; each refusal names what was given, and
what to give instead. A message is told of by LocalProtocolError, a setting or an argument by ConfigError.
The quick way of sends does not come by here: what it does not take itself goes the ordinary way, which does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, SupportsIndex, cast

from hotfire.errors import BrokerRefused, ConfigError, LocalProtocolError
from hotfire.model import (
    SEND_FORBIDDEN_TOPICS,
    Message,
    MessageQueue,
    ReceivedMessage,
    check_group_name,
    check_topic_name,
)

BODY_BYTES_MAX = 4 * 1024 * 1024
_INT32_MAX = (1 << 31) - 1
TIME_MS_MAX = 1 << 52
SECONDS_MAX = 10**11
"""Less than this many ms since 1970 lies before March 1973: whoever gives that counted in seconds."""

RESERVED_PROPERTIES = frozenset(  # a line for each would be a page
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO
    TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
    CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS
    TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
    TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID
    __CRC32#
    """.split()  # noqa: SIM905
)
"""Names that Java's putUserProperty refuses, and those of newer brokers that would be misread."""

_FIELD_OF = {
    "KEYS": "keys", "TAGS": "tag", "DELAY": "delay_level", "WAIT": "wait_stored",
    "TIMER_DELAY_MS": "delay_ms", "TIMER_DELIVER_MS": "deliver_at",
}  # fmt: skip


# --- messages --------------------------------------------------------------------------------------


def check_message(message: Message, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise LocalProtocolError for what brokers would refuse or consumers not get; nothing is sent."""
    check_sendable(message, body_bytes_max=body_bytes_max)
    if message.tag is not None:
        _check_tag(message, message.tag)
    if message.keys:
        _check_words(message, message.keys)
    if message.properties:
        _check_names(message, message.properties)


def check_sendable(message: Message, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """The same for a message of the client's own, which may carry on what others sent."""
    check_is_message(message)
    topic = message.topic
    body: object = message.body
    try:
        check_topic_name(topic)
    except BrokerRefused as refused:
        raise LocalProtocolError(refused.remark) from None
    except (AttributeError, TypeError):
        raise LocalProtocolError(f"topic {topic!r:.60} is {_kind(topic)}, not str") from None
    if topic in SEND_FORBIDDEN_TOPICS:
        raise LocalProtocolError(f"topic {topic} belongs to the broker; nobody else may send to it")
    if not isinstance(body, bytes):
        step = "send body.encode()" if isinstance(body, str) else "send bytes"
        _refuse(message, f"its body is {_kind(body)}, not bytes; {step}")
    if not body:
        _refuse(message, "its body is empty")
    if len(body) > body_bytes_max:
        _refuse(message, f"its body has {len(body)} bytes, at most {body_bytes_max} fit")
    flag, level = message.flag, message.delay_level
    if type(flag) is not int or type(level) is not int or flag or level:
        _check_integer(message, "flag", flag, -_INT32_MAX - 1)
        _check_integer(message, "delay_level", level, 0)  # brokers take more than their highest for that
    if message.delay_ms or message.deliver_at is not None or type(message.delay_ms) is not int:
        _check_time(message)
    if message.tag is not None:
        _check_text(message, "tag", message.tag)
    if message.keys or type(message.keys) is not tuple:
        _check_keys(message, message.keys)
    if message.properties or type(message.properties) is not dict:
        _check_properties(message)


def _check_time(message: Message) -> None:
    """One way to say when, and one that brokers understand."""
    if type(message.delay_ms) is not int:
        _refuse(message, f"delay_ms={message.delay_ms!r:.60} is {_kind(message.delay_ms)}, not int")
    if not 0 <= message.delay_ms <= TIME_MS_MAX:
        _refuse(message, f"delay_ms={message.delay_ms} is not within 0 to {TIME_MS_MAX}")
    at: object = message.deliver_at
    if at is not None:
        if isinstance(at, datetime):
            if at.tzinfo is None:
                _refuse(
                    message,
                    f"deliver_at={at.isoformat()} has no zone; use astimezone() for the time here",
                )
        elif type(at) is not int:
            _refuse(message, f"deliver_at={at!r:.60} is {_kind(at)}, not a datetime nor ms since 1970")
        elif not 0 < at <= TIME_MS_MAX:
            _refuse(message, f"deliver_at={at} is not within 1 to {TIME_MS_MAX} ms since 1970")
    if (message.delay_level != 0) + (message.delay_ms != 0) + (at is not None) > 1:
        _refuse(message, "it asks for more than one of delay_level, delay_ms and deliver_at; choose one")
    if isinstance(at, int) and at < SECONDS_MAX:
        _refuse(message, f"deliver_at={at} looks like seconds: give a datetime or ms since 1970")


def deliver_ms(at: datetime | int) -> int:
    """ms since 1970; the part of one is counted as a whole, for nothing is delivered early."""
    if isinstance(at, int):
        return at
    return -((datetime.fromtimestamp(0, UTC) - at) // timedelta(milliseconds=1))


def check_is_message(message: object) -> None:
    if not isinstance(message, Message):
        raise LocalProtocolError(
            f"{message!r:.60} is {_kind(message)}, not a Message; send Message(topic, body)"
        )


def _check_integer(message: Message, name: str, value: object, low: int) -> None:
    if not isinstance(value, int):
        _refuse(message, f"{name}={value!r:.60} is {_kind(value)}, not int")
    if not low <= value <= _INT32_MAX:
        _refuse(message, f"{name}={value} is not within {low} to {_INT32_MAX}")


def _check_text(message: Message, what: str, text: object) -> None:
    if not isinstance(text, str):
        _refuse(message, f"{what} {text!r:.60} is {_kind(text)}, not str")


def _check_keys(message: Message, keys: object) -> None:
    if isinstance(keys, str):  # each letter would be a key
        _refuse(message, f"its keys are one text, {keys!r:.60}; give a tuple of them")
    if not isinstance(keys, Collection):  # of what is read only once, nothing would be left to send
        _refuse(message, f"its keys are {_kind(keys)}, not a tuple of texts")
    for key in keys:
        _check_text(message, "key", key)


def _check_properties(message: Message) -> None:
    properties: object = message.properties
    if not isinstance(properties, Mapping):
        _refuse(message, f"its properties are {_kind(properties)}, not texts by name")
    for name, value in properties.items():
        _check_text(message, "property name", name)
        if not isinstance(value, str):
            _refuse(message, f"property {name}={value!r:.60} is {_kind(value)}, not str")


# What would arrive as something else than was meant:


def _check_tag(message: Message, tag: str) -> None:
    if "||" in tag:
        _refuse(
            message,
            f"tag {tag!r:.60} holds '||', which separates tags in subscriptions: none could name it; "
            "give one tag, and the others as a property",
        )


def _check_words(message: Message, keys: Iterable[str]) -> None:
    for key in keys:
        if not key or " " in key:
            _refuse(
                message,
                f"key {key!r:.60} has blanks in it, or is empty: keys travel joined by blanks, so it would "
                "not be found; give each word as a key of its own, or join them by another character",
            )


def _check_names(message: Message, properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            field = _FIELD_OF.get(name)
            step = f"set Message.{field}" if field else "choose another name, or leave it out when sending on"
            _refuse(message, f"property {name} is the protocol's own; {step}")
        if not name.strip() or not value.strip():
            _refuse(message, f"property {name!r:.60} needs a name and a value that are not blank")


def _refuse(message: Message, problem: str) -> NoReturn:
    raise LocalProtocolError(f"message to {message.topic}: {problem}")


# --- settings and arguments ------------------------------------------------------------------------


def check_group(group: object) -> None:
    """ConfigError unless it may name a group."""
    if not isinstance(group, str):
        raise ConfigError(f"group={group!r:.60} is {_kind(group)}, not str")
    try:
        check_group_name(group)
    except BrokerRefused as refused:
        raise ConfigError(refused.remark) from None


def check_number(name: str, value: object, *, may_be_none: bool = False) -> None:
    """ConfigError unless it can be counted with."""
    if not isinstance(value, (int, float, SupportsIndex)) and not (may_be_none and value is None):
        raise ConfigError(f"{name}={value!r:.60} is {_kind(value)}, not a number")


def check_seconds(name: str, value: float) -> None:
    """ConfigError unless it is a time to come that a broker can count."""
    check_number(name, value)
    if not 0 <= value <= _INT32_MAX:
        raise ConfigError(f"{name}={value!r:.60} is not within 0 to {_INT32_MAX}")


def check_text(name: str, value: object) -> None:
    """ConfigError unless it is a text, or None."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name}={value!r:.60} is {_kind(value)}, not str")


def check_texts(**given: object) -> None:
    """ConfigError unless each of them is a text; what may be in it, brokers say."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name}={value!r:.60} is {_kind(value)}, not str")


def check_integer(name: str, value: object, *, may_be_none: bool = False) -> None:
    """ConfigError unless it is a whole number."""
    if not isinstance(value, SupportsIndex) and not (may_be_none and value is None):
        raise ConfigError(f"{name}={value!r:.60} is {_kind(value)}, not int")


def check_names(name: str, values: object) -> None:
    """ConfigError unless these are several texts, or None: a single one would be taken letter by letter."""
    if isinstance(values, str):
        raise ConfigError(f"{name}={values!r:.60} is one text; give a list of names")
    if values is not None:
        for one in cast(Iterable[object], values):
            check_texts(**{name: one})


def check_received(message: object) -> None:
    """ConfigError unless it is a message that came from a broker."""
    if not isinstance(message, ReceivedMessage):
        raise ConfigError(f"message={message!r:.60} is {_kind(message)}, not a ReceivedMessage")


def check_callable(name: str, value: object) -> None:
    """ConfigError unless it can be called, or is None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r:.60} is {_kind(value)}, which cannot be called; give a function")


def check_topic(topic: object) -> None:
    """ConfigError unless it may name a topic."""
    if not isinstance(topic, str):
        raise ConfigError(f"topic {topic!r:.60} is {_kind(topic)}, not str")
    try:
        check_topic_name(topic)
    except BrokerRefused as refused:
        raise ConfigError(refused.remark) from None


def check_queue(queue: object) -> None:
    """ConfigError unless it is a queue."""
    if not isinstance(queue, MessageQueue):
        raise ConfigError(
            f"queue {queue!r:.60} is {_kind(queue)}, not a MessageQueue; queues(topic) gives those there are"
        )


def check_offset(queue: MessageQueue, offset: object) -> None:
    """ConfigError unless it is a place in this queue."""
    check_queue(queue)
    if not isinstance(offset, SupportsIndex):
        raise ConfigError(
            f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id}: offset {offset!r:.60} "
            f"is {_kind(offset)}, not int"
        )


def check_hooks(hooks: Iterable[object]) -> Sequence[Any]:
    """The hooks, in order; ConfigError unless each has `before` and `after`."""
    try:
        several = tuple(hooks)
    except TypeError:
        raise ConfigError(f"hooks={hooks!r:.60} is {_kind(hooks)}; give a list of hooks") from None
    for hook in several:
        if not callable(getattr(hook, "before", None)) or not callable(getattr(hook, "after", None)):
            raise ConfigError(
                f"hook {hook!r:.60} has no before() and after(); derive it from the hook's class"
            )
    return several


def _kind(value: object) -> str:
    return type(value).__name__

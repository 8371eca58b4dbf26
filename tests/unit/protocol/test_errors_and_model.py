"""The exception tree, and the rules of shared values."""

import pickle

import pytest

from hotfire import errors, model
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode

JAVA_PRODUCER_RETRIES = {17, 14, 1, 2, 16, 204, 205, 1500}


def test_refusals_know_what_to_do() -> None:
    """The retriable codes are the Java producer's, and every class stands for a code of the protocol."""
    retriable = {code for code, cls in BrokerRefused.by_code.items() if cls.retriable}
    assert retriable == JAVA_PRODUCER_RETRIES
    assert all(code in ResponseCode._value2member_map_ for code in BrokerRefused.by_code)


def test_a_refusal_is_of_its_codes_class() -> None:
    """One spelling for servers and clients; code and remark are kept."""
    error = BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, "no topic T")
    assert isinstance(error, errors.TopicNotExist)
    assert (error.code, error.remark) == (17, "no topic T")
    assert str(error) == "TopicNotExist (code 17): no topic T"
    assert type(BrokerRefused(4711)) is BrokerRefused
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 — our own bytes
    assert (type(again), again.code, again.remark) == (errors.TopicNotExist, 17, "no topic T")


def test_a_code_has_one_class() -> None:
    """Two classes for one code fail when the module is imported."""
    with pytest.raises(TypeError, match="both TopicNotExist and Again"):

        class Again(BrokerRefused, code=17):
            pass


def test_the_tree_is_as_drawn() -> None:
    """Every error of the module is in its docstring and below the one root."""
    classes = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert all(issubclass(cls, errors.HotfireError) for cls in classes)
    drawn = {cls for cls in classes if not (issubclass(cls, BrokerRefused) and cls is not BrokerRefused)}
    missing = sorted(cls.__name__ for cls in drawn if cls.__name__ not in (errors.__doc__ or ""))
    assert missing == []


def test_who_hangs_up() -> None:
    """A broken frame ends the connection, an unfit request only itself."""
    assert errors.RemoteProtocolError("x").hang_up
    assert not errors.MissingField("PullMessage", "topic").hang_up
    assert (
        str(errors.MissingField("PullMessage", "topic")) == "PullMessage: field topic is mandatory and absent"
    )


@pytest.mark.parametrize("name", ["T", "a" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "a|b_c-d%"])
def test_legal_topic_names(name: str) -> None:
    """Letters, digits and four signs; retry and dead-letter topics may be longer."""
    model.check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", "  ", "a b", "a.b", "ä", "a\n", "a" * 128, "%RETRY%" + "g" * 249, "%DLQ%" + "g" * 251]
)
def test_illegal_topic_names(name: str) -> None:
    """Refused as an invalid parameter."""
    with pytest.raises(errors.InvalidParameter):
        model.check_topic_name(name)


def test_group_names() -> None:
    """Shorter than topics, since topics are made of them."""
    model.check_group_name("g" * 120)
    with pytest.raises(errors.InvalidParameter, match="121 characters, at most 120"):
        model.check_group_name("g" * 121)


def test_system_topics() -> None:
    """By list or by prefix."""
    assert model.is_system_topic("TBW102")
    assert model.is_system_topic("rmq_sys_wheel_timer")
    assert not model.is_system_topic("T")
    assert model.SEND_FORBIDDEN_TOPICS < model.SYSTEM_TOPICS
    assert model.is_system_group("CID_RMQ_SYS_TRANS")
    assert not model.is_system_group("g")


def test_data_versions() -> None:
    """The next edition has a new time and a higher counter."""
    version = model.DataVersion(3, 5, 7)
    assert version.next(9) == model.DataVersion(3, 9, 8)
    assert version.next(9, state_version=4) == model.DataVersion(4, 9, 8)


def test_values_can_be_keys() -> None:
    """Even those that hold maps."""
    route = model.RouteData(brokers=(model.BrokerData("c", "b", {0: "a"}),))
    group = model.SubscriptionGroup("g")
    assert len({route, model.TopicConfig("T"), group, model.MessageQueue("T", "b", 0)}) == 4
    assert model.retry_topic("g") == "%RETRY%g"
    assert model.dlq_topic("g") == "%DLQ%g"

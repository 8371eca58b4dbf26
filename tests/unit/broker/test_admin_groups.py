"""Consumer groups as administrators make, change, list and delete them. Replies are those Java 5.5.0 gave."""

import json

import pytest

from hotfire.protocol.bodies import loads
from hotfire.protocol.requests import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
    UpdateConsumerOffset,
)
from tests.unit.broker.harness import FOUND, Harness, pull_request, tagged

NO_PERMISSION, NO_GROUP = 16, 26
DEFAULTS = {
    "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
    "groupName": "G", "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 2,
    "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip


def put(heart: Harness, **fields: object) -> int:
    return heart.ask(UpdateAndCreateSubscriptionGroup(body=json.dumps(fields).encode())).code


def test_a_group_is_made_shown_and_changed(heart: Harness) -> None:
    """What is not said is as a new group has it; a change counts at once, and after a start."""
    assert put(heart, groupName="G", retryQueueNums=2) == 0
    shown = heart.ask(GetSubscriptionGroupConfig(group="G"))
    assert (shown.code, shown.remark) == (0, None)
    assert list(json.loads(bytes(shown.body)).items()) == list(DEFAULTS.items())
    heart.create_topic("T")
    heart.send()
    assert heart.pull(group="G").code == FOUND
    assert heart.pull(group="G").code == FOUND, "by the lane, if there is one"
    assert put(heart, groupName="G", consumeEnable=False) == 0
    assert heart.pull(group="G").code == NO_PERMISSION
    heart.reopen()
    assert heart.pull(group="G").code == NO_PERMISSION


def test_wrong_groups_are_refused(heart: Harness) -> None:
    """Names that may not be and attributes that do not exist; of a list all or none."""
    assert put(heart, groupName="a b") == 29
    assert put(heart, groupName="G", retryQueueNums=4097) == 29, "each costs memory"
    assert put(heart, groupName="G", attributes={"+x": "1"}) == 1
    body = b'{"groupConfigList":[{"groupName":"G1"},{"groupName":"a b"}]}'
    assert heart.ask(UpdateAndCreateSubscriptionGroupList(body=body)).code == 29
    assert heart.broker.groups.get("G1") is None
    body = b'{"groupConfigList":[{"groupName":"G1"},{"groupName":"G2"}]}'
    assert heart.ask(UpdateAndCreateSubscriptionGroupList(body=body)).code == 0
    assert heart.broker.groups.get("G2") is not None
    unknown = heart.ask(GetSubscriptionGroupConfig(group="a b"))
    assert (unknown.code, unknown.remark) == (NO_GROUP, "No group in this broker")


def test_all_groups_come_at_once_or_page_by_page(heart: Harness) -> None:
    """Without fields the whole table; with them so many by name."""
    for name in ("G1", "G2", "G3"):
        put(heart, groupName=name)
    whole = heart.ask(GetAllSubscriptionGroupConfig())
    tree = loads(whole.body)
    assert list(tree) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    names = sorted(tree["subscriptionGroupTable"])
    assert whole.fields == {"totalGroupNum": str(len(names))}
    page = heart.ask(
        GetAllSubscriptionGroupConfig(
            group_seq=2, max_group_num=3, data_version=json.dumps(tree["dataVersion"])
        )
    )
    assert list(loads(page.body)["subscriptionGroupTable"]) == names[2:5]


def test_a_deleted_group_keeps_its_offsets_unless_told_otherwise(heart: Harness) -> None:
    """`cleanOffset` decides whether a group of that name goes on where this one was."""
    heart.create_topic("T")
    for clean, left in ((False, 1), (True, None)):
        put(heart, groupName="G")
        commit = UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=1)
        assert heart.ask(commit).code == 0
        reply = heart.ask(DeleteSubscriptionGroup(group_name="G", clean_offset=clean))
        assert (reply.code, reply.remark) == (0, None)
        assert heart.broker.groups.get("G") is None
        assert heart.broker.offsets.get("T", "G", 0) == left
    assert heart.ask(DeleteSubscriptionGroup(group_name="nope")).code == 0


def test_a_group_can_be_kept_from_a_topic(heart: Harness) -> None:
    """Forbidden to read, its members are refused that topic and no other, until it is allowed again."""
    for topic in ("T", "U"):
        heart.create_topic(topic)
        heart.send(topic=topic)
    heart.beat("C1", "G", tagged("T", "*"), tagged("U", "*"))
    heart.connection.take()

    def pull(topic: str) -> int:
        return heart.ask(pull_request(topic=topic, group="G", flag=0, sub_version=1)).code

    def ask(topic: str, readable: bool | None = None) -> object:
        reply = heart.ask(UpdateAndGetGroupForbidden(group="G", topic=topic, readable=readable))
        assert (reply.code, reply.remark) == (0, "")
        return json.loads(bytes(reply.body))

    assert (pull("T"), pull("T"), pull("U")) == (FOUND, FOUND, FOUND)
    assert ask("T") == {"group": "G", "readable": True, "topic": "T"}
    assert ask("T", readable=False) == {"group": "G", "readable": False, "topic": "T"}
    assert (pull("T"), pull("U")) == (NO_PERMISSION, FOUND)
    table = json.loads((heart.root / "config" / "subscriptionGroup.json").read_text())
    assert table["forbiddenTable"] == {"G": {"T": 4}}, "as the reference keeps it"
    assert ask("T", readable=True) == {"group": "G", "readable": True, "topic": "T"}
    assert (pull("T"), pull("U")) == (FOUND, FOUND)


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_forbidden_outlives_a_start(heart: Harness, clean: bool) -> None:
    """A deleted group's are forgotten, others' are kept."""
    put(heart, groupName="G")
    heart.ask(UpdateAndGetGroupForbidden(group="G", topic="T", readable=False))
    if clean:
        heart.ask(DeleteSubscriptionGroup(group_name="G"))
    heart.reopen()
    assert heart.broker.groups.may_read("G", "T") is clean

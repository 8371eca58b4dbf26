"""Apache's mqadmin administers Hotfire: the same commands, the same facts, output of the same shape."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from tests.interop import catalogue_admin
from tests.interop.adminstory import BROKER, CLUSTER, GROUP, TOPIC
from tests.interop.both import Told
from tests.interop.mqadmin import failed, shape

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def test_commands_succeed_and_tell_the_facts(told: Callable[[str], Told]) -> None:
    """Every command of the session succeeds; counts and names in its output are those of what was done."""
    outputs = told("hotfire").admin
    broken = {name: output[:600] for name, output in outputs.items() if failed(output)}
    assert not broken, "\n".join(f"{name}: {output}" for name, output in broken.items())
    for name, words in {
        "topicList": [TOPIC, TOPIC + "2", "TBW102"],
        "topicRoute": ['"readQueueNums":4', BROKER],
        "topicClusterList": [CLUSTER],
        "sendMessage 0": ["SEND_OK"],
        "consumerConnection": [catalogue_admin.CLIENT, "CONSUME_PASSIVELY", "CLUSTERING"],
        "queryMsgByKey": ["K1"],
        "queryMsgByUniqueKey of a send": ["K0", "TagA"],
        "queryMsgById": ["K0", "TagA", TOPIC],
        "queryMsgByOffset": ["K1"],
        "consumeMessage": ["body0", "body1"],
        "clusterList": [CLUSTER, BROKER, "V5_5_0"],
        "brokerStatus": ["msgPutTotalTodayNow", "commitLogMaxOffset"],
        "getBrokerConfig": ["brokerName", BROKER],
        "wipeWritePerm": ["OK", BROKER],
    }.items():
        lacking = [word for word in words if word not in outputs[name]]
        assert not lacking, f"{name} does not say {lacking}: {outputs[name][:1500]}"
    status = [line.split() for line in outputs["topicStatus"].splitlines() if line.startswith(BROKER)]
    assert [(line[1], line[2], line[3]) for line in status] == [
        ("0", "0", "3"), ("1", "0", "0"), ("2", "0", "0"), ("3", "0", "0")
    ]  # fmt: skip
    progress = [line.split() for line in outputs["consumerProgress"].splitlines() if line.startswith(TOPIC)]
    assert [(line[2], line[3], line[4]) for line in progress if line[2] == "0"] == [("0", "3", "1")]
    (lag,) = [line.split() for line in outputs["statsAll"].splitlines() if line.split()[:2] == [TOPIC, GROUP]]
    assert lag[2] == "2"
    assert TOPIC + "2" not in outputs["topicList at last"].split()
    assert TOPIC in outputs["topicList at last"].split()


@pytest.mark.promise(160)
def test_a_message_is_told_with_who_consumed_it(told: Callable[[str], Told]) -> None:
    """Asked for by topic and key, a message comes with each group's state: consumed, or not yet."""
    outputs = told("hotfire").admin
    tracks = {
        name: re.findall(r"consumerGroup=(\w+), trackType=(\w+)", outputs[name])
        for name in ("queryMsgByUniqueKey of a send", "queryMsgByUniqueKey of the last send")
    }
    assert list(tracks.values()) == [[(GROUP, "CONSUMED")], [(GROUP, "NOT_CONSUME_YET")]], outputs


# Lines that tell of the program itself, and so are not the same for two programs.
OWN_LINES = {
    "brokerStatus": "lines of the runtime table are compared by the catalogue, request 28",
    "getBrokerConfig": "settings are compared by the catalogue, request 26",
    "getNamesrvConfig": "settings are compared by the catalogue, request 319",
}


def test_outputs_have_the_shape_of_apaches(told: Callable[[str], Told]) -> None:
    """Line by line the same output as with Apache's broker, but for numbers, times, ids and addresses."""
    theirs, ours = told("apache").admin, told("hotfire").admin
    assert {name for name, output in theirs.items() if failed(output)} == set()
    unlike = []
    for name in [name for name in theirs if name not in OWN_LINES]:
        left, right = shape(theirs[name]), shape(ours.get(name, "(not run)"))
        if left != right:
            pairs = itertools.zip_longest(left, right, fillvalue="-")
            lines = [f"    apache {a}\n    hotfire {b}" for a, b in pairs if a != b][:4]
            unlike.append(f"{name}:\n" + "\n".join(lines))
    assert not unlike, "\n".join(unlike)

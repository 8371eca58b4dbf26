"""One broker, four ways to serve: by the compiled lane, for one peer or for a set of them, by its handlers,
without compiled code at all.

Whatever clients send, all four answer and store the same bytes; nothing but time may tell them apart.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.protocol.command import Command, decode
from hotfire.protocol.record import Host
from tests.wire import scripts
from tests.wire.golden import frames
from tests.wire.setbench import SetBench
from tests.wire.transcript import Bench, Outcome, frames_of, replay

pytestmark = pytest.mark.core
ROOT = Path(__file__).resolve().parents[2]
IPV6 = Host.parse("2001:db8::1", 10911)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"enabled_append_prop_crc": False, "trace_on": False, "region_id": "elsewhere"},
    {"turn_bytes_max": 9000},
    {"broker_permission": 4},
    {"broker_permission": 2},
    {"advertised": IPV6},
    {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 60},
    {"auto_create_topic_enable": False, "auto_create_subscription_group": False, "max_message_size": 1024},
)


def served_and_handled(steps: list[scripts.Step], root: Path, **settings: Any) -> Bench:
    """Replays with the lane and without it, compares, gives back the one with it."""
    assert core.COMPILED, f"there is no lane to compare: {core.WHY_PLAIN}"
    served = replay(steps, root / "lane", **settings)
    handled = replay(steps, root / "handlers", fast_lane_enable=False, **settings)
    assert handled.broker.fast.lane is None
    served.outcome().assert_same(handled.outcome())
    received = replay(steps, root / "set", SetBench, **settings)
    received.outcome().assert_same(handled.outcome())
    assert received.broker.fast.lane is not None
    assert served.broker.fast.lane is not None
    assert received.broker.fast.lane.sends == served.broker.fast.lane.sends
    assert served.broker.messages_stored == handled.broker.messages_stored
    return served


@pytest.mark.parametrize("file", scripts.RECORDINGS)
def test_recorded_clients_cannot_tell_lane_from_handlers(file: str, in_memory: Path) -> None:
    """What Java clients sent is answered and stored byte for byte alike, ordinary requests by the lane."""
    bench = served_and_handled(scripts.recorded(file), in_memory)
    lane = bench.broker.fast.lane
    assert lane is not None
    assert lane.sends > bench.broker.sends_handled > 0
    assert lane.pulls > 10


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(len(VARIATIONS)))
def test_made_up_clients_cannot_tell_lane_from_handlers(seed: int, in_memory: Path) -> None:
    """2,000 odd and ordinary requests, cut anywhere, are answered and stored byte for byte alike."""
    # few pulls end within one of the small segments, and only those are the lane's
    count = 4000 if "mapped_file_size_commit_log" in VARIATIONS[seed] else 2000
    bench = served_and_handled(scripts.made(seed, count), in_memory, **VARIATIONS[seed])
    lane = bench.broker.fast.lane
    assert lane is not None
    if "auto_create_topic_enable" not in VARIATIONS[seed]:  # else the topics do not exist at first
        assert lane.sends > 150
    if VARIATIONS[seed].get("broker_permission") != 2 and "max_message_size" not in VARIATIONS[seed]:
        assert lane.pulls > 10


@pytest.mark.parametrize(
    "name", [f"golden:{scripts.RECORDINGS[0]}", f"golden:{scripts.RECORDINGS[2]}", "made:1"]
)
def test_nothing_but_time_changes_without_the_compiled_core(name: str, tmp_path: Path) -> None:
    """A broker of plain Python answers and stores the same bytes as the compiled one."""
    compiled = elsewhere(name, tmp_path / "compiled", "")
    plain = elsewhere(name, tmp_path / "plain", "plain")
    compiled.assert_same(plain)


def elsewhere(name: str, root: Path, core_kind: str) -> Outcome:
    """The outcome of a transcript in a process of its own."""
    result = root.with_suffix(".json")
    # groups that lose a member together are told in a set's order: one seed for both processes
    environment = os.environ | {"HOTFIRE_CORE": core_kind, "PYTHONHASHSEED": "0"}
    subprocess.run(
        [sys.executable, "-m", "tests.wire.transcript", name, str(root), str(result)],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=50,
    )
    facts = json.loads(result.read_text("utf-8"))
    assert facts.pop("compiled") is (core_kind != "plain")
    return Outcome(**facts)


# --- the reference's replies to the same requests ---------------------------------------------------

SAME_CODE = frozenset(
    {
        "error-illegal-topic-name", "error-topic-too-long", "error-blank-topic", "error-queue-id",
        "error-property-too-long", "error-missing-header", "error-subscription-not-exist",
        "error-request-code-not-supported",
        "pull-offset-overflow", "pull-raw-offsets", "pull-tag-filter-no-match",
    }
)  # fmt: skip
"""Scenarios whose outcome does not depend on messages that were not recorded."""


@functools.cache
def recorded_replies(file: str) -> dict[tuple[int, int], tuple[str, Command]]:
    """By connection and opaque: the scenario and what the Java broker answered."""
    return {
        (frame.facts["conn"], frame.facts["opaque"]): (frame.facts["scenario"], decode(frame.data))
        for frame in frames()
        if frame.file == file
        and frame.facts["dir"] == "response"
        and frame.facts["from"].startswith("broker")
    }


@pytest.mark.parametrize("file", scripts.RECORDINGS)
def test_replies_have_the_shape_of_the_references(file: str, in_memory: Path) -> None:
    """Where both brokers succeed a reply has the same fields in the same order; refusals share the code."""
    bench = replay(scripts.recorded(file), in_memory)
    in_binary = "server-rocketmq" in file  # such a server orders its fields another way
    compared = refused = 0
    for conn, peer in bench.peers.items():
        for ours in map(decode, frames_of(bytes(peer.replies))):
            if not ours.is_response or (conn, ours.opaque) not in recorded_replies(file):
                continue
            scenario, theirs = recorded_replies(file)[conn, ours.opaque]
            if scenario in SAME_CODE:
                assert ours.code == theirs.code, (scenario, ours, theirs)
                refused += theirs.code != 0
            if ours.code == theirs.code == 0:
                compared += 1
                names, expected = list(ours.fields or ()), list(theirs.fields or ())
                assert sorted(names) == sorted(expected), (scenario, ours)
                if not in_binary:
                    assert names == expected, scenario
                    assert ours.remark == theirs.remark, scenario
    assert compared > 80
    assert refused >= 2

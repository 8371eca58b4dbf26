"""Ten thousand idle connections, slow readers, half frames: the healthy notice nothing."""

import time
from pathlib import Path

import pytest

from tests.peers import remoting
from tests.peers.hostile import Hostile
from tests.peers.hotfire import HotfireProcess

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

TOPIC = "Besieged"
IDLE, SLOW, HALF, TRICKLING = 10_000, 500, 250, 250
IDLE_SECONDS = 20
ANONYMOUS_BYTES_MAX = 300 << 20
BODY = b"x" * 8192
STORED = 512


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def send(broker: str, body: bytes) -> None:
    fields = {"a": "healthy", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
    remoting.call(broker, remoting.SEND_MESSAGE_V2, fields, body=body)


def test_a_besieged_broker_serves_the_healthy_and_reaps_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory stays bounded, a healthy client's every send is acknowledged, and no hostile peer stays."""
    idle = ["--set", f"serverChannelMaxIdleTimeSeconds={IDLE_SECONDS}"]
    with HotfireProcess(tmp_path, arguments=idle) as server:
        remoting.create_topic(server.broker, TOPIC, 1)
        for _ in range(STORED):
            send(server.broker, BODY)
        counts = {"idle": IDLE, "slow": SLOW, "half": HALF, "trickling": TRICKLING}
        with Hostile(server.broker, TOPIC, **counts) as hostile:
            hostile.connect()
            assert hostile.reap()["idle"] == IDLE, "the idle are not reaped before their time"
            highest, sent, until = 0, 0, time.monotonic() + IDLE_SECONDS / 2
            while time.monotonic() < until:
                hostile.trickle()
                for _ in range(20):
                    send(server.broker, b"healthy")
                    sent += 1
                highest = max(highest, anonymous_bytes(server.pid))
            left = hostile.reaped_within(3 * IDLE_SECONDS)
            highest = max(highest, anonymous_bytes(server.pid))
        send(server.broker, b"still there")
        assert not any(left.values()), f"not reaped: {left}"
        assert highest <= ANONYMOUS_BYTES_MAX, f"{highest >> 20} MiB"
        assert remoting.max_offsets(server.broker, TOPIC, 1) == [STORED + sent + 1]
        assert server.terminate() == 0
    with capsys.disabled():
        print(f"\nbesieged: {sent} healthy sends, at most {highest >> 20} MiB anonymous")  # noqa: T201  # figures

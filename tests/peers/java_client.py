"""The command line of the interop programs written in Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.peers.jars import client_class_path

Serialization = Literal["JSON", "ROCKETMQ"]

# Short-lived clients on few cores: start-up time matters more than peak speed.
_JVM_FLAGS = (
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def java_command(
    version: str,
    serialization: Serialization,
    directory: Path,
    *,
    rebalance_ms: int = 20_000,
    flags: Sequence[str] = (),
) -> list[str]:
    """`interop.Interop` without its arguments; `directory` takes the client's logs and offset files."""
    # What 4.9.8 gives up with messages in hand it keeps locked for this long, 20 s by default. 5.5.0 unlocks
    # as soon as no listener has the queue in hand, and once its lock is this old it does so all the same:
    # told 500 ms, it hardly ever waits for a listener, and two members handle one queue.
    unlock = [] if version.startswith("5.") else ["-Drocketmq.client.unlockDelayTimeMills=500"]
    return [
        "java",
        *_JVM_FLAGS,
        "-Dfile.encoding=UTF-8",
        f"-Duser.home={directory}",
        f"-Drocketmq.serialize.type={serialization}",
        *unlock,
        f"-Drocketmq.client.rebalance.waitInterval={rebalance_ms}",
        # Not 3 s: on few and busy cores the client itself may need longer to notice that it is connected.
        "-Dcom.rocketmq.remoting.client.connect.timeout=15000",
        *flags,
        "-cp",
        client_class_path(version),
        "interop.Interop",
    ]

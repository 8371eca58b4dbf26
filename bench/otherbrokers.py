"""What rival clients need: Apache's proxy before its broker, a Kafka broker, a Python with their packages.

All from Maven Central and PyPI by name, kept beside the other peers. Owns their command lines and the moment
from which they serve.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.place import ROOT
from tests.peers.jars import CACHE, class_path, locked_cache
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, ProcessFailed, poll_until

READY_TIMEOUT_S = 60.0
POMS = ROOT / "bench" / "peers"
PACKAGES = POMS / "python.txt"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


def rival_python() -> str:
    """An interpreter of our version with the official gRPC client and aiokafka, in an environment apart."""
    place = CACHE / "python-clients"
    wanted = hashlib.sha256(PACKAGES.read_bytes() + sys.version.encode()).hexdigest()
    stamp, program = place / "stamp", place / "bin" / "python"
    with locked_cache():
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            install = [str(program), "-m", "pip", "install", "--quiet", "--requirement", str(PACKAGES)]
            subprocess.run(install, check=True)
            stamp.write_text(wanted)
    return str(program)


class Served(ABC):
    """A Java program that listens on a port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.broker = f"127.0.0.1:{self.port}"
        self._process: LineProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Writes its files; what to run."""

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        self._process = LineProcess(
            self.command(), log=self.directory / "log", env={"ROCKETMQ_HOME": str(self.directory)}
        )
        try:
            poll_until(self._accepts, what=f"listener at {self.broker}", timeout_s=READY_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            raise
        return self

    def _accepts(self) -> bool:
        assert self._process is not None
        if not self._process.alive:
            raise ProcessFailed(f"it ended; {self.directory / 'log'}: {self._process.lines()[-5:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except ConnectionRefusedError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()


class Proxy(Served):
    """Apache's proxy in cluster mode, beside a broker that its name server knows."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        super().__init__(directory)
        self._namesrv = namesrv

    def command(self) -> Sequence[str]:
        settings = {
            "rocketMQClusterName": "DefaultCluster", "proxyMode": "CLUSTER", "namesrvAddr": self._namesrv,
            "grpcServerPort": self.port, "remotingListenPort": free_port(), "localServeAddr": "127.0.0.1",
            "useEndpointPortFromRequest": True,
        }  # fmt: skip
        (self.directory / "conf").mkdir()
        file = self.directory / "conf" / "rmq-proxy.json"
        file.write_text(json.dumps(settings))
        return [
            "java", *HEAP, *OPENED, f"-Duser.home={self.directory}",
            "-cp", class_path("proxy-5.5.0", POMS / "proxy.xml"),
            "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(file), "-n", self._namesrv,
        ]  # fmt: skip


class Kafka(Served):
    """One broker that is its own controller, with the settings of its quick start."""

    def __init__(self, directory: Path, partitions: int = 4) -> None:
        super().__init__(directory)
        self._partitions = partitions

    def command(self) -> Sequence[str]:
        jars = class_path("kafka", POMS / "kafka.xml")
        controller = free_port()
        settings = {
            "process.roles": "broker,controller", "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"), "num.partitions": str(self._partitions),
            "offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1", "group.initial.rebalance.delay.ms": "0",
        }  # fmt: skip
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", *HEAP, "-cp", jars]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(file)],
            check=True, capture_output=True,
        )  # fmt: skip
        return [*java, "kafka.Kafka", str(file)]

"""Apache RocketMQ's own name server, broker and mqadmin, run from their jars on loopback ports.

Owns the command lines a Java 17 needs for them and the moment from which they really serve.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.peers import noon, remoting
from tests.peers.jars import server_class_path
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, ProcessFailed, poll_until

FlushDiskType = Literal["SYNC_FLUSH", "ASYNC_FLUSH"]

CLUSTER_NAME = "DefaultCluster"
OTHER_NAME = "broker-b"
OTHER_SETTINGS = {"autoCreateTopicEnable": "false", "registerNameServerPeriod": "10000"}
"""Of a second broker beside the one that serves."""
READY_TIMEOUT_S = 60.0
ADMIN_TIMEOUT_S = 60.0

_MAIN_CLASSES = {
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
    "tools": "org.apache.rocketmq.tools.command.MQAdminStartup",
}
# What the stock scripts open to the servers on Java 9 and later.
_MODULE_FLAGS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
# The stock broker script's collector settings with a heap of 1 GiB instead of 8.
_BROKER_FLAGS = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+AlwaysPreTouch",
    "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages",
)  # fmt: skip
_SMALL_FLAGS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class ApacheCluster:
    """One name server and one master broker.

    >>> with ApacheCluster(tmp_path) as cluster:                         # doctest: +SKIP
    ...     print(cluster.namesrv, cluster.broker, mqadmin(["clusterList"], cluster.namesrv))
    """

    def __init__(
        self,
        directory: Path,
        *,
        flush_disk_type: FlushDiskType = "ASYNC_FLUSH",
        broker_name: str = "broker-a",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are further lines of the broker's configuration file and win over ours."""
        self.directory = directory
        self.broker_name = broker_name
        self.namesrv = f"127.0.0.1:{free_port()}"
        # A broker also listens on port - 2 (fast lane) and port + 1 (replication).
        self.broker = f"127.0.0.1:{free_port(-2, 1)}"
        self.ready_seconds = 0.0
        self._settings = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": broker_name,
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.broker.rpartition(":")[2],
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(directory / "store"),
            "flushDiskType": flush_disk_type,
            "autoCreateTopicEnable": "true",
            **(settings or {}),
        }
        self._namesrv_process: LineProcess | None = None
        self._broker_process: LineProcess | None = None
        self._other: ApacheCluster | None = None

    @classmethod
    @contextmanager
    def name_server(cls, directory: Path) -> Iterator[str]:
        """The name server alone, its key-value table in `directory` too; yields its address."""
        alone = cls(directory)
        process = alone._start_namesrv({"kvConfigPath": str(directory / "kvConfig.json")})
        try:
            poll_until(
                lambda: _answers(process, alone.namesrv),
                what=f"answer of the name server at {alone.namesrv}",
                timeout_s=READY_TIMEOUT_S,
            )
            yield alone.namesrv
        finally:
            process.kill()

    @property
    def pid(self) -> int:
        """The broker's process id; the name server is another process."""
        assert self._broker_process is not None, "not started"
        return self._broker_process.pid

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        started_at = time.monotonic()
        try:
            self._namesrv_process = self._start_namesrv()
            poll_until(
                lambda: self._namesrv_process and _answers(self._namesrv_process, self.namesrv),
                what=f"answer of the name server at {self.namesrv}",
                timeout_s=READY_TIMEOUT_S,
            )
            self._broker_process = self._start_broker()
            poll_until(self._is_registered, what=f"route to {self.broker}", timeout_s=READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.ready_seconds = time.monotonic() - started_at
        return self

    def _start_namesrv(self, settings: Mapping[str, str] | None = None) -> LineProcess:
        config = self.directory / "namesrv.conf"
        port = self.namesrv.rpartition(":")[2]
        _write_properties(config, {"listenPort": port, "bindAddress": "127.0.0.1", **(settings or {})})
        command = _java(self.directory, (*_SMALL_FLAGS, noon.JAVA_FLAG), "namesrv")
        return LineProcess(
            [*command, "-c", str(config)],
            log=self.directory / "namesrv.err",
            env=self._environment(),
        )

    def _start_broker(self) -> LineProcess:
        config = self.directory / "broker.conf"
        _write_properties(config, self._settings)
        command = _java(self.directory, (*_BROKER_FLAGS, noon.JAVA_FLAG), "broker")
        return LineProcess(
            [*command, "-c", str(config)],
            log=self.directory / "broker.err",
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        # Required by both programs, read by neither when every path is configured.
        return {"ROCKETMQ_HOME": str(self.directory)}

    def _is_registered(self) -> bool:
        """Registered with the name server, and serving under the address it registered."""
        assert self._broker_process is not None
        if not self._broker_process.alive:
            raise ProcessFailed(f"the broker ended; {self.directory}: {self._broker_process.lines()[-5:]}")
        route = remoting.route(self.namesrv, "TBW102")
        addresses = [broker["brokerAddrs"].get("0") for broker in route["brokerDatas"]] if route else []
        return self.broker in addresses and _answers(self._broker_process, self.broker)

    def kill9(self) -> None:
        """The broker's crash; the name server goes on."""
        assert self._broker_process is not None, "not started"
        self._broker_process.kill()

    def start_broker(self) -> None:
        """Start it again after `kill9`, on the same store and ports, and wait until it serves."""
        self._broker_process = self._start_broker()
        poll_until(self._is_registered, what=f"route to {self.broker}", timeout_s=READY_TIMEOUT_S)

    def start_other(self) -> None:
        """A second broker at the same name server, which makes no topics by itself."""
        if self._other is None:
            settings = {**OTHER_SETTINGS, "namesrvAddr": self.namesrv}
            self._other = ApacheCluster(self.directory / "other", broker_name=OTHER_NAME, settings=settings)
            self._other.directory.mkdir()
        other = self._other
        other._broker_process = other._start_broker()
        poll_until(
            lambda: other.broker in remoting.brokers(self.namesrv),
            what=f"route to {other.broker}",
            timeout_s=READY_TIMEOUT_S,
        )

    def stop_other(self) -> None:
        assert self._other is not None, "not started"
        self._other.stop()

    def cut_other(self) -> None:
        assert self._other is not None, "not started"
        remoting.unregister_broker(self.namesrv, OTHER_NAME, self._other.broker)

    def stop(self) -> None:
        """SIGTERM, broker first, so that it unregisters and closes its store."""
        if self._other is not None:
            self._other.stop()
        for process in (self._broker_process, self._namesrv_process):
            if process is not None and process.alive:
                process.terminate(timeout_s=60.0)
            elif process is not None:
                process.wait(1.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def mqadmin(arguments: Sequence[str], namesrv: str, *, directory: Path) -> str:
    """Standard output of Apache's mqadmin; `directory` takes its logs. Fails when it exits with an error."""
    directory.mkdir(parents=True, exist_ok=True)
    command = _java(directory, _SMALL_FLAGS, "tools")
    done = subprocess.run(
        [*command, *arguments, "-n", namesrv],
        capture_output=True,
        text=True,
        timeout=ADMIN_TIMEOUT_S,
        check=False,
        cwd=directory,
    )
    if done.returncode != 0:
        raise ProcessFailed(
            f"mqadmin {' '.join(arguments)}: status {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


def admin_command(directory: Path, source: Path) -> list[str]:
    """The command line of a Java source file that may use mqadmin's classes; `directory` takes its logs."""
    return [*_java(directory, _SMALL_FLAGS, "tools")[:-1], str(source)]


def _java(directory: Path, flags: Sequence[str], program: str) -> list[str]:
    # The programs write logs and small state below the home directory they see. As in the stock scripts each
    # has its own logging rules, here taken from its jar.
    places = [
        f"-Duser.home={directory}",
        f"-Drocketmq.home.dir={directory}",
        f"-Drmq.logback.configurationFile=rmq.{program}.logback.xml",
    ]
    return ["java", *flags, *_MODULE_FLAGS, *places, "-cp", server_class_path(), _MAIN_CLASSES[program]]


def _answers(process: LineProcess, address: str) -> bool:
    """Any answer to any request is proof of service; a refused one too."""
    if not process.alive:
        raise ProcessFailed(
            f"pid {process.pid} at {address} ended: {process.lines()[-5:]}, see {process.log}"
        )
    remoting.ask(address, remoting.GET_ROUTE_BY_TOPIC, {"topic": "TBW102"})
    return True


def _write_properties(path: Path, values: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

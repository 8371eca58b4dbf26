"""What the interop tests share: the server under test, Java clients to set on it, who holds which queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers import remoting
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess
from tests.peers.java_client import JavaClient, Serialization
from tests.peers.process import poll_until

Server = HotfireProcess | ApacheCluster


@dataclass(frozen=True)
class Clients:
    """Starts Java clients of one version and header serialisation."""

    version: str
    serialization: Serialization
    directory: Path
    started: list[JavaClient]

    def start(self, *arguments: object) -> JavaClient:
        client = JavaClient(
            *arguments,
            version=self.version,
            serialization=self.serialization,
            directory=self.directory / f"client-{len(self.started)}",
        )
        self.started.append(client)
        return client

    def send(self, server: Server, topic: str, count: int, mode: str, *options: str) -> JavaClient:
        return self.start("send", server.namesrv, topic, count, mode, f"{topic}-producers", *options)

    def send_all(self, server: Server, topic: str, count: int, *options: str, timeout_s: float = 60) -> None:
        """Send, and fail unless every message was acknowledged."""
        sender = self.send(server, topic, count, "async", *options)
        done = sender.wait("complete", timeout_s=timeout_s)
        assert (done["acknowledged"], done["failed"]) == (count, 0), sender.events("failed")[:3]
        sender.finish()

    def push(
        self, server: Server, topic: str, group: str, *options: str, expect: int = 0, timeout_s: int = 180
    ) -> JavaClient:
        """Stays until told to stop; `expect` only decides when it writes its complete event."""
        return self.start("push", server.namesrv, topic, group, expect, timeout_s, "stay=true", *options)


def await_commit(server: Server, topic: str, group: str, ends: list[int]) -> None:
    """Wait until the group has committed everything up to `ends`: no second copy can be on its way."""
    poll_until(
        lambda: remoting.committed_offsets(server.broker, topic, group, len(ends)) == ends,
        what=f"commit of {group} at {ends} in {topic}",
        timeout_s=20,
    )


def held_queues(consumers: Iterable[JavaClient]) -> dict[str, list[int]]:
    """The queues each consumer holds now, by its client id."""
    held: dict[str, list[int]] = {}
    for consumer in consumers:
        client_ids = {event["consumer"]: event["clientId"] for event in consumer.events("started")}
        for event in consumer.events("queues"):
            if event["consumer"] in client_ids:
                held[client_ids[event["consumer"]]] = event["queues"]
    return held


def shared_queues(
    consumers: Sequence[JavaClient], *, members: int, queues: int, timeout_s: float = 30
) -> dict[str, list[int]]:
    """Wait until each of the group's members holds just the queues that the default strategy gives it."""

    def settled() -> dict[str, list[int]] | None:
        held = held_queues(consumers)
        return held if len(held) == members and held == averagely(held, queues) else None

    return poll_until(
        settled, what=f"allocation of {queues} queues to {members} consumers", timeout_s=timeout_s
    )


def averagely(client_ids: Iterable[str], queues: int) -> dict[str, list[int]]:
    """Java's default strategy: consecutive runs in the order of client ids, the first ones longer by one."""
    ordered = sorted(client_ids)
    short, longer = divmod(queues, len(ordered))
    allocated: dict[str, list[int]] = {}
    start = 0
    for position, client_id in enumerate(ordered):
        size = short + (position < longer)
        allocated[client_id] = list(range(start, start + size))
        start += size
    return allocated

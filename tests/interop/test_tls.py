"""Java clients that speak TLS, beside plain ones on the same port: what they send arrives unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.certificates import SERVER_PAIRS
from tests.interop.checks import check_of
from tests.interop.clients import HOTFIRE_ARGUMENTS
from tests.interop.rowrun import run_rows
from tests.peers import jars
from tests.peers.hotfire import HotfireProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ROWS = ("send-sync", "tag-filter", "pull")


def judge(directory: Path, mode: str, clients: Sequence[str]) -> HotfireProcess:
    """Run the rows with all of these clients at once, each of which must see what it would see in plain."""
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run the Java clients")
    settings = SERVER_PAIRS | {"tls.server.mode": mode}
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with (
        HotfireProcess(directory / "server", arguments=(*HOTFIRE_ARGUMENTS, *pairs)) as server,
        ThreadPoolExecutor(len(clients)) as threads,
    ):
        runs = [
            threads.submit(run_rows, client, server.namesrv, ROWS, directory / client) for client in clients
        ]
        for told in runs:
            for row, facts in told.result().items():
                assert facts.failure is None, f"{facts.client} {row}: {facts.failure}"
                check_of(row)(facts)
    return server


def test_java_clients_speak_tls_and_nothing_else(tmp_path: Path) -> None:
    """A server that takes TLS only serves client 5.5.0 as it comes, and 4.9.8 that checks its certificate."""
    server = judge(tmp_path, "enforcing", ["java550any", "java498tls"])
    assert "TLS mode=enforcing" in server.log.read_text()


@pytest.mark.promise(69)
def test_tls_and_plain_java_clients_share_a_port(tmp_path: Path) -> None:
    """Of two clients on one port one speaks TLS and checks the certificate, the other is plain."""
    judge(tmp_path, "permissive", ["java550tls", "java550"])

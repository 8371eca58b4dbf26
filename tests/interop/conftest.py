"""Who is tested: Hotfire, or with HOTFIRE_PEER=apache the reference implementation itself.

The second proves that a test asks for what the Java client really gets from its own broker.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.both import Peer, Told, tell
from tests.interop.clients import APACHE_SETTINGS, HOTFIRE_ARGUMENTS, Server
from tests.peers import jars
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess

_names = itertools.count(1)


def _server(directory: Path, peer: str | None = None) -> Server:
    if (peer or os.environ.get("HOTFIRE_PEER", "hotfire")) == "apache":
        return ApacheCluster(directory, settings=APACHE_SETTINGS)
    return HotfireProcess(directory, arguments=HOTFIRE_ARGUMENTS)


@pytest.fixture(scope="session")
def new_server() -> Callable[..., Server]:
    """A name server and a broker of one's own with their data in a directory, not yet started; Apache's or
    ours as it was asked for."""
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run the Java clients")
    return _server


@pytest.fixture(scope="session")
def server(new_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One running name server and broker for all tests, which use topics and groups of their own."""
    with new_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_names)}"


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Peer], Told]]:
    """What Apache's servers and what ours had to say to everything they are asked.

    Each is asked once, both at the same time: rows wait for timers more than they work.
    """
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's servers and clients")

    places: dict[Peer, Path] = {peer: tmp_path_factory.mktemp(peer) for peer in ("apache", "hotfire")}
    with ThreadPoolExecutor(len(places)) as threads:
        asked = {peer: threads.submit(tell, peer, place) for peer, place in places.items()}
        yield lambda peer: asked[peer].result()

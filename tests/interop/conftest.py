"""Who is tested: Hotfire, or with HOTFIRE_PEER=apache the reference implementation itself.

The second proves that a test asks for what the Java client really gets from its own broker.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.both import Pair, Peer, Told, tell, tell_catalogue, tell_rows
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


def _both(telling: Callable[[Peer, Path], Told], places: pytest.TempPathFactory) -> Pair:
    """What Apache's and what ours tell, both at the same time: rows wait for timers more than they work."""
    with ThreadPoolExecutor(2) as threads:
        apache, hotfire = (
            threads.submit(telling, peer, places.mktemp(peer)) for peer in ("apache", "hotfire")
        )
    return apache.result(), hotfire.result()


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Peer], Told]:
    """What Apache's servers and what ours had to say to everything they are asked."""
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's servers and clients")
    apache, hotfire = _both(tell, tmp_path_factory)
    return {"apache": apache, "hotfire": hotfire}.__getitem__


@pytest.fixture(scope="session")
def told_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Pair]:
    """The same, from the start."""
    return lambda: _both(tell, tmp_path_factory)


@pytest.fixture(scope="session")
def catalogue_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Pair]:
    return lambda: _both(tell_catalogue, tmp_path_factory)


@pytest.fixture(scope="session")
def rows_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Sequence[str]], Pair]:
    """Some rows of a client."""

    def again(client: str, rows: Sequence[str]) -> Pair:
        return _both(lambda peer, place: tell_rows(peer, place, {client: rows}), tmp_path_factory)

    return again

"""Each row of `rows.toml` with each of its clients: what official clients do comes out as it must.

All rows of a client run in one process, before the first of them is judged; three clients at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.interop.checks import check_of
from tests.interop.clients import Server
from tests.interop.rowrun import APACHE_ONLY, CLIENTS, Facts, rows_of, run_rows, table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

ROWS, MINIMUM = table()


# Apache's broker takes a gigabyte: one after the other. Ours run beside each other, rows mostly wait: the two
# with most rows, and the rest in turn. All at once start so slowly that the Go client, which gives a send 3 s
# whatever it is told, sends twice.
CLIENTS_AT_A_TIME = 1 if os.environ.get("HOTFIRE_PEER") == "apache" else 3


@pytest.fixture(scope="session")
def facts_of(
    request: pytest.FixtureRequest,
    new_server: Callable[..., Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], dict[str, Facts]]]:
    """The facts of a client's rows, of those to be judged. Each client has a server of its own, which its
    rows may kill, so that several run at once."""
    place = tmp_path_factory.mktemp("rows")
    out = Path(os.environ.get("HOTFIRE_ROWS_OUT", place))
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = [item.callspec.params for item in items if item.originalname == test_row.__name__]

    def run(client: str) -> dict[str, Facts]:
        rows = [chosen["row"] for chosen in asked if chosen["client"] == client]
        peer = "apache" if client in APACHE_ONLY else None
        with new_server(place / f"{client}-server", peer) as server:
            return run_rows(client, server.namesrv, rows, out / client, broker=server)

    with ThreadPoolExecutor(CLIENTS_AT_A_TIME) as threads:
        wanted = dict.fromkeys(chosen["client"] for chosen in asked)
        running = {client: threads.submit(run, client) for client in wanted}
        yield lambda client: running[client].result()
        for future in running.values():
            future.cancel()


def _parameters() -> list[ParameterSet]:
    return [
        pytest.param(client, row, id=f"{client}-{row}", marks=_claims(client, row))
        for client in CLIENTS
        for row in rows_of(client)
    ]


def _claims(client: str, row: str) -> list[pytest.MarkDecorator]:
    """What a row promises it promises of our broker."""
    promises = () if client in APACHE_ONLY else ROWS[row].promises
    return [pytest.mark.promise(*promises)] if promises else []


PAIRS = _parameters()
judged: set[tuple[str, str]] = set()


@pytest.mark.parametrize(("client", "row"), PAIRS)
def test_row(facts_of: Callable[[str], dict[str, Facts]], client: str, row: str) -> None:
    """The row's title holds."""
    facts = facts_of(client)[row]
    judged.add((client, row))
    assert facts.failure is None, f"{ROWS[row].title}: {facts.failure}"
    check_of(row)(facts)


def test_no_row_went_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Every row was judged, and there are no fewer than the table promises."""
    with capsys.disabled():
        sys.stdout.write(f"\nrows={len(judged)}\n")
    missing = {(pair.values[0], pair.values[1]) for pair in PAIRS} - judged
    assert not missing, f"rows that nobody judged: {sorted(missing, key=str)}"
    assert len(judged) >= MINIMUM, f"{len(judged)} pairs of row and client, at least {MINIMUM} were promised"

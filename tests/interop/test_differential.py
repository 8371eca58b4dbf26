"""Official clients cannot tell the difference: Hotfire answers what Apache's servers answer, field by field.

The list of what may differ is `volatile.toml`. A difference that is not in it is a failure, and so is an
entry of it that no answer needs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hotfire.protocol.requests import REQUESTS
from tests.interop import differential
from tests.interop.both import CLIENTS, Told
from tests.interop.compare import (
    Difference,
    differences,
    read_refusals,
    read_volatile,
    unforgiven,
    unused,
)
from tests.interop.transcripts import beyond_moments, read_moments

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SHOWN_MAX = 200


def _report(left: Sequence[Difference]) -> str:
    shown = [str(one) for one in left[:SHOWN_MAX]]
    return "\n".join([f"{len(left)} differences that nothing forgives", *shown])


def test_every_request_of_the_catalogue_is_answered_as_apache_answers(told: Callable[[str], Told]) -> None:
    """Right, wrong and spoilt requests get the same code, fields, kind of remark and body."""
    found = differences(told("apache").catalogue, told("hotfire").catalogue)
    left = unforgiven(found, read_volatile(), read_refusals())
    assert not left, _report(left)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_row_is_the_same_conversation(told: Callable[[str], Told], client: str) -> None:
    """The client asks both brokers for the same and hears the same, in every situation of every row."""
    theirs, ours = told("apache"), told("hotfire")
    assert not theirs.failures
    assert not ours.failures
    found = differences(theirs.rows[client], ours.rows[client])
    left = beyond_moments(unforgiven(found, read_volatile()), read_moments())
    assert not left, _report(left)


def test_no_entry_of_the_list_is_out_of_use(told: Callable[[str], Told]) -> None:
    """What is no longer different is no longer forgiven."""
    allowed, refusals = read_volatile(), read_refusals()
    theirs, ours = told("apache"), told("hotfire")
    unforgiven(differences(theirs.catalogue, ours.catalogue), allowed, refusals)
    for client in CLIENTS:
        unforgiven(differences(theirs.rows[client], ours.rows[client]), allowed)
    idle = [str(entry) for entry in unused([*allowed, *refusals])]
    assert not idle, "\n".join(idle)


def test_the_catalogue_asks_for_every_request_declared() -> None:
    """A new request gets its cases with it; those a server sends to clients are in the rows."""
    asked = {case.code for case in differential.cases()}
    from_broker = {40, 220, 221, 307, 309, 326, 39}
    assert not sorted(set(REQUESTS) - asked - from_broker)

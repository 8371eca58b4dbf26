"""Official clients cannot tell the difference: Hotfire answers what Apache's servers answer, field by field.

The list of what may differ is `volatile.toml`. A difference that is not in it is a failure if it shows each
time the row is told, and so is an entry of it that no answer needs any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from hotfire.protocol.requests import REQUESTS
from tests.interop import differential
from tests.interop.both import CLIENTS, NOT_COMPARED, Pair, Told, compared_rows
from tests.interop.compare import (
    Difference,
    Refusal,
    Volatile,
    differences,
    read_refusals,
    read_volatile,
    unforgiven,
    unused,
)
from tests.interop.rowrun import table
from tests.interop.transcripts import beyond_moments, read_moments, rows_in, shown_again

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SHOWN_MAX = 200
TOLD_AGAIN_MAX = 2
"""A row that differs is told so often again, to tell a way of ours from a moment."""


def _report(left: Sequence[Difference]) -> str:
    shown = [str(one) for one in left[:SHOWN_MAX]]
    return "\n".join([f"{len(left)} differences that nothing forgives", *shown])


def _catalogue_left(theirs: Told, ours: Told) -> list[Difference]:
    return unforgiven(differences(theirs.catalogue, ours.catalogue), read_volatile(), read_refusals())


def _rows_left(theirs: Told, ours: Told, client: str) -> list[Difference]:
    found = differences(theirs.rows[client], ours.rows[client])
    return beyond_moments(unforgiven(found, read_volatile()), read_moments(client=client))


def test_every_request_of_the_catalogue_is_answered_as_apache_answers(
    told: Callable[[str], Told], catalogue_again: Callable[[], Pair]
) -> None:
    """Right, wrong and spoilt requests get the same code, fields, kind of remark and body."""
    left = _catalogue_left(told("apache"), told("hotfire"))
    if left:
        sys.stdout.write(f"at first: {_report(left)}\n")
        left = shown_again(left, _catalogue_left(*catalogue_again()))
    assert not left, _report(left)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_row_is_the_same_conversation(
    told: Callable[[str], Told], rows_again: Callable[[str, Sequence[str]], Pair], client: str
) -> None:
    """The client asks both brokers for the same and hears the same, in every situation of every row."""
    theirs, ours = told("apache"), told("hotfire")
    assert not theirs.failures
    assert not ours.failures
    left = _rows_left(theirs, ours, client)
    for _ in range(TOLD_AGAIN_MAX):
        if not left:
            break
        sys.stdout.write(f"so far: {_report(left)}\n")
        again = rows_again(client, rows_in(left, compared_rows(client)))
        broken = {name.partition(" ")[2] for each in again for name in each.failures}
        left = shown_again(left, _rows_left(*again, client), broken)
    assert not left, _report(left)


def test_no_entry_of_the_list_is_out_of_use(
    told: Callable[[str], Told], told_again: Callable[[], Pair]
) -> None:
    """What is no longer different is no longer forgiven."""
    allowed, refusals = read_volatile(), read_refusals()
    _use(allowed, refusals, told("apache"), told("hotfire"))
    if unused([*allowed, *refusals]):
        _use(allowed, refusals, *told_again())
    idle = [str(entry) for entry in unused([*allowed, *refusals])]
    assert not idle, "\n".join(idle)


def _use(allowed: Sequence[Volatile], refusals: Sequence[Refusal], theirs: Told, ours: Told) -> None:
    unforgiven(differences(theirs.catalogue, ours.catalogue), allowed, refusals)
    for client in CLIENTS:
        unforgiven(differences(theirs.rows[client], ours.rows[client]), allowed)


def test_a_row_that_is_not_compared_says_why() -> None:
    """Every row is compared with some client or has its reason, and those that need the broker at hand have
    one."""
    rows = table()[0]
    compared = {row for client in CLIENTS for row in compared_rows(client)}
    assert not compared & NOT_COMPARED.keys()
    assert compared | NOT_COMPARED.keys() == rows.keys()
    assert not [row for row in compared if rows[row].at_hand]


def test_the_catalogue_asks_for_every_request_declared() -> None:
    """A new request gets its cases with it; those a server sends to clients are in the rows."""
    asked = {case.code for case in differential.cases()}
    from_broker = {40, 220, 221, 307, 309, 326, 39}
    assert not sorted(set(REQUESTS) - asked - from_broker)

"""Entries of the trace topic, as clients write them."""

from hypothesis import given
from hypothesis import strategies as st

from hotfire.protocol.trace import decode_trace

PUB = "Pub\x011700\x01r\x01shop\x01orders\x01M1\x01pay\x01k\x01h:1\x0112\x013\x010\x01O1\x01true\x02"
BEFORE = "SubBefore\x011710\x01r\x01billing\x01R1\x01M1\x012\x01k\x02"
AFTER = "SubAfter\x01R1\x01M1\x015\x01false\x01k\x014\x011715\x01billing\x02"


def test_entries_tell_what_happened_to_a_message() -> None:
    """Sent, given to a listener, and what became of it, each with its time."""
    sent, began, ended = decode_trace((PUB + BEFORE + AFTER).encode())
    assert (sent.kind, sent.topic, sent.group, sent.time_ms, sent.cost_ms) == (
        "Pub",
        "orders",
        "shop",
        1700,
        3,
    )
    assert sent.is_success is True
    assert (began.group, began.time_ms, began.retries, began.request_id) == ("billing", 1710, 2, "R1")
    assert (ended.message_id, ended.is_success, ended.cost_ms, ended.time_ms) == ("M1", False, 5, 1715)


def test_entries_of_older_clients_lack_their_last_fields() -> None:
    """What they do not say is unknown, and what they do say counts."""
    (ended,) = decode_trace(b"SubAfter\x01R1\x01M1\x015\x01true\x01k\x02")
    assert (ended.is_success, ended.time_ms, ended.group) == (True, None, None)


def test_entries_of_other_kinds_are_stepped_over() -> None:
    """What a newer client may tell is none of ours."""
    assert decode_trace(b"Later\x011\x01r\x01g\x01t\x01M\x01true\x02") == []


@given(body=st.binary(max_size=400))
def test_any_body_ends_in_entries_or_in_nothing(body: bytes) -> None:
    """A trace is a hint: what cannot be read is no error."""
    decode_trace(body)


@given(cut=st.integers(0, 200))
def test_any_part_of_a_body_can_be_read(cut: int) -> None:
    """A body cut short anywhere gives the entries that are whole, or those it can make out."""
    whole = (PUB + BEFORE + AFTER).encode()
    assert len(decode_trace(whole[:cut])) <= 3

"""Errors and bodies that are alike but for what differs from message to message fall together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.spark.pipelines.shapes import SHAPE_CHARACTERS_MAX, body_shape, error_shape, error_text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4711 not found"),
        ("user 'ada' is locked", "user 'grace' is locked"),
        ("10.0.0.7:3306 refused", "10.0.0.12:3307 refused"),
        ("late by 12.5 s at 2026-01-31T10:30:00Z", "late by 7 s at 2025-11-02 08:00:01.5"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 123e4567-e89b-12d3-a456-426614174fff"),
        ("row deadbeef01 is gone", "row 0123456789abcdef is gone"),
        ("java.lang.IllegalState: no\n at a.b(C.java:7)", "java.lang.IllegalState: no\n at x.y(Z.java:9)"),
    ],
)
def test_errors_that_differ_in_particulars_are_one(one: str, other: str) -> None:
    """Numbers, names in quotes, addresses, times and ids do not tell errors apart."""
    assert error_shape(one) == error_shape(other)


def test_errors_that_differ_in_words_are_two() -> None:
    """What is said does tell them apart."""
    assert error_shape("order 17 not found") != error_shape("order 17 not paid")


def test_error_is_where_applications_put_it() -> None:
    """The first property that says something counts; without one nothing is made up."""
    assert error_text({"exception": "boom", "ERROR": ""}) == "boom"
    assert error_text({"KEYS": "k"}) is None


@given(body=st.binary(max_size=300), text=st.text(max_size=300))
def test_any_body_and_any_error_has_a_shape(body: bytes, text: str) -> None:
    """Whatever lies among dead letters, the review goes on."""
    assert body_shape(body)
    assert len(error_shape(text)) <= SHAPE_CHARACTERS_MAX


def test_body_of_deep_json_has_a_shape() -> None:
    """A body made to exhaust the stack does not."""
    assert body_shape(b"[" * 100_000 + b"]" * 100_000).startswith(("text", "json"))


def test_json_bodies_fall_together_by_their_fields() -> None:
    """Orders of one version of a program are one kind, those of another are another."""
    one, other = ({"id": number, "sum": number / 2} for number in (1, 2))
    assert body_shape(json.dumps(one).encode()) == body_shape(json.dumps(other).encode())
    assert body_shape(json.dumps(one).encode()) != body_shape(json.dumps({"id": "1"}).encode())

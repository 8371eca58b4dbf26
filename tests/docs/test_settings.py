"""The tables of the client's guide say what the code says."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import hotfire
from hotfire import Consumer, Producer, PullConsumer, QueueReader, TransactionProducer, errors
from hotfire.client.consumersettings import ConsumerSettings, Pace
from hotfire.client.fetching import FetchLimits
from tests.docs.pages import table

GUIDE = "docs/client.md"
REQUIRED = inspect.Parameter.empty
NAMES = {**{name: getattr(hotfire, name) for name in hotfire.__all__}, "Pace": Pace}


def parameters(make: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults; what takes any names is told elsewhere."""
    found = inspect.signature(make).parameters.values()
    return {one.name: one.default for one in found if one.kind is not inspect.Parameter.VAR_KEYWORD}


def fields(of: type) -> dict[str, Any]:
    return {
        one.name: REQUIRED if one.default is dataclasses.MISSING else one.default
        for one in dataclasses.fields(of)
    }


SETTINGS = {
    "Producer": parameters(Producer),
    "Consumer": {**fields(ConsumerSettings), **parameters(Consumer)},
    "PullConsumer": parameters(PullConsumer),
    "FetchLimits": fields(FetchLimits),
    "QueueReader": parameters(QueueReader),
    "TransactionProducer": parameters(TransactionProducer),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_the_guide_with_its_default(name: str) -> None:
    """A setting that is new, gone, or has another default, is so in the guide too."""
    told = table(GUIDE, f"### {name}")
    assert set(told) == set(SETTINGS[name])
    for setting, default in SETTINGS[name].items():
        cell, meaning = told[setting]
        assert meaning, f"{setting} is not explained"
        if cell == "required":
            assert default is REQUIRED, f"{setting} has the default {default!r}"
        else:
            assert eval(cell.strip("`"), NAMES) == default, f"{setting} is {default!r}"  # noqa: S307


def test_a_consumer_has_one_default_for_each_setting() -> None:
    """Where both Consumer and ConsumerSettings have a default, it is the same."""
    inner, outer = fields(ConsumerSettings), parameters(Consumer)
    assert {name: outer[name] for name in inner.keys() & outer.keys()} == {
        name: inner[name] for name in inner.keys() & outer.keys()
    }


def test_every_error_is_in_the_guide() -> None:
    """Each has a row that says whether another attempt may succeed, as its class does, and what to do."""
    there = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.HotfireError)
        and kind is not errors.HotfireError
    }
    told = table(GUIDE, "## Errors")
    assert set(told) == set(there)
    for name, (retriable, advice) in told.items():
        assert retriable == ("yes" if there[name].retriable else "no"), name
        assert advice, name

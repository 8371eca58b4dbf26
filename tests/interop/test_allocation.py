"""The record our strategies are held against is what the classes of the Java client really give."""

from pathlib import Path

import pytest

from tests.interop.allocation import recorded, shared_by_java

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.promise(114)
def test_the_record_is_what_the_java_classes_give(tmp_path: Path) -> None:
    """Every layout, strategy and client, as the Java client 5.5.0 shares them."""
    assert shared_by_java(tmp_path) == recorded()

"""Pictures of minutes are whole SVG files, whatever was measured."""

from xml.etree import ElementTree

import pytest

from hotfire.spark.pipelines.latencypicture import Minute, Strip, picture

NOON_MS = 1_800_000_000_000 // 60_000 * 60_000


def _minutes(count: int) -> list[Minute]:
    return [
        Minute(NOON_MS + 60_000 * at, 100 * at, {"p50": 1.0 * at, "p90": 2.0 * at, "p99": None, "max": 900.0})
        for at in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 90])
def test_picture_of_any_number_of_minutes_is_drawn(count: int) -> None:
    """From none to many, within its own borders."""
    drawn = picture("orders", "a note", _minutes(count), [Strip("from birth to store", _minutes(count))])
    root = ElementTree.fromstring(drawn)  # noqa: S314  # our own text
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height


def test_names_in_a_picture_are_only_text() -> None:
    """A topic or group with signs of XML in its name draws nothing of its own."""
    drawn = picture("<script>", "a & b", _minutes(2), [Strip("</svg>", _minutes(2))])
    texts = [text.text for text in ElementTree.fromstring(drawn).iter() if text.text]  # noqa: S314
    assert "<script>" in texts
    assert "a & b" in texts

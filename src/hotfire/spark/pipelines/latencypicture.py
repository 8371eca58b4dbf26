"""Minutes of a topic as a picture: how many messages came, and how long they took. SVG, written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hotfire.drawing import INK, PALE, Panel, bar, document, line, nice_above, path, words

WIDTH = 860
LEFT, PANEL_WIDTH, PANEL_HEIGHT, STEP = 90, 750, 150, 230
TOP = 76
BAR_COLOUR = "#5b8db8"
COLOURS = {"p50": "#2e8b57", "p90": "#c9a227", "p99": "#c0392b", "max": "#999"}
MINUTE_MS = 60_000
LEAST_MS, TICKS_MAX = 0.1, 6
"""Half a millisecond and nothing are one on a logarithmic axis: clocks of messages count whole ones."""


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute: when it began, how many messages, and how long they took, by the name of a percentile."""

    at_ms: int
    count: int
    took_ms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Strip:
    """One panel of times: what they are of, and the minutes."""

    title: str
    minutes: Sequence[Minute]


def picture(head: str, note: str, rates: Sequence[Minute], times: Sequence[Strip]) -> str:
    """Rates above, then a panel for each kind of time, over the same minutes."""
    span = _span([rates, *(strip.minutes for strip in times)])
    parts = [words(LEFT, 24, head, "head"), words(LEFT, 42, note, "small")]
    parts += _rates(_panel(0), rates, span)
    for number, strip in enumerate(times, 1):
        parts += _times(_panel(number), strip, span)
    return document(WIDTH, TOP + STEP * (1 + len(times)), parts)


def _panel(number: int) -> Panel:
    return Panel(LEFT, TOP + STEP * number, PANEL_WIDTH, PANEL_HEIGHT)


def _span(strips: Sequence[Sequence[Minute]]) -> tuple[int, int]:
    """First minute, and the end of the last."""
    begins = [one.at_ms for minutes in strips for one in minutes]
    return (min(begins), max(begins) + MINUTE_MS) if begins else (0, MINUTE_MS)


def _rates(panel: Panel, minutes: Sequence[Minute], span: tuple[int, int]) -> list[str]:
    parts = [words(panel.left, panel.top - 8, "messages stored a minute")]
    if not minutes:
        return [*parts, words(panel.left, panel.top + 20, "nothing was stored")]
    top = nice_above(max(one.count for one in minutes))
    for share in (0.0, 0.5, 1.0):
        parts += [
            line(panel.left, panel.y(share), panel.right, panel.y(share), PALE),
            words(panel.left - 8, panel.y(share) + 4, f"{top * share:,.0f}", end=True),
        ]
    width = panel.width * MINUTE_MS / (span[1] - span[0])
    for one in minutes:
        y = panel.y(one.count / top)
        x = panel.x((one.at_ms - span[0]) / (span[1] - span[0]))
        parts.append(bar(x, y, max(width - 1, 0.5), panel.bottom - y, BAR_COLOUR))
    return [*parts, *_clock(panel, span)]


def _times(panel: Panel, strip: Strip, span: tuple[int, int]) -> list[str]:
    parts = [words(panel.left, panel.top - 8, f"{strip.title}, in ms")]
    values = [value for one in strip.minutes for value in one.took_ms.values() if value is not None]
    if not values:
        return [*parts, words(panel.left, panel.top + 20, "nothing is known of it")]
    low = math.floor(math.log10(max(min(values), LEAST_MS)))
    high = max(math.ceil(math.log10(max(*values, LEAST_MS))), low + 1)

    def share(value: float) -> float:
        return min(max((math.log10(max(value, LEAST_MS)) - low) / (high - low), 0.0), 1.0)

    for power in range(low, high + 1):
        y = panel.y((power - low) / (high - low))
        parts += [
            line(panel.left, y, panel.right, y, PALE),
            words(panel.left - 8, y + 4, f"{10.0**power:g}", end=True),
        ]
    at = panel.right
    for name in reversed(COLOURS):
        points = [
            (panel.x((one.at_ms + MINUTE_MS / 2 - span[0]) / (span[1] - span[0])), panel.y(share(value)))
            for one in strip.minutes
            if (value := one.took_ms.get(name)) is not None
        ]
        if len(points) == 1:  # a line of one point cannot be seen
            points = [(points[0][0] - 4, points[0][1]), (points[0][0] + 4, points[0][1])]
        if points:
            at -= 50
            parts += [
                path(points, COLOURS[name]),
                line(at, panel.top - 12, at + 14, panel.top - 12, COLOURS[name]),
            ]
            parts.append(words(at + 18, panel.top - 8, name, "small"))
    return [*parts, *_clock(panel, span)]


def _clock(panel: Panel, span: tuple[int, int]) -> list[str]:
    """Times of day below a panel, in UTC, as the minutes are."""
    parts = [line(panel.left, panel.bottom, panel.right, panel.bottom, INK)]
    minutes = (span[1] - span[0]) // MINUTE_MS
    step = -(-minutes // TICKS_MAX)
    for minute in range(0, minutes + 1, step):
        at_ms = span[0] + minute * MINUTE_MS
        text = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")
        parts.append(words(panel.x(minute / minutes), panel.bottom + 16, text, middle=True))
    return parts

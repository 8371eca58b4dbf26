"""A run as a picture: messages a second over time, and how many took how long. SVG, written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hotfire.cli.benchplan import Outcome, describe
from hotfire.cli.latencies import PERCENTILES, Latencies

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT = 90, 20
RATE_TOP, SPREAD_TOP, PANEL_HEIGHT = 70, 330, 180
BAR_COUNT = 80
INK, PALE, RATE_COLOUR, BAR_COLOUR, MARK_COLOUR = "#333", "#ddd", "#c0392b", "#5b8db8", "#333"

STYLE = f"text{{font:12px sans-serif;fill:{INK}}}.head{{font-size:15px}}.small{{font-size:11px}}"


def picture(outcome: Outcome) -> str:
    """The whole picture, as the text of an SVG file."""
    spread = outcome.deliveries if outcome.plan.mode == "e2e" else outcome.answers
    what = "from send to arrival" if outcome.plan.mode == "e2e" else "of a request"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, describe(outcome).partition(", ")[0], "head"),
        _text(LEFT, 42, describe(outcome).partition(", ")[2], "small"),
        *_rate(outcome.samples),
        *_spread(spread, what),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rate(samples: Sequence[tuple[float, float]]) -> list[str]:
    parts = [_text(LEFT, RATE_TOP - 8, "messages a second, over time in s")]
    if not samples:
        return [*parts, _text(LEFT, RATE_TOP + 20, "nothing was measured")]
    top = nice_above(max(rate for _, rate in samples))
    last_s = max(samples[-1][0], 1e-9)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(RATE_TOP, share)
        parts += [
            _line(LEFT, y, WIDTH - RIGHT, y, PALE),
            _text(LEFT - 8, y + 4, f"{top * share:,.0f}", end=True),
        ]
        parts.append(_text(_x(share), RATE_TOP + PANEL_HEIGHT + 16, f"{last_s * share:.3g}", middle=True))
    points = " ".join(f"{_x(at / last_s):.1f},{_y(RATE_TOP, rate / top):.1f}" for at, rate in samples)
    parts.append(f'<polyline points="{points}" fill="none" stroke="{RATE_COLOUR}" stroke-width="1.5"/>')
    return parts


def _spread(latencies: Latencies, what: str) -> list[str]:
    """Bars over a logarithmic axis: each is as wide as the others, in times."""
    parts = [_text(LEFT, SPREAD_TOP - 24, f"how many took how long {what}, in ms")]
    if not latencies.counts:
        return [*parts, _text(LEFT, SPREAD_TOP + 20, "nothing was measured")]
    low = math.floor(math.log10(max(latencies.counts[0][0], 1000)))
    high = max(math.ceil(math.log10(latencies.counts[-1][1])), low + 1)
    bars = [0] * BAR_COUNT
    for from_ns, to_ns, count in latencies.counts:
        share = (math.log10(max((from_ns + to_ns) / 2, 1)) - low) / (high - low)
        bars[min(max(int(share * BAR_COUNT), 0), BAR_COUNT - 1)] += count
    most = max(bars)
    width = (WIDTH - LEFT - RIGHT) / BAR_COUNT
    for at, count in enumerate(bars):
        if count:
            y = _y(SPREAD_TOP, count / most)
            tall = SPREAD_TOP + PANEL_HEIGHT - y
            parts.append(
                f'<rect x="{LEFT + at * width:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{tall:.1f}" '
                f'fill="{BAR_COLOUR}"/>'
            )
    bottom = SPREAD_TOP + PANEL_HEIGHT
    parts.append(_line(LEFT, bottom, WIDTH - RIGHT, bottom, INK))
    for power in range(low, high + 1):
        parts.append(
            _text(_x((power - low) / (high - low)), bottom + 16, f"{10.0**power / 1e6:g}", middle=True)
        )
    return [*parts, *_marks(latencies, low, high)]


def _marks(latencies: Latencies, low: int, high: int) -> list[str]:
    parts = []
    for index, percent in enumerate(PERCENTILES):
        value_ms = latencies.percentile_ms(percent)
        if value_ms is None:
            continue
        x = _x(min(max((math.log10(value_ms * 1e6) - low) / (high - low), 0.0), 1.0))
        y = SPREAD_TOP + 10 + 13 * index  # names of marks that lie close must not lie upon each other
        parts += [
            _line(x, SPREAD_TOP - 12, x, SPREAD_TOP + PANEL_HEIGHT, MARK_COLOUR, dashed=True),
            _text(x + 4, y, f"p{percent:g} {value_ms:.3g}", "small"),
        ]
    return parts


def nice_above(value: float) -> float:
    """
    >>> nice_above(37_400), nice_above(81), nice_above(0)
    (40000.0, 100.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value * 0.999999)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(top: float, share: float) -> float:
    return top + (1 - share) * PANEL_HEIGHT


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>'


def _text(x: float, y: float, words: str, kind: str = "", *, end: bool = False, middle: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name}{anchor}>{escape(words)}</text>'

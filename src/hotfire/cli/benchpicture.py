"""A run as a picture: messages a second over time, and how many took how long. SVG, written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotfire.cli.benchplan import Outcome, describe
from hotfire.cli.latencies import PERCENTILES, Latencies
from hotfire.drawing import INK, PALE, Panel, bar, document, line, nice_above, path, words

WIDTH, HEIGHT = 860, 560
RATE = Panel(90, 70, 750, 180)
SPREAD = Panel(90, 330, 750, 180)
BAR_COUNT = 80
RATE_COLOUR, BAR_COLOUR, MARK_COLOUR = "#c0392b", "#5b8db8", "#333"


def picture(outcome: Outcome) -> str:
    """The whole picture, as the text of an SVG file."""
    spread = outcome.deliveries if outcome.plan.mode == "e2e" else outcome.answers
    what = "from send to arrival" if outcome.plan.mode == "e2e" else "of a request"
    head, _, rest = describe(outcome).partition(", ")
    parts = [words(RATE.left, 24, head, "head"), words(RATE.left, 42, rest, "small")]
    return document(WIDTH, HEIGHT, [*parts, *_rate(outcome.samples), *_spread(spread, what)])


def _rate(samples: Sequence[tuple[float, float]]) -> list[str]:
    parts = [words(RATE.left, RATE.top - 8, "messages a second, over time in s")]
    if not samples:
        return [*parts, words(RATE.left, RATE.top + 20, "nothing was measured")]
    top = nice_above(max(rate for _, rate in samples))
    last_s = max(samples[-1][0], 1e-9)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = RATE.y(share)
        parts += [
            line(RATE.left, y, RATE.right, y, PALE),
            words(RATE.left - 8, y + 4, f"{top * share:,.0f}", end=True),
        ]
        parts.append(words(RATE.x(share), RATE.bottom + 16, f"{last_s * share:.3g}", middle=True))
    return [*parts, path([(RATE.x(at / last_s), RATE.y(rate / top)) for at, rate in samples], RATE_COLOUR)]


def _spread(latencies: Latencies, what: str) -> list[str]:
    """Bars over a logarithmic axis: each is as wide as the others, in times."""
    parts = [words(SPREAD.left, SPREAD.top - 24, f"how many took how long {what}, in ms")]
    if not latencies.counts:
        return [*parts, words(SPREAD.left, SPREAD.top + 20, "nothing was measured")]
    low = math.floor(math.log10(max(latencies.counts[0][0], 1000)))
    high = max(math.ceil(math.log10(latencies.counts[-1][1])), low + 1)
    bars = [0] * BAR_COUNT
    for from_ns, to_ns, count in latencies.counts:
        share = (math.log10(max((from_ns + to_ns) / 2, 1)) - low) / (high - low)
        bars[min(max(int(share * BAR_COUNT), 0), BAR_COUNT - 1)] += count
    most = max(bars)
    width = SPREAD.width / BAR_COUNT
    for at, count in enumerate(bars):
        if count:
            y = SPREAD.y(count / most)
            parts.append(bar(SPREAD.left + at * width, y, width - 1, SPREAD.bottom - y, BAR_COLOUR))
    parts.append(line(SPREAD.left, SPREAD.bottom, SPREAD.right, SPREAD.bottom, INK))
    for power in range(low, high + 1):
        x = SPREAD.x((power - low) / (high - low))
        parts.append(words(x, SPREAD.bottom + 16, f"{10.0**power / 1e6:g}", middle=True))
    return [*parts, *_marks(latencies, low, high)]


def _marks(latencies: Latencies, low: int, high: int) -> list[str]:
    parts = []
    for index, percent in enumerate(PERCENTILES):
        value_ms = latencies.percentile_ms(percent)
        if value_ms is None:
            continue
        x = SPREAD.x(min(max((math.log10(value_ms * 1e6) - low) / (high - low), 0.0), 1.0))
        y = SPREAD.top + 10 + 13 * index  # names of marks that lie close must not lie upon each other
        parts += [
            line(x, SPREAD.top - 12, x, SPREAD.bottom, MARK_COLOUR, dashed=True),
            words(x + 4, y, f"p{percent:g} {value_ms:.3g}", "small"),
        ]
    return parts

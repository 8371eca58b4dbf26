"""Rows, lag, rate and estimated end: the arithmetic, and the lines that show it."""

import io
import json
from typing import Any

import pytest

from hotfire.spark.progress import BatchFigures, Rate, Shown, StreamFigures, lag_of, line


def offsets(*ends: int) -> str:
    return json.dumps({"T": {"broker-a": {str(at): end for at, end in enumerate(ends)}}})


def report(batch: int, rows: int, end: str, latest: str, at: str = "") -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": at or f"t{batch}",
        "numInputRows": rows,
        "sources": [{"endOffset": end, "latestOffset": latest}],
    }


def test_lag_is_what_lies_behind_the_batch() -> None:
    """Over all queues; one that is new counts whole, and what is no queue does not count."""
    assert lag_of({"endOffset": offsets(5, 9), "latestOffset": offsets(8, 9)}) == 3
    assert lag_of({"endOffset": offsets(5), "latestOffset": offsets(5, 4)}) == 4
    end = json.dumps({"T": {"b": {"0": 5}}, "#from": {"T": {"b": {"0": 1}}}, "#initial": True})
    assert lag_of({"endOffset": end, "latestOffset": json.dumps({"T": {"b": {"0": 7}}})}) == 2


@pytest.mark.parametrize("said", [None, "no JSON", "[1]"])
def test_lag_of_a_source_that_tells_none(said: str | None) -> None:
    """A source that has no such offsets has no lag, and that is no mistake."""
    assert lag_of({"endOffset": said, "latestOffset": offsets(1)}) is None


def test_a_stream_is_added_up_and_its_end_estimated() -> None:
    """Half of the lag in ten seconds: ten more. A report that comes again counts once."""
    figures = StreamFigures()
    figures.take(report(0, 1000, offsets(1000), offsets(9000)), now_s=0.0)
    figures.take(report(1, 4000, offsets(5000), offsets(9000)), now_s=10.0)
    figures.take(report(1, 4000, offsets(5000), offsets(9000)), now_s=10.5)
    assert (figures.rows, figures.batches, figures.lag) == (5000, 2, 4000)
    assert line("archive", figures) == "archive: 5,000 rows, lag 4,000, 400/s, 10 s left"


def test_an_idle_stream_has_no_end_and_counts_no_batches() -> None:
    """Spark reports the batch to come again and again while nothing arrives."""
    figures = StreamFigures()
    figures.take(report(0, 10, offsets(10), offsets(10)), now_s=0.0)
    for number in range(5):
        figures.take(report(1, 0, offsets(10), offsets(10), at=f"idle{number}"), now_s=10.0 * number + 10)
    assert (figures.rows, figures.batches, figures.left_s) == (10, 1, None)
    figures.take(report(1, 7, offsets(17), offsets(17), at="real"), now_s=70.0)
    assert (figures.rows, figures.batches) == (17, 2)


def test_a_lag_that_grows_has_no_estimated_end() -> None:
    """More arrives than is read: no time is promised."""
    figures = StreamFigures()
    figures.take(report(0, 10, offsets(10), offsets(20)), now_s=0.0)
    figures.take(report(1, 10, offsets(20), offsets(60)), now_s=1.0)
    assert figures.left_s is None
    assert line("x", figures) == "x: 20 rows, lag 40, 10/s"


def test_messages_too_late_for_their_window_are_counted() -> None:
    """What a watermark dropped is told, not silently gone."""
    figures = StreamFigures()
    figures.take({**report(0, 5, "", ""), "stateOperators": [{"numRowsDroppedByWatermark": 2}]}, now_s=0.0)
    assert figures.late == 2


def test_a_rate_is_of_the_last_while() -> None:
    """What was quick an hour ago says nothing of now."""
    rate = Rate(over_s=30.0)
    for second in range(0, 100, 10):
        rate.take(second, second * 100.0)
    for second in range(100, 200, 10):
        rate.take(second, 9000.0 + second)
    assert rate.per_second() == pytest.approx(1.0)


def test_a_batch_is_shown_by_rows_or_by_tasks() -> None:
    """By rows where their number is known, by tasks where it is not."""
    known, unknown = BatchFigures(rows_total=1000), BatchFigures()
    for figures in (known, unknown):
        figures.take(0, 0, 8, now_s=0.0)
        figures.take(250, 4, 8, now_s=5.0)
    assert line("x", known) == "x: 250 of 1,000 rows, 50/s, 15 s left"
    assert line("x", unknown) == "x: 250 rows, 4 of 8 tasks, 50/s, 5 s left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_do_not_run_into_the_status() -> None:
    """On a terminal the status is taken off before a line is written, and stays off when cleared."""
    screen = Terminal()
    shown = Shown(screen)
    shown.every_s = 0.0
    shown.status("one")
    shown.say("line")
    shown.status("two")
    shown.clear()
    shown.clear()
    assert screen.getvalue() == "\r\x1b[Kone\r\x1b[Kline\n\r\x1b[Ktwo\r\x1b[K"


def test_elsewhere_the_status_is_a_line_now_and_then() -> None:
    """A log gets whole lines, and not each of them."""
    log = io.StringIO()
    shown = Shown(log)
    assert shown.every_s >= 5
    shown.status("too soon")
    shown.every_s = 0.0
    shown.status("status")
    assert log.getvalue() == "status\n"

"""`make bench-store`, or `python -m bench.store --help`: what the store alone costs, beside its goals."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench import storecases as cases
from bench.meter import machine_seconds
from bench.place import RESULTS, SCRATCH, facts
from bench.storecases import GIB, QUICK, Size, Values


@dataclass(frozen=True)
class Row:
    """One figure. `spread` is the least and the most of the rounds, in the figure's unit."""

    case: str
    goal: str
    measured: str
    spread: str
    met: bool | None
    note: str


@dataclass
class Bench:
    size: Size
    directory: Path
    rows: list[Row]
    raw: dict[str, Values]
    foreign: dict[str, float]
    only: set[str]

    def run(self) -> None:
        for case in (
            self.append, self.twins, self.sync_flush, self.recovery, self.scattered, self.sqlite, self.queues
        ):  # fmt: skip
            name = case.__name__
            if self.only and name not in self.only:
                continue
            began, wall_s, cpu_s = machine_seconds(), time.monotonic(), time.process_time()
            rows = len(self.rows)
            case(self.directory / name)
            spent = machine_seconds() - began - (time.process_time() - cpu_s)
            self.foreign[name] = max(0.0, spent) / ((time.monotonic() - wall_s) * (os.cpu_count() or 1))
            for row in self.rows[rows:]:
                print(
                    f"{row.case}: {row.measured} ({row.spread}) others={self.foreign[name]:.0%}",
                    file=sys.stderr,
                )

    def _row(
        self,
        case: str,
        values: list[float],
        form: Callable[[float], str],
        note: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        value = median(values)
        goal, met = "–", None
        if at_most is not None:
            goal, met = f"≤ {form(at_most)}", value <= at_most
        if at_least is not None:
            goal, met = f"≥ {form(at_least)}", value >= at_least
        spread = f"{form(min(values))} … {form(max(values))}"
        self.rows.append(Row(case, goal, form(value), spread, met, note))

    def append(self, place: Path) -> None:
        values = self.raw["append"] = cases.append(place, self.size)
        self._row(
            "append, 128 B", values["append"], _us,
            "CPU of all threads: record encoded, placed in a turn of 64, written into the page cache by the "
            "flusher, queue entry, one index entry; each turn fills while the flusher has the one "
            "before, as in the broker. The lane's cost for "
            "one-way sends less that of reading their frames", at_most=1.0,
        )  # fmt: skip
        self._row("– with the frame read and the reply made", values["served"], _us, "all of Lane.serve")
        self._row("– reading the frame alone", values["parsed"], _us, "a lane whose turn is full")
        self._row("– each step called from Python", values["by hand"], _us, "encode_record, reserve, append")

    def twins(self, place: Path) -> None:
        encoding, scanning = cases.twins(self.size)
        self.raw |= {"encode": encoding, "scan": scanning}
        note = "CPU per record of 358 B, called from Python, same bytes: {:.2f} µs against {:.2f} µs"
        for name, values in (("encode", encoding), ("scan", scanning)):
            self._row(
                f"{name}, compiled against plain", _ratios(values, "plain", "compiled"), _times,
                note.format(median(values["compiled"]), median(values["plain"])), at_least=10.0,
            )  # fmt: skip
        named = _ratios(scanning, "plain", "compiled, named")
        self._row("– scan, entries named for Python's use", named, _times, "scan.scan_records")

    def sync_flush(self, place: Path) -> None:
        for per_turn, body in ((64, 20), (64, 794), (1024, 794)):
            name = f"{per_turn} × {body + cases.RECORD_BYTES - cases.BODY_BYTES} B"
            values, turn_bytes = cases.sync_flush(
                place / str(per_turn * body), self.size, per_turn=per_turn, body_bytes=body
            )
            self.raw[f"sync flush {name}"] = values
            bare = median(values["bare"])
            for case, until, which, at_most in (
                (f"sync flush, {name}, against bare", "the bell", "store", 1.3),
                ("– to visible entries", "visible entries", "visible", None),
            ):
                store, rates = median(values[which]), sorted(_ratios(values, which, "bare"))
                quarters = f"{_times(rates[len(rates) // 4])} … {_times(rates[len(rates) * 3 // 4])}"
                goal = "–" if at_most is None else f"≤ {_times(at_most)}"
                met = None if at_most is None else store / bare <= at_most
                note = (
                    f"wall, {turn_bytes >> 10} KiB a turn, from submit to {until}: {store:.0f} µs against "
                    f"{bare:.0f} µs of pwrite and fdatasync, medians of {len(rates)} turns; spread: quarters"
                )
                self.rows.append(Row(case, goal, _times(store / bare), quarters, met, note))

    def recovery(self, place: Path) -> None:
        walls, cpus, records = cases.recovery(place, self.size)
        self.raw |= {"recovery, wall": walls, "recovery, CPU": cpus}
        scaled = f"{records:,} records, {self.size.recovery_bytes / GIB:g} GiB, from memory, all derived anew"
        self._row("recovery, wall per GiB", _seconds(walls["store"]), _s, scaled, at_most=2.0)
        self._row("– CPU per GiB", _seconds(cpus["store"]), _s, "Store.open, all threads")

    def scattered(self, place: Path) -> None:
        values = self.raw["scattered"] = cases.scattered(place, self.size)
        self._row(
            "one log against a file each", _ratios(values, "a file each", "one log"), _times,
            f"wall per message, turns of 64 over 1000 files, each file touched synced: "
            f"{median(values['one log']):.1f} µs against {median(values['a file each']):.0f} µs",
        )  # fmt: skip

    def sqlite(self, place: Path) -> None:
        walls, cpus = cases.sqlite(place, self.size)
        self.raw |= {"sqlite, wall": walls, "sqlite, CPU": cpus}
        for name, values in (("wall", walls), ("CPU", cpus)):
            self._row(
                f"SQLite against our store, {name}", _ratios(values, "sqlite", "store"), _times,
                f"per message, 128 B, durable turns of 64: {median(values['store']):.1f} µs against "
                f"{median(values['sqlite']):.1f} µs; WAL, synchronous=FULL, by queue and offset and by key",
            )  # fmt: skip

    def queues(self, place: Path) -> None:
        firsts, walls, cpus = cases.queues(place, self.size)
        self.raw |= {"queues, first entries": firsts, "queues, wall": walls, "queues, CPU": cpus}
        few, many = walls
        for name, values in (("rate", walls), ("rate by CPU", cpus)):
            self._row(
                f"{many} against {few}, {name}", _ratios(values, few, many), _times,
                f"SYNC_FLUSH, ticks and their syncs too, per message: {median(values[many]):.1f} µs against "
                f"{median(values[few]):.1f} µs",
                at_least=0.8,
            )  # fmt: skip
        for name, first in firsts.items():
            self._row(f"– first entry of each of {name}", first, _us, "directory, file and map made")


def _us(value: float) -> str:
    return f"{value:,.2f} µs" if value < 100 else f"{value:,.0f} µs"


def _s(value: float) -> str:
    return f"{value:.2f} s"


def _times(value: float) -> str:
    return f"×{value:.2f}" if value < 100 else f"×{value:.0f}"


def _seconds(values: list[float]) -> list[float]:
    return [value / 1e6 for value in values]


def _ratios(values: Values, above: str, below: str) -> list[float]:
    return [a / b for a, b in zip(values[above], values[below], strict=True)]


def markdown(rows: list[Row], foreign: dict[str, float], facts: dict[str, str]) -> str:
    lines = ["# Bench of the store", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += [
        "| case | goal | measured | least … most | met | what is counted |",
        "|---|---|---|---|---|---|",
    ]
    words = {None: "–", True: "yes", False: "**no**"}
    lines += [
        f"| {row.case} | {row.goal} | {row.measured} | {row.spread} | {words[row.met]} | {row.note} |"
        for row in rows
    ]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in foreign.items())
    lines += ["", f"Share of the machine that other programs and the kernel's own threads used: {shares}."]
    return "\n".join(lines) + "\n"


def _facts(size: Size) -> dict[str, str]:
    return {**facts(), "runs": f"medians of {size.rounds} rounds, contenders in turn within each"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What the store alone costs, beside its goals")
    parser.add_argument("--quick", action="store_true", help="a taste: smaller, fewer rounds")
    parser.add_argument("--only", action="append", metavar="CASE", help="append, twins, sync_flush, ...")
    chosen = parser.parse_args(arguments)
    size = QUICK if chosen.quick else Size()
    said = _facts(size)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        bench = Bench(size, Path(temporary), [], {}, {}, set(chosen.only or ()))
        bench.run()
    text = markdown(bench.rows, bench.foreign, said)
    print(text)
    results = SCRATCH if arguments else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    raw = {
        "facts": said,
        "rows": [asdict(row) for row in bench.rows],
        "foreign": bench.foreign,
        "raw": bench.raw,
    }
    (results / "store-latest.json").write_text(json.dumps(raw, indent=1) + "\n")
    (results / "store-latest.md").write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

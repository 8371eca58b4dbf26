"""A query over topics, archives and stores: a table for people, CSV or Parquet for the rest.

What the query calls by a name that `--table` does not give is a topic of that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.places import TIME_HELP, Place, start_place
from hotfire.spark.options import count
from hotfire.spark.pipelines.options import Common, ending, option, starting

if TYPE_CHECKING:
    from hotfire.spark.job import Job

KINDS = ("topic", "archive", "store", "parquet")
FORMATS = ("table", "csv", "parquet")


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    query: str | None = option("the query, in Spark's SQL", None, metavar="SQL", flags=("-q", "--query"))
    file: str | None = option("a file with the query, instead", None, metavar="FILE", flags=("-f", "--file"))
    table: tuple[str, ...] = option(
        "what a name in the query means: NAME=topic:TOPIC, archive:DIR (of the pipeline archive), store:DIR "
        "(of a broker, without it) or parquet:PATH; may be given again. Any other name is a topic",
        (), metavar="NAME=KIND:PLACE",
    )  # fmt: skip
    from_: Place = option(
        f"earliest or a time: only what was stored from then on; {TIME_HELP}", Place("earliest"),
        read=start_place, metavar="PLACE",
    )  # fmt: skip
    to: Place | None = option(
        "a time: only what was stored before it", None, read=start_place, metavar="PLACE"
    )
    allow_loss: bool = option("go on when messages to be read are there no more", False)
    format: str = option("what comes out", "table", choices=FORMATS)
    out: str | None = option(
        "where to: a file for CSV, a directory for Parquet; standard output when not given",
        None,
        metavar="PATH",
    )
    rows: int = option("a table shows so many rows", 100, read=count, metavar="N")

    @property
    def text(self) -> str:
        """The query, wherever it is."""
        if self.file is None:
            return self.query or ""
        try:
            return Path(self.file).read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"file {self.file}: {error.strerror}") from None

    def tables(self) -> dict[str, tuple[str, str]]:
        """Kind and place by name."""
        named: dict[str, tuple[str, str]] = {}
        for word in self.table:
            name, _, said = word.partition("=")
            kind, colon, place = said.partition(":")
            if not name or not colon or not place or kind not in KINDS:
                raise ConfigError(f"--table {word}: expected NAME=KIND:PLACE, with one of {', '.join(KINDS)}")
            if name in named:
                raise ConfigError(f"--table {word}: {name} is given twice")
            named[name] = kind, place
        return named

    def live(self, topic: str) -> dict[str, str]:
        """The options of format `hotfire`."""
        return {
            **self.connection(),
            "subscribe": topic,
            **starting(self.from_),
            **ending(self.to),
            "failOnDataLoss": str(not self.allow_loss).lower(),
            "pushdown": "true",
        }

    def at_rest(self, directory: str) -> dict[str, str]:
        """The options of format `hotfire-store`."""
        said = {"path": directory, "damaged": "skip" if self.allow_loss else "fail", "pushdown": "true"}
        return {**said, **{f"{name}Timestamp": str(time_ms) for name, time_ms in self.times().items()}}

    def times(self) -> dict[str, int]:
        """The span's ends in ms, where they are times."""
        both = {"starting": self.from_, "ending": self.to}
        return {name: one.value for name, one in both.items() if one is not None and one.kind == "time"}


OPTIONS = Options


def check(options: Options) -> None:
    from hotfire.spark.sourceoptions import SourceOptions

    if (options.query is None) == (options.file is None):
        raise ConfigError("give the query: either --query SQL or --file FILE")
    if not options.text.strip():
        raise ConfigError("the query is empty")
    if options.format == "parquet" and options.out is None:
        raise ConfigError("--format parquet: give --out DIR")
    if options.format == "table" and options.out is not None:
        raise ConfigError(
            f"--out {options.out}: a table goes to standard output; add --format csv or parquet"
        )
    options.tables()
    SourceOptions.read(options.live("checked"), streaming=False)


def run(job: Job[Options]) -> int:
    from hotfire.spark.queries import Tables
    from hotfire.spark.results import to_csv, to_table

    options = job.options
    with job.batch("sql"):
        found = Tables(job.spark, options).query(options.text.strip().rstrip(";"))
        if options.format == "parquet":
            assert options.out is not None, "check wants one"
            found.write.mode("errorifexists").parquet(options.out)
            return 0
        if options.format == "table":
            shown = to_table(found, options.rows)
        else:
            to_csv(found, options.out)
            return 0
    print(shown)
    return 0

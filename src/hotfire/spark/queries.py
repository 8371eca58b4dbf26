"""Names in a query -> what they stand for, and nothing read that the query does not use.

Spark prunes no columns of a source written in Python, and a body that is not looked at is most of a message.
So a query is planned twice: once over all columns, to see which of them its plan asks each source for, and
then over those alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from hotfire.errors import ConfigError
from hotfire.spark.schema import BY_NAME, COLUMNS, Column, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TABLES_MAX = 64
_PASSED_ON = {"Filter", "Sample", "GlobalLimit", "LocalLimit", "Sort"}
"""Nodes that give what they get, and look at it: what is above them decides."""
_DECIDE = {"Project", "Aggregate"}
"""Nodes that ask for exactly what their expressions name."""


class Meant(Protocol):
    """What a name stands for, as the pipeline's options say."""

    def tables(self) -> dict[str, tuple[str, str]]: ...

    def live(self, topic: str) -> dict[str, str]: ...

    def at_rest(self, directory: str) -> dict[str, str]: ...

    def times(self) -> dict[str, int]: ...


class Tables:
    """The names of one query."""

    def __init__(self, spark: SparkSession, meant: Meant) -> None:
        self._spark = spark
        self._meant = meant
        self._loads: dict[str, Callable[[tuple[Column, ...]], DataFrame]] = {}

    def query(self, text: str) -> DataFrame:
        """The query's rows, yet to be read; ConfigError for one that Spark does not understand."""
        for name, (kind, place) in self._meant.tables().items():
            self._name(name, kind, place)
        found = self._understood(text)
        pruned = [name for name in self._loads if self._narrow(name, found)]
        return self._understood(text) if pruned else found

    def _understood(self, text: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        for _ in range(TABLES_MAX):
            try:
                return self._spark.sql(text)
            except ParseException as error:
                raise ConfigError(f"the query: {_first(error)}") from None
            except AnalysisException as error:
                topic = self._unknown(error)
                if topic is None or topic in self._loads:
                    raise ConfigError(f"the query: {_first(error)}") from None
                self._name(topic, "topic", topic)
        raise ConfigError(f"the query names over {TABLES_MAX} topics")

    def _unknown(self, error: Any) -> str | None:
        """The name that Spark did not find."""
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            return None
        said = str((error.getMessageParameters() or {}).get("relationName", ""))
        plain = re.fullmatch(r"`((?:[^`]|``)+)`", said)
        return plain[1].replace("``", "`") if plain else None

    def _name(self, name: str, kind: str, place: str) -> None:
        from hotfire.spark.archiving import read_archive

        spark, meant = self._spark, self._meant
        loads: dict[str, Callable[[tuple[Column, ...]], DataFrame]] = {
            "topic": lambda columns: _load(spark, "hotfire", meant.live(place), columns),
            "store": lambda columns: _load(spark, "hotfire-store", meant.at_rest(place), columns),
        }
        if kind in loads:
            self._loads[name] = loads[kind]
            loads[kind](COLUMNS).createOrReplaceTempView(_quoted(name))
        elif kind == "archive":
            found = read_archive(spark, place, archive_schema())
            _within(found, meant.times()).createOrReplaceTempView(_quoted(name))
        else:
            spark.read.parquet(place).createOrReplaceTempView(_quoted(name))

    def _narrow(self, name: str, found: DataFrame) -> bool:
        wanted = used_columns(found)
        if wanted is None or len(wanted) == len(COLUMNS):
            return False
        # without any, rows are still counted: by something cheap
        columns = tuple(column for column in COLUMNS if column.name in wanted) or (BY_NAME["queueOffset"],)
        self._loads[name](columns).createOrReplaceTempView(_quoted(name))
        return True


def _load(
    spark: SparkSession, format_name: str, options: dict[str, str], columns: tuple[Column, ...]
) -> DataFrame:
    return spark.read.format(format_name).options(**options).schema(spark_schema(columns)).load()


def _within(messages: DataFrame, times_ms: dict[str, int]) -> DataFrame:
    from pyspark.sql import functions as f

    stored = f.col("storeTimestamp")
    if "starting" in times_ms:
        messages = messages.where(stored >= f.timestamp_millis(f.lit(times_ms["starting"])))
    if "ending" in times_ms:
        messages = messages.where(stored < f.timestamp_millis(f.lit(times_ms["ending"])))
    return messages


def archive_schema() -> StructType:
    """As the pipeline `archive` writes it; topic and date are directories, whose types Spark would guess."""
    from pyspark.sql.types import DateType, StructField, StructType

    columns = [field for field in spark_schema().fields if field.name != "topic"]
    topic = [field for field in spark_schema().fields if field.name == "topic"]
    return StructType([*columns, *topic, StructField("date", DateType())])


def used_columns(found: DataFrame) -> set[str] | None:
    """The names of columns that a query's plan asks its Python sources for; None when that is all of them."""
    plan: Any = found._jdf.queryExecution().optimizedPlan()
    used: set[str] = set()
    for wanted in _asked(plan, None):
        if wanted is None:
            return None
        used |= wanted
    return used


def _asked(plan: Any, above: set[str] | None) -> Iterator[set[str] | None]:
    """For each Python source below a node, what of it is used; `above` is what the nodes over it use."""
    children = [plan.children().apply(at) for at in range(plan.children().size())]
    kind = str(plan.nodeName())
    if not children:
        if kind in ("RelationV2", "DataSourceV2ScanRelation") or "Python" in str(plan.getClass().getName()):
            yield above
        return
    passed: set[str] | None = None
    if kind in _DECIDE:
        passed = _names(plan)
    elif kind in _PASSED_ON and above is not None:
        passed = above | _names(plan)
    for child in children:
        yield from _asked(child, passed)


def _names(plan: Any) -> set[str]:
    each = plan.references().toSeq()
    return {str(each.apply(at).name()) for at in range(each.size())}


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

"""The columns of a message, once: their names, order, and types at Spark and in Arrow.

The order is that of the compiled core's `Columns`, which fills them; column i is bit i of what it is asked
for. Spark knows no pruning for sources written in Python, so a schema given by the user is it: any of these
columns, in any order, and nothing else is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hotfire.errors import ConfigError

Kind = Literal["text", "bytes", "int", "long", "time", "map"]

SPARK_TYPES: dict[Kind, DataType] = {
    "text": StringType(),
    "bytes": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "time": TimestampType(),
    "map": MapType(StringType(), StringType(), valueContainsNull=True),
}
ARROW_TYPES: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "int": pa.int32(),
    "long": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),
    "map": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    says: str
    nullable: bool = False


COLUMNS = (
    Column("topic", "text", "the topic"),
    Column("brokerName", "text", "the broker the queue is on"),
    Column("queueId", "int", "the queue's number at its broker"),
    Column("queueOffset", "long", "the message's place in its queue"),
    Column("msgId", "text", "the producer's unique id, or the offset id of a message without one"),
    Column("keys", "text", "the keys, separated by blanks", nullable=True),
    Column("tags", "text", "the tag", nullable=True),
    Column("body", "bytes", "what the application sent; compressed bodies are given uncompressed"),
    Column("properties", "map", "every property, the broker's and the client's own among them"),
    Column("bornTimestamp", "time", "when the producer made it"),
    Column("storeTimestamp", "time", "when the broker stored it"),
    Column("reconsumeTimes", "int", "how often it was given back by a consumer"),
    Column("sysFlag", "int", "RocketMQ's flags of the record"),
    Column("commitLogOffset", "long", "the record's place in the broker's log"),
)
BY_NAME = {column.name: column for column in COLUMNS}
DAMAGE = Column("damage", "text", "why the record cannot be read; null for sound ones", nullable=True)
"""Only where damaged records are kept as rows: format `hotfire-store` with `damaged=keep`."""


def spark_schema(columns: tuple[Column, ...] = COLUMNS) -> StructType:
    return StructType([StructField(one.name, SPARK_TYPES[one.kind], nullable=True) for one in columns])


def chosen(schema: StructType, known: tuple[Column, ...] = COLUMNS) -> tuple[Column, ...]:
    """The columns a user's schema asks for, in its order; ConfigError names what we do not have."""
    by_name = {column.name.lower(): column for column in known}
    picked = []
    for field in schema.fields:
        column = by_name.get(field.name.lower())
        if column is None:
            raise ConfigError(
                f"column {field.name} is not one of a message: {', '.join(one.name for one in known)}"
            )
        if field.dataType != SPARK_TYPES[column.kind]:
            raise ConfigError(
                f"column {column.name} is {SPARK_TYPES[column.kind].simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading"
            )
        picked.append(column)
    if not picked:
        raise ConfigError("the schema names no column")
    return tuple(picked)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(one.name, ARROW_TYPES[one.kind], nullable=True) for one in columns])


def wanted_bits(columns: tuple[Column, ...]) -> int:
    """What the core's `Columns` is asked to fill."""
    return sum(1 << COLUMNS.index(one) for one in set(columns) if one != DAMAGE)

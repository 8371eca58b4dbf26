"""What the sink refuses when a query is planned: told with what would do, before anything is sent."""

from typing import Any

import pytest
from pyspark.sql import types as t

from hotfire.errors import ConfigError
from hotfire.spark.sink import HotfireStreamWriter, HotfireWriter
from hotfire.spark.sinkrows import SINK_COLUMNS

TYPES: dict[str, t.DataType] = {
    "array<int>": t.ArrayType(t.IntegerType()),
    "array<string>": t.ArrayType(t.StringType()),
    "bigint": t.LongType(),
    "binary": t.BinaryType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
    "map<string,string>": t.MapType(t.StringType(), t.StringType()),
    "smallint": t.ShortType(),
    "string": t.StringType(),
    "timestamp": t.TimestampType(),
}


def planned(ddl: str, *, overwrite: bool = False, streaming: bool = False, **options: str) -> Any:
    given = {"nameServers": "127.0.0.1:1", "topic": "orders", **options}
    kind = HotfireStreamWriter if streaming else HotfireWriter
    named = [column.split() for column in ddl.split(", ")]
    schema = t.StructType([t.StructField(name, TYPES[said]) for name, said in named])
    return kind({name: value for name, value in given.items() if value}, schema, overwrite)


@pytest.mark.parametrize(
    "ddl",
    [
        "body binary",
        "value string",
        "BODY string, Key string, tag string",
        "body string, keys array<string>, properties map<string,string>",
        "value binary, key binary, queueId bigint, brokerName string",
        "body string, delayLevel smallint, shardingKey string, topic string",
        "body string, delayMs bigint, deliverAt timestamp",
        "body string, DELAYMS int, DeliverAt bigint",
    ],
)
def test_columns_may_have_these_names_and_types(ddl: str) -> None:
    """Ours or Kafka's, in any case."""
    planned(ddl)
    planned(ddl, streaming=True)


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("body string, colour string", "column colour is not one a sink takes: body, topic, keys"),
        ("tags string", "no column body"),
        ("body int", "column body is int, and must be binary or string; cast it"),
        ("body string, tags boolean", "column tags is boolean, and must be string"),
        ("body string, keys array<int>", "array<int>"),
        ("body string, properties map<string,int>", "map<string,int>"),
        ("body string, value string", "columns body and value are the same"),
        ("body string, queueOffset bigint", "queueOffset is the broker's to give; leave it out"),
        ("body string, deliverAt string", "column deliverAt is string, and must be timestamp or int; cast"),
        ("body string, delayMs string", "column delayMs is string, and must be int; cast it"),
        ("body string, brokerName string", "there is none"),
    ],
)
def test_other_columns_are_refused(ddl: str, problem: str) -> None:
    """With their name, and the names and types of those that may be."""
    with pytest.raises(ConfigError, match=problem):
        planned(ddl)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topics": "x"}, "no option topics; did you mean topic"),
        ({"topic": ""}, "Set the option topic, or add a column topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker"),
        ({"delivery": "exactly-once"}, "effectively-once or at-least-once"),
        ({"requestBytes": "5m"}, "4194304"),
        ({"requestRows": "40000"}, "32767"),
        ({"label": "two words"}, "without blanks"),
        ({"orderBy": "key"}, "no column keys"),
        ({"producerGroup": "a b"}, "a b"),
    ],
)
def test_options_are_checked(options: dict[str, str], problem: str) -> None:
    """With the name, the value and what would do."""
    with pytest.raises(ConfigError, match=problem):
        planned("body string", **options)


def test_a_streams_batches_have_names_already() -> None:
    """A label would make one of all of them."""
    with pytest.raises(ConfigError, match="for batches"):
        planned("body string", streaming=True, label="x")


def test_a_log_is_not_overwritten() -> None:
    """Neither by a batch nor by a stream."""
    for streaming in (False, True):
        with pytest.raises(ConfigError, match="only appended to"):
            planned("body string", overwrite=True, streaming=streaming)


def test_no_two_columns_share_a_name() -> None:
    """Each name, and each other name, is one column's."""
    names = [name.lower() for one in SINK_COLUMNS for name in (one.name, *one.also)]
    assert len(names) == len(set(names))

"""Options: what cannot be meant is refused before anything is asked of a cluster, with what would do."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.options import size, span_s
from hotfire.spark.schema import COLUMNS, arrow_schema, chosen, spark_schema, wanted_bits
from hotfire.spark.sourceoptions import SourceOptions


@pytest.mark.parametrize(
    ("given", "streaming", "says"),
    [
        ({}, True, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": "{}"}, True, "subscribe and assign"),
        ({"subscribe": " , "}, True, "names with commas"),
        ({"subscribePattern": "("}, True, "a regular expression"),
        ({"subscribe": "a", "startingOffset": "latest"}, True, "did you mean startingOffsets?"),
        ({"subscribe": "a", "startingOffsets": "soon"}, True, "earliest, latest or offsets by queue"),
        ({"subscribe": "a", "startingOffsets": '{"a": 1}'}, True, "at a an object is wanted"),
        ({"subscribe": "a", "startingOffsets": "latest"}, False, "behind which a batch has nothing"),
        ({"subscribe": "a", "endingOffsets": "latest"}, True, "a stream has no end"),
        (
            {"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "latest"},
            True,
            "exclude each other",
        ),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, True, "true or false"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, True, "a number of 1 or more"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, True, "a time like 15m"),
        ({"subscribe": "a", "pushdown": "true"}, True, "for batches"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(ConfigError, match=".*" + says.replace("?", r"\?").replace("(", r"\(")):
        SourceOptions.read(given, streaming=streaming)


def test_names_are_read_without_regard_to_case_and_defaults_stand() -> None:
    """Spark hands names over in lower case."""
    options = SourceOptions.read(
        {"subscribe": "a, b", "maxoffsetspertrigger": "5", "TAGS": "x || y"}, streaming=True
    )
    assert options["subscribe"] == ("a", "b")
    assert options["maxOffsetsPerTrigger"] == 5
    assert options.tags == ("x", "y")
    assert options["failOnDataLoss"] is True
    assert options.group == "TOOLS_CONSUMER"


def test_a_place_from_a_querys_progress_is_taken_as_it_is() -> None:
    """What Spark reports of a batch's end has marks of ours in it."""
    said = '{"a": {"b": {"0": 7}}, "#from": {"a": {"b": {"0": 1}}}, "#parts": 2}'
    options = SourceOptions.read({"subscribe": "a", "startingOffsets": said}, streaming=True)
    assert options["startingOffsets"] == {MessageQueue("a", "b", 0): 7}


def test_times_and_sizes_have_units() -> None:
    assert [span_s(value) for value in ("15m", "2 s", "250ms", "10")] == [900.0, 2.0, 0.25, 0.01]
    assert [size(value) for value in ("64m", "1GB", "10k", "7")] == [64 << 20, 1 << 30, 10240, 7]


def test_any_choice_of_columns_is_honoured_and_others_are_refused_by_name() -> None:
    whole = spark_schema()
    assert chosen(whole) == COLUMNS
    some = StructType([whole["body"], whole["queueId"]])
    assert [column.name for column in chosen(some)] == ["body", "queueId"]
    assert arrow_schema(chosen(some)).names == ["body", "queueId"]
    assert wanted_bits(chosen(some)) == 1 << 7 | 1 << 2
    with pytest.raises(ConfigError, match=r"column value is not one of a message: topic, brokerName"):
        chosen(StructType([StructField("value", StringType())]))
    with pytest.raises(ConfigError, match="column queueId is int, not bigint; cast it"):
        chosen(StructType([StructField("queueId", LongType())]))

"""The tables of the guide to Spark say what the code says."""

from hotfire.spark.schema import COLUMNS, SPARK_TYPES
from hotfire.spark.sinkoptions import SINK_OPTIONS
from hotfire.spark.sinkrows import SINK_COLUMNS
from hotfire.spark.sourceoptions import SOURCE_OPTIONS
from hotfire.spark.storeoptions import STORE_OPTIONS
from tests.docs.pages import table

GUIDE = "docs/spark.md"


def written(default: object) -> str:
    if default is None:
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_every_column_is_in_the_guide_with_its_type() -> None:
    told = table(GUIDE, "### Columns")
    assert told == {one.name: [SPARK_TYPES[one.kind].simpleString(), one.says] for one in COLUMNS}


def test_every_option_is_in_the_guide_with_its_default() -> None:
    told = table(GUIDE, "### Options of the source")
    assert told == {one.name: [written(one.default), one.says] for one in SOURCE_OPTIONS}


def test_every_column_of_the_sink_is_in_the_guide() -> None:
    told = table(GUIDE, "### Columns of the sink")
    assert told == {
        "` or `".join((one.name, *one.also)): [" or ".join(one.kinds), one.says] for one in SINK_COLUMNS
    }


def test_every_option_of_the_sink_is_in_the_guide_with_its_default() -> None:
    told = table(GUIDE, "### Options of the sink")
    assert told == {one.name: [written(one.default), one.says] for one in SINK_OPTIONS}


def test_every_option_of_store_directories_is_in_the_guide_with_its_default() -> None:
    told = table(GUIDE, "### Options of hotfire-store")
    assert told == {one.name: [written(one.default), one.says] for one in STORE_OPTIONS}

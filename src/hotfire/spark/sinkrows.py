"""The columns a sink takes, once; and rows of an Arrow batch as the compiled core takes them.

What is wrong with a schema is told when the query is planned, before anything is sent. Arrow's buffers go to
the core as they are, but for conversions that Arrow does itself: no row becomes an object here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from hotfire.errors import ConfigError, HotfireError
from hotfire.spark.schema import BY_NAME

TEXT, BYTES, TEXTS, NUMBER, MAP = "string", "binary", "array<string>", "int", "map<string,string>"
TIME = "timestamp"


class RowRefused(HotfireError):
    """A row that cannot be a message."""


@dataclass(frozen=True, slots=True)
class SinkColumn:
    name: str
    also: tuple[str, ...]
    """Other names it may have: Kafka's connector's, and the likely slips."""
    kinds: tuple[str, ...]
    says: str


SINK_COLUMNS = (
    SinkColumn("body", ("value",), (BYTES, TEXT), "what is sent; required, and never null or empty"),
    SinkColumn("topic", (), (TEXT,), "the topic, where the option `topic` is not given"),
    SinkColumn("keys", ("key",), (TEXT, TEXTS, BYTES), "the keys, separated by blanks or as an array"),
    SinkColumn("tags", ("tag",), (TEXT,), "the tag"),
    SinkColumn("properties", (), (MAP,), "properties by name; those of the system are left out"),
    SinkColumn("queueId", (), (NUMBER,), "the queue to send to, and to no other"),
    SinkColumn("brokerName", (), (TEXT,), "the broker of `queueId`, where the topic is on several"),
    SinkColumn("delayLevel", (), (NUMBER,), "how much later to deliver it, as a level of the broker's"),
    SinkColumn("delayMs", (), (NUMBER,), "how much later to deliver it, in ms; nothing or less: at once"),
    SinkColumn("deliverAt", (), (TIME, NUMBER), "when to deliver it, a time or ms since 1970"),
    SinkColumn("shardingKey", (), (TEXT,), "rows of the same go to the same queue, in their order"),
)
_BY_NAME = {name.lower(): one for one in SINK_COLUMNS for name in (one.name, *one.also)}


def _kind(data_type: DataType) -> str:
    if isinstance(data_type, StringType):
        return TEXT
    if isinstance(data_type, BinaryType):
        return BYTES
    if isinstance(data_type, IntegralType):
        return NUMBER
    if isinstance(data_type, TimestampType):
        return TIME
    if isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StringType):
        return TEXTS
    if isinstance(data_type, MapType) and _kind(data_type.keyType) == _kind(data_type.valueType) == TEXT:
        return MAP
    return data_type.simpleString()


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column of a DataFrame is what. Plain values: they travel to the executors."""

    places: dict[str, int]

    @classmethod
    def read(cls, schema: StructType, *, has_topic: bool, orders_by_key: bool) -> Layout:
        places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            column = _known(field.name)
            if column.name in places:
                raise ConfigError(
                    f"columns {schema.fields[places[column.name]].name} and {field.name} are the same"
                )
            if _kind(field.dataType) not in column.kinds:
                raise ConfigError(
                    f"column {field.name} is {field.dataType.simpleString()}, and must be "
                    f"{' or '.join(column.kinds)}; cast it"
                )
            places[column.name] = place
        if "body" not in places:
            raise ConfigError("there is no column body, or value: it is what is sent")
        if not has_topic and "topic" not in places:
            raise ConfigError("where to? Set the option topic, or add a column topic")
        if "brokerName" in places and "queueId" not in places:
            raise ConfigError("a column brokerName says where a queueId is, and there is none")
        if orders_by_key and "keys" not in places:
            raise ConfigError("option orderBy is key, and there is no column keys")
        return cls(places)


def _known(name: str) -> SinkColumn:
    column = _BY_NAME.get(name.lower())
    if column is not None:
        return column
    known = ", ".join(one.name for one in SINK_COLUMNS)
    if name in BY_NAME:
        raise ConfigError(f"column {name} is the broker's to give; leave it out. A sink takes {known}")
    raise ConfigError(f"column {name} is not one a sink takes: {known}")


class SinkRows:
    """The rows of one Arrow batch."""

    def __init__(self, batch: pa.RecordBatch, layout: Layout) -> None:
        self.count = batch.num_rows
        self._batch = batch
        self._layout = layout
        self.body = self._text("body", pa.binary())
        self.properties = self._map()
        self.keys = self._keys()
        self.tags = self._text("tags") if "tags" in layout.places else self._property("TAGS")
        self.topic = self._text("topic")
        self.broker_name = self._text("brokerName")
        self.sharding_key = self._text("shardingKey")
        self.queue_id = self._number("queueId")
        self.delay_level = self._number("delayLevel")
        self.delay_ms = self._number("delayMs")
        self.deliver_at_ms = self._time_ms("deliverAt")
        self.columns = (
            self.count,
            text_column(self.body),
            text_column(self.keys),
            text_column(self.tags),
            map_column(self.properties),
        )
        """For `core.encode_rows`."""

    def identity(self, *, by_keys: bool) -> tuple[tuple[Any, ...], Any]:
        """For `core.RowIds`: the texts and the map that make a row what it is."""
        if by_keys:
            absent = pa.nulls(self.count, pa.string())
            return (text_column(absent if self.keys is None else self.keys),), None
        counted = (self.queue_id, self.delay_level, self.delay_ms, self.deliver_at_ms)
        numbers = [None if one is None else one.cast(pa.string()) for one in counted]
        arrays = (self.keys, self.tags, self.body, self.broker_name, self.sharding_key, *numbers)
        return tuple(text_column(one) for one in arrays if one is not None), self.columns[4]

    # --- conversions, by Arrow ---------------------------------------------------------------------

    def _column(self, name: str) -> Any:
        place = self._layout.places.get(name)
        if place is None:
            return None
        array = self._batch.column(place)
        return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array

    def _text(self, name: str, to: Any = None) -> Any:
        array = self._column(name)
        return None if array is None else _sound(name, array, pa.string() if to is None else to)

    def _number(self, name: str) -> Any:
        array = self._column(name)
        return None if array is None else array.cast(pa.int64())

    def _time_ms(self, name: str) -> Any:
        """ms since 1970; the part of one is counted as a whole, for nothing is delivered early."""
        array = self._column(name)
        if array is None or not pa.types.is_timestamp(array.type):
            return self._number(name)
        return pc.divide(pc.add(array.cast(pa.timestamp("us")).cast(pa.int64()), 999), 1000)

    def _map(self) -> Any:
        array = self._column("properties")
        return None if array is None else _sound("properties", array, pa.map_(pa.string(), pa.string()))

    def _property(self, name: str) -> Any:
        """Where there is no column for it, what a source read comes along with the properties."""
        return None if self.properties is None else pc.map_lookup(self.properties, name, "first")

    def _keys(self) -> Any:
        array = self._column("keys")
        if array is None:
            return self._property("KEYS")
        if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
            return _sound("keys", array, pa.string())
        lists = _sound("keys", array, pa.list_(pa.string()))
        words = lists.flatten()
        unfit = pc.or_kleene(pc.equal(words, ""), pc.match_substring(words, " "))
        if words.null_count or pc.any(unfit).as_py():
            for row, keys in enumerate(lists.to_pylist()):
                if keys and not all(key and " " not in key for key in keys):
                    raise ValueError(row, f"its keys are {keys!r:.80}: keys travel joined by blanks")
        return pc.binary_join(lists, " ")


def _sound(name: str, array: Any, to: Any) -> Any:
    """The column as this type. A string of Spark's may hold any bytes: those that were cast to it."""
    try:
        cast = array.cast(to)
        if to != pa.binary():
            cast.validate(full=True)
        return cast
    except pa.ArrowInvalid as error:
        raise RowRefused(f"column {name} cannot be read as {to}: {error}; send such bytes as body") from None


def text_column(array: Any) -> Any:
    """What the core takes of a text column."""
    if array is None:
        return None
    if not len(array):
        return None, bytes(4), None, 0  # Arrow may leave out the offsets of nothing
    valid, offsets, data = array.buffers()
    return valid, offsets, data, array.offset


def map_column(array: Any) -> Any:
    if array is None:
        return None
    valid, offsets = array.buffers()[:2]
    names, values = array.keys, array.items
    return valid, offsets, array.offset, len(names), text_column(names), text_column(values)

"""Rows become the messages a producer would make of them: compiled, plain and one by one, the same bytes."""

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire import core
from hotfire.client.batches import prepare_batches
from hotfire.client.checks import RESERVED_PROPERTIES
from hotfire.client.choosing import by_key_hash
from hotfire.core import plain_rows
from hotfire.model import Message, MessageQueue
from hotfire.protocol.batch import decode_batch
from hotfire.protocol.record import parse_properties

pytestmark = pytest.mark.core

TWINS = [plain_rows, core] if core.COMPILED else [plain_rows]
DROPPED = tuple(sorted(name.encode() for name in RESERVED_PROPERTIES))
PREFIX = b"7F0000010001000000010000ABCD"
ROOM = 1 << 20

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
words = texts.map(lambda text: text.replace(" ", "_"))
properties = st.dictionaries(texts.filter(lambda name: name.strip() and name not in RESERVED_PROPERTIES),
                             texts.filter(str.strip), max_size=16)  # fmt: skip
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=40),
            "keys": st.none() | st.lists(words, max_size=3).map(" ".join),
            "tags": st.none() | words.filter(lambda tag: "||" not in tag) | st.just(""),
            "properties": st.none() | properties,
        }
    ),
    min_size=1,
    max_size=12,
)


def text_column(array: Any) -> tuple[Any, Any, Any, int]:
    valid, offsets, data = array.buffers()
    return valid, offsets, data, array.offset


def map_column(array: Any) -> tuple[Any, Any, int, int, Any, Any]:
    valid, offsets = array.buffers()[:2]
    names, values = array.keys, array.items
    return valid, offsets, array.offset, len(names), text_column(names), text_column(values)


def columns(rows: list[dict[str, Any]], skip: int = 0) -> tuple[int, Any, Any, Any, Any]:
    """As Arrow has them; the first `skip` rows are cut off, and stay in the buffers."""
    padded = [
        *({"body": b"cut off", "keys": "k", "tags": "t", "properties": {"a": "b"}} for _ in range(skip)),
        *rows,
    ]
    body = pa.array([row["body"] for row in padded], pa.binary())[skip:]
    keys = pa.array([row["keys"] for row in padded], pa.string())[skip:]
    tags = pa.array([row["tags"] for row in padded], pa.string())[skip:]
    held = [None if row["properties"] is None else list(row["properties"].items()) for row in padded]
    maps = pa.array(held, pa.map_(pa.string(), pa.string()))[skip:]
    return len(rows), text_column(body), text_column(keys), text_column(tags), map_column(maps)


def numbers(values: list[int]) -> bytes:
    return struct.pack(f"={len(values)}i", *values)


def encode(twin: Any, given: Any, *, rows: Any = None, at: int = 0, end: int | None = None, ids: Any = None,
           counter: int = 0, bytes_max: int = ROOM, count_max: int = 1000) -> Any:  # fmt: skip
    last = given[0] if end is None else end
    return twin.encode_rows(given, rows, at, last, ids, PREFIX, counter, DROPPED, bytes_max, count_max)


def outcome(twin: Any, *args: Any, **named: Any) -> Any:
    try:
        return encode(twin, *args, **named)
    except ValueError as error:
        return "refused", error.args


def messages(rows: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(
            "T",
            row["body"],
            tag=row["tags"] or None,
            keys=tuple(row["keys"].split(" ")) if row["keys"] else (),
            properties=row["properties"] or {},
        )
        for row in rows
    ]


@given(rows=rows_of, skip=st.integers(0, 9), counter=st.integers(0, 0xFFFF))
@settings(max_examples=300)
def test_rows_are_the_messages_of_a_batch(rows: list[dict[str, Any]], skip: int, counter: int) -> None:
    """Every row becomes, byte for byte, what a producer sends for such a message."""

    def ids() -> Iterator[str]:
        yield from (f"{PREFIX.decode()}{(counter + 1 + n) & 0xFFFF:04X}" for n in range(100))

    next_id = ids()
    (batch,) = prepare_batches(messages(rows), lambda: next(next_id), body_bytes_max=ROOM)
    for twin in TWINS:
        assert encode(twin, columns(rows, skip), counter=counter) == (
            batch.body, len(rows), (counter + len(rows)) & 0xFFFF
        )  # fmt: skip


@given(
    rows=rows_of,
    data=st.data(),
    bytes_max=st.integers(0, 400),
    count_max=st.integers(0, 8),
)
def test_twins_choose_the_same_rows(
    rows: list[dict[str, Any]], data: Any, bytes_max: int, count_max: int
) -> None:
    """Under any choice of rows and limits both take the same ones, and never more than fits."""
    chosen = data.draw(st.lists(st.integers(-1, len(rows)), max_size=10))
    at = data.draw(st.integers(0, len(chosen)))
    ids = data.draw(st.binary(min_size=16 * len(rows), max_size=16 * len(rows)))
    how = {"rows": numbers(chosen), "at": at, "end": len(chosen), "ids": ids}
    how |= {"bytes_max": bytes_max, "count_max": count_max}
    results = [outcome(twin, columns(rows), **how) for twin in TWINS]
    assert all(one == results[0] for one in results)
    if results[0][0] != "refused":
        body, place, _ = results[0]
        taken = decode_batch(body)
        assert len(body) <= bytes_max
        assert len(taken) == place - at <= count_max
        for row, message in zip(chosen[at:place], taken, strict=True):
            assert message.body == rows[row]["body"]
            given = ids[16 * row : 16 * row + 16]
            if any(given):
                assert parse_properties(message.properties)["UNIQ_KEY"] == given.hex().upper()


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"body": None}, "body is null"),
        ({"body": b""}, "body is empty"),
        ({"tags": "a||b"}, "separates tags"),
        ({"tags": "a\x01"}, "bytes 1 and 2"),
        ({"keys": "a\x02"}, "bytes 1 and 2"),
        ({"properties": {"a": ""}}, "a name and a value"),
        ({"properties": {"": "a"}}, "a name and a value"),
        ({"properties": {"a": "x\x01"}}, "bytes 1 and 2"),
        ({"properties": {"a": "x" * 32_760}}, "32767"),
    ],
)
def test_what_cannot_be_a_message_is_refused_by_its_row(twin: Any, row: dict[str, Any], problem: str) -> None:
    """The row's number and the reason are told, and nothing is encoded in its place."""
    sound = {"body": b"x", "keys": None, "tags": None, "properties": None}
    with pytest.raises(ValueError, match=problem) as caught:
        encode(twin, columns([sound, {**sound, **row}, sound]))
    assert caught.value.args[0] == 1


@pytest.mark.parametrize("twin", TWINS)
def test_a_property_may_come_once(twin: Any) -> None:
    """Spark may be told to let maps keep a name twice; which value is meant, nobody knows."""
    maps = pa.array([[("a", "1"), ("b", "2"), ("a", "3")]], pa.map_(pa.string(), pa.string()))
    given = (1, text_column(pa.array([b"x"], pa.binary())), None, None, map_column(maps))
    with pytest.raises(ValueError, match="twice"):
        encode(twin, given)


@pytest.mark.parametrize("twin", TWINS)
def test_the_systems_own_properties_and_nulls_are_left_out(twin: Any) -> None:
    """What a source read with a message's properties does not travel twice."""
    held = {
        "UNIQ_KEY": "old",
        "KEYS": "old",
        "TAGS": "old",
        "DELAY": "3",
        "WAIT": "false",
        "mine": "kept",
        "no": None,
    }
    row = {"body": b"x", "keys": "new", "tags": None, "properties": held}
    body, _, _ = encode(twin, columns([row]))
    found = parse_properties(decode_batch(body)[0].properties)
    assert found == {"KEYS": "new", "WAIT": "true", "mine": "kept", "UNIQ_KEY": PREFIX.decode() + "0001"}


@pytest.mark.parametrize("twin", TWINS)
def test_many_properties_keep_javas_order(twin: Any) -> None:
    """Also where the map of a Java client would have grown several times."""
    row = {
        "body": b"x",
        "keys": "k",
        "tags": "t",
        "properties": {f"name-{n}": str(n + 1) for n in range(200)},
    }
    (batch,) = prepare_batches(messages([row]), lambda: PREFIX.decode() + "0001", body_bytes_max=ROOM)
    assert encode(twin, columns([row]))[0] == batch.body


@given(rows=rows_of, data=st.data())
@settings(max_examples=200)
def test_lengths_that_contradict_each_other_are_refused(rows: list[dict[str, Any]], data: Any) -> None:
    """Whatever the buffers say, both refuse the same rows, and neither reads past a buffer's end."""
    count, *held = columns(rows)
    which = data.draw(st.integers(0, 3))
    column = list(held[which])
    kind = data.draw(
        st.sampled_from(["short offsets", "short data", "wild offsets", "short validity", "first"])
    )
    if kind == "short offsets":
        column[1] = bytes(column[1])[: data.draw(st.integers(0, 4 * count + 3))]
    elif kind == "wild offsets":
        wild = bytearray(column[1])
        struct.pack_into(
            "=i", wild, 4 * data.draw(st.integers(0, count)), data.draw(st.integers(-2, 1 << 20))
        )
        column[1] = bytes(wild)
    elif kind == "short validity":
        column[0] = b""
    elif kind == "first":
        column[2 if which == 3 else 3] = data.draw(st.integers(-3, 3))
    elif which < 3:
        whole = bytes(column[2] or b"")
        column[2] = whole[: data.draw(st.integers(0, len(whole)))]
    held[which] = tuple(column)
    results = [outcome(twin, (count, *held)) for twin in TWINS]
    assert all(one == results[0] for one in results)


@given(keys=st.lists(st.none() | st.text(max_size=12), max_size=10), queues=st.integers(1, 40))
def test_rows_are_spread_as_java_spreads_them(keys: list[str | None], queues: int) -> None:
    """Messages of one key go to the queue that a Java client's selector takes for it."""
    there = tuple(MessageQueue("T", "b", number) for number in range(queues))
    expected = [-1 if key is None else by_key_hash(there, Message("T", b"x"), key).queue_id for key in keys]
    column = text_column(pa.array(keys, pa.string()))
    for twin in TWINS:
        assert twin.spread_rows(len(keys), column, None, 0, len(keys), queues) == numbers(expected)


# --- ids -----------------------------------------------------------------------------------------------

KEY, TIME = bytes(range(16)), b"TIME"


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (2, "8177228da4a45dc7fca38bdef60affe4"),
    ],
)
def test_the_hash_is_the_published_one(size: int, digest: str) -> None:
    """SipHash's own vectors, of 128 bits."""
    assert plain_rows.siphash_128(KEY, bytes(range(size))).hex() == digest


def made_ids(twin: Any, given: Any, *, keyed: bool = False, rows: list[int] | None = None) -> list[bytes]:
    count, body, keys, tags, maps = given
    out = bytearray(16 * count)
    end = count if rows is None else len(rows)
    texts_given = (keys,) if keyed else (keys, tags, body)
    chosen = None if rows is None else numbers(rows)
    twin.RowIds(KEY, TIME).run(count, texts_given, None if keyed else maps, chosen, 0, end, keyed, out)
    return [bytes(out[16 * row : 16 * row + 16]) for row in range(count)]


@given(rows=rows_of, skip=st.integers(0, 9), keyed=st.booleans(), data=st.data())
@settings(max_examples=200)
def test_ids_follow_from_what_is_in_the_rows(
    rows: list[dict[str, Any]], skip: int, keyed: bool, data: Any
) -> None:
    """The same rows in another order have the same ids, each its own; and both twins give them."""
    if keyed:  # of a key there is one
        doubled = list({row["keys"] or number: row for number, row in enumerate(rows)}.values())
    else:
        doubled = rows + data.draw(st.permutations(rows))
    ids = made_ids(plain_rows, columns(doubled), keyed=keyed)
    for twin in TWINS:
        assert made_ids(twin, columns(doubled, skip), keyed=keyed) == ids
    shuffled = data.draw(st.permutations(doubled))
    again = made_ids(core, columns(list(shuffled)), keyed=keyed)
    real = [one for one in ids if any(one)]
    assert sorted(again) == sorted(ids)
    assert len(set(real)) == len(real)
    assert all(one[10:14] == TIME for one in real)
    if keyed:
        assert [any(one) for one in ids] == [bool(row["keys"]) for row in doubled]
    else:
        content = dict(zip(ids, doubled, strict=True))
        assert content == dict(zip(again, shuffled, strict=True))


@pytest.mark.parametrize("twin", TWINS)
def test_a_key_that_comes_again_is_refused_where_keys_make_the_ids(twin: Any) -> None:
    """Which of two rows with the same keys was sent before nobody could tell: the second is refused."""
    row = {"body": b"x", "keys": "k", "tags": None, "properties": None}
    ids = twin.RowIds(KEY, TIME)
    for rows in ([row, {**row, "keys": None}, {**row, "keys": None}], [{**row, "keys": "other"}]):
        count, _, keys, _, _ = columns(rows)
        ids.run(count, (keys,), None, None, 0, count, True, bytearray(16 * count))
    for long, told in (("k", "k"), ("é" * 90, "é" * 50)):
        again = [{**row, "keys": "new" + long}, {**row, "keys": long}, {**row, "keys": long}]
        count, _, keys, _, _ = columns(again)
        with pytest.raises(ValueError, match=rf"same keys, {told}, came before it.*uniqueBy=row") as refused:
            ids.run(count, (keys,), None, None, 0, count, True, bytearray(16 * count))
        assert refused.value.args[0] == (1 if long == "k" else 2)
    further = [*({**row, "keys": f"one of {number}"} for number in range(100)), {**row, "keys": "one of 70"}]
    count, _, keys, _, _ = columns(further)
    with pytest.raises(ValueError, match=r"same keys, one of 70, came") as refused:
        ids.run(count, (keys,), None, None, 0, count, True, bytearray(16 * count))
    assert refused.value.args[0] == 100


@pytest.mark.parametrize("twin", TWINS)
def test_ids_go_on_over_several_runs(twin: Any) -> None:
    """A row that comes again in a later Arrow batch is the second of its kind, also among many."""
    row = {"body": b"x", "keys": None, "tags": None, "properties": None}
    many = [{**row, "body": b"%d" % number} for number in range(3000)]
    ids = twin.RowIds(KEY, TIME)
    seen: list[bytes] = []
    for rows in (many, [row], many, [row]):
        count, body, keys, tags, maps = columns(rows)
        out = bytearray(16 * count)
        ids.run(count, (keys, tags, body), maps, None, 0, count, False, out)
        seen += [bytes(out[16 * place : 16 * place + 16]) for place in range(count)]
    assert len(set(seen)) == len(seen)
    assert seen == made_ids(plain_rows, columns([*many, row, *many, row]))


@pytest.mark.parametrize("twin", TWINS)
def test_many_rows_that_come_again_have_ids_of_their_own(twin: Any) -> None:
    """Each of 3000 rows three times, in two orders: 9000 ids, the same ones as the twin's."""
    texts = [f"row {n % 3000}" for n in range(9000)]
    given, turned = (
        columns([{"body": text.encode(), "keys": None, "tags": None, "properties": None} for text in one])
        for one in (texts, texts[4000:] + texts)
    )
    found = made_ids(twin, given)
    assert len(set(found)) == 9000
    assert set(found) < set(made_ids(twin, turned))
    assert found == made_ids(plain_rows, given)


@pytest.mark.parametrize("twin", TWINS)
def test_ids_differ_by_place_and_by_what_is_missing(twin: Any) -> None:
    """Another key gives other ids; nothing, and an empty text, are not the same."""
    row = {"body": b"x", "keys": None, "tags": None, "properties": None}
    rows = [row, {**row, "keys": ""}, {**row, "tags": ""}, {**row, "properties": {}}, {**row, "keys": "x"}]
    assert len(set(made_ids(twin, columns(rows)))) == len(rows)
    out = bytearray(16)
    _, body, keys, tags, maps = columns([row])
    twin.RowIds(bytes(16), TIME).run(1, (keys, tags, body), maps, None, 0, 1, False, out)
    assert bytes(out) != made_ids(twin, columns([row]))[0]


@pytest.mark.parametrize("twin", TWINS)
def test_too_little_room_is_refused(twin: Any) -> None:
    """Ids and messages are written into what is there, or not at all."""
    given = columns([{"body": b"x", "keys": None, "tags": None, "properties": None}] * 2)
    with pytest.raises(ValueError, match="less room"):
        twin.RowIds(KEY, TIME).run(2, (given[1],), None, None, 0, 2, False, bytearray(31))
    with pytest.raises(ValueError, match="fewer ids"):
        encode(twin, given, ids=bytes(31))
    with pytest.raises(ValueError, match="rows 0 to 3 of 2"):
        encode(twin, given, end=3)
    with pytest.raises(ValueError, match="16 bytes"):
        twin.RowIds(b"short", TIME)

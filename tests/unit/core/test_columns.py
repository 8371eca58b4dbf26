"""Records -> buffers of Arrow columns: both twins alike, and alike what the client makes of them."""

import dataclasses
import random
import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.client.unpacking import unpack_messages
from hotfire.core import plain_columns
from hotfire.errors import RecordInvalid
from hotfire.model import MessageQueue
from hotfire.protocol.record import (
    Host,
    Record,
    SysFlag,
    decode_record,
    encode_blank,
    encode_properties,
    encode_record,
)
from tests.unit.core.columns import ALL, INT64_MAX, INT64_MIN, NAMES, TWINS, rows_of, taken
from tests.unit.core.made import Guarded, int32, int64, records

pytestmark = pytest.mark.core
HERE = Host(bytes((127, 0, 0, 1)), 10911)
SIX = Host(bytes(range(16)), 10911)
PLAIN = Record("topic", 3, b"body", 1, HERE, 2, HERE, b"TAGS\x01a\x02KEYS\x01k l\x02", queue_offset=7)
EVERYTHING: tuple[Any, ...] = (None, -1, INT64_MIN, INT64_MAX)
ENTRY = struct.Struct(">qiq")


@pytest.fixture(params=TWINS)
def make(request: pytest.FixtureRequest) -> Any:
    return TWINS[request.param]


def log_of(wanted: list[Record], crcs: list[bool], base: int = 0) -> tuple[bytes, list[int]]:
    """The records one behind the other, from log offset `base`; and where each begins."""
    data, places = b"", []
    for record, append_crc in zip(wanted, crcs, strict=True):
        places.append(len(data))
        placed = dataclasses.replace(record, physical_offset=base + len(data))
        data += encode_record(placed, append_crc=append_crc)
    return data, places


def run_both(
    data: bytes, *what: Any, wanted: int = ALL, guarded: Guarded | None = None, **limits: int
) -> tuple[int, tuple[int, Any]]:
    """Where both stop, and what both gathered."""
    buffer = data if guarded is None else guarded.holding(data)
    twins = [make(wanted, b"broker-a", **limits) for make in TWINS.values()]
    places = [twin.run(buffer, 0, len(data), *(what or EVERYTHING)) for twin in twins]
    assert places[0] == places[1]
    assert twins[0].rows == twins[1].rows
    assert twins[0].size == twins[1].size
    compiled, plain = (taken(twin) for twin in twins)
    assert compiled == plain
    return places[0], compiled


def client_rows(data: bytes, at: int) -> list[dict[str, Any]]:
    """What the client makes of the one record at `at`, in the columns' words."""
    record = decode_record(data, at)
    queue = MessageQueue(record.topic, "broker-a", record.queue_id)
    return [
        {
            "topic": message.topic.encode(),
            "broker_name": b"broker-a",
            "queue_id": message.queue.queue_id,
            "queue_offset": message.queue_offset,
            "msg_id": message.message_id.encode(),
            "keys": keys if (keys := message.properties.get("KEYS")) is None else keys.encode(),
            "tags": message.tag if message.tag is None else message.tag.encode(),
            "body": message.body,
            "properties": {name.encode(): text.encode() for name, text in message.properties.items()},
            "born": max(INT64_MIN, min(message.born_timestamp_ms * 1000, INT64_MAX)),
            "stored": max(INT64_MIN, min(message.store_timestamp_ms * 1000, INT64_MAX)),
            "reconsume_times": message.reconsume_times,
            "sys_flag": record.sys_flag,
            "log_offset": record.physical_offset,
        }
        for message in unpack_messages(data[at : at + record.size], queue)
    ]


named = st.dictionaries(
    st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "Ä")), st.text(min_size=1, max_size=9), max_size=5
).map(lambda pairs: {name: text.replace("\x01", "").replace("\x02", "") for name, text in pairs.items()})


# 2⁶³ - 1 is behind every limit
below_the_last = records().map(
    lambda record: dataclasses.replace(
        record,
        queue_offset=min(record.queue_offset, INT64_MAX - 1),
        store_timestamp=min(record.store_timestamp, INT64_MAX - 1),
    )
)


@st.composite
def ordinary(draw: st.DrawFn) -> Record:
    record = draw(below_the_last)
    return dataclasses.replace(
        record,
        properties=encode_properties(draw(named)) if draw(st.booleans()) else record.properties,
        sys_flag=record.sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | 0xA),
    )


# --- what is gathered ------------------------------------------------------------------------------


@given(st.lists(ordinary() | below_the_last, max_size=5), st.data())
def test_both_gather_what_the_client_unpacks(wanted: list[Record], data: st.DataObject) -> None:
    """IPv4 and IPv6, short and long topics, any properties: same buffers, same rows as messages."""
    crcs = data.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted)))
    log, places = log_of(wanted, crcs, data.draw(st.integers(0, 2**50)))
    stopped, took = run_both(log, guarded=Guarded())
    assert stopped in (*places, len(log))
    expected = [row for at in places if at < stopped for row in client_rows(log, at)]
    assert rows_of(took) == expected


def test_ordinary_ones_are_all_taken() -> None:
    """Nothing that a broker stores every day takes the plain road."""
    long_topic = dataclasses.replace(PLAIN, topic="t" * 200)
    v6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    six = dataclasses.replace(PLAIN, born_host=SIX, store_host=SIX, sys_flag=v6)
    born_six = dataclasses.replace(PLAIN, born_host=SIX, sys_flag=SysFlag.BORN_HOST_V6)
    bare = dataclasses.replace(PLAIN, properties=b"", body=b"")
    committed = dataclasses.replace(PLAIN, sys_flag=SysFlag.TRANSACTION_COMMIT)
    kinds = [PLAIN, long_topic, six, born_six, bare, committed]
    log, places = log_of(kinds * 2, [False] * 6 + [True] * 6)
    stopped, took = run_both(log)
    assert stopped == len(log)
    assert rows_of(took) == [row for at in places for row in client_rows(log, at)]
    assert (
        rows_of(took)[2]["msg_id"]
        == (bytes(range(16)) + b"\0\0\x2a\x9f" + places[2].to_bytes(8)).hex().upper().encode()
    )
    assert rows_of(took)[6]["properties"] == {b"TAGS": b"a", b"KEYS": b"k l"}, "the checksum is none of them"


@pytest.mark.parametrize(
    "unusual",
    [
        {"sys_flag": SysFlag.COMPRESSED | SysFlag.ZLIB},
        {"sys_flag": SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP},
        {"sys_flag": SysFlag.NEED_UNWRAP},
        {"sys_flag": SysFlag.TRANSACTION_PREPARED},
        {"sys_flag": SysFlag.TRANSACTION_ROLLBACK},
        {"properties": b"a\x01b\x02a\x01c\x02"},
        {"properties": b"a\x01\xff\x02"},
        {"properties": b"".join(b"%d\x01v\x02" % i for i in range(65))},
        {"properties": b"__CRC32#\x01123\x02"},
    ],
    ids=str,
)
def test_unusual_ones_are_left_to_the_caller(unusual: dict[str, Any]) -> None:
    """Before it everything is taken; it and what is behind it is not."""
    log, places = log_of([PLAIN, dataclasses.replace(PLAIN, **unusual), PLAIN], [False] * 3)
    stopped, took = run_both(log)
    assert (stopped, took[0]) == (places[1], 1)


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    """Broken text in properties stops nobody who wants none of them."""
    log, _ = log_of([dataclasses.replace(PLAIN, properties=b"a\x01\xff\x02")], [False])
    body = 1 << NAMES.index("body")
    assert run_both(log, wanted=body)[0] == len(log)
    assert run_both(log, wanted=body | 1 << NAMES.index("tags"))[0] == 0
    assert run_both(log, *EVERYTHING, b"a", wanted=body)[0] == 0


@given(st.lists(ordinary(), max_size=4), st.integers(0, ALL))
def test_any_columns_may_be_asked_for(wanted: list[Record], bits: int) -> None:
    """Each column is what it is among all the others; none asked for leaves the number of rows."""
    log, _ = log_of(wanted, [True] * len(wanted))
    stopped, took = run_both(log, wanted=bits)
    all_stopped, all_took = run_both(log)
    assert stopped >= all_stopped
    kept = [NAMES[i] for i in range(len(NAMES)) if bits >> i & 1]
    expected = [{name: row[name] for name in kept} for row in rows_of(all_took)]
    assert rows_of(took, bits)[: len(expected)] == expected


def test_only_what_is_wanted_is_taken(make: Any) -> None:
    """Topic, queue, offsets, tags and store times each choose; the rest is stepped over, unusual or not."""
    chosen = [
        dataclasses.replace(
            PLAIN,
            topic=f"topic{i % 2}",
            queue_id=i % 3,
            queue_offset=i,
            store_timestamp=1000 + i,
            properties=b"TAGS\x01t%d\x02" % (i % 4),
        )
        for i in range(24)
    ]
    other = dataclasses.replace(PLAIN, topic="other", sys_flag=SysFlag.COMPRESSED)
    log, _ = log_of([other, *chosen, other], [False] * 26)

    def offsets(*what: Any, **limits: int) -> list[int]:
        columns = make(1 << NAMES.index("queue_offset"), b"", **limits)
        assert columns.run(log, 0, len(log), *what) == len(log)
        return [row["queue_offset"] for row in rows_of(taken(columns), 1 << NAMES.index("queue_offset"))]

    ours = b"topic0\x01topic1"
    assert offsets(ours, -1, 0, 99) == list(range(24))
    assert offsets(b"topic1", -1, 0, 99) == list(range(1, 24, 2))
    assert offsets(b"topic", -1, 0, 99) == []
    assert offsets(ours, 2, 0, 99) == list(range(2, 24, 3))
    assert offsets(ours, -1, 5, 8) == [5, 6, 7]
    assert offsets(ours, -1, 0, 99, b"t1\x01t3") == list(range(1, 24, 2))
    assert offsets(ours, -1, 0, 99, b"") == []
    assert offsets(ours, -1, 0, 99, stored_from=1003, stored_until=1006) == [3, 4, 5]


def test_a_log_is_read_as_such(make: Any) -> None:
    """Only what says that it lies where it lies, ends in its checksum where it must, of some queues."""
    queue_offset = 1 << NAMES.index("queue_offset")
    kinds = [dataclasses.replace(PLAIN, queue_offset=i, queue_id=i % 4, topic=f"t{i % 3}") for i in range(12)]
    log, places = log_of(kinds, [i < 10 for i in range(12)], base=4096)

    def offsets(stop: int, *, base: int = 4096, without: bytes | None = None, **limits: Any) -> list[int]:
        columns = make(queue_offset, b"", **limits)
        assert columns.run(log, 0, len(log), *EVERYTHING, base=base, without=without) == stop
        return [row["queue_offset"] for row in rows_of(taken(columns), queue_offset)]

    assert offsets(len(log)) == list(range(12))
    assert offsets(0, base=4095) == []
    assert offsets(0, base=0) == []
    assert offsets(len(log), base=-1) == list(range(12))
    assert offsets(len(log), without=b"t0\x01t2") == [1, 4, 7, 10]
    assert offsets(len(log), queues=[1, 3]) == [1, 3, 5, 7, 9, 11]
    assert offsets(len(log), queues=[]) == []
    assert offsets(places[10], summed_from=4096) == list(range(10))
    assert offsets(places[11], summed_from=4096 + places[11]) == list(range(11))
    for base in (-2, INT64_MAX):
        with pytest.raises(ValueError, match="outside"):
            make(0, b"").run(log, 0, len(log), *EVERYTHING, base=base)
    for queues, error in (([2**31], OverflowError), (["a"], TypeError), (7, TypeError)):
        with pytest.raises(error):
            TWINS["compiled"](0, b"", queues=queues)


def test_a_message_without_a_tag_has_none_of_the_wanted(make: Any) -> None:
    """Not even the empty one."""
    columns, (log, _) = make(ALL, b""), log_of([dataclasses.replace(PLAIN, properties=b"")], [False])
    assert columns.run(log, 0, len(log), *EVERYTHING, b"") == len(log)
    assert columns.rows == 0


# --- what is harmed --------------------------------------------------------------------------------


def test_each_truncation_stops_before_the_record(make: Any) -> None:
    """However it is cut, whole records are taken and nothing is read behind the cut."""
    guarded = Guarded()
    kinds = [PLAIN, dataclasses.replace(PLAIN, topic="t" * 130, born_host=SIX, sys_flag=0x10), PLAIN]
    log, places = log_of(kinds, [True, False, True])
    for cut in range(len(log) + 1):
        columns = make(ALL, b"")
        whole = [at for at, end in zip(places, [*places[1:], len(log)], strict=True) if end <= cut]
        stopped = columns.run(guarded.holding(log[:cut]), 0, cut, *EVERYTHING)
        assert (stopped, columns.rows) == ([*places, len(log)][len(whole)], len(whole)), cut


@pytest.mark.parametrize("append_crc", [False, True])
def test_no_flipped_byte_is_judged_differently(append_crc: bool) -> None:
    """Each byte takes ten other values: both stop at one place, and what they take the client takes too."""
    guarded = Guarded()
    kinds = [PLAIN, dataclasses.replace(PLAIN, topic="t" * 130, store_host=SIX, sys_flag=0x20), PLAIN]
    log, places = log_of(kinds, [append_crc] * 3)
    ends = [*places[1:], len(log)]
    for at in range(len(log)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, log[at] ^ 1, log[at] ^ 0x80, log[at] ^ 0x10, log[at] ^ 0x20}:
            if value == log[at]:
                continue
            damaged = log[:at] + bytes([value]) + log[at + 1 :]
            stopped, took = run_both(damaged, guarded=guarded)
            in_its_name = any(end - 20 <= at < end - 11 for end in ends)
            if append_crc and not in_its_name:  # else it seems to have no checksum
                assert stopped == max(place for place in places if place <= at)
            expected = []
            position = 0
            while position < stopped:
                expected += client_rows(damaged, position)
                position += decode_record(damaged, position).size
            assert rows_of(took) == expected


def test_noise_is_judged_alike() -> None:
    """Records overlaid with noise: both stop at one place, with the same rows."""
    rng, guarded = random.Random(20261118), Guarded()
    record = dataclasses.replace(PLAIN, body=b"b" * 40, properties=b"TAGS\x01x\x02")
    log, _ = log_of([record] * 3, [False] * 3)
    for _ in range(3000):
        noisy = bytearray(log)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(noisy))
            noisy[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", rng.randbytes(4)))
        run_both(bytes(noisy), guarded=guarded)


@pytest.mark.parametrize(
    "tail", [b"\0", bytes(200), encode_blank(400) + bytes(392)], ids=["cut", "zeros", "blank"]
)
def test_blanks_and_zeros_are_left_to_the_caller(tail: bytes) -> None:
    """They are no records; what they mean is known where files are."""
    log, _ = log_of([PLAIN], [False])
    assert run_both(log + tail)[0] == len(log)


# --- a queue's entries -----------------------------------------------------------------------------


def gather_both(data: bytes, base: int, entries: bytes, at: int = 0, first: int = 0, tags: Any = None) -> Any:
    twins = [make(ALL, b"broker-a") for make in TWINS.values()]
    guarded = Guarded()
    stops = [
        twin.gather(guarded.holding(data), base, entries, at, b"topic", 3, first, tags) for twin in twins
    ]
    assert stops[0] == stops[1]
    compiled, plain = (taken(twin) for twin in twins)
    assert compiled == plain
    return stops[0], rows_of(compiled)


def queue_of(count: int, base: int = 5000, first: int = 100) -> tuple[bytes, bytes, list[int]]:
    """A log with others' records between, the entries of queue 3 and where its records are."""
    wanted: list[Record] = []
    for i in range(count):
        wanted += [dataclasses.replace(PLAIN, queue_offset=first + i), dataclasses.replace(PLAIN, queue_id=4)]
    log, places = log_of(wanted, [True] * len(wanted), base)
    ends = [*places[1:], len(log)]
    entries = b"".join(
        ENTRY.pack(base + place, end - place, 77) for place, end in list(zip(places, ends, strict=True))[::2]
    )
    return log, entries, places[::2]


def test_a_queues_records_are_gathered_from_the_log() -> None:
    """Only those of its entries, in their order, from any entry on."""
    log, entries, places = queue_of(5)
    stopped, rows = gather_both(log, 5000, entries, first=100)
    assert stopped == 5
    assert [(row["queue_offset"], row["log_offset"]) for row in rows] == [
        (100 + i, 5000 + place) for i, place in enumerate(places)
    ]
    assert rows == [row for place in places for row in client_rows(log, place)]
    assert [row["queue_offset"] for row in gather_both(log, 5000, entries, 3, 100)[1]] == [103, 104]
    assert gather_both(log, 5000, entries, 5, 100) == (5, [])
    assert gather_both(log, 5000, entries, first=100, tags=b"b") == (5, [])


def test_a_piece_of_the_log_gives_what_lies_wholly_in_it() -> None:
    """It stops at the first entry that is outside, before or behind; the next piece goes on there."""
    log, entries, places = queue_of(5)
    size = ENTRY.unpack_from(entries)[1]
    for cut in range(len(log)):
        stopped, rows = gather_both(log[:cut], 5000, entries, first=100)
        assert stopped == len(rows) == sum(place + size <= cut for place in places)
    assert gather_both(log[places[2] :], 5000 + places[2], entries, first=100)[0] == 0
    assert gather_both(log[places[2] :], 5000 + places[2], entries, 2, 100)[0] == 5


def test_a_record_that_is_not_its_entrys_is_not_taken() -> None:
    """Another place, size, queue offset, queue or topic: the caller has to look."""
    log, entries, _ = queue_of(3)
    one = ENTRY.unpack_from(entries, 20)
    for wrong in (
        (one[0] + 1, one[1], 0), (one[0], one[1] + 1, 0), (one[0], one[1] - 1, 0), (one[0], 0, 0),
        (one[0], -1, 0), (-1, one[1], 0), (INT64_MAX, one[1], 0), (INT64_MIN, 2**31 - 1, 0),
        (0, 2**31 - 1, 0), ENTRY.unpack_from(entries, 40),
    ):  # fmt: skip
        assert gather_both(log, 5000, entries[:20] + ENTRY.pack(*wrong) + entries[40:], first=100)[0] == 1, (
            wrong
        )
    assert gather_both(log, 5000, entries, first=99)[0] == 0
    for make in TWINS.values():
        columns = make(ALL, b"")
        assert columns.gather(log, 5000, entries, 0, b"other", 3, 100) == 0
        assert columns.gather(log, 5000, entries, 0, b"topic", 4, 100) == 0
        assert columns.gather(log, 5001, entries, 0, b"topic", 3, 100) == 0
        assert columns.gather(log, 5000, entries + b"rest", 0, b"topic", 3, 100) == 3


@given(st.data())
def test_damaged_entries_and_logs_are_judged_alike(data: st.DataObject) -> None:
    """Flipped bytes in either: both take the same entries, and only sound ones."""
    log, entries, _ = queue_of(3)
    parts = [bytearray(log), bytearray(entries)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    stopped, rows = gather_both(bytes(parts[0]), 5000, bytes(parts[1]), first=100)
    assert len(rows) == stopped
    for i, row in enumerate(rows):
        assert row["queue_offset"] == 100 + i
        assert row["body"] == b"body"


# --- rows of the plain road, and what is taken -----------------------------------------------------

texts = st.text(max_size=9).map(str.encode)


@given(
    st.lists(
        st.tuples(
            texts, int32, int64, texts, st.none() | texts, st.none() | texts, st.binary(max_size=20),
            st.lists(st.tuples(texts, texts), max_size=70), int64, int64, int32, int32, int64,
        ),
        max_size=20,
    ),
    st.integers(0, ALL),
)  # fmt: skip
def test_rows_that_are_added_are_alike(rows: list[Any], bits: int) -> None:
    """Any values: same buffers of both; and after they were taken it is as new."""
    twins = [make(bits, "Brökér".encode()) for make in TWINS.values()]
    for _ in range(2):
        for row in rows:
            for twin in twins:
                twin.add(*row)
        assert twins[0].size == twins[1].size
        compiled, plain = (taken(twin) for twin in twins)
        assert compiled == plain
        assert compiled[0] == len(rows)
        assert [twin.rows for twin in twins] == [twin.size for twin in twins] == [0, 0]


def test_many_rows_keep_their_places(make: Any) -> None:
    """Beyond every first size of the buffers, twice over, with missing keys now and then."""
    columns = make(ALL, b"b")
    for _ in range(2):
        for i in range(5000):
            properties = [(b"n%d" % k, b"v%d" % i) for k in range(i % 5)]
            columns.add(
                b"t", i, i, b"id%d" % i, b"k%d" % i if i % 3 else None, None, b"x" * (i % 50), properties,
                1, 2, 3, 4, 5,
            )  # fmt: skip
        rows = rows_of(taken(columns))
        assert len(rows) == 5000
        assert all(
            row["queue_offset"] == i
            and row["keys"] == (b"k%d" % i if i % 3 else None)
            and row["tags"] is None
            and row["body"] == b"x" * (i % 50)
            and row["properties"] == {b"n%d" % k: b"v%d" % i for k in range(i % 5)}
            for i, row in enumerate(rows)
        )


def test_buffers_live_on_when_the_columns_are_gone(make: Any) -> None:
    """Arrow holds them as long as it likes; they cannot be written to."""
    columns, (log, _) = make(ALL, b"b"), log_of([PLAIN], [False])
    columns.run(log, 0, len(log), *EVERYTHING)
    _, parts = columns.take()
    views = [memoryview(one) for column in parts for one in column if one is not None]
    columns.run(log, 0, len(log), *EVERYTHING)
    del columns, parts
    assert all(view.readonly for view in views)
    assert bytes(views[1]) == b"topic"


def test_wrong_arguments_are_refused(make: Any) -> None:
    """Places outside the data, columns that do not exist, text that is none."""
    columns, (log, _) = make(ALL, b""), log_of([PLAIN], [False])
    for at, end in ((-1, 3), (3, 2), (0, len(log) + 1)):
        with pytest.raises(ValueError, match="outside"):
            columns.run(log, at, end, *EVERYTHING)
    for base, at, first in ((-1, 0, 0), (0, 2, 0), (0, -1, 0), (0, 0, -1), (0, 0, INT64_MAX)):
        with pytest.raises(ValueError, match="outside"):
            columns.gather(log, base, bytes(20), at, b"topic", 3, first)
    with pytest.raises(ValueError, match="queue"):
        columns.gather(log, 0, bytes(20), 0, b"topic", -1, 0)
    with pytest.raises(ValueError, match="14 columns"):
        make(1 << 14, b"")
    with pytest.raises(ValueError, match="name"):
        make(0, b"\xff")
    good = [b"t", 1, 1, b"id", None, None, b"\xff", [], 1, 2, 3, 4, 5]
    columns.add(*good)
    for place, wrong in ((0, b"\xff"), (3, b"\xff"), (4, b"\xff"), (7, [(b"a", b"\xff")])):
        with pytest.raises(ValueError, match="UTF-8"):
            columns.add(*good[:place], wrong, *good[place + 1 :])
    assert columns.rows == 1


def test_what_does_not_fit_offsets_waits_for_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow counts in 32 bits: the row that would be too much is not taken until the others were."""
    monkeypatch.setattr(plain_columns, "DATA_MAX", 250)
    columns = plain_columns.Columns(ALL, b"b")
    log, places = log_of([dataclasses.replace(PLAIN, body=bytes(100))] * 3, [False] * 3)
    assert columns.run(log, 0, len(log), *EVERYTHING) == places[2]
    with pytest.raises(OverflowError, match="take"):
        columns.add(b"t", 1, 1, b"id", None, None, bytes(100), [], 1, 2, 3, 4, 5)
    assert columns.take()[0] == 2
    assert columns.run(log, places[2], len(log), *EVERYTHING) == len(log)


@pytest.mark.slow
def test_two_gigabytes_are_the_end_of_a_batch() -> None:
    """The compiled one, for real: the row beyond 2³¹ - 1 bytes waits, nothing is lost."""
    columns = TWINS["compiled"](1 << NAMES.index("body"), b"")
    log, _ = log_of([dataclasses.replace(PLAIN, body=bytes(1 << 29), properties=b"")], [False])
    for expected in (len(log), len(log), len(log), 0):
        assert columns.run(log, 0, len(log), *EVERYTHING) == expected
    with pytest.raises(OverflowError, match="take"):
        columns.add(b"t", 1, 1, b"id", None, None, bytes(1 << 29), [], 1, 2, 3, 4, 5)
    rows, ((_, offsets, data),) = columns.take()
    assert (rows, len(data), struct.unpack("4i", offsets)[-1]) == (3, 3 << 29, 3 << 29)
    assert columns.run(log, 0, len(log), *EVERYTHING) == len(log)


def test_a_second_thread_is_told_to_wait_its_turn() -> None:
    """Filled without the interpreter lock by one; the other gets an error, never half a row."""
    columns = TWINS["compiled"](ALL, b"")
    log, _ = log_of([PLAIN] * 2000, [True] * 2000)
    done, begun = threading.Event(), threading.Event()

    def fill() -> None:
        begun.set()
        for _ in range(20):
            while True:
                try:
                    columns.run(log, 0, len(log), *EVERYTHING)
                    break
                except RuntimeError:
                    continue
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    begun.wait()
    rows = 0
    while not done.is_set():
        try:
            rows += columns.take()[0]
        except RuntimeError:
            continue
    thread.join()
    assert rows + columns.take()[0] == 40_000


def test_damage_is_what_the_client_calls_damage() -> None:
    """Where the columns stop at a flipped body, decoding says why."""
    log, _ = log_of([PLAIN], [False])
    damaged = log.replace(b"body", b"bodz")
    assert run_both(damaged)[0] == 0
    with pytest.raises(RecordInvalid, match="body CRC"):
        decode_record(damaged)

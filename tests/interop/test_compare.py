"""The comparison finds what it is there to find, and forgives nothing without an entry that says why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hotfire.protocol.command import RESPONSE_FLAG, Command, encode
from hotfire.protocol.record import Host, Record, encode_properties, encode_record
from tests.interop import differential
from tests.interop.compare import (
    Answer,
    Difference,
    Refusal,
    Volatile,
    differences,
    lay_out,
    read_volatile,
    unforgiven,
    unused,
)
from tests.interop.proxy import Frame
from tests.interop.transcripts import (
    Naming,
    beyond_moments,
    read_moments,
    rows_in,
    shown_again,
    situations,
)

REASON = "a reason that is long enough to be one"


def reply(**changed: object) -> Command:
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:1"},"brokerName":"b"}],"perm":6,"rate":0.0}'
    whole = {
        "code": 0,
        "flag": RESPONSE_FLAG,
        "fields": {"offset": "7", "queueId": "1"},
        "body": body,
        **changed,
    }
    return Command(**whole)  # type: ignore[arg-type]


def told(command: Command) -> dict[str, Answer]:
    return {"a case": Answer("broker", 30, "reply", lay_out(command, {}))}


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"code": 1}, "code"),
        ({"remark": "FOUND"}, "remark"),
        ({"version": 409}, "version"),
        ({"fields": {"offset": "8", "queueId": "1"}}, "fields/offset"),
        ({"fields": {"queueId": "1"}}, "fields/offset"),
        ({"fields": {"offset": "7", "queueId": "1", "more": "x"}}, "fields/more"),
        ({"fields": None}, "fields"),
        ({"body": b""}, "body"),
        ({"body": reply().body.replace(b"{0:", b'{"0":')}, "body/brokerDatas/0/brokerAddrs/0"),
        ({"body": reply().body.replace(b"0.0}", b"0}")}, "body/rate"),
        ({"body": reply().body.replace(b'"perm":6', b'"perm":"6"')}, "body/perm"),
        ({"body": reply().body.replace(b'"perm":6,', b"")}, "body/perm"),
        ({"body": reply().body.replace(b"}]", b'},{"brokerName":"c"}]')}, "body/brokerDatas/1"),
    ],
)
def test_a_changed_answer_is_reported(changed: dict[str, object], path: str) -> None:
    """A code, remark, field, key, type or entry that one side alone has is reported by its path."""
    assert not differences(told(reply()), told(reply()))
    found = differences(told(reply()), told(reply(**changed)))
    assert path in [one.path for one in found]


def test_a_changed_record_is_reported() -> None:
    """Each field and property of a pulled message counts."""
    host = Host(b"\x7f\0\0\1", 10911)
    record = Record("T", 1, b"x", 5, host, 6, host, properties=encode_properties({"TAGS": "a"}))
    first = told(reply(body=encode_record(record, append_crc=False)))
    for changed, path in (
        ({"queue_offset": 3}, "body/0/queue_offset"),
        ({"properties": encode_properties({"TAGS": "b"})}, "body/0/properties/TAGS"),
        ({"properties": b""}, "body/0/properties/TAGS"),
        ({"body": b"y"}, "body/0/body"),
    ):
        other = dataclasses.replace(record, **changed)
        found = differences(first, told(reply(body=encode_record(other, append_crc=False))))
        assert path in [one.path for one in found]


def test_a_case_without_an_answer_is_reported() -> None:
    silent = {"a case": Answer("broker", 30, "silence", {})}
    for other in ({}, silent):
        assert [one.path for one in differences(told(reply()), other)] == ["outcome"]
        assert [one.path for one in differences(other, told(reply()))] == ["outcome"]


def test_an_entry_forgives_its_path_and_nothing_else() -> None:
    """The request, the path and the way of differing must all be those of the entry."""
    one = Difference("a case", "broker", 30, "fields/offset", "7", "8")
    entry = Volatile("broker", (30,), "fields/offset", "type", REASON)
    assert not unforgiven([one], [entry])
    for other in (
        dataclasses.replace(one, path="fields/queueId"),
        dataclasses.replace(one, code=31),
        dataclasses.replace(one, where="namesrv"),
        dataclasses.replace(one, hotfire="(missing)"),
    ):
        assert unforgiven([other], [entry]) == [other]
    exact = Volatile("broker", (30,), "code", "is", REASON, apache=1, hotfire=29)
    asked = dataclasses.replace(one, path="code", apache=1, hotfire=29)
    assert not unforgiven([asked], [exact])
    assert unforgiven([dataclasses.replace(asked, hotfire=16)], [exact])


def test_a_refusal_forgives_its_cases_and_its_code_alone() -> None:
    """All of an answer that is a refusal; nothing of the same case once Hotfire says something else."""
    found = differences(told(reply()), told(reply(code=29, fields=None, body=b"", remark="no")))
    refusal = Refusal("broker", ("a case*",), 29, REASON)
    assert len(found) > 3
    assert not unforgiven(found, [], [refusal])
    assert refusal.used
    assert unforgiven(found, [], [dataclasses.replace(refusal, hotfire=16)])
    assert unforgiven(found, [], [dataclasses.replace(refusal, case=("another case",))])
    same_code = differences(told(reply(code=29)), told(reply(code=29, fields=None)))
    assert unforgiven(same_code, [], [refusal])
    with pytest.raises(ValueError, match="that short"):
        Refusal("broker", ("*",), 29, REASON)


def test_an_entry_nothing_needs_is_reported() -> None:
    entry = Volatile("broker", (30,), "fields/offset", "type", REASON)
    assert unused([entry]) == [entry]
    unforgiven([Difference("a case", "broker", 30, "fields/offset", "7", "8")], [entry])
    assert not unused([entry])


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "*"},
        {"path": "body/*"},
        {"path": "*/offset"},
        {"path": "fields/off*"},
        {"path": "code"},
        {"path": "body"},
        {"code": ()},
        {"reason": "because"},
        {"how": "anyhow"},
        {"how": "differs", "sometimes": True},
    ],
)
def test_an_entry_that_swallows_too_much_is_refused(entry: dict[str, object]) -> None:
    whole = {
        "where": "broker",
        "code": (30,),
        "path": "fields/offset",
        "how": "type",
        "reason": REASON,
        **entry,
    }
    with pytest.raises(ValueError, match=r".+"):
        Volatile(**whole)  # type: ignore[arg-type]


def test_the_list_is_well_formed() -> None:
    """Each entry names requests, a path and a reason, and none twice."""
    entries = read_volatile()
    places = [
        (entry.where, entry.code, entry.path, entry.case, entry.apache, entry.hotfire) for entry in entries
    ]
    assert len(places) == len(set(places))
    assert all(len(moment.reason) > 20 for moment in read_moments())


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in differential.cases()]
    assert len(names) == len(set(names)) > 500


def _frames(*commands: tuple[bool, Command]) -> list[Frame]:
    return [Frame(1, "broker", from_client, encode(command)) for from_client, command in commands]


def _run(answer: Command, count: int = 3) -> list[Frame]:
    pulls = []
    for opaque in range(count):
        asked = Command(11, opaque=opaque, fields={"topic": "java550-pull-t", "queueOffset": str(opaque)})
        pulls += [(True, asked), (False, dataclasses.replace(answer, opaque=opaque))]
    return _frames(*pulls)


def test_transcripts_differ_where_replies_do_and_not_in_how_often() -> None:
    """Twice as many pulls are the same transcript; one reply with another field, code or kind is not."""
    naming = Naming("java550", ["pull"], {})
    base = situations(_run(reply()), naming)
    assert not differences(base, situations(_run(reply(), count=3), naming))
    for changed in ({"fields": {"offset": "7"}}, {"code": 19}, {"body": b""}, {"remark": "FOUND"}):
        odd = situations(_run(reply()) + _run(reply(**changed), count=1), naming)
        assert differences(base, odd)
    assert {name.split(":")[0] for name in base} == {"pull"}


def test_a_situation_only_one_run_came_to_is_reported(tmp_path: Path) -> None:
    naming = Naming("java550", ["pull"], {})
    base = situations(_run(reply()), naming)
    odd = situations(_run(reply()) + _run(reply(code=25, fields=None, body=b""), count=1), naming)
    found = differences(base, odd)
    assert [one.path for one in found] == ["outcome"]
    entries = tmp_path / "volatile.toml"
    entries.write_text(f'moment = [{{where = "broker", code = 11, reply = 25, reason = "{REASON}"}}]')
    assert not beyond_moments(found, read_moments(entries))
    assert beyond_moments([dataclasses.replace(found[0], code=12)], read_moments(entries))
    entries.write_text(f'moment = [{{where = "broker", code = 11, row = "lite", reason = "{REASON}"}}]')
    assert beyond_moments(found, read_moments(entries))
    entries.write_text(f'moment = [{{where = "broker", code = 11, row = "pull", reason = "{REASON}"}}]')
    assert not beyond_moments(found, read_moments(entries))
    entries.write_text(f'moment = [{{where = "broker", code = 11, client = "go", reason = "{REASON}"}}]')
    assert not beyond_moments(found, read_moments(entries, client="go"))
    assert beyond_moments(found, read_moments(entries, client="java550"))


def test_pulls_that_got_nothing_are_told_apart_by_why(tmp_path: Path) -> None:
    """That a run saw one kind of end and not the other is of the moment; what each kind says is not."""
    naming = Naming("java550", ["pull"], {})
    empty = _run(reply(code=19, remark="NO_MESSAGE_IN_QUEUE", body=b""))
    end = _run(reply(code=19, remark="OFFSET_OVERFLOW_ONE", body=b"", fields={"offset": "8"}))
    base = situations(empty + end, naming)
    entries = tmp_path / "volatile.toml"
    entries.write_text(f'moment = [{{where = "broker", code = 11, reply = 19, reason = "{REASON}"}}]')
    for one in (empty, end):
        found = [one for one in differences(base, situations(one, naming)) if one.where == "broker"]
        assert [one.path for one in found] == ["outcome"]
        assert not beyond_moments(found, read_moments(entries))
    odd = _run(reply(code=19, remark="OFFSET_OVERFLOW_ONE", body=b"", fields={"offset": "9"}))
    assert beyond_moments(differences(base, situations(empty + odd, naming)), read_moments(entries))
    entries.write_text(f'moment = [{{where = "broker", code = 11, reply = 1, reason = "{REASON}"}}]')
    assert beyond_moments(differences(base, situations(empty, naming)), read_moments(entries))


def test_one_retry_topic_is_like_another_in_a_path() -> None:
    naming = Naming("java550", ["pull"], {})
    bodies = [b'{"t":{"%%RETRY%%java550-pull-%s":1}}' % name for name in (b"a", b"b_1")]
    seen = [situations(_run(reply(body=body)), naming) for body in bodies]
    assert not differences(*seen)
    assert "body/t/%RETRY%" in seen[0]["pull: broker answers 11 with 0"].layout


def test_moments_are_forgiven_and_nothing_else_in_their_place() -> None:
    entry = Volatile("broker", (11,), "body/*/store_timestamp", "times", REASON)
    one = Difference(
        "t: broker answers 11 with 0",
        "broker",
        11,
        "body/*/store_timestamp",
        1_700_000_000_000,
        "many ['int']",
    )
    assert entry.forgives(one)
    assert entry.forgives(dataclasses.replace(one, hotfire="1700000000000 | 1700000000001"))
    for other in (0, -1, "1700000000", "(missing)", "1700000000000 or missing", "1700000000000 | 0", None):
        assert not entry.forgives(dataclasses.replace(one, hotfire=other))
        assert not entry.forgives(dataclasses.replace(one, apache=other))


def test_some_of_the_same_values_are_forgiven_and_another_value_is_not() -> None:
    entry = Volatile("to broker", (11,), "fields/topic", "some", REASON)
    one = Difference("pull: client asks broker 11", "to broker", 11, "fields/topic", "'%RETRY%a' | 'a'", "a")
    assert entry.forgives(one)
    assert entry.forgives(dataclasses.replace(one, apache="a", hotfire="'a' or missing"))
    assert entry.forgives(dataclasses.replace(one, apache="(missing)"))
    assert not entry.forgives(dataclasses.replace(one, hotfire="b"))
    assert not entry.forgives(dataclasses.replace(one, hotfire="'a' | 'b'"))


def test_what_shows_again_at_its_place_is_ours_and_the_rest_was_of_the_moment() -> None:
    """Whatever the values; and where only one run came to the situation, nothing is shown of its fields."""
    one = Difference("pull: broker answers 11 with 0", "broker", 11, "fields/offset", "1", "2")
    other = dataclasses.replace(one, path="fields/minOffset")
    assert shown_again([one, other], [dataclasses.replace(one, apache="7")]) == [one]
    assert shown_again([one], []) == []
    alone = dataclasses.replace(one, path="outcome", hotfire="(missing)")
    assert shown_again([one], [alone]) == [one]
    assert shown_again([alone], [alone]) == [alone]
    assert shown_again([alone], [dataclasses.replace(alone, case="pull: broker answers 11 with 1")]) == []
    assert shown_again([one], [], broken={"lite"}) == []
    assert shown_again([one], [], broken={"pull"}) == [one]


def test_the_rows_that_differ_are_told_again_and_all_for_what_belongs_to_none() -> None:
    one = Difference("pull: client asks broker 11", "to broker", 11, "flag", 0, 1)
    rows = ["lite", "pull", "push"]
    assert rows_in([one, one], rows) == ["pull"]
    assert rows_in([one, dataclasses.replace(one, case="every row: client asks broker 34")], rows) == rows

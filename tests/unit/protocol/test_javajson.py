"""JSON with bare keys."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import RemoteProtocolError
from hotfire.model import MessageQueue
from hotfire.protocol.javajson import DEPTH_MAX, dumps, dumps_bare_keys, loads, loads_standard, spelled

numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text()
queues = st.builds(MessageQueue, st.text(max_size=5), st.text(max_size=5), st.integers(-5, 2**31))
object_keys = queues | st.dictionaries(
    st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=2
).map(lambda tree: tuple(sorted(tree.items())))


def trees(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=15,
    )


@given(trees(st.text(max_size=5)))
def test_ordinary_json_round_trips(tree: Any) -> None:
    """Both writers and both readers agree where there are no odd keys."""
    assert dumps(tree) == dumps_bare_keys(tree)
    assert loads(dumps(tree)) == loads_standard(dumps(tree)) == tree


@given(trees(st.text(max_size=5) | st.integers(-(2**63), 2**63 - 1) | object_keys))
def test_the_dialect_round_trips(tree: Any) -> None:
    """Integers and objects as keys come back as what they were."""
    assert loads(dumps_bare_keys(tree)) == tree


@given(trees(st.text(max_size=5) | st.integers(-99, 99) | object_keys), st.data())
def test_damaged_text_gives_a_value_or_the_error(tree: Any, data: st.DataObject) -> None:
    """Cut or changed anywhere, the text is read or refused as the peer's fault."""
    text = bytearray(dumps_bare_keys(tree))
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[at:]
    else:
        text[at] = data.draw(st.sampled_from(list(b'{}[]:,"\\0-x \xff')))
    for read in (loads, loads_standard):
        try:
            value = read(text)
        except RemoteProtocolError:
            continue
        dumps_bare_keys(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{"0":"a"}', {"0": "a"}),
        ("{\n\t-1:2\n}", {-1: 2}),
        ('{{"brokerName":"b","queueId":0,"topic":"T"}:7}', {MessageQueue("T", "b", 0): 7}),
        ('{{"x":1}:[]}', {(("x", 1),): []}),
        ('{{"queueId":"0","brokerName":"b","topic":"T"}:7}',
         {(("brokerName", "b"), ("queueId", "0"), ("topic", "T")): 7}),
        ('{0:{0:{0:-1.5e2}}}', {0: {0: {0: -150.0}}}),
        ('{0:"\\ud800","\\uDC00":[1]}', {0: "?", "?": [1]}),
        ('{0:[true,false,null,{}]}', {0: [True, False, None, {}]}),
    ],
)  # fmt: skip
def test_the_dialect(text: str, value: Any) -> None:
    """What fastjson writes for maps whose keys are not strings."""
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{0}", "{0:}", "{0:1,}", "{,0:1}", "{0:1 1:2}", "{a:1}", "{1.5:1}", "{true:1}", "{[]:1}",
        "{0:1}}", "{0:NaN}", '{"a":Infinity}', "{0:1e999}", '{"a":1e999}', "{0:tru}", "{{0:1}:1}",
        '{{"a":[]}:1}',
        "{{:1}:1}", "{" + "9" * 20 + ":1}", "{0:" + "9" * 5000 + "}", "{0:" * 500, "[" * 100_000, '{0:"',
        '{0:"\\x"}', "'a'",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_refused_texts(text: str) -> None:
    """What neither JSON nor Java writes is the peer's fault."""
    with pytest.raises(RemoteProtocolError):
        loads(text.encode())


def test_depth_is_bounded() -> None:
    """In the dialect at the stated depth."""
    assert loads(b"{0:" + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}")
    with pytest.raises(RemoteProtocolError, match="deeper than 64"):
        loads(b"{0:" + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}")


@pytest.mark.parametrize("depth", [10, 300, 400, 600, 900, 2000])
@pytest.mark.parametrize("read", [loads, loads_standard])
def test_half_a_surrogate_pair_at_any_depth(read: Any, depth: int) -> None:
    """Cleaning what was parsed goes as deep as parsing did; where it cannot, the body is refused."""
    data = b"[" * depth + b'"\\ud800"' + b"]" * depth
    try:
        tree = read(data)
    except RemoteProtocolError:
        assert depth > 100
        return
    for _ in range(depth):
        (tree,) = tree
    assert tree == "?"


def test_standard_readers_refuse_the_dialect() -> None:
    """Bodies that never hold bare keys stay with the fast parser."""
    with pytest.raises(RemoteProtocolError):
        loads_standard(b"{0:1}")


def test_writers() -> None:
    """Compact, non-ASCII raw, control characters escaped; integer keys quoted or bare."""
    assert dumps({0: "é\x01"}) == b'{"0":"\xc3\xa9\\u0001"}'
    assert dumps_bare_keys({0: "é\x01", "t": (1, 2.0)}) == b'{0:"\xc3\xa9\\u0001","t":[1,2.0]}'
    assert dumps_bare_keys({(("x", 1),): None}) == b'{{"x":1}:null}'
    assert dumps_bare_keys({"t": spelled({0: ["é"]}), "u": "{}"}) == '{"t":{0:["é"]},"u":"{}"}'.encode()
    assert json.loads(dumps({"a": "\ud800"})) == {"a": "?"}
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps_bare_keys({0: float("nan")})

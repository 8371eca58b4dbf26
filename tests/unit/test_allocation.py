"""Queues are shared as the Java client shares them, strategy by strategy.

`allocation.json` holds what the classes of the Java client 5.5.0 made of each layout of queues and clients;
`tests/interop/test_allocation.py` holds it against them.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.allocation import (
    AVERAGELY,
    BY_CIRCLE,
    CONSISTENT_HASH,
    Rooms,
    Strategy,
    by_config,
    by_machine_room,
    consistent_hash,
    ids_in_order,
    in_order,
    nearby,
    readable_queues,
)
from hotfire.model import MessageQueue, QueueData, RouteData

LAYOUTS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("allocation.json").read_text())
BEFORE_THE_FIRST_AT = Rooms(
    of_queue=lambda queue: queue.broker_name.partition("@")[0], of_client=lambda name: name.partition("@")[0]
)
STRATEGIES: dict[str, Callable[[list[MessageQueue]], Strategy]] = {
    "AVG": lambda queues: AVERAGELY,
    "AVG_BY_CIRCLE": lambda queues: BY_CIRCLE,
    "CONFIG": lambda queues: by_config(queues[::2]),
    "MACHINE_ROOM": lambda queues: by_machine_room({"north", "south"}),
    "MACHINE_ROOM_NEARBY-AVG": lambda queues: nearby(AVERAGELY, BEFORE_THE_FIRST_AT),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": lambda queues: nearby(BY_CIRCLE, BEFORE_THE_FIRST_AT),
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH": lambda queues: nearby(CONSISTENT_HASH, BEFORE_THE_FIRST_AT),
    "CONSISTENT_HASH": lambda queues: CONSISTENT_HASH,
    "CONSISTENT_HASH/1": lambda queues: consistent_hash(1),
}


def shares(strategy: Strategy, queues: list[MessageQueue], clients: list[str]) -> list[list[int]] | str:
    """What each client gets, as places in `queues`, and last a client that is not there."""
    try:
        return [
            [queues.index(queue) for queue in strategy.share(client, in_order(queues), ids_in_order(clients))]
            for client in [*clients, "north@nobody"]
        ]
    except ValueError:
        return "refused"


@pytest.mark.promise(114)
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_gives_what_the_java_class_gives(name: str) -> None:
    """0 to 20 queues, 1 to 7 clients, three machine rooms, odd names: the same queues in the same order."""
    assert len(LAYOUTS) > 200
    for layout in LAYOUTS:
        queues, clients = [MessageQueue(*queue) for queue in layout["queues"]], layout["clients"]
        strategy = STRATEGIES[name](in_order(queues))
        assert strategy.name == name.partition("/")[0]
        assert shares(strategy, queues, clients) == layout["shares"][name], layout


def test_the_record_knows_no_other_strategy() -> None:
    assert {name for layout in LAYOUTS for name in layout["shares"]} == set(STRATEGIES)


names = st.text(st.characters(codec="utf-8", exclude_characters="@"), min_size=1, max_size=6)
rooms = st.sampled_from(["north", "south", "east"])
placed = st.builds("{}@{}".format, rooms, names)
queue_sets = st.sets(st.builds(MessageQueue, names, placed, st.integers(0, 9)), min_size=1, max_size=40)
WHOLE = [name for name in STRATEGIES if name not in ("CONFIG", "MACHINE_ROOM")]


@pytest.mark.parametrize("name", [*WHOLE, "MACHINE_ROOM"])
@given(queues=queue_sets, clients=st.sets(placed, min_size=1, max_size=9))
def test_every_queue_goes_to_just_one_client(name: str, queues: set[MessageQueue], clients: set[str]) -> None:
    """Whoever is there, and wherever they stand."""
    ordered, ids = in_order(queues), ids_in_order(clients)
    strategy = by_machine_room({"north", "south", "east"}) if name == "MACHINE_ROOM" else STRATEGIES[name]([])
    shared = [queue for client in ids for queue in strategy.share(client, ordered, ids)]
    assert in_order(shared) == ordered


@given(st.sets(st.integers(0, 30), min_size=2), st.data())
def test_a_client_that_goes_moves_no_queue_among_the_others(numbers: set[int], data: st.DataObject) -> None:
    """By consistent hashing, those who stay keep what they had."""
    queues = [MessageQueue("T", "broker-a", number) for number in range(16)]
    clients = ids_in_order(f"10.0.0.{number}@1" for number in numbers)
    gone = data.draw(st.sampled_from(clients))
    left = [client for client in clients if client != gone]
    for client in left:
        before = CONSISTENT_HASH.share(client, queues, clients)
        assert set(before) <= set(CONSISTENT_HASH.share(client, queues, left))


def test_who_is_not_in_the_group_gets_nothing_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    queues = [MessageQueue("T", "broker-a", 0)]
    with caplog.at_level(logging.WARNING):
        assert AVERAGELY.share("c3", queues, ["c1", "c2"]) == []
    assert "c3 is not among the 2" in caplog.text


@pytest.mark.parametrize(
    ("client", "queues", "clients", "what"),
    [("", 1, ["c"], "client id"), ("c", 0, ["c"], "no queue"), ("c", 1, [], "no client")],
)
def test_what_cannot_be_shared_is_refused(client: str, queues: int, clients: list[str], what: str) -> None:
    """By every strategy but CONFIG, which gives what it was told whoever asks."""
    given = [MessageQueue("T", "broker-a", number) for number in range(queues)]
    for name in [*WHOLE, "MACHINE_ROOM"]:
        with pytest.raises(ValueError, match=what):
            STRATEGIES[name](given).share(client, given, clients)
    assert by_config(given).share(client, [], clients) == given


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 virtual nodes"):
        consistent_hash(-1)
    nowhere = nearby(AVERAGELY, Rooms(of_queue=lambda queue: "", of_client=lambda client: "north"))
    with pytest.raises(ValueError, match="in no machine room"):
        nowhere.share("c", [MessageQueue("T", "broker-a", 0)], ["c"])


def test_a_ring_without_nodes_gives_nobody_anything() -> None:
    assert consistent_hash(0).share("c", [MessageQueue("T", "broker-a", 0)], ["c"]) == []


def test_queues_to_read_are_those_of_every_broker_that_may_be_read() -> None:
    """In order, each once, though a broker be named twice."""
    route = RouteData(
        queues=(
            QueueData("b", 2, 9, 6),
            QueueData("a", 1, 1, 4),
            QueueData("c", 5, 5, 2),
            QueueData("b", 1, 1, 6),
        )
    )
    wanted = [("a", 0), ("b", 0), ("b", 1)]
    assert readable_queues("T", route) == tuple(MessageQueue("T", *place) for place in wanted)

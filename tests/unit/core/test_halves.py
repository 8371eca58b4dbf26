"""Places of the half queue that are dealt with: the compiled ones are what the plain ones say they are."""

import random

import pytest

from hotfire import core
from hotfire.core import plain_halves

pytestmark = pytest.mark.core


def some_call(rng: random.Random, places: plain_halves.Halves, end: int) -> tuple[str, tuple[int, ...]]:
    near = rng.randrange(places.next, end + 1)
    far = places.next + rng.choice([0, 63, 64, 65, 4095, 4096, 4097, 9000])
    return rng.choice(
        [
            ("end", (near,)),
            ("end", (places.next,)),
            ("end", (far,)),
            ("mark", (near,)),
            ("mark", (far,)),
            (rng.choice(["mark", "is_open", "is_ended", "end"]), (-1,)),
            ("mark", (rng.randrange(end + 1),)),
            ("pass_over", (rng.choice([end, near, places.next]),)),
            ("pass_over", (end,)),
            ("owed", (rng.choice([0, 1, 10, 4096]),)),
            ("paid", (rng.randrange(places.owes + 2),)),
            ("is_open", (far,)),
            ("is_ended", (near,)),
            *([("move_to", (rng.choice([near, far, 0]),))] if rng.random() < 0.05 else []),
        ]
    )


def outcome(places: object, name: str, arguments: tuple[int, ...]) -> object:
    try:
        return getattr(places, name)(*arguments)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(20))
def test_compiled_and_plain_agree(seed: int) -> None:
    """Whatever is marked, ended, owed and passed over, in any order, over windows that grow and move on."""
    rng = random.Random(seed)
    queue = core.Queue("halves")
    fast, plain = core.Halves(queue), plain_halves.Halves(queue)
    first = rng.choice([0, 1, 64, 10**9 + 7])
    fast.move_to(first)
    plain.move_to(first)
    queue.next = first
    for _ in range(3000):
        for _ in range(rng.choice([0, 0, 1, 1, 5, 200])):
            queue.claim()
        name, arguments = some_call(rng, plain, max(queue.next, plain.next))
        assert outcome(fast, name, arguments) == outcome(plain, name, arguments), (seed, name, arguments)
        seen = (fast.next, fast.ended, fast.owes)
        assert seen == (plain.next, plain.ended, plain.owes), (seed, name, arguments)
    for place in range(plain.next - 70, queue.next + 70):
        assert fast.is_open(place) == plain.is_open(place), (seed, place)
        assert fast.is_ended(place) == plain.is_ended(place), (seed, place)
    assert fast.take_stored() == plain.take_stored() == -1


def test_one_that_is_not_open_is_not_ended() -> None:
    """Not one that never was, nor one that has had its end: the op would be there twice."""
    queue = core.Queue("halves")
    places = core.Halves(queue)
    with pytest.raises(ValueError, match="half 0 is not open"):
        places.end(0)
    queue.claim()
    places.end(0)
    with pytest.raises(ValueError, match="half 0 is not open"):
        places.end(0)


def test_a_place_out_of_reach_is_refused() -> None:
    """Memory for it would be memory for all before it."""
    with pytest.raises(OverflowError, match="half"):
        core.Halves(core.Queue("halves")).mark(1 << 40)

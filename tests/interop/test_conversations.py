"""Our client asks for what Java's client asks for: the same requests, fields and defaults, in the same order.

What may differ is in `conversations.toml`, each with its reason; an entry that nothing needs is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hotfire.protocol.codes import RequestCode
from tests.interop import conversations
from tests.interop.clients import HOTFIRE_ARGUMENTS
from tests.interop.compare import Difference, Volatile, differences, read_volatile, unforgiven, unused
from tests.interop.conversations import JAVA, OURS, STORIES, Conversations
from tests.interop.transcripts import beyond_moments, read_moments, shown_again
from tests.peers import jars
from tests.peers.hotfire import HotfireProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

ALLOWED = Path(__file__).with_name("conversations.toml")
OFFSET, UNLOCK, GOODBYE = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UNREGISTER_CLIENT,
)
AT_THE_END = {OFFSET, UNLOCK, GOODBYE}


Both = dict[str, Conversations]


@pytest.fixture(scope="module")
def tell(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Both]:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run the Java client")

    def record() -> Both:
        place = tmp_path_factory.mktemp("conversations")
        with HotfireProcess(place / "server", arguments=HOTFIRE_ARGUMENTS) as server:
            return conversations.record(server, place)

    return record


@pytest.fixture(scope="module")
def told(tell: Callable[[], Both]) -> Both:
    return tell()


def _left(told: Both, allowed: Sequence[Volatile]) -> list[Difference]:
    found = differences(told[JAVA].requests, told[OURS].requests)
    return beyond_moments(unforgiven(found, allowed), read_moments(ALLOWED))


def test_the_same_requests_with_the_same_fields(told: Both, tell: Callable[[], Both]) -> None:
    """Codes, flags, field names, values where they do not depend on the moment, the shape of bodies. What
    differs, or is forgiven for nothing, must do so when all is told again."""
    allowed = read_volatile(ALLOWED)
    left = _left(told, allowed)
    if left or unused(allowed):
        left = shown_again(left, _left(tell(), allowed))
    assert not left, "\n".join(
        f"{one.case}, {one.path}: Java {one.apache!r}, ours {one.hotfire!r}" for one in left
    )
    idle = [str(entry) for entry in unused(allowed)]
    assert not idle, "\n".join(idle)


@pytest.mark.parametrize("story", STORIES)
def test_the_same_order_of_first_use(told: Both, tell: Callable[[], Both], story: str) -> None:
    """From the start to the last pull both come to each kind of request in the same order; where timers of
    Java's may come between, in one that Java comes to when all is told again."""
    ours, theirs = _first_uses(told, story)
    if ours != theirs:
        ours, theirs = _first_uses(tell(), story)
    assert ours == theirs


def _first_uses(told: Both, story: str) -> tuple[list[int], list[int]]:
    """Of the kinds of requests that both came to."""
    uses = [
        [code for code in told[label].first_uses(story) if code not in AT_THE_END] for label in (OURS, JAVA)
    ]
    common = set(uses[0]) & set(uses[1])
    ours, theirs = ([code for code in one if code in common] for one in uses)
    return ours, theirs


@pytest.mark.parametrize("story", STORIES)
def test_the_end(told: Both, story: str) -> None:
    """Offsets are kept, then queues unlocked, then goodbye is said, and nothing after it. Java says the same
    things in an order that depends on its threads."""
    theirs, ours = (set(told[label].calls[story]) & AT_THE_END for label in (JAVA, OURS))
    assert ours == theirs
    calls = [code for code in told[OURS].calls[story] if code in AT_THE_END]
    last_uses = list(dict.fromkeys(reversed(calls)))
    assert last_uses[::-1] == [code for code in (OFFSET, UNLOCK, GOODBYE) if code in ours]
    assert told[OURS].calls[story][-1] == GOODBYE

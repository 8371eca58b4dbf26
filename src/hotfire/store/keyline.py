"""Questions by key, of clients: those that come while others are looked up are answered several by one call.

What a call costs beside looking records up, a thread woken, the interpreter's lock given and taken, the loop
woken again, is as much as several questions; with a second call waiting while the first is worked on, the
thread has no need to wait for the loop in between. While messages are stored each has a call of its own, so
that the rest between two calls is one after each question.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

Wanted = tuple[str, str, int, int, int]
"""Topic, key, how many at most, and the span of time they were stored in."""
TOGETHER_MAX = 8
"""Questions of one call; each may be thousands of records of which none is found."""
CALLS_MAX = 2


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a question: the records one behind the other, or the disk's error."""

    what: bytes | OSError

    def result(self) -> bytes:
        if isinstance(self.what, OSError):
            raise self.what
        return self.what


@dataclass(frozen=True, slots=True)
class Together:
    """Questions under way in one call."""

    asked: list[tuple[object, Wanted]]


class KeyLine:
    """Questions not yet answered. `ask` has a call made for some of them, beside the loop."""

    def __init__(self, ask: Callable[[list[Wanted], Together], None], is_shared: Callable[[], bool]) -> None:
        self._ask = ask
        self._is_shared = is_shared
        self._waiting: deque[tuple[object, Wanted]] = deque()
        self._calls = 0
        self.count = 0

    @property
    def calls(self) -> int:
        """Calls under way."""
        return self._calls

    def add(self, wanted: Wanted, token: object) -> None:
        self._waiting.append((token, wanted))
        self.count += 1
        if self._calls < CALLS_MAX:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._calls < CALLS_MAX:
            count = 1 if self._is_shared() else min(len(self._waiting), TOGETHER_MAX)
            asked = [self._waiting.popleft() for _ in range(count)]
            self._calls += 1
            self._ask([wanted for _, wanted in asked], Together(asked))

    def answered(self, together: Together, answer: Future[Sequence[Found]]) -> list[tuple[object, Any]]:
        """Tokens with what came of their questions. Those a call had no time for are the next one's."""
        asked = together.asked
        self._calls -= 1
        if answer.exception() is not None:
            found: Sequence[Any] = [answer] * len(asked)
        else:
            found = answer.result()
            self._waiting.extendleft(reversed(asked[len(found) :]))
        self.count -= len(found)
        self._go_on()
        return [(token, one) for (token, _), one in zip(asked, found, strict=False)]

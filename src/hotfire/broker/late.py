"""What became of halves that are no more where they were: stored anew, laid aside, resumed, committed late.

The log knows all of it by unique keys (`Fate`), but only what is indexed, and a question to it is answered
later than it was asked. What was placed in between is remembered here, so that no two answers lead to two
deliveries and no commit falls between a half and its next place. Bounded: an answer older than what was
forgotten does not count, and the log is asked again.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass

from hotfire.broker.halves import Identity

KEPT_MAX = 10_000


@dataclass(slots=True, frozen=True)
class Fate:
    """What the log knows of a half by its unique key."""

    is_committed: bool = False
    newest: int = -1
    """Its last place in the half queue."""
    is_aside: bool = False
    """Laid aside after that, and not resumed since."""


class Late:
    """The newest of these events; each replaces what was known of its transaction before."""

    def __init__(self) -> None:
        self._fates: OrderedDict[Identity, tuple[Fate, int]] = OrderedDict()
        """What is known, and the end in the log of the record that made it so."""
        self._forgotten_end = 0

    def note(self, of: Identity, fate: Fate, end: int) -> None:
        self._fates[of] = fate, end
        self._fates.move_to_end(of)
        while len(self._fates) > KEPT_MAX:
            _, (_, self._forgotten_end) = self._fates.popitem(last=False)

    def may_trust(self, asked_end: int) -> bool:
        """Whether an answer counts for which the log was indexed up to this end."""
        return asked_end >= self._forgotten_end

    def corrected(self, of: Identity, fate: Fate) -> Fate:
        """The log's answer, with what was placed since."""
        known = self._fates.get(of)
        if known is None or known[0].newest < fate.newest:
            return fate
        return dataclasses.replace(known[0], is_committed=fate.is_committed or known[0].is_committed)

"""How often a row may be stored when its task is run again: one decision, and what follows from it.

At least once: rows are sent, and sent again.

Effectively once: a row's id follows from its partition's name (`labels`) and from what is in it, so it is the
same in every attempt. An attempt that finds the name taken looks for the ids first and sends what is missing.
What this does not see: another attempt that still runs and sends while we look. What a dead one had handed to
the network is waited for (`settleMs`). Rows that an attempt has differently (another order is no difference,
another partition is) are sent again, never left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from hotfire.client.bridge import Bridge
from hotfire.client.prepared import PreparedProducer
from hotfire.core import RowIds
from hotfire.model import SCHEDULE_TOPIC, TIMER_TOPIC
from hotfire.spark.labels import Label, Labels
from hotfire.spark.sinkoptions import AT_LEAST_ONCE, SinkOptions
from hotfire.spark.sinkplan import Selection, chosen
from hotfire.spark.sinkrows import SinkRows
from hotfire.spark.task import TaskFacts

log = logging.getLogger("hotfire.spark")

ID_BYTES = 16
CLOCKS_DIFFER_MS = 10_000
"""Between brokers: what was stored so much before a name is looked at too."""
READ_COUNT_MAX = 2_000_000
"""Messages stored since a name was left; of more the brokers are asked for each id instead."""


class Delivery(Protocol):
    """What is done about rows that may be stored already."""

    confirms: bool
    """Whether a request without an answer is looked for before it is sent again."""

    def begin(self) -> None:
        """Before the first row is sent."""

    def ids(self, topic: str, rows: SinkRows, selected: Selection) -> bytearray | None:
        """16 bytes for each row of the batch, zeros for one without an id of its own; None: none has."""

    def missing(self, topic: str, selected: Selection, ids: bytearray | None, *, delayed: bool) -> Selection:
        """The rows that are to be sent; the others are stored."""


def delivery_of(
    bridge: Bridge, producer: PreparedProducer, options: SinkOptions, facts: TaskFacts, name: str
) -> Delivery:
    """`name` stands for this partition of this write, in every attempt."""
    if options["delivery"] == AT_LEAST_ONCE:
        return AtLeastOnce()
    return EffectivelyOnce(bridge, producer, options, facts, name)


class AtLeastOnce:
    confirms = False

    def begin(self) -> None:
        """Nothing is kept."""

    def ids(self, topic: str, rows: SinkRows, selected: Selection) -> bytearray | None:
        return None

    def missing(self, topic: str, selected: Selection, ids: bytearray | None, *, delayed: bool) -> Selection:
        return selected


class EffectivelyOnce:
    confirms = True

    def __init__(
        self,
        bridge: Bridge,
        producer: PreparedProducer,
        options: SinkOptions,
        facts: TaskFacts,
        name: str,
    ) -> None:
        self._bridge = bridge
        self._producer = producer
        self._options = options
        self._facts = facts
        self._name = name
        self._by_keys = options["uniqueBy"] == "keys"
        self._labels: Sequence[Label] = ()
        self._is_again = False
        self._makers: dict[str, RowIds] = {}
        self._found: dict[str, set[str] | None] = {}

    def begin(self) -> None:
        labels = Labels(self._producer, self._options, self._facts)
        self._labels = self._bridge.run(labels.found(self._name))
        self._is_again = bool(self._labels)
        if not self._is_again:
            self._labels = [self._bridge.run(labels.leave(self._name))]
            return
        log.info("name=%s %s: begun before, its rows are looked for", self._name, self._facts)
        self._bridge.run(asyncio.sleep(self._options["settleMs"] / 1000))

    def ids(self, topic: str, rows: SinkRows, selected: Selection) -> bytearray | None:
        maker = self._makers.get(topic)
        if maker is None:
            # the length keeps two texts apart, whatever is in them
            place = f"{len(self._name)} {self._name} {topic}".encode()
            key = hashlib.blake2b(place, digest_size=ID_BYTES).digest()
            maker = self._makers[topic] = RowIds(key, self._labels[0].id_time)
        out = bytearray(ID_BYTES * rows.count)
        texts, properties = rows.identity(by_keys=self._by_keys)
        maker.run(
            rows.count,
            texts,
            properties,
            selected.buffer,
            selected.at,
            selected.end,
            self._by_keys,
            out,
        )
        return out

    def missing(self, topic: str, selected: Selection, ids: bytearray | None, *, delayed: bool) -> Selection:
        if not self._is_again or ids is None or not selected.count:
            return selected
        if topic not in self._found:
            self._found[topic] = self._bridge.run(self._read(topic))
        rows = selected.rows()
        own = [ids[ID_BYTES * row : ID_BYTES * (row + 1)].hex().upper() for row in rows]
        found = self._found[topic]
        if found is None or delayed:  # delayed ones are not yet in their topic
            found = (found or set()) | self._bridge.run(self._ask(topic, own, delayed))
        left = [row for row, one in zip(rows, own, strict=True) if _timeless(one) not in found]
        return selected if len(left) == len(rows) else chosen(left)

    # --- looking, on the client's loop -----------------------------------------------------------------

    @property
    def _since_ms(self) -> int:
        return self._labels[0].stored_ms - CLOCKS_DIFFER_MS

    async def _read(self, topic: str) -> set[str] | None:
        """What this write has stored in the topic, by ids without their time; None when there is too much."""
        uniques = self._producer.uniques(topic, self._options["deliveryTimeoutMs"] / 1000)
        spans = await uniques.spans_since(self._since_ms, await uniques.all_shown())
        if sum(map(len, spans.values())) > READ_COUNT_MAX:
            return None
        times = {label.id_time.hex().upper() for label in self._labels}
        ids = await uniques.read(spans, lambda one: len(one) == 2 * ID_BYTES and one[20:28] in times)
        return {_timeless(one) for one in ids}

    async def _ask(self, topic: str, own: Sequence[str], delayed: bool) -> set[str]:
        uniques = self._producer.uniques(topic, self._options["deliveryTimeoutMs"] / 1000)
        times = {label.id_time.hex().upper() for label in self._labels}
        listed = [one[:20] + time + one[28:] for one in own if one.strip("0") for time in times]
        also = (SCHEDULE_TOPIC, TIMER_TOPIC) if delayed else ()
        return {_timeless(one) for one in await uniques.find(listed, self._since_ms, also)}


def _timeless(message_id: Any) -> str:
    """An id but for its time: attempts that began at once may have left two."""
    return str(message_id[:20] + message_id[28:])

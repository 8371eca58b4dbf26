"""Following a master: dial it, say where our log ends, take what it sends, say what is safe; and again.

One connection at a time. Whatever goes wrong with it is told once and tried anew after a while: a master that
is gone may come back, one whose log does not go on where ours ends is told of each time that changes, and
nothing of ours is written over. The address comes from haMasterAddress, or from the name servers.
"""

from __future__ import annotations

import asyncio
import logging

from hotfire.broker.slave import Slave
from hotfire.errors import HotfireError
from hotfire.net.clock import now_ms
from hotfire.net.server import Server
from hotfire.net.stream import Stream
from hotfire.protocol.ha import BatchReader, encode_report
from hotfire.store.replica import Unfit

log = logging.getLogger("hotfire.broker")

DIAL_TIMEOUT_S = 3.0
REDIAL_S = 5.0
LOOK_S = 0.05


class Following:
    """Keeps a slave's log going on."""

    def __init__(self, slave: Slave, server: Server) -> None:
        self._slave = slave
        self._server = server
        self._master: str | None = slave.config.ha_master_address
        self._stream: Stream | None = None
        self._batches = BatchReader()
        self._task: asyncio.Task[None] | None = None
        self._reported = -1
        self._reported_s = self._heard_s = 0.0
        self._is_paused = self._goes_on = False
        self._told = ""
        slave.on_turn_done = self._turn_done

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    @property
    def agreed(self) -> object | None:
        """The connection under way, once the master's log is known to go on where ours ends; or None."""
        return self._stream if self._slave.replica.is_compared else None

    def master_is(self, address: str) -> None:
        """What a name server says; a setting goes before it."""
        if self._slave.config.ha_master_address is None and address != self._master:
            log.info("master address=%s", address)
            self._master = address
            if self._stream is not None:
                self._stream.abort(f"the master is at {address} now")

    async def close(self) -> None:
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Hang up without a word."""
        if self._task is not None:
            self._task.cancel()
        if self._stream is not None:
            self._stream.abort("this slave ends")

    # --- one connection after the other ---

    async def _keep(self) -> None:
        while True:
            try:
                if self._master is None:
                    await asyncio.sleep(LOOK_S)
                    continue
                await self._follow(self._master)
            except Exception as error:  # noqa: BLE001  # a task that died would end the copy for good
                is_ours = isinstance(error, HotfireError | Unfit)
                self._tell(str(error) if is_ours else f"{type(error).__name__}: {error}")
            await asyncio.sleep(REDIAL_S)

    def _tell(self, reason: str) -> None:
        if reason != self._told:  # once, not every few seconds of a long outage
            self._told = reason
            end = self._slave.store.end
            log.warning("not following master=%s end=%d reason=%s; trying on", self._master, end, reason)

    async def _follow(self, address: str) -> None:
        store, replica = self._slave.store, self._slave.replica
        while store.readable_end < store.end and store.fault is None:  # noqa: ASYNC110  # a turn takes a moment
            await asyncio.sleep(LOOK_S)  # what was appended before: the copy goes on behind it
        store.check_writeable()
        self._batches = BatchReader()
        failure: list[Exception] = []

        def arrived(data: bytes) -> None:
            try:
                self._arrived(data)
            except Exception as error:  # noqa: BLE001  # told by whoever waits for the end of the stream
                failure.append(error)
                stream.abort("what it sent cannot be taken")

        end = store.end
        stream = await Stream.connect(address, arrived, timeout_s=DIAL_TIMEOUT_S)
        try:
            start = replica.begin()
            self._stream, self._is_paused, self._reported = stream, False, -1
            self._heard_s = asyncio.get_running_loop().time()
            self._report(start)
            log.info("following master=%s from=%d", address, start)
            watching = asyncio.create_task(self._watch(stream))
            try:
                reason = await stream.wait_closed()
            finally:
                watching.cancel()
        finally:
            self._stream = None
            stream.abort("this slave ends")
        if store.end > end:  # it went on: what comes next is news
            self._told = ""
        if failure:
            raise failure[0]
        self._tell(reason)

    async def _watch(self, stream: Stream) -> None:
        """Reports with a period, and the end of a master that says nothing."""
        config, loop = self._slave.config, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, config.ha_send_heartbeat_interval / 1000))
            now_s = loop.time()
            if now_s - self._heard_s > config.ha_housekeeping_interval / 1000 and not self._is_paused:
                stream.abort(f"the master has said nothing for {config.ha_housekeeping_interval} ms")
                return
            if now_s - self._reported_s >= config.ha_send_heartbeat_interval / 1000:
                self._report(max(self._reported, self._slave.replica.safe_end))

    # --- what arrives, and what is safe ---

    def _arrived(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        for batch in self._batches.receive(data):
            self._slave.replica.take(batch.offset, batch.data)
        self._place(now_ms())

    def _place(self, now: int) -> None:
        if not self._slave.place(now) and self._stream is not None:
            self._is_paused = True
            self._stream.pause()
            self._go_on_soon()
        self._acknowledge()
        self._server.after_receive()

    def _turn_done(self, now: int) -> None:
        """More of our log is safe; and there is room for what had to wait."""
        if self._stream is not None:
            self._place_rest(self._stream, now)

    def _place_rest(self, stream: Stream, now: int) -> None:
        try:
            if self._is_paused and self._slave.place(now):
                self._is_paused = False
                stream.resume()
        except Exception as error:  # noqa: BLE001  # the end of this connection only: the broker goes on
            self._tell(str(error))
            stream.abort(str(error))
            return
        if self._is_paused:
            self._go_on_soon()
        self._acknowledge()

    def _go_on_soon(self) -> None:
        """The next pass: after others have had their turn, unless the end of the disk's is waited for."""
        if not self._goes_on and not self._slave.replica.is_turn_full:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self._stream is not None:
            self._place_rest(self._stream, now_ms())
            self._server.after_receive()

    def _acknowledge(self) -> None:
        if self._slave.store.fault is None and self._slave.replica.safe_end > self._reported:
            self._report(self._slave.replica.safe_end)

    def _report(self, offset: int) -> None:
        self._reported, self._reported_s = offset, asyncio.get_running_loop().time()
        if self._stream is not None:
            self._stream.write(encode_report(offset))

"""The process of one filter: started with the server, asked one pull at a time, ended when it fails.

Whatever a filter does, its own pulls fail with a reason and others' go on: who does not answer in time is
killed; who dies is started anew for the next pull, but rests if it dies again and again; those that wait are
bounded. Consumers are given the reason, and the log says it too, to the operator who can mend it. When this
process is killed, its filters' processes end with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process

from hotfire.errors import HotfireError
from hotfire.filtersrv.worker import ENDING, LENGTH, OK
from hotfire.protocol.command import FRAME_BYTES_MAX

log = logging.getLogger("hotfire.filtersrv")

RESTART_S, RESTART_S_MAX = 0.5, 30.0
"""Until a filter that ended twice in a row is started again, and twice that each time it ends once more: to
start a process costs others a good part of a second of a processor."""
END_S = 2.0
TOLD_EVERY_S = 10.0
"""Between two lines of the log about one filter: it may fail at every pull."""
TOLD_CHARACTERS_MAX = 300


class FilterFailed(HotfireError):
    """A filter came to no verdict: it raised, took too long, or its process ended."""


class FilterBusy(HotfireError):
    """As many pulls wait for this filter as may."""


class FilterProcess:
    """One filter, by the name its pulls use."""

    def __init__(
        self,
        name: str,
        place: str,
        broker: str,
        *,
        timeout_s: float,
        start_timeout_s: float,
        memory_bytes: int,
        waiting_max: int,
    ) -> None:
        self.name = name
        self._command = (
            sys.executable, "-m", "hotfire.filtersrv.worker",
            place, broker, str(memory_bytes), str(os.getpid()),
        )  # fmt: skip
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._ended_count = 0
        """Times in a row that its process ended without a verdict."""
        self._rests_until_s = 0.0
        self._last_reason = ""
        self._told_at_s = -TOLD_EVERY_S
        self._untold = 0
        self._is_closed = False
        self.starts = 0

    async def load(self) -> None:
        """Start the process before it is needed. FilterFailed says why it cannot be."""
        async with self._turn:
            await self._started()

    async def judge(self, records: bytes) -> bytes:
        """A byte for each record: 1 for those to deliver. FilterFailed, or FilterBusy, says why not."""
        if self._waiting >= self._waiting_max:
            raise FilterBusy(f"{self._waiting} pulls wait for filter {self.name} already; try again later")
        self._waiting += 1
        # A consumer that goes in the middle must not end the process that others wait for, too.
        asking = asyncio.get_running_loop().create_task(self._in_turn(records))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asking)

    async def _in_turn(self, records: bytes) -> bytes:
        try:
            async with self._turn:
                return await self._ask(records)
        finally:
            self._waiting -= 1

    async def _ask(self, records: bytes) -> bytes:
        process = await self._started()
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._exchange(process, records)
            except TimeoutError:
                raise FilterFailed(
                    f"filter {self.name} took longer than {self._timeout_s:g} s for {len(records)} bytes of "
                    "messages (filterTimeoutMillis), and was ended"
                ) from None
        except BaseException as error:  # what it says next is nobody's answer
            await self._failed(str(error))
            raise
        if answer[:1] != ENDING:
            self._ended_count = 0
        if answer[:1] == OK:
            return answer[1:]
        reason = f"filter {self.name} failed: {answer[1:].decode('utf-8', 'replace')}"
        if answer[:1] == ENDING:
            await self._failed(reason)
        else:
            self._tell(reason)
        raise FilterFailed(reason)

    async def _started(self) -> Process:
        self._check_rested()
        try:
            return await self._running()
        except BaseException as error:
            await self._failed(str(error))
            raise

    async def _failed(self, reason: str) -> None:
        """It ended, or is to."""
        self._rest(reason)
        self._tell(reason)
        await self.end()

    def _tell(self, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._is_closed or not reason:  # the end was ours
            return
        if now_s - self._told_at_s < TOLD_EVERY_S:
            self._untold += 1
            return
        told = "".join(one if one.isprintable() else " " for one in reason[:TOLD_CHARACTERS_MAX])
        log.warning("%s (others_since=%d)", told, self._untold)
        self._told_at_s, self._untold = now_s, 0

    def _rest(self, reason: str) -> None:
        self._ended_count += 1
        self._last_reason = reason
        again_s = RESTART_S * 2 ** min(self._ended_count - 2, 10) if self._ended_count > 1 else 0.0
        self._rests_until_s = asyncio.get_running_loop().time() + min(again_s, RESTART_S_MAX)

    def _check_rested(self) -> None:
        if self._is_closed:
            raise FilterFailed(f"filter {self.name} is being closed")
        left_s = self._rests_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            raise FilterFailed(
                f"filter {self.name} ended {self._ended_count} times in a row and is started again in "
                f"{left_s:.1f} s; the last time: {self._last_reason}"
            )

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=FRAME_BYTES_MAX
            )
        except OSError as error:
            raise FilterFailed(f"filter {self.name} has no process: {error}") from None
        self.starts += 1
        log.info("filter=%s started pid=%d", self.name, process.pid)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                told = await self._receive(process)
        except TimeoutError:
            raise FilterFailed(
                f"filter {self.name} did not start within {self._start_timeout_s:g} s"
            ) from None
        if told[:1] != OK:
            raise FilterFailed(
                f"filter {self.name} could not be loaded: {told[1:].decode('utf-8', 'replace')}"
            )
        return process

    async def _exchange(self, process: Process, records: bytes) -> bytes:
        assert process.stdin is not None
        try:
            process.stdin.write(len(records).to_bytes(LENGTH) + records)
            await process.stdin.drain()
        except OSError as error:
            raise FilterFailed(f"filter {self.name} ended by itself: {error}; it is started anew") from None
        return await self._receive(process)

    async def _receive(self, process: Process) -> bytes:
        assert process.stdout is not None
        try:
            size = int.from_bytes(await process.stdout.readexactly(LENGTH))
            if not 1 <= size <= FRAME_BYTES_MAX:
                raise FilterFailed(f"filter {self.name} answers with {size} bytes, which is no verdict")
            return await process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            code = await process.wait()
            raise FilterFailed(
                f"filter {self.name} ended by itself, exit code {code}: it may have met its memory limit "
                "(filterMemoryMax); it is started anew"
            ) from None

    async def close(self) -> None:
        """End it for good."""
        self._is_closed = True
        await self.end()

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.wait(), END_S)

"""One filter in a process of its own: messages in by stdin, verdicts out by stdout, until stdin ends.

    python -m hotfire.filtersrv.worker MODULE:FUNCTION BROKER MEMORY_BYTES PARENT_PID

Each way a frame is an int32 length and that many bytes. In: stored records, one behind the other. Out: a byte
of 0 and then a byte for each record, 1 to deliver it; or a byte of 1 and why there is no verdict, of 2 when
the process also ends. The first frame out, before any comes in, says whether the filter could be loaded.

Runs whatever the operator installed, with a limit to its memory, and no longer than the filter server lives.
What the filter prints goes to stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from hotfire.client.messages import received_messages
from hotfire.model import ReceivedMessage
from hotfire.protocol.command import FRAME_BYTES_MAX

LENGTH = 4
OK, FAILED, ENDING = b"\0", b"\1", b"\2"
REASON_BYTES_MAX = 1000
NICENESS = 5
"""A filter in a hurry leaves the server itself its share of the processors."""
PR_SET_PDEATHSIG = 1
"""Of Linux's <sys/prctl.h>."""

Filter = Callable[[ReceivedMessage], object]


def end_with(parent_pid: int) -> bool:
    """From now on the kernel ends this process with its parent, however that ends: stdin, which would say so,
    is not read while a filter runs. False when the parent is gone already, which the kernel tells nobody.

    Only Linux has it; elsewhere a filter that hangs outlives a filter server that is killed.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)):
        sys.stderr.write("the kernel refuses PR_SET_PDEATHSIG: a killed filter server may leave filters\n")
    if os.getppid() == parent_pid:
        return True
    sys.stderr.write(
        f"the filter server {parent_pid} that wanted this filter is gone, or did not start it itself\n"
    )
    return False


def load(place: str) -> Filter:
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{place} is {type(found).__name__}, not a function")
    return found


def judge(function: Filter, body: bytes, broker: str) -> bytes:
    """A byte for each record. Of a batch that is one record, a message to deliver is enough."""
    verdicts = bytearray()
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + LENGTH])
        if not LENGTH < size <= len(body) - at:
            raise ValueError(f"record at {at} of {len(body)} bytes says it has {size}")
        messages = received_messages(body[at : at + size], broker)
        verdicts.append(any([bool(function(message)) for message in messages]))
        at += size
    return bytes(verdicts)


def write(out: BinaryIO, data: bytes) -> None:
    out.write(len(data).to_bytes(LENGTH) + data)
    out.flush()


def failure(error: BaseException, kind: bytes = FAILED) -> bytes:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return kind + text.encode("utf-8", "replace")[:REASON_BYTES_MAX]


def main(place: str, broker: str, memory_bytes: int, parent_pid: int) -> int:
    if not end_with(parent_pid):
        return 1
    # what a filter prints must not be taken for a verdict
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        function = load(place)
    except Exception as error:  # noqa: BLE001  # told to the parent
        write(out, failure(error, ENDING))
        return 1
    write(out, OK)
    source = sys.stdin.buffer
    while len(head := source.read(LENGTH)) == LENGTH:
        size = int.from_bytes(head)
        if size > FRAME_BYTES_MAX:
            return 1
        body = source.read(size)
        try:
            verdict = OK + judge(function, body, broker)
        except MemoryError as error:  # what else has no room by now, nobody knows: begin anew
            write(out, failure(error, ENDING))
            return 1
        except Exception as error:  # noqa: BLE001  # the pull's own failure
            verdict = failure(error)
        write(out, verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))

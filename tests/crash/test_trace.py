"""The reader of traces tells a reply that waited for the disk from one that did not."""

import struct

import pytest

from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import RESPONSE_FLAG, Command, encode
from tests.crash.trace import Trace, parse

BROKER = "127.0.0.1:10911"
LOG = "".join(f"\\x{byte:02x}" for byte in b"/data/commitlog/00000000000000065536")
RECORD = struct.pack(">i", 40) + bytes(36)


def hexed(data: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def pwrite(data: bytes, at: int) -> str:
    return f"pwrite64(7<{LOG}>, {hexed(data)}, {len(data)}, {at})"


SYNC = f"fdatasync(7<{LOG}>)"
REPLY = encode(
    Command(ResponseCode.SUCCESS, flag=RESPONSE_FLAG, fields={"msgId": f"7F00000100002A9F{65536 + 100:016X}"})
)
SOCKET = f"TCP:[{BROKER}->127.0.0.1:5000]"


def send(data: bytes) -> str:
    return f"write(9<{SOCKET}>, {hexed(data)}, {len(data)})"


def numbered(*texts: str) -> list[str]:
    return [f"{text.split('|')[0]} 1700000000.{i:06d} {text.split('|')[1]}\n" for i, text in enumerate(texts)]


GOOD = [f"2|{pwrite(RECORD, 100)} = 40", f"2|{SYNC} = 0", f"1|{send(REPLY)} = {len(REPLY)}"]
STORIES = {
    "written, synced, answered": (GOOD, 0),
    "never synced": ([GOOD[0], GOOD[2]], 1),
    "never written": ([GOOD[1], GOOD[2]], 1),
    "answered before the sync": ([GOOD[0], GOOD[2], GOOD[1]], 1),
    "synced before it was written": ([GOOD[1], GOOD[0], GOOD[2]], 1),
    "answered while the sync was under way": (
        [GOOD[0], f"2|{SYNC} <unfinished ...>", GOOD[2], "2|<... fdatasync resumed>) = 0"],
        1,
    ),
    "the sync began while the write was under way": (
        [
            f"2|{pwrite(RECORD, 100)[:-1]} <unfinished ...>",
            f"3|{SYNC} <unfinished ...>",
            "2|<... pwrite64 resumed>) = 40",
            "3|<... fdatasync resumed>) = 0",
            GOOD[2],
        ],
        1,
    ),
    "calls of other threads in between": (
        [
            f"2|{pwrite(RECORD, 100)[:-1]} <unfinished ...>",
            "1|write(5<anon_inode:[eventfd]>, " + hexed(bytes(8)) + ", 8) = 8",
            "2|<... pwrite64 resumed>) = 40",
            f"2|{SYNC[:-1]} <unfinished ...>",
            "1|write(5<anon_inode:[eventfd]>, " + hexed(bytes(8)) + ", 8 <unfinished ...>",
            "2|<... fdatasync resumed>) = 0",
            "1|<... write resumed>) = 8",
            GOOD[2],
        ],
        0,
    ),
    "written in two pieces, the second after the sync": (
        [
            f"2|{pwrite(RECORD, 100)} = 30",
            GOOD[1],
            f"2|{pwrite(RECORD[30:], 130)} = 10",
            GOOD[2],
        ],
        1,
    ),
    "the sync failed": ([GOOD[0], f"2|{SYNC} = -1 EIO (Input/output error)", GOOD[2]], 1),
    "the reply leaves in two pieces, the first too early": (
        [
            GOOD[0],
            f"1|{send(REPLY)} = 10",
            GOOD[1],
            f"1|{send(REPLY[10:])} = {len(REPLY) - 10}",
        ],
        1,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_reader_judges(story: str) -> None:
    """Each order of write, sync and reply is told apart, also when calls overlap."""
    texts, early = STORIES[story]
    trace = Trace.read(numbered(*texts), broker=BROKER, segment_bytes=65536)
    assert len(trace.replies) == 1
    assert len(trace.too_early()) == early


def test_gathered_writes_are_read() -> None:
    """Replies that leave by writev or sendmsg count like others."""
    gathered = (
        f"writev(9<{SOCKET}>, [{{iov_base={hexed(REPLY[:20])}, iov_len=20}}, "
        f"{{iov_base={hexed(REPLY[20:])}, iov_len={len(REPLY) - 20}}}], 2) = {len(REPLY)}"
    )
    trace = Trace.read(numbered(*GOOD[:2], "1|" + gathered), broker=BROKER, segment_bytes=65536)
    assert [reply.physical for reply in trace.replies] == [65636]
    assert not trace.too_early()


def test_cut_data_is_an_error() -> None:
    """A trace that does not hold all bytes proves nothing."""
    (call,) = parse(numbered('1|write(9<x>, "\\x41"..., 400) = 400'))
    with pytest.raises(AssertionError, match="strace cut the data"):
        _ = call.data

"""Records, logs and twins for the tests of this room."""

import ctypes
import mmap
import os
from types import ModuleType

from hypothesis import strategies as st

from hotfire.core import _core as compiled
from hotfire.core import plain
from hotfire.protocol.record import Host, Record, SysFlag, encode_properties

TWINS: dict[str, ModuleType] = {"compiled": compiled, "plain": plain}

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), int32)
topics = st.text(max_size=20) | st.text("abcÄ€😀%-", min_size=100, max_size=130).map(
    lambda text: text.encode()[:255].decode("utf-8", "ignore")
)
words = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
)
pairs = st.dictionaries(words | st.just("TAGS"), words, max_size=3).map(encode_properties)
properties = pairs | pairs.map(lambda text: text.removesuffix(b"\x02")) | st.binary(max_size=30)


@st.composite
def records(draw: st.DrawFn) -> Record:
    born, stored = draw(hosts), draw(hosts)
    flags = draw(st.integers(0, 15))
    return Record(
        topic=draw(topics),
        queue_id=draw(int32),
        body=draw(st.binary(max_size=200)),
        born_timestamp=draw(int64),
        born_host=born,
        store_timestamp=draw(int64),
        store_host=stored,
        properties=draw(properties),
        flag=draw(int32),
        sys_flag=flags | born.is_v6 * SysFlag.BORN_HOST_V6 | stored.is_v6 * SysFlag.STORE_HOST_V6,
        queue_offset=draw(int64),
        physical_offset=draw(int64),
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
    )


class Guarded:
    """Memory that ends where reading on is a fault: one byte too many stops the run, sanitized or not."""

    def __init__(self, size: int = 1 << 17) -> None:
        page = mmap.PAGESIZE
        self._size = size
        self._map = mmap.mmap(-1, size + page)
        self._view = memoryview(self._map)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(start + size, page, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def holding(self, data: bytes) -> memoryview:
        """`data`, its last byte the last that may be read."""
        assert len(data) <= self._size
        view = self._view[self._size - len(data) : self._size]
        view[:] = data
        return view

"""Memory that was freed, kept for what comes next.

A bulk answer is a block of some megabytes that lives until it is sent. The C library gives such blocks back
to the system when a few are free, by default, and the next answer has each of its pages made anew, which
costs as much as copying the messages into it. Told so, it keeps 64 MiB at the most, and then half.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 32 << 20
BLOCK_BYTES_MAX = 8 << 20
"""Larger ones are few, and given back."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Whether the C library takes such advice; glibc's does."""
    try:
        advise = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    asked = (_MMAP_THRESHOLD, BLOCK_BYTES_MAX), (_TRIM_THRESHOLD, 2 * KEPT_BYTES), (_TOP_PAD, KEPT_BYTES)
    return all(advise(what, size) for what, size in asked)

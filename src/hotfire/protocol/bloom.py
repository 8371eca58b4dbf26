"""Bits that stand for a group's condition on a topic, in the bitmaps of queue extensions.

As the reference computes them: a Bloom filter sized for so many groups at some rate of error, and the bits of
`group#topic` from the first half of MurmurHash3's 128.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(slots=True, frozen=True)
class Bloom:
    """`hashes` bits of `bits` for each name."""

    hashes: int
    bits: int

    @classmethod
    def sized(cls, error_percent: int, names: int) -> Bloom:
        """
        >>> Bloom.sized(20, 32)
        Bloom(hashes=3, bits=112)
        """
        rate = error_percent / 100
        hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(names * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        return cls(hashes, 8 * math.ceil(bits / 8))

    def positions(self, name: str) -> tuple[int, ...]:
        """
        >>> Bloom(3, 112).positions("CID_1#TopicTest")
        (6, 38, 41)
        """
        hashed = murmur3(name.encode())
        first, second = _int32(hashed), _int32(hashed >> 32)
        places = []
        for number in range(1, self.hashes + 1):
            combined = _int32(first + number * second)
            places.append((~combined if combined < 0 else combined) % self.bits)
        return tuple(places)


def _int32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3(data: bytes) -> int:
    """The first 64 bits of MurmurHash3_x64_128, seed 0.

    >>> hex(murmur3(b"CID_1#TopicTest"))
    '0x300c65c07ca97189'
    """
    first = second = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        low, high = (
            int.from_bytes(data[at : at + 8], "little"),
            int.from_bytes(data[at + 8 : at + 16], "little"),
        )
        first ^= _turned(low * _C1 & _MASK, 31) * _C2 & _MASK
        first = ((_turned(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _turned(high * _C2 & _MASK, 33) * _C1 & _MASK
        second = ((_turned(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    low, high = int.from_bytes(data[whole : whole + 8], "little"), int.from_bytes(data[whole + 8 :], "little")
    second ^= _turned(high * _C2 & _MASK, 33) * _C1 & _MASK
    first ^= _turned(low * _C1 & _MASK, 31) * _C2 & _MASK
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    first, second = _mixed(first), _mixed(second)
    return (first + second) & _MASK

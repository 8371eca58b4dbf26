"""Test doubles as public API: disk, clock and network that do what a test asks of them."""

from hotfire.testing.simdisk import PowerCut, SimDisk

__all__ = ["PowerCut", "SimDisk"]

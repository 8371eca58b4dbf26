"""Test doubles as public API: disk, clock and network that do what a test asks of them."""

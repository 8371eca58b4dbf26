"""Free loopback ports, for servers that must be told theirs before they start."""

from hotfire.testing.ports import free_port

__all__ = ["free_port"]

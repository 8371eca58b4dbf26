"""The disk and everything kept on it. No sockets, no event loop, no clock of its own."""

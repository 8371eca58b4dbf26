"""The remoting protocol and the record format as values: bytes in, typed values out.

Nothing below this package opens a socket, a file or a clock. It imports `errors` and `model` only.
"""

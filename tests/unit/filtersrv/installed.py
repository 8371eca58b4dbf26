"""Filters as an operator might install them, good ones and bad ones."""

import os
import sys
import time

from hotfire import ReceivedMessage

large: list[bytearray] = []


def red(message: ReceivedMessage) -> bool:
    return message.properties.get("colour") == "red"


def raises(message: ReceivedMessage) -> bool:
    sys.stdout.write("what a filter prints is no verdict\n")
    raise ValueError(f"no opinion on {message.body.decode()}")


def hangs(message: ReceivedMessage) -> bool:
    while message.body != b"quick":
        time.sleep(0.01)
    return True


def spins(message: ReceivedMessage) -> bool:
    sys.stderr.write("spins\n")
    while message.body != b"quick":
        pass
    return True


def slow(message: ReceivedMessage) -> bool:
    time.sleep(0.2)
    return True


def eats(message: ReceivedMessage) -> bool:
    while message.body != b"small":
        large.append(bytearray(16 << 20))
    return True


def dies(message: ReceivedMessage) -> bool:
    os._exit(3)


not_a_function = "text"

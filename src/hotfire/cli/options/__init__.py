"""What each command takes, apart from what it does: help and usage need no client, no broker and no loop.

A module per command, with `configure(parser)`. It may have `take_late(args, words)`: argparse leaves over an
optional word that comes after options, and the command may still take it. Here is what several of them share.
"""

from __future__ import annotations

import argparse
import os

from hotfire.places import DEFAULT_NAMESRV


def add_namesrv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--namesrv", metavar="ADDRS",
        default=os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV,
        help="name servers, host:port;host:port (NAMESRV_ADDR, now %(default)s)",
    )  # fmt: skip


def add_tls(parser: argparse.ArgumentParser) -> None:
    """How servers are dialled."""
    parser.add_argument(
        "--tls", action="store_true", help="with TLS, as this machine's authorities vouch for"
    )
    parser.add_argument(
        "--tls-trust", metavar="FILE", help="with TLS, as the certificates in FILE, PEM, vouch for"
    )
    parser.add_argument(
        "--tls-unverified", action="store_true", help="with TLS, and whoever answers is believed"
    )


def add_json(parser: argparse.ArgumentParser, what: str = "as JSON, for programs") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_where(parser: argparse.ArgumentParser) -> None:
    """On which brokers something is made."""
    parser.add_argument(
        "--brokers", metavar="NAMES", type=names, help="only on these, with commas between; on all by default"
    )
    parser.add_argument("--cluster", metavar="NAME", help="on the brokers of this cluster only")


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, above 0 and up to a day")
    return value


def names(text: str) -> list[str]:
    """
    >>> names("broker-b, broker-a,broker-b")
    ['broker-a', 'broker-b']
    """
    return sorted({name.strip() for name in text.split(",") if name.strip()})


def queue(text: str) -> tuple[str, int]:
    """
    >>> queue("broker-a:3")
    ('broker-a', 3)
    """
    broker, colon, queue_id = text.rpartition(":")
    if not colon or not broker or not (queue_id.isascii() and queue_id.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no queue, such as broker-a:0")
    return broker, int(queue_id)

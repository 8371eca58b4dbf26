"""What `hotfire bench` takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from hotfire.cli.options import add_namesrv, positive, seconds

TOPIC = "hotfire-bench"
CONNECTIONS_MAX, WINDOW_MAX, BATCH_MAX, GROUPS_MAX = 1024, 65536, 1024, 64
BODY_BYTES_MAX = 4 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Connections are plain: the generator of load speaks no TLS."
    modes = parser.add_subparsers(dest="mode", metavar="MODE", required=True)
    send = modes.add_parser("send", help="store messages as fast as they are acknowledged, or at a rate")
    pull = modes.add_parser("pull", help="read what is stored, from the beginning, again and again")
    end_to_end = modes.add_parser("e2e", help="store messages, and read them as they come: how late they are")
    for mode in (send, pull, end_to_end):
        add_namesrv(mode)
        mode.add_argument("--topic", metavar="TOPIC", default=TOPIC, help="made if need be (%(default)s)")
        mode.add_argument(
            "--connections", metavar="N", type=_up_to(CONNECTIONS_MAX), default=8, help="(%(default)s)"
        )
        mode.add_argument(
            "--window", metavar="N", type=_up_to(WINDOW_MAX), default=8 if mode is pull else 64,
            help="requests under way on each connection (%(default)s)",
        )  # fmt: skip
        mode.add_argument("--seconds", metavar="S", type=seconds, default=10.0, help="(%(default)s)")
        mode.add_argument(
            "--warm-up", metavar="S", type=float, default=1.0,
            help="before that, not counted; none when --count is given (%(default)s)",
        )  # fmt: skip
        mode.add_argument("--count", metavar="N", type=positive, help="end after so many messages")
        mode.add_argument(
            "--binary", action="store_true", help="binary headers; JSON, as most clients have it, by default"
        )
        mode.add_argument("--json", metavar="FILE", help="every figure, to a file; - is standard output")
        mode.add_argument(
            "--picture", metavar="FILE.svg", help="rate over time and the spread of latencies, drawn"
        )
    for mode in (send, end_to_end):
        mode.add_argument(
            "--size",
            metavar="BYTES",
            type=_up_to(BODY_BYTES_MAX),
            default=128,
            help="of a body (%(default)s)",
        )
        mode.add_argument(
            "--queues", metavar="N", type=_up_to(1024), default=8,
            help="on each broker, of a topic that is made (%(default)s)",
        )  # fmt: skip
        mode.add_argument(
            "--batch",
            metavar="N",
            type=_up_to(BATCH_MAX),
            default=1,
            help="messages in a request (%(default)s)",
        )
        mode.add_argument(
            "--rate", metavar="N", type=positive,
            help="messages a second; latency counts from when each was due. As fast as answered by default",
        )  # fmt: skip
    pull.add_argument(
        "--batch", metavar="N", type=_up_to(BATCH_MAX), default=32,
        help="messages asked for at once (%(default)s)",
    )  # fmt: skip
    end_to_end.add_argument(
        "--groups", metavar="N", type=_up_to(GROUPS_MAX), default=1,
        help="that each read every message (%(default)s)",
    )  # fmt: skip


def _up_to(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
        return int(text)

    return parse

"""What `hotfire up` takes."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", default="./hotfire-data", metavar="DIR", help="where messages are kept (%(default)s)"
    )
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="broker processes, one directory each (%(default)s)",
    )
    parser.add_argument(
        "--namesrv-port", type=int, default=9876, metavar="PORT", help="0 picks a free one (%(default)s)"
    )
    parser.add_argument(
        "--broker-port",
        type=int,
        default=10911,
        metavar="PORT",
        help="that of the first broker, the next are 10 apart; 0 picks free ones (%(default)s)",
    )
    parser.add_argument(
        "--bind", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="SYNC_FLUSH",
        help="when a message counts as stored: on the disk, or written (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other broker setting"
    )

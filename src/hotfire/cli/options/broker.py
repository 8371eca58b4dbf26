"""What `hotfire broker` takes."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="broker.conf: key=value lines")
    parser.add_argument("-n", "--namesrv", metavar="ADDRS", help="name servers, host:port;host:port")
    parser.add_argument("-p", "--print", action="store_true", help="print every setting and exit")
    parser.add_argument("-m", "--important", action="store_true", help="print the important ones and exit")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, over the file's"
    )
    parser.add_argument(
        "--until-input-ends", action="store_true",
        help="stop when standard input is closed: with whoever started this",
    )  # fmt: skip

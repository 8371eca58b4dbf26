"""What `hotfire filtersrv` takes."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="filtersrv.conf: key=value lines")
    parser.add_argument("-p", "--print", action="store_true", help="print every setting and exit")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, over the file's"
    )

"""What `hotfire demo` takes."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the data directory behind")
    parser.add_argument(
        "--picture", default="hotfire-demo.svg", metavar="FILE",
        help="where rates and latencies are drawn (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-spark", action="store_true", help="leave the pipelines out")

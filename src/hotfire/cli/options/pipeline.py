"""What `hotfire pipeline` takes. The options of each pipeline are declared in `hotfire.spark.pipelines`."""

from __future__ import annotations

import argparse

from hotfire.spark.pipelines import PIPELINES


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    width = max(map(len, PIPELINES))
    listed = "".join(f"\n  {name:{width}}  {says}" for name, says in PIPELINES.items())
    run = actions.add_parser(
        "run",
        help="run a ready-made pipeline, or a job file, with Spark",
        usage="%(prog)s NAME|job.yml [--master URL] [options]",
        description="Runs a pipeline with Spark, on this machine unless --master says otherwise.",
        epilog=f"pipelines:{listed}\n\n`hotfire pipeline run NAME --help` tells what one takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("what", metavar="NAME|job.yml", help="a pipeline, or a job file")
    run.add_argument("words", metavar="options", nargs=argparse.REMAINDER, help="its own; see below")
    init = actions.add_parser("init", help="write a job file to begin with, each line explained")
    init.add_argument("file", metavar="FILE", nargs="?", default="job.yml", help="(%(default)s)")
    init.add_argument("--force", action="store_true", help="write over a file that exists")
    actions.add_parser("list", help="the ready-made pipelines")

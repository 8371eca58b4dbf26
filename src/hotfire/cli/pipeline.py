"""hotfire pipeline: run a pipeline with Spark, write a job file to begin with, list what is ready-made."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotfire.errors import ConfigError
from hotfire.spark.pipelines import PIPELINES


def run(args: argparse.Namespace) -> int:
    actions = {"run": _run, "init": _init, "list": _list}
    return actions[args.action](args)


def _run(args: argparse.Namespace) -> int:
    from hotfire.spark.run import main

    return main([args.what, *args.words])


def _init(args: argparse.Namespace) -> int:
    from hotfire.spark.jobfile import example

    path = Path(args.file)
    try:
        with path.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(example())
    except FileExistsError:
        raise ConfigError(f"file {path} exists; name another, or add --force") from None
    except OSError as error:
        raise ConfigError(f"file {path}: {error.strerror}") from None
    print(f"{path} is written; change it, then: hotfire pipeline run {path}")
    return 0


def _list(args: argparse.Namespace) -> int:
    width = max(map(len, PIPELINES))
    for name, says in PIPELINES.items():
        print(f"{name:{width}}  {says}")
    return 0

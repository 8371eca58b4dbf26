"""The hotfire command: one front door, commands behind it that are imported only when called.

What a command takes is declared in `options`, apart from what it does: help costs next to nothing.

Owns the list of commands, the exit codes and how an error looks to a person: one line on stderr.

    0    done
    1    could not be done: refused, unreachable, bad setting
    2    wrong usage
    130  interrupted by Ctrl-C
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("hotfire.cli.up", "start a name server and one or more brokers"),
    "broker": ("hotfire.cli.broker", "start a broker"),
    "filtersrv": ("hotfire.cli.filtersrv", "start a filter server beside a broker"),
    "namesrv": ("hotfire.cli.namesrv", "start a name server"),
    "demo": ("hotfire.cli.demo", "start everything, send some messages, read them back"),
    "send": ("hotfire.cli.send", "send messages to a topic"),
    "tail": ("hotfire.cli.tail", "print the messages of a topic, and those to come"),
    "store": ("hotfire.cli.store", "look into a store, check it, copy it, rebuild its queues"),
    "topic": ("hotfire.cli.topic", "list topics, show where one is, make one, delete one"),
    "group": ("hotfire.cli.group", "list consumer groups, show how far one is, make one, delete one"),
    "offset": ("hotfire.cli.offset", "show where a group is in a topic, let it go on elsewhere"),
    "message": ("hotfire.cli.message", "show a message, find some by key or time, follow one's trace"),
    "pipeline": ("hotfire.cli.pipeline", "archive, query and aggregate topics with Spark"),
    "bench": ("hotfire.cli.bench", "measure how fast a cluster stores and delivers"),
}
"""Each module has `run(args) -> exit code`, and one of the same name in `options` what it takes."""


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # also while a command is only being imported
        return EXIT_INTERRUPTED


def _run(words: list[str]) -> int:
    parser = _parser(next((word for word in words if not word.startswith("-")), None))
    args, rest = parser.parse_known_args(words)
    if args.command is None:
        parser.print_help()
        return EXIT_USAGE
    if rest and not args.take_late(args, rest):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = importlib.import_module(COMMANDS[args.command][0]).run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our output has enough. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if not _is_ours(error):
            raise
        # Remarks come from a broker: one line, and nothing that moves the cursor.
        whole = "; ".join([str(error), *getattr(error, "__notes__", ())])
        told = "".join(one if one.isprintable() else " " for one in whole)
        print(f"hotfire {args.command}: {told}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotfire", description="A message broker that speaks the RocketMQ protocol."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (_, help_line) in COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=help_line)
        if name == chosen:
            options = importlib.import_module(f"hotfire.cli.options.{name}")
            options.configure(command)
            take_late = getattr(options, "take_late", lambda args, rest: False)
            command.set_defaults(parser=command, take_late=take_late)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"hotfire {version('hotfire')}")
        parser.exit()


def _is_ours(error: Exception) -> bool:
    from hotfire.errors import HotfireError

    is_stale_core = isinstance(error, ImportError) and error.name == "hotfire.core._core"
    return is_stale_core or isinstance(error, HotfireError)

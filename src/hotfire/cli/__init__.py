"""The hotfire command: one front door, commands behind it that are imported only when called.

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
    "up": ("hotfire.cli.up", "start a name server and a broker in one process"),
    "broker": ("hotfire.cli.broker", "start a broker"),
    "namesrv": ("hotfire.cli.namesrv", "start a name server"),
    "demo": ("hotfire.cli.demo", "start everything, send some messages, read them back"),
    "send": ("hotfire.cli.send", "send messages to a topic"),
    "tail": ("hotfire.cli.tail", "print the messages of a topic, and those to come"),
    "store": ("hotfire.cli.store", "look into a store directory, check it, make its queues anew"),
    "topic": ("hotfire.cli.topic", "list topics, show where one is"),
}
"""Each module has `configure(parser)` and `run(args) -> exit code`. It may have `take_late(args, words)`:
argparse leaves over an optional word that comes after options, and the command may still take it."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(next((word for word in words if not word.startswith("-")), None))
    args, rest = parser.parse_known_args(words)
    if args.command is None:
        parser.print_help()
        return EXIT_USAGE
    if rest and not args.take_late(args, rest):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our output has enough. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"hotfire {args.command}: {error}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotfire", description="A message broker that speaks the RocketMQ protocol."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module_name, help_line) in COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=help_line)
        if name == chosen:
            module = importlib.import_module(module_name)
            module.configure(command)
            take_late = getattr(module, "take_late", lambda args, rest: False)
            command.set_defaults(run=module.run, parser=command, take_late=take_late)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"hotfire {version('hotfire')}")
        parser.exit()


def _is_ours(error: Exception) -> bool:
    from hotfire.errors import HotfireError

    return isinstance(error, HotfireError)

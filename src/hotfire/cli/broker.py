"""hotfire broker: a broker, configured by an Apache-style file."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from hotfire import core
from hotfire.cli.serving import log, parse_pairs, read_config_file, say, serve, settle, take_settings


def run(args: argparse.Namespace) -> int:
    from hotfire.apache_settings import BROKER, IMPORTANT
    from hotfire.broker.config import BrokerConfig
    from hotfire.settings import format_properties, to_properties

    file = read_config_file(args.config)
    given = parse_pairs(args.set)
    if args.namesrv:
        given["namesrvAddr"] = args.namesrv
    for key, variable in (("namesrvAddr", "NAMESRV_ADDR"), ("rocketmqHome", "ROCKETMQ_HOME")):
        if variable in os.environ:
            file.properties.setdefault(key, os.environ[variable])
    config, tell_unused = take_settings(BrokerConfig, file, given, BROKER)
    if args.print or args.important:
        shown = to_properties(config)
        if not args.print:
            shown = {key: value for key, value in shown.items() if key in IMPORTANT}
        print(format_properties(shown), end="")
        return 0

    async def main(stop: asyncio.Event) -> None:
        from hotfire.broker.program import BrokerProgram

        tell_unused()
        if args.until_input_ends:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _watch_input, stop)
        program = BrokerProgram(config, Path(args.config) if args.config else None)
        await program.start()
        if not core.COMPILED:
            log.warning("running on plain Python, several times slower: %s", core.WHY_PLAIN)
        if not config.name_servers:
            log.warning(
                "no name server is configured: clients cannot find this broker; give -n or namesrvAddr"
            )
        settle()
        say(
            f"hotfire ready broker={program.advertised} name={config.broker_name} "
            f"data={config.root} pid={os.getpid()}"
        )
        await stop.wait()
        log.info("stopping")
        await program.close()

    return serve(main)


def _watch_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()

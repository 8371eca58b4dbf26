"""hotfire broker: a broker, configured by an Apache-style file."""

from __future__ import annotations

import argparse
import asyncio
import os

from hotfire import core
from hotfire.cli.serving import log, read_config_file, say, serve, settle, warn_unknown


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="broker.conf: key=value lines")
    parser.add_argument("-n", "--namesrv", metavar="ADDRS", help="name servers, host:port;host:port")
    parser.add_argument("-p", "--print", action="store_true", help="print every setting and exit")


def run(args: argparse.Namespace) -> int:
    from hotfire.broker.config import BrokerConfig
    from hotfire.settings import format_properties, from_properties, to_properties

    properties = read_config_file(args.config)
    if args.namesrv:
        properties["namesrvAddr"] = args.namesrv
    elif "NAMESRV_ADDR" in os.environ:
        properties.setdefault("namesrvAddr", os.environ["NAMESRV_ADDR"])
    config, unknown = from_properties(BrokerConfig, properties)
    if args.print:
        print(format_properties(to_properties(config)), end="")
        return 0

    async def main(stop: asyncio.Event) -> None:
        from hotfire.broker.program import BrokerProgram

        warn_unknown(unknown, args.config)
        program = BrokerProgram(config)
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

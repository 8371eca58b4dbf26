"""hotfire up: a name server and a broker in one process."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace

from hotfire import core
from hotfire.cli.serving import log, say, serve, settle

REGISTER_TIMEOUT_S = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", default="./hotfire-data", metavar="DIR", help="where messages are kept (%(default)s)"
    )
    parser.add_argument(
        "--namesrv-port", type=int, default=9876, metavar="PORT", help="0 picks a free one (%(default)s)"
    )
    parser.add_argument(
        "--broker-port", type=int, default=10911, metavar="PORT", help="0 picks a free one (%(default)s)"
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


def run(args: argparse.Namespace) -> int:
    return serve(lambda stop: _main(args, stop))


async def _main(args: argparse.Namespace, stop: asyncio.Event) -> None:
    from hotfire.broker.config import BrokerConfig
    from hotfire.broker.program import BrokerProgram
    from hotfire.errors import ConfigError
    from hotfire.namesrv.config import NameServerConfig
    from hotfire.namesrv.program import NameServerProgram
    from hotfire.settings import from_properties

    settings = {
        "brokerName": "broker-a",
        "bindAddress": args.bind,
        "listenPort": str(args.broker_port),
        "storePathRootDir": args.data,
        "flushDiskType": args.flush,
    } | dict(pair.partition("=")[::2] for pair in args.set)
    config, unknown = from_properties(BrokerConfig, settings)
    if unknown:
        raise ConfigError(f"no such setting: {', '.join(unknown)}; `hotfire broker -p` lists them all")
    names = NameServerProgram(NameServerConfig(bind_address=args.bind, listen_port=args.namesrv_port))
    await names.start()
    reach = "127.0.0.1" if args.bind == "0.0.0.0" else args.bind  # noqa: S104  # compared, not bound
    addresses = ";".join(filter(None, [f"{reach}:{names.port}", config.namesrv_addr]))
    broker = BrokerProgram(replace(config, namesrv_addr=addresses))
    await broker.start()
    if not core.COMPILED:
        log.warning("running on plain Python, several times slower: %s", core.WHY_PLAIN)
    await broker.wait_registered(REGISTER_TIMEOUT_S)
    settle()
    say(
        f"hotfire ready namesrv={reach}:{names.port} broker={broker.advertised} "
        f"data={config.root} pid={os.getpid()}"
    )
    await stop.wait()
    log.info("stopping")
    await broker.close()
    await names.close()

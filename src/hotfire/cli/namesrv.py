"""hotfire namesrv: a name server, configured by an Apache-style file."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.cli.serving import log, read_config_file, say, serve, settle, warn_unknown
from hotfire.errors import ConfigError

if TYPE_CHECKING:
    from hotfire.namesrv.kv import KvTable


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="namesrv.conf: key=value lines")
    parser.add_argument("-p", "--print", action="store_true", help="print every setting and exit")


def run(args: argparse.Namespace) -> int:
    from hotfire.namesrv.config import NameServerConfig
    from hotfire.settings import format_properties, from_properties, to_properties

    config, unknown = from_properties(NameServerConfig, read_config_file(args.config))
    if args.print:
        print(format_properties(to_properties(config)), end="")
        return 0

    async def main(stop: asyncio.Event) -> None:
        from hotfire.namesrv.program import NameServerProgram

        warn_unknown(unknown, args.config)
        program = NameServerProgram(config, _kv_table(config.kv_config_path))
        await program.start()
        settle()
        say(f"hotfire ready namesrv={config.bind_address}:{program.port} pid={os.getpid()}")
        await stop.wait()
        log.info("stopping")
        await program.close()

    return serve(main)


def _kv_table(path: str | None) -> KvTable | None:
    """The table kept in a file. The name server itself keeps nothing, so the two meet here."""
    if path is None:
        return None
    from hotfire.namesrv.kv import KvTable
    from hotfire.store.disk import Disk

    file = Path(path).expanduser().absolute()
    disk = Disk(file.parent)
    try:
        disk.make_directory("")
        saved = disk.read_whole(file.name)
    except OSError as error:
        raise ConfigError(f"kvConfigPath={path}: {error.strerror}") from None
    return KvTable(saved, save=lambda data: disk.write_whole(file.name, data, keep=file.name + ".bak"))

"""hotfire namesrv: a name server, configured by an Apache-style file."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.cli.serving import log, parse_pairs, read_config_file, say, serve, settle, take_settings
from hotfire.errors import ConfigError

if TYPE_CHECKING:
    from hotfire.namesrv.kv import KvTable


def run(args: argparse.Namespace) -> int:
    from hotfire.apache_settings import NAME_SERVER
    from hotfire.namesrv.config import NameServerConfig
    from hotfire.settings import format_properties, to_properties

    file = read_config_file(args.config)
    if "ROCKETMQ_HOME" in os.environ:
        file.properties.setdefault("rocketmqHome", os.environ["ROCKETMQ_HOME"])
    config, tell_unused = take_settings(NameServerConfig, file, parse_pairs(args.set), NAME_SERVER)
    if args.print:
        print(format_properties(to_properties(config)), end="")
        return 0

    async def main(stop: asyncio.Event) -> None:
        from hotfire.namesrv.program import NameServerProgram

        tell_unused()
        program = NameServerProgram(config, kv_table(config.kv_config_path))
        await program.start()
        settle()
        say(f"hotfire ready namesrv={config.bind_address}:{program.port} pid={os.getpid()}")
        await stop.wait()
        log.info("stopping")
        await program.close()

    return serve(main)


def kv_table(path: str | None) -> KvTable | None:
    """The table kept in a file. The name server itself keeps nothing, so the two meet here."""
    if not path:
        return None
    from hotfire.namesrv.kv import KvTable
    from hotfire.store.disk import Disk

    file = Path(path).expanduser().absolute()
    disk = Disk(file.parent)
    try:
        saved = disk.read_whole(file.name)
    except OSError as error:
        raise ConfigError(f"kvConfigPath={path}: {error.strerror}") from None

    def save(data: bytes) -> None:
        disk.make_directory("")  # only now: a name server that is told nothing leaves nothing behind
        disk.write_whole(file.name, data, keep=file.name + ".bak")

    return KvTable(saved, save)

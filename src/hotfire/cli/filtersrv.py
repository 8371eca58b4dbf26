"""hotfire filtersrv: a filter server beside a broker, configured by an Apache-style file."""

from __future__ import annotations

import argparse
import asyncio
import os

from hotfire.cli.serving import (
    log,
    parse_pairs,
    read_config_file,
    say,
    serve,
    settle,
    take_settings,
    until_stopped,
)


def run(args: argparse.Namespace) -> int:
    from hotfire.apache_settings import FILTER_SERVER
    from hotfire.filtersrv.config import FilterServerConfig
    from hotfire.settings import format_properties, to_properties

    config, tell_unused = take_settings(
        FilterServerConfig, read_config_file(args.config), parse_pairs(args.set), FILTER_SERVER
    )
    if args.print:
        print(format_properties(to_properties(config)), end="")
        return 0

    async def main(stop: asyncio.Event) -> None:
        from hotfire.filtersrv.program import FilterServerProgram

        tell_unused()
        program = FilterServerProgram(config)
        if await until_stopped(program.start(), stop):
            settle()
            loaded = ",".join(sorted(program.filters.keys() - program.not_loaded.keys()))
            missing = ",".join(sorted(program.not_loaded))
            say(
                f"hotfire ready filtersrv={program.address} broker={program.broker_name} filters={loaded} "
                + (f"not_loaded={missing} " if missing else "")
                + f"pid={os.getpid()}"
            )
            await stop.wait()
        log.info("stopping")
        await program.close()

    return serve(main)

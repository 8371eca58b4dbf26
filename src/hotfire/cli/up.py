"""hotfire up: a name server and its brokers. One broker shares the process; several have one each."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire import core
from hotfire.cli.children import Child, Children, Command
from hotfire.cli.namesrv import kv_table
from hotfire.cli.serving import log, parse_pairs, read_tls_file, say, serve, settle
from hotfire.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from hotfire.namesrv.config import NameServerConfig
    from hotfire.namesrv.program import NameServerProgram

REGISTER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 600.0
"""Recovery of a large store that crashed is a matter of minutes."""
PORTS_APART = 10
"""Each broker has more than one: clients' port, the fast one two below, and slaves' one above."""
BROKERS_MAX = 64


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.brokers <= BROKERS_MAX:
        raise ConfigError(f"--brokers {args.brokers}: must be 1 to {BROKERS_MAX}")
    return serve(lambda stop: _main(args, stop))


def broker_name(number: int) -> str:
    """
    >>> [broker_name(number) for number in (0, 25, 26)]
    ['broker-a', 'broker-z', 'broker-aa']
    """
    letters = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return f"broker-{letters}"


def broker_directories(data: Path, count: int) -> list[Path]:
    """Where each broker keeps its store. One that none of them would open is refused, never passed over."""
    names = [broker_name(number) for number in range(count)]
    found = sorted(path.name for path in data.glob("broker-*") if _holds_store(path))
    if _holds_store(data):
        if count > 1 or found:
            beside = f" beside {', '.join(found)}" if found else ""
            raise ConfigError(
                f"{data} itself holds the store of a single broker{beside}; "
                f"move what it holds into {data / names[0]} to start it as the first of several, "
                "or start with --brokers 1 and a --data directory of its own"
            )
        return [data]
    left_over = [name for name in found if name not in names]
    if left_over:
        numbers = {broker_name(number): number + 1 for number in range(BROKERS_MAX)}
        needed = max((numbers.get(name, 0) for name in found), default=0)
        way_out = f"start with --brokers {needed}, or " if all(name in numbers for name in found) else ""
        raise ConfigError(
            f"--brokers {count}, but {data} holds the stores of {', '.join(found)}: the messages of "
            f"{', '.join(left_over)} would be out of reach; {way_out}move those directories elsewhere "
            "if nobody needs them"
        )
    if count == 1 and not found:
        return [data]
    return [data / name for name in names]


def _holds_store(directory: Path) -> bool:
    return (directory / "commitlog").exists()


def settings_of_each(
    settings: dict[str, str], directories: Sequence[Path], first_port: int
) -> list[dict[str, str]]:
    """What each broker is started with: its own name, directory and port."""
    each = [
        settings
        | {
            "brokerName": broker_name(number),
            "listenPort": str(first_port and first_port + PORTS_APART * number),
            "storePathRootDir": str(directory),
        }
        for number, directory in enumerate(directories)
    ]
    if len(each) == 1:  # a single one may be called otherwise
        return [each[0] | settings]
    return each


async def _main(args: argparse.Namespace, stop: asyncio.Event) -> None:
    from hotfire.namesrv.program import NameServerProgram
    from hotfire.net.tls_settings import TlsMode

    directories = broker_directories(Path(args.data), args.brokers)
    settings = {"bindAddress": args.bind, "flushDiskType": args.flush} | parse_pairs(args.set)
    _check(_with_tls_file(settings))
    names_config = dataclasses.replace(
        _tls_of(settings),
        bind_address=args.bind,
        listen_port=args.namesrv_port,
        kv_config_path=str(Path(args.data) / "namesrv" / "kvConfig.json"),
    )
    if names_config.tls_server_mode is TlsMode.enforcing:  # for our own brokers too
        settings.setdefault("tls.enable", "true")
    names = NameServerProgram(names_config, kv_table(names_config.kv_config_path))
    await names.start()
    reach = "127.0.0.1" if args.bind == "0.0.0.0" else args.bind  # noqa: S104  # compared, not bound
    addresses = ";".join(filter(None, [f"{reach}:{names.port}", settings.get("namesrvAddr")]))
    each = settings_of_each(settings | {"namesrvAddr": addresses}, directories, args.broker_port)
    try:
        if args.brokers == 1:
            await _serve_one(each[0], f"{reach}:{names.port}", stop)
        else:
            await _serve_several(each, names, f"{reach}:{names.port} data={args.data}", stop)
    finally:
        await names.close()


def _with_tls_file(settings: dict[str, str]) -> dict[str, str]:
    return {**read_tls_file(settings).properties, **settings}


def _tls_of(settings: dict[str, str]) -> NameServerConfig:
    """A name server that takes TLS as its brokers do."""
    from hotfire.namesrv.config import NameServerConfig
    from hotfire.settings import from_properties

    full = _with_tls_file(settings)
    config, _ = from_properties(NameServerConfig, {k: v for k, v in full.items() if k.startswith("tls.")})
    return config


def _check(settings: dict[str, str]) -> None:
    """A mistake is told before anything is started."""
    from hotfire.broker.config import BrokerConfig
    from hotfire.settings import from_properties

    config, unknown = from_properties(BrokerConfig, settings)
    if unknown:
        raise ConfigError(f"no such setting: {', '.join(unknown)}; `hotfire broker -p` lists them all")
    config.refuse_replication()


async def _serve_one(settings: dict[str, str], namesrv: str, stop: asyncio.Event) -> None:
    from hotfire.broker.config import BrokerConfig
    from hotfire.broker.program import BrokerProgram
    from hotfire.settings import from_properties

    config, _ = from_properties(BrokerConfig, _with_tls_file(settings))
    broker = BrokerProgram(config)
    await broker.start()
    if not core.COMPILED:
        log.warning("running on plain Python, several times slower: %s", core.WHY_PLAIN)
    await broker.wait_registered(REGISTER_TIMEOUT_S)
    settle()
    say(f"hotfire ready namesrv={namesrv} broker={broker.advertised} data={config.root} pid={os.getpid()}")
    await stop.wait()
    log.info("stopping")
    await broker.close()


async def _serve_several(
    each: Sequence[dict[str, str]], names: NameServerProgram, told: str, stop: asyncio.Event
) -> None:
    children = Children([Child(settings["brokerName"], _command(settings)) for settings in each])
    starting = asyncio.create_task(children.start(START_TIMEOUT_S))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        await _wait_routed(names, len(each))
        settle()
        brokers = ",".join(child.address or "" for child in children.children)
        say(f"hotfire ready namesrv={told} broker={brokers} brokers={len(each)} pid={os.getpid()}")
    await stopping
    starting.cancel()
    log.info("stopping")
    problems = await children.stop()
    if problems:
        raise StoreError("; ".join(problems))


async def _wait_routed(names: NameServerProgram, count: int) -> None:
    """Until the name server knows them all, or a moment has passed: they go on trying."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REGISTER_TIMEOUT_S):
            while len(names.name_server.state.routes.cluster_info().brokers) < count:  # noqa: ASYNC110  # once
                await asyncio.sleep(0.02)


def _command(settings: dict[str, str]) -> Command:
    """A broker's command line. A port that was free once is asked for again: routes in use name it."""

    def command(address: str | None) -> Sequence[str]:
        port = settings["listenPort"] if address is None else address.rpartition(":")[2]
        pairs = (settings | {"listenPort": port}).items()
        words = [word for key, value in pairs for word in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "hotfire.cli", "broker", "--until-input-ends", *words]

    return command

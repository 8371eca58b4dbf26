"""A real name server and real brokers in the test's own loop, each with a small store of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.settings import from_properties


class RealCluster:
    def __init__(self, namesrv: str, brokers: list[BrokerProgram]) -> None:
        self.namesrv = namesrv
        self.brokers = brokers


def config(directory: Path, name: str, namesrv: str, **settings: object) -> BrokerConfig:
    chosen = {
        "brokerName": name,
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": directory / name,
        "mappedFileSizeCommitLog": 4 << 20,
        "namesrvAddr": namesrv,
        **settings,
    }
    made, unknown = from_properties(BrokerConfig, {key: str(value) for key, value in chosen.items()})
    assert not unknown
    return made


@asynccontextmanager
async def real_cluster(directory: Path, *names: str, **settings: object) -> AsyncIterator[RealCluster]:
    async with asyncio.timeout(50), AsyncExitStack() as stack:
        program = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
        await program.start()
        stack.push_async_callback(program.close)
        namesrv = f"127.0.0.1:{program.port}"
        brokers = []
        for name in names or ("broker-a",):
            broker = BrokerProgram(config(directory, name, namesrv, **settings))
            await broker.start()
            stack.push_async_callback(broker.close)
            await broker.wait_registered(10.0)
            brokers.append(broker)
        yield RealCluster(namesrv, brokers)

"""A real name server and real brokers in one loop, on free ports of the loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hotfire import Message, Producer
from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.testing import Cluster

SEGMENT_BYTES = 8 << 20
"""A log of the usual size would take a gigabyte of the disk for each test."""


@asynccontextmanager
async def broker(directory: Path, names: NameServerProgram, port: int = 0) -> AsyncIterator[BrokerProgram]:
    program = BrokerProgram(
        BrokerConfig(
            broker_name="broker-a",
            bind_address="127.0.0.1",
            listen_port=port,
            namesrv_addr=f"127.0.0.1:{names.port}",
            store_path_root_dir=str(directory),
            mapped_file_size_commit_log=SEGMENT_BYTES,
        )
    )
    await program.start()
    try:
        assert await program.wait_registered(5.0) == []
        yield program
    finally:
        await program.close()


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServerProgram]:
    names = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
    await names.start()
    try:
        yield names
    finally:
        await names.close()


def run(directory: Path, test: Callable[[str], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40), Cluster(directory=directory) as cluster:
            await test(cluster.namesrv)

    asyncio.run(bounded())


async def send_all(address: str, bodies: list[bytes], topic: str = "T", **fields: str) -> None:
    async with Producer(address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **fields))  # type: ignore[arg-type]

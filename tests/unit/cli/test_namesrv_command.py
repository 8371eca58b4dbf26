"""hotfire namesrv: what it keeps in a file, over a kill and a damaged file."""

import asyncio
from pathlib import Path

from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.protocol.requests import GetKvConfig, PutKvConfig
from tests.peers.hotfire import executable
from tests.peers.process import LineProcess


def start(directory: Path) -> tuple[LineProcess, str]:
    config = directory / "namesrv.conf"
    config.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={directory}/deep/kvConfig.json\n")
    process = LineProcess([str(executable()), "namesrv", "-c", str(config)], log=directory / "err")
    line = process.wait_line(lambda text: "ready" in text, what="ready line", timeout_s=20)
    return process, line.split("namesrv=")[1].split()[0]


def ask(address: str, request: Request) -> Command:
    async def asking() -> Command:
        async with await Peer.connect(address) as peer:
            return await peer.invoke(request, 5.0)

    return asyncio.run(asking())


def test_key_value_table_survives_kill_9(tmp_path: Path) -> None:
    """What was acknowledged before the name server is killed is there when it starts again."""
    process, address = start(tmp_path)
    assert ask(address, PutKvConfig(namespace="N", key="k", value="v")).code == 0
    process.kill()
    process, address = start(tmp_path)
    assert ask(address, GetKvConfig(namespace="N", key="k")).fields == {"value": "v"}
    assert process.terminate(10) == 0


def test_damaged_key_value_file_stops_the_start(tmp_path: Path) -> None:
    """A file that is no table is not overwritten: the command says so and exits with 1."""
    file = tmp_path / "deep" / "kvConfig.json"
    file.parent.mkdir()
    file.write_text("{")
    config = tmp_path / "namesrv.conf"
    config.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={file}\n")
    process = LineProcess([str(executable()), "namesrv", "-c", str(config)], log=tmp_path / "err")
    assert process.wait(10) == 1
    assert "hotfire namesrv: key-value file" in (tmp_path / "err").read_text()
    assert file.read_text() == "{"

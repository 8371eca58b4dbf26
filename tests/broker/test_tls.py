"""TLS as it is switched on: by settings, by Apache's tls.properties, for broker and name server."""

import asyncio
import ssl
from pathlib import Path

import pytest

from hotfire.client.connections import Connections
from hotfire.errors import HotfireError
from hotfire.net.peer import Peer
from hotfire.protocol.requests import GetRouteInfoByTopic
from hotfire.settings import load_properties
from tests.broker.programs import broker_config, namesrv_config, run, running, up
from tests.broker.test_commands import complaint
from tests.certificates import AUTHORITY, HERE, SERVER_PAIRS, pair
from tests.peers.process import poll_until
from tests.unit.broker.harness import send_request

TIMEOUT_S = 10.0
ENFORCING = SERVER_PAIRS | {"tls.server.mode": "enforcing"}


def words(properties: dict[str, str]) -> list[str]:
    return [word for name, value in properties.items() for word in ("--set", f"{name}={value}")]


def is_routed(namesrv: str, topic: str, tls: ssl.SSLContext | None = None) -> bool:
    async def asking() -> bool:
        async with await Peer.connect(namesrv, tls=tls) as peer:
            return (await peer.invoke(GetRouteInfoByTopic(topic=topic), TIMEOUT_S)).code == 0

    return asyncio.run(asking())


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=AUTHORITY)


@pytest.mark.promise(69)
def test_up_serves_tls_and_plain_clients_on_one_port(tmp_path: Path) -> None:
    """Broker, its fast port and name server: a message sent over TLS and one sent plainly are both stored."""

    async def scenario(namesrv: str, broker: str) -> None:
        host, _, port = broker.rpartition(":")
        for tls in (trusting(), None):
            connections = Connections(tls=tls)
            for address in (broker, f"{host}:{int(port) - 2}"):
                peer = await connections.get(address, TIMEOUT_S)
                await peer.ask(send_request("T"), TIMEOUT_S)
            peer = await connections.get(namesrv, TIMEOUT_S)
            await peer.ask(GetRouteInfoByTopic(topic="TBW102"), TIMEOUT_S)
            await connections.close()

    with running(tmp_path, *up(tmp_path, *words(SERVER_PAIRS))) as program:
        asyncio.run(scenario(program.namesrv, program.broker))
        assert "TLS mode=permissive" in program.log


def test_up_with_tls_only_is_complete(tmp_path: Path) -> None:
    """Enforcing: the broker itself reaches its name server by TLS, plain clients reach nothing."""
    with running(tmp_path, *up(tmp_path, *words(ENFORCING))) as program:
        poll_until(
            lambda: is_routed(program.namesrv, "TBW102", trusting()), what="route", timeout_s=TIMEOUT_S
        )
        for address in (program.namesrv, program.broker):
            with pytest.raises(HotfireError):
                is_routed(address, "TBW102")


def test_broker_and_name_server_verify_each_other(tmp_path: Path) -> None:
    """A name server that asks for certificates, and a broker that shows one and checks the other's."""
    cert, key = pair("client")
    asking = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": AUTHORITY}
    with running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path, **ENFORCING, **asking)) as names:
        dialling = {
            "tls.enable": "true", "tls.client.authServer": "true", "tls.client.trustCertPath": AUTHORITY,
            "tls.client.certPath": cert, "tls.client.keyPath": key,
        }  # fmt: skip
        config = broker_config(tmp_path, namesrvAddr=names.namesrv, **dialling)
        context = trusting()
        context.load_cert_chain(cert, key)
        with running(tmp_path, "broker", "-c", config, log="broker.err") as broker:
            poll_until(
                lambda: is_routed(names.namesrv, "TBW102", context), what="registration", timeout_s=TIMEOUT_S
            )
            assert "not registered" not in broker.log


def test_apache_tls_properties_are_obeyed(tmp_path: Path) -> None:
    """The file that tls.config.file names gives what is given nowhere else, the password of the key too."""
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.server.certPath={pair('server')[0]}\n"
        f"tls.server.keyPath={HERE / 'locked.key'}\ntls.server.keyPassword=secret\n"
        "tls.client.authServer=false\ntls.server.colour=red\n"
    )
    config = broker_config(tmp_path, **{"tls.config.file": file})
    with running(tmp_path, "broker", "-c", config) as broker:
        assert asyncio.run(answers(broker.broker))
        assert "unknown=tls.server.colour" in broker.log
        assert "secret" not in broker.log
    _, output, _ = run(["broker", "-c", config, "-p", *words(SERVER_PAIRS)], cwd=tmp_path)
    assert load_properties(output)["tls.server.keyPath"] == pair("server")[1], "what is given goes first"
    assert load_properties(output)["tls.server.keyPassword"] == "******"
    names = namesrv_config(tmp_path, **{"tls.config.file": file})
    with running(tmp_path, "namesrv", "-c", names, log="namesrv.err") as names_program:
        assert "known, without effect" in names_program.log
        assert "tls.client.authServer" in names_program.log
    file.write_text(file.read_text().replace("tls.server.colour=red\n", ""))
    with running(tmp_path, *up(tmp_path, "--set", f"tls.config.file={file}"), log="up.err") as program:
        assert asyncio.run(answers(program.broker))


async def answers(address: str) -> bool:
    async with await Peer.connect(address, tls=trusting()) as peer:
        return bool(await peer.ask(send_request("T"), TIMEOUT_S))


def test_tls_that_cannot_be_had_stops_the_start(tmp_path: Path) -> None:
    """Broker, name server and both together say what to set instead of serving in plain."""
    said = "tls.server.mode=enforcing: there is no certificate"
    enforcing = {"tls.server.mode": "enforcing"}
    assert said in complaint(["broker", "-c", broker_config(tmp_path, **enforcing)], tmp_path)
    assert said in complaint(["namesrv", "-c", namesrv_config(tmp_path, **enforcing)], tmp_path)
    assert said in complaint(up(tmp_path, *words(enforcing)), tmp_path)
    missing = complaint(
        ["broker", "-c", broker_config(tmp_path, **{"tls.config.file": "/no/file"})], tmp_path
    )
    assert "configuration file /no/file: No such file" in missing

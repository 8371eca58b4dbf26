"""Clients and commands that speak TLS, with servers that take nothing else."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotfire import ConsumeFrom, Consumer, Message, Producer, PullConsumer, QueueReader, errors, sync
from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.cli import main
from hotfire.client.admin import Admin
from hotfire.client.dialling import TlsChoice, unverified
from hotfire.client.reader import TopicReader
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.tls_settings import ClientAuth, TlsMode
from tests.certificates import AUTHORITY, pair
from tests.unit.client.consuming import Seen
from tests.unit.client.live import SEGMENT_BYTES

NAMESRV = "127.0.0.1:9876"


@asynccontextmanager
async def enforcing(directory: Path, **more: Any) -> AsyncIterator[str]:
    """A name server and a broker that take TLS only; the name server's address."""
    cert, key = pair("server")
    server: dict[str, Any] = {
        "bind_address": "127.0.0.1", "listen_port": 0, "tls_server_mode": TlsMode.enforcing,
        "tls_server_cert_path": cert, "tls_server_key_path": key,
    }  # fmt: skip
    names = NameServerProgram(NameServerConfig(**server))
    await names.start()
    broker = BrokerProgram(
        BrokerConfig(
            **server | more, broker_name="broker-a", namesrv_addr=f"127.0.0.1:{names.port}", tls_enable=True,
            store_path_root_dir=str(directory), mapped_file_size_commit_log=SEGMENT_BYTES,
        )
    )  # fmt: skip
    await broker.start()
    try:
        assert await broker.wait_registered(5.0) == []
        yield f"127.0.0.1:{names.port}"
    finally:
        await broker.close()
        await names.close()


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=AUTHORITY)


@pytest.mark.parametrize("choose", [lambda: AUTHORITY, lambda: Path(AUTHORITY), trusting, unverified])
def test_every_client_speaks_tls(tmp_path: Path, choose: Callable[[], TlsChoice]) -> None:
    """Sent one by one and by the quick way, consumed, polled, read and administered, all of it by TLS."""

    async def main() -> None:
        tls = choose()
        async with asyncio.timeout(40), enforcing(tmp_path) as namesrv:
            async with Producer(namesrv, tls=tls) as producer:
                for number in range(16):
                    await producer.send_soon(Message("T", b"%d" % number))
                await asyncio.gather(*(producer.send_soon(Message("T", bytes(3000))) for _ in range(500)))
            seen = Seen()
            async with Consumer(namesrv, group="g", consume_from=ConsumeFrom.FIRST, tls=tls) as consumer:
                consumer.subscribe("T", seen)
                await seen.count(516)
            async with PullConsumer(namesrv, group="p", consume_from=ConsumeFrom.FIRST, tls=tls) as polled:
                polled.subscribe("T")
                assert await polled.poll(20)
            async with QueueReader(namesrv, tls=tls) as reader:
                assert len(await reader.queues("T")) == 4
            async with TopicReader(namesrv, "T", start="earliest", follow=False, tls=tls) as topic:
                assert len([message async for message in topic]) == 516
            async with Admin(namesrv, tls=tls) as admin:
                assert (await admin.topic_stats("T")).count == 516

    asyncio.run(main())


def test_the_synchronous_client_speaks_tls(tmp_path: Path) -> None:
    """By the same setting."""

    async def main() -> None:
        async with asyncio.timeout(40), enforcing(tmp_path) as namesrv:

            def plain() -> str:
                with sync.Producer(namesrv, tls=AUTHORITY) as producer:
                    return producer.send(Message("T", b"x")).status.name

            assert await asyncio.to_thread(plain) == "SEND_OK"

    asyncio.run(main())


def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    """A broker that asks for one serves who has one, and nobody else."""

    async def main() -> None:
        asking = {
            "tls_server_need_client_auth": ClientAuth.require, "tls_server_trust_cert_path": AUTHORITY,
        }  # fmt: skip
        async with asyncio.timeout(40), enforcing(tmp_path, **asking) as namesrv:
            known = trusting()
            known.load_cert_chain(*pair("client"))
            async with Producer(namesrv, tls=known) as producer:
                await producer.send(Message("T", b"x"))
            async with Producer(namesrv, tls=trusting(), timeout_s=1) as producer:
                with pytest.raises(errors.Unreachable):
                    await producer.send(Message("T", b"x"))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        (True, "127.0.0.1:.*certificate verify failed"),
        (pair("other")[0], "127.0.0.1:.*certificate verify failed"),
        (False, "perhaps what listens there is no name server, or takes TLS only"),
    ],
)
def test_who_is_not_trusted_is_not_talked_to(tmp_path: Path, tls: TlsChoice, told: str) -> None:
    """A certificate nobody we trust vouches for is refused; so are plain connections, by these servers."""

    async def main() -> None:
        async with (
            asyncio.timeout(40),
            enforcing(tmp_path) as namesrv,
            Producer(namesrv, tls=tls) as producer,
        ):
            with pytest.raises(errors.Unreachable, match=told):
                await producer.send(Message("T", b"x"))

    asyncio.run(main())


@pytest.mark.parametrize("make", [Producer, Consumer, PullConsumer, QueueReader])
@pytest.mark.parametrize(
    ("tls", "told"),
    [
        ("nowhere.pem", "^tls=nowhere.pem: No such file"),
        (pair("client")[1], "client.key: .*give certificates, PEM"),
        (7, "tls=7 is int; give True, a file of certificates to trust, or an SSLContext"),
        (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "is a server's"),
    ],
)
def test_tls_that_cannot_be_is_told_when_it_is_given(make: Any, tls: Any, told: str) -> None:
    """Before anything is dialled."""
    with pytest.raises(errors.ConfigError, match=told):
        make(NAMESRV, group="g", tls=tls)


def test_those_of_one_instance_dial_alike() -> None:
    """They share connections, and those are by TLS or are not."""

    async def main() -> None:
        async with Producer(NAMESRV, group="a", instance_name="one"):
            other = Producer(NAMESRV, group="b", instance_name="one", tls=AUTHORITY)
            with pytest.raises(errors.ConfigError, match="in use with tls=False"):
                await other.start()

    asyncio.run(main())


def test_commands_speak_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By --tls-trust or --tls-unverified; with --tls this machine's authorities count."""

    async def scenario() -> None:
        async with asyncio.timeout(50), enforcing(tmp_path) as namesrv:

            async def call(*words: str) -> tuple[int, str, str]:
                code = await asyncio.to_thread(main, [*words, "-n", namesrv])
                printed = capsys.readouterr()
                return code, printed.out, printed.err

            trust = ("--tls-trust", AUTHORITY)
            assert (await call("send", "T", "paid", *trust))[0] == 0
            code, out, _ = await call("tail", "T", "--from", "earliest", "--no-follow", "--tls-unverified")
            assert (code, out.split()[-1]) == (0, "paid")
            code, out, _ = await call("topic", "list", *trust)
            assert (code, out) == (0, "T\n")
            assert (await call("group", "create", "g", *trust))[0] == 0
            assert (await call("offset", "skip", "g", "T", *trust))[0] == 0
            code, _, err = await call("topic", "list", "--tls")
            assert code == 1
            assert "certificate verify failed" in err
            code, _, err = await call("topic", "list", *trust, "--tls-unverified")
            assert (code, "drop one" in err) == (1, True)
            code, _, err = await call("topic", "list", "--tls-trust", "nowhere.pem")
            assert (code, "--tls-trust nowhere.pem: No such file" in err) == (1, True)
            assert (await call("topic", "list"))[0] == 1

    asyncio.run(scenario())

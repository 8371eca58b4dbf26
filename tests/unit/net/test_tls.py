"""TLS and plain peers on one port, told by their first byte, with the same bounds for both."""

import asyncio
import gc
import inspect
import logging
import os
import random
import shutil
import ssl
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import ConnectError
from hotfire.net import tls as tls_module
from hotfire.net.peer import Peer
from hotfire.net.server import Server
from hotfire.net.tls import Tls, TlsTransport
from hotfire.net.tls_settings import ClientAuth, TlsMode, TlsServerConfig
from hotfire.protocol.command import Command, encode
from tests.certificates import AUTHORITY, pair
from tests.unit.net import test_server
from tests.unit.net.test_server import ECHO, Client, Clock, EchoHeart, Scenario, only, run, served, until

__all__ = ["run"]  # the fixture
SERVER_CERT, SERVER_KEY = pair("server")


def configured(
    mode: TlsMode = TlsMode.permissive, cert: str = SERVER_CERT, key: str = SERVER_KEY, **more: Any
) -> Tls:
    return Tls(
        TlsServerConfig(tls_server_mode=mode, tls_server_cert_path=cert, tls_server_key_path=key, **more)
    )


def dialling(client: str | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    """A context that knows the tests' authority and, if asked for, shows a certificate of its own."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    for name, version in versions.items():
        setattr(context, name, version)
    if client is not None:
        context.load_cert_chain(*pair(client))
    return context


class TlsClient(Client):
    """A peer with TLS between it and its socket."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    @classmethod
    async def dial(
        cls, port: int, *, receive_buffer: int | None = None, context: ssl.SSLContext | None = None
    ) -> "TlsClient":
        dialled = await Client.dial(port, receive_buffer=receive_buffer)
        client = cls(dialled.sock)
        client.incoming, client.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client.tls = (context or dialling()).wrap_bio(
            client.incoming, client.outgoing, server_hostname="localhost"
        )
        while True:
            try:
                client.tls.do_handshake()
            except ssl.SSLWantReadError:
                await client.send_raw(client.outgoing.read())
                client.take(await Client.recv(client))
            else:
                break
        await client.send_raw(client.outgoing.read())
        if client.tls.version() == "TLSv1.3":  # only its tickets say that the server is done too
            client.take(await Client.recv(client))
        return client

    def take(self, data: bytes) -> None:
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def send_raw(self, data: bytes) -> None:
        await Client.send(self, data)

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self.send_raw(self.outgoing.read())

    async def recv(self) -> bytes:
        while True:
            try:
                return self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                self.take(await Client.recv(self))
            except ssl.SSLEOFError:
                return b""


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        dialling().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


# --- one port for both ---


@pytest.mark.promise(69)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_and_plain_peers_share_a_port(run: Callable[[Scenario], None], version: ssl.TLSVersion) -> None:
    """Both are served side by side, each as it came; what a TLS peer says is not on the wire as it is."""

    async def scenario() -> None:
        context = dialling(maximum_version=version, minimum_version=version)
        async with (
            served(EchoHeart(), configured()) as (server, port),
            await Client.dial(port) as plain,
            await TlsClient.dial(port, context=context) as secret,
        ):
            assert secret.tls.version() == version.name.replace("_", ".")
            for opaque in range(5):
                for client in (plain, secret):
                    reply = await client.ask(Command(ECHO, opaque=opaque, body=b"a word"))
                    assert reply is not None
                    assert (reply.opaque, reply.body) == (opaque, b"a word")
            secret.tls.write(encode(Command(ECHO, body=b"a word")))
            assert b"a word" not in secret.outgoing.read()
            assert len(server.connections) == 2

    run(scenario())


def test_plain_peers_pay_for_their_first_bytes_only(run: Callable[[Scenario], None]) -> None:
    """Once a plain peer has spoken, nothing stands between its transport and its connection."""

    async def scenario() -> None:
        async with served(EchoHeart(), configured()) as (server, port), await Client.dial(port) as client:
            assert await client.ask(Command(ECHO)) is not None
            connection = only(server)
            assert connection._transport.get_protocol() is connection
            assert not isinstance(connection._transport, TlsTransport)

    run(scenario())


def test_enforcing_takes_tls_only(run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    """A plain peer is closed unheard, and the log says what to set; TLS peers are served."""

    async def scenario() -> None:
        heart = EchoHeart()
        async with (
            served(heart, configured(TlsMode.enforcing)) as (_, port),
            await Client.dial(port) as plain,
            await TlsClient.dial(port) as secret,
        ):
            await plain.send(encode(Command(ECHO)))
            assert await plain.is_closed()
            assert heart.count == 0
            assert await secret.ask(Command(ECHO)) is not None

    run(scenario())
    assert "plain connection and tls.server.mode=enforcing; set tls.enable=true or useTLS" in caplog.text


@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (Tls(TlsServerConfig()), "no certificate; set tls.server.certPath and tls.server.keyPath"),
        (configured(TlsMode.disabled), "tls.server.mode=disabled; set it to permissive, with a certificate"),
    ],
    ids=["permissive", "disabled"],
)
def test_tls_that_is_not_served_is_told_plainly(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture, tls: Tls, reason: str
) -> None:
    """Without a certificate a TLS peer is closed, and the log says what to set; plain ones are served."""

    async def scenario() -> None:
        async with served(EchoHeart(), tls) as (_, port), await Client.dial(port) as secret:
            await secret.send(client_hello())
            assert await secret.is_closed()
            async with await Client.dial(port) as plain:
                assert await plain.ask(Command(ECHO)) is not None

    run(scenario())
    assert [line.getMessage().partition("reason=")[2] for line in caplog.records] == [
        f"TLS connection and {reason}"
    ]


# --- the same promises ---

ALIKE = [
    "a_frame_byte_by_byte",
    "largest_frame_is_taken",
    "our_own_mistake_closes_one_peer",
    "idle_peers_keep_nothing_aside",
    "who_does_not_read_is_not_read_from",
    "who_does_not_read_is_not_answered_on",
    "notices_to_a_peer_that_does_not_read_are_bounded_too",
    "the_heart_is_told_who_has_drained",
    "what_all_leave_unread_is_bounded",
    "a_flood_is_told_until_it_is_over",
    "held_peer_goes_on_where_it_stopped",
    "letting_go_does_not_open_a_peer_that_does_not_read",
    "held_peers_that_went_or_fail_do_not_stop_the_others",
    "full_turns_hold_and_release_real_peers",
    "who_asks_for_more_than_it_reads_is_answered_by_and_by",
    pytest.param("idle_peers_are_closed_after_120_s", marks=pytest.mark.promise(69)),
    "reply_to_a_peer_that_just_went_stops_nobody",
    "after_the_end_nobody_is_let_in",
    "end_does_not_wait_for_a_peer_that_does_not_read",
]


@pytest.mark.parametrize("promise", ALIKE)
def test_what_holds_for_plain_peers_holds_for_tls(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, promise: str, run: object
) -> None:
    """Frames, bounds, holding, idling and endings, as for plain peers."""
    held = getattr(test_server, f"test_{promise}")
    monkeypatch.setattr(test_server, "Client", TlsClient)
    monkeypatch.setattr(test_server, "served", partial(served, tls=configured(TlsMode.enforcing)))
    held(**{name: request.getfixturevalue(name) for name in inspect.signature(held).parameters})


@pytest.mark.parametrize("seed", range(2))
def test_frames_arrive_in_any_chunks(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Eight TLS peers share the buffers; each gets exactly its own frames back, however they were cut."""
    monkeypatch.setattr(test_server, "Client", TlsClient)
    monkeypatch.setattr(test_server, "served", partial(served, tls=configured()))
    test_server.test_frames_arrive_in_any_chunks(run, seed)


def test_sends_of_whole_reads_fit_the_buffer(run: Callable[[Scenario], None]) -> None:
    """A peer that fills every read, its records cut anywhere, overflows nothing."""

    async def scenario() -> None:
        async with served(EchoHeart(), configured()) as (_, port), await TlsClient.dial(port) as client:
            frame = encode(Command(ECHO, body=bytes(1 << 20)))
            client.tls.write(frame * 8)
            cipher = client.outgoing.read()

            async def send() -> None:
                for at in range(0, len(cipher), 1_000_003):
                    await client.send_raw(cipher[at : at + 1_000_003])

            sending = asyncio.create_task(send())
            assert len(await client.receive(8)) == 8
            await sending

    run(scenario())


# --- peers that misbehave ---


def test_a_handshake_that_never_ends_is_closed(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that lead to no handshake are no sign of life: the peer has 120 s from the first."""
    clock = Clock(monkeypatch)

    async def scenario() -> None:
        async with served(EchoHeart(), configured()) as (server, port), await Client.dial(port) as slow:
            hello = client_hello()
            await slow.send(hello[:1])
            await until(lambda: server.connections and isinstance(only(server)._transport, TlsTransport))
            for byte in hello[1:13]:
                clock.now += 10_000
                await slow.send(bytes([byte]))
                await asyncio.sleep(0.06)  # a tick
            assert server.connections, "closed before its time"
            clock.now += 1_001
            assert await slow.is_closed()
            await until(lambda: not server.connections)

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16",
        b"\x16\x03\x01\x02\x00" + bytes(512),
        b"\x16" + os.urandom(300_000),
        b"\x16GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["alone", "empty", "much", "text"],
)
def test_garbage_after_the_first_byte_closes_that_peer(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """What only begins like TLS is hung up on, by us or when it gives up; others are served."""

    async def scenario() -> None:
        async with (
            served(EchoHeart(), configured()) as (server, port),
            await Client.dial(port) as bad,
            await TlsClient.dial(port) as good,
        ):
            assert await good.ask(Command(ECHO)) is not None
            await bad.send(garbage) if len(garbage) < 1000 else await send_in_vain(bad, garbage)
            if len(garbage) == 1:
                bad.sock.close()
            else:
                assert await bad.is_closed()
            assert await good.ask(Command(ECHO)) is not None
            await until(lambda: len(server.connections) == 1)

    run(scenario())
    assert ("reason=TLS: " in caplog.text) == (len(garbage) > 1)
    assert "ERROR" not in caplog.text


async def send_in_vain(client: Client, data: bytes) -> None:
    with suppress(ConnectionError):
        await client.send(data)


def test_a_broken_record_ends_the_connection(run: Callable[[Scenario], None]) -> None:
    """Somebody who changes bytes under way is found out, and what he changed is not served."""

    async def scenario() -> None:
        heart = EchoHeart()
        async with served(heart, configured()) as (server, port), await TlsClient.dial(port) as client:
            assert await client.ask(Command(ECHO)) is not None
            client.tls.write(encode(Command(ECHO)))
            broken = bytearray(client.outgoing.read())
            broken[-1] ^= 1
            await client.send_raw(broken)
            with pytest.raises(ssl.SSLError):  # an alert
                await client.is_closed()
            await until(lambda: not server.connections)
            assert heart.count == 1

    run(scenario())


def test_goodbyes_are_answered(run: Callable[[Scenario], None]) -> None:
    """A peer that ends the session, and waits, is answered what it asked before, and closed in kind."""

    async def scenario() -> None:
        async with served(EchoHeart(), configured()) as (server, port), await TlsClient.dial(port) as client:
            client.tls.write(encode(Command(ECHO, opaque=7)))
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            await client.send_raw(client.outgoing.read())
            assert [reply.opaque for reply in await client.receive(1)] == [7]
            while True:
                try:
                    client.tls.unwrap()  # which fails unless the server says goodbye too
                    break
                except ssl.SSLWantReadError:
                    client.take(await Client.recv(client))
            assert await Client.recv(client) == b""
            await until(lambda: not server.connections)

    run(scenario())


def test_nothing_goes_out_in_plain_before_the_handshake(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What the program has to say to a peer without a key ends the connection instead."""

    async def scenario() -> None:
        async with served(EchoHeart(), configured()) as (server, port), await Client.dial(port) as client:
            await client.send(b"\x16\x03\x01")
            await until(lambda: server.connections and isinstance(only(server)._transport, TlsTransport))
            only(server).write(encode(Command(40, flag=2)))
            assert await client.recv() == b""
            await until(lambda: not server.connections)

    run(scenario())
    assert "reason=TLS: " in caplog.text


def test_a_lost_peer_is_forgotten_at_once(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of a connection go with it, without waiting for the collector."""
    layers: list[weakref.ref[TlsTransport]] = []

    class Noted(TlsTransport):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            layers.append(weakref.ref(self))

    monkeypatch.setattr(tls_module, "TlsTransport", Noted)

    async def scenario() -> None:
        heart = EchoHeart()
        async with served(heart, configured()) as (server, port):
            gc.disable()
            try:
                async with await TlsClient.dial(port) as client:
                    assert await client.ask(Command(ECHO)) is not None
                await until(lambda: not server.connections)
                heart.gone.clear()
                await until(lambda: layers[0]() is None)
            finally:
                gc.enable()

    run(scenario())


# --- certificates ---


@asynccontextmanager
async def asked(server_config: Tls, **options: Any) -> AsyncIterator[TlsClient]:
    async with (
        served(EchoHeart(), server_config) as (_, port),
        await TlsClient.dial(port, context=dialling(**options)) as client,
    ):
        yield client


def test_clients_show_a_certificate_where_it_is_required(run: Callable[[Scenario], None]) -> None:
    """One that the authority vouches for gets in; none, or another's, does not."""
    required = partial(
        configured,
        tls_server_need_client_auth=ClientAuth.require,
        tls_server_trust_cert_path=AUTHORITY,
    )

    async def scenario() -> None:
        async with asked(required(), client="client") as client:
            assert await client.ask(Command(ECHO)) is not None
        async with asked(required(tls_server_trust_cert_path=AUTHORITY)) as client:
            with pytest.raises(ssl.SSLError):  # the alert; with TLS 1.3 it comes after the handshake
                await client.ask(Command(ECHO))
        stranger = required(tls_server_trust_cert_path=SERVER_CERT)
        async with asked(stranger, client="client") as client:
            with pytest.raises(ssl.SSLError):
                await client.ask(Command(ECHO))

    run(scenario())


def test_changed_certificates_are_taken_while_running(
    run: Callable[[Scenario], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get the new one, old ones go on; a broken file is told of and changes nothing."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        for source, target in zip(pair(name), (cert, key), strict=True):
            shutil.copy(source, tmp_path / "new")
            (tmp_path / "new").replace(target)

    def look(tls: Tls) -> None:
        tls.refresh()
        tls.refresh()  # they stand still

    async def shown(port: int) -> str:
        async with await TlsClient.dial(port) as client:
            told = client.tls.getpeercert()
            assert told is not None
            return str(told["subject"][0][0][1])  # type: ignore[index]

    async def scenario() -> None:
        install("server")
        tls = configured(cert=str(cert), key=str(key))
        async with served(EchoHeart(), tls) as (_, port), await TlsClient.dial(port) as old:
            assert await shown(port) == "server"
            install("other")
            look(tls)
            assert await shown(port) == "other"
            assert await old.ask(Command(ECHO)) is not None
            assert caplog.records == []
            key.write_text("not a key")
            look(tls)
            assert await shown(port) == "other"
            assert "the old one stays" in caplog.text
            cert.unlink()
            look(tls)
            assert await shown(port) == "other"
            install("server")
            look(tls)
            assert await shown(port) == "server"

    with caplog.at_level(logging.WARNING):
        run(scenario())


def test_the_server_looks_for_changes_by_itself(run: Callable[[Scenario], None]) -> None:
    """Once a second, with nobody asking."""

    async def scenario() -> None:
        tls, looks = configured(), asyncio.Event()
        tls.refresh = looks.set  # type: ignore[method-assign]
        async with served(EchoHeart(), tls):
            await looks.wait()

    run(scenario())


# --- our own side ---


def test_we_dial_with_tls(run: Callable[[Scenario], None]) -> None:
    """A peer given a context speaks TLS, and does not talk to a server it has no trust in."""

    async def scenario() -> None:
        async with served(EchoHeart(), configured(TlsMode.enforcing)) as (server, port):
            async with await Peer.connect(f"127.0.0.1:{port}", tls=dialling()) as peer:
                for body in (b"-", random.Random(1).randbytes(5 << 20), b"+"):
                    assert (await peer.invoke(Command(ECHO, body=body), 10.0)).body == body
                assert isinstance(only(server)._transport, TlsTransport)
            await until(lambda: not server.connections)
            with pytest.raises(ConnectError, match="certificate verify failed"):
                await Peer.connect(f"127.0.0.1:{port}", tls=ssl.create_default_context())
        async with served(EchoHeart()) as (_, port):
            with pytest.raises(ConnectError, match="hung up on our TLS"):
                await Peer.connect(f"127.0.0.1:{port}", tls=dialling())

    run(scenario())


def test_servers_without_settings_serve_plain_peers() -> None:
    """The default is Apache's, permissive, and costs no memory without a certificate."""

    async def scenario() -> None:
        server = Server(EchoHeart())
        assert server._tls.context is None
        assert not server._tls.buffer

    asyncio.run(scenario())

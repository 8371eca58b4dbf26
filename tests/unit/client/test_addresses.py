"""Where a client finds its name servers: told, in the environment, or from an address service over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hotfire import Message, Producer
from hotfire.client import instance as instance_module
from hotfire.client.addresses import PAGE_BYTES_MAX, AddressSource
from hotfire.client.instance import ClientInstance
from hotfire.errors import ConfigError, NoRoute, Unreachable
from hotfire.model import TopicConfig
from tests.unit.client.cluster import Cluster, run

T = TopicConfig("T", 4, 4)


class Service:
    """An address service whose page a test may change."""

    def __init__(self) -> None:
        self.page = b""
        self.status = b"200 OK"
        self.asked: list[bytes] = []
        self.news = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\n\r\n%s" % (self.status, self.page))
        writer.close()
        self.news.set()

    async def asked_again(self) -> None:
        self.news.clear()
        await self.news.wait()


@asynccontextmanager
async def service() -> AsyncIterator[tuple[Service, str]]:
    one = Service()
    listener = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    try:
        yield one, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        listener.close()
        await listener.wait_closed()


@pytest.mark.promise(77)
def test_address_service_is_asked_and_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client starts with what the service says, goes over to the name server it says later, and is not
    disturbed by a service that fails meanwhile."""
    monkeypatch.setattr(instance_module, "NAME_SERVERS_FIRST_S", 0.02)
    monkeypatch.setattr(instance_module, "NAME_SERVERS_INTERVAL_S", 0.02)

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with Cluster() as other, service() as (book, url):
            await other.add("broker-b", T)
            book.page = f"{cluster.namesrv}\n".encode()
            async with Producer(url) as producer:
                names = producer._instance.name_servers
                assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-a"
                assert book.asked[0].startswith(b"GET /rocketmq/nsaddr HTTP/1.0\r\nHost: 127.0.0.1:")
                for status, page in ((b"500 Oh", b""), (b"200 OK", b"nonsense"), (b"200 OK", b"")):
                    book.status, book.page = status, page
                    await book.asked_again()
                    await book.asked_again()
                    assert names.addresses == (cluster.namesrv,)
                assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-a"
                book.page = f"{other.namesrv};{cluster.namesrv}\r\n".encode()
                while names.addresses == (cluster.namesrv,):
                    await book.asked_again()
                assert names.current == cluster.namesrv  # who serves us goes on doing so
                book.page = other.namesrv.encode()
                while names.addresses != (other.namesrv,):
                    await book.asked_again()
                await producer._instance.routes.refresh("T", 3.0)
                assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-b"

    run(scenario)


@pytest.mark.promise(77)
def test_environment_counts_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """NAMESRV_ADDR is taken, be it a list or a URL; with nothing at all the error says what to do."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        Producer()
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    assert AddressSource(None).addresses == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert AddressSource("10.0.0.3:9876").addresses == ("10.0.0.3:9876",)

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with service() as (book, url):
            book.page = cluster.namesrv.encode()
            monkeypatch.setenv("NAMESRV_ADDR", url)
            async with Producer() as producer:
                await producer.send(Message("T", b"x"))

    run(scenario)


def test_service_that_is_away_at_the_start_is_asked_when_needed() -> None:
    """The start does not fail; a send does, and says so; once the service is there, sends find their way."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with service() as (book, url):
            book.status = b"503 Later"
            async with Producer(url) as producer:
                with pytest.raises((NoRoute, Unreachable), match="503"):
                    await producer.send(Message("T", b"x"))
                book.status, book.page = b"200 OK", cluster.namesrv.encode()
                await producer.send(Message("T", b"x"))

    run(scenario)


@pytest.mark.parametrize("somebody_waits_too", [False, True])
def test_a_start_that_is_given_up_leaves_nothing_behind(
    somebody_waits_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is silent, and who waits for it is cancelled: who shares the client's name, beside it or
    later, has one that lives, whose brokers are greeted."""
    monkeypatch.setattr(instance_module, "HEARTBEAT_FIRST_S", 0.02)
    monkeypatch.setattr(instance_module, "HEARTBEAT_INTERVAL_S", 0.02)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        asked, answers = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await answers.wait()
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + cluster.namesrv.encode())
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        given_up = asyncio.create_task(Producer(url, group="G", instance_name="shared").start())
        await asked.wait()
        other = Producer(url, group="H", instance_name="shared")
        waiting = asyncio.create_task(other.start()) if somebody_waits_too else None
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
        assert given_up.cancelled()
        assert bool(ClientInstance._shared) is somebody_waits_too
        answers.set()
        await (other.start() if waiting is None else waiting)
        async with Producer(url, group="G", instance_name="shared") as producer:
            await producer.send(Message("T", b"x"))
            await broker.until(lambda: any(b'"G"' in one and b'"H"' in one for one in broker.heartbeats))
        await other.close()
        assert not ClientInstance._shared
        listener.close()
        await listener.wait_closed()

    run(scenario)


def test_pages_and_patience_are_bounded() -> None:
    """A page without end is refused, silence too, and what is not HTTP."""

    async def scenario() -> None:
        async with service() as (book, url):
            book.page = b"1" * (PAGE_BYTES_MAX + 1)
            with pytest.raises(Unreachable, match="more than"):
                await AddressSource(url).fetch()

        async def answer(text: bytes | None) -> None:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if text is None:
                    await reader.read()  # until the client gives up
                else:
                    writer.write(text)
                writer.close()

            listener = await asyncio.start_server(serve, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            with pytest.raises(Unreachable, match="address service"):
                await AddressSource(url).fetch(timeout_s=0.2)
            listener.close()
            await listener.wait_closed()

        await answer(None)
        await answer(b"SSH-2.0\r\n")
        with pytest.raises(Unreachable, match="address service"):
            await AddressSource("http://127.0.0.1:1/").fetch()

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["http://", "http://:80/", "http://host:x/", "http://h/a b", "http://h/ä"])
def test_what_is_no_url_is_refused(url: str) -> None:
    """A mistake in the URL is told when the client is made."""
    with pytest.raises(ConfigError):
        AddressSource(url)

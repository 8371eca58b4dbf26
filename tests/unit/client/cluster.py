"""A real name server and brokers that do as a test says, all in one loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from hotfire.model import TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.addresses import bind
from hotfire.net.heart import CommandHeart, Connection
from hotfire.net.peer import Peer
from hotfire.net.server import Server
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import RESPONSE_FLAG, Command, encode
from hotfire.protocol.requests import (
    HeartBeat,
    HeartbeatReply,
    SendMessage,
    SendReply,
    UnregisterClient,
    decode_request,
)
from tests.unit.namesrv.fakes import FakeBroker

Behave = Callable[["ScriptedBroker", SendMessage], Command | None]


def accept(broker: "ScriptedBroker", send: SendMessage) -> Command:
    """Store it, in memory."""
    offset = sum(one.queue_id == send.queue_id for one in broker.sends) - 1
    reply = SendReply(queue_id=send.queue_id, msg_id="0" * 32, queue_offset=offset, transaction_id="t")
    return Command(0, fields=reply.to_fields())


def refuse(code: int) -> Behave:
    return lambda *_: Command(code, remark="not today")


def say_nothing(*_: object) -> None:
    return None


class ScriptedBroker(CommandHeart):
    """Remembers every send and answers it as `behave` says; None leaves it unanswered."""

    def __init__(self, name: str, behave: Behave, delay_s: float = 0.0) -> None:
        super().__init__()
        self.name = name
        self.behave = behave
        self.delay_s = delay_s
        self.sends: list[SendMessage] = []
        self.flags: list[int] = []
        self.heartbeats: list[bytes] = []
        self.goodbyes: list[UnregisterClient] = []
        self._asked = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for requests to come until they fulfil the condition."""
        while not condition():
            self._asked.clear()
            await self._asked.wait()

    async def start(self, namesrv: str, topics: Iterable[TopicConfig], broker_id: int = 0) -> None:
        listener = bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.server = Server(self)
        await self.server.listen(listener)
        self.server.start()
        self.registration = await Peer.connect(namesrv)
        description = FakeBroker(self.name, id=broker_id, port=self.port, host="127.0.0.1")
        await self.registration.ask(description.registration(topics), 5.0)

    async def stop(self) -> None:
        await self.registration.close()
        await self.server.close()

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        request = decode_request(command)
        self._asked.set()
        if isinstance(request, SendMessage):
            self.sends.append(request)
            self.flags.append(command.flag)
            reply = self.behave(self, request)
        elif isinstance(request, HeartBeat):
            self.heartbeats.append(request.body)
            reply = Command(0, fields=HeartbeatReply().to_fields())
        else:
            assert isinstance(request, UnregisterClient)
            self.goodbyes.append(request)
            reply = Command(0)
        if reply is None:
            return None
        reply.opaque, reply.flag = command.opaque, RESPONSE_FLAG
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, connection.write, encode(reply))
            return None
        return reply


class Cluster:
    """Start brokers with `add`; everything ends with the context."""

    async def __aenter__(self) -> Self:
        self.names = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
        await self.names.start()
        self.namesrv = f"127.0.0.1:{self.names.port}"
        self.brokers: list[ScriptedBroker] = []
        return self

    async def add(
        self, name: str, *topics: TopicConfig, behave: Behave = accept, delay_s: float = 0.0
    ) -> ScriptedBroker:
        broker = ScriptedBroker(name, behave, delay_s)
        # A registration of a single topic would be taken for an increment.
        await broker.start(self.namesrv, [*topics, TopicConfig("filler-1"), TopicConfig("filler-2")])
        self.brokers.append(broker)
        return broker

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self.names.close()


def run(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30), Cluster() as cluster:
            await test(cluster)

    asyncio.run(bounded())


SYSTEM_BUSY = refuse(ResponseCode.SYSTEM_BUSY)

"""What the producers and consumers of one client share: identity, connections, routes, and the timers.

Those of one client id, in one event loop, share one instance and so one connection per broker; it starts
with the first that joins and closes with the last that leaves. Every 30 seconds the routes in use are asked
for again and every broker is told that we live; every 5 seconds members may keep their offsets; every 20
seconds, or as soon as a broker says that a member came or went, they look again at which queues are theirs.

Knows members by `Member` and nothing of what they do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from hotfire.client.addresses import AddressSource
from hotfire.client.connections import HANG_UP_TIMEOUT_S, Connections
from hotfire.client.dialling import TlsChoice, tls_context
from hotfire.client.greeting import Greetings
from hotfire.client.nameservers import NameServers
from hotfire.client.replies import AwaitedReplies
from hotfire.client.routes import Routes
from hotfire.errors import ConfigError, ConnectError, HotfireError, NotRunning, RecordInvalid, Timeout
from hotfire.model import ConsumerData, ProducerData
from hotfire.net.addresses import local_address
from hotfire.net.clock import now_ms
from hotfire.net.peer import OnRequest, Peer
from hotfire.protocol.codes import RequestCode, ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import decode_record, parse_properties
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    CheckTransactionState,
    PushReplyMessageToClient,
    UnregisterClient,
    decode_request,
)

log = logging.getLogger("hotfire.client")

NAME_SERVERS_FIRST_S = 10.0
NAME_SERVERS_INTERVAL_S = 120.0
ROUTE_INTERVAL_S = 30.0
HEARTBEAT_INTERVAL_S = 30.0
HEARTBEAT_FIRST_S = 1.0
PERSIST_INTERVAL_S = 5.0
PERSIST_FIRST_S = 10.0
REBALANCE_INTERVAL_S = 20.0
REBALANCE_AGAIN_S = 1.0
"""Until the next look when not all was settled; the first ones come sooner."""
REBALANCE_GAP_S = 0.15
"""Between two looks at which queues are whose, however often brokers tell of changes. Shorter than the time
after which who gets a queue begins to pull it: who has it has let go by then."""
CALL_TIMEOUT_S = 3.0
GOODBYE_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 3.0


def client_id(instance_name: str | None) -> str:
    """`<address>@<instance name>`; without a name one of this process and moment."""
    return f"{local_address()}@{instance_name or f'{os.getpid()}#{time.time_ns()}'}"


class Member:
    """A producer or a consumer, as its instance sees it: what to tell brokers of it, and when it works.

    A group has at most one producer and one consumer per instance.
    """

    group: str
    begun_by = "`async with`"
    """How an application starts it, for errors to say; without a loop it is another word."""

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return None

    def topics(self) -> Iterable[str]:
        """Topics it uses, whose routes are kept fresh."""
        return ()

    async def routes_changed(self) -> None:
        """Routes were asked for again."""

    async def persist_offsets(self) -> None:
        """Keep what was consumed."""

    async def rebalance(self) -> bool:
        """Look again at which queues are ours. False, when not all is settled, asks for another look soon."""
        return True

    def asked(self, request: Request) -> Command | Awaitable[Command | None] | None:
        """What a broker asks of this group. None answers nothing; an awaitable answers later."""
        return None


class Process:
    """This process, told from one forked of it without asking the kernel at every send."""

    mark = object()

    @classmethod
    def forked(cls) -> None:
        cls.mark = object()


os.register_at_fork(after_in_child=Process.forked)


class ClientInstance:
    """Join it, use it, leave it."""

    _shared: ClassVar[dict[tuple[asyncio.AbstractEventLoop, str], ClientInstance]] = {}

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        *,
        instance_name: str | None = None,
        on_request: OnRequest | None = None,
        rng: random.Random | None = None,
        tls: TlsChoice = False,
    ) -> None:
        self.rng = rng or random.Random()
        self.client_id = client_id(instance_name)
        self.is_named = bool(instance_name)
        """Whether another process may have had this client id before us."""
        self.connections = Connections(on_request or self._asked, self._dialled, tls=tls_context(tls))
        self.tls = tls
        self.name_servers = NameServers(AddressSource(name_servers), self.connections, self.rng)
        self.routes = Routes(self.name_servers)
        self.replies = AwaitedReplies()
        self.members: list[Member] = []
        self.greetings = Greetings(self.client_id, self.members, self.connections, self.routes)
        self._rebalance_due = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._beside: set[asyncio.Task[None]] = set()
        self._born_in, self._process = os.getpid(), Process.mark
        self.running = False

    # --- joining and leaving -------------------------------------------------------------------------

    @classmethod
    async def join(
        cls,
        member: Member,
        name_servers: str | Sequence[str] | None,
        *,
        instance_name: str | None = None,
        rng: random.Random | None = None,
        tls: TlsChoice = False,
    ) -> ClientInstance:
        """The running instance of this name, which `member` now belongs to; without a name, its own."""
        loop = asyncio.get_running_loop()
        for key in [key for key in cls._shared if key[0].is_closed()]:
            del cls._shared[key]
        key = (loop, client_id(instance_name))
        instance = cls._shared.get(key) if instance_name else None
        if instance is None:
            instance = cls(name_servers, instance_name=instance_name, rng=rng, tls=tls)
            if instance_name:
                cls._shared[key] = instance
        elif not instance.name_servers.source.same_as(AddressSource(name_servers)):
            raise ConfigError(
                f"instance {instance_name} is in use with name servers {instance.name_servers.source}; "
                "choose another instance name for others"
            )
        elif instance.tls != tls:
            raise ConfigError(
                f"instance {instance_name} is in use with tls={instance.tls}, not {tls}; those of one name "
                "share connections: choose another instance name"
            )
        instance._admit(member)
        try:
            await instance._started()
        except BaseException:
            instance.members.remove(member)
            if not instance.members:  # nobody else waits for it
                await instance.close()
            raise
        return instance

    async def _started(self) -> None:
        """Return when it runs. It goes on starting as long as one of its members waits for that."""
        if self._starting is None:
            self._starting = asyncio.create_task(self.start())
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if starting.cancelled() and waiting is not None and not waiting.cancelling():
                raise NotRunning("this client was closed while it started") from None
            raise

    def _admit(self, member: Member) -> None:
        produces = member.producer_data() is not None
        for other in self.members:
            if other.group == member.group and (other.producer_data() is not None) == produces:
                kind = "producer" if produces else "consumer"
                raise ConfigError(
                    f"group {member.group} has a {kind} in client {self.client_id} already; choose another "
                    "instance name, or share the one there is"
                )
        self.members.append(member)

    async def leave(self, member: Member, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Say goodbye for the member's group; the last to leave closes the connections. In time: half of it
        at most goes to brokers that do not answer."""
        if member not in self.members:
            return
        deadline = asyncio.get_running_loop().time() + timeout_s
        self.members.remove(member)
        if not self.members:
            self._forget()
        goodbye = UnregisterClient(
            client_id=self.client_id,
            producer_group=None if member.producer_data() is None else member.group,
            consumer_group=None if member.consumer_data() is None else member.group,
        )
        goodbye_s = max(min(GOODBYE_TIMEOUT_S, timeout_s / 2), 0.0)
        await asyncio.gather(
            *(self._say_goodbye(address, goodbye, goodbye_s) for address in sorted(self.greetings.told))
        )
        if not self.members:
            await self.close(max(deadline - asyncio.get_running_loop().time(), 0.0))

    def _forget(self) -> None:
        for key in [key for key, instance in self._shared.items() if instance is self]:
            del self._shared[key]

    async def start(self) -> None:
        if self.running:
            raise NotRunning("this client is already started")
        self.running = True
        await self._refresh_name_servers()
        if not self.running:
            raise NotRunning("this client was closed while it started")
        self._timers = [
            asyncio.create_task(
                _every(NAME_SERVERS_FIRST_S, NAME_SERVERS_INTERVAL_S, self._refresh_name_servers)
            ),
            asyncio.create_task(_every(ROUTE_INTERVAL_S, ROUTE_INTERVAL_S, self.refresh_routes)),
            asyncio.create_task(_every(HEARTBEAT_FIRST_S, HEARTBEAT_INTERVAL_S, self.greet_brokers)),
            asyncio.create_task(_every(PERSIST_FIRST_S, PERSIST_INTERVAL_S, self._persist)),
            asyncio.create_task(self._rebalance_on()),
        ]

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        starting, self._starting = self._starting, None
        if not self.running and starting is None:
            return
        self.running = False
        self._forget()
        ending = [*self._timers, *self._beside, *([] if starting is None else [starting])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.greetings.close()
        self.replies.close()
        await self.routes.close()
        await self.name_servers.close()
        await self.connections.close(min(timeout_s, HANG_UP_TIMEOUT_S))

    def check_usable(self, what: str) -> None:
        """Raise unless this is a running client of this very process."""
        if not self.running:
            raise NotRunning(f"the {what} is not running; use `async with` or start() before using it")
        if self._process is not Process.mark:
            raise NotRunning(
                f"the {what} was started in process {self._born_in} and this is {os.getpid()}, forked from "
                "it: connections cannot be shared; start a new one here"
            )

    def do_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it go on beside who asks for it; it ends with this client at the latest."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    # --- asking brokers ------------------------------------------------------------------------------

    async def invoke(
        self, address: str, request: Request | Command, deadline: float, *, origin: str | None = None
    ) -> Command:
        """The reply of the broker at `address`; dialling counts against the deadline too.

        `origin` tells, where no name server did, who gave the address, and what else to do.
        """
        loop = asyncio.get_running_loop()
        timeout_s = max(deadline - loop.time(), 0.0)
        peer = await self.connection(address, timeout_s, origin=origin)
        left_s = max(deadline - loop.time(), 0.0)
        try:
            return await peer.invoke(request, left_s)
        except Timeout:
            self.connections.unanswered(peer, left_s=left_s, timeout_s=timeout_s)
            raise

    async def connection(self, address: str, timeout_s: float, *, origin: str | None = None) -> Peer:
        """The connection to a broker, whose address is what it said of itself, and may be wrong here."""
        try:
            return await self.connections.get(address, timeout_s)
        except ConnectError as error:
            from_a_route = (
                f"name server {self.name_servers.current} gave this address, as the broker registered it: if "
                "the broker runs and has another one for this machine, set brokerIP1 in its configuration"
            )
            raise ConnectError(f"broker {error}; {origin or from_a_route}") from None

    # --- what brokers ask ----------------------------------------------------------------------------

    def _asked(self, command: Command) -> Command | Coroutine[Any, Any, Command | None] | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.rebalance_soon()
            return None
        request = decode_request(command)
        if request is None:
            remark = f" request type {command.code} not supported"
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        if isinstance(request, PushReplyMessageToClient):
            return self.replies.arrived(request, now_ms())
        group, produces = _addressee(request)
        for member in self.members:
            if member.group == group and (member.producer_data() is not None) == produces:
                answer = member.asked(request)
                return _awaited(answer) if isinstance(answer, Awaitable) else answer
        log.info("request=%d for group=%s, which has no member here, is left alone", command.code, group)
        return None

    # --- timers --------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        self._rebalance_due.set()

    async def _rebalance_on(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s, last_s, again_s = REBALANCE_INTERVAL_S, -REBALANCE_GAP_S, REBALANCE_GAP_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rebalance_due.wait()
            await asyncio.sleep(last_s + REBALANCE_GAP_S - loop.time())
            self._rebalance_due.clear()
            last_s = loop.time()
            if await self._rebalance():
                wait_s, again_s = REBALANCE_INTERVAL_S, REBALANCE_GAP_S
            else:
                wait_s, again_s = again_s, min(2 * again_s, REBALANCE_AGAIN_S)

    async def _rebalance(self) -> bool:
        settled = True
        for member in tuple(self.members):
            try:
                settled = await member.rebalance() and settled
            except HotfireError as error:
                log.warning("group=%s rebalance: %s; tried again shortly", member.group, error)
                settled = False
            except Exception:  # our own mistake, which must not end this for all members
                log.exception("group=%s rebalance failed; tried again later", member.group)
        return settled

    async def _refresh_name_servers(self) -> None:
        try:
            await self.name_servers.refresh()
        except HotfireError as error:
            log.warning("name servers kept as they were: %s", error)

    async def refresh_routes(self) -> None:
        await self.routes.refresh_all(CALL_TIMEOUT_S)
        await self._each("routes", lambda member: member.routes_changed())

    async def _persist(self) -> None:
        await self._each("offsets", lambda member: member.persist_offsets())

    async def _each(self, what: str, work: Callable[[Member], Awaitable[None]]) -> None:
        for member in tuple(self.members):
            try:
                await work(member)
            except HotfireError as error:
                log.warning("group=%s %s: %s; tried again later", member.group, what, error)

    async def greet_brokers(self) -> None:
        """Tell every broker of the routes in use who we are; slaves only of consumers."""
        await self.greetings.to_all()

    def _dialled(self, address: str) -> None:
        """A broker that we lost, or that was restarted, does not know us on the new connection."""
        if address in self.greetings.told and self.running:
            self.greetings.forget(address)
            self.do_beside(self._greet_again())

    async def _greet_again(self) -> None:
        await self.greet_brokers()
        self.rebalance_soon()

    async def _say_goodbye(self, address: str, goodbye: UnregisterClient, timeout_s: float) -> None:
        peer = self.connections.current(address)
        if peer is None:
            return
        with suppress(HotfireError):  # the broker forgets us in two minutes anyway
            await peer.ask(goodbye, timeout_s)


def _addressee(request: Request) -> tuple[str | None, bool]:
    """The group a broker asks something of, and whether it means producers."""
    if not isinstance(request, CheckTransactionState):
        return getattr(request, "consumer_group", None) or getattr(request, "group", None), False
    try:
        half = decode_record(request.body, check_crc=False)
    except RecordInvalid as error:
        log.warning("request=%d: the half message cannot be read: %s", request.code, error)
        return None, True
    return parse_properties(half.properties).get("PGROUP"), True


async def _awaited(answer: Awaitable[Command | None]) -> Command | None:
    return await answer


async def _every(first_s: float, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(first_s)
    while True:
        await work()
        await asyncio.sleep(interval_s)

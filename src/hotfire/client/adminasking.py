"""What an administrator's client stands on: which brokers there are, and asking some or all of them.

Answers of several brokers are whole or an error that names the broker. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from hotfire.client.adminviews import BrokerInfo
from hotfire.client.checks import check_names, check_number, check_text, check_texts
from hotfire.client.dialling import TlsChoice
from hotfire.client.instance import ClientInstance
from hotfire.client.routes import TopicRoute
from hotfire.errors import BrokerRefused, ConfigError, HotfireError, Unreachable
from hotfire.model import ClusterInfo
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.protocol.requests import GetBrokerClusterInfo

TIMEOUT_S = 5.0


class Asking:
    """Asks name servers and brokers, from start to close."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: TlsChoice = False,
    ) -> None:
        check_number("timeout_s", timeout_s)
        self._instance = ClientInstance(name_servers, tls=tls)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        await self._instance.start()

    async def close(self) -> None:
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- brokers -------------------------------------------------------------------------------------

    async def brokers(self, cluster: str | None = None) -> tuple[BrokerInfo, ...]:
        """Every broker the name server knows, or those of one cluster; slaves behind their master."""
        check_text("cluster", cluster)
        info = decode_body(ClusterInfo, (await self._ask_names(GetBrokerClusterInfo())).body)
        if cluster is not None and cluster not in info.clusters:
            there = ", ".join(sorted(info.clusters)) or "none"
            raise ConfigError(f"the name server knows no cluster {cluster}; it has {there}")
        found = (
            BrokerInfo(broker.cluster, broker.name, broker_id, address)
            for broker in info.brokers.values()
            for broker_id, address in broker.addresses.items()
            if cluster in (None, broker.cluster)
        )
        return tuple(sorted(found))

    async def masters(
        self, cluster: str | None = None, brokers: Sequence[str] | None = None
    ) -> tuple[BrokerInfo, ...]:
        """Where changes are made: all masters, or those named; that one is missing is said at once."""
        check_names("brokers", brokers)
        masters = {one.name: one for one in await self.brokers(cluster) if one.is_master}
        missing = [name for name in brokers or () if name not in masters]
        if missing or not masters:
            where = "the name server" if cluster is None else f"cluster {cluster}"
            unknown = f"no broker {', '.join(missing)}" if missing else "no broker with a master"
            there = f"; it has {', '.join(masters)}" if masters else ""
            raise ConfigError(f"{where} knows {unknown}{there}")
        return tuple(masters[name] for name in (masters if brokers is None else dict.fromkeys(brokers)))

    async def route(self, topic: str) -> TopicRoute:
        """Brokers and queues of the topic, as the name server has them now."""
        check_texts(topic=topic)
        return await self._instance.routes.refresh(topic, self._timeout_s)

    # --- asking --------------------------------------------------------------------------------------

    async def _ask_names(self, request: Request) -> Command:
        self._instance.check_usable("admin")
        return await self._instance.name_servers.ask(request, self._timeout_s)

    async def _ask(self, address: str, request: Request, timeout_s: float | None = None) -> Command:
        self._instance.check_usable("admin")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        reply = await self._instance.invoke(address, request, asyncio.get_running_loop().time() + timeout_s)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return reply

    async def _ask_broker(self, broker: BrokerInfo, request: Request, timeout_s: float) -> Command:
        """Its failure names the broker."""
        try:
            return await self._ask(broker.address, request, timeout_s)
        except BrokerRefused as refused:
            raise BrokerRefused(refused.code, f"broker {broker.name}: {refused.remark}") from None
        except Unreachable as error:
            raise type(error)(f"broker {broker.name}: {error}") from None

    async def _change(self, brokers: Sequence[BrokerInfo], request: Request) -> tuple[BrokerInfo, ...]:
        for index, broker in enumerate(brokers):
            try:
                await self._ask_broker(broker, request, self._timeout_s)
            except HotfireError as error:
                done = ", ".join(one.name for one in brokers[:index])
                if done:
                    error.add_note(f"done on {done}; not on the others")
                raise
        return tuple(brokers)

    async def _ask_masters(self, request: Request, timeout_s: float) -> Mapping[str, Command]:
        return await self._ask_all(await self.masters(), request, timeout_s)

    async def _ask_readers(self, topic: str, request: Request, timeout_s: float) -> Mapping[str, Command]:
        return await self._ask_all(await self._readers(topic), request, timeout_s)

    async def _readers(self, topic: str) -> tuple[BrokerInfo, ...]:
        """One broker of each name that has the topic: its master, or while there is none a slave."""
        brokers = (await self.route(topic)).data.brokers
        chosen = ((one, min(one.addresses)) for one in brokers if one.addresses)
        return tuple(
            sorted(BrokerInfo(one.cluster, one.name, least, one.addresses[least]) for one, least in chosen)
        )

    async def _ask_all(
        self, brokers: Sequence[BrokerInfo], request: Request, timeout_s: float
    ) -> dict[str, Command]:
        answers = await asyncio.gather(*(self._ask_broker(one, request, timeout_s) for one in brokers))
        return {one.name: answer for one, answer in zip(brokers, answers, strict=True)}

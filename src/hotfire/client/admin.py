"""Looking after a cluster: topics, groups and offsets, on all the brokers they are on.

What is to be changed on several brokers is changed on one after the other; the first that refuses ends it,
named, and to call again does no harm. What is shown is whole or an error: a broker that does not answer is
not passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hotfire.client import offsets as queue_offsets
from hotfire.client.adminasking import Asking
from hotfire.client.adminviews import (
    BrokerInfo,
    ConsumedBy,
    Fate,
    GroupConnections,
    GroupHealth,
    GroupLag,
    QueueLag,
    QueueStats,
    TopicReport,
)
from hotfire.client.checks import check_integer, check_offset, check_received, check_text, check_texts
from hotfire.client.queries import commit_offset, committed_offset
from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    ConsumerNotOnline,
    NoRoute,
    SystemFailed,
    TopicNotExist,
)
from hotfire.model import (
    AUTO_CREATE_TOPIC,
    MessageQueue,
    Perm,
    ReceivedMessage,
    SubscriptionGroup,
    TopicConfig,
    dlq_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
)
from hotfire.protocol.bodies import TopicList, decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.members import ClientConnection, ConsumerConnection, GroupList, ResetOffsets
from hotfire.protocol.reports import ConsumeStats, GroupTable, TopicStats
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    ConsumeMessageDirectly,
    DeleteKvConfig,
    DeleteSubscriptionGroup,
    DeleteTopicInBroker,
    DeleteTopicInNamesrv,
    GetAllSubscriptionGroupConfig,
    GetAllTopicListFromNameserver,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumeStats,
    GetSystemTopicListFromNs,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    ResetOffset,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateTopic,
)
from hotfire.protocol.running import ConsumerRunningInfo, DirectResult

STATS_TIMEOUT_S = 15.0
"""Store times are looked up in the log, which may be cold."""
CLIENT_TIMEOUT_S = 15.0
"""For what brokers ask of a client, which they wait 10 s for."""
QUEUES = 8
"""Of a topic on each of its brokers, unless told otherwise."""
REPLY_SUFFIX = "_REPLY_TOPIC"
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
GROUPS_SHOWN_MAX = 20
"""In the error for a group that does not exist."""
TO_THE_END = -1
"""As a time to reset to: behind the newest message."""


class Admin(Asking):
    """An administrator's client.

    >>> async def example() -> None:
    ...     async with Admin("127.0.0.1:9876") as admin:
    ...         await admin.create_topic("orders", queues=4)
    ...         print((await admin.lag("billing")).total)
    """

    # --- topics --------------------------------------------------------------------------------------

    async def topics(self, *, include_system: bool = False) -> tuple[str, ...]:
        """Every topic the name server knows; the system's own only when asked for."""
        topics = await self._topic_list(GetAllTopicListFromNameserver())
        if include_system:
            return tuple(sorted(topics))
        # Clusters and brokers are topics of the same name, for the broker's own use.
        own = await self._topic_list(GetSystemTopicListFromNs())
        own |= {f"{name}{REPLY_SUFFIX}" for name in own}
        return tuple(topic for topic in sorted(topics) if not (topic in own or _is_hidden(topic)))

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        read_queues: int | None = None,
        perm: int = Perm.READ_WRITE,
        order: bool = False,
        attributes: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> tuple[BrokerInfo, ...]:
        """Make the topic or change it, on all masters or those chosen; those it now is on.

        `queues` are for writing, and for reading unless `read_queues` says otherwise: who takes queues away
        leaves them readable until they are read out. `attributes` look like `+message.type=FIFO,-other`.
        """
        check_texts(topic=topic)
        check_text("attributes", attributes)
        for name, count in (("queues", queues), ("read_queues", read_queues), ("perm", perm)):
            check_integer(name, count, may_be_none=name == "read_queues")
        request = UpdateAndCreateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
            attributes=attributes,
        )
        return await self._change(await self.masters(cluster, brokers), request)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> tuple[BrokerInfo, ...]:
        """Delete the topic and all its messages, on every broker; then name servers forget it."""
        check_texts(topic=topic)
        gone_from = await self._change(await self.brokers(cluster), DeleteTopicInBroker(topic=topic))
        for address in self._instance.name_servers.addresses:
            await self._ask(address, DeleteTopicInNamesrv(topic=topic, cluster_name=cluster))
            await self._ask(address, DeleteKvConfig(namespace=ORDER_NAMESPACE, key=topic))
        return gone_from

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """How each of its brokers keeps the topic, by broker name."""
        answers = await self._ask_readers(topic, GetTopicConfig(topic=topic), self._timeout_s)
        return {name: decode_body(TopicConfig, answer.body) for name, answer in answers.items()}

    async def topic_stats(self, topic: str) -> TopicReport:
        """Where every queue of the topic begins and ends."""
        answers = await self._ask_readers(topic, GetTopicStatsInfo(topic=topic), STATS_TIMEOUT_S)
        tables = [decode_body(TopicStats, answer.body) for answer in answers.values()]
        queues = (
            QueueStats(queue, place.min_offset, place.max_offset, _time(place.last_update_timestamp))
            for table in tables
            for queue, place in table.offsets.items()
        )
        ordered = tuple(sorted(queues, key=lambda one: one.queue))
        return TopicReport(topic, ordered, sum(table.put_tps for table in tables))

    async def _topic_list(self, request: Request) -> set[str]:
        return set(decode_body(TopicList, (await self._ask_names(request)).body).topics)

    # --- groups --------------------------------------------------------------------------------------

    async def groups(self, *, include_system: bool = False) -> tuple[str, ...]:
        """Every group that any broker knows."""
        answers = await self._ask_masters(GetAllSubscriptionGroupConfig(), self._timeout_s)
        names = {name for answer in answers.values() for name in decode_body(GroupTable, answer.body).groups}
        return tuple(name for name in sorted(names) if include_system or not is_system_group(name))

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroup]:
        """How each broker that knows the group keeps it, by broker name."""
        check_texts(group=group)
        answers = await self._ask_masters(GetAllSubscriptionGroupConfig(), self._timeout_s)
        tables = {name: decode_body(GroupTable, answer.body).groups for name, answer in answers.items()}
        return {name: table[group] for name, table in tables.items() if group in table}

    async def create_group(
        self,
        group: str | SubscriptionGroup,
        *,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> tuple[BrokerInfo, ...]:
        """Make the group or change it, on all masters or those chosen."""
        config = group if isinstance(group, SubscriptionGroup) else SubscriptionGroup(group)
        check_texts(group=config.name)
        request = UpdateAndCreateSubscriptionGroup(body=encode_body(config))
        return await self._change(await self.masters(cluster, brokers), request)

    async def delete_group(
        self, group: str, *, clean_offsets: bool = False, cluster: str | None = None
    ) -> tuple[BrokerInfo, ...]:
        """Delete the group; its offsets too when asked. Its topics for retries and dead letters stay."""
        check_texts(group=group)
        request = DeleteSubscriptionGroup(group_name=group, clean_offset=clean_offsets)
        return await self._change(await self.masters(cluster), request)

    async def lag(self, group: str, topic: str | None = None) -> GroupLag:
        """How far the group is, of all topics or one. GroupNotExist when no broker has heard of it.

        Of all: what it has committed, what its consumers subscribe to, and its retries. Without queues it is
        not known how far it is: nobody is there, or each member keeps its own offsets.
        """
        check_texts(group=group)
        check_text("topic", topic)
        told = await self._consume_stats(group, topic)
        tables = list(told.values())
        if topic is None:
            tables += await self._left_out(group, told)
        rows = {queue: row for table in tables for queue, row in table.offsets.items()}
        if topic is None:
            retries = await self._consume_stats(group, retry_topic(group))
            waiting = {queue: row for table in retries.values() for queue, row in table.offsets.items()}
            if any(row.broker_offset for row in waiting.values()):
                rows = waiting | rows
        if not rows:
            await self._check_group(group)
        found = (
            QueueLag(
                queue, row.broker_offset, row.consumer_offset, row.pull_offset, _time(row.last_timestamp)
            )
            for queue, row in sorted(rows.items(), key=lambda one: one[0])
        )
        return GroupLag(group, tuple(found), sum(table.consume_tps for table in tables))

    async def _consume_stats(self, group: str, topic: str | None) -> dict[str, ConsumeStats]:
        answers = await self._ask_masters(GetConsumeStats(consumer_group=group, topic=topic), STATS_TIMEOUT_S)
        return {name: decode_body(ConsumeStats, answer.body) for name, answer in answers.items()}

    async def _left_out(self, group: str, told: Mapping[str, ConsumeStats]) -> list[ConsumeStats]:
        """Of topics its consumers subscribe to: asked for all, a broker tells nothing of one of which the
        group has committed nothing there."""
        there = await self._connected(group)
        if there is None or there.message_model == "BROADCASTING":
            return []
        has = {name: {queue.topic for queue in table.offsets} for name, table in told.items()}
        found: list[ConsumeStats] = []
        for topic in sorted(there.subscriptions.keys() - {retry_topic(group)}):
            without = [name for name in has if topic not in has[name]]
            tables = await self._consume_stats(group, topic) if without else {}
            found += [tables[name] for name in without if name in tables]
        return found

    async def _connected(self, group: str) -> GroupConnections | None:
        try:
            return await self.connections(group)
        except ConsumerNotOnline:
            return None

    async def connections(self, group: str) -> GroupConnections:
        """Consumers of the group that some broker hears of. ConsumerNotOnline when there is none."""
        check_texts(group=group)
        clients: dict[str, ClientConnection] = {}
        found: ConsumerConnection | None = None
        masters = await self.masters()
        for broker in masters:
            request = GetConsumerConnectionList(consumer_group=group)
            try:
                answer = await self._ask_broker(broker, request, self._timeout_s)
            except ConsumerNotOnline:
                continue
            found = decode_body(ConsumerConnection, answer.body)
            clients |= {client.client_id: client for client in found.connections}
        if found is None:
            names = ", ".join(broker.name for broker in masters)
            raise BrokerRefused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"group {group}: none of its consumers is known to {names}"
            )
        return GroupConnections(
            group,
            tuple(clients[client_id] for client_id in sorted(clients)),
            found.consume_type,
            found.message_model,
            found.consume_from_where,
            found.subscriptions,
        )

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """What a consumer tells of itself: settings, queues, rates; and where its threads and tasks are."""
        check_texts(group=group, client_id=client_id)
        request = GetConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=stacks)
        failure: SystemFailed | None = None
        for broker in await self.masters():  # not every one knows every consumer
            try:
                answer = await self._ask_broker(broker, request, CLIENT_TIMEOUT_S)
            except SystemFailed as error:
                failure = error
                continue
            return decode_body(ConsumerRunningInfo, answer.body)
        assert failure is not None
        raise failure

    async def consume_directly(self, group: str, client_id: str, message: ReceivedMessage) -> DirectResult:
        """Have one consumer handle the message now, once more; what came of it. Offsets stay as they are."""
        check_texts(group=group, client_id=client_id)
        check_received(message)
        request = ConsumeMessageDirectly(
            consumer_group=group,
            client_id=client_id,
            msg_id=message.offset_message_id,
            broker_name=message.queue.broker_name,
            topic=message.queue.topic,
        )
        (broker,) = await self.masters(brokers=[message.queue.broker_name])
        return decode_body(DirectResult, (await self._ask_broker(broker, request, CLIENT_TIMEOUT_S)).body)

    async def consumed_by(self, message: ReceivedMessage) -> tuple[ConsumedBy, ...]:
        """What each group that reads the message's topic, or has read of it, made of the message."""
        check_received(message)
        queue = message.queue
        request = QueryTopicConsumeByWho(topic=queue.topic)
        answers = await self._ask_readers(queue.topic, request, self._timeout_s)
        groups = {name for answer in answers.values() for name in decode_body(GroupList, answer.body).groups}
        return tuple([await self._consumed_by(group, message) for group in sorted(groups)])

    async def _consumed_by(self, group: str, message: ReceivedMessage) -> ConsumedBy:
        queue = message.queue
        online = await self._connected(group)
        committed = await committed_offset(self._instance, group, queue)
        wanted = None if online is None else online.subscriptions.get(queue.topic)
        if online is not None and online.message_model == "BROADCASTING":
            fate = Fate.BROADCASTING
        elif committed is None or committed <= message.queue_offset:
            fate = Fate.NOT_YET
        elif wanted is not None and wanted.tags and message.tag not in wanted.tags:
            fate = Fate.FILTERED
        else:
            fate = Fate.CONSUMED
        return ConsumedBy(group, fate, committed, online is not None)

    async def health(self, group: str) -> GroupHealth:
        """How far behind the group is, and whether that is because it fails: what its consumers tell of the
        last hour, what waits to be tried again, what was given up."""
        behind = (await self.lag(group)).by_topic()
        there = await self._connected(group)
        clients = [] if there is None else [one.client_id for one in there.clients]
        answers = await asyncio.gather(
            *(self.running_info(group, one) for one in clients), return_exceptions=True
        )
        told = [one for one in answers if isinstance(one, ConsumerRunningInfo)]
        failed: dict[str, int] = {}
        for topic, status in (one for info in told for one in info.statuses.items()):
            if status.consume_failed_count:
                failed[topic] = failed.get(topic, 0) + status.consume_failed_count
        dead = 0
        with suppress(NoRoute, TopicNotExist):  # nothing was ever given up
            dead = (await self.topic_stats(dlq_topic(group))).count
        waiting, total = behind.get(retry_topic(group), 0), sum(behind.values())
        return GroupHealth(group, total, len(clients), len(clients) - len(told), failed, waiting, dead)

    async def _check_group(self, group: str) -> None:
        known = await self.groups(include_system=True)
        if group not in known:
            shown = [name for name in known if not is_system_group(name)][:GROUPS_SHOWN_MAX]
            there = (
                f"there are {', '.join(shown)}" if shown else "there are none yet: a first consumer makes one"
            )
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} does not exist on any broker; {there}",
            )

    # --- offsets -------------------------------------------------------------------------------------

    async def offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """What the group has committed of each queue; None where it has nothing."""
        check_texts(group=group)
        queues = (await self.route(topic)).read_queues
        asked = (committed_offset(self._instance, group, queue) for queue in queues)
        return dict(zip(queues, await asyncio.gather(*asked), strict=True))

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Let the group go on at the first message stored at this time or later; where that is.

        Its consumers are told if they are there.
        """
        check_texts(group=group)
        check_integer("timestamp_ms", timestamp_ms)
        moved: dict[MessageQueue, int] = {}
        for broker in await self._readers(topic):
            request = ResetOffset(topic=topic, group=group, timestamp=timestamp_ms)
            try:
                answer = await self._ask_broker(broker, request, STATS_TIMEOUT_S)
                moved |= decode_body(ResetOffsets, answer.body).offsets
            except ConsumerNotOnline:  # a broker that leaves it to the consumers, and none is there
                moved |= await self._move_offline(broker, group, topic, timestamp_ms)
        return moved

    async def skip_to_end(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Let the group pass over all it has not read of the topic."""
        return await self.reset_offsets(group, topic, TO_THE_END)

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let the group go on at `offset` in one queue."""
        check_texts(group=group)
        check_offset(queue, offset)
        broker = next(
            (one for one in await self._readers(queue.topic) if one.name == queue.broker_name), None
        )
        if broker is None:
            raise ConfigError(f"topic {queue.topic} is not on a broker {queue.broker_name}")
        request = ResetOffset(
            topic=queue.topic, group=group, timestamp=0, queue_id=queue.queue_id, offset=offset
        )
        try:
            await self._ask_broker(broker, request, STATS_TIMEOUT_S)
        except ConsumerNotOnline:
            await commit_offset(self._instance, group, queue, offset)

    async def _move_offline(
        self, broker: BrokerInfo, group: str, topic: str, timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        moved = {}
        for queue in (await self.route(topic)).read_queues:
            if queue.broker_name != broker.name:
                continue
            if timestamp_ms < 0:
                offset = await queue_offsets.max_offset(self._instance, queue)
            else:
                offset = await queue_offsets.offset_at(self._instance, queue, timestamp_ms)
            await commit_offset(self._instance, group, queue, offset)
            moved[queue] = offset
        return moved


def _time(timestamp_ms: int) -> int | None:
    return timestamp_ms if timestamp_ms > 0 else None


def _is_hidden(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith("RMQ_SYS_")  # Apache's newest have no list of names

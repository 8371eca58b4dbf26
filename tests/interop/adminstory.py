"""One session with mqadmin: a topic and a group are made, used, looked at, and taken away again.

Owns the commands. What their outputs must say is for `test_mqadmin`.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.record import iter_records
from tests.interop import catalogue_admin
from tests.interop.asking import Asker, Case
from tests.interop.clients import Server
from tests.interop.mqadmin import Mqadmin
from tests.peers import remoting
from tests.peers.process import poll_until

TOPIC, GROUP, BROKER, CLUSTER = "managed", "managers", "broker-a", "DefaultCluster"
Outputs = dict[str, str]
_ID = re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b")


def story(server: Server, directory: Path) -> Outputs:
    """One session: a topic and a group are made, used, looked at, and taken away again."""
    told: Outputs = {}
    with Mqadmin(server.namesrv, directory=directory) as admin:

        def run(command: str, name: str | None = None) -> str:
            told[name or command] = admin.run(*command.split())
            return told[name or command]

        run(f"updateTopic -t {TOPIC} -r 4 -w 4 -b {server.broker}", "updateTopic")
        run(f"updateTopic -t {TOPIC}2 -r 2 -w 2 -c {CLUSTER}", "updateTopic by cluster")
        run(f"updateTopicPerm -t {TOPIC}2 -p 4 -c {CLUSTER}", "updateTopicPerm")
        _await_topics(server, TOPIC, TOPIC + "2")
        run("topicList")
        run("topicList -c", "topicList by cluster")
        run(f"topicRoute -t {TOPIC}", "topicRoute")
        run(f"topicClusterList -t {TOPIC}", "topicClusterList")
        sent = [
            run(
                f"sendMessage -t {TOPIC} -p body{number} -k K{number} -c TagA -b {BROKER} -i 0",
                f"sendMessage {number}",
            )
            for number in range(3)
        ]
        unique = [_ID.findall(output)[0] for output in sent if _ID.findall(output)]
        run(f"topicStatus -t {TOPIC}", "topicStatus")
        run(f"updateSubGroup -g {GROUP} -b {server.broker}", "updateSubGroup")
        run(f"getConsumerConfig -g {GROUP}", "getConsumerConfig")
        run(f"setConsumeMode -t {TOPIC} -g {GROUP} -m PULL -b {server.broker}", "setConsumeMode")
        asker = Asker(server.namesrv, server.broker)
        _join(asker)
        run(f"consumerConnection -g {GROUP}", "consumerConnection")
        run(f"consumerProgress -g {GROUP}", "consumerProgress")
        run("consumerProgress", "consumerProgress of all")
        run("producerConnection -g writers -t " + TOPIC, "producerConnection")
        run(f"brokerConsumeStats -b {server.broker}", "brokerConsumeStats")
        key = run(f"queryMsgByKey -t {TOPIC} -k K1", "queryMsgByKey")
        ids = _ID.findall(key)
        if ids:
            run(f"queryMsgByUniqueKey -t {TOPIC} -i {ids[0]}", "queryMsgByUniqueKey")
        if unique:
            run(f"queryMsgByUniqueKey -t {TOPIC} -i {unique[0]}", "queryMsgByUniqueKey of a send")
            run(f"queryMsgByUniqueKey -t {TOPIC} -i {unique[-1]}", "queryMsgByUniqueKey of the last send")
        run(f"queryMsgById -t {TOPIC} -i {_offset_id(server)}", "queryMsgById")
        run(f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 1", "queryMsgByOffset")
        run(f"consumeMessage -t {TOPIC} -b {BROKER} -i 0 -o 0 -c 2", "consumeMessage")
        run(f"printMsgByQueue -t {TOPIC} -a {BROKER} -i 0 -p true -d true", "printMsgByQueue")
        run(f"queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b {server.broker}", "queryCq")
        _await_counted(server)
        run("statsAll -a", "statsAll of active topics")
        run(f"statsAll -t {TOPIC}", "statsAll")
        run(f"updateSubGroup -g {GROUP}2 -b {server.broker}", "updateSubGroup of a copy")
        run(f"cloneGroupOffset -s {GROUP} -d {GROUP}2 -t {TOPIC}", "cloneGroupOffset")
        run(f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0", "resetOffsetByTime")
        run(f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}", "skipAccumulatedMessage")
        asker.close()
        run(f"brokerStatus -b {server.broker}", "brokerStatus")
        run("clusterList")
        run("clusterList -m", "clusterList with counts")
        run(f"getBrokerConfig -b {server.broker}", "getBrokerConfig")
        run(f"updateBrokerConfig -b {server.broker} -k brokerPermission -v 4", "updateBrokerConfig")
        run(f"updateBrokerConfig -b {server.broker} -k brokerPermission -v 6", "updateBrokerConfig back")
        run("wipeWritePerm -b " + BROKER, "wipeWritePerm")
        run("addWritePerm -b " + BROKER, "addWritePerm")
        run("updateKvConfig -s space -k key -v value", "updateKvConfig")
        run("deleteKvConfig -s space -k key", "deleteKvConfig")
        run("getNamesrvConfig")
        for clean in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
            run(f"{clean} -b {server.broker}", clean)
        run(f"deleteSubGroup -g {GROUP} -b {server.broker}", "deleteSubGroup")
        run(f"deleteTopic -t {TOPIC}2 -c {CLUSTER}", "deleteTopic")
        run("topicList", "topicList at last")
    return told


def _await_topics(server: Server, *topics: str) -> None:
    for topic in topics:
        poll_until(partial(remoting.route, server.namesrv, topic), what=f"route of {topic}", timeout_s=10)


def _await_counted(server: Server) -> None:
    """A topic is active once a sample of its counter was taken, which is done every ten seconds."""
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}

    def counted() -> bool:
        answer = remoting.ask(server.broker, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        return answer.code == 0 and json.loads(answer.body)["statsMinute"]["sum"] > 0

    poll_until(counted, what=f"sample of the sends to {TOPIC}", timeout_s=30)


def _join(asker: Asker) -> None:
    """A member of the group that has read one message."""
    subscribed = [catalogue_admin.subscription(TOPIC)]
    asker.ask(
        catalogue_admin.heartbeat(
            "of a manager", group=GROUP, connection="first", subscriptionDataSet=subscribed
        )
    )
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1}
    asker.ask(Case("commit", "broker", RequestCode.UPDATE_CONSUMER_OFFSET, fields))


def _offset_id(server: Server) -> str:
    """The id by place of the first message, as any consumer would know it."""
    asker = Asker(server.namesrv, server.broker)
    catalogue_pull = Case(
        "pull", "broker", RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "looking", "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
            "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        },
    )  # fmt: skip
    asker.ask(catalogue_pull)
    asker.close()
    return next(iter(iter_records(asker.seen["pull"].body))).message_id

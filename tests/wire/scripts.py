"""Transcripts for a bench: what the recorded clients sent, and what a seed makes up in their manner."""

import random
from collections.abc import Iterator

from hotfire.protocol.codes import RequestCode, Serialization
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.record import java_hash
from tests.wire.golden import GoldenFrame, frames
from tests.wire.transcript import Step

READER = 99_999  # a connection no recording has
START_MS = 1_794_771_400_000
RECORDINGS = tuple(sorted({frame.file for frame in frames() if frame.file.startswith("client-")}))


def by_name(name: str) -> list[Step]:
    """`golden:<file>` or `made:<seed>`."""
    kind, _, rest = name.partition(":")
    return recorded(rest) if kind == "golden" else made(int(rest))


# --- recorded --------------------------------------------------------------------------------------


def recorded_requests(file: str) -> list[GoldenFrame]:
    """Everything the clients of one recording sent to the broker, in order."""
    found = [
        frame
        for frame in frames()
        if frame.file == file
        and frame.facts["dir"] in ("request", "oneway")
        and frame.facts["to"] in ("broker", "broker-vip")
    ]
    assert found, f"no requests to a broker in {file}"
    return found


def recorded(file: str) -> list[Step]:
    """Those requests, each connection closed after its last one; then all that was sent is pulled back."""
    requests = recorded_requests(file)
    last = {frame.facts["conn"]: index for index, frame in enumerate(requests)}
    steps, now = [], 0
    for index, frame in enumerate(requests):
        conn, now = frame.facts["conn"], max(now, frame.facts["ts"])
        steps.append(Step(conn, frame.data, now))
        if last[conn] == index:
            steps.append(Step(conn, None, now))
    return steps + [Step(READER, frame, now) for frame in _pulls(requests)]


def _pulls(requests: list[GoldenFrame]) -> Iterator[bytes]:
    sends = [decode(frame.data) for frame in requests if frame.facts["code"] == RequestCode.SEND_MESSAGE_V2]
    queues = sorted({(send.fields["b"], send.fields["e"]) for send in sends if send.fields})
    for opaque, (topic, queue) in enumerate(queues * 2):  # the first pull finds out, the second is ordinary
        fields = {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": queue,
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        kind = Serialization(opaque % 2)
        yield encode(Command(RequestCode.PULL_MESSAGE, opaque=opaque, fields=fields, serialization=kind))


# --- made up ---------------------------------------------------------------------------------------

TOPICS = ("orders", "t" * 127, "kebab-case_topic", "x%y")
GROUPS = ("readers", "g" * 100, "others")
TAGS = ("TagA", "TagB", "标签", "😀", "Aa", "BB")
EXPRESSIONS = ("*", "TagA", "TagA || TagB", "标签||😀", "Aa", "nothing-has-this", "")
ODD_PROPERTIES = (
    "", "\x02", "\x01", "a", "a\x01", "\x01b", "a\x01b\x01c", "DELAY\x010", "DELAY\x013", "TRAN_MSG\x01true",
    "TRAN_MSG\x01false", "MSG_REGION\x01elsewhere", "TRACE_ON\x01false", "CLUSTER\x01c", "POP_CK\x01x",
    "__CRC32#\x010123456789", "TIMER_DELAY_MS\x015", "WAIT\x01false", "WAIT\x01TRUE", "INNER_NUM\x012",
    "TAGS\x01second", "UNIQ_KEY\x01again", 'UNIQ_KEY\x01quo"te', "UNIQ_KEY\x01键",
    "control\x01\x00\x1f\n", "k\x01\x7f",
)  # fmt: skip
ODD_PULLS: tuple[dict[str, str], ...] = (
    {"queueOffset": "100000"}, {"queueOffset": "-1"}, {"queueId": "4"}, {"queueId": "-1"},
    {"maxMsgNums": "65"}, {"maxMsgNums": "5000"}, {"maxMsgNums": "0"}, {"maxMsgNums": "-1"},
    {"topic": "absent"}, {"maxMsgBytes": "0"},
    {"sysFlag": "8"}, {"sysFlag": "20"}, {"sysFlag": "-1"}, {"subVersion": "3"}, {"subVersion": "9" * 19},
    {"expressionType": "SQL92"}, {"expressionType": ""}, {"ReqT": "0"}, {"consumerGroup": "not a name"},
    {"consumerGroup": ""}, {"queueOffset": "x"}, {"commitOffset": "+5"}, {"suspendTimeoutMillis": ""},
)  # fmt: skip


class Maker:
    """One seed's worth of requests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.opaque = 0
        self.sent: dict[tuple[str, int], int] = {}

    def frame(self, code: int, fields: dict[str, str] | None, body: bytes = b"") -> bytes:
        rng = self.rng
        self.opaque += rng.choice((1, 1, 1, 1000))
        kind = rng.choice((Serialization.JSON, Serialization.ROCKETMQ))
        flag = rng.choice((0,) * 9 + (2,))
        command = Command(code, opaque=self.opaque, flag=flag, fields=fields, body=body, serialization=kind)
        return encode(command)

    def properties(self) -> str:
        rng = self.rng
        pairs = [f"key{i}\x01{'v' * rng.choice((1, 10, 200))}" for i in range(rng.choice((0, 1, 3)))]
        if rng.random() < 0.7:
            pairs.append(f"TAGS\x01{rng.choice(TAGS)}")
        if rng.random() < 0.9:
            pairs.append(f"UNIQ_KEY\x01{rng.randrange(1 << 64):032X}")
        if rng.random() < 0.5:
            pairs.append("WAIT\x01true")
        if rng.random() < 0.15:
            pairs.append(rng.choice(ODD_PROPERTIES))
        if rng.random() < 0.1:
            pairs.append('escaped\x01a"b\\c/\t\r\n\b\f<>&é😀')
        if rng.random() < 0.02:
            pairs.append(f"long\x01{'x' * rng.randrange(32_400, 32_700)}")
        rng.shuffle(pairs)
        return "\x02".join(pairs) + rng.choice(("\x02", ""))

    def send(self) -> bytes:
        rng = self.rng
        topic, queue = rng.choice(TOPICS), rng.choice((0, 1, 2, 3) * 4 + (-1, 4, 99))
        size = rng.choice((1, 10, 100, 1000, 0, 5000)) if rng.random() > 0.01 else 1 << 18
        fields = {
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": rng.choice(("0",) * 12 + ("1", "257", "769", "4", "16", "-1")),
            "g": str(START_MS + rng.randrange(10**6)),
            "h": rng.choice(("0", "0", "7", "-2147483648")),
            "i": self.properties(),
            "j": rng.choice(("0", "0", "0", "3")),
            "k": "false",
            "m": rng.choice(("false",) * 20 + ("true",)),
        }
        if rng.random() < 0.5:
            fields["n"] = "broker"
        if rng.random() < 0.05:
            fields["l"] = "16"
        if rng.random() < 0.05:
            del fields[rng.choice(sorted(fields))]
        if rng.random() < 0.02:
            fields[rng.choice("abcdefghz")] = rng.choice(("", "x", "00", "+1", "9" * 19, " 1"))
        if 0 <= queue < 4:
            self.sent[topic, queue] = self.sent.get((topic, queue), 0) + 1
        code = RequestCode.SEND_MESSAGE_V2
        if rng.random() < 0.1:
            code, fields = RequestCode.SEND_MESSAGE, _long_names(fields)
        return self.frame(code, fields, rng.randbytes(size))

    def pull(self) -> bytes:
        rng = self.rng
        topic, queue = rng.choice([*self.sent] * 5 + [(TOPICS[0], 0)])
        near = self.sent.get((topic, queue), 0)
        offset = rng.choice((0, near // 2, near // 3, max(0, near - 3), rng.randrange(near + 1)))
        fields = {
            "consumerGroup": rng.choice(GROUPS),
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": rng.choice(("32", "32", "1", "3", "64")),
            "sysFlag": rng.choice(("4", "5", "6", "7", "0", "2", "3")),
            "commitOffset": rng.choice(("-1", "0", str(offset))),
            "suspendTimeoutMillis": rng.choice(("15000", "100", "0")),
            "subscription": rng.choice(EXPRESSIONS),
            "subVersion": rng.choice(("0", "1")),
            "expressionType": "TAG",
        }
        if rng.random() < 0.5:
            fields["maxMsgBytes"] = rng.choice(("262144", "1", "1000"))
        if rng.random() < 0.5:
            fields["bname"] = "broker"
        if rng.random() < 0.3:
            fields |= rng.choice(ODD_PULLS)
        if rng.random() < 0.05:
            del fields[rng.choice(sorted(fields))]
        return self.frame(RequestCode.PULL_MESSAGE, fields, b"?" if rng.random() < 0.02 else b"")

    def heartbeat(self, conn: int) -> bytes:
        rng = self.rng
        topics = rng.sample(TOPICS, 3)
        version = rng.randrange(3)
        subscriptions = ",".join(
            f'{{"classFilterMode":false,"codeSet":{[java_hash(tag) for tag in tags]},"expressionType":"TAG",'
            f'"subString":"{"||".join(tags) or "*"}","subVersion":{version},'
            f'"tagsSet":[{",".join(f"{chr(34)}{tag}{chr(34)}" for tag in tags)}],"topic":"{topic}"}}'
            for topic in topics
            for tags in [rng.choice(((), ("TagA",), ("TagB", "标签")))]
        )
        body = (
            f'{{"clientID":"client{conn}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
            f'"consumeType":"CONSUME_PASSIVELY","groupName":"{rng.choice(GROUPS)}",'
            f'"messageModel":"{rng.choice(("CLUSTERING", "BROADCASTING"))}",'
            f'"subscriptionDataSet":[{subscriptions}],"unitMode":false}}],"producerDataSet":[]}}'
        )
        return self.frame(RequestCode.HEART_BEAT, {}, body.encode())

    def other(self) -> bytes:
        rng = self.rng
        at = {"topic": rng.choice(TOPICS), "queueId": str(rng.randrange(4))}
        group = {"consumerGroup": rng.choice(GROUPS)}
        return rng.choice(
            (
                lambda: self.frame(RequestCode.GET_MAX_OFFSET, at),
                lambda: self.frame(RequestCode.GET_MIN_OFFSET, at),
                lambda: self.frame(RequestCode.QUERY_CONSUMER_OFFSET, at | group),
                lambda: self.frame(RequestCode.UPDATE_CONSUMER_OFFSET, at | group | {"commitOffset": "1"}),
                lambda: self.frame(RequestCode.GET_CONSUMER_LIST_BY_GROUP, group),
                lambda: self.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, self.topic_fields()),
                lambda: self.frame(9999, {"x": "y"}),
                lambda: self.frame(RequestCode.PULL_MESSAGE, None),
            )
        )()

    def topic_fields(self) -> dict[str, str]:
        rng = self.rng
        return {
            "topic": rng.choice(TOPICS),
            "defaultTopic": "TBW102",
            "readQueueNums": rng.choice(("4", "4", "2", "8")),
            "writeQueueNums": "4",
            "perm": rng.choice(("6",) * 8 + ("4", "2")),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": rng.choice(("0", "0", "1")),
            "order": rng.choice(("false", "true")),
        }

    def request(self, conn: int) -> bytes:
        draw = self.rng.random()
        if draw < 0.55:
            return self.send()
        if draw < 0.92:
            return self.pull()
        return self.heartbeat(conn) if draw < 0.935 else self.other()


def _long_names(fields: dict[str, str]) -> dict[str, str]:
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
        "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
    }  # fmt: skip
    return {names.get(name, name): value for name, value in fields.items()}


def made(seed: int, count: int = 2000) -> list[Step]:
    """`count` requests over a few connections, cut where no frame ends, several to a turn."""
    maker = Maker(seed)
    return list(_arrivals(maker, count))


def _arrivals(maker: Maker, count: int) -> Iterator[Step]:
    rng, now, conn = maker.rng, START_MS, 0
    unsent: dict[int, bytes] = {}
    alive = [0, 1, 2, 3]
    for _ in range(count):
        if rng.random() < 0.3:
            conn = rng.choice(alive)
        unsent[conn] = unsent.get(conn, b"") + maker.request(conn)
        if rng.random() < 0.5:
            continue
        pending = unsent.pop(conn)
        cut = len(pending) if rng.random() < 0.5 else rng.randrange(len(pending) + 1)
        if pending[cut:]:
            unsent[conn] = pending[cut:]
        now += rng.choice((0, 0, 1, 7, 60)) if rng.random() > 0.01 else rng.choice((-5, 20_000))
        settles = rng.random() < 0.5
        ip = "2001:db8::7" if conn % 4 == 3 else "10.0.0.7"
        yield Step(conn, pending[:cut], now, settles or rng.random() < 0.5, settles, ip)
        if rng.random() < 0.003:
            unsent.pop(conn, None)
            yield Step(conn, None, now)
            alive[alive.index(conn)] = conn = conn + 4  # the client comes again

"""The catalogue's part about queues a broker shares among members, and the modes they are asked for by."""

from __future__ import annotations

from collections.abc import Iterable

from hotfire.protocol.codes import RequestCode as Code
from tests.interop.asking import Case, twins
from tests.interop.catalogue import LONG_NAME, TOPIC, _json
from tests.interop.catalogue_admin import CLIENT, MEMBERS, OTHER_CLIENT, ask, heartbeat


def query(name: str, **changed: str | None) -> Case:
    tree = {
        "clientId": CLIENT, "consumerGroup": MEMBERS, "messageModel": "CLUSTERING", "strategyName": "AVG",
        "topic": TOPIC, **changed,
    }  # fmt: skip
    given = {key: value for key, value in tree.items() if value is not None}
    return _json(f"assignment {name}", Code.QUERY_ASSIGNMENT, given)


def mode(name: str, **changed: object) -> Case:
    tree = {"consumerGroup": MEMBERS, "mode": "PULL", "popShareQueueNum": 0, "topic": TOPIC, **changed}
    given = {key: value for key, value in tree.items() if value is not None}
    return _json(f"mode {name}", Code.SET_MESSAGE_REQUEST_MODE, given)


def assignments() -> Iterable[Case]:
    yield query("of all to the only member")
    yield heartbeat("of another member", OTHER_CLIENT, connection="another")
    for client in (CLIENT, OTHER_CLIENT, "10.0.0.9@0#0"):
        for strategy in ("AVG", "AVG_BY_CIRCLE"):
            yield query(f"by {strategy} to {client}", clientId=client, strategyName=strategy)
    yield from twins(query("twin"))
    for strategy in ("CONSISTENT_HASH", "CONFIG", "MACHINE_ROOM", "", "avg"):
        yield query(f"by {strategy!r}", strategyName=strategy)
    yield query("by no strategy", strategyName=None)
    yield query("to nobody", clientId=None)
    yield query("to an empty client", clientId="")
    yield query("to a group of nobody", consumerGroup="nobody")
    yield query("to broadcasters", messageModel="BROADCASTING", strategyName="NONE", consumerGroup="nobody")
    yield query("to members of no model", messageModel=None)
    yield query("to members of an unknown model", messageModel="SHOUTING")
    topics = (
        "readonly", "writeonly", "closed", "unequal", "nobody", "", "a b", LONG_NAME, "SELF_TEST_TOPIC",
        f"%RETRY%{MEMBERS}", "%RETRY%nobody-at-all",
    )  # fmt: skip
    for topic in topics:
        for model in ("CLUSTERING", "BROADCASTING"):
            yield query(f"of {topic[:30]!r}, {model}", topic=topic, messageModel=model)
    yield query("of no topic", topic=None)
    yield from modes()
    for code, name in ((Code.QUERY_ASSIGNMENT, "assignment"), (Code.SET_MESSAGE_REQUEST_MODE, "mode")):
        yield Case(f"{name}, no body", "broker", code)
        yield Case(f"{name}, not JSON", "broker", code, body=b"queues")
        yield Case(f"{name}, an array", "broker", code, body=b"[1]")
        yield _json(f"{name} of nothing", code, {})


def modes() -> Iterable[Case]:
    yield mode("of pulling")
    yield mode("of pulling again")
    yield mode("of pulling, shared", topic="one", popShareQueueNum=3)
    yield mode("of pulling by default", mode=None, topic="unequal", popShareQueueNum=None)
    yield ask("all request modes that were set", Code.GET_ALL_MESSAGE_REQUEST_MODE)
    yield query("of what is pulled")
    yield mode("of popping", mode="POP", popShareQueueNum=2, topic="readonly")
    yield mode("of an unknown kind", mode="PUSH", topic="writeonly")
    yield mode("of a retry topic", topic=f"%RETRY%{MEMBERS}")
    yield mode("of a topic of nobody", topic="nobody")
    yield mode("of a group of nobody", consumerGroup="nobody-pulls")
    yield mode("of a blank group", consumerGroup="a b")
    yield mode("of a long group", consumerGroup=LONG_NAME * 2)
    yield mode("of no topic", topic=None)
    yield mode("of no group", consumerGroup=None)

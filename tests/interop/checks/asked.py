"""Rows about a consumer at work that administrators ask through its broker."""

from __future__ import annotations

from hotfire.model import retry_topic
from tests.interop.checks.judging import acknowledged, checks, indexes, unchanged
from tests.interop.rowrun import Facts

QUEUES = 4
SYSTEM_ERROR = 1
VERDICTS = {50: "CR_SUCCESS", 51: "CR_LATER", 52: "CR_THROW_EXCEPTION"}
"""Of messages that were handled once more."""
ASKED = {
    "asked": [("admin", "consumer")],
    "asked-java": [("admin", "java498"), ("admin", "java550")],
    "asked-by-java": [("java498", "consumer"), ("java550", "consumer")],
}
"""Who asks whom."""
OURS = ("python", "pythonhotfire")


@checks(*ASKED)
def asked(facts: Facts) -> None:
    """The consumer tells all it has; messages it is given are handled once more, by its own listener."""
    count = facts.row.count
    acknowledged(facts, count)
    pairs = ASKED[facts.row.id]
    for asker, member in pairs:
        _told(facts, asker, member)
    for member in dict.fromkeys(member for _, member in pairs):
        received = facts.of("message", consumer=member)
        again = [index for _, other in pairs if other == member for index in VERDICTS]
        assert sorted(indexes(received)) == sorted([*range(count), *again])
        unchanged(received)


def _told(facts: Facts, asker: str, member: str) -> None:
    topic, who = f"{facts.client}-{facts.row.id}", {"asker": asker, "member": member}
    group = topic if member == "consumer" else f"{topic}-{member}"
    client = facts.one("started", consumer=member)["clientId"]
    running = facts.one("running", **who)
    assert running["clientId"] == client
    assert running["subscriptions"] == {topic: "*", retry_topic(group): "*"}
    each = facts.row.count // QUEUES
    held = each - 1  # the last message, which is the last of the last queue
    assert running["queues"] == [
        *([queue, each, 0, 0, 0, False] for queue in range(QUEUES - 1)),
        [QUEUES - 1, held, 1, held, held, False],
    ], "of each queue: offset, count in hand, from, to, whether it was given up"
    properties = running["properties"]
    assert (properties["consumerGroup"], properties["messageModel"]) == (group, "CLUSTERING")
    assert properties["PROP_CONSUMEORDERLY"] == "false"
    is_ours = facts.client in OURS and member == "consumer"
    thread = f"task hotfire-{group}-" if is_ours else f"ConsumeMessageThread_{group}_"
    assert [one for one in running["stacks"] if one.startswith(thread)], running["stacks"]
    status = facts.one("status", **who)
    assert (status["clientId"], status["offsets"]) == (client, [each, each, each, held])
    direct = facts.of("direct", **who)
    assert [(one["index"], one["result"]) for one in direct] == list(VERDICTS.items())
    assert [(one["order"], one["autoCommit"]) for one in direct] == [(False, True)] * len(VERDICTS)
    assert ["no luck" in (one["remark"] or "") for one in direct] == [False, False, True]
    assert facts.one("absent", **who)["code"] == SYSTEM_ERROR

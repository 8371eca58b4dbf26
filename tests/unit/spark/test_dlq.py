"""Dead letters: grouped by kind, written down for a review, sent again once."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hotfire import Message, ReceivedMessage, sync
from hotfire.client.admin import Admin
from hotfire.errors import ConfigError
from hotfire.spark.pipelines import dlq
from hotfire.spark.pipelines.carrying import COPIED_FROM
from tests.unit.spark.conftest import Topics
from tests.unit.spark.failing import refuse_all
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def letters(topics: Topics) -> Topics:
    """Three that failed alike and one that failed otherwise."""
    topics.cluster.create_topic("orders", queues=1)
    with sync.Producer(topics.namesrv) as producer:
        for number in range(4):
            why = f"order {number} not found" if number < 3 else "no money"
            body = json.dumps({"id": number}).encode()
            producer.send(Message("orders", body, tag="pay", keys=(f"k{number}",), properties={"ERROR": why}))
    refuse_all(topics.namesrv, "billing", "orders", 4, retries_max=0)
    return topics


def _orders(topics: Topics, topic: str = "orders") -> list[ReceivedMessage]:
    with sync.QueueReader(topics.namesrv) as reader:
        return [message for queue in reader.queues(topic) for message in reader.pull(queue, 0).messages]


def test_letters_are_grouped_by_what_they_have_in_common(
    spark: SparkSession, letters: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the topic they came from, tag, tries, error and body; what differs from one to the next does not
    count.
    """
    assert run_pipeline(spark, dlq, namesrv=letters.namesrv, group="billing", json=True) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["letters"] == 4
    found = [(one["count"], one["origin"], one["tag"], one["error"], one["shape"]) for one in told["kinds"]]
    assert found == [
        (3, "orders", "pay", "order <n> not found", "json {id: number}"),
        (1, "orders", "pay", "no money", "json {id: number}"),
    ]


def test_reviewed_letters_are_sent_again_once(spark: SparkSession, letters: Topics, tmp_path: Path) -> None:
    """Those whose lines are left in the file go to the topic they came from, however often that is done."""
    file = tmp_path / "letters.jsonl"
    said: dict[str, Any] = {"namesrv": letters.namesrv, "group": "billing"}
    assert run_pipeline(spark, dlq, review=str(file), **said) == 0
    lines = file.read_text().splitlines()
    assert [json.loads(line)["keys"] for line in lines] == ["k0", "k1", "k2", "k3"]
    file.write_text("\n".join(lines[:2]) + "\n")
    before = len(_orders(letters))
    for _ in range(2):
        assert run_pipeline(spark, dlq, drive=True, ids=str(file), **said) == 0
    again = _orders(letters)[before:]
    assert sorted(message.keys[0] for message in again) == ["k0", "k1"]
    for message in again:
        assert message.properties[COPIED_FROM] == json.loads(lines[int(message.keys[0][1])])["id"]
        assert message.tag == "pay"
        assert message.reconsume_times == 0


def test_letters_for_the_group_alone_go_to_its_retry_topic(spark: SparkSession, letters: Topics) -> None:
    """There they say which topic they came from, so that the group's listener of that topic gets them. The
    topic is made when it is not there.
    """

    async def forget() -> None:
        async with Admin(letters.namesrv) as admin:
            await admin.delete_topic("%RETRY%billing")

    letters.cluster.run(forget())
    said: dict[str, Any] = {"namesrv": letters.namesrv, "group": "billing", "into": "retry"}
    assert run_pipeline(spark, dlq, drive=True, where="said = 'no money'", **said) == 0
    (message,) = _orders(letters, "%RETRY%billing")
    assert (message.keys, message.properties["RETRY_TOPIC"]) == (("k3",), "orders")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"drive": True}, "--drive: say which letters"),
        ({"ids": "file"}, "--ids is for --drive"),
        ({"drive": True, "every": True, "review": "file"}, "review first"),
    ],
)
def test_nothing_is_sent_that_nobody_chose(said: dict[str, Any], why: str) -> None:
    """Driving without saying what is refused before Spark starts."""
    with pytest.raises(ConfigError, match=why):
        dlq.check(dlq.Options(group="billing", **said))

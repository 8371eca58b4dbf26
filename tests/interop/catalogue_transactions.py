"""The catalogue's cases about transactions: halves, ends told rightly and wrongly, questions resumed."""

from __future__ import annotations

from collections.abc import Iterable

from hotfire.protocol.codes import RequestCode as Code
from tests.interop.asking import Case, Given, spoilt
from tests.interop.catalogue import create, message_id, place, send, unique

COMMIT, ROLLBACK = 8, 12
PRODUCERS = "writers"


def half(number: int, **more: str) -> Case:
    marks = {"TRAN_MSG": "true", "PGROUP": PRODUCERS, **more}
    return send(f"half {number}", "halves", properties=unique(200 + number, **marks), sysFlag=4)


def _offset(case: str) -> Given:
    return lambda seen: seen[case].fields["queueOffset"] if case in seen else 0


def end(name: str, number: int, kind: int, **changed: Given) -> Case:
    of = f"send half {number}"
    fields = {
        "producerGroup": PRODUCERS, "tranStateTableOffset": _offset(of), "commitLogOffset": place(of),
        "commitOrRollback": kind, "msgId": f"7F000001000018B4AAC2{200 + number:012X}", **changed,
    }  # fmt: skip
    return Case(f"end transaction {name}", "broker", Code.END_TRANSACTION, fields)


def transactions() -> Iterable[Case]:
    yield create("of halves", "halves", readQueueNums=1, writeQueueNums=1)
    for number in range(4):
        yield half(number)
    yield end("by a commit", 0, COMMIT)
    yield end("by a rollback", 1, ROLLBACK)
    yield end("of another group", 2, COMMIT, producerGroup="others")
    yield end("at another place", 2, COMMIT, tranStateTableOffset=77)
    yield end("of nothing", 2, COMMIT, commitLogOffset=99_999_999)
    yield end("from a check", 2, COMMIT, fromTransactionCheck=True)
    yield from spoilt(end("spoilt", 3, ROLLBACK))
    yield Case("resume nothing", "broker", Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "none"})
    yield Case(
        "resume a place without a message",
        "broker",
        Code.RESUME_CHECK_HALF_MESSAGE,
        {"msgId": "0" * 31 + "7"},
    )
    yield Case(
        "resume what was not laid aside", "broker", Code.RESUME_CHECK_HALF_MESSAGE,
        {"msgId": message_id("send V2")},
    )  # fmt: skip

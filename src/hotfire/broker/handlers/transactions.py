"""How a transaction ends: its producer says so, at once or when asked. And those laid aside, resumed."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hotfire import model
from hotfire.broker import halves
from hotfire.broker.call import PARKED, Answer, AnswerWhenReadable, Call, Outcome, Task, handles
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.broker.late import Fate
from hotfire.broker.outcomes import QUEUE_ID
from hotfire.broker.put import Undeliverable, put
from hotfire.broker.transactions import look_up
from hotfire.errors import BrokerRefused, RecordInvalid
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Record, SysFlag, decode_record, parse_offset_message_id, parse_properties
from hotfire.protocol.requests import EndTransaction, ResumeCheckHalfMessage
from hotfire.store.queries import Looker
from hotfire.store.reading import ReadStatus

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

UNKNOWN, COMMIT, ROLLBACK = 0, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK
HALF_BYTES_MAX = 16 << 20


@handles(EndTransaction)
def end(broker: Broker, call: Call[EndTransaction]) -> Outcome:
    """Oneway: nobody waits for an answer, and what is lost here the broker asks for."""
    request = call.request
    if broker.config.is_slave:
        raise BrokerRefused(
            ResponseCode.SLAVE_NOT_AVAILABLE,
            f"broker[{broker.config.broker_name}] is a slave, transactions end at its master",
        )
    if request.commit_or_rollback == UNKNOWN:
        return PARKED  # the reference answers nothing either
    if request.commit_or_rollback not in (COMMIT, ROLLBACK):
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"commitOrRollback is {request.commit_or_rollback}: 8 commits, 12 rolls back, 0 is not known yet",
        )
    broker.store.check_writeable()
    offset, transactions = request.tran_state_table_offset, broker.transactions
    if offset >= transactions.former_end and transactions.outcomes.is_open(offset):
        found = broker.store.read(model.HALF_TOPIC, QUEUE_ID, offset, count_max=1, bytes_max=HALF_BYTES_MAX)
        if found.status is ReadStatus.FOUND and found.data is not None and found.pieces[0][2] == offset:
            record = decode_record(found.data, check_crc=False)  # the store has checked it
            return apply(broker, call, record, None, call.now_ms)
    check_room(broker)
    look_for(broker, call)
    return PARKED


def look_for(broker: Broker, call: Call[EndTransaction]) -> None:
    asked_end, place = broker.transactions.indexed_end, call.request.commit_log_offset
    broker.store.queries.look(
        lambda look: record_at(look, place), Task(lambda future: resume(broker, call, future, asked_end))
    )


def record_at(look: Looker, place: int) -> tuple[Record, Fate] | None:
    """The half a request names, or the one laid aside, and what the log knows of it. Beside the loop."""
    data = look.record(place)
    if data is None:
        return None
    try:
        record = decode_record(data, check_crc=False)
    except RecordInvalid:
        return None
    return record, look_up(look, record)


def resume(broker: Broker, call: Call[EndTransaction], future: Future[Any], asked_end: int) -> None:
    """Go on with what was found, whether its producer is still there or not: it may have ended with this."""

    def answer() -> Outcome:
        found: tuple[Record, Fate] | None = future.result()
        if found is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        record, fate = found
        late = broker.transactions.late
        if not late.may_trust(asked_end):
            look_for(broker, call)
            return PARKED
        return apply(broker, call, record, late.corrected(halves.identity(record), fate), broker.now_ms)

    broker.transactions.when_loaded(lambda: broker.serve(call, EndTransaction, answer))


def apply(
    broker: Broker, call: Call[EndTransaction], half: Record, fate: Fate | None, now_ms: int
) -> Outcome:
    """Do what the outcome asks for, once: a transaction that is no longer open has had its end.

    Unless nobody knew it in time: one that was laid aside is committed late, as with the reference.
    """
    transactions = broker.transactions
    outcomes, request = transactions.outcomes, call.request
    check_half(broker, request, half, now_ms)
    here, current = half.queue_offset, half.queue_offset if fate is None else fate.newest
    is_commit = request.commit_or_rollback == COMMIT
    is_committed = fate is not None and fate.is_committed
    if outcomes.is_open(current):
        if is_commit and not is_committed:
            commit(broker, half, now_ms)
        outcomes.end(current)
        transactions.ended(is_commit=is_commit)
    elif is_commit and not is_committed and fate is not None and fate.is_aside:
        end = commit(broker, half, now_ms)
        transactions.late.note(halves.identity(half), dataclasses.replace(fate, is_committed=True), end)
        transactions.ended(is_commit=True)
    if outcomes.is_open(here):  # stored anew before a crash, and the op for this place was lost
        outcomes.end(here)
    return Answer() if call.command.is_oneway else once_safe(broker, now_ms)


def once_safe(broker: Broker, now_ms: int) -> Outcome:
    """For a producer that waits, as none of the reference's does: told when the log surely says the same.

    So what was decided, be it by others in this turn, gets its op now and not with the rest of the turn.
    """
    broker.transactions.write_ops(now_ms)
    if broker.transactions.outcomes.owes:
        raise BrokerRefused(
            ResponseCode.SYSTEM_BUSY,
            "the transaction is ended, but the log has no room to say so just now; end it again to be sure",
        )
    broker.wants_turn = True
    return AnswerWhenReadable(broker.store.end, Answer())


def commit(broker: Broker, half: Record, now_ms: int) -> int:
    """Place the message where it belongs; where it ends in the log."""
    try:
        return put(broker, halves.committed(half), now_ms).end
    except Undeliverable as error:
        raise BrokerRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the half message does not say where it belongs: {error}"
        ) from None


def check_half(broker: Broker, request: EndTransaction, record: Record, now_ms: int) -> None:
    """Whether the record is the half that the request means, and its producer may still end it by itself."""
    named = parse_properties(record.properties)
    wrong = None
    if record.topic != model.HALF_TOPIC:
        wrong = f"Find prepared transaction message failed: a message of topic[{record.topic}] is there"
    elif named.get(halves.PRODUCER_GROUP) != request.producer_group:
        wrong = "The producer group wrong"
    elif record.queue_offset != request.tran_state_table_offset:
        wrong = "The transaction state table offset wrong"
    elif record.physical_offset != request.commit_log_offset:
        wrong = "The commit log offset wrong"
    elif request.transaction_id and named.get(halves.UNIQUE_KEY) not in (
        request.transaction_id,
        request.msg_id,
    ):  # after a loss of power another half may lie where the one it means was
        wrong = f"The transaction id wrong: message[{named.get(halves.UNIQUE_KEY)}] is there"
    if wrong is not None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, wrong)
    immunity = named.get(halves.IMMUNITY)
    if immunity and not request.from_transaction_check:
        limit_ms = max((halves.number(immunity) or 0) * 1000, broker.config.transaction_time_out)
        age_ms = now_ms - record.store_timestamp
        if age_ms > limit_ms:
            raise BrokerRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the half message is {age_ms} ms old, its producer had {limit_ms} ms; it is asked again",
            )


@handles(ResumeCheckHalfMessage)
def resume_check(broker: Broker, call: Call[ResumeCheckHalfMessage]) -> Outcome:
    """Ask again about a half that was laid aside."""
    message_id = call.request.msg_id or ""
    try:
        _, offset = parse_offset_message_id(message_id)
    except ValueError as error:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    broker.store.check_writeable()
    check_room(broker)
    look_aside(broker, call, offset)
    return PARKED


def look_aside(broker: Broker, call: Call[ResumeCheckHalfMessage], place: int) -> None:
    transactions = broker.transactions
    asked_end = transactions.indexed_end

    def answer(found: tuple[Record, Fate] | None) -> Outcome:
        if not transactions.late.may_trust(asked_end):
            look_aside(broker, call, place)
            return PARKED
        if found is None or found[0].topic != model.CHECK_MAX_TIME_TOPIC:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no half message laid aside in {model.CHECK_MAX_TIME_TOPIC} has the id "
                f"{call.request.msg_id or '':.80}",
            )
        record, of = found[0], halves.identity(found[0])
        fate = transactions.late.corrected(of, found[1])
        if fate.is_committed:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of message[{of[0]}] is committed, there is nothing left to ask about it",
            )
        if not fate.is_aside:
            return Answer()  # resumed already; a second half would be a second delivery
        placed = broker.store.append(halves.resumed(record), broker.now_ms)
        transactions.late.note(of, Fate(newest=placed.queue_offset), placed.end)
        transactions.stored(placed.queue_offset, broker.now_ms)
        return AnswerWhenReadable(placed.end, Answer())

    broker.store.queries.look(
        lambda look: record_at(look, place), Asked(call, ResumeCheckHalfMessage, answer)
    )

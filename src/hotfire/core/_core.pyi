from collections.abc import Callable, Hashable, Sequence
from typing import Any

Buffer = Any

Piece = tuple[int, int, int]
PullLimits = tuple[int, int, int, int, int]
Pull = tuple[Any, int, int, int, int, int]
LoadFrame = tuple[bytes, int, int, int, tuple[int, ...], tuple[int, ...]]

SOURCE_HASH: str

class Queue:
    next: int
    max: int
    min: int
    watched: int
    extended: int
    extend: Callable[[int, int, int, int], int] | None
    @property
    def key(self) -> Any: ...
    def __init__(self, key: Hashable, grow: Callable[[int], None] | None = None) -> None: ...
    def attach(self, base: int, buffer: Any, /) -> None: ...
    def detach(self, base: int, /) -> bool: ...
    def close(self) -> None: ...
    def claim(self) -> int: ...
    def entry(self, index: int, /) -> tuple[int, int, int] | None: ...
    def put(self, index: int, physical: int, size: int, tags: int, /) -> None: ...
    def show(self, index: int, physical: int, size: int, tags: int, timestamp: int, /) -> None: ...
    def select(
        self,
        from_: int,
        count_max: int,
        bytes_max: int,
        memory_from: int,
        codes: tuple[int, ...] | None,
        limits: PullLimits,
        /,
    ) -> tuple[list[Piece], int, int, bool]: ...
    def bulk(
        self,
        journal: Journal,
        lowest: int,
        topic: bytes,
        queue_id: int,
        from_: int,
        count_max: int,
        bytes_max: int,
        memory_from: int,
        codes: tuple[int, ...] | None,
        limits: PullLimits,
        /,
    ) -> tuple[bytes, int, int, int] | None: ...

def sync_map(mapped: Any, start: int, size: int, /) -> None: ...

class KeyIndex:
    reserved: int
    @property
    def next(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def end_timestamp(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def __init__(self, buffer: Any, slots: int, entries: int, reserved: int) -> None: ...
    def begin(self, timestamp: int, offset: int, /) -> None: ...
    def put(self, hash: int, physical: int, timestamp: int, /) -> bool: ...
    def query(self, hash: int, count_max: int, begin_ms: int, end_ms: int, /) -> list[int]: ...
    def repair(self, below: int, /) -> int: ...
    def close(self) -> None: ...

class Journal:
    last_timestamp: int
    @property
    def end(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def pending(self) -> int: ...
    def __init__(self, end: int, turn_bytes_max: int = ...) -> None: ...
    def add_segment(self, start: int, size: int, fd: int, /) -> None: ...
    def drop_segment(self, start: int, /) -> bool: ...
    def reserve(self, size: int, /) -> int | None: ...
    def append(
        self,
        record: bytes,
        queue: Queue | None,
        index: int,
        tags: int,
        timestamp: int = 0,
        hashes: tuple[int, ...] = (),
        /,
    ) -> int: ...
    def set_index(self, index: KeyIndex | None, grow: Callable[[int], object], /) -> None: ...
    summed_from: int
    @property
    def is_written(self) -> bool: ...
    @property
    def stalled(self) -> bool: ...
    def set_pool(self, bytes: int, /) -> int: ...
    def set_mark(self, fd: int, position: int, magic: bytes, /) -> None: ...
    def submit(self, how: int, /) -> bool: ...
    def retry(self) -> bool: ...
    def complete(self) -> int: ...
    def derive(self, limit: int, /) -> list[Queue] | None: ...
    def take_shown(self) -> list[tuple[Any, int, int]]: ...
    def fetch(self, pieces: list[Piece], /) -> bytes | None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

class Reader:
    pace_least: int
    @property
    def queued(self) -> int: ...
    def submit(
        self,
        journal: Journal,
        pieces: list[Piece],
        token: Any,
        topic: bytes | None = ...,
        queue_id: int = ...,
        /,
    ) -> None: ...
    def take(self, everything: bool = ..., /) -> list[tuple[Any, bytes | int, int]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

class Lane:
    @property
    def sends(self) -> int: ...
    @property
    def pulls(self) -> int: ...
    def __init__(
        self,
        *,
        journal: Journal,
        topics: dict[bytes, tuple[tuple[Queue, ...], tuple[Queue, ...], int]],
        grants: dict[bytes, tuple[int, tuple[int, ...] | None, int, Any]],
        store_host: bytes,
        id_prefix: str,
        suffix: bytes,
        region: str,
        trace_on: bool,
        version: int,
        append_crc: bool,
        frame_max: int,
        body_max: int,
        batch_max: int,
        memory_window: int,
        pull_limits: PullLimits,
    ) -> None: ...
    def serve(
        self, data: Any, start: int, born_host: bytes, now_ms: int, /
    ) -> tuple[int, int, bytes | None, bytes | None, list[Pull]]: ...

BULK_BYTES: int

class Link:
    active_ms: int
    whole: int
    sends: int
    bulk: int
    @property
    def reading(self) -> int: ...

class Replies:
    def __len__(self) -> int: ...
    def send(self, now_ms: int, /) -> None: ...
    def pairs(self) -> list[tuple[Any, bytes]]: ...

class Sockets:
    def __init__(self, buffer: Any, clock: bool = False) -> None: ...
    def add(self, fd: int, connection: Any, born_host: bytes, /) -> Link: ...
    def pause(self, link: Link, /) -> None: ...
    def resume(self, link: Link, /) -> None: ...
    def leave(self, link: Link, gone: bool, /) -> None: ...
    def receive(
        self, lane: Lane | None, now_ms: int, again: bool, /
    ) -> tuple[Replies | None, list[Pull], Any, int, int]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

def crc32(data: Any, crc: int = 0, /) -> int: ...
def key_hash(topic: bytes, key: bytes, /) -> int: ...
def java_hash(utf8: bytes, /) -> int: ...
def read_frame(data: Any, frame_max: int, /) -> tuple[int, int, int, dict[bytes, bytes], bytes] | str: ...
def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    suffix: bytes,
    born_host: bytes,
    store_host: bytes,
    queue_id: int,
    flag: int,
    sys_flag: int,
    reconsume_times: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    store_timestamp: int,
    prepared_offset: int,
    append_crc: bool,
    /,
) -> bytes: ...
def scan_records(
    buffer: Any, base: int, verify: bool, summed_from: int = ..., count_max: int = ..., /
) -> tuple[list[tuple[int, int, bytes, int, int, int, int, int, tuple[int, ...]]], int, str]: ...
def keyed_records(
    places: list[tuple[int, int, int, int]],
    summed_from: int,
    topic: bytes,
    key: bytes,
    count_max: int,
    bytes_max: int,
    /,
) -> list[tuple[int, bytes]]: ...
def sound_records(
    data: Any, pieces: list[tuple[int, int, int]], topic: bytes, queue_id: int, summed_from: int, /
) -> int: ...
def sql_verdict(program: bytes, properties: bytes, /) -> int: ...
def sift_records(
    program: bytes,
    data: Any,
    pieces: list[tuple[int, int, int]],
    count_max: int,
    bytes_max: int,
    cost_max: int,
    /,
) -> tuple[list[int], int, int]: ...
def derive_records(
    buffer: Any,
    base: int,
    summed_from: int,
    last_timestamp: int,
    queues: dict[bytes, Queue],
    index: KeyIndex | None,
    /,
) -> tuple[int, int, int]: ...
def encode_rows(
    columns: tuple[int, Any, Any, Any, Any],
    rows: Any,
    at: int,
    end: int,
    ids: Any,
    prefix: bytes,
    counter: int,
    dropped: tuple[bytes, ...],
    bytes_max: int,
    count_max: int,
    /,
) -> tuple[bytes, int, int]: ...
def spread_rows(count: int, text: Any, rows: Any, at: int, end: int, queues: int, /) -> bytes: ...

class RowIds:
    def __init__(self, key: bytes, time: bytes) -> None: ...
    def run(
        self,
        count: int,
        texts: tuple[Any, ...],
        map: Any,
        rows: Any,
        at: int,
        end: int,
        keyed: bool,
        out: Any,
        /,
    ) -> None: ...

class Sent:
    def __init__(
        self,
        code: int,
        message_id: str,
        offset_message_id: str,
        queue: Any,
        queue_offset: int,
        transaction_id: str | None = None,
    ) -> None: ...
    @property
    def code(self) -> int: ...
    @property
    def message_id(self) -> str: ...
    @property
    def offset_message_id(self) -> str: ...
    @property
    def queue(self) -> Any: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def transaction_id(self) -> str | None: ...

class Unpacker:
    def __init__(self, message_type: type, /) -> None: ...
    def run(
        self,
        data: Any,
        at: int,
        topic: str,
        topic_utf8: bytes,
        queue: Any,
        queue_id: int,
        tags: Any,
        messages: list[Any],
        /,
    ) -> int: ...

Buffers = tuple[Buffer | None, ...]

class Columns:
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __init__(
        self,
        wanted: int,
        broker_name: bytes,
        stored_from: int = ...,
        stored_until: int = ...,
        summed_from: int = ...,
        queues: Sequence[int] | None = None,
    ) -> None: ...
    def run(
        self,
        data: Buffer,
        at: int,
        end: int,
        topic: bytes | None,
        queue_id: int,
        first: int,
        until: int,
        tags: bytes | None = None,
        base: int = -1,
        without: bytes | None = None,
    ) -> int: ...
    def gather(
        self,
        data: Buffer,
        base: int,
        entries: Buffer,
        at: int,
        topic: bytes,
        queue_id: int,
        first_offset: int,
        tags: bytes | None = None,
    ) -> int: ...
    def add(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        msg_id: bytes,
        keys: bytes | None,
        tags: bytes | None,
        body: bytes,
        properties: Sequence[tuple[bytes, bytes]],
        born_ms: int,
        store_ms: int,
        reconsume_times: int,
        sys_flag: int,
        log_offset: int,
    ) -> None: ...
    def take(self) -> tuple[int, list[Buffers]]: ...

class SendPipe:
    def __init__(
        self, message_type: type, result_type: type, id_prefix: str, body_max: int, frame_max: int
    ) -> None: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def unsent(self) -> int: ...
    @property
    def next_deadline(self) -> float | None: ...
    def send(
        self,
        message: Any,
        target: tuple[Any, int, bytes, bytes, bytes, bytes],
        future: Any,
        now_ms: int,
        month_ms: int,
        deadline: float,
        /,
    ) -> bool: ...
    def take(self) -> bytes: ...
    def receive(self, data: Any, /) -> tuple[bytes, int]: ...
    def pop(self, opaque: int, /) -> tuple[Any, Any, str, Any, float] | None: ...
    def expire(self, now: float, /) -> list[tuple[Any, Any, str, Any, float]]: ...
    def clear(self) -> list[tuple[Any, Any, str, Any, float]]: ...

class Load:
    sends_max: int
    deliveries_max: int
    @property
    def asked(self) -> int: ...
    @property
    def answered(self) -> int: ...
    @property
    def acked(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def unanswered(self) -> int: ...
    @property
    def stray(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def delivered_own(self) -> int: ...
    @property
    def delivered_bytes(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def repeated(self) -> int: ...
    @property
    def codes(self) -> dict[int, int]: ...
    @property
    def refusal(self) -> bytes: ...
    @property
    def answer_latencies(self) -> bytes: ...
    @property
    def delivery_latencies(self) -> bytes: ...
    def __init__(self, mark: bytes, rate: float = 0.0, frame_bytes_max: int = ...) -> None: ...
    def add_writer(self, fd: int, window: int, messages: int, frames: list[LoadFrame], /) -> None: ...
    def add_reader(self, fd: int, frames: list[LoadFrame], places: list[tuple[int, int]], /) -> None: ...
    def run(self, seconds: float, /) -> bool: ...
    def stop(self) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...

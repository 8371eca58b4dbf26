"""The generator of load without a compiler: loadgen.c's specification, and its stand-in. Linux or not.

Given connected sockets and frames that differ from one request to the next only in digits of a fixed width,
it keeps a window of them under way on each, and counts. It knows where replies tell their code, opaque and
next offset, and where a record has its offset and body, and nothing else of the protocol. Every length a peer
announces is held against a bound before it is believed; a peer that breaks one is hung up on, and counted.
"""

from __future__ import annotations

import os
import re
import selectors
import struct
import time
from array import array
from dataclasses import dataclass, field

OPAQUE_FIRST = 1_000_000_000
"""Ten digits, as all after it: a slot's opaque never changes its width."""
KEY_DIGITS, TIME_DIGITS, OFFSET_DIGITS = 32, 13, 18
LATENCY_BITS = 42
BUCKETS = (LATENCY_BITS - 7) * 64 + 128
HEADER_BYTES_MAX = 2 << 20
READ_BYTES = 1 << 18
REMEMBERED_BYTES_MAX = 1 << 16
PEERS_MAX, WINDOW_MAX, PLACES_MAX = 4096, 65536, 4096
FOUND, NOT_FOUND, OFFSET_MOVED = 0, 19, 21

Frame = tuple[bytes, int, int, int, tuple[int, ...], tuple[int, ...]]
"""Bytes, then the places of opaque, time, offset, keys and clocks; 0 for none."""

_CODE, _OPAQUE = re.compile(rb'"code":(-?[0-9]{1,10})'), re.compile(rb'"opaque":([0-9]{1,10})')
_NEXT, _BINARY_NEXT = re.compile(rb'"nextBeginOffset":"([0-9]{1,18})'), b"\0\x0fnextBeginOffset"


def bucket_of(ns: int) -> int:
    """Buckets are as wide as 1/64 of what they hold.

    >>> bucket_of(127), bucket_of(128), bucket_of(10**6), bucket_of(10**18)
    (127, 128, 954, 2367)
    """
    ns = min(max(ns, 0), (1 << LATENCY_BITS) - 1)
    above = max(ns.bit_length() - 7, 0)
    return above * 64 + (ns >> above)


@dataclass(eq=False)
class _Peer:
    fd: int
    is_reader: bool
    messages: int
    frames: list[Frame]
    free: list[int]
    cursors: list[list[int]]
    sent_ns: dict[int, int] = field(default_factory=dict)
    """By slot, of the requests under way."""
    turn: int = 0
    out: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    is_lost: bool = False
    wants_out: bool = False


class Load:
    """What `hotfire.core.load.Load` is where there was no compiler."""

    def __init__(self, mark: bytes, rate: float = 0.0, frame_bytes_max: int = 16 << 20) -> None:
        if len(mark) != 8 or rate < 0 or frame_bytes_max > 64 << 20:
            raise ValueError("a mark of 8 bytes, a rate of 0 or more, frames of 64 MiB at most")
        self._mark, self._rate, self._frame_bytes_max = bytes(mark), rate, frame_bytes_max
        self._selector: selectors.BaseSelector | None = selectors.DefaultSelector()
        self._peers: list[_Peer] = []
        self._began_ns = self._due_ns = self._scheduled = self._next_peer = self._numbered = 0
        self._is_stopped = False
        self.sends_max = self.deliveries_max = 0
        self.asked = self.answered = self.acked = self.in_flight = self.unanswered = self.stray = (
            self.lost
        ) = 0
        self.delivered = self.delivered_own = self.delivered_bytes = self.missed = self.repeated = 0
        self.codes: dict[int, int] = {}
        self.refusal = b""
        self.clear()

    @property
    def answer_latencies(self) -> bytes:
        return self._answer.tobytes()

    @property
    def delivery_latencies(self) -> bytes:
        return self._delivery.tobytes()

    def clear(self) -> None:
        self._answer, self._delivery = array("Q", bytes(8 * BUCKETS)), array("Q", bytes(8 * BUCKETS))

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()
        self._selector, self._peers = None, []

    def add_writer(self, fd: int, window: int, messages: int, frames: list[Frame], /) -> None:
        if not 1 <= window <= WINDOW_MAX or not 1 <= messages <= PLACES_MAX:
            raise ValueError("a window of 1 to 65536 requests, each of 1 to 4096 messages")
        self._add(_Peer(fd, False, messages, frames, list(range(window - 1, -1, -1)), []))

    def add_reader(self, fd: int, frames: list[Frame], places: list[tuple[int, int]], /) -> None:
        if len(places) != len(frames) or any(offset < 0 for offset, _ in places):
            raise ValueError("a place for each frame")
        if not all(frame[3] for frame in frames):
            raise ValueError("a pull without the place of its offset")
        self._add(_Peer(fd, True, 1, frames, [], [[*place, 0] for place in places]))

    def _add(self, peer: _Peer) -> None:
        if self._selector is None:
            raise RuntimeError("the load is closed")
        if not peer.frames or len(self._peers) == PEERS_MAX:
            raise ValueError("more than 4096 connections" if peer.frames else "frames: a list of 1 to 65536")
        for frame, opaque_at, time_at, offset_at, keys_at, clocks_at in peer.frames:
            widths = [(opaque_at, 10), (time_at, TIME_DIGITS), (offset_at, OFFSET_DIGITS)]
            widths += [*((at, KEY_DIGITS) for at in keys_at), *((at, 8) for at in clocks_at)]
            if opaque_at < 8 or any(at < 0 or at + width > len(frame) for at, width in widths):
                raise ValueError("a place is behind the frame's end")
        self._selector.register(peer.fd, selectors.EVENT_READ, peer)
        self._peers.append(peer)

    # --- the loop ------------------------------------------------------------------------------------

    def run(self, seconds: float, /) -> bool:
        """Until the time given, or all is done; whether there is more to do."""
        if self._selector is None:
            raise RuntimeError("the load is closed")
        now = time.monotonic_ns()
        until = now + int(seconds * 1e9)
        if not self._began_ns:
            self._began_ns = self._due_ns = now
        while True:
            self._fill(now)
            for peer in self._peers:
                if not peer.is_lost:
                    self._ask_cursors(peer)
                    if peer.out and not peer.wants_out:
                        self._push(peer)
            if self._is_over() or now >= until:
                return not self._is_over()
            for key, events in self._selector.select(max(self._next_ns(until, now) - now, 0) / 1e9):
                if events & selectors.EVENT_READ:
                    self._take(key.data)
                if events & selectors.EVENT_WRITE and not key.data.is_lost:
                    self._push(key.data)
            now = time.monotonic_ns()

    def _next_ns(self, until: int, now: int) -> int:
        is_due = self._rate and self._may_send() and now < self._due_ns < until
        return self._due_ns if is_due else until

    def _is_over(self) -> bool:
        if self.deliveries_max and self.delivered >= self.deliveries_max:
            return True
        there = [peer for peer in self._peers if not peer.is_lost]
        has_readers = any(peer.is_reader and peer.sent_ns for peer in there)
        has_writers = any(not peer.is_reader for peer in there)
        return not has_readers and not self.in_flight and not (has_writers and self._may_send())

    def _may_send(self) -> bool:
        return not self._is_stopped and (not self.sends_max or self.asked < self.sends_max)

    # --- asking --------------------------------------------------------------------------------------

    def _fill(self, now: int) -> None:
        """Without a rate every free slot is filled; with one, a send counts from when it was due."""
        writers = [peer for peer in self._peers if not peer.is_reader and not peer.is_lost]
        if not self._rate:
            for peer in writers:
                while peer.free and self._may_send():
                    self._send_next(peer, now)
            return
        while self._due_ns <= now and self._may_send() and writers:
            turns = (writers[(self._next_peer + index) % len(writers)] for index in range(len(writers)))
            peer_free = next((peer for peer in turns if peer.free), None)
            if peer_free is None:
                return
            self._next_peer += 1
            self._send_next(peer_free, self._due_ns)
            self._scheduled += 1
            self._due_ns = self._began_ns + int(self._scheduled * peer_free.messages / self._rate * 1e9)

    def _send_next(self, peer: _Peer, at_ns: int) -> None:
        frame = peer.frames[peer.turn % len(peer.frames)]
        peer.turn += 1
        self._ask(peer, frame, peer.free.pop(), 0, at_ns)
        self.asked += peer.messages
        self.in_flight += 1

    def _ask_cursors(self, peer: _Peer) -> None:
        for slot, (offset, _, is_over) in enumerate(peer.cursors):
            if slot not in peer.sent_ns and not is_over:
                self._ask(peer, peer.frames[slot], slot, offset, time.monotonic_ns())

    def _ask(self, peer: _Peer, given: Frame, slot: int, offset: int, at_ns: int) -> None:
        frame, opaque_at, time_at, offset_at, keys_at, clocks_at = given
        out, opaque = bytearray(frame), OPAQUE_FIRST + slot
        if frame[4] == 0:
            out[opaque_at : opaque_at + 10] = b"%d" % opaque
        else:
            struct.pack_into(">i", out, opaque_at, opaque)
        if time_at:
            out[time_at : time_at + TIME_DIGITS] = b"%013d" % (time.time_ns() // 1_000_000)
        if offset_at:
            out[offset_at : offset_at + OFFSET_DIGITS] = b"%018d" % offset
        for at in keys_at:
            out[at + KEY_DIGITS - 16 : at + KEY_DIGITS] = b"%016X" % self._numbered
            self._numbered += 1
        for at in clocks_at:
            struct.pack_into(">Q", out, at, at_ns)
        peer.out += out
        peer.sent_ns[slot] = at_ns

    def _push(self, peer: _Peer) -> None:
        try:
            while peer.out:
                del peer.out[: os.write(peer.fd, peer.out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return self._hang_up(peer)
        if bool(peer.out) != peer.wants_out:
            peer.wants_out = bool(peer.out)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.wants_out else 0)
            assert self._selector is not None
            self._selector.modify(peer.fd, events, peer)

    def _hang_up(self, peer: _Peer) -> None:
        assert self._selector is not None
        self._selector.unregister(peer.fd)
        peer.is_lost = True
        self.lost += 1
        self.unanswered += len(peer.sent_ns) * peer.messages
        if not peer.is_reader:
            self.in_flight -= len(peer.sent_ns)
        peer.sent_ns.clear()

    # --- answers -------------------------------------------------------------------------------------

    def _take(self, peer: _Peer) -> None:
        try:
            arrived = os.read(peer.fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            return self._hang_up(peer)
        peer.received += arrived
        at, is_sound = 0, bool(arrived)
        while is_sound and len(peer.received) - at >= 8:
            length = int.from_bytes(peer.received[at : at + 4], "big")
            if not 4 <= length <= self._frame_bytes_max:
                is_sound = False
            elif len(peer.received) - at < 4 + length:
                break
            else:
                is_sound = self._take_reply(peer, bytes(peer.received[at : at + 4 + length]))
                at += 4 + length
        del peer.received[:at]
        if not is_sound:
            self._hang_up(peer)

    def _take_reply(self, peer: _Peer, frame: bytes) -> bool:
        found = _read_reply(frame)
        if found is None:
            return False
        code, opaque, next_offset, body = found
        slot = opaque - OPAQUE_FIRST
        sent_ns = peer.sent_ns.pop(slot, None)
        if sent_ns is None:  # a question, or one reply too many
            self.stray += 1
            return True
        if peer.is_reader or code == FOUND:  # a no is quickly said
            self._answer[bucket_of(time.monotonic_ns() - sent_ns)] += 1
        self.answered += 1
        self.codes[code] = self.codes.get(code, 0) + peer.messages
        is_pull_code = peer.is_reader and NOT_FOUND <= code <= OFFSET_MOVED
        if code != FOUND and not is_pull_code and not self.refusal and len(frame) <= REMEMBERED_BYTES_MAX:
            self.refusal = frame
        if peer.is_reader:
            return self._take_pull(peer.cursors[slot], code, next_offset, body)
        self.acked += peer.messages if code == FOUND else 0
        self.in_flight -= 1
        peer.free.append(slot)
        return True

    def _take_pull(self, cursor: list[int], code: int, next_offset: int, body: bytes) -> bool:
        if code == FOUND:
            if not self._read_records(cursor, body):
                return False
            cursor[0] = max(cursor[0], next_offset)
        elif not NOT_FOUND <= code <= OFFSET_MOVED:
            cursor[2] = 1
        elif code == NOT_FOUND and cursor[1] >= 0:
            cursor[0] = cursor[1]
        elif next_offset >= 0:
            cursor[0] = next_offset
        return True

    def _read_records(self, cursor: list[int], body: bytes) -> bool:
        """Each whole, in place, and if it is this run's, how late it is."""
        at, now = 0, time.monotonic_ns()
        while at < len(body):
            if len(body) - at < 48:
                return False
            size, flags = int.from_bytes(body[at : at + 4], "big"), body[at + 39]
            body_at = 48 + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 4 + 8
            if not max(91, body_at + 4) <= size <= len(body) - at:
                return False
            (body_size,) = struct.unpack_from(">I", body, at + body_at)
            if body_size > size - body_at - 4:
                return False
            (offset,) = struct.unpack_from(">q", body, at + 20)
            if offset < cursor[0]:
                self.repeated += 1
            else:
                self.missed += offset - cursor[0]
                cursor[0] = offset + 1
            start = at + body_at + 4
            if body_size >= 16 and body[start : start + 8] == self._mark:
                self._delivery[bucket_of(now - int.from_bytes(body[start + 8 : start + 16], "big"))] += 1
                self.delivered_own += 1
            self.delivered += 1
            self.delivered_bytes += body_size
            at += size
        return True


def _read_reply(frame: bytes) -> tuple[int, int, int, bytes] | None:
    """Code, opaque, next offset (or -1) and body; None when it is no reply."""
    (mark,) = struct.unpack_from(">I", frame, 4)
    header_size = mark & 0xFFFFFF
    if header_size > len(frame) - 8 or header_size > HEADER_BYTES_MAX or mark >> 24 > 1:
        return None
    header, body = frame[8 : 8 + header_size], frame[8 + header_size :]
    if mark >> 24 == 1:
        if header_size < 21:
            return None
        (code,), (opaque,) = struct.unpack_from(">h", header), struct.unpack_from(">I", header, 5)
        at = header.find(_BINARY_NEXT) + 17
        text = b""
        if 17 <= at <= header_size - 4 and (digits := int.from_bytes(header[at : at + 4], "big")) <= 18:
            text = header[at + 4 : at + 4 + digits]
        return code, opaque, int(text) if text.isdigit() else -1, body
    # a quote inside a text is escaped, so that no text holds these
    code_found, opaque_found, next_found = _CODE.search(header), _OPAQUE.search(header), _NEXT.search(header)
    if code_found is None or opaque_found is None:
        return None
    return int(code_found[1]), int(opaque_found[1]), int(next_found[1]) if next_found else -1, body

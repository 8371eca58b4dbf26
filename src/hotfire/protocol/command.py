"""One remoting frame: bytes <-> Command, in both header serialisations.

    int32  length        of all that follows: 4 + header + body
    int32  mark          8 bits serialisation (0 JSON, 1 binary), 24 bits header length
    bytes  header        code, language, version, opaque, flag, remark, extFields
    bytes  body

Owns the layout, its limits, and the text Java writes: `encode(decode(frame)) == frame` for frames of
the reference implementation. Knows nothing of single requests (see `requests`) nor of streams
(see `connection`). Whatever bytes come in, `decode` gives a Command or raises RemoteProtocolError.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import NoReturn

from hotfire.errors import LocalProtocolError, RemoteProtocolError
from hotfire.protocol.codes import VERSION, LanguageCode, Serialization

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A whole frame with its length word. The Java side's frameMaxLength counts the same way."""

FRAME_BYTES_MIN = 8
"""Length word and mark."""

HEADER_BYTES_MAX = 1024 * 1024
"""The mark's 24 bits would allow 16 MiB. The largest honest header of a request holds a property string of
32767 bytes, at worst six times that once escaped; a megabyte of JSON is only ever sent to keep us busy."""

REPLY_HEADER_BYTES_MAX = 2 * 1024 * 1024
"""The reply to a batch names each of its messages, 32767 at most, by an id of 32 or 56 characters."""

JOINED_BODY_BYTES_MAX = 128 * 1024
"""A longer one is sooner written apart: a copy of megabytes goes into fresh memory, page by page."""

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

Buffer = bytes | bytearray | memoryview

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT16_MIN, _INT16_MAX = -(2**15), 2**15 - 1
_PREFIX = struct.Struct(">iI")
_BINARY_HEAD = struct.Struct(">hbhiii")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")

_LANGUAGE_BY_NAME = {language.name: language for language in LanguageCode}
_NAME_BY_LANGUAGE = {language.value: language.name for language in LanguageCode}
_SERIALIZATIONS = {kind.value: kind for kind in Serialization}
_DECIMAL = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(slots=True)
class Command:
    """A request or a reply, before its fields are given types."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] | None = None
    remark: str | None = None
    body: bytes = b""
    language: int = LanguageCode.JAVA
    version: int = VERSION
    serialization: Serialization = Serialization.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def reply(
        self,
        code: int,
        *,
        fields: dict[str, str] | None = None,
        remark: str | None = None,
        body: bytes = b"",
        serialization: Serialization = Serialization.JSON,
    ) -> Command:
        """The answer to this command. Its serialisation is the server's choice, not the request's."""
        return Command(
            code=code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            fields=fields,
            remark=remark,
            body=body,
            serialization=serialization,
        )


def frame_size(data: Buffer, position: int = 0) -> int:
    """Bytes of the frame that begins at `position`, or 0 when its length word is not yet complete."""
    if len(data) - position < 4:
        return 0
    (length,) = _INT32.unpack_from(data, position)
    size: int = length + 4
    if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"frame of {size} bytes announced, allowed are {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}"
        )
    return size


def decode(frame: Buffer, header_bytes_max: int = HEADER_BYTES_MAX) -> Command:
    """The Command in one whole frame, its length word included."""
    size = frame_size(frame)
    if size != len(frame) or size == 0:
        raise RemoteProtocolError(f"frame of {len(frame)} bytes announces {size}")
    command, body_at = decode_head(frame, header_bytes_max)
    if body_at < size:
        command.body = bytes(memoryview(frame)[body_at:])
    return command


def decode_head(frame: Buffer, header_bytes_max: int = HEADER_BYTES_MAX) -> tuple[Command, int]:
    """The Command in a frame whose header is here, and where its body begins, which may not be here."""
    length, mark = _PREFIX.unpack_from(frame)
    header_size = mark & 0xFFFFFF
    body_at: int = FRAME_BYTES_MIN + header_size
    if body_at > length + 4:
        raise RemoteProtocolError(f"header of {header_size} bytes in a frame of {length + 4}")
    if header_size > header_bytes_max:
        raise RemoteProtocolError(f"header of {header_size} bytes, allowed are {header_bytes_max}")
    header = bytes(memoryview(frame)[FRAME_BYTES_MIN:body_at])
    kind = _SERIALIZATIONS.get(mark >> 24)
    if kind is Serialization.JSON:
        return _decode_json(header), body_at
    if kind is Serialization.ROCKETMQ:
        return _decode_binary(header), body_at
    raise RemoteProtocolError(f"header serialisation {mark >> 24} is neither 0 (JSON) nor 1 (binary)")


def encode(command: Command) -> bytes:
    """The whole frame of `command`, length word included."""
    return _encode_head(command) + command.body


def encode_parts(command: Command) -> tuple[bytes, ...]:
    """The frame in parts to be written one after the other: a long body is not copied."""
    if len(command.body) <= JOINED_BODY_BYTES_MAX:
        return (encode(command),)
    return _encode_head(command), command.body


def _encode_head(command: Command) -> bytes:
    """All but the body."""
    write_header = _encode_json if command.serialization is Serialization.JSON else _encode_binary
    header = write_header(command)
    size = FRAME_BYTES_MIN + len(header) + len(command.body)
    header_bytes_max = REPLY_HEADER_BYTES_MAX if command.is_response else HEADER_BYTES_MAX
    if len(header) > header_bytes_max or size > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"command {command.code}: header of {len(header)} bytes (at most {header_bytes_max})"
            f" in a frame of {size} (at most {FRAME_BYTES_MAX}); send less at once"
        )
    mark = command.serialization << 24 | len(header)
    return _PREFIX.pack(size - 4, mark) + header


# --- JSON header -----------------------------------------------------------------------------------


def _encode_json(command: Command) -> bytes:
    # Java's key order. `encode_basestring` is json's own escaping without \u for non-ASCII text, which
    # is what fastjson writes: \" \\ \b \f \n \r \t, \u00xx for other control characters, the rest raw.
    parts = [f'{{"code":{command.code:d}']
    if command.fields is not None:
        pairs = [
            f"{encode_basestring(key)}:{encode_basestring(value)}" for key, value in command.fields.items()
        ]
        parts.append(f'"extFields":{{{",".join(pairs)}}}')
    language = _NAME_BY_LANGUAGE.get(command.language, "OTHER")
    parts.append(f'"flag":{command.flag:d},"language":"{language}","opaque":{command.opaque:d}')
    if command.remark is not None:
        parts.append(f'"remark":{encode_basestring(command.remark)}')
    parts.append(f'"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}')
    # A lone surrogate has no UTF-8 form; Java writes `?` for it, and so do we.
    return ",".join(parts).encode("utf-8", "replace")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Fractions stay text: a field's value is its text anyway, and no header number has a fraction.
# Raw control characters inside strings are let through, as fastjson does.
_parse_json = json.JSONDecoder(parse_float=str, parse_constant=_refuse_constant, strict=False).decode


def _decode_json(header: bytes) -> Command:
    try:
        tree = _parse_json(header.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header of {len(header)} bytes: {error}") from None
    if not isinstance(tree, dict):
        raise RemoteProtocolError(f"JSON header is {type(tree).__name__}, not an object")
    # Only an escape can smuggle half a surrogate pair into text that was valid UTF-8.
    may_hold_surrogates = b"\\" in header and (b"\\ud" in header or b"\\uD" in header)
    fields = tree.get("extFields")
    if fields is not None:
        fields = _field_texts(fields, clean=may_hold_surrogates)
    remark = tree.get("remark")
    if remark is not None:
        if not isinstance(remark, str):
            raise RemoteProtocolError(f"JSON header: remark is {type(remark).__name__}, not a string")
        if may_hold_surrogates:
            remark = _SURROGATE.sub("?", remark)
    language = tree.get("language", "JAVA")
    known = _LANGUAGE_BY_NAME.get(language) if isinstance(language, str) else None
    return Command(
        code=_header_int(tree, "code", None),
        opaque=_header_int(tree, "opaque", 0),
        flag=_header_int(tree, "flag", 0),
        fields=fields,
        remark=remark,
        language=LanguageCode.OTHER if known is None else known,
        version=_header_int(tree, "version", 0),
    )


def _header_int(tree: dict[str, object], key: str, default: int | None) -> int:
    value = tree.get(key, default)
    if type(value) is str and _DECIMAL.fullmatch(value):
        value = int(value)  # fastjson takes "310" for 310
    if type(value) is int and _INT32_MIN <= value <= _INT32_MAX:
        return value
    raise RemoteProtocolError(f"JSON header: {key} is {value!r:.40}, not a 32-bit integer")


def _field_texts(fields: object, *, clean: bool) -> dict[str, str]:
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"JSON header: extFields is {type(fields).__name__}, not an object")
    texts: dict[str, str] = {}
    for key, value in fields.items():
        if type(value) is not str:
            if value is None:
                continue  # a null field is an absent field
            if value is True or value is False:
                value = "true" if value else "false"
            elif type(value) is int:
                value = str(value)
            else:
                raise RemoteProtocolError(
                    f"JSON header: extFields[{key!r:.40}] is {type(value).__name__}, not text"
                )
        if clean:
            key, value = _SURROGATE.sub("?", key), _SURROGATE.sub("?", value)
        texts[key] = value
    return texts


# --- binary header ---------------------------------------------------------------------------------
#
#     int16 code    int8 language   int16 version   int32 opaque   int32 flag
#     int32 size + remark                      0 = none
#     int32 size + fields                      0 = none; each int16 size + key, int32 size + value


def _encode_binary(command: Command) -> bytes:
    if not _INT16_MIN <= command.code <= _INT16_MAX:
        raise LocalProtocolError(
            f"command {command.code} does not fit the 16 bits of a binary header; use JSON"
        )
    if not _INT16_MIN <= command.version <= _INT16_MAX:
        raise LocalProtocolError(f"version {command.version} does not fit the 16 bits of a binary header")
    remark = (command.remark or "").encode("utf-8", "replace")
    pairs: list[bytes] = []
    for key, value in (command.fields or {}).items():
        name, text = key.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(name) > _INT16_MAX:
            raise LocalProtocolError(f"command {command.code}: field name of {len(name)} bytes")
        pairs += (_INT16.pack(len(name)), name, _INT32.pack(len(text)), text)
    fields = b"".join(pairs)
    head = _BINARY_HEAD.pack(
        command.code, command.language, command.version, command.opaque, command.flag, len(remark)
    )
    return b"".join((head, remark, _INT32.pack(len(fields)), fields))


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_HEAD.unpack_from(header)
        remark, at = _slice(header, _BINARY_HEAD.size, remark_size, "remark")
        (fields_size,) = _INT32.unpack_from(header, at)
        if at + 4 + fields_size != len(header):
            raise RemoteProtocolError(
                f"binary header of {len(header)} bytes: fields of {fields_size} bytes at {at}"
            )
        fields = _decode_pairs(header, at + 4) if fields_size else None
    except struct.error as error:
        raise RemoteProtocolError(f"binary header of {len(header)} bytes ends early: {error}") from None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"binary header: {error}") from None
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        fields=fields,
        remark=remark or None,
        language=language if language in _NAME_BY_LANGUAGE else LanguageCode.OTHER,
        version=version,
        serialization=Serialization.ROCKETMQ,
    )


def _decode_pairs(header: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while at < len(header):
        (key_size,) = _INT16.unpack_from(header, at)
        key, at = _slice(header, at + 2, key_size, "field name")
        (value_size,) = _INT32.unpack_from(header, at)
        fields[key], at = _slice(header, at + 4, value_size, "field value")
    return fields


def _slice(header: bytes, at: int, size: int, what: str) -> tuple[str, int]:
    end = at + size
    if size < 0 or end > len(header):
        raise RemoteProtocolError(f"binary header of {len(header)} bytes: {what} of {size} bytes at {at}")
    return header[at:end].decode("utf-8"), end


def with_code(frames: bytes, code: int) -> bytes:
    """The same replies with another code."""
    out, at = bytearray(), 0
    while at < len(frames):
        size = frame_size(frames, at)
        out += encode(dataclasses.replace(decode(frames[at : at + size]), code=code))
        at += size
    return bytes(out)

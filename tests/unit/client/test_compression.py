"""Bodies compressed by a producer: smaller on the wire and in the store, whole for whoever reads them."""

import asyncio
import struct
import sys
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client.compression import compress, decompress
from hotfire.client.messages import received_messages
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError
from hotfire.model import TopicConfig
from hotfire.protocol.record import SysFlag, decode_record
from tests.unit.client.cluster import Cluster, run
from tests.unit.client.real import real_cluster
from tests.wire.golden import manifest, unpack_store

T = TopicConfig("T", 4, 4)
TEXT = b"ten kilobytes of text that says the same again and again. " * 180
FLAGS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@pytest.mark.promise(87)
@pytest.mark.parametrize("kind", FLAGS)
def test_large_body_is_stored_smaller_and_read_whole(tmp_path: Path, kind: str) -> None:
    """10 KB of text: flagged, stored smaller, whole again for a reader; one in a batch goes as it is."""

    async def scenario() -> None:
        async with real_cluster(tmp_path) as cluster:
            async with Producer(cluster.namesrv, compression=kind) as producer:  # type: ignore[arg-type]
                before = cluster.brokers[0].broker.store.end
                await producer.send(Message("T", TEXT))
                assert cluster.brokers[0].broker.store.end - before < len(TEXT) / 5
                before = cluster.brokers[0].broker.store.end
                await producer.send_batch([Message("T", TEXT)])
                assert cluster.brokers[0].broker.store.end - before > len(TEXT)
            async with TopicReader(cluster.namesrv, "T", start="earliest", follow=False) as reader:
                assert [(message.body, message.compression) async for message in reader] == [(TEXT, None)] * 2

    asyncio.run(scenario())


@pytest.mark.promise(87)
@pytest.mark.parametrize("kind", FLAGS)
def test_flag_says_how_and_from_where(kind: str) -> None:
    """From 4096 bytes on, or from what was asked for; never without a kind."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, compression=kind) as producer:  # type: ignore[arg-type]
            await producer.send(Message("T", bytes(4095)))
            await producer.send(Message("T", bytes(4096)))
        async with Producer(cluster.namesrv, compression=kind, compress_from_bytes=10) as producer:  # type: ignore[arg-type]
            await producer.send(Message("T", bytes(10)))
        async with Producer(cluster.namesrv, compression=None) as producer:
            await producer.send(Message("T", bytes(9000)))
        assert [send.sys_flag for send in broker.sends] == [0, FLAGS[kind], FLAGS[kind], 0]
        assert decompress(broker.sends[1].body, FLAGS[kind], "id") == (bytes(4096), None)

    run(scenario)


def test_lz4_frames_are_of_independent_blocks() -> None:
    """The one kind Java's reader takes; bit 5 of the frame's first flags says so."""
    packed, _ = compress("lz4", TEXT)
    magic, flags = struct.unpack_from("<IB", packed)
    assert magic == 0x184D2204
    assert flags & 0x20


@pytest.mark.promise(87)
def test_bodies_java_compressed_are_read(tmp_path: Path) -> None:
    """Records the Java broker stored, of Java producers, in all three kinds."""
    segments = {int(path.name): path.read_bytes() for path in unpack_store("store", tmp_path)}
    kinds = set()
    for line in manifest("store"):
        if line.get("topic") != "compressed":
            continue
        base = max(start for start in segments if start <= line["physicalOffset"])
        at = line["physicalOffset"] - base
        (message,) = received_messages(segments[base][at : at + line["storeSize"]], "broker-a")
        assert (len(message.body), message.compression) == (line["bodyLength"], None)
        kinds.add(line["sysFlag"])
        assert decode_record(segments[base][at : at + line["storeSize"]]).sys_flag == line["sysFlag"]
    assert {0x101, 0x201, 0x301} <= kinds


@pytest.mark.parametrize(("kind", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_missing_package_is_told(kind: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that wants it is not made; a reader gets the stored body and the name of its kind."""
    packed, flag = compress(kind, TEXT)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=package):
        Producer("127.0.0.1:9876", compression=kind)  # type: ignore[arg-type]
    assert decompress(packed, flag, "id") == (packed, kind.upper())


def test_unknown_kind_and_unsound_body(caplog: pytest.LogCaptureFixture) -> None:
    """The one is an error; the other keeps its stored body, marked and told, and holds nobody up."""
    with pytest.raises(ConfigError, match="gzip"):
        Producer("127.0.0.1:9876", compression="gzip")  # type: ignore[arg-type]
    assert decompress(b"nonsense", SysFlag.COMPRESSED | SysFlag.ZLIB, "id-1") == (b"nonsense", "ZLIB")
    assert "message=id-1" in caplog.text

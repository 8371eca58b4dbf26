"""What keeps a broker from starting is told in one line that names the culprit, and leaves nothing open."""

import asyncio
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.cli.serving import read_config_file
from hotfire.errors import ConfigError, StoreCorrupt, StoreError
from hotfire.settings import from_properties
from tests.unit.broker.harness import Harness


def start(root: Path) -> None:
    config = BrokerConfig(
        store_path_root_dir=str(root),
        bind_address="127.0.0.1",
        listen_port=0,
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=500,
        max_index_num=1000,
    )
    asyncio.run(BrokerProgram(config).start())


def test_a_table_that_cannot_be_used_leaves_the_store_closed(tmp_path: Path) -> None:
    """The file is named, and once it is mended the same directory opens: nobody holds it, nothing is lost."""
    heart = Harness(tmp_path)
    heart.send()
    heart.close()
    file = tmp_path / "config" / "subscriptionGroup.json"
    whole = file.read_bytes()
    file.write_text('{"subscriptionGroupTable":[]}')
    with pytest.raises(StoreCorrupt, match=r"subscriptionGroup\.json"):
        start(tmp_path)
    assert not (tmp_path / "abort").exists()
    file.unlink()
    file.mkdir()  # not even a file
    with pytest.raises(StoreError, match=r"subscriptionGroup\.json"):
        start(tmp_path)
    file.rmdir()
    file.write_bytes(whole)
    heart.open()
    assert heart.pull(topic="T").code == 0
    heart.close()


def test_a_configuration_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Bytes of another encoding, a broken escape, no file: the file, and where in it."""
    file = tmp_path / "broker.conf"
    file.write_bytes("brokerName=köln\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"broker\.conf: byte 12 is not UTF-8"):
        read_config_file(str(file))
    file.write_text("brokerName=\\u12\n")
    with pytest.raises(ConfigError, match=r"broker\.conf: .*four hexadecimal digits"):
        read_config_file(str(file))
    with pytest.raises(ConfigError, match=r"configuration file .*: Is a directory"):
        read_config_file(str(tmp_path))
    file.write_text("brokerName=köln\n", "utf-8")
    assert read_config_file(str(file)).properties == {"brokerName": "köln"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("regionId", 'a"b'),
        ("regionId", "a\\b"),
        ("regionId", "a\x01b"),
        ("regionId", "å"),
        ("regionId", "r" * 256),
        ("brokerClusterName", "a\x02b"),
    ],
)
def test_text_that_would_break_every_message_is_refused(key: str, value: str) -> None:
    """Region and cluster are written into each message and reply: what cannot stand there is named by key."""
    with pytest.raises(ConfigError, match=f"^{key}="):
        from_properties(BrokerConfig, {key: value})


def test_ordinary_regions_and_clusters_are_taken() -> None:
    """All that can be written is."""
    region = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"\\')
    config, _ = from_properties(BrokerConfig, {"regionId": region, "brokerClusterName": 'Köln "1"'})
    assert (config.region_id, config.broker_cluster_name) == (region, 'Köln "1"')

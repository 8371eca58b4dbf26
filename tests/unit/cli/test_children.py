"""Child processes of `hotfire up`: which there are, and what happens when one dies again and again."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from hotfire.cli import children as children_module
from hotfire.cli.children import Child, Children
from hotfire.cli.up import broker_directories, broker_name, settings_of_each
from hotfire.errors import ConfigError

READY_ONCE = """
import pathlib, sys
mark = pathlib.Path(sys.argv[1])
if mark.exists():
    print("no room left", file=sys.stderr)
    raise SystemExit(3)
mark.touch()
print("hotfire ready broker=127.0.0.1:10911", flush=True)
raise SystemExit(1)
"""


def store(directory: Path) -> None:
    (directory / "commitlog").mkdir(parents=True)


def test_each_broker_has_its_own_name_directory_and_port(tmp_path: Path) -> None:
    """Ports are 10 apart, so that neither a fast port nor a port for slaves is another broker's."""
    directories = broker_directories(tmp_path, 3)
    assert directories == [tmp_path / "broker-a", tmp_path / "broker-b", tmp_path / "broker-c"]
    each = settings_of_each({"flushDiskType": "SYNC_FLUSH"}, directories, 10911)
    assert [one["listenPort"] for one in each] == ["10911", "10921", "10931"]
    assert [one["brokerName"] for one in each] == ["broker-a", "broker-b", "broker-c"]
    assert [one["listenPort"] for one in settings_of_each({}, directories, 0)] == ["0", "0", "0"]
    (named,) = settings_of_each({"brokerName": "eagle"}, [tmp_path], 10911)
    assert (named["brokerName"], named["storePathRootDir"]) == ("eagle", str(tmp_path))
    assert len({broker_name(number) for number in range(64)}) == 64


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_brokers_than_directories_are_refused_by_name(tmp_path: Path, count: int) -> None:
    """Messages nobody would serve are never passed over: the directories and the ways out are told."""
    for name in ("broker-a", "broker-b", "broker-c"):
        store(tmp_path / name)
    with pytest.raises(ConfigError) as refused:
        broker_directories(tmp_path, count)
    for words in (f"--brokers {count}", "broker-a, broker-b, broker-c", "--brokers 3", "elsewhere"):
        assert words in str(refused.value)
    assert len(broker_directories(tmp_path, 3)) == 3
    assert len(broker_directories(tmp_path, 4)) == 4


def test_a_store_of_one_is_not_passed_over_either(tmp_path: Path) -> None:
    """Begun with one broker, started with two: that store is named, with the place to move it to."""
    store(tmp_path)
    assert broker_directories(tmp_path, 1) == [tmp_path]
    with pytest.raises(ConfigError, match="broker-a"):
        broker_directories(tmp_path, 2)
    only = tmp_path / "several"
    store(only / "broker-a")
    assert broker_directories(only, 1) == [only / "broker-a"], "several, of which one is left"


def test_a_child_that_dies_at_every_start_is_not_hammered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deaths soon after a start: the pauses grow, each death is one line with status and last words."""
    pauses: list[float] = []
    enough = asyncio.Event()

    async def no_sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            enough.set()
            await asyncio.Event().wait()

    async def scenario() -> None:
        command = [sys.executable, "-c", READY_ONCE, str(tmp_path / "mark")]
        children = Children([Child("broker-a", lambda _: command)])
        monkeypatch.setattr(children_module.asyncio, "sleep", no_sleep)
        await children.start(10.0)
        await enough.wait()
        assert await children.stop() == []

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(scenario(), 30.0))
    assert pauses == [0.0, 1.0, 2.0, 4.0]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0].startswith("broker-a ended with status 1; starting it again at once (deaths in a row: 1)")
    assert lines[3].startswith("broker-a ended with status 3; starting it again in 4 s (deaths in a row: 4)")
    assert lines[3].endswith("its last line: no room left")


def test_a_child_that_never_starts_is_the_end(tmp_path: Path) -> None:
    """The first start fails: that is told with the child's own words, and the others are stopped."""
    (tmp_path / "mark").touch()
    good = "import sys; print('hotfire ready broker=127.0.0.1:1', flush=True); sys.stdin.read()"

    async def scenario() -> None:
        bad = [sys.executable, "-c", READY_ONCE, str(tmp_path / "mark")]
        other = Child("broker-a", lambda _: [sys.executable, "-c", good])
        children = Children([other, Child("broker-b", lambda _: bad)])
        with pytest.raises(ConfigError, match=r"broker-b could not start.*status 3.*no room left"):
            await children.start(10.0)
        assert other.process is not None
        assert other.process.returncode is not None

    asyncio.run(asyncio.wait_for(scenario(), 30.0))

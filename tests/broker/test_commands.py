"""The serving commands as a person meets them: what they print, what they refuse, and in how many lines."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.settings import load_properties, settings_of
from tests.broker.programs import broker_config, config_file, namesrv_config, run, running, up
from tests.peers import remoting
from tests.peers.hotfire import executable
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, poll_until


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def complaint(arguments: Sequence[str], directory: Path, *, status: int = 1) -> str:
    """What a command that cannot start says: one line that is no log, no traceback, nothing on stdout."""
    got, output, errors = run(arguments, cwd=directory)
    assert got == status, errors
    assert output == ""
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if " INFO " not in line and " WARNING " not in line]
    (line,) = lines
    assert line.startswith(f"hotfire {arguments[0]}: "), line
    return line


# --- what cannot be started ---


def test_busy_port_is_named(tmp_path: Path, taken: int) -> None:
    """The port is somebody else's: its number, and what to do; the store is left closed and clean."""
    for arguments in (
        ["up", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", str(taken)],
        ["up", "--data", str(tmp_path / "data"), "--namesrv-port", str(taken), "--broker-port", "0"],
        ["broker", "-c", broker_config(tmp_path, listenPort=taken)],
        ["namesrv", "-c", namesrv_config(tmp_path, listenPort=taken)],
    ):
        line = complaint(arguments, tmp_path)
        assert f"port {taken}" in line
        assert "in use" in line
        assert "choose another" in line
    assert not (tmp_path / "data" / "abort").exists()
    assert not (tmp_path / "broker-a" / "abort").exists()


def test_directory_of_another_broker_is_left_alone(tmp_path: Path) -> None:
    """A second broker on the same data is refused and the first one does not notice."""
    with running(tmp_path, *up(tmp_path)) as first:
        line = complaint(up(tmp_path), tmp_path)
        assert str(tmp_path / "data") in line
        assert "in use by another broker" in line
        assert remoting.max_offsets(first.broker, "BenchmarkTest", 1) == [0]
        assert (tmp_path / "data" / "abort").exists()
        assert first.process.terminate() == 0


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the directory should be, or one that may not be written: its path, and why not."""
    (tmp_path / "data").write_text("in the way")
    line = complaint(up(tmp_path), tmp_path)
    assert str(tmp_path / "data") in line
    assert "choose another" in line
    for nobodys in ("/proc/hotfire", "/sys/hotfire"):  # nobody makes a directory there, root neither
        line = complaint(up(Path(nobodys)), tmp_path)
        assert f"{nobodys}/data" in line
        assert "choose another" in line
    if os.geteuid() != 0:  # root may write anywhere else
        (tmp_path / "locked").mkdir(mode=0o500)
        line = complaint(up(tmp_path / "locked"), tmp_path)
        assert str(tmp_path / "locked") in line
        assert "Permission denied" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listenPort": "many"}, ["listenPort=many", "integer", "65535"]),
        ({"flushDiskType": "SOMETIMES"}, ["flushDiskType=SOMETIMES", "SYNC_FLUSH"]),
        ({"autoCreateTopicEnable": "maybe"}, ["autoCreateTopicEnable=maybe", "true or false"]),
        ({"brokerIP1": "no-such-host.invalid"}, ["brokerIP1: ", "no-such-host.invalid", "without a port"]),
        ({"namesrvAddr": "nonsense"}, ["nonsense", "host:port"]),
    ],
)
def test_settings_that_make_no_sense_are_named(
    tmp_path: Path, settings: dict[str, str], words: list[str]
) -> None:
    """Key, value and what would be allowed; nothing is left half open."""
    line = complaint(["broker", "-c", broker_config(tmp_path, **settings)], tmp_path)
    for word in words:
        assert word in line
    assert not (tmp_path / "broker-a" / "abort").exists()


def test_settings_that_do_not_exist_are_named(tmp_path: Path) -> None:
    """A typing error on the command line is refused; in a file written for Apache it is a warning."""
    line = complaint(up(tmp_path, "--set", "listenPrt=1"), tmp_path)
    assert "listenPrt" in line
    config = broker_config(tmp_path, someSettingOfApache="true")
    with running(tmp_path, "broker", "-c", config) as program:
        assert "someSettingOfApache" in program.log


def test_missing_configuration_file_is_named(tmp_path: Path) -> None:
    """-c with a file that is not there."""
    for command in ("broker", "namesrv"):
        line = complaint([command, "-c", str(tmp_path / "nowhere.conf")], tmp_path)
        assert "nowhere.conf" in line
        assert "No such file" in line


def test_damaged_table_is_named(tmp_path: Path) -> None:
    """A table that is no table stops the start with its path; the store is not left open."""
    config = tmp_path / "data" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    line = complaint(up(tmp_path), tmp_path)
    assert "topics.json" in line
    assert not (tmp_path / "data" / "abort").exists()


# --- what is started ---


@pytest.mark.promise(1)
def test_name_server_follows_its_file_and_prints_its_settings(tmp_path: Path, taken: int) -> None:
    """`-c FILE` decides where it listens; `-p` prints every setting, ends with 0 and opens no port."""
    config = namesrv_config(tmp_path, serialize=1, orderMessageEnable="true")
    with running(tmp_path, "namesrv", "-c", config) as names:
        assert remoting.ask(names.namesrv, remoting.GET_ROUTE_BY_TOPIC, {"topic": "T"}).code == 17
        assert names.process.terminate() == 0
    chosen = namesrv_config(tmp_path, listenPort=taken, orderMessageEnable="true")
    status, output, errors = run(["namesrv", "-c", chosen, "-p"], cwd=tmp_path)
    assert (status, errors) == (0, "")  # the port is taken: had it been opened, this would have failed
    shown = load_properties(output)
    assert set(shown) == {one.key for one in settings_of(NameServerConfig)}
    assert (shown["listenPort"], shown["orderMessageEnable"]) == (str(taken), "true")


def test_broker_prints_its_settings(tmp_path: Path, taken: int) -> None:
    """`broker -p`: every setting with the file's and the command line's values, no port, no store."""
    config = broker_config(tmp_path, listenPort=taken, regionId="Moon")
    status, output, errors = run(["broker", "-c", config, "-n", "a:1;b:2", "-p"], cwd=tmp_path)
    assert (status, errors) == (0, "")
    shown = load_properties(output)
    assert set(shown) == {one.key for one in settings_of(BrokerConfig)}
    assert (shown["listenPort"], shown["regionId"], shown["namesrvAddr"]) == (str(taken), "Moon", "a:1;b:2")
    assert not (tmp_path / "broker-a").exists()
    status, output, _ = run(["broker", "-p"], cwd=tmp_path)
    assert status == 0
    assert load_properties(output)["listenPort"] == "10911"


def test_printed_settings_can_be_read_back(tmp_path: Path) -> None:
    """What `-p` prints is a configuration file that means the same."""
    _, printed, _ = run(["broker", "-c", broker_config(tmp_path), "-p"], cwd=tmp_path)
    (tmp_path / "again.conf").write_text(printed)
    assert run(["broker", "-c", str(tmp_path / "again.conf"), "-p"], cwd=tmp_path)[1] == printed


def test_broker_follows_its_file_and_name_servers(tmp_path: Path) -> None:
    """`broker -c FILE -n ADDRS`: name, cluster and address are in the route of every name server given."""
    with (
        running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="1.err") as one,
        running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="2.err") as two,
    ):
        config = broker_config(tmp_path, name="eagle", brokerClusterName="birds", namesrvAddr="127.0.0.1:1")
        both = f"{one.namesrv};{two.namesrv}"  # the command line wins over the file
        with running(tmp_path, "broker", "-c", config, "-n", both) as broker:
            assert broker.told["name"] == "eagle"
            for names in (one, two):
                route = poll_until(
                    lambda names=names: remoting.route(names.namesrv, "birds"),  # type: ignore[misc]
                    what="route of the cluster's topic",
                    timeout_s=10.0,
                )
                (data,) = route["brokerDatas"]
                assert (data["brokerName"], data["cluster"]) == ("eagle", "birds")
                assert data["brokerAddrs"] == {"0": broker.broker}


def test_name_servers_may_come_from_the_environment(tmp_path: Path) -> None:
    """NAMESRV_ADDR counts where neither the command line nor the file names any."""
    config = broker_config(tmp_path)
    env = {**os.environ, "NAMESRV_ADDR": "x:1"}
    _, output, _ = run(["broker", "-c", config, "-p"], cwd=tmp_path, env=env)
    assert load_properties(output)["namesrvAddr"] == "x:1"
    named = config_file(tmp_path / "named.conf", namesrvAddr="y:2")
    _, output, _ = run(["broker", "-c", named, "-p"], cwd=tmp_path, env=env)
    assert load_properties(output)["namesrvAddr"] == "y:2"


def test_interrupted_while_nobody_is_served_it_ends_well(tmp_path: Path) -> None:
    """Ctrl-C right after the ready line: exit 0, nothing on stderr that looks like an accident."""
    with running(tmp_path, *up(tmp_path)) as program:
        program.process.signal(signal.SIGINT)
        assert program.process.wait(10.0) == 0
        assert "Traceback" not in program.log
        assert "ERROR" not in program.log


# --- a filter server ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_filter_server_is_stopped_while_it_waits_for_its_broker(
    tmp_path: Path, number: signal.Signals
) -> None:
    """That the broker is not there and how long it is tried is logged at once; the signal ends it: exit 0."""
    broker = f"127.0.0.1:{free_port()}"
    log = tmp_path / "filtersrv.err"
    words = [f"connectWhichBroker={broker}", "bindAddress=127.0.0.1", "filters=fine=math:isnan"]
    settings = [word for pair in words for word in ("--set", pair)]
    process = LineProcess([str(executable()), "filtersrv", *settings], log=log)
    try:
        told = f"broker={broker} not registered: {broker}: Connection refused; trying for 30 s"
        poll_until(lambda: told in log.read_text(), what="word of the refusal", timeout_s=20.0)
        process.signal(number)
        assert process.wait(5.0) == 0
        assert process.lines() == []
        assert "Traceback" not in log.read_text()
        assert log.read_text().count("not registered") == 1
    finally:
        if process.alive:
            process.kill()


def test_a_filter_that_does_not_exist_is_told_at_the_start(tmp_path: Path) -> None:
    """None can be loaded: one line, and no start. Some can: the ready line and a warning name the others."""
    with running(tmp_path, *up(tmp_path)) as first:
        words = ["filtersrv", "--set", f"connectWhichBroker={first.broker}", "--set", "bindAddress=127.0.0.1"]
        line = complaint([*words, "--set", "filters=expensive=math:nope"], tmp_path)
        assert "filter expensive could not be loaded: AttributeError: " in line
        assert "nope" in line
        filters = ["--set", "filters=expensive=math:nope,fine=math:isnan"]
        with running(tmp_path, *words, *filters, log="filtersrv.err") as second:
            assert (second.told["filters"], second.told["not_loaded"]) == ("fine", "expensive")
            assert "WARNING hotfire.filtersrv filter expensive could not be loaded" in second.log
            assert second.process.terminate() == 0
            assert "Traceback" not in second.log

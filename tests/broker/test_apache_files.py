"""Configuration files written for Apache's broker and name server work as they are."""

import os
import subprocess
from pathlib import Path

import pytest

from hotfire.apache_settings import IMPORTANT
from hotfire.settings import load_properties
from tests.broker.programs import Program, broker_config, config_file, namesrv_config, run, running
from tests.broker.test_commands import complaint
from tests.peers import remoting
from tests.peers.hotfire import executable
from tests.peers.process import LineProcess, poll_until

SMALLEST = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""

# What people collect over the years: old spellings, paths that are where they are anyway, sizes of pools.
COLLECTED = """
brokerClusterName=rocketmq-cluster
brokerName:broker-a
brokerId=0
namesrvAddr=127.0.0.1:1;127.0.0.1:2
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
listenPort=0
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=4194304
mapedFileSizeConsumeQueue=300000
destroyMapedFileIntervalForcibly=120000
redeleteHangedFileInterval=120000
diskMaxUsedSpaceRatio=88
storePathRootDir={root}
storePathCommitLog={root}/commitlog
storePathConsumeQueue={root}/consumequeue
storePathIndex={root}/index
storeCheckpoint={root}/checkpoint
abortFile={root}/abort
maxMessageSize=65536
flushCommitLogLeastPages=4
flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000
flushConsumeQueueThoroughInterval=60000
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
checkTransactionMessageEnable=false
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
useReentrantLockWhenPutMessage=true
waitTimeMillsInSendQueue=400
transferMsgByHeap=true
warmMapedFileEnable=false
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
haListenPort=10912
rocketmqHome=/opt/rocketmq
serverWorkerThreads=8
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_apache_files_are_read_and_obeyed(tmp_path: Path) -> None:
    """The smallest file of the distribution and one of everything: values arrive, however spelt."""
    status, output, errors = run(["broker", "-c", written(tmp_path / "s.conf", SMALLEST), "-p"], cwd=tmp_path)
    assert (status, errors) == (0, "")
    shown = load_properties(output)
    assert (shown["fileReservedTime"], shown["flushDiskType"]) == ("48", "ASYNC_FLUSH")
    text = COLLECTED.format(root=tmp_path / "store")
    status, output, errors = run(["broker", "-c", written(tmp_path / "c.conf", text), "-p"], cwd=tmp_path)
    assert (status, errors) == (0, "")
    shown = load_properties(output)
    assert shown["brokerClusterName"] == "rocketmq-cluster"
    assert (shown["mappedFileSizeCommitLog"], shown["mappedFileSizeConsumeQueue"]) == ("4194304", "300000")
    assert (shown["brokerIP1"], shown["brokerIP2"]) == ("127.0.0.1", "127.0.0.1")
    assert (shown["haListenPort"], shown["rocketmqHome"]) == ("10912", "/opt/rocketmq")


def test_what_has_no_effect_is_told_apart_from_typing_errors(tmp_path: Path) -> None:
    """Settings Apache knows and we do not need: a remark. Keys nobody knows and lines that say nothing: one
    warning that names them all."""
    text = COLLECTED.format(root=tmp_path / "store")
    with running(tmp_path, "broker", "-c", written(tmp_path / "c.conf", text), log="1.err") as program:
        assert "settings without effect" not in program.log
        (remark,) = [line for line in program.log.splitlines() if "known, without effect" in line]
        for key in ("sendMessageThreadPoolNums", "storePathConsumeQueue", "serverWorkerThreads"):
            assert key in remark
        assert "mapedFileSizeCommitLog" not in remark
    text += "listenPrt=1\nflushDiskTyp = X\nbrokerName\n"
    with running(tmp_path, "broker", "-c", written(tmp_path / "d.conf", text), log="2.err") as program:
        assert program.told["name"] == "broker-a", "a line that says nothing takes nothing away"
        (warning,) = [line for line in program.log.splitlines() if "settings without effect" in line]
        assert " WARNING " in warning
        for key in ("listenPrt", "flushDiskTyp", "lines_without_equals_sign=brokerName"):
            assert key in warning


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled", "enableControllerMode"])
def test_what_people_rely_on_is_not_passed_over(tmp_path: Path, key: str) -> None:
    """Access control switched on in the file would not be there: the broker does not start without it."""
    line = complaint(["broker", "-c", broker_config(tmp_path, **{key: "true"})], tmp_path)
    assert f"{key}=true" in line
    assert "set it to false" in line
    assert run(["broker", "-c", broker_config(tmp_path, **{key: "false"}), "-p"], cwd=tmp_path)[0] == 0


def test_name_server_files_and_the_environment(tmp_path: Path) -> None:
    """A namesrv.conf with Apache's thread pools; ROCKETMQ_HOME is shown; -m shows what is important."""
    config = namesrv_config(tmp_path, clientRequestThreadPoolNums=8, serverWorkerThreads=8, colour="red")
    with running(tmp_path, "namesrv", "-c", config) as names:
        (warning,) = [line for line in names.log.splitlines() if "settings without effect" in line]
        assert "unknown=colour lines" in warning
        assert "keys=clientRequestThreadPoolNums,serverWorkerThreads" in names.log
    env = {**os.environ, "ROCKETMQ_HOME": "/opt/rocketmq"}
    for command in ("broker", "namesrv"):
        _, output, _ = run([command, "-p"], cwd=tmp_path, env=env)
        assert load_properties(output)["rocketmqHome"] == "/opt/rocketmq"
    status, output, errors = run(["broker", "-m"], cwd=tmp_path)
    assert (status, errors) == (0, "")
    shown = load_properties(output)
    assert set(shown) <= IMPORTANT
    assert {"brokerName", "listenPort", "storePathRootDir", "flushDiskType"} <= set(shown)


@pytest.mark.promise(190)
def test_a_start_line_for_apaches_scripts_starts_ours(tmp_path: Path) -> None:
    """`sh bin/mqbroker -c FILE -n HOST`, ROCKETMQ_HOME: file and line are obeyed, the store is in ~/store."""
    home, scripts = tmp_path / "home", executable().parent
    env = {"HOME": str(home), "ROCKETMQ_HOME": "/opt/rocketmq", "NAMESRV_ADDR": "127.0.0.1:1"}
    listening = {"bindAddress": "127.0.0.1", "listenPort": 0}
    names_file = config_file(tmp_path / "namesrv.conf", **listening)
    broker_file = config_file(tmp_path / "broker.conf", **listening, brokerName="broker-z", brokerId=0)

    def start(script: str, *words: str) -> LineProcess:
        return LineProcess(["sh", str(scripts / script), *words], log=tmp_path / f"{script}.err", env=env)

    names = start("mqnamesrv", "-c", names_file)
    try:
        namesrv = Program(names).namesrv
        broker = start("mqbroker", "-c", broker_file, "-n", namesrv)
        try:
            told = Program(broker).told
            assert (told["name"], told["data"]) == ("broker-z", str(home / "store"))
            poll_until(lambda: remoting.route(namesrv, "broker-z"), what="its route", timeout_s=10.0)
            assert (home / "store/commitlog").is_dir()
        finally:
            assert broker.terminate() == 0
    finally:
        assert names.terminate() == 0
    for script in ("mqbroker", "mqnamesrv"):
        for given, shown in ((env, "/opt/rocketmq"), ({"HOME": str(home)}, str(scripts.parent))):
            bare = {key: value for key, value in os.environ.items() if key != "ROCKETMQ_HOME"}
            printed = subprocess.run(
                ["sh", str(scripts / script), "-p"],
                env={**bare, **given}, capture_output=True, text=True, timeout=30, check=True,
            ).stdout  # fmt: skip
            assert load_properties(printed)["rocketmqHome"] == shown


def test_the_advertised_address_is_explained(tmp_path: Path) -> None:
    """The start-up lines say which address clients are told and why; slaves are told that of brokerIP2."""
    with running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="names.err") as names:
        config = broker_config(tmp_path, brokerIP1="127.0.0.3", brokerIP2="127.0.0.4", haListenPort=4242)
        with running(tmp_path, "broker", "-c", config, "-n", names.namesrv, log="1.err") as broker:
            assert broker.broker.startswith("127.0.0.3:")
            assert f"advertised {broker.broker} (brokerIP1); clients dial this address" in broker.log
            route = poll_until(
                lambda: remoting.route(names.namesrv, "broker-a"), what="its route", timeout_s=10.0
            )
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.broker}
    with running(tmp_path, "broker", "-c", broker_config(tmp_path), log="2.err") as broker:
        assert f"advertised {broker.broker} (brokerIP1 is not set: bindAddress)" in broker.log
    with running(
        tmp_path, "broker", "-c", broker_config(tmp_path, brokerIP1="0.0.0.0"), log="3.err"
    ) as broker:
        assert "is no address to dial; set brokerIP1" in broker.log

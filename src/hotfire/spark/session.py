"""A Spark session as the pipelines want it: on `local[*]` when nothing is said, on other masters unchanged.

On a cluster every node needs hotfire installed for the Python that PYSPARK_PYTHON names (the wheel; a zip
given to `--py-files` is not enough: Spark looks for the formats among installed packages). Started by
spark-submit we are in a session's process already: master, Java and Python are its own, and stay as they are.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.spark.java import choose_java
from hotfire.spark.python import python_of_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

ALWAYS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default is known to Spark alone
    # the second version may leave parts of a task that failed
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.ui.showConsoleProgress": "false",
}
"""On every master; a session that exists already gets those of them that can still change."""

SOCKETS = "spark.python.unix.domain.socket"
SOCKET_DIRECTORY_CHARS_MAX = 60
"""With a name of Spark's behind it, a longer one is more than the system takes."""


def session(
    master: str | None = None,
    app_name: str = "hotfire",
    confs: Mapping[str, str] | None = None,
    *,
    log_level: str = "off",
    say: Callable[[str], None] = lambda line: None,
) -> SparkSession:
    """The session of this process, made if need be; `say` gets one line about what was chosen."""
    require_pyspark()
    given = dict(confs or {})
    was_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not was_submitted:
        java = choose_java(os.environ)
        os.environ["JAVA_HOME"] = java.home
        master = master or os.environ.get("MASTER") or given.get("spark.master") or LOCAL
        is_local = master == "local" or master.startswith("local[")
        said = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        os.environ["PYSPARK_PYTHON"] = said or python_of_workers(os.environ, is_local=is_local)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        say(f"Spark on {master}, {java.says}, Python {said or sys.executable}")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    if master is not None and master.startswith("local") and not was_submitted:
        given = local_sockets() | given
    for key, value in settings(master, given, log_level=log_level, was_submitted=was_submitted).items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    if log_level == "off":
        # beside its log, pyspark writes the whole of each error to stderr
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        # and its bridge tells of a Java that is gone, which whoever calls it is told anyway
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    if was_submitted:
        made.sparkContext.setLogLevel(log_level.upper())
    return made


def settings(
    master: str | None, given: Mapping[str, str], *, log_level: str = "off", was_submitted: bool = False
) -> dict[str, str]:
    """What Spark is told: ours for every master, ours for one machine, and over all of it what was given."""
    made = dict(ALWAYS)
    if not was_submitted:
        made[_JAVA_OPTIONS] = (
            f'"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}" -Dhotfire.spark.log={log_level}'
        )
        if master is not None and master.startswith("local"):
            made |= {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(cores(master)),
                "spark.executor.heartbeatInterval": "2s",  # figures of running tasks come with it
            }
    own_options = made.get(_JAVA_OPTIONS)
    made |= given
    if own_options is not None and _JAVA_OPTIONS in given:
        made[_JAVA_OPTIONS] = f"{own_options} {given[_JAVA_OPTIONS]}"
    return made


def local_sockets() -> dict[str, str]:
    """Rows reach Python workers on this machine by a shorter way than its network.

    Spark asks nobody there for a password, so it is in a directory that nobody else may enter.
    """
    if not hasattr(socket, "AF_UNIX"):
        return {}
    try:
        place = tempfile.mkdtemp(prefix="hotfire-")
    except OSError:  # nowhere to write: then the network will do
        return {}
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    if len(place) > SOCKET_DIRECTORY_CHARS_MAX:
        return {}
    return {f"{SOCKETS}.enabled": "true", f"{SOCKETS}.dir": place}


def cores(master: str) -> int:
    """
    >>> cores("local[3]"), cores("local"), cores("local[2,4]")
    (3, 1, 2)
    """
    _, bracket, inside = master.partition("[")
    if not bracket:
        return 1
    threads = inside.rstrip("]").partition(",")[0].strip()
    return int(threads) if threads.isdigit() else os.cpu_count() or 1


def require_pyspark() -> None:
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed: pip install 'hotfire[spark]'")

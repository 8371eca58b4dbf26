"""The Python that Spark's workers are."""

import json
import subprocess
import sys
from pathlib import Path

from hotfire.spark.python import make_script, python_of_workers

SHOW = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.argv[1:], sys.prefix]))"


def test_workers_find_pyspark_where_it_is_installed(tmp_path: Path) -> None:
    """Spark's archive and its jar are left out of their path; all else, and every argument, stays."""
    home = tmp_path / "a b" / "pyspark"
    script = make_script(sys.executable, home, tmp_path / "cache")
    path = [f"{home}/python/lib/pyspark.zip", "/mine", f"{home}/python/lib/py4j-0.10-src.zip", "/a * b"]
    done = subprocess.run(
        [script, "-c", SHOW, "x y", "*", ""],
        env={"PYTHONPATH": ":".join([*path, f"{home}/jars/spark-core.jar", "/other/python/lib/pyspark.zip"])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    left = "/mine:/a * b:/other/python/lib/pyspark.zip"
    assert json.loads(done.stdout) == [left, ["x y", "*", ""], sys.prefix]
    assert make_script(sys.executable, home, tmp_path / "cache") == script, "made once"


def test_elsewhere_it_is_this_python(tmp_path: Path) -> None:
    """On other machines, with a Spark of its own, or where no script can be written."""
    cached = {"XDG_CACHE_HOME": str(tmp_path)}
    assert python_of_workers(cached, is_local=False) == sys.executable
    assert python_of_workers({**cached, "SPARK_HOME": "/opt/spark"}, is_local=True) == sys.executable
    assert Path(python_of_workers(cached, is_local=True)).parent == tmp_path / "hotfire"
    (tmp_path / "file").touch()
    assert python_of_workers({"XDG_CACHE_HOME": str(tmp_path / "file")}, is_local=True) == sys.executable

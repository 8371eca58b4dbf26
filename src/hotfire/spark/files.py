"""The few things an archive does with files, on this machine's disks and on whatever Spark writes to.

Spark writes through Hadoop's file systems, and so a place may be HDFS or an object store. On local disks we
go past Hadoop: it keeps a checksum beside each file, in a second file, and a crash between the two renames
would leave a sound file that nobody can read. Names are relative to a root, with `/` between their parts.

Everything may be done twice: a move whose work is done already is no mistake.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from hotfire.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Found(NamedTuple):
    name: str
    size: int
    changed_ms: int


class Files(Protocol):
    """Below one root. Readers of what is visible see a file whole or not at all."""

    root: str
    """As Spark is told it."""

    def below(self, name: str) -> list[Found]:
        """Every file below, in any depth; a directory that does not exist has none."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes | None:
        """None when there is no such file."""

    def put(self, name: str, data: bytes) -> None:
        """The file holds this now, also after a crash; before, it held what it did."""

    def put_new(self, name: str, data: bytes) -> bool:
        """The same for a file that nobody has made yet; False when somebody has."""

    def make_safe(self, name: str) -> None:
        """What Spark wrote there outlives a power cut, where that is ours to see to."""

    def move(self, name: str, to: str) -> None:
        """At once, also over a file that is there. Nothing to move, and `to` exists: it was done before."""

    def remove(self, name: str) -> None:
        """The file, or the directory with all that is in it; one that is gone is no mistake."""

    @contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Whether nobody else can be in here now; ConfigError when somebody is."""


def missing(root: str, name: str, to: str) -> ConfigError:
    return ConfigError(
        f"{root}: neither {name} nor {to} is there, and one of them must be: somebody removed it; "
        "restore it, or write to a new directory"
    )


def is_hidden(name: str) -> bool:
    """Whether readers of a directory pass over it, as Spark, Hive and Arrow do.

    >>> is_hidden("_hotfire/staging/a.parquet"), is_hidden("topic=a/.b.crc"), is_hidden("topic=a/b.parquet")
    (True, True, False)
    """
    return any(part.startswith(("_", ".")) for part in name.split("/"))


# --- this machine ---------------------------------------------------------------------------------------


class LocalFiles:
    """On this machine's disks, or on what is mounted there."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.root = str(self._root)

    def below(self, name: str) -> list[Found]:
        found = []
        for folder, _, names in os.walk(self._root / name):
            for one in names:
                path = Path(folder, one)
                try:
                    stat = path.stat()
                except FileNotFoundError:  # moved on since it was listed
                    continue
                relative = path.relative_to(self._root).as_posix()
                found.append(Found(relative, stat.st_size, stat.st_mtime_ns // 1_000_000))
        return sorted(found)

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        self._written(path, data).replace(path)
        _sync_directory(path.parent)

    def put_new(self, name: str, data: bytes) -> bool:
        path = self._root / name
        written = self._written(path, data)
        try:
            path.hardlink_to(written)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        _sync_directory(path.parent)
        return True

    def _written(self, path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        with written.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return written

    def make_safe(self, name: str) -> None:
        descriptor = os.open(self._root / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def move(self, name: str, to: str) -> None:
        source, path = self._root / name, self._root / to
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.replace(path)
        except FileNotFoundError:
            if not path.exists():
                raise missing(self.root, name, to) from None
        _sync_directory(path.parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read(20).decode("ascii", "replace") or "unknown"
                raise ConfigError(
                    f"{self.root} is being written by process {who}; wait for it to end"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
            yield True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- whatever Spark writes to -----------------------------------------------------------------------------


class HadoopFiles:
    """Through Hadoop's client in Spark's own process: HDFS, S3, Azure, and what else is set up there."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        settings: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files: Any = file_system(spark, root)
        self._base: Any = self._files.makeQualified(self._path(root))
        self._context: Any = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._base.toUri(), settings)
        self.root = str(self._base.toString())

    def _at(self, name: str) -> Any:
        return self._path(self._base, name) if name else self._base

    def below(self, name: str) -> list[Found]:
        if not self.exists(name):
            return []
        found = []
        base = str(self._base.toUri().getPath()).rstrip("/") + "/"
        each = self._files.listFiles(self._at(name), True)
        while each.hasNext():
            status = each.next()
            relative = str(status.getPath().toUri().getPath()).removeprefix(base)
            found.append(Found(relative, int(status.getLen()), int(status.getModificationTime())))
        return sorted(found)

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def read(self, name: str) -> bytes | None:
        if not self.exists(name):
            return None
        stream = self._files.open(self._at(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def put(self, name: str, data: bytes) -> None:
        self._rename(self._written(name, data), name, "OVERWRITE")

    def put_new(self, name: str, data: bytes) -> bool:
        written = self._written(name, data)
        try:
            self._rename(written, name, "NONE")
        except Py4JJavaError:
            if not self.exists(name):
                raise
            self.remove(written)
            return False
        return True

    def _written(self, name: str, data: bytes) -> str:
        written = f"{name}.{uuid.uuid4().hex[:8]}"
        stream = self._files.create(self._at(written), True)
        try:
            stream.write(bytearray(data))
            stream.hsync()
        finally:
            stream.close()
        return written

    def make_safe(self, name: str) -> None:
        """Theirs to see to: a closed file is as safe there as it gets."""

    def move(self, name: str, to: str) -> None:
        if not self.exists(name):
            if not self.exists(to):
                raise missing(self.root, name, to)
            return
        self._files.mkdirs(self._at(to).getParent())
        self._rename(name, to, "OVERWRITE")

    def _rename(self, name: str, to: str, how: str) -> None:
        choice: Any = getattr(getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), how)
        choices = self._jvm.java.lang.reflect.Array.newInstance(choice.getClass(), 1)
        choices[0] = choice
        self._context.rename(self._at(name), self._at(to), choices)

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    @contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """There is no lock that a killed process lets go of by itself, so there is none."""
        yield False


JARS = {
    "s3a": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "gs": "the connector of Google Cloud Storage",
}
"""What Spark does not bring along, and where it is found."""


def file_system(spark: SparkSession, location: str) -> Any:
    """Hadoop's; ConfigError where its jars are not among Spark's, or what it is told is not enough."""
    jvm: Any = spark.sparkContext._jvm
    try:
        path = jvm.org.apache.hadoop.fs.Path(location)
        return path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        said = str(error.java_exception).partition("\n")[0]
    except PySparkException as error:  # what pyspark has an error of its own for
        said = str(error).partition("\n")[0]
    scheme = urlparse(location).scheme
    if "ClassNotFoundException" not in said and "No FileSystem for scheme" not in said:
        raise ConfigError(f"{location} cannot be opened: {said}")
    version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    jar = JARS.get(scheme, f"the jar of {scheme}")
    of_hadoop = f", as by --conf spark.jars.packages=org.apache.hadoop:{jar}:{version}"
    raise ConfigError(
        f"{location}: Spark has no file system for {scheme}: it needs {jar}, for Hadoop {version}"
        + (of_hadoop if jar.startswith("hadoop-") else ", on spark.jars")
    )


def qualified(spark: SparkSession, location: str) -> str:
    """As Spark takes it: without a scheme it is its default file system's; a plain path is this machine's."""
    jvm: Any = spark.sparkContext._jvm
    path: Any = jvm.org.apache.hadoop.fs.Path(location)
    there: Any = file_system(spark, location).makeQualified(path)
    return str(there.toUri().getPath() if there.toUri().getScheme() == "file" else there.toString())


def files_of(spark: SparkSession, location: str) -> Files:
    """By what Spark takes the location for: without a scheme that is its default file system."""
    there = HadoopFiles(spark, location)
    parts = urlparse(there.root)
    return LocalFiles(Path(unquote(parts.path))) if parts.scheme == "file" else there

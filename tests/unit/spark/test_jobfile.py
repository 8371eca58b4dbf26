"""Job files: what is understood, and that every mistake is told with its line before Spark starts."""

from pathlib import Path
from textwrap import dedent

import pytest

from hotfire.errors import ConfigError
from hotfire.spark import jobfile, jobrun
from hotfire.spark.jobfile import JobFile, Mistakes
from hotfire.spark.jobkeys import KEYS, each, example, trigger

SOUND = """\
source:
  options:
    subscribe: orders
sink:
  format: parquet
  path: out
"""


def parse(text: str) -> JobFile:
    return jobfile.parse(dedent(text), Path("job.yml"))


def mistakes(text: str) -> list[str]:
    with pytest.raises(Mistakes) as raised:
        parse(text)
    return raised.value.mistakes


def test_the_example_is_a_sound_job() -> None:
    """What `init` writes runs as it is, and shows every key there is."""
    text = example()
    job = parse(text)
    assert (job.source.format, job.source.options["subscribe"]) == ("hotfire", "orders")
    assert job.sql is not None
    assert job.sql.startswith("SELECT")
    assert job.trigger == "availableNow"
    for path, key in each():
        if not path.startswith("tables."):
            assert f"{key.name}:" in text, path


def test_the_example_is_sound_with_every_key_shown() -> None:
    """What is behind a # in the example is understood too, once the # is gone."""
    shown = []
    for line in example().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        bare = line.lstrip()
        is_key = bare.startswith("# ") and bare[2:].lstrip().split(":")[0] in {
            *(key.name for _, key in each()), "customers", "compression", "spark.sql.shuffle.partitions",
        }  # fmt: skip
        if is_key and ":" in bare and not bare.startswith("# instead") and "function" not in bare:
            line = indent + bare[2:]
        shown.append(line)
    job = parse("\n".join(shown))
    assert [table.name for table in job.tables] == ["customers"]
    assert job.sink.partition_by == ("tags",)
    assert job.source.columns == ("tags", "body", "storeTimestamp")
    assert job.confs == {"spark.sql.shuffle.partitions": "8"}


def test_little_is_enough() -> None:
    """A source and a sink: a batch named after its file, of all columns, appended."""
    job = parse(SOUND)
    assert (job.name, job.trigger, job.is_stream) == ("job", "batch", False)
    assert (job.source.name, job.source.columns, job.sink.mode) == ("messages", (), "append")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "job.yml:1: the file is empty"),
        ("a: [1\nb: 2", "job.yml:2: expected ',' or ']'"),
        ("just words", "job.yml:1: the file: keys with values are wanted here, not 'just words'"),
        (SOUND + "trigre: batch\n", "job.yml:7: trigre: there is no such key; did you mean trigger?"),
        (SOUND + "colour: red\n", "job.yml:7: colour: there is no such key; known are name, master"),
        (SOUND + "trigger: soon\n", "job.yml:7: trigger: 'soon' must be batch, availableNow"),
        (SOUND + "trigger: [1]\n", "job.yml:7: trigger: one value is wanted here, not a list"),
        (SOUND + "name:\n", "job.yml:7: name: is empty"),
        (SOUND + "name: a\nname: b\n", "job.yml:8: name: is written twice"),
        (SOUND + "  mode: often\n", "job.yml:7: sink.mode: 'often' must be append or"),
        (SOUND + "  mode: complete\n", "job.yml:7: sink.mode: 'complete' of a batch must be append"),
        (SOUND + "  partitionBy: {a: b}\n", "job.yml:7: sink.partitionBy: a list of names is wanted"),
        (SOUND + "transform:\n  function: f\n", "job.yml:8: transform.function: 'f' must be module:function"),
        (SOUND + "transform:\n  sql: ' '\n", "job.yml:8: transform.sql: ' ' must be some text"),
        (SOUND + "transform: {}\n", "job.yml:7: transform: either sql or function is wanted"),
        (
            SOUND + "transform:\n  sql: SELECT 1\n  function: a:b\n",
            "job.yml:9: transform.function: sql and function exclude each other",
        ),
        (SOUND + "trigger: 5 minutes\n", "job.yml:7: trigger: a stream needs a checkpoint"),
        (SOUND + "checkpoint: c\n", "job.yml:7: checkpoint: a batch has none"),
        (SOUND + "tables:\n  t: {path: x}\n", "job.yml:7: tables: only sql can use them"),
        (
            SOUND + "tables:\n  messages: {path: x}\ntransform: {sql: SELECT 1}\n",
            "job.yml:7: tables.messages: the source has this name",
        ),
        ("source: {}\n", "job.yml:1: sink: is missing: where it goes"),
        ("source: {}\nsink:\n  path: x\n", "job.yml:3: sink.format: is missing"),
        ("source: orders\nsink: {format: noop}\n", "job.yml:1: source: keys with values are wanted here"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(text: str, expected: str) -> None:
    """File, line, key, what is wrong, and what would do."""
    assert mistakes(text)[0].startswith(expected)


def test_all_mistakes_are_told_at_once() -> None:
    """In the order of their lines."""
    told = mistakes("sauce: x\nsink:\n  format: noop\n  mode: often\ntrigger: never\n")
    assert [line.split(":")[1] for line in told] == ["1", "1", "4", "5"]


def test_options_are_text_whatever_yaml_takes_them_for() -> None:
    """Numbers as they are written, yes and no as true and false, and structures as JSON."""
    job = parse("""\
        source:
          options:
            subscribe: orders
            maxOffsetsPerTrigger: 0100
            failOnDataLoss: no
            startingOffsets: {orders: {broker-a: {"0": 17}}}
        sink: {format: noop}
        """)
    assert job.source.options == {
        "subscribe": "orders",
        "maxOffsetsPerTrigger": "0100",
        "failOnDataLoss": "false",
        "startingOffsets": '{"orders": {"broker-a": {"0": 17}}}',
    }


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("availablenow", "availableNow"),
        ("30s", "30000 milliseconds"),
        ("5 minutes", "300000 milliseconds"),
        ("1 hour", "3600000 milliseconds"),
    ],
)
def test_triggers_are_written_in_several_ways(said: str, meant: str) -> None:
    """Ours and Spark's."""
    assert trigger(said) == meant


# --- what the surroundings say ------------------------------------------------------------------------


def understood(tmp_path: Path, text: str) -> list[str]:
    """The mistakes that are found before Spark is started, without the directory."""
    path = tmp_path / "job.yml"
    path.write_text(dedent(text))
    with pytest.raises(Mistakes) as raised:
        jobrun.understood(str(path), [], prog="run")
    return [line.removeprefix(f"{path}:") for line in raised.value.mistakes]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("{subscrib: orders}", "2: source.options.subscrib: format hotfire has no option subscrib"),
        ("{tags: A}", "2: source.options: exactly one of subscribe"),
        ("{subscribe: a, startingOffsets: x}", "2: source.options.startingOffsets: option"),
        ("{subscribe: a, startingOffsets: latest}", "2: source.options.startingOffsets: startingOffsets is"),
    ],
)  # fmt: skip
def test_options_of_our_formats_are_checked_too(tmp_path: Path, options: str, expected: str) -> None:
    """As the format would, with the line of the option."""
    told = understood(tmp_path, f"source:\n  options: {options}\nsink: {{format: noop}}\n")
    assert told[0].startswith(expected)


def test_options_of_sink_and_store_are_checked_too(tmp_path: Path) -> None:
    """A sink's, a table's; and a store cannot be a stream."""
    told = understood(
        tmp_path,
        """\
        source: {format: hotfire-store, path: /store}
        tables:
          more: {format: hotfire-store, options: {by: heart}}
        transform: {sql: SELECT 1}
        sink:
          format: hotfire
          options:
            deliver: once
        trigger: 30s
        checkpoint: c
        """,
    )
    assert [line.partition(" is ")[0].partition(" has ")[0] for line in told] == [
        "3: tables.more.options.by: option by",
        "8: sink.options.deliver: format hotfire",
        "1: source.format: hotfire-store",
    ]


def test_a_function_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be imported, and one without the function, by the line that names them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "")
    job = SOUND + "transform:\n  function: {}\n"
    told = understood(tmp_path, job.format("no_such_module_of_ours:change"))
    assert told[0].startswith("8: transform.function: module no_such_module_of_ours cannot be imported")
    (tmp_path / "changes_of_mine.py").write_text("def change(frame): return frame\n")
    told = understood(tmp_path, job.format("changes_of_mine:chance"))
    assert told[0].endswith("has no function chance")
    (tmp_path / "broken_of_mine.py").write_text("1 / 0\n")
    told = understood(tmp_path, job.format("broken_of_mine:change"))
    assert "ZeroDivisionError" in told[0]
    path = tmp_path / "job.yml"
    path.write_text(job.format("changes_of_mine:change"))
    name, options, _, _ = jobrun.understood(str(path), ["--master", "local[3]"], prog="run")
    assert (name, options.master) == ("job", "local[3]")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With how to get one to begin with."""
    with pytest.raises(ConfigError, match=r"job file .*No such file.*pipeline init"):
        jobfile.read(tmp_path / "job.yml")


def test_every_key_says_what_it_is() -> None:
    """The declarations are whole: a sentence, and an example of every key that holds a value."""
    for path, key in each(KEYS):
        assert key.says, path
        assert key.kind == "section" or key.example is not None, path

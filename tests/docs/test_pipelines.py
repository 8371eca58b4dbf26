"""The guide to pipelines says what the code says: every option of each, every key of a job file."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.spark import jobfile
from hotfire.spark.jobkeys import each
from hotfire.spark.pipelines import PIPELINES, pipeline
from hotfire.spark.pipelines.options import Common, Option, options_of, shown_default
from hotfire.spark.run import understood
from tests.docs.pages import ROOT, blocks, table

GUIDE = "docs/pipelines.md"
COMMON = {one.field for one in options_of(Common)}


def row(one: Option) -> tuple[str, list[str]]:
    default = "required" if one.is_required else "–"
    if one.is_switch:
        default = "on" if one.default else "off"
    elif one.default not in (None, ()) and not one.is_required:
        default = f"`{shown_default(one)}`"
    flags = "` `".join(one.flags)
    if one.is_switch and one.default:
        flags += f"` `--no-{one.flags[0].removeprefix('--')}"
    says = one.says + (f": {', '.join(one.choices)}" if one.choices else "")
    return flags, [default, says]


def rendered(rows: dict[str, list[str]]) -> str:
    """The table, to be put into the guide."""
    return "\n".join(["", *(f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows.items())])


@pytest.mark.parametrize("name", PIPELINES)
def test_every_option_of_a_pipeline_is_in_the_guide(name: str) -> None:
    """With its default and the sentence that help has."""
    rows = dict(row(one) for one in options_of(pipeline(name).OPTIONS) if one.field not in COMMON)
    assert table(GUIDE, f"### Options of {name}") == rows, rendered(rows)


def test_options_of_every_pipeline_are_in_the_guide() -> None:
    """What all of them have is told once."""
    rows = dict(row(one) for one in options_of(Common))
    assert table(GUIDE, "### Options of every pipeline") == rows, rendered(rows)


def test_every_key_of_a_job_file_is_in_the_guide() -> None:
    """With its default and the sentence that the example has."""
    rows = {
        path: ["required" if key.is_required else f"`{key.default}`" if key.default else "–", key.says]
        for path, key in each()
        if not path.startswith("tables.NAME.")
    }
    assert table(GUIDE, "### Keys of a job file") == rows, rendered(rows)


def yaml_blocks() -> Iterator[str]:
    return (block.text for block in blocks(GUIDE) if block.language == "yaml")


def test_job_files_in_the_guide_are_sound() -> None:
    """Each is understood as it stands."""
    for text in yaml_blocks():
        jobfile.parse(text, Path("job.yml"))
    assert list(yaml_blocks())


def test_mistakes_in_the_guide_are_told_so() -> None:
    """In the words that the program has."""
    text = (ROOT / GUIDE).read_text()
    told = re.findall(r"^job\.yml:9: (trigger: .+)$", text, re.MULTILINE)
    with pytest.raises(jobfile.Mistakes) as raised:
        jobfile.parse("source: {}\nsink: {format: noop}\ntrigger: hourly\n", Path("job.yml"))
    assert raised.value.mistakes == [f"job.yml:3: {told[0]}"]


def test_commands_in_the_guide_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that runs a pipeline passes every check there is before Spark starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yml").write_text(next(yaml_blocks()))
    (tmp_path / "report.sql").write_text("SELECT 1")
    lines = [line for block in blocks(GUIDE) if not block.language for line in block.text.splitlines()]
    runs = [shlex.split(line)[3:] for line in lines if line.startswith("hotfire pipeline run ")]
    assert len(runs) > 5
    for words in runs:
        understood(words[0], words[1:])


def test_the_function_in_the_guide_is_one() -> None:
    """The example of a transformation in Python is found by the name that the guide gives it."""
    (block,) = (block for block in blocks(GUIDE) if block.language == "python")
    names: dict[str, object] = {}
    exec(compile(block.text, block.page, "exec"), names)  # noqa: S102  # of our own page
    assert callable(names["only_paid"])
    assert "`changes:only_paid`" in (ROOT / GUIDE).read_text()

"""Every example in a docstring runs, against a real cluster where it dials one; every public name has one."""

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import hotfire
import hotfire.testing
from hotfire import sync
from hotfire.testing.blocking import BlockingCluster
from tests.docs.examples import ADDRESS, Examples, Shown, open_shop

PROGRAMS = ("hotfire.cli.__main__",)  # importing it runs it


def modules() -> list[str]:
    found = pkgutil.walk_packages(hotfire.__path__, "hotfire.")
    return ["hotfire", *(one.name for one in found if one.name not in PROGRAMS)]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    # A name that is imported elsewhere is looked at where it is at home.
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


WITH_EXAMPLES = [name for name in modules() if examples(importlib.import_module(name))]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings_run(name: str, hotfire_session_cluster: BlockingCluster) -> None:
    """What an example says comes out, and the functions it defines do what they are to do."""
    open_shop(hotfire_session_cluster)
    for test in examples(importlib.import_module(name)):
        shown = Shown()
        runner = Examples(hotfire_session_cluster, shown)
        test.globs = {
            **runner.names(),
            **test.globs,
            "print": shown.print if "def " in test.docstring else print,
        }
        for example in test.examples:
            assert doctest.SKIP not in example.options, (
                f"{test.name}: an example that is skipped shows nothing"
            )
            if not example.want:
                example.source = example.source.replace(ADDRESS, hotfire_session_cluster.namesrv)
        told: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=told.append, clear_globs=False)
        assert not failed, "".join(told)
        runner.run("\n".join(example.source for example in test.examples), test.globs)


@pytest.mark.parametrize(
    ("home", "name"),
    [(home, name) for home in (hotfire, sync, hotfire.testing) for name in home.__all__],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_public_name_has_an_example(home: ModuleType, name: str) -> None:
    """A docstring of its own, with an example in it."""
    text = inspect.cleandoc(getattr(home, name).__doc__ or "")
    assert doctest.DocTestParser().get_examples(text), (
        f"{home.__name__}.{name} has no example in its docstring"
    )

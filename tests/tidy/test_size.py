"""A module tells one story and a function fits a screen; what is longer says why."""

import ast
from collections.abc import Iterator

from tests.tidy.source import exceptions, line_count, modules

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 80


def functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Each function's qualified name and its lines, decorators not counted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{prefix}{node.name}", node.end_lineno - node.lineno + 1
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def explain(kind: str, found: dict[str, int], lines_max: int) -> None:
    allowed = exceptions(kind)
    unexplained = {name: lines for name, lines in found.items() if name not in allowed}
    assert not unexplained, f"over {lines_max} lines, and no reason in exceptions.toml: {unexplained}"
    needless = sorted(set(allowed) - set(found))
    assert not needless, f"no longer over {lines_max} lines; take it out of exceptions.toml: {needless}"


def test_modules_tell_one_story() -> None:
    """No module is over 500 lines without a written reason."""
    sizes = {name: line_count(name) for name in modules()}
    explain(
        "modules",
        {name: lines for name, lines in sizes.items() if lines > MODULE_LINES_MAX},
        MODULE_LINES_MAX,
    )


def test_functions_fit_a_screen() -> None:
    """No function is over 80 lines without a written reason."""
    found = {
        f"{name}::{function}": lines
        for name, tree in modules().items()
        for function, lines in functions(tree, "")
        if lines > FUNCTION_LINES_MAX
    }
    explain("functions", found, FUNCTION_LINES_MAX)

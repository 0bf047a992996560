"""Runs the Python of a page of the docs, and checks what its comments say. Loads nothing else."""

from __future__ import annotations

import ast
import re
from typing import Any


def code_of(text: str) -> list[str]:
    """Returns the Python blocks of a page, or of a section of it."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_checked(code: str, names: dict[str, Any]) -> int:
    """Runs code; what a comment behind an expression says must be its repr. Counts those."""
    lines = code.splitlines()
    checked = 0

    def check(value: object, line: int) -> None:
        nonlocal checked
        said = lines[line - 1].split("  # ", 1)[1].strip()
        assert repr(value) == said, f"{lines[line - 1]}: {value!r}"
        checked += 1

    class Checks(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            line = node.end_lineno or 0
            if "  # " not in lines[line - 1]:
                return node
            call = ast.Call(ast.Name("_check", ast.Load()), [node.value, ast.Constant(line)], [])
            return ast.Expr(call)

    names["_check"] = check
    tree = ast.fix_missing_locations(Checks().visit(ast.parse(code)))
    exec(compile(tree, "a page", "exec"), names)
    return checked

"""Run the Python code of the docs, and compare values with comments. Imports nothing else."""

import ast
import re
from typing import Any


def code_of(text: str) -> list[str]:
    """Return the Python blocks of a page or a section."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_checked(code: str, names: dict[str, Any]) -> int:
    """Run code; a comment after an expression must be its repr. Return the number of those."""
    lines = code.splitlines()
    checked = 0

    def check(value: object, line: int) -> None:
        nonlocal checked
        comment = lines[line - 1].split("  # ", 1)[1].strip()
        assert repr(value) == comment, f"{lines[line - 1]}: {value!r}"
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

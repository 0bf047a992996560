"""Find the error messages of the code in its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

FOLDERS = ("schemas", "loaders", "transforms", "pipelines")
# Errors whose messages reach the user, as a whole or in part.
OURS = {
    "UsageError", "InputError", "OutputError", "StorageError", "DeniedError", "StaleBuildError",
    "FormatError", "ChangedError", "PreconditionError", "ResourceError", "ShardmillError", "SchemaMismatchError",
    "FrameworkError",
}  # fmt: skip
ANY = "\N{HORIZONTAL ELLIPSIS}"  # replaces a value


class Module:
    """A module of the code, and the possible texts of its expressions.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.all = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name: node for node in self.all}

    def errors(self) -> Iterator[tuple[int, str]]:
        """Yield the line and text of each error that the module raises or a ``why_...`` returns."""
        for function in [self.tree, *self.all]:
            why = isinstance(function, ast.FunctionDef) and function.name.startswith("why_")
            for node in _own(function):
                if why and isinstance(node, ast.Return) and node.value is not None:
                    for text in sorted(self.texts(node.value, function)):
                        yield node.lineno, text
                if isinstance(node, ast.Call) and _name(node.func) in OURS and node.args:
                    for text in sorted(self.texts(node.args[0], function)):
                        yield node.lineno, text

    def texts(self, node: ast.expr, inside: ast.AST, depth: int = 0) -> set[str]:
        """Return the possible texts of an expression, with ANY in place of each value."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else {ANY}
        if isinstance(node, ast.JoinedStr):
            return self._joined(node.values, inside, depth)
        if isinstance(node, ast.FormattedValue):
            return self.texts(node.value, inside, depth + 1) if depth < 3 else {ANY}
        if isinstance(node, ast.IfExp):
            return self.texts(node.body, inside, depth) | self.texts(node.orelse, inside, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined([node.left, node.right], inside, depth)
        if isinstance(node, ast.Call) and _name(node.func) in self.functions and depth < 3:
            called = self.functions[_name(node.func)]
            returned = [one.value for one in _own(called) if isinstance(one, ast.Return)]
            found = [self.texts(one, called, depth + 1) for one in returned if one is not None]
            return set().union(*found) or {ANY}
        if isinstance(node, ast.Name) and depth < 3:
            given = [
                one.value
                for one in _own(inside)
                if isinstance(one, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == node.id for to in one.targets)
            ]
            found = [self.texts(one, inside, depth + 1) for one in given]
            return set().union(*found) or {ANY}
        return {ANY}

    def _joined(self, parts: list[ast.expr], inside: ast.AST, depth: int) -> set[str]:
        texts = {""}
        for part in parts:
            texts = {text + end for text in texts for end in self.texts(part, inside, depth)}
        return texts


def _name(node: ast.expr) -> str:
    name: str = getattr(node, "attr", getattr(node, "id", ""))
    return name


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def all_errors() -> dict[str, list[str]]:
    """Return each possible error message, and where it is raised."""
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = Module(path)
            for line, text in module.errors():
                found.setdefault(text, []).append(f"{module.path}:{line}")
    return found

"""Check names, docstrings and comments of the finished folders; print each fault and exit 1.

A vague name, such as ``found`` or ``each_label``, says nothing about its value and cannot be
searched for. Names that a module only uses, such as placeholders of messages, are not checked.
Sentences with "of which" are not idiomatic: write two, or name the thing first.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
VAGUE = re.compile(r"(?:^|_)(?:each|found|known|shown|wanted)(?:_|$)")
PHRASE = re.compile(r"\bof\s+(?:which|whose|whom)\b")
# Folders without such names and phrases: add each folder, or package, that is finished.
FINISHED = ("api", "loaders", "pipelines", "schemas", "transforms")
# Names that others call: `find_input(..., wanted="any")`, and a method of argparse.
PUBLISHED = {
    ("transforms/match/inputs.py", "wanted"),
    ("pipelines/commands/parser.py", "parse_known_args"),
}


def find_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each definition, parameter and assignment with a vague name."""
    for node in ast.walk(ast.parse(source)):
        name = bound_name(node)
        if name and VAGUE.search(name):
            yield getattr(node, "lineno", 0), name


def find_phrases(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each phrase in a docstring or comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for match in PHRASE.finditer(str(node.value.value)):
                yield node.lineno, match.group()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and PHRASE.search(token.string):
            yield token.start[0], token.string


def bound_name(node: ast.AST) -> str | None:
    """Return the name that a node of a syntax tree binds, or None."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.alias):
        return node.asname
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return None


def main() -> int:
    """Check the modules of the finished folders; return the exit code."""
    failed = 0
    for folder in FINISHED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            source = path.read_text(encoding="utf-8")
            for line, name in find_names(source):
                if (file, name) in PUBLISHED:
                    continue
                print(f"{file}:{line}: {name!r}: write a noun that says what the value is")
                failed += 1
            for line, phrase in find_phrases(source):
                print(f"{file}:{line}: {phrase!r}: write two sentences, or name the thing first")
                failed += 1
    print(f"{failed} faults." if failed else "Names: no vague ones.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

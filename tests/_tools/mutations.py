"""Small changes of statements, such as ``<`` to ``<=``."""

from __future__ import annotations

import ast
import difflib
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Gt: ast.GtE,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.Lt: ast.LtE,
}
OPPOSITES |= {second: first for first, second in OPPOSITES.items()}
# Swapped arguments of these change nothing, or fail in each call.
UNSWAPPED = ("min", "max", "isinstance", "hasattr")
# Calls whose arguments only a person reads.
MESSAGES = re.compile(r"^(log|logger|logging|_LOG|_log|warnings)\.|Error$|^(print|warn\w*)$")


Change = tuple[str, ast.expr | ast.stmt, str]  # its kind, the changed piece, the new text


@dataclass(frozen=True)
class Mutant:
    """A changed piece of a statement in a function."""

    file: str
    function: str
    statement: str  # as ast.unparse() writes it
    kind: str
    change: str
    count: int  # of equal mutants before it in the function
    line: int
    start: int  # of the piece in the file, in bytes
    end: int
    text: str

    @property
    def identity(self) -> list[str | int]:
        """What is the same after other code of the file was changed."""
        return [self.file, self.function, self.statement, self.kind, self.change, self.count]

    def apply(self, source: bytes) -> bytes:
        """Return the source of the file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> list[str]:
        """Return the lines that change, with - and +."""
        texts = (source.decode().splitlines(), self.apply(source).decode().splitlines())
        lines = difflib.unified_diff(*texts, lineterm="", n=0)
        return [line for line in lines if re.match(r"[-+](?![-+])", line)]

    def switch(self, source: bytes, number: int) -> bytes:
        """Return the source with a piece that changes when ``mutant_switch.is_on(number)``."""
        piece = source[self.start : self.end].decode()
        is_on = f"__import__('mutant_switch').is_on({number})"
        match self.kind:
            case "return":
                text = f"return None if {is_on} else ({piece.removeprefix('return')})"
            case "deleted":
                text = f"{is_on} or {piece}"
            case "loop":
                indent = " " * (self.start - source.rfind(b"\n", 0, self.start) - 1)
                text = f"if {is_on}: {self.text}\n{indent}{piece}"
            case _:
                text = f"({self.text} if {is_on} else {piece})"
        return source[: self.start] + text.encode() + source[self.end :]


def expression_changes(node: ast.AST) -> Iterator[Change]:
    """Yield kind, piece and new text of each change of an expression."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in OPPOSITES:
            changed = ast.Compare(left, [OPPOSITES[type(operator)]()], right)
            yield "comparison", node, f"({ast.unparse(changed)})"
        case ast.BoolOp(operator, values):
            opposite = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", node, f"({ast.unparse(ast.BoolOp(opposite, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "boolean", node, str(not value)
        case ast.Constant(int() as value):
            yield "number", node, str(value + 1)
            yield "number", node, f"({value - 1})"
        case ast.Call(function, [first, second, *rest], keywords):
            alike = type(first) is type(second) and not isinstance(first, ast.Starred)
            different = ast.unparse(first) != ast.unparse(second)
            if alike and different and ast.unparse(function) not in UNSWAPPED:
                swapped = ast.Call(function, [second, first, *rest], keywords)
                yield "arguments", node, ast.unparse(swapped)
    for key in key_expressions(node):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield "key", key, repr(f"{key.value}_")


def key_expressions(node: ast.AST) -> list[ast.expr | None]:
    """Return the expressions in a node that are keys, or are compared."""
    match node:
        case ast.Subscript(slice=key):
            return [key]
        case ast.Dict(keys):
            return keys
        case ast.Compare(left, _, right):
            return [left, *right]
        case ast.Call(ast.Attribute(attr="get" | "pop" | "setdefault"), [key, *_]):
            return [key]
    return []


def statement_changes(node: ast.AST) -> Iterator[Change]:
    """Yield the same of a whole statement."""
    match node:
        case ast.Break():
            yield "loop", node, "continue"
        case ast.Continue():
            yield "loop", node, "break"
        case ast.Return(ast.expr()) if ast.unparse(node) != "return None":
            yield "return", node, "return None"
        case ast.Expr(ast.Call()):
            yield "deleted", node, "pass"


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below, except messages, annotations and parts of f-strings."""
    is_message = isinstance(node, ast.Call) and MESSAGES.search(ast.unparse(node.func))
    if is_message or isinstance(node, ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "annotation":
                yield from nodes_of(child)


def statements_of(
    node: ast.AST, function: str = "", *, inside: bool = False
) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements in functions, with the names of the functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{function}.{child.name}".lstrip(".")
            yield from statements_of(child, name, inside=not isinstance(child, ast.ClassDef))
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            if inside and isinstance(child, ast.stmt):
                yield function, child
            yield from statements_of(child, function, inside=inside)


def changeable_parts(statement: ast.stmt) -> list[ast.AST]:
    """Return the statement, or the expressions in the first line of one that has a body."""
    if isinstance(statement, ast.Raise):
        return []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return [statement] if [*nodes_of(statement.value)] else []
    if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match):
        children = ast.iter_child_nodes(statement)
        return [child for child in children if isinstance(child, ast.expr | ast.withitem)]
    return [statement]


def find_mutants(file: str, source: str) -> list[list[Mutant]]:
    """Return the mutants of each statement in functions that has some."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    counts: Counter[tuple[str, ...]] = Counter()
    result = []
    for function, statement in statements_of(ast.parse(source)):
        parts = changeable_parts(statement)
        text = f"{type(statement).__name__}: {'; '.join(map(ast.unparse, parts))}"
        nodes = [node for part in parts for node in nodes_of(part)]
        changes = [change for node in nodes for change in statement_changes(node)]
        changes += [change for node in nodes for change in expression_changes(node)]
        mutants = []
        for kind, piece, new in changes:
            key = file, function, text, kind, f"{ast.unparse(piece)} -> {new}"
            start = starts[piece.lineno - 1] + piece.col_offset
            end = starts[(piece.end_lineno or 0) - 1] + (piece.end_col_offset or 0)
            mutants.append(Mutant(*key, counts[key], piece.lineno, start, end, new))
            counts[key] += 1
        if mutants:
            result.append(mutants)
    return result


def choose(statements: list[list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Choose statements at equal distances, then a kind and a mutant of each."""
    chance = random.Random(seed)
    distance = len(statements) / count
    first = chance.random() * distance
    chosen = []
    for number in range(count):
        mutants = statements[int(first + number * distance)]
        kind = chance.choice(sorted({mutant.kind for mutant in mutants}))
        chosen.append(chance.choice([mutant for mutant in mutants if mutant.kind == kind]))
    chance.shuffle(chosen)  # so that some of them are a sample too
    return chosen


def find_again(identity: list[str | int], statements: list[list[Mutant]]) -> Mutant | None:
    """Return the mutant with an identity, also if its function or file has another name now."""
    mutants = [mutant for mutants in statements for mutant in mutants]
    for first in range(3):
        equal = [mutant for mutant in mutants if mutant.identity[first:5] == identity[first:5]]
        same = [mutant for mutant in equal if mutant.count == identity[5]]
        if len(same) == 1:
            return same[0]
    return None

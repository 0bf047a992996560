"""Raise sites, the catalogue of messages and docs/errors.md agree."""

import ast
import re
import runpy
from collections.abc import Iterator
from string import Formatter

import pytest

from shardmill.schemas.errors.catalogue import messages, topics
from tests.conftest import ROOT

FOLDERS = ("api", "schemas", "loaders", "transforms", "pipelines")
PAGE = ROOT / "docs" / "errors.md"
RENDER = runpy.run_path(str(ROOT / "docs" / "_tools" / "errors_page.py"))["render"]
# Errors that have a coded message of another function, or a text of another library.
PASSED_ON = re.compile(
    r"outcome\.message|self\.message|counts\.fatal|\.coded|problem|str\(|text|super\(\)|"
    r"_explain\w+\(|_describe\w+\(|_failure\(|unsupported"
)


def kinds() -> set[str]:
    """Return the names of all classes of errors that have messages of the catalogue."""
    names, grown = {"ShardmillError"}, True
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    while grown:
        more = {name for name, of in bases.items() if of & names} - names
        names, grown = names | more, bool(more)
    # Those that have reasons, or become rejects.
    return names - {"DamagedError", "ExampleError", "InflateError", "TooLargeError"}


def sites(source: str, names: set[str]) -> Iterator[tuple[int, ast.expr, set[str]]]:
    """Yield the line, the first argument and the fields of each call that makes a message."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in names | {"coded"}:
                yield node.lineno, node.args[0], {each.arg or "**" for each in node.keywords}


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def mistakes(source: str, names: set[str], used: set[str]) -> list[str]:
    """Return what is wrong at the raise sites of a module; add the ids that it uses."""
    found = []
    for line, text, given in sites(source, names):
        if not isinstance(text, ast.Constant):
            if isinstance(text, ast.JoinedStr | ast.BinOp) or not PASSED_ON.search(
                ast.unparse(text)
            ):
                found.append(f"{line}: not an id: {ast.unparse(text)}")
        elif text.value not in messages():
            found.append(f"{line}: not in the catalogue: {text.value}")
        else:
            used.add(text.value)
            if given != fields(messages()[text.value]):
                found.append(f"{line}: {text.value} has other fields than {sorted(given)}")
    return found


def test_raise_sites_give_the_fields_of_messages() -> None:
    names, used, wrong = kinds(), set(), []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent != ROOT / "schemas" / "errors":
                wrong += [f"{path}:{each}" for each in mistakes(path.read_text(), names, used)]
    assert wrong == []
    assert len(used) > 350
    assert messages().keys() - used == set(), "no code raises these"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("InputError(f'{x} is purple')", "not an id"),
        ("OutputError('it is purple: paint it')", "not in the catalogue"),
        ("FormatError(purple(x))", "not an id"),
        ("coded('input-missing', colour=1)", "other fields"),
    ],
)
def test_detects_mistakes(code, problem) -> None:
    assert problem in mistakes(code, kinds(), set())[0]


def test_ids_are_unique_and_short() -> None:
    assert len(messages()) == sum(map(len, topics().values()))
    for name in messages():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert len(name) <= 40, name


def test_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert RENDER(page) == page, "run make metadata"
    explained = re.findall(r'^\| <a id="([\w-]+)"></a>.*` \| \S.* \|$', page, re.MULTILINE)
    assert [name for name in messages() if name not in explained] == []
    assert len(explained) == len(messages())


def test_messages_count_properly() -> None:
    """A number before a plural is formatted with it, so that 1 has the singular."""
    plurals = "arrays|bytes|channels|examples|files|hosts|images|labels|parts|records|rows|shards|slots|splits|values"
    for name, text in messages().items():
        assert not re.search(rf"\{{\w+:,\}} ({plurals})\b", text), name

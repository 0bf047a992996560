"""The docs agree with the code: flags, reasons, faults, links."""

import ast
import re
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks import scale_estimate
from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.schemas.dataset.shard_names import FIELDS
from shardmill.schemas.refs import REASONS
from shardmill.schemas.schema_pbtxt.columns import Column, parse_schema
from shardmill.schemas.tfrecord.scanner import FAULTS
from shardmill.transforms.sources.csv import typed_cells
from tests.conftest import ROOT
from tests.support.docs_tools import PAGES

# Position of the reason among the arguments of each function that rejects an input.
REASON_POSITIONS = {
    "RejectedError": 1,
    "Reject": 3,
    "RowReject": 2,
    "BadRow": 3,
    "DecompressionError": 0,
    "rejected": 0,
}
PARSERS = {command: find_parser(command) for command in COMMANDS}


def test_every_reason_is_explained() -> None:
    explained = set()
    for page in ("images.md", "rows.md"):
        text = (ROOT / "docs" / page).read_text()
        table = text.partition("| error | why |")[2]
        rows = set(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))
        assert rows
        explained |= rows
    assert explained == set(REASONS.items())


def test_every_reason_in_the_code_is_known() -> None:
    given = set(typed_cells.REASONS.tolist()) - {""}
    for folder in ("schemas", "transforms"):
        for path in (ROOT / folder).rglob("*.py"):
            given |= set(reasons_in(ast.parse(path.read_text())))
    assert len(given) > 20
    assert given - set(REASONS) == set()


def reasons_in(tree: ast.AST) -> Iterator[str]:
    """Yield the reasons that are literals in some code."""
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = REASON_POSITIONS.get(name, len(node.args))
            found = node.args[place] if place < len(node.args) else None
            for keyword in node.keywords:
                if keyword.arg == "error" and name in ("_replace", *REASON_POSITIONS):
                    found = keyword.value
        elif isinstance(node, ast.Lambda) and isinstance(node.body, ast.Tuple):
            found = node.body.elts[0]
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found.value


def test_every_flag_in_the_docs_exists() -> None:
    known = {
        flag
        for parser in PARSERS.values()
        for action in parser._actions
        for flag in action.option_strings
    }
    others = {"--version", "--name"}  # of shardmill itself, and of a sentence
    tools = r"(?:airflow|torchrun|python -m apache_beam|docker|kubectl|make|twine|gcloud|buildah)\b"
    for options in PipelineOptions.__subclasses__():
        parser = ArgumentParser(add_help=False)
        options._add_argparse_args(parser)
        known |= set(parser._option_string_actions)
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        text = re.sub(rf"^ *{tools}.*$|`{tools}[^`]*`", "", text, flags=re.MULTILINE)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z_]+", text):
            assert flag in known | others, f"{page.name}: {flag}"


def test_every_flag_is_in_the_docs() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    undocumented = {"--help", "-h"}
    for parser in PARSERS.values():
        for action in parser._actions:
            if (action.help or "").startswith("deprecated: "):  # the docs show the replacement
                continue
            for flag in action.option_strings:
                assert flag in text or flag in undocumented, flag
    rows = (ROOT / "docs/rows.md").read_text()
    for action in PARSERS["rows"]._actions:
        assert set(action.option_strings) & undocumented or action.option_strings[-1] in rows, (
            action
        )
    for field in FIELDS:
        assert f"{{{field}" in text


def test_every_fault_is_explained() -> None:
    text = (ROOT / "docs/counting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert rows == FAULTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_links_of_the_front_page_have_targets() -> None:
    """They are absolute, for a package index, and name files of this repository."""
    text = (ROOT / "README.md").read_text()
    base = r"https://(?:github\.com/shardmill/shardmill/blob|raw\.githubusercontent\.com/shardmill/shardmill)/main/"
    targets = re.findall(rf"{base}([^)\s]+)", text)
    assert len(targets) > 20
    for target in targets:
        assert (ROOT / target).exists(), target
    names = set(re.findall(r"\]\[([a-z]+)\]", text))
    assert names == set(re.findall(r"^\[([a-z]+)\]: ", text, re.MULTILINE))


def test_figures_of_the_front_page_are_those_of_the_benchmark() -> None:
    text, page = ((ROOT / name).read_text() for name in ("README.md", "docs/benchmarks-peers.md"))
    rows = {}
    for line in page.split("## Rows")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.setdefault(cells[0], cells)
    found = re.findall(
        r"^\| \*{0,2}([^|*]+?)\*{0,2} \| ([\d,]+) \| (.+) s \| (.+) s \| (.+) MiB \|$",
        text,
        re.MULTILINE,
    )
    assert len(found) == 8
    for name, *figures in found:
        measured = rows[{"a loop written by hand": "hand-written floor"}.get(name, name)]
        assert figures == [measured[index] for index in (2, 5, 6, 9)], name


def test_estimates_on_pages_are_those_of_the_formulas() -> None:
    scale, dataflow = ((ROOT / "docs" / page).read_text() for page in ("scale.md", "dataflow.md"))
    for heading, text in scale_estimate.tables().items():
        assert text in scale.partition(f"## {heading}")[2].partition("\n## ")[0]
    costs, million = scale_estimate.Costs(), scale_estimate.bill(10**6)
    shown = {name: scale_estimate.format_number(value) for name, value in million.items()}
    for text in (
        f"{costs.cpu:.3g} per image",
        f"`busy` | utilization of the cores | assumed: {costs.busy}",
        f"{shown['core hours']} core hours, {shown['shuffled GB']} GB of shuffle",
        f"{shown['writing calls, million']} and {shown['reading calls, million']} million calls",
        f"${shown['cores $']} for machines, ${shown['shuffle $']} for shuffle and ${shown['calls $']} for",
    ):
        assert text in dataflow


def test_no_file_contains_paths_of_one_machine() -> None:
    # The patterns are cut in two so that this file does not match itself.
    pattern = "(^|[ \"'=(])/(" + "|".join(["wor" + "k", "roo" + "t", "far" + "m"]) + ")/"
    found = subprocess.run(
        ["git", "grep", "-nE", pattern, "--", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


def test_the_schema_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```textproto\n(.*?)```", (ROOT / "docs/rows.md").read_text(), re.DOTALL)
    assert parse_schema(text, "rows.md") == (
        Column("zip", "bytes"),
        Column("rooms", "int64", default="1", low=1, high=99),
        Column("garden", "int64", required=False, booleans=("yes", "no")),
        Column("tags", "bytes", required=False, separator=";"),
    )

"""Docs say what the code does."""

import ast
import json
import re
import shlex
import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from conftest import ROOT, build_dataset, shardmill
from examples_data import write_titanic

from shardmill.loaders import steps_per_epoch
from shardmill.pipelines import summary
from shardmill.pipelines.flags.arrays import arrays_parser
from shardmill.pipelines.flags.count import count_parser
from shardmill.pipelines.flags.images import images_parser
from shardmill.pipelines.flags.rows import rows_parser
from shardmill.schemas.columns import Column, parse_schema
from shardmill.schemas.names import FIELDS
from shardmill.schemas.rejects import REASONS
from shardmill.schemas.scan import FAULTS
from shardmill.transforms.rows import typed

# Where a reason stands among the arguments of what refuses an input.
REFUSALS = {
    "RejectedError": 1,
    "Reject": 3,
    "RowReject": 2,
    "BadRow": 3,
    "PackedEndError": 0,
    "rejected": 0,
}
PARSERS = (images_parser, rows_parser, arrays_parser, count_parser)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_reason_is_explained() -> None:
    explained = set()
    for page in ("images.md", "rows.md"):
        text = (ROOT / "docs" / page).read_text()
        table = text.partition("| error | why |")[2]
        rows = set(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))
        assert rows
        explained |= rows
    assert explained == set(REASONS.items())


def test_every_reason_that_is_given_is_a_known_one() -> None:
    given = set(typed._REASONS.values())
    for folder in ("schemas", "transforms"):
        for path in (ROOT / folder).rglob("*.py"):
            given |= set(reasons_in(ast.parse(path.read_text())))
    assert len(given) > 20
    assert given - set(REASONS) == set()


def reasons_in(tree: ast.AST) -> Iterator[str]:
    """Yields the reasons that some code spells out."""
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = REFUSALS.get(name, len(node.args))
            found = node.args[place] if place < len(node.args) else None
            for keyword in node.keywords:
                if keyword.arg == "error" and name in ("_replace", *REFUSALS):
                    found = keyword.value
        elif isinstance(node, ast.Lambda) and isinstance(node.body, ast.Tuple):
            found = node.body.elts[0]
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found.value


def test_every_flag_in_the_docs_exists() -> None:
    known = {
        flag for parser in PARSERS for action in parser()._actions for flag in action.option_strings
    }
    others = {
        "--runner", "--temp_location", "--save_main_session", "--setup_file", "--version",
        "--split", "--batch_size", "--replicas", "--json", "--older_than", "--dry_run",
        "--records", "--target", "--ignore",
    }  # fmt: skip
    for options in PipelineOptions.__subclasses__():
        parser = ArgumentParser(add_help=False)
        options._add_argparse_args(parser)
        known |= set(parser._option_string_actions)
    for page in PAGES:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z_]+", page.read_text()):
            assert flag in known | others, f"{page.name}: {flag}"


def test_every_flag_is_in_the_docs() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    silent = {"--help", "-h", "--quality"}
    for parser in PARSERS:
        for action in parser()._actions:
            for flag in action.option_strings:
                assert flag in text or flag in silent, flag
    rows = (ROOT / "docs/rows.md").read_text()
    for action in rows_parser()._actions:
        assert set(action.option_strings) & silent or action.option_strings[-1] in rows, action
    for field in FIELDS:
        assert f"{{{field}" in text


def test_every_fault_is_explained() -> None:
    text = (ROOT / "docs/counting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert rows == FAULTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_nothing_tells_of_one_machine() -> None:
    # The patterns are cut in two so that this file does not match itself.
    pattern = "(^|[ \"'=(])/(" + "|".join(["wor" + "k", "roo" + "t", "far" + "m"]) + ")/"
    found = subprocess.run(
        ["git", "grep", "-nE", pattern, "--", "."], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert found.stdout == ""


def test_the_readme_trains(photos, tmp_path, monkeypatch) -> None:
    splits = "train:0.8,validation:0.2"
    _, manifest = build_dataset(
        input=photos, output=tmp_path / "ds", image_size=24, splits=splits, num_shards=1
    )
    assert manifest is not None
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    images, labels = zip(*list(names["train"]), strict=True)
    assert sum(map(len, images)) == manifest.splits["train"].num_examples
    assert {int(label) for batch in labels for label in batch} == {0, 1}
    assert names["model"].predict(images[0], verbose=0).shape == (len(images[0]), 5)
    assert int(names["model"].optimizer.iterations) == 10


def test_the_other_python_examples_run(photos, tmp_path, monkeypatch) -> None:
    photos.rename(tmp_path / "flower_photos")
    monkeypatch.chdir(tmp_path)
    for page in ("beam.md", "manifest.md", "counting.md"):
        (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        exec(compile(code, page, "exec"), {})
    assert (tmp_path / "ds" / "manifest.json").exists()


def test_counting_shows_what_the_commands_say(shared_data, tmp_path) -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/counting.md").read_text()
    taxi = tmp_path / "taxi"
    shutil.copytree(shared_data / "tfrecord" / "tfx_taxi_gz" / "csv_example_gen", taxi)
    done = shardmill("count", "--input=taxi", "--manifest=taxi.json", cwd=tmp_path)
    said = done.stdout.replace(str(tmp_path), "/data")
    steps = shardmill("steps", "taxi.json", "--split=eval", "--batch_size=256", cwd=tmp_path)
    build_dataset(
        input=shared_data / "photos" / "flower_photos", output=tmp_path / "ds", image_size=224
    )
    said += shardmill("verify", "ds", cwd=tmp_path).stdout
    lines = [line for line in said.splitlines() if not re.search(r" s, .*B/s$", line)]
    assert len(lines) == 10
    for line in lines:
        assert line in page.splitlines(), line
    for line in lines[:6]:
        assert line in readme.splitlines(), line
    assert f"--batch_size=256\n{steps.stdout}" in page


def test_the_readme_shows_what_the_command_says(shared_data, tmp_path) -> None:
    text = (ROOT / "README.md").read_text()
    outcome, manifest = build_dataset(
        input=shared_data / "photos" / "flower_photos", output=tmp_path / "ds", image_size=224
    )
    assert manifest is not None
    for line in summary.lines(outcome, "/data/ds", 1.0):
        if not line.startswith("  time"):
            assert line in text.splitlines(), line
    steps = steps_per_epoch(manifest, "train", 32)
    assert f"--split=train --batch_size=32\n{steps}\n" in text


def test_the_readme_shows_what_rows_say(tmp_path) -> None:
    write_titanic(tmp_path / "titanic.csv")
    text = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^\$ shardmill (rows .*)$", text, re.MULTILINE)
    done = shardmill(*shlex.split(command), cwd=tmp_path)
    said = done.stdout.replace(str(tmp_path), "/data").splitlines()
    lines = [line for line in said if not line.startswith("  time")]
    assert len(lines) == 10, done.stderr
    for line in lines:
        assert line in text.splitlines(), line


def test_the_page_on_rows_shows_what_rejects_say(tmp_path) -> None:
    text = (ROOT / "docs/rows.md").read_text()
    (tmp_path / "prices.csv").write_text(
        'id,price,city\n1,2.5,Bern\n2,oops,Basel\n3,1.5\n3,1.75,Genf\n4,,"Z\u00fcrich\n5,3,Chur\n',
        encoding="utf-8",
    )
    names = {"id": "INT", "price": "FLOAT", "city": "BYTES"}
    (tmp_path / "prices.pbtxt").write_text(
        "".join(f'feature {{ name: "{name}" type: {kind} }}\n' for name, kind in names.items())
    )
    (command,) = re.findall(r"^\$ shardmill (rows .*)$", text, re.MULTILINE)
    done = shardmill(*shlex.split(command), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rejects = (tmp_path / "ds" / "rejects.jsonl").read_text().splitlines()
    messages = "".join(f"{json.loads(line)['message']}\n" for line in rejects)
    assert len(rejects) == 3
    assert f"jq -r .message ds/rejects.jsonl\n{messages}" in text


def test_the_schema_on_the_page_is_one() -> None:
    (text,) = re.findall(r"```textproto\n(.*?)```", (ROOT / "docs/rows.md").read_text(), re.DOTALL)
    assert parse_schema(text, "rows.md") == (
        Column("zip", "bytes"),
        Column("rooms", "int64", default="1", low=1, high=99),
        Column("garden", "int64", required=False, booleans=("yes", "no")),
        Column("tags", "bytes", required=False, separator=";"),
    )

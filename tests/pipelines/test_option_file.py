"""``--config``: the options of a file are those of the flags, for each option of each kind."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.pipelines.commands.build import parse_build
from shardmill.schemas.option_types import SIZE_PATTERN, options_of
from tests.conftest import make_photos
from tests.support.rows_tools import run_here

# Values as Python has them in TOML, where they are not an option's choices or a number.
VALUES = {
    "limits": "limits.toml",
    "splits": {"train": 0.75, "validation": 0.25},
    "types": {"id": "int"},
    "beam_options": {"job_name": "nightly"},
    "label_pattern": "(?P<label>[a-z]+)",
    "shard_name": "{split}-{index:05d}-of-{total:05d}.tfrecord.gz",
    "image_size": [24, 16],
    "max_reject_fraction": 0.25,
    "annotations": ["voc"],
    "channels": 1,
    "unlabeled_splits": ["validation"],
    "rename": {"a": "b"},
    "defaults": {"a": "0"},
    "thousands": "'",
    "quote": "'",
    "escape": "!",
    "comment": "#",
}
# Options that are right only with another one.
NEEDED_OPTIONS = {
    "label_pattern": {"label_from": "filename"},
    "boxes_frame": {"annotations": ["voc"]},
    "rows-unlabeled_splits": {"label": "name"},
    "strip_metadata": {"encoding": "keep"},
    "coco_ids": {"annotations": ["coco:boxes.json"]},
}


def toml(values: dict) -> str:
    """Write a table of options; JSON writes these values as TOML does, apart from mappings."""
    lines = ["[options]"]
    for name, value in values.items():
        if isinstance(value, dict):
            pairs = (f"{json.dumps(key)} = {json.dumps(part)}" for key, part in value.items())
            lines.append(f"{name} = {{ {', '.join(pairs)} }}")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    text = "\n".join(lines) + "\n"
    assert tomllib.loads(text)["options"] == values
    return text


def flag(name: str, value: object) -> str:
    """Write an option as a user does on the command line."""
    if value is True:
        return f"--{name}"
    if isinstance(value, dict) and name == "beam_options":
        return "".join(f"--{key}={part}" for key, part in value.items())
    if isinstance(value, dict):
        return f"--{name}=" + ",".join(f"{key}:{part}" for key, part in value.items())
    if isinstance(value, list):
        separator = "x" if name == "image_size" else ","
        return f"--{name}=" + separator.join(str(part) for part in value)
    return f"--{name}={value}"


def sample_value(name: str, option) -> object:
    """Return a value of an option that is not its default, if it has others."""
    if name in VALUES:
        return VALUES[name]
    if option.kind == "switch":
        return True
    if option.pattern == SIZE_PATTERN:
        return "8GiB"
    others = [word for word in option.choices if word != option.default]
    if others:
        return others[-1]
    if option.kind == "number":
        return 2
    return "name"


def cases() -> Iterator:
    for kind, description in INPUT_KINDS.items():
        for name, option in options_of(description.load_options()).items():
            yield pytest.param(kind, name, option, id=f"{kind}-{name}")


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "name", "option"), [*cases()])
def test_a_file_gives_the_options_that_flags_give(
    kind, name, option, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("name").write_text("cat\n")  # for options that read a file
    Path("limits.toml").write_text("rejected = 0.5\n")
    Path("boxes.json").write_text('{"images": [], "categories": [], "annotations": []}')
    values = {
        **NEEDED_OPTIONS.get(name, {}),
        **NEEDED_OPTIONS.get(f"{kind}-{name}", {}),
        name: sample_value(name, option),
    }
    words = [flag(key, value) for key, value in values.items()]
    Path("recipe.toml").write_text(toml({"input": "in", "output": "out", **values}))
    by_flags = parse_build(kind, ["in", "out", *words])
    by_file = parse_build(kind, ["--config=recipe.toml"])
    assert name == "beam_options" or getattr(by_flags.config, name) != option.default
    # What a file gives as `beam_options` are Beam's flags, as they are on a command line.
    assert vars(by_file.config) == vars(by_flags.config)
    assert by_file.beam_flags == by_flags.beam_flags
    # A dry run prints the recipe; written to a file, it is the same build.
    printed = json.loads(json.dumps(dict(by_file.recipe)))
    Path("again.toml").write_text(toml(printed))
    again = parse_build(kind, ["--config=again.toml"])
    not_in_recipes = {"beam_options": (), "dry_run": False}
    assert vars(again.config) | not_in_recipes == vars(by_flags.config) | not_in_recipes
    assert again.recipe == by_file.recipe


def test_the_command_line_wins(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"input": "a", "output": "ds", "image-size": 32, "annotations": ["yolo"], "seed": 5}
    beam = {"runner": "FlinkRunner", "parallelism": 4}
    Path("recipe.toml").write_text(toml(values | beam))
    words = ["--annotations=voc", "--seed=7", "--runner=PrismRunner", "--config=recipe.toml"]
    build = parse_build("images", words)
    assert build.config.annotations == ("voc",)
    assert build.config.seed == 7
    assert build.config.image_size.height == 32
    assert build.beam_flags == ["--runner=FlinkRunner", "--parallelism=4", "--runner=PrismRunner"]


@pytest.mark.parametrize(
    ("in_file", "words", "inputs", "output"),
    [
        ({"input": "a", "output": "ds"}, [], ("a",), "ds"),
        ({"input": "a"}, ["ds2"], ("a",), "ds2"),
        ({"output": "ds"}, ["b"], ("b",), "ds"),
        ({"input": ["a", "c"], "output": "ds"}, ["b", "ds2"], ("b",), "ds2"),
        ({}, ["b", "ds2"], ("b",), "ds2"),
        ({"input": "a", "output": "ds"}, ["--output=ds2"], ("a",), "ds2"),
        ({"input": "a"}, ["b", "c", "ds2"], ("b", "c"), "ds2"),
    ],
)
def test_paths_without_flags_fill_what_the_file_lacks(
    in_file, words, inputs, output, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(toml(in_file))
    config = parse_build("images", ["--config=recipe.toml", *words]).config
    assert (config.input, config.output) == (inputs, output)


def test_a_pipe_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()  # as of `--config=<(command)`
    os.write(writing, toml({"quality": 50}).encode())
    os.close(writing)
    build = parse_build("images", ["in", "out", f"--config=/dev/fd/{reading}"])
    os.close(reading)
    assert build.config.quality == 50


def test_one_file_holds_a_recipe_and_the_limits_of_a_check(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "in", {"a": 12, "b": 12})
    recipe = toml({"input": "in", "output": "ds", "image_size": 8})
    Path("recipe.toml").write_text(recipe + "\n[limits]\nrejected = 0.0\n")
    code, out, _ = run_here(capsys, "images", "--config=recipe.toml", "--dry_run", "--json")
    assert code == 0
    options = {"input": "in", "output": "ds", "image_size": 8, "limits": {"rejected": 0.0}}
    assert json.loads(out)["options"] == options
    assert run_here(capsys, "images", "--config=recipe.toml")[0] == 0
    assert run_here(capsys, "check", "ds", "--limits=recipe.toml")[0] == 0
    Path("none.toml").write_text(recipe)
    assert run_here(capsys, "check", "ds", "--limits=none.toml")[0] == 0


def switches(kind: str) -> list[str]:
    options = options_of(INPUT_KINDS[kind].load_options())
    return [name for name, option in options.items() if option.kind == "switch"]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", list(INPUT_KINDS))
def test_a_switch_that_is_turned_off_wins_over_the_file(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in switches(kind):
        values = {**NEEDED_OPTIONS.get(name, {}), name: True}
        Path("recipe.toml").write_text(toml({"input": "in", "output": "out", **values}))
        words = ["--config=recipe.toml", f"--{name.replace('_', '-')}=false"]
        assert getattr(parse_build(kind, words).config, name) is False
        needed = [flag(key, value) for key, value in values.items() if key != name]
        for last, state in ((f"--{name}=false", False), (f"--{name}=true", True)):
            both = [*needed, f"--{name}", f"--{name}=false", f"--{name}", last]
            assert getattr(parse_build(kind, ["in", "out", *both]).config, name) is state


def test_the_output_of_a_file_is_not_an_input(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(toml({"output": "ds"}))
    config = parse_build("images", ["a", "b", "--config=recipe.toml"]).config
    assert (config.input, config.output) == (("a", "b"), "ds")

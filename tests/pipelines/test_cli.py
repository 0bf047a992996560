"""The command: each usage error is one sentence, before anything is written."""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from shardmill.pipelines.cli import main, report_errors
from shardmill.pipelines.commands import COMMANDS, INPUT_KINDS, find_parser
from shardmill.pipelines.commands.build import parse_build
from shardmill.pipelines.commands.parser import beam_option_names
from shardmill.pipelines.runners.base import IN_MEMORY, take_runner
from shardmill.schemas.errors import OutputError, ResourceError, UsageError
from tests.conftest import build_dataset, make_image, make_photos, shardmill
from tests.support.fault_tools import sentence_here
from tests.support.rows_tools import run_here

MISTAKES = [
    (["--image_size=0"], 2, "--image_size=0x0 is out of range"),
    (["--image_size=big"], 2, "--image_size=big is not a size"),
    (["--image_size=-5x7"], 2, "is not a size"),
    (["--splits=train:0.9"], 2, "sums to 0.9, not 1"),
    (["--resize=squash"], 2, "--resize=squash is unknown"),
    (["--interpolation=magic"], 2, "--interpolation=magic is unknown"),
    (["--encoding=webp"], 2, "--encoding=webp is unknown"),
    (["--quality=0"], 2, "--quality=0 must be from 1 to 100"),
    (["--quality=high"], 2, "--quality=high is not a whole number"),
    (["--channels=2"], 2, "--channels=2 is not"),
    (["--channels=4"], 2, "a JPEG has no alpha"),
    (["--reducing_gap=0.5"], 2, "--reducing_gap=0.5 must be 1 or more, or 0"),
    (["--reducing_gap=nan"], 2, "--reducing_gap=nan must be 1 or more"),
    (["--num_shards=0"], 2, "--num_shards=0 must be from 1 to 100000"),
    (["--num_shards=1000000000", "--dry_run"], 2, "--num_shards=1000000000 must be from 1"),
    (["--num_shards=2", "--shard_examples=2"], 2, "cannot be combined"),
    (["--shard_bytes=0"], 2, "--shard_bytes=0 must be 1KiB or more, as in 128MiB"),
    (["--shard_bytes=much"], 2, "--shard_bytes=much is not a size"),
    (["--shard_examples=0"], 2, "must be 1 or more"),
    (["--shard_by=color"], 2, "--shard_by=color is unknown"),
    (["--shard_by=label", "--label_from=none"], 2, "needs labels"),
    (["--shard_name={shard}"], 2, "unknown field {shard}"),
    (["--shard_name=a-{index}"], 2, "several splits one name"),
    (["--shard_name={split}"], 2, "add {index}"),
    (["--shard_name={split}-{label}-{index}"], 2, "needs --shard_by=label"),
    (["--compression=zip"], 2, "--compression=zip is unknown"),
    (["--features=image=pixels"], 2, "not NAME=SOURCE"),
    (["--features=a=image/key,a=image/width"], 2, "uses a name twice"),
    (["--features=image/class/label", "--label_from=none"], 2, "the images have no labels"),
    (["--label_pattern=(x"], 2, "not a regular expression"),
    (["--label_pattern=x"], 2, "no group called label"),
    (["--label_from=stars"], 2, "--label_from=stars is unknown"),
    (["--label_from=none", "--label_pattern=(?P<label>.)"], 2, "has no use"),
    (["--labels=missing.txt"], 2, "--labels=missing.txt does not exist"),
    (["--seed=-1"], 2, "--seed=-1 must be from 0 to"),
    ([f"--seed={2**64}"], 2, "must be from 0 to"),
    (["--limit=0"], 2, "--limit=0 must be 1 or more"),
    (["--workers=-1"], 2, "--workers=-1 must be 0 or more"),
    (["--threads=2"], 2, "--threads belongs to `shardmill rows` and `shardmill arrays`"),
    (["--max_pixels=0"], 2, "--max_pixels=0 must be 1 or more"),
    (["--decoder_memory=1023MiB"], 2, "--decoder_memory=1023MiB must be 1GiB or more"),
    (["--decoder_memory=much"], 2, "--decoder_memory=much is not a size"),
    (["--decoder_seconds=0"], 2, "--decoder_seconds=0 must be above 0"),
    (["--decoder_seconds=1e9"], 2, "must be above 0, and at most 86400"),
    (["--decoder_seconds=nan"], 2, "--decoder_seconds=nan must be above 0"),
    (["--image_size=30000"], 2, "would take 2,700,000,000 bytes, and a tf.train.Example can hold"),
    (["--max_reject_fraction=2"], 2, "must be between 0 and 1"),
    (["--group_pattern=("], 2, "not a regular expression"),
    (["--image-sizes=5"], 2, "did you mean --image_size?"),
    (["--imagesize=5"], 2, "did you mean --image_size?"),
    (["--nonsense"], 2, "The flag --nonsense is unknown"),
    (["--direct_num_workers=-1"], 2, "--direct_num_workers=-1 must be an integer, 0 or more"),
    (["stray"], 2, "'stray' is one path too many: quote a glob"),
    (
        ["--label=species"],
        2,
        "--label belongs to `shardmill rows` and `shardmill arrays`: write --beam_options=label=",
    ),
    (["--label", "species"], 2, "--label belongs to"),
    (["--batch_size=3"], 2, "--batch_size belongs to `shardmill steps`"),
    (["--beam_options=nonsense=1"], 2, "The flag --nonsense is unknown"),
    (["--splits=80,20"], 2, "did you mean train:0.8,validation:0.2?"),
    (["--splits=train:80,test:20"], 2, "did you mean train:0.8,test:0.2?"),
    (["--output=ftp://b/x"], 2, "ftp:// is not supported"),
    (["--output="], 2, "--output is empty"),
    (["--input="], 2, "--input is empty"),
    (["--input=nowhere"], 1, "--input=nowhere does not exist"),
    (["--input=nowhere/*.jpg"], 1, "matched no files"),
    (["--root=elsewhere"], 2, "is not inside --root"),
]


@pytest.mark.parametrize(("flags", "code", "message"), MISTAKES, ids=lambda value: str(value)[:50])
def test_rejects_flags_in_one_sentence_and_writes_nothing(
    flags, code, message, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "in", {"a": 1})
    before = sorted(tmp_path.rglob("*"))
    default = [] if any("--input" in flag for flag in flags) else ["--input=in"]
    argv = "images", *default, "--output=ds", *flags
    assert message in sentence_here(capsys, *argv, code=code)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_relative_path_in_a_deleted_folder_is_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = sentence_here(capsys, "images", "in", str(tmp_path / "ds"), code=2)
    assert "The path 'in' is relative, and the current folder was deleted" in found


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "usage: shardmill"),
        (("bake",), "The command 'bake' is unknown"),
        (("images",), "arguments are required: --input, --output"),
        (("images", "--inptu=a", "--output=b"), "did you mean --input?"),
        (("steps", "ds", "--batch=3"), "arguments are required: --batch_size"),
        (("steps", "ds", "--batch_size=3", "--dorp"), "The flag --dorp is unknown"),
    ],
)
def test_prints_usage(args, message, capsys) -> None:
    code, out, err = run_here(capsys, *args)
    assert code == 2
    assert message in out + err


def flags_of_beam() -> set[str]:
    parser = argparse.ArgumentParser(add_help=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def test_reads_the_names_of_beam_options_from_its_source() -> None:
    assert beam_option_names() >= flags_of_beam()


def test_lists_the_beam_options_that_flags_of_ours_shadow() -> None:
    """Each can still be given; a new flag with the name of one is a decision, made here."""
    ours = {flag for command in COMMANDS for flag in find_parser(command).flags}
    beam = flags_of_beam()
    assert ours & beam == {"--dry_run", "--label", "--labels", "--update"}
    for flag in ours & beam:
        value = {"--update": "", "--dry_run": "=true"}.get(flag, "=a=b")
        given = f"--beam_options={flag[2:]}{value}"
        for kind in INPUT_KINDS:
            config, rest, *_ = parse_build(kind, ["in", "out", given, "--job_name=x"])
            assert rest == ["--job_name=x", given.replace("--beam_options=", "--")]
            assert (config.update, config.dry_run) == (False, False)
            options = PipelineOptions(rest).get_all_options()
            assert options["labels" if "label" in flag else flag[2:]] in (True, "true", ["a=b"])


@pytest.mark.parametrize(
    ("flag", "attribute", "value"),
    [
        ("--encoding=jpg", "encoding", "jpeg"),
        ("--encoding=PNG", "encoding", "png"),
        ("--resize=Pad", "resize", "pad"),
        ("--overwrite=true", "overwrite", True),
        ("--overwrite=false", "overwrite", False),
        ("--shard-bytes=1g", "shard_bytes", 1 << 30),
    ],
)
def test_accepts_spellings(flag, attribute, value) -> None:
    config, *_ = parse_build("images", ["in", "out", flag])
    assert getattr(config, attribute) == value


def test_passes_beam_options_on() -> None:
    config, rest, answer, _ = parse_build(
        "images",
        ["--input=a", "--output=b", "--runner=PrismRunner", "--temp_location=x", "--debug"],
    )
    assert (config.input, config.output, answer.debug) == (("a",), "b", True)
    assert take_runner(rest) == ("PrismRunner", ["--temp_location=x"])


@pytest.mark.parametrize("flags", [[], ["--runner=DirectRunner"], ["--runner", "in-memory"]])
def test_direct_runner_is_in_memory(flags) -> None:
    assert take_runner(flags) == (IN_MEMORY, [])


INPUT_MISTAKES = [
    (
        ["--label_from=filename", r"--label_pattern=(?P<label>\d+)_x"],
        "such as 'a/000.jpg' (no_label: no label is found in",
    ),
    (["--splits=directory"], "(no_split: "),
    (["--labels=labels.txt"], "(unknown_label: "),
    (["--input=list.csv"], "list.csv has no column label"),
    (["--input=climb.csv"], "leads outside the root"),
    (["--input=twice.csv"], "is listed with the label 'x' and with 'y'"),
    (["--input=text"], "no matched file is named like an image"),
    (["--input=empty"], "'empty' matches no file: check --input."),
    (["--input=in/*.jpg"], "'in/*.jpg' matches no file: `**` also matches subfolders."),
    (["--input=in/**/*.png"], "'in/**/*.png' matches no file: check --input."),
]


@pytest.mark.parametrize(("flags", "message"), INPUT_MISTAKES, ids=lambda v: str(v)[:40])
def test_rejects_unusable_inputs_in_one_sentence(
    flags, message, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "in", {"a": 2})
    (tmp_path / "labels.txt").write_text("b\n")
    (tmp_path / "list.csv").write_text("path\nin/a/000.jpg\n")
    (tmp_path / "climb.csv").write_text("path,label\n../x.jpg,a\n")
    (tmp_path / "twice.csv").write_text("path,label\nin/a/000.jpg,x\nin/a/000.jpg,y\n")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    listing = ["--label_from=listing"] if ".csv" in flags[0] else []
    flags = [*(["--input=in"] if "--input" not in flags[0] else []), *flags, *listing]
    said = sentence_here(capsys, "images", "--output=ds", *flags, code=1)
    assert message.lower() in said.lower()
    # Only the list of rejects may be new, in the folder of the build.
    after = [path for path in tmp_path.rglob("*") if "ds" not in path.relative_to(tmp_path).parts]
    assert sorted(after) == before
    assert ("rejects.jsonl" in said) == (tmp_path / "ds").exists()
    assert not (tmp_path / "ds" / "manifest.json").exists()


@pytest.mark.parametrize("reasons", [{"root": 1}, {"object": 2, "none": 3, "root": 1}])
def test_all_reasons_are_shown_if_every_image_is_rejected(tmp_path, reasons) -> None:
    """Each reason with an example and its message, as the file has them; and a dry run."""
    folder = tmp_path
    texts = {
        "object": "<annotation><object/></annotation>",
        "root": "<html/>",
        "none": "",
    }
    keys = []
    (folder / "in").mkdir()
    (folder / "in" / "other.xml").write_text(texts["root"])
    for reason, count in reasons.items():
        for number in range(count):
            path = folder / "in" / f"{reason}{number}.jpg"
            make_image(number, 8, 8).save(path)
            keys.append(path.name)
            if texts[reason]:
                path.with_suffix(".xml").write_text(texts[reason])
    options = {"input": folder / "in", "output": folder / "ds", "annotations": "voc"}
    for dry_run in (True, False):
        outcome, manifest = build_dataset(**options, dry_run=dry_run)
        assert (outcome.status, manifest) == ("failed", None)
        assert ("rejects.jsonl" in outcome.message) != dry_run
    (listed,) = folder.glob("ds/.build-*/rejects.jsonl")
    rejects = [json.loads(line) for line in listed.read_text().splitlines()]
    assert sorted(reject["key"] for reject in rejects) == sorted(keys)
    assert f"{len(keys)} of {len(keys)} inputs were rejected" in outcome.message
    assert str(listed) in outcome.message
    for reason in {reject["error"] for reject in rejects}:
        first = min(
            (reject["key"], reject["message"]) for reject in rejects if reject["error"] == reason
        )
        assert f"{first[0]!r} ({reason}: {first[1]}" in outcome.message


def test_builds_then_reports_up_to_date(tmp_path) -> None:
    make_photos(tmp_path / "in", {"cat": 5, "dog": 4})
    (tmp_path / "in/cat/bad.jpg").write_bytes(b"no image")
    (tmp_path / "in/notes.txt").write_text("x")
    argv = "images", "--input=in", "--output=ds", "--image_size=32"
    planned = shardmill(*argv, "--dry_run", cwd=tmp_path)
    assert "matched 11 files; nothing was written" in planned.stdout
    assert not (tmp_path / "ds").exists()
    done = shardmill(*argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for wanted in (
        "matched    11 files, 1 skipped",
        "written    9 examples",
        "rejected   1 (not_an_image 1)",
        "manifest.json",
        "images/s",
        "shardmill steps",
    ):
        assert wanted in done.stdout, done.stdout
    (command,) = re.findall(r"shardmill (steps .*)", done.stdout)
    steps = shardmill(*command.split(), "--json")
    assert steps.returncode == 0, steps.stderr
    assert json.loads(steps.stdout)["steps"] == 1
    again = shardmill(*argv, cwd=tmp_path)
    assert again.returncode == 0
    assert "is up to date" in again.stdout
    other = shardmill("images", "--input=in", "--output=ds", "--image_size=31", cwd=tmp_path)
    assert other.returncode == 1
    assert "add --update" in other.stderr


def test_warns_of_very_large_records(tmp_path, capsys) -> None:
    make_photos(tmp_path / "in", {"a": 1})
    argv = ["images", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'ds'}", "--dry_run"]
    for size, resize, warned in (
        ("5000x8", "stretch", True),
        ("5000", "none", False),
        ("4096", "fit", False),
    ):
        code, _, err = run_here(capsys, *argv, f"--image_size={size}", f"--resize={resize}")
        assert code == 0
        assert ("--image_size=5000x8 makes records of 5000x8 pixels" in err) == warned


CALL = """\
import shardmill, sys
try:
    shardmill.images("in", "out")
except shardmill.ShardmillError as error:
    sys.exit(str(error))"""


@pytest.mark.parametrize(
    ("words", "kilobytes"),
    [
        (["-m", "shardmill", "images", "--input=in", "--output=out"], 200_000),
        (["-m", "shardmill", "count", "--input=in"], 800_000),
        (["-m", "shardmill", "verify", "out"], 3_000_000),
        (["-c", CALL], 3_000_000),
    ],
)
def test_too_little_address_space_is_one_sentence(tmp_path, words, kilobytes):
    """Before work starts: later, Python waited for threads that could not start, sometimes."""
    limited = ["sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", sys.executable, *words]
    done = subprocess.run(limited, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == ResourceError.exit_code
    assert "of address space (ulimit -v), builds take up to 3 GiB: raise that" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("level", "runs"), [pytest.param("1", True, marks=pytest.mark.heavy), ("2", False)]
)
def test_python_without_docstrings_is_one_sentence(tmp_path, level, runs):
    """Apache Beam fails with a traceback when it is imported by ``python -OO``."""
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    words = [sys.executable, "-m", "shardmill", "arrays", "--input=x.npy", "--output=ds"]
    environment = {**os.environ, "PYTHONOPTIMIZE": level}
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert (done.returncode == 0) is runs, done.stderr
    assert ("omit -OO" in done.stderr) is not runs
    assert "Traceback" not in done.stderr


def test_names_that_are_not_read_as_utf8_stop_a_command(tmp_path):
    """In a locale of another encoding, the same file would have another key."""
    make_photos(tmp_path / "photos", {"é": 1})
    words = [sys.executable, "-m", "shardmill", "images", "photos", "ds", "--image_size=8"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == UsageError.exit_code
    assert "as ascii here, not as UTF-8, which would change keys: set PYTHONUTF8=1." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ds").exists()


def test_all_commands_print_names_that_the_output_cannot_encode(tmp_path, monkeypatch, capfd):
    """A character becomes an escape, or what the command has for it."""
    monkeypatch.chdir(tmp_path)
    np.save("é中.npy", np.zeros((3, 2)))
    for words in (
        "arrays é中.npy é",
        "arrays é中.npy é",
        "arrays é中.npy é --update --seed=1",
        "show é",
        "verify é",
        "files é",
        "steps é --batch_size=2",
        "diff é/current é",
        "report é",
        "check é",
        "clean é",
        "rollback é",
        "count é/current/*.gz --manifest=é.json",
    ):
        output = io.TextIOWrapper(io.BytesIO(), "ascii")
        with contextlib.redirect_stdout(output):
            code = main(words.split())
        assert code == 0, capfd.readouterr().err
        output.flush()
        assert output.buffer.getvalue().isascii()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["arrays", "x.npy", "ds"]])
def test_a_full_disk_of_standard_output_is_one_sentence(tmp_path, words, unbuffered):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardmill", *words],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == OutputError.exit_code
    sentence = "Standard output cannot be written (No space left on device), so the answer is incom"
    assert done.stderr.startswith(f"shardmill: {sentence}")
    assert done.stderr.count("\n") == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["show", "none", "--json"]])
def test_a_closed_pipe_or_full_disk_of_standard_output_is_no_traceback(words, unbuffered):
    """Also where the answer is that of an error, and on a full disk."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    unread, pipe = os.pipe()
    os.close(unread)
    for output in (pipe, os.open("/dev/full", os.O_WRONLY)):
        done = subprocess.run(
            [sys.executable, "-m", "shardmill", *words],
            check=False,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        os.close(output)
        assert done.returncode in (1, 2)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert ("none does not exist" in done.stderr) is ("none" in words)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_too_little_memory_is_one_sentence(capsys, error):
    def fail() -> int:
        raise error

    assert report_errors(fail, json=False) == ResourceError.exit_code
    assert "cannot have more memory or threads: raise its limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "paths",
    ["{0} {1}", "--input={0} {1}", "{1} --input={0}", "{0} --output={1}", "--output={1} {0}"],
)
def test_paths_without_flags_are_those_that_no_flag_gave(paths) -> None:
    config, *_ = parse_build("images", paths.format("photos", "ds").split())
    assert (config.input, config.output) == (("photos",), "ds")

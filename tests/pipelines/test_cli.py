"""The command: each usage error is one sentence, before anything is written."""

import argparse
import contextlib
import io
import json
import os
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
from tests.conftest import build_dataset, make_image, make_photos
from tests.support.fault_tools import sentence_here


def test_a_relative_path_in_a_deleted_folder_is_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = sentence_here(capsys, "images", "in", str(tmp_path / "ds"), code=2)
    assert "The path 'in' is relative, and the current folder was deleted" in found


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


@pytest.mark.sweep
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


@pytest.mark.heavy
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
    assert done.stderr.count("\n") == 1


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

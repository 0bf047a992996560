"""Commands as Python functions: ``shardmill.images("photos", "ds", image_size=224)``.

The tables of options are their signatures. Each runs its command in a child process: the calling
process, such as the kernel of a notebook, imports no Apache Beam and does not end with a decoder
that crashes.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from shardmill.pipelines.dataset_options import ArraysOptions, ImagesOptions, RowsOptions
from shardmill.pipelines.tool_options import CountConfig, VerifyOptions
from shardmill.schemas import errors
from shardmill.schemas.arguments import explain_arguments
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.dataset.shard_names import REJECTS
from shardmill.schemas.numbers import plural
from shardmill.schemas.option_types import (
    describe_options,
    options_of,
    propose,
    unknown_option,
)
from shardmill.schemas.storage import join

if TYPE_CHECKING:
    from shardmill.loaders import Records

_BUILT = ("published", "up_to_date")
_RAISES = "    ShardmillError: The command failed; the message says why, and what to do.\n"
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class BuildResult:
    """The result of a build.

    Attributes:
        status: ``published``; ``up_to_date`` if nothing had to be done; ``dry_run``; or ``staged``
            for a template.
        output: Folder of the dataset.
        seconds: Duration.
        matched: Number of inputs matched by this command.
        skipped: Number of files that it skipped by their names.
        duplicates: Number of inputs that repeat another.
        parts_made: Number of parts that were made.
        parts_reused: Number of parts that an earlier, unfinished run had made.
        reused: Number of records that were taken from the published dataset.
        changes: What changed since the published dataset, a line for each kind of change.
        planned: For a dry run: ``split``, ``label``, ``inputs``, ``num_bytes`` and ``parts`` of
            each series of parts.
        labels: For a dry run: all labels, where they are known before the build.
        message: A sentence, or empty.
    """

    status: str
    output: str = ""
    seconds: float = 0.0
    matched: int = 0
    skipped: int = 0
    duplicates: int = 0
    parts_made: int = 0
    parts_reused: int = 0
    reused: int = 0
    changes: tuple[str, ...] = ()
    planned: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    message: str = ""

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, as it was when this was first read."""
        return load_manifest(self.output)

    @property
    def splits(self) -> dict[str, int]:
        """Number of examples of each split."""
        return {name: split.num_examples for name, split in self.manifest.splits.items()}

    def open(self, split: str = "train", **options: Any) -> Records:
        """Open a split of the dataset; see ``open_dataset``."""
        from shardmill.loaders import open_dataset

        return open_dataset(self.output, split, **options)

    @property
    def files(self) -> list[str]:
        """Paths of all shards."""
        folder = self.manifest.folder(self.output)
        return [join(folder, name) for name in self.manifest.files]

    @cached_property
    def rejects(self) -> list[dict[str, Any]]:
        """The rejected inputs: ``key``, ``error``, ``message`` and more of each."""
        if not self.manifest.inputs.rejected:
            return []
        path = join(self.manifest.folder(self.output), REJECTS)
        return [json.loads(line) for line in read_dataset_file(path).splitlines()]

    def __repr__(self) -> str:
        """Return the status and the numbers of the splits."""
        if self.status not in _BUILT:
            return f"<{self.status}: {self.output}, {plural(self.matched, 'input')} matched>"
        counts = ", ".join(f"{name} {number:,}" for name, number in self.splits.items())
        rejected = self.manifest.inputs.rejected
        return f"<{self.status}: {self.output} ({counts}; {rejected:,} rejected)>"

    def _repr_html_(self) -> str | None:
        """Return a table of the splits, and the findings of ``report``, for notebooks."""
        if self.status not in _BUILT:
            return None
        from shardmill.loaders.html.render import render_summary
        from shardmill.pipelines.limits import Limits

        folder = self.manifest.folder(self.output)
        verdicts, notes = Limits().judge(folder, self.manifest)
        findings = [verdict for verdict in verdicts if verdict.remedy]
        return render_summary(self.manifest, self.output, findings, notes)


@dataclass(frozen=True)
class VerifyResult:
    """The result of a check of all bytes.

    Attributes:
        root: Folder whose files were checked.
        sound: Whether everything is as the manifest and the schema say.
        examples: Number of examples by the manifest.
        shards: Number of shards.
        faults: ``file``, ``message`` and more of each fault.
    """

    root: str
    sound: bool
    examples: int
    shards: int
    faults: tuple[dict[str, Any], ...]


def _command(
    table: Callable[P, Any], command: str, summary: str, result: Callable[[dict[str, Any]], T]
) -> Callable[P, T]:
    """Return a function that runs a command, with the signature of its table of options.

    Args:
        table: Class of the options.
        command: Name of the command.
        summary: First line of its docstring.
        result: Returns the result of the object that the command prints.
    """
    kind: Any = table

    def call(*args: P.args, **values: P.kwargs) -> T:
        check_names(command, values, {field.name for field in fields(kind)})
        error = explain_arguments(kind, command, args, dict(values))
        if error is not None:
            raise error
        return result(run(command, table(*args, **values)))

    texts = describe_options(kind).items()
    rows = "".join(f"    {name}: {text[:1].upper()}{text[1:]}.\n" for name, (_, text) in texts)
    call.__name__ = call.__qualname__ = command
    call.__doc__ = f"{summary}\n\nArgs:\n{rows}\nRaises:\n{_RAISES}"
    vars(call)["__signature__"] = _signature(kind)
    return call


def _signature(table: Any) -> inspect.Signature:
    """Return the signature of a table without types, with its options in their order."""
    signature = inspect.signature(table)
    parameters = dict(signature.parameters)
    options = [parameters.pop(name) for name in options_of(table)]
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in (*parameters.values(), *options)
    ]
    return signature.replace(parameters=plain)


def check_names(call: str, values: Collection[str], options: Collection[str]) -> None:
    """Check that a call has all options that it is given.

    Args:
        call: Name of the function.
        values: Names of the options that are given.
        options: Names of its options.

    Raises:
        UsageError: It has not.
    """
    for name in sorted({*values} - {*options}):
        hint = propose(name, options, "Beam's options go in beam_options={...}.")
        raise unknown_option(command=call, name=name, hint=hint)


def build_result(body: dict[str, Any]) -> BuildResult:
    """Return the result of a build of the object that it prints."""
    return msgspec.convert(body, BuildResult)


images = _command(ImagesOptions, "images", ImagesOptions.summary, build_result)
rows = _command(RowsOptions, "rows", RowsOptions.summary, build_result)
arrays = _command(ArraysOptions, "arrays", ArraysOptions.summary, build_result)
count = _command(
    CountConfig,
    "count",
    "Count TFRecords; ``damaged`` of the manifest lists the files that could not be counted.",
    lambda body: Manifest.from_json(json.dumps(body)),
)
verify = _command(
    VerifyOptions,
    "verify",
    "Check every byte of a dataset against its manifest and schema.",
    lambda body: msgspec.convert(body, VerifyResult),
)


def run(command: str, options: Any, **more: Any) -> dict[str, Any]:
    """Run a command in a child process; return the object that it prints.

    Args:
        command: Name of the command.
        options: Its table of options.
        more: Attributes of its config that are not options.

    The child process ends when the standard input closes that this one holds until then. So it
    never outlives this process, and publishes nothing for a caller that was killed.

    Raises:
        ShardmillError: The command failed.
        KeyboardInterrupt: It was interrupted.
    """
    words = [sys.executable, "-m", __name__]
    shared = sys.stderr is sys.__stderr__ and os.isatty(2)
    call = pickle.dumps((command, options, more))
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        process = subprocess.Popen(  # noqa: S603 - the words are of this call
            words,
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=None if shared else subprocess.PIPE,
        )
        try:
            if process.stdin is not None:
                # The process may have failed, which its exit code says; else this leaves it open.
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(call)
                    process.stdin.flush()
            notes = _forward(process.stderr)
            code = process.wait()
        except KeyboardInterrupt:
            if not shared:  # the terminal has interrupted both
                process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            # After any other exception, such as one of a signal handler: the call has failed, so
            # nothing may be published.
            process.kill()
            process.wait()
        answer.seek(0)
        text = answer.read()
    if not text.strip():
        raise RuntimeError(f"`shardmill {command}` ended with the exit code {code}; see its output")
    body: dict[str, Any] = json.loads(text)
    if body["status"] == "interrupted":
        raise KeyboardInterrupt
    if "findings" in body and "error" in body:
        raise errors.LimitError(body["error"], body["findings"])
    if "error" in body:
        kind = getattr(errors, body["type"], errors.ShardmillError)
        raise kind(body["error"])
    print(*notes, sep="", end="", file=sys.stderr)
    return body


def _run_as_child() -> int:
    """Run the command whose options the calling process gives, and return its exit code."""
    from shardmill.pipelines.cli import check_process, report_errors
    from shardmill.pipelines.commands import INPUT_KINDS, load_command
    from shardmill.pipelines.commands.build import configure, run_build
    from shardmill.pipelines.quick_start import import_arrow
    from shardmill.pipelines.report.terminal import Answer
    from shardmill.transforms.runtime.lifeline import end_with_parent

    lifeline = os.dup(0)
    end_with_parent(lifeline)
    with open(lifeline, "rb", closefd=False) as given:
        command, options, more = pickle.load(given)  # noqa: S301 - the calling process wrote it
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)  # what reads standard input must not wait for the caller
    answer = Answer(json=True)

    def run_command() -> int:
        check_process(command)
        if command in INPUT_KINDS:
            values = vars(options) | more
            pool = INPUT_KINDS[command].arrow_pool
            import_arrow(pool, with_pandas=bool(values.get("preprocessing")))
            return run_build(command, configure(command, values, [], answer))
        code: int = load_command(command).run(options, answer)
        return code

    return report_errors(run_command, json=True)


def _forward(lines: IO[bytes] | None) -> list[str]:
    """Print progress where this process prints; return sentences, such as that of an error.

    An error becomes an exception, so its sentence is not printed too.
    """
    sentences = []
    if lines is None:
        return []
    for line in io.TextIOWrapper(lines, errors="replace"):
        if line.startswith("shardmill: "):
            sentences.append(line)
        else:
            print(line, end="", file=sys.stderr, flush=True)
    return sentences


if __name__ == "__main__":
    sys.exit(_run_as_child())

"""Commands as Python functions: ``shardmill.images("photos", "ds", image_size=224)``.

Each runs its command in a child process: the calling process, such as the kernel of a notebook,
imports no Apache Beam and does not end with a decoder that crashes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import IO, Any, TypeVar

from shardmill.loaders.steps import files_folder, load_manifest
from shardmill.pipelines.report.error_address import PAGE
from shardmill.schemas import errors
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, REJECTS
from shardmill.schemas.storage import join, open_storage

_BUILT = ("published", "up_to_date")
Path = str | os.PathLike[str]
Result = TypeVar("Result", "BuildResult", "VerifyResult")


@dataclass(frozen=True, repr=False)
class BuildResult:
    """The result of a build.

    Attributes:
        status: ``published``; ``up_to_date`` if nothing had to be done; ``dry_run``; or ``staged``
            for a template.
        output: Folder of the dataset.
        seconds: Duration.
        matched: Number of inputs matched.
        parts_made: Number of parts that were made.
        parts_reused: Number of parts that an earlier, unfinished run had made.
        reused: Number of records that were taken from the published dataset.
        changes: What changed since the published dataset, a line for each kind of change.
        planned: For a dry run: ``split``, ``label``, ``inputs``, ``num_bytes`` and ``parts`` of
            each series of parts.
        labels: For a dry run: all labels, where they are known before the build.
        estimate: For a dry run: expected ``num_bytes`` and ``num_shards`` of the dataset (0 if rows
            name their splits), and ``seconds`` of a build on ``cores``.
        message: A sentence, or empty.
    """

    status: str
    output: str = ""
    seconds: float = 0.0
    matched: int = 0
    parts_made: int = 0
    parts_reused: int = 0
    reused: int = 0
    changes: tuple[str, ...] = ()
    planned: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    estimate: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, as it was when this was first read."""
        return load_manifest(self.output)

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
        folder = files_folder(self.output, join(self.output, MANIFEST), self.manifest)
        path = join(folder, REJECTS)
        return [json.loads(line) for line in open_storage(path).read(path).splitlines()]

    def __repr__(self) -> str:
        """Return the status and the numbers of the splits."""
        if self.status not in _BUILT:
            return f"<{self.status}: {self.output}, {self.matched:,} inputs matched>"
        splits = self.manifest.splits.items()
        counts = ", ".join(f"{name} {split.num_examples:,}" for name, split in splits)
        rejected = self.manifest.inputs.rejected
        return f"<{self.status}: {self.output} ({counts}; {rejected:,} rejected)>"

    def _repr_html_(self) -> str | None:
        """Return a table of the splits, for notebooks."""
        if self.status not in _BUILT:
            return None
        from shardmill.loaders.html.render import render_summary

        return render_summary(self.manifest, self.output)


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


def images(input: Path, output: Path, **options: Any) -> BuildResult:  # noqa: A002 - as the flag
    """Build a dataset from images, as ``shardmill images`` does.

    Args:
        input: A folder, glob, listing (.csv) or image.
        output: Folder of the new dataset.
        options: Flags of the command by name, such as ``image_size=224``,
            ``splits={"train": 0.9, "validation": 0.1}`` and ``update=True``; Apache Beam's too.

    Raises:
        ShardmillError: The command failed; the message says why, and what to do.
    """
    return _build("images", input, output, options)


def rows(input: Path, output: Path, **options: Any) -> BuildResult:  # noqa: A002
    """Build a dataset from CSV files, as ``shardmill rows`` does.

    Args:
        input: A folder, glob, CSV file, or list of files (.txt).
        output: Folder of the new dataset.
        options: Flags of the command by name, such as ``label="survived"``; Apache Beam's too.

    Raises:
        ShardmillError: The command failed; the message says why, and what to do.
    """
    return _build("rows", input, output, options)


def arrays(input: Path, output: Path, **options: Any) -> BuildResult:  # noqa: A002
    """Build a dataset from NumPy arrays, as ``shardmill arrays`` does.

    Args:
        input: A .npy, an .npz, or a folder of .npy files.
        output: Folder of the new dataset.
        options: Flags of the command by name; Apache Beam's too.

    Raises:
        ShardmillError: The command failed; the message says why, and what to do.
    """
    return _build("arrays", input, output, options)


def count(*inputs: Path, **options: Any) -> Manifest:
    """Count the records of TFRecord files, as ``shardmill count`` does.

    Args:
        inputs: Folders, globs, files, or lists of paths (.txt, .csv).
        options: Flags of the command by name, such as ``check="index"``.

    Returns:
        The counts; files that could not be counted are in ``damaged``.

    Raises:
        ShardmillError: The command failed; the message says why, and what to do.
    """
    body = _run("count", ["--input", *(os.fspath(path) for path in inputs)], options)
    return Manifest.from_json(json.dumps(body))


def verify(dataset: Path, **options: Any) -> VerifyResult:
    """Check every byte of a dataset against its manifest and schema, as ``shardmill verify`` does.

    Args:
        dataset: Folder of a dataset, or a manifest of ``count``.
        options: Flags of the command by name, such as ``processes=4``.

    Raises:
        ShardmillError: The dataset cannot be checked; damage is in the result.
    """
    return _result(VerifyResult, _run("verify", [os.fspath(dataset)], options))


def report(dataset: Path, output: Path | None = None) -> str:
    """Write a page about a dataset, as ``shardmill report`` does; see ``write_report``."""
    from shardmill.loaders import write_report

    return write_report(dataset, output)


def _build(command: str, source: Path, output: Path, options: Mapping[str, Any]) -> BuildResult:
    places = [f"--input={os.fspath(source)}", f"--output={os.fspath(output)}"]
    return _result(BuildResult, _run(command, places, options))


def _result(kind: type[Result], body: Mapping[str, Any]) -> Result:
    names = {each.name for each in fields(kind)} & body.keys()
    lists = {name: tuple(body[name]) for name in names if isinstance(body[name], list)}
    return kind(**{name: body[name] for name in names} | lists)


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of options by name; an option that is None or False has none."""
    for name, value in options.items():
        if value is True:
            yield f"--{name}"
        elif value is not None and value is not False:
            yield f"--{name}={_text(name, value)}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{part}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ("x" if name == "image_size" else ",").join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _run(command: str, places: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command in a child process; return the object that it prints.

    Raises:
        ShardmillError: The command failed.
        KeyboardInterrupt: It was interrupted.
    """
    words = [sys.executable, "-m", "shardmill", command, *places, *_flags(options), "--json"]
    shared = sys.stderr is sys.__stderr__ and os.isatty(2)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        process = subprocess.Popen(  # noqa: S603 - the words are of this call
            words, stdin=subprocess.DEVNULL, stdout=answer, text=True, errors="replace",
            stderr=None if shared else subprocess.PIPE,
        )  # fmt: skip
        try:
            notes = _forward(process.stderr)
            code = process.wait()
        except KeyboardInterrupt:
            if not shared:  # the terminal has interrupted both
                process.send_signal(signal.SIGINT)
            process.wait()
            raise
        answer.seek(0)
        text = answer.read()
    if not text.strip():
        raise RuntimeError(f"`shardmill {command}` ended with the exit code {code}; see its output")
    body: dict[str, Any] = json.loads(text)
    if body["status"] == "interrupted":
        raise KeyboardInterrupt
    if "error" in body:
        kind = getattr(errors, body["type"], errors.ShardmillError)
        raise kind(body["error"])
    print(*notes, sep="", end="", file=sys.stderr)
    return body


def _forward(lines: IO[str] | None) -> list[str]:
    """Print progress where this process prints; return the sentences, of which one may be an error.

    An error becomes an exception, so its sentence and its address are not printed too.
    """
    sentences = []
    for line in lines or ():
        if line.startswith(("shardmill: ", f"See {PAGE}")):
            sentences.append(line)
        else:
            print(line, end="", file=sys.stderr, flush=True)
    return sentences

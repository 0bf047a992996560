"""The result of a build or a count, as lines for a terminal or a log."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shardmill.pipelines.report.layout import fields, whole_line
from shardmill.pipelines.report.terminal import has_log, write_log
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import CURRENT, MANIFEST, REJECTS
from shardmill.schemas.errors import LimitError, OutputError
from shardmill.schemas.numbers import human_bytes, plural
from shardmill.schemas.storage import join, scheme_of

if TYPE_CHECKING:
    from shardmill.transforms.sink.spec import Outcome

_MAX_LISTED = 20
_MAX_LABELS = 10
Rows = list[tuple[str, str]]


def build_result(outcome: Outcome, output: str, seconds: float) -> dict[str, Any]:
    """Return the fields that ``--json`` prints about a build.

    Args:
        outcome: Outcome of the build.
        output: Folder of the dataset.
        seconds: Duration of the build.

    Raises:
        LimitError: The dataset is beyond a limit.
        OutputError: The build failed.
    """
    if outcome.findings:
        raise LimitError(outcome.message, outcome.findings)
    if outcome.status == "failed":
        raise OutputError(outcome.message)
    body = {k: v for k, v in vars(outcome).items() if k not in ("series", "manifest", "findings")}
    series = ("split", "label", "inputs", "num_bytes", "parts")
    planned = [dict(zip(series, values, strict=True)) for values in outcome.series]
    return {**body, "output": output, "seconds": round(seconds, 3), "planned": planned}


def log_summary(command: str, result: Mapping[str, Any], manifest: str, ended: Any) -> bool:
    """Write the result of a build or count as the last line of the JSON log, if there is one.

    Args:
        command: Name of the command.
        result: Status, seconds and counts.
        manifest: JSON of the manifest, or empty.
        ended: Result of the run, which has Beam's counters if Beam ran.
    """
    if not has_log():
        return False
    summary: dict[str, Any] = {k: v for k, v in result.items() if isinstance(v, (str, int, float))}
    summary["command"] = command
    with contextlib.suppress(Exception):  # the dataset is published, even if the runner has none
        summary["counters"] = ended.counters()
    if manifest:
        made = Manifest.from_json(manifest)
        summary |= {"written": made.written, "rejected": made.inputs.rejected_by_reason}
        summary["examples"] = {name: split.num_examples for name, split in made.splits.items()}
        summary["bytes"] = {name: split.num_bytes for name, split in made.splits.items()}
    return write_log("info", f"{command}: {result['status']}", summary=summary)


def render_build(
    outcome: Outcome, output: str, seconds: float, inputs: str, columns: Mapping[str, str]
) -> Iterator[Text]:
    """Yield the lines about a build that did not fail.

    Args:
        outcome: Outcome of the build.
        output: Folder of the dataset.
        seconds: Duration of the build.
        inputs: Word for inputs.
        columns: Type and an example of each column, by name.
    """
    if outcome.status == "up_to_date":
        yield whole_line(f"{output} is up to date: nothing was written.")
        # The manifest's counts are of the build: files that are not inputs change no dataset.
        if outcome.skipped or outcome.duplicates:
            counts = f"{outcome.skipped:,} skipped, {plural(outcome.duplicates, 'duplicate')}"
            yield whole_line(f"  matched {plural(outcome.matched, 'file')}: {counts}.")
    elif outcome.status == "dry_run":
        yield whole_line(f"Dry run: {output} would get", "bold")
        yield from fields([*_planned(outcome, inputs), *_columns(columns, Counter())])
        yield whole_line(f"  matched {plural(outcome.matched, 'file')}; nothing was written.")
    else:
        manifest = Manifest.from_json(outcome.manifest)
        path = join(output, MANIFEST)
        yield whole_line(f"Published {output}", "bold")
        rows = _published(outcome, manifest, output, seconds, inputs)
        yield from fields([*rows, *_columns(columns, _missing(manifest)), ("manifest", path)])
        if outcome.message:
            yield whole_line(outcome.message, "yellow")
        yield from _next_command(manifest, path)


def render_count(manifest: Manifest, path: str, seconds: float) -> Iterator[Text]:
    """Yield the lines about a count.

    Args:
        manifest: The result.
        path: Path of the manifest; empty if it was not written.
        seconds: Duration of the count.
    """
    inputs = manifest.inputs
    skipped = f", {inputs.skipped:,} skipped" if inputs.skipped else ""
    duplicates = f", {inputs.duplicates:,} named twice" if inputs.duplicates else ""
    rows = [("files", f"{inputs.matched:,} matched{skipped}{duplicates}")]
    for name, split in manifest.splits.items():
        files, size = plural(len(split.shards), "file"), human_bytes(split.num_bytes)
        rows.append((name, f"{plural(split.num_examples, 'record')} in {files}, {size}"))
    rows += first_rows("damaged", [f"{file.file}: {file.message}" for file in manifest.damaged])
    rows += first_rows("warning", manifest.warnings)
    total = sum(split.num_bytes for split in manifest.splits.values())
    rows.append(("time", f"{seconds:,.1f} s, {human_bytes(total / max(seconds, 1e-9))}/s"))
    yield whole_line(f"Counted {inputs.root}", "bold")
    if path:
        rows.append(("manifest", path))
    yield from fields(rows)
    if path and not manifest.damaged and any(s.num_examples for s in manifest.splits.values()):
        yield from _next_command(manifest, path)


def _published(
    outcome: Outcome, manifest: Manifest, output: str, seconds: float, inputs: str
) -> Rows:
    counts = manifest.inputs
    skipped = f", {counts.skipped:,} skipped" if counts.skipped else ""
    rows = [("matched", f"{counts.matched:,} {'files' if inputs == 'images' else inputs}{skipped}")]
    if counts.duplicates:
        rows.append(("duplicates", f"{counts.duplicates:,}"))
    rejected = f"{counts.rejected:,}"
    if counts.rejected:
        reasons = (f"{name} {count:,}" for name, count in counts.rejected_by_reason.items())
        folder = manifest.folder(output) if scheme_of(output) else join(output, CURRENT)
        rejected += f" ({', '.join(reasons)}), see {folder}/{REJECTS}"
    rows += [("written", plural(manifest.written, "example")), ("rejected", rejected)]
    for name, split in manifest.splits.items():
        shards, size = plural(len(split.shards), "shard"), human_bytes(split.num_bytes)
        rows.append((name, f"{plural(split.num_examples, 'example')}, {shards}, {size}"))
    rows += _labels(manifest)
    reused = f", {outcome.parts_reused:,} reused" if outcome.parts_reused else ""
    rows.append(("parts", f"{outcome.parts_made:,} made{reused}"))
    rows += [("changes", line) for line in outcome.changes]
    if "kept" in counts.counts:
        kept, converted = counts.counts["kept"], counts.counts["converted"]
        rows.append(("kept", f"{plural(kept, 'file')} as they are, {converted:,} converted"))
    if manifest.build.versions.get("resizer"):
        rows.append(("resizer", "pillow"))
    if outcome.reused or (outcome.changes and manifest.catalogs):
        decoded = manifest.written - outcome.reused
        others = f", {decoded:,} decoded" if decoded else ""
        rows.append(("reused", f"{plural(outcome.reused, 'record')} of unchanged inputs{others}"))
    speed = manifest.written / max(seconds, 1e-9)
    rows.append(("time", f"{seconds:,.1f} s, {speed:,.0f} {inputs}/s"))
    return rows + [("warning", warning) for warning in manifest.warnings]


def _labels(manifest: Manifest) -> Rows:
    counts = Counter[str]()
    for split in manifest.splits.values():
        counts.update(split.label_counts)
    return _list_labels([f"{label} {count:,}" for label, count in counts.most_common()])


def _list_labels(labels: Sequence[str]) -> Rows:
    more = [f"and {len(labels) - _MAX_LABELS:,} more"] if len(labels) > _MAX_LABELS else []
    listed = ", ".join([*labels[:_MAX_LABELS], *more])
    if labels:
        return [("labels", f"{len(labels):,}: {listed}")]
    return []


def _missing(manifest: Manifest) -> Counter[str]:
    """Return the number of missing values of each feature."""
    missing = Counter[str]()
    for split in manifest.splits.values():
        features = split.statistics.features if split.statistics else {}
        missing.update({name: feature.missing for name, feature in features.items()})
    return missing


def _columns(columns: Mapping[str, str], missing: Counter[str]) -> Rows:
    texts = []
    for name, text in columns.items():
        lacking = f"; {missing[name]:,} missing" if missing[name] else ""
        texts.append(f"{name}: {text}{lacking}")
    return first_rows("column", texts, "")


def _planned(outcome: Outcome, inputs: str) -> Rows:
    rows = []
    for split, label, refs, size, parts in outcome.series:
        name = f"{split}, {label}" if label else split
        text = plural(parts, "part")
        if inputs == "images":  # the number of rows is unknown before the build
            text = f"{plural(refs, 'image')} ({human_bytes(size)} of files) in {text}"
        rows.append((name, text))
    rows += _list_labels(outcome.labels)
    rows += [("changes", line) for line in outcome.changes]
    return rows + [("warning", warning) for warning in outcome.message.splitlines()]


def first_rows(name: str, texts: Sequence[str], where: str = ", see the manifest") -> Rows:
    """Return a row for each of the first texts, and how many more there are."""
    rows = [(name, text) for text in texts[:_MAX_LISTED]]
    if len(texts) > _MAX_LISTED:
        rows.append((name, f"and {len(texts) - _MAX_LISTED:,} more{where}"))
    return rows


def _next_command(manifest: Manifest, path: str) -> Iterator[Text]:
    full = next((name for name, split in manifest.splits.items() if split.num_examples), "train")
    yield whole_line("Next:", "bold")
    yield whole_line(f"  shardmill steps {path} --split={full} --batch_size=32")

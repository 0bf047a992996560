"""``shardmill diff``: imports neither Apache Beam nor TensorFlow.

``--json`` prints one object: ``status`` (``same`` or ``different``), ``before`` and ``after`` (the
paths); ``records`` (null if none were compared; ``not_compared`` says why), which has ``added``,
``removed``, ``renamed`` (pairs of an added and a removed record of the same content), ``changed``
({``all``, ``image``: bytes of the record's image, ``input``: bytes of the file, ``values``:
boxes, mask and columns of a listing, ``label``, ``split``}; of rows ``content`` instead of the
first three), ``same``, ``repeated_keys`` (records that
were not compared) and ``examples`` of each kind, with ``key``, ``label``, ``split``, ``shard`` and
``record``; ``shards`` (``before``, ``after``, ``equal``); and lists of all that differs in
``splits``, ``labels`` (number by split), ``statistics``, ``features``, ``options``, ``codecs`` and
``inputs``: ``path`` (names), ``before`` and ``after`` (null for none).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(kw_only=True)
class DiffOptions:
    """Options of ``shardmill diff``.

    Attributes:
        before: ``A``: a dataset, the folder of a version, or a manifest
        after: ``B``: another one (default: ``A``, compared with the version before)
        examples: ``N``: number of examples of each kind of change
    """

    usage = "A [B] [FLAGS]"
    summary = """\
Compare two versions of a dataset: records added, removed and changed, and
changes of labels, statistics, options and codecs. Of images only the catalogs
are read; of rows with --key, the records."""
    example = """\
examples:
  shardmill diff ds
  shardmill diff ds_old ds
  shardmill diff ds/gen-20261122T101500Z-0123456789ab gs://my-sets/ds --json

Exit codes: 0 compared, 1 something could not be read, 2 usage error."""
    before: str
    after: str = ""
    examples: of.Int = of.whole(10)


def run(flags: DiffOptions, answer: Answer) -> int:
    """Print how two versions differ; return the exit code."""
    from shardmill.pipelines.report.compare import (  # imports NumPy
        compare_datasets,
        find_version_before,
    )

    before, after = flags.before, flags.after
    if not after:
        before, after = find_version_before(before), before
    difference = compare_datasets(before, after, flags.examples)
    answer.give(difference)
    answer.show(lambda _: render(difference))
    return 0


def render(difference: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the counts, then the examples."""
    from shardmill.pipelines.report.compare import summary_rows
    from shardmill.pipelines.report.layout import fields, whole_line
    from shardmill.pipelines.report.summary import first_rows

    before, after = difference["before"], difference["after"]
    yield whole_line(f"{before} -> {after}: {difference['status']}", "bold")
    texts: dict[str, list[str]] = {}
    for name, text in summary_rows(difference):
        texts.setdefault(name, []).append(text)
    for kind, examples in (difference["records"] or {"examples": {}})["examples"].items():
        texts[kind] = [_example(example) for example in examples]
    more = ", see --json"
    yield from fields([row for name, all_ in texts.items() for row in first_rows(name, all_, more)])


def _example(example: Mapping[str, Any]) -> str:
    if "key" in example:
        label = f", {example['label']}" if example["label"] else ""
        return f"{example['key']}  {example['split']}{label}"
    before, after = example["before"], example["after"]
    if "what" not in example:
        return f"{before['key']} -> {after['key']}"
    pairs = (
        f"{name} {before[name]} -> {after[name]}" if name in after else name
        for name in example["what"]
    )
    return f"{after['key']}  {', '.join(pairs)}"

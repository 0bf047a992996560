"""``shardmill show``: what is in a dataset or a file. Imports no Beam and no TensorFlow.

``--json`` prints one object. Its ``kind`` is ``dataset`` or ``file``.

A dataset has ``path``, ``manifest`` (its path), ``version`` (of the format of the manifest),
``generation`` (name of the version, which is the folder of its files; null if they are next to the
manifest), ``previous`` (earlier versions that are kept), ``root`` (the folder
whose files ``shardmill count`` counted; null for a dataset that Shardmill built), ``finished``,
``runner``, ``compression``, ``num_examples``, ``num_bytes``, ``num_shards``; ``splits`` ({name:
``num_examples``, ``num_bytes``, ``share`` of all examples, ``statistics`` as in the manifest or
null, ``shards``}); ``split`` (whose statistics and records are shown; may be empty); ``labels``
(``class_id`` or null, ``label``, ``total``, ``splits``: counts, in the order of class ids);
``features``, ``found`` (with ``--key``: ``shard``, ``record`` and the columns of the catalog; else
null), ``inputs`` and ``warnings`` as in the manifest; ``rejects`` (the first lines of
rejects.jsonl) and ``damaged`` (damaged files that a count found).

A file has ``path``, ``bytes`` and ``compression``.

All have ``records``, null if none were requested or there are none: ``split`` or null, ``file``
(where the first record is), ``first`` (see ``pipelines.report.show_data.describe_record``) and
``damage`` and ``too_large`` (why there are no more, or an empty text).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of


@dataclass(kw_only=True)
class ShowOptions:
    """Options of ``shardmill show``.

    Attributes:
        path: ``PATH``: a dataset, its manifest, or any TFRecord file
        records: ``N``: number of records to show
        split: ``SPLIT``: split whose records are shown
        key: ``KEY``: show the record of one input, such as roses/12.jpg (images only)
    """

    usage = "PATH [FLAGS]"
    summary = "Show what is in a dataset or a TFRecord file."
    example = """\
examples:
  shardmill show ds
  shardmill show ds --key=roses/12.jpg
  shardmill show ds/train-00000-of-00008.tfrecord.gz --records=10"""
    path: str
    records: of.Int = of.whole(3)
    split: of.Text = of.text()
    key: of.Text = of.text()


def run(flags: ShowOptions, answer: Answer) -> int:
    """Print what is at the path; return the exit code."""
    from shardmill.pipelines.report.show_data import describe

    report = describe(**vars(flags))
    answer.give(report)
    if not answer.json:
        from shardmill.pipelines.report.layout import print_to_stdout
        from shardmill.pipelines.report.show_text import render

        print_to_stdout(lambda layout: render(report, layout))
    return 0

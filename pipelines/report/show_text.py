"""The text of ``shardmill show``: lines and tables of the value that --json prints."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from shardmill.pipelines.report.layout import Layout, fields, whole_line
from shardmill.schemas.numbers import human_bytes, plural, printable, short_number

MAX_ROWS = 20
MAX_SPLIT_COLUMNS = 4
_HEX = 16
_STATISTICS = ("missing", "min", "max", "mean", "std")

Parts = Iterator[RenderableType]


def render(report: dict[str, Any], layout: Layout) -> Parts:
    """Yield the lines and tables that describe a path.

    Args:
        report: A value of ``show_data.describe``.
        layout: How to lay it out.
    """
    if report.get("found"):
        yield from _located_record(report, layout)
    elif report["kind"] == "dataset":
        yield from _dataset(report, layout)
    else:
        size = f"{human_bytes(report['bytes'])}, {_compression(report['compression'])}"
        yield from _title(report["path"], f"TFRecord file, {size}", layout)
    yield from _records(report, layout)


def _dataset(report: dict[str, Any], layout: Layout) -> Parts:
    finished = printable(str(report["finished"]).replace("T", " ")[:16])
    made = f"dataset, built {finished}" if report["root"] is None else f"counted {finished}"
    version = f", version {report['generation']}" if report["generation"] else ""
    if report.get("held"):
        version += ", held by a rollback"
    yield from _title(report["path"], f"{made}{version}", layout)
    counts = [plural(report[f"num_{noun}s"], noun) for noun in ("example", "shard")]
    size, packed = human_bytes(report["num_bytes"]), _compression(report["compression"])
    yield layout.line("  " + ", ".join([*counts, size, packed]))
    for part in (_splits, _labels, _features, _statistics, _shards, _inputs, _warnings):
        yield from part(report, layout)


def _located_record(report: dict[str, Any], layout: Layout) -> Parts:
    record = report["found"]
    yield from _title(record["key"], f"record {record['record']:,} of {record['shard']}", layout)
    names = ("source", "label", "input_bytes", "content_hash", "width", "height")
    yield from fields([(name, str(record[name])) for name in names if record[name] is not None])


def _splits(report: dict[str, Any], layout: Layout) -> Parts:
    splits = report["splits"]
    rows = []
    for name, split in splits.items():
        examples, shards = plural(split["num_examples"], "example"), len(split["shards"])
        size, share = human_bytes(split["num_bytes"]), f"{100 * split['share']:.1f} %"
        rows.append((name, examples, plural(shards, "shard"), size, share))
    yield from _heading("Splits", "", layout)
    yield layout.table(rows, "<>>>>", bars=[split["share"] for split in splits.values()])


def _shards(report: dict[str, Any], layout: Layout) -> Parts:
    shards = [shard for split in report["splits"].values() for shard in split["shards"]]
    rows = [(s["file"], plural(s["records"], "record"), human_bytes(s["bytes"])) for s in shards]
    yield from _list("Shards", rows, "<>>", "shard", layout)


def _labels(report: dict[str, Any], layout: Layout) -> Parts:
    labels = report["labels"]
    if not labels:
        return
    many = len(labels) > MAX_ROWS
    top = sorted(labels, key=lambda label: -label["total"])[:MAX_ROWS] if many else labels
    most = max(label["total"] for label in labels) or 1
    names = list(report["splits"]) if 1 < len(report["splits"]) <= MAX_SPLIT_COLUMNS else []
    rows = []
    for label in top:
        number = "" if label["class_id"] is None else str(label["class_id"])
        counts = (f"{label['splits'][name]:,}" for name in names)
        rows.append((label["label"], number, *counts, f"{label['total']:,}"))
    yield from _heading("Labels", f"{len(labels):,}{', the most frequent:' * many}", layout)
    yield layout.table(
        rows,
        "<" + ">" * (2 + len(names)),
        header=("", "id", *names, "all"),
        bars=[label["total"] / most for label in top],
    )
    yield from _more(len(labels) - len(top), "label", layout)


def _features(report: dict[str, Any], layout: Layout) -> Parts:
    rows = []
    for feature in report["features"]:
        name, source = str(feature.get("name", "?")), str(feature.get("source", ""))
        origin = f"from {source}" if source not in ("", name) else ""
        rows.append((name, str(feature.get("type", "?")), origin))
    yield from _list("Features", rows, "<<<", "feature", layout, 3 * MAX_ROWS)


def _statistics(report: dict[str, Any], layout: Layout) -> Parts:
    statistics = report["splits"].get(report["split"], {}).get("statistics") or {}
    pixels = statistics.get("pixels", {"mean": (), "std": ()})
    pairs = enumerate(zip(pixels["mean"], pixels["std"], strict=False))
    columns = {f"channel {number}": {"mean": mean, "std": std} for number, (mean, std) in pairs}
    columns |= statistics.get("features", {})
    keys = [key for key in _STATISTICS if any(key in column for column in columns.values())]
    rows = [(name, *(short_number(columns[name].get(key)) for key in keys)) for name in columns]
    if rows:
        yield from _heading("Statistics", f"of {report['split']}", layout)
        yield layout.table(rows[: 3 * MAX_ROWS], "<" + ">" * len(keys), header=("", *keys))


def _inputs(report: dict[str, Any], layout: Layout) -> Parts:
    inputs = report["inputs"]
    yield from _heading("Inputs", str(inputs["root"]), layout)
    parts = [f"{inputs['matched']:,} matched = {inputs['accepted']:,} accepted"]
    others = ("rejected", "skipped", "duplicates")
    parts += [f"{inputs[name]:,} {name}" for name in others if inputs[name]]
    yield layout.line("  " + " + ".join(parts))
    if inputs["multi_frame"]:
        yield layout.line(f"  {inputs['multi_frame']:,} with several frames: the first of each")
    counts = inputs["counts"]
    if "boxes" in counts:
        yield layout.line(f"  boxes: {counts['boxes']:,}")
    if "kept" in counts:
        yield layout.line(
            f"  {counts['kept']:,} kept as they are, {counts['converted']:,} converted"
        )
    if inputs["copies"]:
        more = f"{plural(inputs['copies_across_splits'], 'content')} in several splits, "
        more += f"{inputs['copies_with_other_labels']:,} with different labels, boxes or masks"
        yield layout.line(f"  {inputs['copies']:,} exact copies of others: {more}")
    if inputs["rejected"]:
        reasons = sorted(inputs["rejected_by_reason"].items(), key=lambda pair: -pair[1])
        text = printable(", ".join(f"{name} {count:,}" for name, count in reasons))
        yield layout.line(("  rejected: ", "yellow"), text)
    for reject in report["rejects"]:
        key = layout.cut(reject["key"], max(12, layout.width // 2 - 8))
        where = f" in column {reject['column']!r}" if "column" in reject else ""
        reason = printable(f"  {reject['error']}{where}: {reject['message']}")
        yield layout.line("    ", (key, "cyan"), (reason, "dim"))
    if report["rejects"]:
        yield from _more(inputs["rejected"] - len(report["rejects"]), "reject", layout, "    ")


def _warnings(report: dict[str, Any], layout: Layout) -> Parts:
    damaged = [f"{file['file']}: {file['message']}" for file in report["damaged"]]
    texts = [*report["warnings"], *damaged]
    if not texts:
        return
    yield from _heading("Warnings", "", layout)
    for text in texts[:MAX_ROWS]:
        yield _paragraph(text, "yellow")
    yield from _more(len(texts) - MAX_ROWS, "warning", layout)


def _records(report: dict[str, Any], layout: Layout) -> Parts:
    records = report["records"]
    if records is None:
        return
    where = f"of {records['split']}" if records["split"] else "of the file"
    first = records["first"]
    head = "the first" if first else "none"
    if len(first) > 1:
        head += f" {len(first):,}"
    yield from _heading("Records", f"{head} {where}", layout)
    for number, record in enumerate(first):
        if number:
            yield layout.line("")
        yield from _record(number, record, layout)
    if records["damage"]:
        yield _paragraph(f"Damaged: {records['damage']}", "red")
    if records.get("too_large"):
        yield _paragraph(f"Not shown: {records['too_large']}", "yellow")


def _record(number: int, record: dict[str, Any], layout: Layout) -> Parts:
    head = f"  #{number}  {human_bytes(record['bytes'])}"
    if not record["example"]:
        yield layout.line((head, "bold"), (", not a tf.train.Example", "yellow"))
        yield layout.line("    " + _value(record, layout.width - 4, layout))
        return
    yield layout.line((head, "bold"))
    features = record["features"]
    longest = max((cell_len(printable(name)) for name in features), default=0)
    width = min(longest, max(16, layout.width // 2 - 10))
    for name, feature in features.items():
        cut_name = layout.cut(name, width)
        values = _values(feature, layout.width - 6 - width, layout)
        style = "" if feature["count"] else "dim"
        padding = " " * (width - cell_len(cut_name) + 2)
        yield layout.line("    ", (cut_name, "cyan"), (padding + values, style))
    yield from _more(record.get("more_features", 0), "feature", layout, "    ")


def _values(feature: dict[str, Any], width: int, layout: Layout) -> str:
    """Return as many values of a feature as fit, and how many there are."""
    count = feature["count"]
    if not count:
        if feature["kind"] == "empty":
            return "(missing)"
        return f"(no {feature['kind']} values)"
    if count == 1:
        return _value(feature["values"][0], width, layout)
    tail = f" ({plural(count, 'value')})"
    room = width - len(tail) - 5
    parts: list[str] = []
    for value in feature["values"]:
        text = _value(value, max(16, room // 2), layout)
        if parts and cell_len(", ".join((*parts, text))) > room:
            break
        parts.append(text)
    dots = ", ..." if len(parts) < count else ""
    return ", ".join(parts) + dots + (tail if dots or count > MAX_ROWS else "")


def _value(value: Any, width: int, layout: Layout) -> str:
    """Return a number; bytes in one line: a description of an image, a text, or hex digits."""
    if not isinstance(value, dict):
        return str(value)
    size = human_bytes(value["bytes"])
    if "image" in value:
        image = value["image"]
        if "error" in image:
            return layout.cut(f"{image['format']} that has {image['error']}, {size}", width)
        pixels = f"{image['width']}x{image['height']}"
        return layout.cut(f"{image['format']} {pixels} {image['mode']}, {size}", width)
    if "text" in value:
        text = printable(value["text"].replace("\\", "\\\\").replace('"', '\\"'))
        if len(value["text"].encode()) == value["bytes"] and cell_len(text) + 2 <= width:
            return f'"{text}"'
        tail = f" ({value['bytes']:,} bytes)"
        return f'"{layout.cut(text, max(8, width - 2 - len(tail)))}"{tail}'
    dots = " ..." if value["bytes"] > _HEX else ""
    begin = base64.b64decode(value["base64"])[:_HEX]
    return layout.cut(f"{size}: {begin.hex(' ')}{dots}", width)


def _title(path: str, what: str, layout: Layout) -> Parts:
    text = printable(path)
    if cell_len(text) + cell_len(what) + 2 <= layout.width:
        yield layout.line((text, "bold"), f"  {what}")
    else:
        yield whole_line(path, "bold")
        yield layout.line(f"  {what}")


def _heading(name: str, rest: str, layout: Layout) -> Parts:
    yield layout.line("")
    yield layout.line((name, "bold"), (printable(f"  {rest}" if rest else ""), "dim"))


def _list(
    name: str,
    rows: Sequence[Sequence[str]],
    align: str,
    what: str,
    layout: Layout,
    most: int = MAX_ROWS,
) -> Parts:
    """Yield a heading, the first rows of a table, and how many more there are; or nothing."""
    if rows:
        yield from _heading(name, "", layout)
        yield layout.table(rows[:most], align)
        yield from _more(len(rows) - most, what, layout)


def _more(count: int, what: str, layout: Layout, indent: str = "  ") -> Parts:
    if count > 0:
        yield layout.line((f"{indent}{layout.ellipsis} and {plural(count, f'more {what}')}", "dim"))


def _paragraph(text: str, colour: str) -> RenderableType:
    return Padding(Text(printable(text), colour), (0, 0, 0, 2))


def _compression(name: str) -> str:
    if name == "none":
        return "uncompressed"
    return printable(str(name))

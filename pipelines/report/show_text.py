"""What ``shardmill show`` prints: lines of (text, style), from the value that --json prints."""

from __future__ import annotations

import base64
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardmill.pipelines.report.numbers import human_bytes
from shardmill.pipelines.report.terminal import (
    Line,
    Row,
    Style,
    bar,
    cells,
    clean,
    cut,
    fitted,
    plain,
    table,
)

MAX_ROWS = 20
MAX_SPLIT_COLUMNS = 4
_HEX = 16


def render(found: dict[str, Any], style: Style) -> Iterator[Line]:
    """Yields the lines that show what was found."""
    title, *body = _body(found, style)
    yield title  # whole, whatever its length
    for line in [*body, *_records(found, style)]:
        yield fitted(line, style)
    if found["kind"] == "folder":
        yield []
        command = f"shardmill count --input={shlex.quote(found['path'])}"
        yield [(f"{clean(command)} counts them all.", "dim")]


def _body(found: dict[str, Any], style: Style) -> Iterator[Line]:
    if found["kind"] == "dataset":
        yield from _dataset(found, style)
    elif found["kind"] == "folder":
        yield from _folder(found, style)
    else:
        size = f"{human_bytes(found['bytes'])}, {_packed(found['compression'])}"
        yield from _title(found["path"], f"TFRecord file, {size}", style)


def _dataset(found: dict[str, Any], style: Style) -> Iterator[Line]:
    finished = str(found["finished"]).replace("T", " ")[:16]
    made = f"dataset, built {finished}" if found["root"] is None else f"counted {finished}"
    yield from _title(found["path"], f"{clean(made)}, manifest version {found['version']}", style)
    numbers = [
        _plural(found["num_examples"], "example"),
        _plural(found["num_shards"], "shard"),
        human_bytes(found["num_bytes"]),
        _packed(found["compression"]),
    ]
    yield [("  " + ", ".join(numbers), "")]
    for part in (_splits, _labels, _features, _shards, _inputs, _warnings):
        yield from part(found, style)


def _splits(found: dict[str, Any], style: Style) -> Iterator[Line]:
    yield from _heading("Splits")
    rows, bars = [], []
    for name, split in found["splits"].items():
        examples = _plural(split["num_examples"], "example")
        shards = _plural(len(split["shards"]), "shard")
        share = f"{100 * split['share']:.1f} %"
        rows.append((name, examples, shards, human_bytes(split["num_bytes"]), share))
        bars.append([(bar(split["share"], style), "green")])
    yield from table(rows, style, align="<>>>>", tail=bars)


def _shards(found: dict[str, Any], style: Style) -> Iterator[Line]:
    shards = [shard for split in found["splits"].values() for shard in split["shards"]]
    if not shards:
        return
    yield from _heading("Shards")
    rows = [
        (s["file"], _plural(s["records"], "record"), human_bytes(s["bytes"]))
        for s in shards[:MAX_ROWS]
    ]
    yield from table(rows, style, align="<>>")
    yield from _more(len(shards) - len(rows), "shard", style)


def _labels(found: dict[str, Any], style: Style) -> Iterator[Line]:
    labels = found["labels"]
    if not labels:
        return
    many = len(labels) > MAX_ROWS
    shown = sorted(labels, key=lambda label: -label["total"])[:MAX_ROWS] if many else labels
    yield from _heading("Labels", f"{len(labels):,}" + (", the most frequent:" if many else ""))
    most = max(label["total"] for label in labels) or 1
    names = list(found["splits"]) if 1 < len(found["splits"]) <= MAX_SPLIT_COLUMNS else []
    rows: list[Row] = [("", "id", *names, "all")]
    bars: list[Line] = [[]]
    for label in shown:
        number = "" if label["class_id"] is None else str(label["class_id"])
        counts = [f"{label['splits'][name]:,}" for name in names]
        rows.append((label["label"], number, *counts, f"{label['total']:,}"))
        bars.append([(bar(label["total"] / most, style), "green")])
    head, *lines = table(rows, style, align="<" + ">" * (2 + len(names)), tail=bars)
    yield [(plain(head), "dim")]
    yield from lines
    yield from _more(len(labels) - len(shown), "label", style)


def _features(found: dict[str, Any], style: Style) -> Iterator[Line]:
    if not found["features"]:
        return
    yield from _heading("Features")
    rows = []
    for feature in found["features"]:
        name, source = str(feature.get("name", "?")), str(feature.get("source", ""))
        rows.append(
            (
                name,
                str(feature.get("type", "?")),
                f"from {source}" if source not in ("", name) else "",
            )
        )
    yield from table(rows[: 3 * MAX_ROWS], style, align="<<<")
    yield from _more(len(rows) - 3 * MAX_ROWS, "feature", style)


def _inputs(found: dict[str, Any], style: Style) -> Iterator[Line]:
    inputs = found["inputs"]
    yield from _heading("Inputs", cut(str(inputs["root"]), style.width - 10, style))
    parts = [f"{inputs['matched']:,} matched = {inputs['accepted']:,} accepted"]
    others = ("rejected", "skipped", "duplicates")
    parts += [f"{inputs[name]:,} {name}" for name in others if inputs[name]]
    yield [("  " + " + ".join(parts), "")]
    if inputs["multi_frame"]:
        yield [(f"  {inputs['multi_frame']:,} with several frames: the first of each", "")]
    if inputs["rejected"]:
        reasons = sorted(inputs["rejected_by_reason"].items(), key=lambda pair: -pair[1])
        text = ", ".join(f"{name} {count:,}" for name, count in reasons)
        yield [("  rejected: ", "yellow"), (cut(text, style.width - 12, style), "")]
    for reject in found["rejects"]:
        key = cut(reject["key"], max(12, style.width // 2 - 8), style)
        left = style.width - 8 - cells(key)
        why = cut(f"{reject['error']}: {reject['message']}", left, style)
        yield [("    ", ""), (key, "cyan"), (f"  {why}", "dim")]
    if found["rejects"]:
        yield from _more(inputs["rejected"] - len(found["rejects"]), "reject", style, "    ")


def _warnings(found: dict[str, Any], style: Style) -> Iterator[Line]:
    damaged = [f"{one['file']}: {one['message']}" for one in found["damaged"]]
    texts = [*found["warnings"], *damaged]
    if not texts:
        return
    yield from _heading("Warnings")
    for text in texts[:MAX_ROWS]:
        yield from _wrapped(clean(text), style, "yellow")
    yield from _more(len(texts) - MAX_ROWS, "warning", style)


def _folder(found: dict[str, Any], style: Style) -> Iterator[Line]:
    files = found["files"]
    count = _plural(len(files) + found["more_files"], "file")
    yield from _title(found["path"], f"folder of {count}, no manifest", style)
    yield from _heading("TFRecord files")
    rows = [(f["file"], human_bytes(f["bytes"]), _packed(f["compression"])) for f in files]
    yield from table(rows, style, align="<><")
    yield from _more(found["more_files"], "file", style)


def _records(found: dict[str, Any], style: Style) -> Iterator[Line]:
    records = found["records"]
    if records is None:
        return
    where = f"of {clean(records['split'])}" if records["split"] else "of the file"
    if found["kind"] == "folder":
        where = f"of {found['files'][0]['file']}"
    first = records["first"]
    head = "the first" + (f" {len(first):,}" if len(first) > 1 else "") if first else "none"
    yield from _heading("Records", cut(f"{head} {where}", style.width - 10, style))
    for number, record in enumerate(first):
        if number:
            yield []
        yield from _record(number, record, style)
    if records["damage"]:
        yield from _wrapped(f"Damaged: {clean(records['damage'])}", style, "red")


def _record(number: int, record: dict[str, Any], style: Style) -> Iterator[Line]:
    head = f"  #{number}  {human_bytes(record['bytes'])}"
    if not record["example"]:
        yield [(head, "bold"), (", no tf.train.Example", "yellow")]
        text = _bytes_text(record, style.width - 4, style, dump=True)
        yield from ([("    " + line, "")] for line in text.split("\n"))
        return
    yield [(head, "bold")]
    features = record["features"]
    longest = max((cells(clean(name)) for name in features), default=0)
    width = min(longest, max(16, style.width // 2 - 10))
    for name, feature in features.items():
        shown = cut(name, width, style)
        pad = " " * (width - cells(shown) + 2)
        text = _values(feature, style.width - 6 - width, style)
        yield [("    ", ""), (shown, "cyan"), (pad + text, "" if feature["count"] else "dim")]
    yield from _more(record.get("more_features", 0), "feature", style, "    ")


def _values(feature: dict[str, Any], width: int, style: Style) -> str:
    """Returns as many values of a feature as fit, and how many there are."""
    count = feature["count"]
    if not count:
        return "(missing)" if feature["kind"] == "empty" else f"(no {feature['kind']} values)"
    show: Callable[[Any, int], str] = lambda value, room: (  # noqa: E731
        _bytes_text(value, room, style) if isinstance(value, dict) else str(value)
    )
    if count == 1:
        return show(feature["values"][0], width)
    tail = f" ({count:,} values)"
    room = width - len(tail) - 5
    parts: list[str] = []
    for value in feature["values"]:
        text = show(value, max(16, room // 2))
        if parts and sum(map(cells, parts)) + 2 * len(parts) + cells(text) > room:
            break
        parts.append(text)
    dots = ", ..." if len(parts) < count else ""
    return ", ".join(parts) + dots + (tail if dots or count > MAX_ROWS else "")


def _bytes_text(value: dict[str, Any], width: int, style: Style, *, dump: bool = False) -> str:
    """Returns a bytes value in one line, or, as a dump, also its beginning in hex."""
    size = human_bytes(value["bytes"])
    if "image" in value:
        image = value["image"]
        if "error" in image:
            return cut(f"{image['format']} that has {image['error']}, {size}", width, style)
        pixels = f"{image['width']}x{image['height']}"
        return cut(f"{image['format']} {pixels} {image['mode']}, {size}", width, style)
    if "text" in value:
        text = clean(value["text"].replace("\\", "\\\\").replace('"', '\\"'))
        whole = len(value["text"].encode()) == value["bytes"]
        if whole and cells(text) + 2 <= width:
            return f'"{text}"'
        tail = f" ({value['bytes']:,} bytes)"
        return f'"{cut(text, max(8, width - 2 - len(tail)), style)}"{tail}'
    begin = base64.b64decode(value["base64"])
    rows = [begin[i : i + _HEX] for i in range(0, len(begin), _HEX)] if dump else [begin[:_HEX]]
    if not dump:
        dots = " ..." if value["bytes"] > _HEX else ""
        return cut(f"{size}: {rows[0].hex(' ')}{dots}", width, style)
    lines = [
        f"{row.hex(' '):<{3 * _HEX}} {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for row in rows
    ]
    if value["bytes"] > len(begin):
        lines.append(f"... ({value['bytes']:,} bytes)")
    return "\n".join(cut(line, width, style) for line in lines)


def _title(path: str, what: str, style: Style) -> Iterator[Line]:
    shown = clean(path)  # whole, to be copied
    if cells(shown) + cells(what) + 2 <= style.width:
        yield [(shown, "bold"), (f"  {what}", "")]
    else:
        yield [(shown, "bold")]
        yield [(f"  {what}", "")]


def _heading(name: str, rest: str = "") -> Iterable[Line]:
    return [[], [(name, "bold"), (f"  {rest}" if rest else "", "dim")]]


def _more(count: int, what: str, style: Style, indent: str = "  ") -> Iterator[Line]:
    if count > 0:
        dots = "…" if style.blocks else "..."
        yield [(f"{indent}{dots} and {count:,} more {what}{'' if count == 1 else 's'}", "dim")]


def _wrapped(text: str, style: Style, colour: str) -> Iterator[Line]:
    for line in textwrap.wrap(text, max(20, style.width - 2)):
        yield [("  ", ""), (line, colour)]


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _packed(compression: str) -> str:
    return "uncompressed" if compression == "none" else clean(str(compression))

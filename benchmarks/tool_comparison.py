"""Compare other tools on the same files; writes docs/comparison.md.

usage: python benchmarks/tool_comparison.py WORK [--only TOOL ...] [--ask QUESTION ...]

Each tool runs in a separate environment below WORK (environments.py), as its documentation
describes (tool_runners.py, image_peers.py). The outputs are evaluated the same way:
all TFRecord files are read, and the image of each record is compared with that of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from environments import environment
from photos import photo
from PIL import Image
from tool_comparison_page import page

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.tfrecord.reader import open_records

HERE = Path(__file__).resolve().parent
SIZE = 64
GOOD, MANY = 40, 3000


TOOLS = {
    "shardmill": "Shardmill",
    "tutorial": "the tutorials' loop, TensorFlow 2.21",
    "tfds": "TFDS 4.9.10",
    "img2dataset": "img2dataset 1.47",
}


def make_photo(seed: int) -> Image.Image:
    """Returns a photo that depends on the seed."""
    return photo(seed, 96, 72)


def write_good(folder: Path, count: int = GOOD) -> dict[str, Image.Image]:
    """Writes undamaged photos in two class folders; returns the expected images by file name."""
    expected = {}
    for seed in range(count):
        path = folder / f"class_{seed % 2}" / f"good_{seed:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_photo(seed).save(path, quality=95)
        expected[path.name] = make_photo(seed)
    return expected


def write_broken(folder: Path) -> list[str]:
    """Writes three damaged files; returns their names."""
    buffer = io.BytesIO()
    make_photo(900).save(buffer, "JPEG", quality=95)
    contents = {
        "truncated.jpg": buffer.getvalue()[:900],
        "web_page.jpg": b"<html>not found</html>",
        "empty_file.jpg": b"",
    }
    for name, data in contents.items():
        (folder / "class_0" / name).write_bytes(data)
    return list(contents)


def write_odd(folder: Path) -> dict[str, Image.Image]:
    """Writes valid files of less common kinds; returns the expected RGB images by file name."""
    (folder / "class_0").mkdir(parents=True)
    expected = {}

    def put(name: str, made: Image.Image, right: Image.Image, **options: object) -> None:
        made.save(folder / "class_0" / name, **options)
        expected[name] = right.convert("RGB")

    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: rotate by 90 degrees clockwise
    right = make_photo(100)
    put(
        "turned.jpg",
        right.transpose(Image.Transpose.ROTATE_90),
        right,
        exif=turned,
        quality=95,
    )
    right = make_photo(101)
    put("cmyk.jpg", right.convert("CMYK"), right, quality=95)
    grey = make_photo(102).convert("L")
    put("grey_16_bit.png", Image.fromarray(np.asarray(grey, np.uint16) * 257), grey)
    palette = make_photo(103).quantize(256)
    put("palette.png", palette, palette)
    right = make_photo(104)
    put("alpha.png", right.convert("RGBA"), right)
    grey = make_photo(105).convert("L")
    put("grey_alpha.png", grey.convert("LA"), grey)
    right = make_photo(106)
    put("a_png.jpg", right, right, format="PNG")
    right = make_photo(107)
    put("photo.webp", right, right, quality=95)
    return expected


# -- running --


def command(tool: str, work: Path, source: Path, target: Path) -> list[str]:
    """Returns the command of a tool."""
    python = environment(tool, work)
    if tool == "shardmill":
        return [
            python,
            "-m",
            "shardmill.pipelines.cli",
            "images",
            f"--input={source}",
            f"--output={target}",
            f"--image_size={SIZE}",
            "--splits=train:1",
            "--max_reject_fraction=0.5",
            "--encoding=png",
        ]
    if tool == "tutorial":
        return [python, str(HERE / "image_peers.py"), tool, str(source), str(target), str(SIZE)]
    return [python, str(HERE / "tool_runners.py"), tool, str(source), str(target), "0"]


@dataclass(frozen=True)
class Run:
    """Exit code, duration in seconds and output of a run."""

    code: int
    seconds: float
    output: str


def run(tool: str, work: Path, source: Path, target: Path, kill_after: float = 0) -> Run:
    """Runs a tool; kills its process group after ``kill_after`` seconds, unless that is 0."""
    target.parent.mkdir(parents=True, exist_ok=True)
    words = command(tool, work, source, target)
    started = time.monotonic()
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "WANDB_MODE": "disabled"},
    )
    try:
        output, _ = process.communicate(timeout=kill_after or 1800)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return Run(process.returncode, time.monotonic() - started, output)


# -- evaluation --


def record_files(folder: Path) -> list[Path]:
    """Returns the TFRecord files below a folder, except those of unfinished builds."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and (".tfrecord" in path.name or path.name.endswith("train.gz"))
        and not any(part.startswith(".") or "incomplete" in part for part in path.parts)
    ]


def records(folder: Path) -> Iterator[dict[str, object]]:
    """Yields the features of every record below a folder."""
    for path in record_files(folder):
        with open_records(str(path)) as reader:
            for payload in reader:
                yield {name: f.values for name, f in parse_example(bytes(payload)).items()}


def image_of(features: dict[str, object]) -> Image.Image | None:
    """Returns the decoded image of a record, or None if it cannot be decoded."""
    for name in ("image", "jpg", "image/encoded", "image_raw"):
        if name not in features:
            continue
        (data,) = features[name]  # type: ignore[misc]
        return decode_as_tensorflow(bytes(data))
    return None


def decode_as_tensorflow(data: bytes) -> Image.Image | None:
    """Returns an encoded image as TensorFlow decodes it, or None if TensorFlow cannot."""
    import tensorflow as tf

    try:
        pixels = tf.io.decode_image(data, channels=3, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError:
        return None
    return Image.fromarray(pixels)


def psnr(one: Image.Image, other: Image.Image) -> float:
    """Returns the PSNR of two images in dB, both scaled to the same size."""
    small = [np.asarray(i.convert("RGB").resize((SIZE, SIZE)), float) for i in (one, other)]
    error = float(((small[0] - small[1]) ** 2).mean())
    return 99.0 if error < 1e-6 else 10 * np.log10(255**2 / error)


def correct_files(folder: Path, expected: dict[str, Image.Image]) -> set[str]:
    """Returns the names of files whose expected image matches a record with 27 dB or more."""
    images = [image for image in map(image_of, records(folder)) if image is not None]
    return {name for name, image in expected.items() if any(psnr(i, image) >= 27 for i in images)}


def reports(run_: Run, folder: Path, wanted: str) -> bool:
    """Returns whether a text is in the output of a tool, or in a text file or table it wrote."""
    if wanted in run_.output:
        return True
    tables = (str(pq.read_table(path).to_pylist()) for path in folder.rglob("*.parquet"))
    texts = (p for p in folder.rglob("*") if p.suffix in (".json", ".jsonl", ".txt", ".csv"))
    return any(
        wanted in text for text in (*tables, *(p.read_text(errors="replace") for p in texts))
    )


def records_count(folder: Path, count: int) -> bool:
    """Returns whether a JSON file that a tool wrote contains the number of records."""

    def numbers(value: object) -> Iterator[int]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                yield from numbers(each)
            if value and all(isinstance(v, str) and v.isdigit() for v in value):
                yield sum(map(int, value))  # TFDS: lengths of shards, as strings
        elif isinstance(value, int | float):
            yield int(value)

    return any(count in numbers(json.loads(path.read_text())) for path in folder.rglob("*.json"))


def digest(folder: Path) -> str:
    """Returns one hash of all record files."""
    hashes = hashlib.sha256()
    for path in record_files(folder):
        hashes.update(path.read_bytes())
    return hashes.hexdigest()


# -- questions --


def ask_broken(tool: str, work: Path) -> dict[str, object]:
    """Measures what happens to 40 good photos in a folder with three damaged files."""
    source = fresh(work / tool / "broken" / "in")
    expected = write_good(source)
    broken = write_broken(source)
    target = fresh(work / tool / "broken" / "out")
    done = run(tool, work, source, target)
    found = list(records(target)) if target.exists() else []
    unreadable = sum(image_of(features) is None for features in found)
    return {
        "exit": done.code,
        "good": len(correct_files(target, expected)) if found else 0,
        "unreadable": unreadable,
        "named": sum(reports(done, target, name) for name in broken),
        "last": done.output.strip().splitlines()[-1:],
    }


def ask_odd(tool: str, work: Path) -> dict[str, object]:
    """Counts the unusual but valid files with a correct record: all at once, else each alone."""
    folder = work / tool / "odd"
    expected = write_odd(fresh(folder / "all" / "in"))
    source = folder / "all" / "in"
    done = run(tool, work, source, fresh(folder / "all" / "out"))
    if not done.code:
        right = correct_files(folder / "all" / "out", expected)
        kept = sum(image_of(features) is not None for features in records(folder / "all" / "out"))
        return {
            "of": len(expected),
            "right": len(right),
            "lost": len(expected) - kept,
            "not_right": sorted(expected.keys() - right),
        }
    right, lost = set(), set()
    for name in expected:
        alone = fresh(folder / name / "in")
        (alone / "class_0").mkdir(parents=True)
        shutil.copy(source / "class_0" / name, alone / "class_0" / name)
        target = fresh(folder / name / "out")
        if run(tool, work, alone, target).code:
            lost.add(name)
        else:
            right |= correct_files(target, {name: expected[name]})
    return {
        "of": len(expected),
        "right": len(right),
        "lost": len(lost),
        "not_right": sorted(expected.keys() - right),
    }


def ask_again(tool: str, work: Path) -> dict[str, object]:
    """Checks whether two runs give the same bytes, and whether a file has the record count."""
    source = fresh(work / tool / "again" / "in")
    write_good(source)
    digests = []
    for turn in ("one", "two"):
        target = fresh(work / tool / "again" / turn)
        run(tool, work, source, target)
        digests.append(digest(target))
    return {"same": digests[0] == digests[1], "counted": records_count(target, GOOD)}


def ask_killed(tool: str, work: Path) -> dict[str, object]:
    """Measures a second run after the first was killed at two thirds of its time."""
    source = work / tool / "killed" / "in"
    make = [sys.executable, str(HERE / "photos.py"), str(source), str(MANY)]
    subprocess.run([*make, "500x375"], check=True)
    whole = run(tool, work, source, fresh(work / tool / "killed" / "whole"))
    target = fresh(work / tool / "killed" / "out")
    run(tool, work, source, target, kill_after=whole.seconds * 2 / 3)
    visible = sum(1 for _ in readable(target))
    again = run(tool, work, source, target)
    return {
        "of": MANY,
        "whole_seconds": round(whole.seconds, 1),
        "again_seconds": round(again.seconds, 1),
        "again_exit": again.code,
        "records_seen_after_the_kill": visible,
        "records": sum(1 for _ in records(target)) if not again.code else None,
    }


def readable(folder: Path) -> Iterator[object]:
    """Yields the records that a training job could read now."""
    for path in record_files(folder):
        try:
            with open_records(str(path)) as reader:
                yield from reader
        except Exception:  # noqa: BLE001 - a partial file may cause any error
            continue


def fresh(folder: Path) -> Path:
    """Deletes a folder, creates its parent and returns the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


QUESTIONS = {"broken": ask_broken, "odd": ask_odd, "again": ask_again, "killed": ask_killed}


def main() -> None:
    """Answers every question for every tool; keeps the answers in WORK/answers.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--ask", nargs="+", default=list(QUESTIONS), choices=list(QUESTIONS))
    flags = parser.parse_args()
    kept = flags.work / "answers.json"
    answers = json.loads(kept.read_text()) if kept.exists() else {}
    for tool in flags.only:
        for question in flags.ask:
            answers.setdefault(tool, {})[question] = QUESTIONS[question](tool, flags.work)
            print(tool, question, answers[tool][question], flush=True)
            kept.write_text(json.dumps(answers, indent=1))
    if all(question in answers.get(tool, {}) for tool in TOOLS for question in QUESTIONS):
        (HERE.parent / "docs" / "comparison.md").write_text(page(answers, TOOLS), encoding="utf-8")


if __name__ == "__main__":
    main()

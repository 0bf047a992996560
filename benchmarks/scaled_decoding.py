"""Compare scaled and full JPEG decoding: python scaled_decoding.py FOLDER SIZE, prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from shardmill.transforms.images.convert import ImageSpec, convert_image
from shardmill.transforms.images.resize import ResizeSpec, Size

REPEATS = 5


def seconds(data: bytes, spec: ImageSpec) -> float:
    """Returns the minimum time of several encodings."""
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        convert_image(data, spec)
        taken.append(time.perf_counter() - started)
    return min(taken)


def pixels(data: bytes, rule: ResizeSpec, gap: float) -> np.ndarray:
    """Returns the resized pixels before JPEG encoding."""
    raw = convert_image(data, ImageSpec(**vars(rule), reducing_gap=gap, encoding="raw")).data
    return np.frombuffer(raw, np.uint8).astype(float)


def main(folder: Path, size: int) -> None:
    """Measures and prints the results."""
    rule = ResizeSpec(image_size=Size(size, size))
    full, scaled, noise, sizes = [], [], [], []
    for path in sorted(folder.rglob("*.jpg")):
        data = path.read_bytes()
        sizes.append(len(data) / 1e6)
        full.append(seconds(data, ImageSpec(**vars(rule), reducing_gap=0)))
        scaled.append(seconds(data, ImageSpec(**vars(rule), reducing_gap=3)))
        error = float(((pixels(data, rule, 0) - pixels(data, rule, 3)) ** 2).mean())
        noise.append(10 * np.log10(255**2 / error) if error else 99.0)
    results = {
        "full_ms": 1000 * statistics.median(full),
        "gap3_ms": 1000 * statistics.median(scaled),
        "times": statistics.median(a / b for a, b in zip(full, scaled, strict=True)),
        "psnr_median": float(statistics.median(noise)),
        "psnr_min": float(min(noise)),
        "megabytes": statistics.median(sizes),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

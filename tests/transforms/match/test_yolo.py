"""Lines of YOLO of each kind give the boxes that the test made, or are rejects that name data.yaml."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from shardmill.transforms.match.annotations.annotation_spec import (
    UNDECLARED,
    AnnotationError,
    LineFormat,
    parse_yolo,
)
from tests.conftest import examples
from tests.support.yolo_lines import detection, oriented, outline, pose

FILES = examples(75)  # of each case


def read(lines, line_format):
    text = "".join(f"0 {' '.join(f'{number:.6g}' for number in line)}\n" for line in lines)
    return parse_yolo(text.encode(), ["tiger"], line_format)


def outcomes(make, line_format, seed=0):
    """How many files were right and rejected; a wrong box fails."""
    rng = np.random.default_rng(seed)
    counts = Counter(right=0, rejected=0)
    for _ in range(FILES):
        lines, sides = zip(*(make(rng) for _ in range(rng.integers(1, 4))), strict=True)
        try:
            boxes = read(lines, line_format).boxes
        except AnnotationError as error:
            counts["rejected" if "data.yaml" in str(error) else "unexplained"] += 1
        else:
            assert np.allclose([box[1:5] for box in boxes], sides, atol=1e-4), lines
            counts["right"] += 1
    assert counts.total() == counts["right"] + counts["rejected"]
    return counts


OUTLINES = LineFormat.parse("task: segment", "data.yaml")
BOXES = LineFormat.parse("task: detect", "data.yaml")
CLEAR = {  # always right
    "box": (partial(detection, extra=""), UNDECLARED),
    "confidence": (partial(detection, extra="confidence"), UNDECLARED),
    "id": (partial(detection, extra="id"), UNDECLARED),
    "confidence and id, declared": (partial(detection, extra="confidence and id"), BOXES),
    "oriented": (oriented, UNDECLARED),
    **{
        f"pose of {count} by {dimensions} {extra}": (
            partial(pose, count=count, dimensions=dimensions, extra=extra),
            LineFormat.parse(f"kpt_shape: [{count}, {dimensions}]", "data.yaml"),
        )
        for count in (1, 2, 3, 5, 17)
        for dimensions in (2, 3)
        for extra in ("", "confidence", "id", "confidence and id")
    },
    **{
        f"outline of {count}, declared": (partial(outline, count=count), OUTLINES)
        for count in (3, 4, 5, 6, 30)
    },
}
AMBIGUOUS = {  # right or rejected
    "confidence and id": partial(detection, extra="confidence and id"),
    **{
        f"pose of {count} by {dimensions} {extra}": partial(
            pose, count=count, dimensions=dimensions, extra=extra
        )
        for count in (1, 2, 3, 4, 5, 8, 17)
        for dimensions in (2, 3)
        for extra in ("", "confidence", "confidence and id")
    },
    **{f"outline of {count}": partial(outline, count=count) for count in range(3, 9)},
}


@pytest.mark.parametrize("case", CLEAR)
def test_clear_lines_are_right(case):
    assert outcomes(*CLEAR[case])["rejected"] == 0


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_lines_without_a_declaration_are_right_or_rejected(case):
    counts = outcomes(AMBIGUOUS[case], UNDECLARED)
    if case.startswith("outline"):
        assert counts["right"] > FILES / 2


@pytest.mark.parametrize("count", [12, 20, 60, 300])
def test_outlines_of_many_points_need_no_declaration(count):
    assert outcomes(partial(outline, count=count), UNDECLARED)["right"] > 0.9 * FILES


def test_poses_without_a_declaration_fail_a_build():
    """Of 17 key points, those without visibilities could be outlines: nearly all are rejected."""
    counts = outcomes(partial(pose, count=17, dimensions=2), UNDECLARED)
    assert counts["rejected"] > 0.9 * FILES
    assert (
        outcomes(partial(pose, count=17, dimensions=3), UNDECLARED)["rejected"] == 0
    )  # as COCO has them


def test_only_yaml_files_declare_lines():
    assert LineFormat.parse("task: pose\nkpt_shape: [1, 2]\n", "names.txt") == UNDECLARED
    assert LineFormat.parse("task: other\nkpt_shape:\n", "data.yaml") == UNDECLARED

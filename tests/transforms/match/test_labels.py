"""Labels: a regular expression over the key, and presets for common layouts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import InputRef
from shardmill.schemas.errors import UsageError
from shardmill.transforms import LabelSpec
from shardmill.transforms.match.labels import (
    BELOW_SPLIT,
    parse_labels,
    sort_labels,
    warn_of_order,
    warn_of_spellings,
)


@pytest.mark.parametrize(
    ("spec", "key", "label"),
    [
        (LabelSpec(), "roses/1.jpg", "roses"),
        (LabelSpec(), "train/roses/1.jpg", "roses"),
        (LabelSpec(), "a\nb/1.jpg", None),
        (LabelSpec(), "1.jpg", None),
        (LabelSpec("filename"), "train/cat.0.jpg", "cat"),
        (LabelSpec("filename"), "cat.jpg", "cat"),
        (LabelSpec("filename"), "cat", None),
        (LabelSpec("filename", r"(?P<label>[a-z]+)_\d+\.png"), "x/dog_12.png", "dog"),
        (LabelSpec("filename", r"(?P<label>[a-z]+)_\d+\.png"), "x/dog.png", None),
        (LabelSpec("directory", r"(?P<label>[^/]+)/.*"), "a/b/c.png", "a"),
    ],
)
def test_labels_of_keys(spec: LabelSpec, key: str, label: str | None) -> None:
    ref = spec.with_label(InputRef(key, ""))
    if label is None:
        assert ref.error in ("no_label", "label_text")
    else:
        assert (ref.label, ref.error) == (label, "")


def test_class_ids_sort_by_utf8_bytes() -> None:
    labels = ["b", "\U00010000", "a", "\uffff", "B", "é"]
    assert sort_labels(labels) == ("B", "a", "b", "é", "\uffff", "\U00010000")


NUMBERS = st.one_of(
    st.integers(-200, 200).map(str),
    st.tuples(st.integers(-20, 20), st.integers(0, 99)).map(
        lambda pair: f"{pair[0]}.{pair[1]:02d}"
    ),
)


@given(st.sets(st.one_of(NUMBERS, st.text("a19_.-é", min_size=1, max_size=6))))
def test_numbers_sort_by_value(labels: set[str]) -> None:
    """Numbers come first, by their values as floats; no order of the input matters."""
    ordered = sort_labels(labels, "number")
    assert set(ordered) == labels
    assert len(ordered) == len(labels)
    assert ordered == sort_labels(sorted(labels, reverse=True), "number")
    is_number = [re.fullmatch(r"-?\d+(\.\d+)?", label) is not None for label in ordered]
    assert is_number == sorted(is_number, reverse=True)
    values = [float(label) for label in ordered if re.fullmatch(r"-?\d+(\.\d+)?", label)]
    assert values == sorted(values)


@given(st.sets(st.integers(0, 300)), st.sampled_from(["", "class_", "fold-3/", "É"]))
def test_digits_in_labels_sort_by_value(numbers: set[int], prefix: str) -> None:
    labels = {f"{prefix}{number}" for number in numbers}
    assert sort_labels(labels, "number") == tuple(f"{prefix}{each}" for each in sorted(numbers))
    warned = [*warn_of_order(labels)]
    differs = [str(each) for each in sorted(numbers)] != sorted(map(str, numbers))
    assert bool(warned) == (differs and not prefix)


def test_the_warning_names_a_class_id() -> None:
    (warning,) = warn_of_order([*map(str, range(12)), "other"])
    assert "'10' has the class id 2" in warning
    assert "--label_order=number" in warning
    assert sort_labels(["9" * 5000, "10", "2"], "number")[:2] == ("2", "10")


def test_parses_labels_files() -> None:
    assert parse_labels("cat\r\ndog\n", "f") == ("cat", "dog")
    for text, message in (("", "is empty"), ("a\n\nb\n", "empty line 2"), ("a\na\n", "'a' twice")):
        with pytest.raises(UsageError, match=message):
            parse_labels(text, "f")


def test_parses_names_of_yolo_data_sets() -> None:
    """A list, or class ids in any order; anything else is one sentence, also a bomb."""
    head = "path: ../coco8\ntrain: images/train\nnames:"
    for names in ("[cat, 'no']", "\n  1: 'no'\n  0: cat", "\n- cat\n- 'no'  # comment"):
        assert parse_labels(f"{head} {names}\n", "data.yaml") == ("cat", "no")
    wrong = (
        "[cat, no]",
        "{1: a, 2: b}",
        "",
        "cat",
        "[1]",
        "['']",
        '["a\\nb"]',
        "{a: 0}",
        "[" * 9999,
    )
    for text in (*(f"{head} {each}" for each in wrong), "", "a", "- a", "a: &x [*x]", "\0"):
        with pytest.raises(UsageError, match="no list 'names' of texts"):
            parse_labels(text, "data.YML")


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("train/cat/1.jpg", "cat"),
        ("Val/cat/more/1.jpg", "cat"),
        ("other/cat/1.jpg", "cat"),
        ("train/1.jpg", None),
        ("TEST/1.jpg", None),
        ("trains/1.jpg", "trains"),
        ("1.jpg", None),
        ("test1/1.jpg", None),
        ("train_images/cat/1.jpg", "cat"),
        ("test_cats/1.jpg", "test_cats"),
    ],
)
def test_labels_below_splits(key, label) -> None:
    assert LabelSpec(pattern=BELOW_SPLIT).with_label(InputRef(key, key)).label == label


def test_a_warning_counts_the_labels_that_are_numbers() -> None:
    numbers = [str(number) for number in range(12)]
    assert "the labels are numbers" in next(warn_of_order(numbers))
    assert "12 of 13 labels are numbers" in next(warn_of_order([*numbers, "cat"]))
    assert not [*warn_of_order([*numbers[:10], "cat"])]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["0", "1", "1.0", "2"], ["the labels '1' and '1.0' are separate classes of one number"]),
        (["01", "1", "cat"], ["the labels '01' and '1' are separate classes"]),
        (["0", "1", "nan"], ["the label 'nan' is a class, and may stand for a missing label"]),
        (["0", "1", "NA"], ["the label 'NA' is a class"]),
        (["cat", "dog", "NULL"], ["the label 'NULL' is a class"]),
        (["0", "1.0", "1", "None"], ["are separate classes of one number", "the label 'None'"]),
        (["de", "fr", "na"], []),  # countries
        (["cat", "none"], []),
        (["0", "1", "2", "10"], []),
        (["nan"], []),
        (["1", "1.5"], []),
    ],
)
def test_spellings_that_may_be_mistakes_are_warnings(labels, words) -> None:
    warnings = [*warn_of_spellings(labels)]
    assert len(warnings) == len(words)
    for warning, part in zip(warnings, words, strict=True):
        assert part in warning

"""WriteDataset of examples without a schema: their features state their types."""

import random
from typing import Any

import apache_beam as beam
import pytest

import shardmill
from shardmill.pipelines.cli import main
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema, parse_schema
from shardmill.transforms.elements import transform
from tests.support.element_tools import expected, random_elements, read, write
from tests.support.readers import current, dataset_files, tf_example

# Numbers and texts that are missing, empty or several in some of the elements.
ELEMENTS = [element | {"size": len(element["x"])} for element in random_elements(300)]
COLUMNS = [
    Column("id", "bytes"),
    Column("label", "int64", required=False),
    Column("size", "int64"),
    Column("words", "bytes", required=False, several=True),
    Column("x", "float32", required=False, several=True),
]
UNTYPED: dict[str, Any] = {"schema": ""}


def features_of(element: dict[str, Any]) -> dict[str, Any]:
    """Return the features that an element has, with its key as bytes."""
    features = {name: value for name, value in element.items() if value not in (None, [])}
    return features | {"id": element["id"].encode()}


EXAMPLES = [tf_example(features_of(element)) for element in ELEMENTS]
PAYLOADS = [encode_example(features_of(element)) for element in ELEMENTS]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The dataset of the elements with the schema written by hand."""
    folder = tmp_path_factory.mktemp("typed") / "ds"
    write(folder, ELEMENTS, schema=format_schema(COLUMNS))
    return folder


def schema_of(folder) -> list[Column]:
    text = (current(folder) / "schema.pbtxt").read_text()
    return sorted(parse_schema(text, "schema.pbtxt"), key=lambda column: column.name)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("elements", "hint"),
    [
        (EXAMPLES, None),
        (EXAMPLES, type(EXAMPLES[0])),
        (PAYLOADS, bytes),
        (PAYLOADS, Any),
        ([*EXAMPLES[:150], *PAYLOADS[150:]], None),
    ],
    ids=["Create", "Example", "bytes", "Any", "mixed"],
)
def test_bytes_are_those_with_the_schema(elements, hint, typed, tmp_path) -> None:
    steps = [] if hint is None else [beam.Map(lambda element: element).with_output_types(hint)]
    write(tmp_path / "ds", elements, None, *steps, **UNTYPED)
    assert schema_of(tmp_path / "ds") == COLUMNS
    assert dataset_files(tmp_path / "ds") == dataset_files(typed)


@pytest.mark.parametrize("run_bytes", [3_000, pytest.param(1, marks=pytest.mark.heavy)])
def test_bundles_and_order_do_not_matter(run_bytes, typed, tmp_path, monkeypatch) -> None:
    """Bundles have other features and other numbers of values than all elements."""
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    write(tmp_path / "ds", random.Random(run_bytes).sample(EXAMPLES, 300), **UNTYPED)
    assert dataset_files(tmp_path / "ds") == dataset_files(typed)


@pytest.mark.heavy
def test_the_same_examples_are_up_to_date(tmp_path) -> None:
    write(tmp_path / "ds", PAYLOADS, **UNTYPED)
    before = dataset_files(tmp_path / "ds")
    write(tmp_path / "ds", PAYLOADS[::-1], **UNTYPED)
    assert dataset_files(tmp_path / "ds") == before
    assert not [*(tmp_path / "ds").glob(".shardmill*")]
    write(tmp_path / "ds", PAYLOADS[1:], update=True, **UNTYPED)
    assert sum(map(len, read(tmp_path / "ds").values())) == 299


def test_functions_take_the_element(tmp_path) -> None:
    """They are called once, with what the collection holds, not with its bytes."""
    write(
        tmp_path / "ds",
        EXAMPLES,
        key=lambda example: example.features.feature["id"].bytes_list.value[0][::-1],
        split=lambda example: f"half{example.features.feature['size'].int64_list.value[0] % 2}",
        splits=None,
        label="size",
        **UNTYPED,
    )
    records = read(tmp_path / "ds")
    for number in (0, 1):
        odd = [element for element in ELEMENTS if element["size"] % 2 == number]
        wanted = {element["id"].encode(): expected(element) for element in odd}
        assert records[f"half{number}"] == wanted


def test_elements_that_are_no_examples_are_rejects(typed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(transform, "RUN_BYTES", 5_000)
    elements = [*PAYLOADS, b"\xff", 7, encode_example({"size": [1]})]
    hint = beam.Map(lambda element: element).with_output_types(Any)
    write(tmp_path / "ds", elements, None, hint, **UNTYPED)
    assert read(tmp_path / "ds") == read(typed)
    result = shardmill.BuildResult("published", str(tmp_path / "ds"))
    assert sorted(reject["error"] for reject in result.rejects) == ["decode", "decode", "missing"]


MISTAKES = [
    (
        {},
        [{"id": b"a", "x": 1}, {"id": b"b", "x": 1.5}],
        "'x' has two types, FLOAT in .*'b' and INT in .*'a'",
    ),
    (
        {},
        [{"id": b"a", "x": b"1"}, {"id": b"b"}, {"id": b"c", "x": 2}],
        "BYTES in .*'a' and INT in .*'c'",
    ),
    ({"key": "i"}, [{"id": b"a"}], "--key=i is not a column: the examples have"),
    ({"label": "y"}, [{"id": b"a"}], "--label=y is not a column"),
    ({"label": "x"}, [{"id": b"a", "x": [1, 2]}], "several values"),
    ({"split": "y", "splits": None}, [{"id": b"a"}], "--split=y is not a column"),
    ({}, [], "has no elements"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("options", "features", "words"), MISTAKES)
@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_mistakes_are_one_sentence(
    options, features, words, run_bytes, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    hint = beam.Map(lambda element: element).with_output_types(Any)
    with pytest.raises(Exception, match=words):
        write(tmp_path / "ds", map(encode_example, features), None, hint, **UNTYPED | options)
    assert not (tmp_path / "ds" / "manifest.json").exists()


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_elements_of_which_none_is_an_example_are_one_sentence(
    run_bytes, tmp_path, monkeypatch
) -> None:
    """They were called a collection without elements."""
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    hint = beam.Map(lambda element: element).with_output_types(Any)
    sentence = "all 3 are rejects, such as one for which 1 bytes are not a tf.train.Example"
    with pytest.raises(Exception, match=sentence):
        write(tmp_path / "ds", [b"\xff", 7, b"\xfe"], None, hint, **UNTYPED)
    assert not (tmp_path / "ds" / "manifest.json").exists()


@pytest.mark.sweep
@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_copies_of_an_example_are_dropped_on_request(run_bytes, tmp_path, monkeypatch) -> None:
    """Bundles of equal examples have one file."""
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    copies = [*PAYLOADS[:9], *PAYLOADS[:5]]
    write(tmp_path / "ds", copies, duplicates="drop", **UNTYPED)
    assert sum(map(len, read(tmp_path / "ds").values())) == 9
    assert main(["verify", str(tmp_path / "ds"), "--deep"]) == 0
    with pytest.raises(Exception, match="5 elements with the key of another one"):
        write(tmp_path / "error", copies, **UNTYPED)


def test_dicts_of_an_unknown_type_need_a_schema(tmp_path) -> None:
    hint = beam.Map(lambda element: element).with_output_types(Any)
    with pytest.raises(Exception, match="Elements of the type dict have no schema"):
        write(tmp_path / "ds", [{"id": "a"}], None, hint, **UNTYPED)

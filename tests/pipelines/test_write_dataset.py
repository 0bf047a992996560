"""WriteDataset: elements of a PCollection become a dataset that depends on nothing but them."""

import random
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import shardmill
from shardmill.pipelines.write_dataset import columns_of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.elements import transform
from tests.conftest import ROOT
from tests.support.element_tools import OPTIONS, SCHEMA, expected, random_elements, read, write
from tests.support.readers import dataset_files, tf_example

ELEMENTS = random_elements(300)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The dataset of all elements in one bundle."""
    folder = tmp_path_factory.mktemp("plain") / "ds"
    write(folder, ELEMENTS)
    return folder


def manifest_of(folder) -> Manifest:
    return Manifest.from_json((folder / "manifest.json").read_text())


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("run_bytes", "most_runs"),
    [(200, 4), *(pytest.param(*each, marks=pytest.mark.heavy) for each in ((1, 256), (3_000, 4)))],
)
def test_bytes_do_not_depend_on_bundles_and_order(
    run_bytes, most_runs, plain, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    monkeypatch.setattr("shardmill.transforms.tables.transform.MAX_RUNS", most_runs)
    write(tmp_path / "ds", random.Random(run_bytes).sample(ELEMENTS, 300))
    assert dataset_files(tmp_path / "ds") == dataset_files(plain)
    assert manifest_of(tmp_path / "ds").build.input_id == manifest_of(plain).build.input_id


@pytest.mark.heavy
def test_kinds_of_elements_give_the_same_bytes(plain, tmp_path) -> None:
    given_ = [{k: v for k, v in each.items() if v not in (None, [])} for each in ELEMENTS]
    values = [{k: v.encode() if k == "id" else v for k, v in each.items()} for each in given_]
    kinds = {
        "examples": [tf_example(each) for each in values],
        "bytes": [encode_example(each) for each in values],
        "rows": [beam.Row(**each) for each in ELEMENTS],
        "arrays": [
            {**e, "x": np.array(e["x"]), "label": np.array([e["label"]])[0]} for e in ELEMENTS
        ],
    }
    for name, elements in kinds.items():
        write(tmp_path / name, elements)
        assert dataset_files(tmp_path / name) == dataset_files(plain), name


def test_attempts_that_failed_or_run_twice_change_nothing(plain, tmp_path) -> None:
    """A bundle writes its run again under the same name; what is not referred to is deleted."""
    out = tmp_path / "ds"

    def attempt(elements):
        spec = shardmill.WriteDataset(out, **OPTIONS)
        spec = spec._spec(spec._columns, "FnApiRunner")
        return [
            run
            for run in transform.write_elements(elements, spec, spec.reader)
            if isinstance(run, transform.Run)
        ]

    first = attempt(ELEMENTS[:100])
    assert attempt(ELEMENTS[:100]) == first == attempt(ELEMENTS[99::-1])
    attempt(ELEMENTS[50:150])
    assert len([*out.rglob("*.run")]) == 2
    write(out, ELEMENTS)
    assert dataset_files(out) == dataset_files(plain)
    assert not [*out.glob(".shardmill*"), *out.rglob("*.run")]


@pytest.mark.nightly
def test_equal_keys(tmp_path, monkeypatch) -> None:
    copies = [*ELEMENTS[:40], ELEMENTS[5], ELEMENTS[5], {**ELEMENTS[7], "x": [9.0]}]
    name = min(ELEMENTS[5]["id"], ELEMENTS[7]["id"])
    datasets = []
    for number, run_bytes in enumerate((1, 1_000, 1 << 20)):
        monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
        with pytest.raises(Exception, match="3 elements with the key of another one") as caught:
            write(tmp_path / f"error{number}", copies)
        assert repr(name) in str(caught.value)
        write(tmp_path / f"{number}", random.Random(number).sample(copies, 43), duplicates="drop")
        datasets.append(dataset_files(tmp_path / f"{number}"))
        inputs = manifest_of(tmp_path / f"{number}").inputs
        assert (inputs.matched, inputs.accepted, inputs.duplicates) == (43, 40, 2)
        assert inputs.rejected_by_reason == {"key_conflict": 1}
    assert datasets[0] == datasets[1] == datasets[2]


@pytest.mark.heavy
def test_bad_elements_are_left_out(plain, tmp_path, monkeypatch) -> None:
    """tests/golden/transcripts/write_dataset.txt has what is said of each."""
    monkeypatch.setattr(transform, "RUN_BYTES", 5_000)
    bad = [{"id": "a", "label": "text"}, {"id": "h", "wrods": []}, {"x": [1.0]}, b"\xff", 7]
    elements = random.Random(1).sample([*ELEMENTS, *bad], len(ELEMENTS) + len(bad))
    write(tmp_path / "ds", elements)
    assert read(tmp_path / "ds") == read(plain)
    assert len(shardmill.BuildResult("published", str(tmp_path / "ds")).rejects) == len(bad)
    with pytest.raises(Exception, match="max_reject_fraction"):
        write(tmp_path / "strict", elements, max_reject_fraction=0.01)


def test_all_bad_elements_are_listed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shardmill.transforms.tables.table_source.MAX_LISTED", 2)
    elements = [ELEMENTS[0], *({"id": f"bad{number}", "label": 6} for number in range(9))]
    for name, some in (("1", elements), ("2", elements[::-1])):
        write(tmp_path / name, some)
        assert len(shardmill.BuildResult("published", str(tmp_path / name)).rejects) == 9
    assert dataset_files(tmp_path / "1") == dataset_files(tmp_path / "2")
    write(tmp_path / "1", elements[::-1])  # which is up to date


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_elements_may_have_different_types_of_numbers(tmp_path, monkeypatch, run_bytes) -> None:
    """Whether an element is a reject does not depend on the elements that are read with it."""
    monkeypatch.setattr(transform, "RUN_BYTES", run_bytes)
    big = (1 << 60) + 1
    values = [(1, [0.5]), (True, [big]), (2.0, [np.float32(0.1)]), (big, [(1 << 24) + 1])]
    values[2:2] = [("3", [0.25])]  # a reject
    schema = SCHEMA.replace("min: -5 max: 5", "min: 0")
    elements = [{"id": str(n), "label": label, "x": x} for n, (label, x) in enumerate(values)]
    write(tmp_path / "ds", elements, schema=schema)
    records = [row for split in read(tmp_path / "ds").values() for row in split.values()]
    found = {(*row["label"], *row["x"]) for row in records}
    assert found == {(1, 0.5), (1, 1 << 60), (2, float(np.float32(0.1))), (big, 1 << 24)}


class Person(NamedTuple):
    name: str
    age: int | None
    scores: list[float]
    big: np.int64 = np.int64(1 << 40)


def test_typed_rows_need_no_schema(tmp_path) -> None:
    assert [*columns_of(Person)] == [
        Column("name", "bytes"),
        Column("age", "int64", required=False),
        Column("scores", "float32", required=False, several=True),
        Column("big", "int64"),
    ]
    people = [Person(f"{n}", n if n % 2 else None, [0.5] * (n % 3)) for n in range(40)]
    step = beam.Map(lambda each: each).with_output_types(Person)
    split = lambda person: "val" if person.name < "2" else "train"  # noqa: E731
    write(
        tmp_path / "ds",
        people,
        None,
        step,
        key="name",
        schema="",
        split=split,
        splits=None,
        label="age",
    )
    manifest = manifest_of(tmp_path / "ds")
    odd = [person for person in people if person.age]
    validation = sum(person.name < "2" for person in odd)
    counts = {name: split.num_examples for name, split in manifest.splits.items()}
    assert counts == {"train": 20 - validation, "validation": validation}
    assert manifest.inputs.rejected_by_reason == {"missing": 20}
    for name in ({"key": "nme"}, {"key": "name", "split": "nme", "splits": None}):
        with pytest.raises(UsageError, match=r"=nme is not a column: .* did you mean 'name'"):
            write(tmp_path / "wrong", people, None, step, schema="", **name)


def test_defaults_replace_missing_values(tmp_path) -> None:
    columns = [
        Column("id", "bytes"),
        Column("day", "int64", time="date", default="1970-01-11"),
        Column("flag", "int64", booleans=("yes", "no"), default="Yes"),
        Column("several", "float32", several=True, default="1.5"),
        Column("tags", "bytes", separator="|", default="a|b"),
    ]
    elements = [{"id": "a"}, {"id": "b", "day": 5, "flag": False, "several": [], "tags": ["c"]}]
    write(tmp_path / "ds", elements, schema=format_schema(columns), splits="train:1")
    missing, given = (read(tmp_path / "ds")["train"][key] for key in (b"a", b"b"))
    assert missing == {
        "id": [b"a"],
        "day": [10],
        "flag": [1],
        "several": [1.5],
        "tags": [b"a", b"b"],
    }
    assert given == {"id": [b"b"], "day": [5], "flag": [0], "tags": [b"c"]}


def test_a_field_may_have_the_name_of_a_function(tmp_path) -> None:
    schema = format_schema([Column("id", "bytes"), Column("key", "bytes")])
    elements = [{"id": str(number), "key": "train"} for number in range(3)]
    options = {"schema": schema, "splits": None, "split": "key", "duplicates": "drop"}
    write(tmp_path / "ds", elements, key=lambda element: element["id"], **options)
    assert len(read(tmp_path / "ds")["train"]) == 3


@pytest.mark.parametrize("hint", [int | str, int | str | None, tuple[int, str], list[int | None]])
def test_fields_of_several_types_need_a_schema(hint) -> None:
    with pytest.raises(UsageError, match="The field 'x' has the type"):
        list(columns_of(NamedTuple("Mixed", [("x", hint)])))


VALUES = st.fixed_dictionaries(
    {
        "label": st.none() | st.integers(-5, 5),
        "x": st.lists(st.floats(width=32)),
        "words": st.lists(st.binary() | st.text()),
    }
)


@pytest.mark.nightly
@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.text(min_size=1), VALUES, min_size=1, max_size=20), st.randoms())
def test_random_records(tmp_path_factory, values, chance) -> None:
    out = tmp_path_factory.mktemp("random") / "ds"
    elements = [{"id": key, **value} for key, value in values.items()]
    chance.shuffle(elements)
    write(out, elements)
    found = read(out)
    wanted = {each["id"].encode(): expected(each) for each in elements}
    for each in wanted.values():
        if "words" in each:
            each["words"] = [w.encode() if isinstance(w, str) else w for w in each["words"]]
    assert repr(sorted((found["train"] | found["test"]).items())) == repr(
        sorted((key, {name: each[name] for name in sorted(each)}) for key, each in wanted.items())
    )


def take(key: str, data: bytes) -> bytes:
    """Return an example whose ``id`` is its key."""
    from tensorflow.train import Example

    (found,) = Example.FromString(data).features.feature["id"].bytes_list.value
    assert found.decode() == key
    return data


@pytest.mark.heavy
@pytest.mark.parametrize(
    "split", ["train+test", pytest.param("train[10:60]", marks=pytest.mark.heavy)]
)
def test_elements_are_read_again(split, plain, tmp_path, monkeypatch) -> None:
    """Written again, they are the same dataset; a publication meanwhile does not matter."""
    monkeypatch.setattr(transform, "RUN_BYTES", 3_000)
    write(tmp_path / "read", ELEMENTS)
    source = shardmill.ReadDataset(tmp_path / "read", split)
    write(tmp_path / "read", ELEMENTS[:5], update=True, keep=1)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        elements = pipeline | source | beam.MapTuple(take)
        _ = elements | shardmill.WriteDataset(tmp_path / "ds", **OPTIONS)
    if split == "train+test":
        assert dataset_files(tmp_path / "ds") == dataset_files(plain)
    found, wanted = read(tmp_path / "ds"), read(plain)
    assert len(found["train"]) == (50 if "[" in split else len(wanted["train"]))
    assert found["train"].items() <= wanted["train"].items()


@pytest.mark.heavy
def test_beam_yaml(tmp_path, monkeypatch) -> None:
    """The example runs, and its providers are those of the package."""
    import yaml
    from apache_beam.yaml.main import run

    text = (ROOT / "examples" / "pipeline.yaml").read_text()
    packaged = yaml.safe_load((ROOT / "pipelines" / "providers.yaml").read_text())
    assert yaml.safe_load(text)["providers"] == packaged
    monkeypatch.chdir(tmp_path)
    runner = f"{FnApiRunner.__module__}.{FnApiRunner.__name__}"
    run([f"--yaml_pipeline={text}", f"--runner={runner}"])
    built = manifest_of(tmp_path / "yaml_ds")
    assert (built.inputs.accepted, built.labels) == (4, ("cat", "dog"))
    write_options = {"key": "id", "schema": "yaml_ds/current/schema.pbtxt", "splits": "train:1"}
    steps = [
        {"type": "ReadDataset", "config": {"path": "yaml_ds", "split": "train+test"}},
        {"type": "PyTransform", "config": {"constructor": "apache_beam.Values"}},
        {"type": "WriteDataset", "config": {"output": "again", **write_options}},
    ]
    pipeline = {"pipeline": {"type": "chain", "transforms": steps}, "providers": packaged}
    run([f"--yaml_pipeline={yaml.safe_dump(pipeline)}", f"--runner={runner}"])
    records = [*read(tmp_path / "yaml_ds").values()]
    assert read(tmp_path / "again")["train"] == records[0] | records[1]


def write_several(outputs: list) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        elements = pipeline | beam.Create(ELEMENTS, reshuffle=False)
        for number, output in enumerate(outputs):
            _ = elements | f"Write{number}" >> shardmill.WriteDataset(output, **OPTIONS)


def test_several_outputs_of_a_pipeline(plain, tmp_path) -> None:
    """Each dataset is the one that a separate pipeline writes."""
    outputs = [tmp_path / "ds", tmp_path / "ds2"]
    write_several(outputs)
    for output in outputs:
        assert dataset_files(output) == dataset_files(plain)

"""What first users try is answered by one sentence with the value and the fix; nothing is written."""

import inspect
from pathlib import Path

import datasets
import pytest

import shardmill
from shardmill.loaders import keras_dataset, open_dataset, torch_dataset
from shardmill.schemas.arguments import explain_arguments
from shardmill.schemas.errors import ShardmillError
from tests.conftest import build_dataset, make_photos

# A call in a folder with the input "in" and the dataset "ds", and parts of the answer.
CALLS = {"write(SPLITS, 'x')": ["source['a']"]}
WITH_KERAS = {
    "keras_dataset('ds', label='boxes/xyxy')": ["no boxes", "--annotations="],
    "keras_dataset('ds', label=['id', 'mask'])": ["no mask", "--masks="],
    "keras_dataset('ds', 'test')": ["has no labels", "label=None"],
    "keras_dataset('ds', label='nope')": ["'nope'", "the name of a feature"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    photos = make_photos(folder / "in", {"cat": 12, "dog": 12}, size=(8, 8))
    build_dataset(
        input=photos,
        output=folder / "ds",
        image_size=8,
        unlabeled_splits="test",
        splits="train:0.5,validation:0.25,test:0.25",
    )
    return folder


def check_answer(call: str, parts: list[str], folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    (shard,) = (Path("ds") / "current").glob("train*.gz")
    splits = datasets.DatasetDict(a=datasets.Dataset.from_dict({"x": [1]}))
    values = {"shardmill": shardmill, "SHARD": str(shard), "SPLITS": splits}
    with pytest.raises(ShardmillError) as raised:
        eval(f"shardmill.{call}", values)
    sentence = str(raised.value)
    assert not [part for part in parts if part not in sentence], sentence
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    assert len(sentence) < 300
    assert raised.value.id
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("call", CALLS)
def test_a_first_mistake_is_answered_by_its_fix(call, folder, monkeypatch) -> None:
    check_answer(call, CALLS[call], folder, monkeypatch)


@pytest.mark.parametrize("call", WITH_KERAS)
def test_a_first_mistake_with_keras_is_answered_by_its_fix(call, folder, monkeypatch) -> None:
    check_answer(call, WITH_KERAS[call], folder, monkeypatch)


def test_a_split_without_labels_is_read_without_them(folder) -> None:
    images = next(iter(keras_dataset(folder / "ds", "test", label=None)))
    assert images.shape[1:] == (8, 8, 3)


def test_pairs_of_names_and_shares_are_splits(folder, tmp_path) -> None:
    """As in a dict."""
    pairs = [("train", 0.75), ("test", 0.25)]
    options = {"input": folder / "in", "image_size": 8}
    _, ours = build_dataset(**options, output=tmp_path / "a", splits=pairs)
    _, theirs = build_dataset(**options, output=tmp_path / "b", splits=dict(pairs))
    assert ours.build.config_id == theirs.build.config_id


@pytest.mark.parametrize("function", [keras_dataset, open_dataset, torch_dataset])
def test_calls_that_python_allows_have_no_error(function) -> None:
    """Python's own binding is the judge: each parameter is given, left out, or unknown."""
    parameters = list(inspect.signature(function).parameters.values())
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    for count in range(len(plain) + 2):
        for name in [*(each.name for each in parameters), "colour", None]:
            values = {} if name is None else {name: 1}
            try:
                inspect.signature(function).bind(*[1] * count, **values)
                is_right = True
            except TypeError:
                is_right = False
            repeated = name in [each.name for each in plain[:count]]
            error = explain_arguments(function, "f", (1,) * count, values)
            assert (error is None) == is_right or repeated

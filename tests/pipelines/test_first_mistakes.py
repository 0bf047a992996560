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
from tests.conftest import shardmill as run_command

# A call in a folder with the input "in" and the dataset "ds", and parts of the answer.
CALLS = {
    "images('in', 'x', splits=[0.8, 0.2])": ["0.8,0.2", "train:0.8,validation:0.2"],
    "images('in', 'x', splits=(0.8, 0.1, 0.1))": ["train:0.8,validation:0.1,test:0.1"],
    "images('in', 'x', splits=0.8)": ["train:0.8,validation:0.2"],
    "images('in', 'x', splits=[('train', 80), ('test', 20)])": ["train:0.8,test:0.2"],
    "rows('in', 'x', splits=[0.8, 0.2])": ["train:0.8,validation:0.2"],
    "write([{'a': 1}], 'x', splits=[0.8, 0.2])": ["train:0.8,validation:0.2"],
    "WriteDataset('x', key='k', splits=[0.8, 0.2])": ["train:0.8,validation:0.2"],
    "WriteDataset('x', split='nope')": ["WriteDataset needs key"],
    "images('in', 'x', 224)": ["224", "image_size=224"],
    "images('ds', 'in')": ["input comes first"],
    "images('nowhere', 'in')": ["input comes first"],
    "rows('nowhere.csv', 'in')": ["input comes first"],
    "write('x', [{'a': 1}])": ["source comes first"],
    "write(SPLITS, 'x')": ["source['a']"],
    r"images(r'C:\data', 'x')": [r"C:\data", "/mnt/c/data"],
    r"images('in', r'D:\out\ds')": [r"D:\out\ds", "/mnt/d/out/ds"],
    "rows('C:/data/a.csv', 'x')": ["/mnt/c/data/a.csv"],
    r"open_dataset(r'C:\data')": ["/mnt/c/data"],
    r"open_dataset(r'\\host\share')": ["path of Windows"],
    "open_dataset(SHARD)": ["is a file of the dataset ds"],
    "open_dataset('ds/current/labels.txt')": ["is a file of the dataset ds"],
    "steps_per_epoch(SHARD, 'train', 32)": ["is a file of the dataset ds"],
    "open_dataset([SHARD])": ["(list) is not a path"],
    "open_dataset('ds', 'val')": [
        "'val'",
        "(did you mean validation?): it has train, validation, test.",
    ],
    "open_dataset('ds', 'eval')": ["did you mean validation?"],
    "open_dataset('ds', 'Training')": ["did you mean train?"],
    "open_dataset('ds', 'vali')": ["did you mean validation?"],
    "open_dataset('ds', 'x+train')": ["'x'", "train, validation, test."],
    "open_dataset('ds', features=['image', 'boxes/xyxy'])": ["no boxes", "--annotations="],
    "open_dataset('ds', features=['mask'])": ["no mask", "--masks="],
    "open_dataset('ds', label='boxes/xyxy')": ["as_supervised=True"],
    "open_dataset('ds', label='boxes/xyxy', as_supervised=True)": ["no boxes"],
    "open_dataset('ds', 'test', as_supervised=True)": ["has no labels", "label=None"],
    "keras_dataset('ds', 'train', 32)": ["32", "'dataset', 'split'", "batch_size=32"],
    "torch_dataset('ds', 'train', 32)": ["32", "name the others."],
    "keras_dataset('ds', drop_remainder=True)": ["drop_remainder=True", "remainder='drop'"],
    "torch_dataset('ds', drop_last=True)": ["drop_last=True", "remainder='drop'"],
    "open_dataset('ds', num_workers=2)": ["num_workers=2", "DataLoader"],
    "keras_dataset('ds', prefetch=1)": ["read ahead"],
    "keras_dataset('ds', batchsize=8)": ["use batch_size"],
    "keras_dataset('ds', colour=8)": ["it has dataset, split, batch_size"],
    "keras_dataset()": ["keras_dataset needs dataset"],
}
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


def test_the_command_says_the_same(folder) -> None:
    done = run_command("images", "ds", "in", cwd=folder)
    assert (done.returncode, "the input comes first" in done.stderr) == (2, True)
    done = run_command("steps", "ds", "--split=val", "--batch_size=2", cwd=folder)
    assert (done.returncode, "did you mean validation?" in done.stderr) == (2, True)


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

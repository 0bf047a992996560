"""What first users try is answered by one sentence with the value and the fix; nothing is written."""

import contextlib
import inspect
from pathlib import Path

import pytest

import shardmill
from shardmill.loaders import keras_dataset, open_dataset, torch_dataset
from shardmill.schemas.arguments import explain_arguments
from shardmill.schemas.errors import ShardmillError, UsageError
from tests.conftest import build_dataset, make_photos


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


@pytest.mark.heavy
def test_pairs_of_names_and_shares_are_splits(folder, tmp_path) -> None:
    """As in a dict."""
    pairs = [("train", 0.75), ("test", 0.25)]
    options = {"input": folder / "in", "image_size": 8}
    _, ours = build_dataset(**options, output=tmp_path / "a", splits=pairs)
    _, theirs = build_dataset(**options, output=tmp_path / "b", splits=dict(pairs))
    _, lists = build_dataset(**options, output=tmp_path / "c", splits=[[*pair] for pair in pairs])
    assert ours.build.config_id == theirs.build.config_id == lists.build.config_id


@pytest.mark.parametrize("splits", [[("train",)], [["train", 1, 2]], [()], [[]]])
def test_other_lists_of_splits_are_an_error(folder, tmp_path, splits) -> None:
    with pytest.raises(UsageError, match="--splits="):
        build_dataset(input=folder / "in", output=tmp_path / "ds", splits=splits)


FUNCTIONS = (
    *(keras_dataset, open_dataset, torch_dataset, shardmill.balanced, shardmill.class_weights),
    *(shardmill.feature_spec, shardmill.files, shardmill.normalization, shardmill.Stream),
    *(shardmill.steps_per_epoch, shardmill.write, shardmill.report),
    *(shardmill.ReadDataset, shardmill.WriteDataset),
)
METHODS = ("at", "load_state_dict", "resume", "set_epoch", "then")
STRANGE = (object(), 1.5, b"x", 5, "zzz", [1], {"a": 1}, None, True, len, (1, 2))


def public_calls() -> dict[str, tuple]:
    """Return right calls in the folder: for each name the function and what it is called with."""
    records = open_dataset("ds")
    stream = shardmill.Stream(records)
    state = stream.state_dict()
    right = {
        "Stream": (records,),
        "balanced": (records, "label"),
        "steps_per_epoch": ("ds", "train", 2),
        "write": ([{"a": 1}], "ds"),
        "WriteDataset": ("x",),
    }
    calls = {each.__name__: (each, right.get(each.__name__, ("ds",))) for each in FUNCTIONS}
    of_methods = {"at": (0, 2), "set_epoch": (1,), "then": (1,)}
    for name in METHODS:
        calls[name] = (getattr(stream, name), of_methods.get(name, (state,)))
    return calls


NAMES = [*(each.__name__ for each in FUNCTIONS), *METHODS]
OF_FRAMEWORKS = ("keras_dataset", "normalization", "feature_spec", "torch_dataset")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.heavy] * (n in OF_FRAMEWORKS)) for n in NAMES],
)
@pytest.mark.filterwarnings("ignore")
def test_strange_arguments_are_sentences(name, folder, monkeypatch) -> None:
    """Of each parameter every kind of value is used or an error of Shardmill."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    function, args = public_calls()[name]
    options = {"key": "id"} if name == "WriteDataset" else {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        writes = name in ("write", "report") or parameter.name.startswith("cache_dir")
        for value in STRANGE[:3] if writes else STRANGE:  # of the others some are right there
            changed, named = list(args), dict(options)
            if number < len(args):
                changed[number] = value
            else:
                named[parameter.name] = value
            with contextlib.suppress(ShardmillError):
                function(*changed, **named)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", NAMES)
def test_wrong_names_and_numbers_of_arguments_are_sentences(name, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    function, args = public_calls()[name]
    parameters = inspect.signature(function).parameters.values()
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    calls = [(function, (), {}, "needs "), (function, (*args, *range(9)), {}, "without a name")]
    if not takes_any or name.startswith("torch"):
        calls.append((function, args, {"colour": 1}, "has no option colour=1: it has "))
    if named and not takes_any:
        wrong = f"{named[0]}s" if f"{named[0]}s" not in named else f"{named[0]}z"
        calls.append((function, args, {wrong: 1}, f"use {named[0]}."))
    for called, words, options, part in calls:
        with pytest.raises(ShardmillError) as raised:
            called(*words, **options)
        assert part in str(raised.value)
        assert isinstance(raised.value, TypeError)
        assert "__init__" not in str(raised.value)


def test_a_missing_name_in_a_transform_is_also_a_key_error(folder) -> None:
    records = open_dataset(folder / "ds", transform=lambda example: example["lable"])
    with pytest.raises(KeyError) as raised:
        records[0]
    assert isinstance(raised.value, ShardmillError)


@pytest.mark.parametrize("function", FUNCTIONS)
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

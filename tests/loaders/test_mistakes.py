"""Mistakes of users: each is one short sentence with the value and the fix, and writes no file."""

import json
import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.loaders import (
    Stream,
    balanced,
    class_weights,
    feature_spec,
    files,
    keras_dataset,
    normalization,
    open_dataset,
    steps_per_epoch,
)
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.example.serialize import encode_example
from tests.support.loader_tools import (
    DATA,
    ID,
    PACKS,
    make_dataset,
    make_shard,
    write_dataset,
    write_numbered,
)
from tests.support.record_tools import in_groups

OPTIONAL = "presence { min_fraction: 0 } value_count { min: 1 max: 1 }"
AGE = f'feature {{ name: "age" type: INT {OPTIONAL} }}\n'
TAKEN = ID + ID.replace('"id"', '"weight"') + DATA.replace('"x"', '"sample_id"')
SCHEMA = f'{ID}\n{DATA}\nfeature {{ name: "price" type: FLOAT {OPTIONAL} }}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with datasets, and with what is none."""
    folder = tmp_path_factory.mktemp("mistakes")
    payloads = [encode_example({"id": n, "x": b"%d" % n}) for n in range(72)]
    groups = [in_groups(payloads[:36], 9), in_groups(payloads[36:], 9)]
    write_dataset(folder / "ds", groups, SCHEMA, PACKS["deflated"])
    write_dataset(folder / "ages", groups, SCHEMA + AGE)
    write_dataset(folder / "empty", [[]], SCHEMA)
    weighed = {"id": 1, "weight": 7, "sample_id": b"a"}
    write_numbered(folder / "taken", [3], 3, schema=TAKEN, example=lambda _: weighed)
    shards = {f"train-{label}": make_shard(groups[0]) for label in "ab"}
    make_dataset(folder / "labelled", shards, dict.fromkeys(shards, 36), SCHEMA, labels=["a", "b"])
    body = json.loads((folder / "labelled" / "manifest.json").read_text())
    for shard in body["splits"]["train"]["shards"]:
        shard["label"] = shard["file"][-1]
    (folder / "labelled" / "manifest.json").write_text(json.dumps(body))
    text = (folder / "ds" / "manifest.json").read_text()
    for name, content in {
        "newer": json.dumps({**json.loads(text), "version": 99}),
        "half": text[: len(text) // 2],
        "list": "[1, 2]",
    }.items():
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text(content)
    (folder / "photos").mkdir()
    (folder / "notes.txt").write_text("Buy milk. " * 10_000)
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    """Run in the folder, which a mistake must not change."""
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    yield
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def opened(split: str = "train", **options):
    return open_dataset("ds", split, **options)


def torch_stream(*words, **options):
    from shardmill.loaders import torch_data

    return torch_data.torch_stream(*words, **options)


def torch_dataset(*words, **options):
    return shardmill.torch_dataset(*words, **options)


CALLED = (
    Path,
    Stream,
    balanced,
    class_weights,
    feature_spec,
    files,
    keras_dataset,
    normalization,
    open_dataset,
    opened,
    steps_per_epoch,
    torch_dataset,
    torch_stream,
)
# A call, its error, and parts of the message.
MISTAKES = [
    # The dataset.
    (
        "keras_dataset('ds/train-0.tfrecord')",
        InputError,
        "ds/train-0.tfrecord cannot be read: it is not a Shardmill manifest",
        "give a dataset or its manifest.json",
    ),
    (
        "open_dataset('notes.txt')",
        InputError,
        "notes.txt cannot be read: it is not a Shardmill manifest",
        "give a dataset or its manifest.json",
    ),
    (
        "open_dataset('nowhere')",
        InputError,
        "nowhere does not exist: give a dataset or its manifest.json",
    ),
    ("keras_dataset('photos')", InputError, "photos/manifest.json does not exist: give a dataset"),
    (
        "open_dataset('half')",
        InputError,
        "half/manifest.json cannot be read",
        "build or copy the dataset again",
    ),
    (
        "open_dataset('list')",
        InputError,
        "list/manifest.json cannot be read",
        "build or copy the dataset again",
    ),
    (
        "open_dataset('newer')",
        InputError,
        "manifest version 99 is not 2: use the Shardmill that wrote it",
    ),
    ("open_dataset('')", UsageError, "the path of the manifest is empty: give a dataset"),
    (
        "open_dataset(Path('gs://bucket/ds'))",
        UsageError,
        "gs:/bucket/ds is not a URI: give gs://... as a str",
    ),
    ("open_dataset('ftp://host/ds')", UsageError, "ftp:// is not supported: use a local path"),
    ("open_dataset(None)", TypeError, "NoneType"),
    ("keras_dataset(opened())", TypeError, "Records"),
    ("keras_dataset('empty')", InputError, "empty has no examples in train"),
    ("files('ds', 'test')", UsageError, "no split 'test': it has train"),
    ("class_weights('ds')", UsageError, "'train' has no label counts"),
    # The split.
    (
        "keras_dataset('ds', split=None)",
        UsageError,
        "split=None is not a str: name a split, as in 'train'",
    ),
    ("open_dataset('ds', split=['train'])", UsageError, "split=['train'] is not a str"),
    (
        "open_dataset('ds', 'trian')",
        UsageError,
        "no split 'trian' (did you mean train?): it has train.",
    ),
    (
        "open_dataset('ds', 'train[:110%]')",
        UsageError,
        "train[:110%]: '110%' is neither",
        "write it as in train[:10%]",
    ),
    ("open_dataset('ds', 'train[a:b]')", UsageError, "train[a:b]: 'a' is neither"),
    ("open_dataset('ds', 'train[0.5:]')", UsageError, "'0.5' is neither"),
    ("open_dataset('ds', 'train[5:2]')", UsageError, "train[5:2] has none of the 72 examples"),
    (
        "open_dataset('ds', 'train[100:200]')",
        UsageError,
        "train[100:200] has none of the 72 examples",
    ),
    (
        "open_dataset('ds', 'train[5]')",
        UsageError,
        "'train[5]' is malformed: write it as in train[:10%] or train+test",
    ),
    ("open_dataset('ds', 'train+')", UsageError, "'train+' is malformed"),
    (
        "open_dataset('ds', 'train+train')",
        UsageError,
        "'train+train' has some examples twice: name each once",
    ),
    (
        "open_dataset('ds', 'train[:50%]+train[:50%]')",
        UsageError,
        "has some examples twice: name each once",
    ),
    (
        "open_dataset('ds', 'train[5:10]+train[:6]')",
        UsageError,
        "has some examples twice: name each once",
    ),
    (
        "Stream(opened(), host=(0, 99))",
        UsageError,
        "72 examples, fewer than 99 hosts, which would read none: use fewer hosts, or remainder='pad'",
    ),
    (
        "open_dataset('labelled', 'train[:9]')",
        UsageError,
        "train[:9]: the labels have separate shards",
        "use percentages",
    ),
    # Batches.
    (
        "keras_dataset('ds', label=None, batch_size=0)",
        UsageError,
        "batch_size=0 must be an integer, 1 or more",
    ),
    ("keras_dataset('ds', label=None, batch_size=-1)", UsageError, "batch_size=-1 must be"),
    ("keras_dataset('ds', label=None, batch_size=2.5)", UsageError, "batch_size=2.5 must be"),
    ("keras_dataset('ds', label=None, batch_size='32')", UsageError, "batch_size='32' must be"),
    (
        "keras_dataset('ds', label=None, batch_size=100, remainder='drop')",
        UsageError,
        "a batch of 100 is larger than the 72 examples",
        "use a smaller batch_size",
    ),
    (
        "keras_dataset('ds', label=None, batch_size=None, host=(0, 99))",
        UsageError,
        "72 examples, fewer than 99 hosts, which would read none",
    ),
    (
        "keras_dataset('ds', batch_size=None, remainder='pad')",
        UsageError,
        "remainder='pad' needs a batch_size",
    ),
    (
        "keras_dataset('ds', remainder='last')",
        UsageError,
        "remainder='last' is unknown: use keep, drop or pad",
    ),
    (
        "keras_dataset('ds', batch_size=4, host=(0, 2), remainder='keep')",
        UsageError,
        "remainder='keep' of batches",
        "use 'drop' for both, or 'pad'",
    ),
    (
        "keras_dataset('ds', batch_size=5, host=(0, 2))",
        UsageError,
        "a batch of 5 cannot be divided among 2 hosts: use a multiple of 2, such as 6",
    ),
    ("steps_per_epoch('ds', 'train', 0)", UsageError, "batch_size=0 must be an integer, 1 or more"),
    (
        "steps_per_epoch('ds', 'train', 32, hosts=(0, 2))",
        UsageError,
        "hosts=(0, 2) must be an integer, 1 or more",
    ),
    (
        "steps_per_epoch('ds', 'train', 33, hosts=3, whole_shards=True)",
        UsageError,
        "2 shards, fewer than 3 hosts: use fewer hosts",
    ),
    # Order.
    (
        "keras_dataset('ds', shuffle='yes')",
        UsageError,
        "shuffle='yes' must be an integer, 1 or more",
    ),
    ("keras_dataset('ds', shuffle=1.5)", UsageError, "shuffle=1.5 must be"),
    ("keras_dataset('ds', shuffle=-1)", UsageError, "shuffle=-1 must be"),
    (
        "Stream(opened(), shuffle='yes')",
        UsageError,
        "shuffle='yes' must be True or False; see also buffer",
    ),
    ("Stream(opened(), buffer=0)", UsageError, "buffer=0 must be an integer, 1 or more"),
    ("Stream(opened(), buffer=1.5)", UsageError, "buffer=1.5 must be"),
    (
        "Stream(opened(), remainder='last')",
        UsageError,
        "remainder='last' is unknown: use keep, drop or pad",
    ),
    ("Stream(opened()).at(0, -1)", UsageError, "examples=-1 must be an integer, 0 or more"),
    (
        "Stream(opened()).at(0, 73)",
        UsageError,
        "73 examples are more than the 72 of epoch 0: give those that all hosts",
    ),
    (
        "Stream(opened()).at(0, 64).then(9)",
        UsageError,
        "73 examples are more than the 72 of epoch 0",
    ),
    (
        "Stream(opened()).at(0, 80, hosts=2, batch_size=4)",
        UsageError,
        "80 examples are more than the 72 of epoch 0",
    ),
    (
        "list(Stream(opened(), host=(0, 2)).at(0, 33))",
        UsageError,
        "examples=33 is not a multiple of hosts=2",
    ),
    (
        "Stream(opened(), where=bool).at(0, 32)",
        UsageError,
        "examples=32 are not the records that were read",
        "continue with state_dict",
        'where={"label": "roses"}',
    ),
    ("Stream(opened()).at('a', 5)", UsageError, "epoch='a' must be an integer, 0 or more"),
    ("Stream(opened()).at(0, 5, hosts=-1)", UsageError, "hosts=-1 must be an integer, 0 or more"),
    ("Stream(opened()).at(-3, 5)", UsageError, "epoch=-3 must be an integer"),
    (
        "Stream(opened()).set_epoch(2**70)",
        UsageError,
        "epoch=1180591620717411303424 must be an integer",
    ),
    ("Stream(opened()).at(0, [5])", UsageError, "examples=[5] must be an integer"),
    ("Stream(opened(), seed=None)", UsageError, "seed=None must be an integer"),
    ("Stream(opened(), seed=1.5)", UsageError, "seed=1.5 must be an integer"),
    ("Stream(opened(), seed=[1])", UsageError, "seed=[1] must be an integer"),
    ("Stream(opened()).at(0, 9, hosts=2)", UsageError, "examples=9 is not a multiple of hosts=2"),
    (
        "Stream(opened(), order='random')",
        UsageError,
        "order='random' is unknown: use records or blocks",
    ),
    (
        "Stream(opened(), balance='labels')",
        UsageError,
        "balance='labels' must be 'label', or a weight of 0 or more for each label",
    ),
    (
        "Stream(opened(), balance='label')",
        UsageError,
        "balance needs labels, and some or all of the records have none",
    ),
    (
        "Stream(open_dataset('labelled'), balance={'a': '3'})",
        UsageError,
        "balance={'a': '3'} must be 'label', or a weight of 0 or more for each label, and one of them positive",
    ),
    (
        "Stream(open_dataset('labelled'), balance={'a': None, 'b': 1})",
        UsageError,
        "balance={'a': None, 'b': 1} must be 'label', or a weight of 0 or more",
    ),
    (
        "Stream(open_dataset('labelled'), balance={'a': float('nan'), 'b': 1})",
        UsageError,
        "balance={'a': nan, 'b': 1} must be 'label', or a weight of 0 or more",
    ),
    (
        "balanced('labelled', 'label')",
        UsageError,
        "records='labelled' must be what open_dataset returns",
    ),
    (
        "balanced(open_dataset('labelled'), 'label', 1.5)",
        UsageError,
        "epoch=1.5 must be an integer",
    ),
    (
        "Stream(opened(), where={1: 2})",
        UsageError,
        "where: the records have no column 1, only id, price, x.",
    ),
    (
        "Stream(open_dataset('labelled'), balance={'c': 1})",
        UsageError,
        "balance: the split has no examples of 'c': it has 'a', 'b'",
    ),
    (
        "Stream(opened(), where={'prise': 1})",
        UsageError,
        "where: the records have no column 'prise'; did you mean 'price'? The columns are id, price, x.",
    ),
    (
        "Stream(opened(), where={'id': 'a'})",
        UsageError,
        "where={'id': 'a'}: the values of the column are numbers",
    ),
    (
        "Stream(opened(), where={'id': len})",
        UsageError,
        "where={'id': ...} raised TypeError",
        "repair the function",
    ),
    ("Stream(opened(), workers=-1)", UsageError, "workers=-1 must be an integer, 0 or more"),
    # Hosts and workers.
    (
        "Stream(opened(), host=(3, 3))",
        UsageError,
        "host=(3, 3) must be (index, count) with 0 <= index < count, as in host=(0, 2)",
    ),
    ("keras_dataset('ds', host=(-1, 2))", UsageError, "host=(-1, 2) must be"),
    ("Stream(opened(), host=(0, 0))", UsageError, "host=(0, 0) must be"),
    ("Stream(opened(), host=(0, 1.5))", UsageError, "host=(0, 1.5) must be"),
    ("keras_dataset('ds', host=1)", UsageError, "host=1 must be"),
    ("Stream(opened(), worker=(4, 2))", UsageError, "worker=(4, 2) must be"),
    (
        "Stream(opened(), worker=(1, 2)).load_state_dict(Stream(opened(), worker=(0, 2)).state_dict())",
        UsageError,
        "the state is of worker=0, and this stream has worker=1; resume() continues with other workers",
    ),
    ("Stream(opened()).set_epoch(-1)", UsageError, "epoch=-1 must be an integer, 0 or more"),
    ("Stream(opened(), epoch='2')", UsageError, "epoch='2' must be"),
    (
        "Stream(opened()).load_state_dict({'model': 1})",
        UsageError,
        "{'model': 1} is not the state of a stream: give its state_dict()",
    ),
    (
        "Stream(opened()).load_state_dict({**Stream(opened()).state_dict(), 'examples': -5})",
        UsageError,
        "examples=-5 must be an integer, 0 or more",
    ),
    (
        "Stream(opened()).load_state_dict({**Stream(opened()).state_dict(), 'epoch': -3})",
        UsageError,
        "epoch=-3 must be an integer, 0 or more",
    ),
    (
        "Stream(opened()).load_state_dict({**Stream(opened()).state_dict(), 'deals': [[-5, 1, 1, 1]]})",
        UsageError,
        "examples=-5 must be an integer, 0 or more",
    ),
    # What is read.
    (
        "open_dataset('ds', features='x')",
        UsageError,
        "features='x' must be a list of different names, as in ['image', 'label']: omit it to read all",
    ),
    (
        "open_dataset('ds', features=['x', 'id', 'x'])",
        UsageError,
        "features=['x', 'id', 'x'] must be a list of different names",
    ),
    (
        "open_dataset('ds', features=[])",
        UsageError,
        "features=[] must be a list of different names",
    ),
    (
        "open_dataset('taken', ids=True)[0]",
        UsageError,
        "a feature 'sample_id', and ids=True adds a sample_id",
        "leave it out of features",
    ),
    (
        "list(Stream(open_dataset('taken'), remainder='pad', host=(0, 2)))",
        UsageError,
        "the records have a feature 'weight'",
        "remainder='pad' a weight: leave it out of features",
    ),
    (
        "open_dataset('ds', ids=True, as_supervised=True)",
        UsageError,
        "as_supervised=True has no place for ids=True",
    ),
    (
        "keras_dataset(Stream(opened(ids=True)))",
        UsageError,
        "neither the transform nor the ids of the records",
    ),
    (
        "keras_dataset('labelled', balance={'a': -1})",
        UsageError,
        "balance={'a': -1} must be 'label', or a weight of 0 or more",
    ),
    ("open_dataset('ages')", UsageError, "'age' may be missing", "fill={'age': -1}"),
    (
        "open_dataset('ages', fill=-1)",
        UsageError,
        "fill=-1: give a value for each feature, as in fill={'age': -1}",
    ),
    (
        "keras_dataset('ages', label=None, fill=-1)",
        UsageError,
        "fill=-1: give a value for each feature",
    ),
    (
        "open_dataset('ages', fill={'age': 'old'})",
        UsageError,
        "fill={'age': 'old'}: the feature is int64",
    ),
    (
        "open_dataset('ds', fill={'y': 1})",
        UsageError,
        "fill names 'y', which is not one of the features",
    ),
    ("open_dataset('ds', fill={'id': 1})", UsageError, "fill names 'id'", "is never missing"),
    ("open_dataset('ds', as_supervised=True)", UsageError, "as_supervised=True needs a label"),
    # Functions.
    (
        "Stream(opened(), where='x == 1')",
        UsageError,
        "where='x == 1' must be a function of an example",
    ),
    ("keras_dataset('ds', where=[1])", UsageError, "where=[1] must be a function of an example"),
    (
        "Stream(opened(), where=bool, host=(0, 2))",
        UsageError,
        "where with 2 hosts would give them different numbers",
    ),
    (
        "open_dataset('ds', transform='flip')",
        UsageError,
        "transform='flip' must be a function of an example",
    ),
    (
        "keras_dataset('ds', augment='flip')",
        TypeError,
        "has no option augment='flip': it has dataset, split",
    ),
    # Streams.
    ("Stream('ds')", UsageError, "records='ds' must be what open_dataset returns"),
    ("Stream(list(opened()) * 100)", UsageError, "must be what open_dataset returns"),
    (
        "keras_dataset(Stream(opened()), 'test', shuffle=True)",
        UsageError,
        "the stream has split, shuffle already: give it to open_dataset or Stream",
    ),
    (
        "keras_dataset(Stream(opened(transform=bool)))",
        UsageError,
        "keras_dataset applies neither the transform nor the ids of the records",
        "use the map method",
    ),
    ("len(Stream(opened(), where=bool))", TypeError, "is unknown before reading"),
    # Examples by number.
    ("opened()[10**9]", IndexError, "there is no example 1,000,000,000: there are 72"),
    ("opened()[-73]", IndexError, "there is no example -73: there are 72"),
    ("opened()['a']", TypeError, "'str' object"),
    (
        "opened()[['a']]",
        UsageError,
        "records[['a']]: give numbers, or a bool for each of 72 examples",
    ),
    ("opened()[[True, False]]", UsageError, "records[[True, False]]: give numbers"),
    ("opened()[[1.5]]", UsageError, "records[[1.5]]: give numbers"),
    ("opened()[[[1]]]", UsageError, "records[[[1]]]: give numbers"),
    ("opened()[[[1, 2], [3]]]", UsageError, "records[[[1, 2], [3]]]: give numbers"),
    ("opened()[[3, 72]]", IndexError, "there is no example 72: there are 72"),
    ("opened()[::0]", ValueError, "slice step cannot be zero"),
    (
        "Stream(opened()[::-2])",
        UsageError,
        "a Stream reads records in their order: sort the numbers of picked records",
    ),
    ("opened() + open_dataset('empty')", UsageError, "ds and ", "empty cannot be joined"),
    ("opened() + [1]", TypeError, "unsupported operand"),
    # Caches.
    (
        "open_dataset('ds', cache_dir='notes.txt')",
        UsageError,
        "cache_dir='notes.txt' cannot be made: File exists; give a folder of a local disk",
    ),
    (
        "open_dataset('ds', cache_dir='')",
        UsageError,
        "cache_dir='' must be a folder of a local disk",
    ),
    (
        "open_dataset('ds', cache_dir='gs://bucket/cache')",
        UsageError,
        "cache_dir='gs://bucket/cache' must be a folder",
    ),
    (
        "open_dataset('ds', cache_bytes=-1)",
        UsageError,
        "cache_bytes=-1 must be an integer, 0 or more",
    ),
    (
        "open_dataset('ds', cache_dir_bytes='1G')",
        UsageError,
        "cache_dir_bytes='1G' must be an integer",
    ),
]
# These import TensorFlow or torch first.
MORE_MISTAKES = [
    ("normalization('ds', feature='price')", UsageError, "no mean of the feature 'price'"),
    (
        "keras_dataset('ds', label=None, features=['y'])",
        UsageError,
        "no feature 'y': they have 'id', 'price', 'x'",
    ),
    ("feature_spec('ds', features=['image'])", UsageError, "no feature 'image': they have 'id'"),
    ("keras_dataset('ds')", UsageError, "the records have no label: give label=None"),
    ("keras_dataset('ds', label='class')", UsageError, "None, or the name of a feature"),
    ("torch_stream('ds')", UsageError, "records='ds' must be what open_dataset returns"),
    ("torch_dataset('ds', where='x')", UsageError, "where='x' must be a function"),
    ("torch_dataset('ds', remainder='last')", UsageError, "remainder='last' is unknown"),
    ("torch_stream(opened()).at('a', 5)", UsageError, "epoch='a' must be an integer, 0 or more"),
    ("torch_stream(opened()).at(None, 5)", UsageError, "epoch=None must be an integer, 0 or more"),
    (
        "torch_stream(opened()).set_epoch(2**70)",
        UsageError,
        "epoch=1180591620717411303424 must be an integer",
    ),
    ("torch_stream(opened(), batch_size=2)", TypeError, "unexpected keyword argument 'batch_size'"),
]


def check_message(error: BaseException) -> None:
    """Check that a message is one sentence of at most 300 characters."""
    text = str(error)
    assert len(text) <= 300
    assert "\n" not in text
    if isinstance(error, shardmill.ShardmillError):
        assert text.endswith(".")
        assert ". " not in text.replace("...", "")


def run(call: str) -> None:
    eval(call, {each.__name__: each for each in CALLED})


def check_mistake(call: str, kind: type, *parts: str) -> None:
    with pytest.raises(kind) as caught:
        run(call)
    check_message(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[0])
def test_a_mistake_is_one_sentence(mistake):
    check_mistake(*mistake)


@pytest.mark.heavy
@pytest.mark.parametrize("mistake", MORE_MISTAKES, ids=lambda mistake: mistake[0])
def test_a_mistake_that_a_framework_is_needed_for_is_one_sentence(mistake):
    import tensorflow as tf

    assert tf.__name__
    check_mistake(*mistake)


@pytest.mark.parametrize(
    ("call", "framework", "extra"),
    [
        ("keras_dataset('ds', label=None)", "tensorflow", "tensorflow"),
        ("feature_spec('ds')", "tensorflow", "tensorflow"),
        ("normalization('ds', feature='id')", "keras", "tensorflow"),
        ("torch_dataset('ds')", "torch", "torch"),
        ("torch_stream(opened())", "torch", "torch"),
    ],
)
def test_a_missing_framework_is_an_import_error(call, framework, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError) as caught:
        run(call)
    assert isinstance(caught.value, shardmill.ShardmillError)
    check_message(caught.value)
    assert f"is not installed: pip install 'shardmill[{extra}]'." in str(caught.value)


def test_long_values_are_cut(folder, tmp_path):
    """Values of thousands of characters, as of a table with many columns."""
    columns = "\n".join(ID.replace('"id"', f'"{"c" * 40}{n}"') for n in range(999))
    write_dataset(tmp_path / "wide", [[]], columns)
    for call in (
        lambda: open_dataset(tmp_path / "wide", features=["y"]),
        lambda: keras_dataset("labelled", balance={"a": -1, **{f"{n}": 1 for n in range(999)}}),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert len(str(caught.value)) < 600

"""Every version reads the datasets that earlier ones wrote: a promise of the format."""

import json

import pytest

from shardmill.loaders import open_dataset
from shardmill.pipelines.cli import main
from tests.support.formats import FORMATS, contents
from tests.support.readers import current, dataset_splits, tf_examples

DATASETS = sorted(path.parent for path in FORMATS.glob("*/*/manifest.json"))
FILL = {"fill": {"name": b"", "score": -1.0}}


@pytest.mark.parametrize("folder", DATASETS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_dataset_of_a_released_version(folder, capsys):
    expected = json.loads((folder.parent / "contents.json").read_text())[folder.name]
    assert contents(folder) == expected  # nothing changed the files
    assert main(["verify", str(folder)]) == 0
    for name, split in dataset_splits(folder).items():
        assert main(["steps", str(folder), f"--split={name}", "--batch_size=1"]) == 0
        assert capsys.readouterr().out.split()[-1] == str(len(expected[name]))
        records = open_dataset(
            str(folder), name, decode=False, **FILL if folder.name == "table" else {}
        )
        examples = [
            example
            for shard in split["shards"]
            for example in tf_examples(
                current(folder) / shard["file"], "GZIP" if shard["file"].endswith(".gz") else ""
            )
        ]
        assert len(records) == len(examples)
        for record, example in zip(records, examples, strict=True):
            for feature, (value, *_) in example.items():
                found = record[feature]
                assert found == value or found.ravel()[0] == value, feature

"""What each step that groups values holds under one key: docs/scale.md lists all of them."""

import os
import re
import shutil
from collections import defaultdict
from dataclasses import replace

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.pipeline import PipelineVisitor
from apache_beam.pvalue import AsDict, AsIter, AsList
from apache_beam.runners.portability.fn_api_runner import execution
from apache_beam.utils.windowed_value import WindowedValue

from shardmill.pipelines import arrays, count, images, rows
from shardmill.pipelines.tool_options import CountConfig
from shardmill.pipelines.write_dataset import WriteDataset
from shardmill.transforms.sink import placement, plan
from tests.conftest import ROOT, build_dataset, make_photos, resolve_job
from tests.support.element_tools import OPTIONS

TABLE = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ", re.MULTILINE)
WIRE = {"images": images, "rows": rows, "arrays": arrays, "count": count}
BEAMS = re.compile(r"GroupByKey|CoGroupByKeyImpl|(Combine|Reshuffle)PerKey|CombineGlobally.*")


def step_of(name: str) -> str:
    """Return our name of a step that groups, without the steps that Beam makes it of."""
    return next(part for part in reversed(name.split("/")) if not BEAMS.fullmatch(part))


def listed_steps() -> set[str]:
    """Return the steps in the table of docs/scale.md that says what they hold under a key."""
    _, _, rest = (ROOT / "docs" / "scale.md").read_text().partition("## Shuffles")
    section = rest.partition("\n## ")[0]
    return {name for names in TABLE.findall(section) for name in re.findall(r"\w+", names)}


class Steps(PipelineVisitor):
    """Collects the steps of a pipeline that group values, and those that read lists."""

    def __init__(self) -> None:
        self.grouping: set[str] = set()
        self.listing: set[str] = set()

    def visit_transform(self, node) -> None:
        if isinstance(node.transform, beam.GroupByKey):
            self.grouping.add(step_of(node.full_label))
        if any(isinstance(each, AsIter | AsList | AsDict) for each in node.side_inputs):
            self.listing.add(step_of(node.full_label))


def test_docs_list_every_step_that_groups(tmp_path) -> None:
    photos, out = make_photos(tmp_path / "photos", {"a": 1}, size=(8, 8)), tmp_path / "out"
    (tmp_path / "photos.csv").write_text("path\nphotos/a/000.jpg\n")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    job = resolve_job("images", input=photos, output=out)
    drop = {"duplicates": "drop", "limit": 9, "dry_run": True}
    steps = Steps()
    for kind, each in (
        ("images", replace(job, sink=replace(job.sink, compares=True))),
        ("images", resolve_job("images", input=photos, output=out, **drop)),
        ("images", resolve_job("images", input=tmp_path / "photos.csv", output=out)),
        ("rows", resolve_job("rows", input=tmp_path / "t.csv", output=out)),
        ("arrays", resolve_job("arrays", input=tmp_path / "x.npy", output=out)),
        ("count", count.resolve(CountConfig(str(tmp_path / "*.tfrecord")))),
    ):
        pipeline = beam.Pipeline()
        _ = WIRE[kind].outcomes(pipeline, each)
        pipeline.visit(steps)
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([{}]) | WriteDataset(out, **OPTIONS)
    pipeline.visit(steps)
    assert steps.grouping == listed_steps()
    # One value of a shard, a series, a counted file, a file of rows, and the 16 images of a sample.
    # InjectDefault is Beam's, of one sum.
    lists = {"Publish", "WriteManifest", "CompareContent", "InjectDefault"}
    assert steps.listing == lists


@pytest.fixture
def largest(monkeypatch) -> dict[str, int]:
    """The bytes of the values of one key, the most of all keys, for each step that groups."""
    found: dict[str, int] = defaultdict(int)
    names: dict[int, str] = {}
    get_buffer = execution.BundleContextManager.get_buffer
    partition = execution.GroupingBuffer.partition

    def named(self, buffer_id, transform_id):
        buffer = get_buffer(self, buffer_id, transform_id)
        kind, name = execution.split_buffer_id(buffer_id)
        if kind == "group":
            proto = self.execution_context.pipeline_components.transforms[name]
            names[id(buffer)] = step_of(proto.unique_name)
        return buffer

    def measured(self, n):
        coder = self._pre_grouped_coder.wrapped_value_coder.value_coder().get_impl()
        step = names.get(id(self), "")
        for values in self._table.values():
            plain = (each.value if isinstance(each, WindowedValue) else each for each in values)
            size = sum(len(coder.encode(each)) for each in plain)
            found[step] = max(found[step], size)
        return partition(self, n)

    monkeypatch.setattr(execution.BundleContextManager, "get_buffer", named)
    monkeypatch.setattr(execution.GroupingBuffer, "partition", measured)
    return found


@pytest.mark.heavy
def test_values_of_a_key_do_not_grow_with_the_inputs(tmp_path, largest, monkeypatch) -> None:
    """Four times the inputs have more keys, not larger ones; parts are listed in a few bytes."""
    monkeypatch.setattr(plan, "_GROUP_INPUTS", 16)
    monkeypatch.setattr(placement, "PART_REFS", 16)
    sizes = []
    for count_ in (60, 240):
        folder = tmp_path / str(count_)
        make_photos(folder / "in", {"a": count_}, size=(8, 8))
        for number in range(count_ // 2):  # all copies of one content
            shutil.copy(folder / "in/a/000.jpg", folder / f"in/a/x{number:03d}.jpg")
        options = {
            "input": folder / "in",
            "output": folder / "out",
            "image_size": "8",
            "splits": "train:1",
            "shard_examples": 40,
        }
        build_dataset(**options)
        shutil.copy(folder / "in/a/001.jpg", folder / "in/a/new.jpg")
        os.rename(folder / "in/a/002.jpg", folder / "in/a/renamed.jpg")
        build_dataset(**options, update=True)
        sizes.append({**largest})
        largest.clear()
    few, many = sizes
    assert {"GroupByPart", "GroupByContent", "JoinByKey", "JoinByContent"} <= few.keys()
    assert few.keys() == many.keys()
    grown = {step for step in few if many[step] > 1.6 * few[step]}
    assert grown <= {"GroupBySeries", "GroupByContent"}
    # Some bytes of each part, and four records of the copies in each shard.
    parts, shards = 4 * (240 + 120) // 16, (240 + 120) // 40
    assert many["GroupBySeries"] < 160 * parts
    assert many["GroupByContent"] < 60 * (2 * 16 + 4 * shards)


def test_a_stored_collection_has_few_bytes_per_input(tmp_path, monkeypatch) -> None:
    """The in-memory runner holds what it stores: references are packed before it stores them."""
    stored: dict[str, int] = defaultdict(int)
    get_buffer, append = execution.BundleContextManager.get_buffer, execution.ListBuffer.append

    def named(self, buffer_id, transform_id):
        buffer = get_buffer(self, buffer_id, transform_id)
        kind, name = execution.split_buffer_id(buffer_id)
        if kind == "materialize":
            collections = self.execution_context.pipeline_components.pcollections
            # That of a flatten has the name of the step.
            buffer.stored_as = collections[name].unique_name if name in collections else name
        return buffer

    def measured(self, element):
        stored[getattr(self, "stored_as", "impulse")] += len(element)
        append(self, element)

    monkeypatch.setattr(execution.BundleContextManager, "get_buffer", named)
    monkeypatch.setattr(execution.ListBuffer, "append", measured)
    photos = make_photos(tmp_path / "in", {"a": 100}, size=(8, 8))
    options = {"input": photos, "output": tmp_path / "out", "image_size": "8"}
    build_dataset(**options)
    make_photos(photos, {"b": 1}, size=(8, 8))
    build_dataset(**options, update=True)
    ours = {name: size for name, size in stored.items() if "WriteShards" in name}
    assert "WriteShards/ComparePublished/AllCompared" in ours
    assert {name: size for name, size in ours.items() if size > 201 * 100} == {}

"""WriteElements: write the elements of a PCollection as a published dataset.

The elements of a bundle are written as runs in the build folder, so that only references to them
cross a shuffle. When all are written, their counts are known, and the build goes on as for rows.
Bundles decide which records share a run, but neither the records nor their order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from shardmill.schemas.errors import ShardmillError, format_value
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import MatchCounts, Reject, SegmentRef
from shardmill.schemas.schema_pbtxt.columns import parse_schema
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.elements.typed_elements import (
    ElementReader,
    FeatureCensus,
    StoredFile,
    read_stored,
    resolve_schema,
    size_of,
    store_examples,
)
from shardmill.transforms.runtime.beam_steps import SumInto
from shardmill.transforms.sink.census import Census
from shardmill.transforms.sink.placement import REJECTED, Series
from shardmill.transforms.sink.plan import Plan, decide_status
from shardmill.transforms.sink.spec import (
    EncoderOutput,
    ExtraFiles,
    Outcome,
    SinkSpec,
    delete_unused_build,
)
from shardmill.transforms.sink.transform import BuildInput, BuildShards, failure_of
from shardmill.transforms.tables import segments
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.encoder import RowEncoder, RowsHooks, merge_segments
from shardmill.transforms.tables.run_writer import encode_splits, find_run, run_id, write_run
from shardmill.transforms.tables.segments import Origin, Run
from shardmill.transforms.tables.table import Table, count_row_parts, place_batch
from shardmill.transforms.tables.table_source import list_features
from shardmill.transforms.tables.transform import CutSegments

RUN_BYTES = 16 << 20  # of elements in memory
_RUNS, _COUNTS = "runs", "counts"
_OF_DIGEST = 16  # bytes


@dataclass(frozen=True)
class ElementsSpec:
    """All options of a build of elements; a picklable value that every worker receives.

    Attributes:
        sink: Options of the dataset.
        reader: Schema, key and split of the elements.
        versions: Versions of all code that decides bytes.
        unique: Whether equal keys fail the build; if not, copies of a record are dropped.
    """

    sink: SinkSpec
    reader: ElementReader
    versions: Mapping[str, str]
    unique: bool = True


@dataclass(frozen=True)
class ElementEncoder(RowEncoder):
    """The ``Encoder`` of the segments of runs of elements.

    Attributes:
        unique: See ``ElementsSpec``.
    """

    unique: bool = True

    def encode(self, refs: Sequence[SegmentRef], labels: Sequence[str]) -> Iterator[EncoderOutput]:  # noqa: ARG002
        """Yield the rejects of segments without a split by key, and the records of the others."""
        listed = [line for ref in refs if not ref.split for line in segments.read_lines(ref)]
        yield from (Reject(**json.loads(line)) for line in sorted(listed))
        segment_refs = [ref for ref in refs if ref.split]
        if segment_refs:
            for item in merge_segments(segment_refs, "", summarize=True, unique=self.unique):
                if isinstance(item, Reject):
                    yield item._replace(message=_SAME_KEY)
                else:
                    yield item


_SAME_KEY = "another element has the same key: give each element a different key"


@dataclass(frozen=True)
class ElementsHooks(RowsHooks):
    """What elements add at the end of a build.

    Attributes:
        unique: See ``ElementsSpec``.
        untyped: Whether the elements are examples without a schema.
        inputs: See ``BuildHooks``.
    """

    unique: bool = True
    untyped: bool = False
    inputs: str = "elements"

    def extra_files(self, build: str, input_id: str) -> ExtraFiles:
        """Return the schema that examples without a schema have, and its features."""
        if not self.untyped:
            return ExtraFiles()
        path = _schema_path(build, input_id)
        text = open_storage(path).read(path).decode()
        features = [(column.name, column.kind) for column in parse_schema(text, path)]
        return ExtraFiles({}, text, list_features(features))

    def why_unacceptable(self, rejects: Iterator[Reject], rows: int) -> str:  # noqa: ARG002
        """Return a message with one of the equal keys, unless they are allowed."""
        keys = [reject.key for reject in rejects if reject.error == "key_conflict" and self.unique]
        if not keys:
            return ""
        return (
            f"{plural(len(keys), 'element')} with the key of another one, such as "
            f"{format_value(min(keys))}: give each element a different key, or set "
            "duplicates='drop' to keep one of equal elements"
        )


@dataclass(eq=False)
class WriteElements(beam.PTransform):
    """Writes elements as a published dataset: ``elements | WriteElements(spec)``.

    Gives one ``Outcome``.

    Args:
        spec: Options of the build.
    """

    spec: ElementsSpec

    def expand(self, elements: beam.PCollection[Any]) -> beam.PCollection[Outcome]:
        """Wire runs, plan and build."""
        spec = self.spec
        batches = (
            elements
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
            | "BatchElements"
            >> beam.BatchElements(
                RUN_BYTES, RUN_BYTES, element_size_fn=size_of, record_metrics=False
            )
        )
        reader = None
        if spec.reader.table.columns:
            written = batches | "WriteRuns" >> beam.FlatMap(
                write_elements, spec, spec.reader
            ).with_outputs(_COUNTS, main=_RUNS)
            counts = written[_COUNTS]
        else:
            files, reader = _store_all(batches, spec)
            written = files | "WriteRuns" >> beam.FlatMap(
                _write_stored, spec, AsSingleton(reader)
            ).with_outputs(_COUNTS, main=_RUNS)
            failures = reader | "ListFailures" >> beam.FlatMap(_failures)
            counts = (written[_COUNTS], failures) | "AllCounts" >> beam.Flatten()
        census = counts | "SumCounts" >> beam.CombineGlobally(SumInto(Census, Census.merge))
        plan = census | "PlanParts" >> beam.Map(plan_elements, spec)
        if reader is not None:
            plan |= "StoreSchema" >> beam.Map(_store_schema, AsSingleton(reader), spec)
        runs = (
            written[_RUNS]
            | "KeyRuns" >> beam.WithKeys(lambda run: run.key)
            | "GroupEqualRuns" >> beam.GroupByKey()
            | "NumberRuns" >> beam.FlatMap(number_runs)
        )
        cut = (runs, plan) | "CutSegments" >> CutSegments(spec.sink.runs)
        placed = cut | "AllPlaced" >> beam.Flatten()
        encoder = ElementEncoder(spec.reader, dict(spec.versions), unique=spec.unique)
        built = BuildInput(placed, plan, census) | BuildShards(spec.sink, encoder)
        return built | "DeleteRuns" >> beam.Map(delete_unused_build, spec.sink)


def _store_all(
    batches: beam.PCollection[Sequence[Any]], spec: ElementsSpec
) -> tuple[beam.PCollection[StoredFile], beam.PCollection[ElementReader | str]]:
    """Store batches of examples; return the files, and the reader with the schema of all.

    The reader is a message if there is no schema.
    """
    stored = batches | "StoreExamples" >> beam.FlatMap(_store, spec).with_outputs(
        _COUNTS, main=_RUNS
    )
    reader = (
        stored[_COUNTS]
        | "SumFeatures" >> beam.CombineGlobally(SumInto(FeatureCensus, FeatureCensus.merge))
        | "ResolveSchema" >> beam.Map(resolve_schema, spec.reader)
    )
    return stored[_RUNS] | "SpreadExamples" >> beam.Reshuffle(), reader


def _store(elements: Sequence[Any], spec: ElementsSpec) -> Iterator[Any]:
    """Store a batch of examples; yield the file and its census."""
    if not elements:  # as in write_elements
        return
    try:
        file, census = store_examples(elements, spec.sink.runs, spec.sink.config_id, spec.reader)
    except (MemoryError, ShardmillError) as error:
        file, census = None, FeatureCensus(failure=failure_of(error))
    if file is not None:
        yield file
    yield TaggedOutput(_COUNTS, census)


def _write_stored(
    file: StoredFile, spec: ElementsSpec, reader: ElementReader | str
) -> Iterator[Any]:
    """Write stored examples as a run, as ``write_elements`` does."""
    if isinstance(reader, str):
        return
    try:
        examples = read_stored(file)
    except (MemoryError, ShardmillError) as error:
        yield TaggedOutput(_COUNTS, Census(counts=MatchCounts(fatal=failure_of(error))))
        return
    yield from write_elements(examples, spec, reader)


def _failures(reader: ElementReader | str) -> Iterator[Census]:
    """Yield a census that fails the build if there is no schema."""
    if isinstance(reader, str) and reader:
        yield Census(counts=MatchCounts(fatal=reader))


def _store_schema(plan: Plan, reader: ElementReader | str, spec: ElementsSpec) -> Plan:
    """Store the schema in the build folder, where ``ElementsHooks`` finds it; return the plan."""
    if plan.status == "build" and not isinstance(reader, str):
        path = _schema_path(spec.sink.build, plan.read_id)
        open_storage(path).replace(path, reader.schema([]).encode())
    return plan


def _schema_path(build: str, read_id: str) -> str:
    return join(build, f"schema-{read_id}.pbtxt")


def plan_elements(census: Census, spec: ElementsSpec) -> Plan:
    """Return the plan for the elements that were written as runs, after checking the output."""
    if census.counts.fatal:
        return Plan("failed", census.counts.fatal)
    if not census.matched:
        return Plan("failed", "The collection has no elements: check what gives them.")
    splits = {Series(name, ""): (0, 0) for name in spec.sink.place.splits.required}
    parts = {
        name: count_row_parts(spec.sink.shards, 1, float(Fraction(size or 1, rows or 1)), size)
        for name, (rows, size) in sorted((splits | census.series).items())
    }
    plan = Plan(
        "build",
        "",
        parts | {REJECTED: 1},
        input_id=census.input_id,
        warnings=spec.sink.warnings,
        ctime_id=census.ctime_id,
    )
    return decide_status(spec.sink, plan)


def write_elements(
    elements: Sequence[Any], spec: ElementsSpec, reader: ElementReader
) -> Iterator[Any]:
    """Write elements as a run, or find the same one; yield it and its counts.

    Args:
        elements: Elements of a bundle, in any order.
        spec: Options of the build.
        reader: Schema, key and split of the elements.
    """
    if not elements:  # BatchElements gives none before an element that is larger than a batch
        return
    try:
        batch, keys = reader.read(elements)
        table = place_batch(reader.table, batch)
        rejects = [_keyed(reject, keys) for reject in table.rejects]
        census = Census(matched=len(elements))
        splits, digests = _encode(table, keys, census)
        digests += [_digest(reject.to_json().encode()) for reject in rejects]
        census.identity = sum(int.from_bytes(digest, "big") for digest in digests) % (1 << 128)
        yield _write(spec, splits, rejects, digests)
        yield TaggedOutput(_COUNTS, census)
    except (MemoryError, ShardmillError) as error:
        yield TaggedOutput(_COUNTS, Census(counts=MatchCounts(fatal=failure_of(error))))


def _keyed(reject: Reject, keys: Sequence[bytes]) -> Reject:
    key = keys[(reject.line or 1) - 1].decode("utf-8", "backslashreplace")
    return reject._replace(key=key, line=None)


def _digest(*body: bytes) -> bytes:
    text = b"\0".join((b"%d" % len(body[0]), *body))
    return hashlib.blake2b(text, digest_size=_OF_DIGEST, person=b"shardmill-elem").digest()


def _encode(
    table: Table, keys: Sequence[bytes], census: Census
) -> tuple[list[tuple[str, pa.Table, int]], list[bytes]]:
    """Return the records of each split, and the digest of each; count them in a census.

    The origin of a record is its digest and its key, so that the order of records with one key
    follows from their content.
    """
    splits, digests, rows = [], [], iter(table.order.tolist())
    for split, records, slices in encode_splits(table, Origin("", "", "")):
        origins, size = [], 0
        name = split.encode()
        for chunk in records[segments.FRAME].chunks:
            size += int(ByteStrings.of_arrow(chunk).sizes.sum())
            for frame in chunk.to_pylist():
                key = keys[next(rows)]
                digests.append(_digest(key, name, frame))
                key_text = key.decode("utf-8", "backslashreplace").replace("\0", "\\0")
                origins.append(Origin(digests[-1].hex(), key_text, "").to_text())
        number = records.column_names.index(segments.ORIGIN)
        splits.append((split, records.set_column(number, segments.ORIGIN, [origins]), slices))
        census.merge(Census(series={Series(split, ""): (len(origins), size)}))
    return splits, digests


def _write(
    spec: ElementsSpec,
    splits: Sequence[tuple[str, pa.Table, int]],
    rejects: Sequence[Reject],
    digests: Sequence[bytes],
) -> Run:
    # Its content names a run: a bundle that is processed again, at the same time or later, gives
    # the same run, and nothing refers to the files of a failed attempt.
    name = run_id(spec.sink.config_id, _digest(*digests).hex())
    folder = spec.sink.runs
    made = find_run(folder, name) or write_run(folder, name, splits, rejects)
    return Run(name, join(folder, made.payload), made.blocks)


def number_runs(group: tuple[str, Iterable[Run]]) -> Iterator[Run]:
    """Yield the runs of a name with different keys: equal ones of several bundles are copies."""
    for number, run in enumerate(group[1]):
        yield run._replace(key=f"{run.key}#{number}")

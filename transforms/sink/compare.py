"""Compare the matched inputs with the published dataset: find changes and reusable records.

References and rows of catalogs are joined by key. Inputs without a row may be renamed or only
touched: they are joined by the hash of their content with published inputs that are gone. An input
that differs in its ctime alone is read and compared with the hash in the catalog: programs can set
the other times of a file, but not the ctime.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput
from blake3 import blake3

from shardmill.schemas.dataset.manifest import Shard
from shardmill.schemas.errors import StorageError
from shardmill.schemas.refs import InputRef, PublishedRecord, RejectedError
from shardmill.schemas.storage.base import map_ordered, storage_threads
from shardmill.transforms.match.read_input import read_inputs
from shardmill.transforms.runtime.beam_steps import (
    SumInto,
    pack_all,
    pack_values,
    singleton_sum,
    unpack,
)
from shardmill.transforms.sink.census import INPUTS, Changes
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.reuse import PublishedRow, path_of, read_rejected, read_rows
from shardmill.transforms.sink.spec import SinkSpec

BATCH = 256  # inputs that are hashed at a time
_SIZES = 1 << 18  # numbers that represent the sizes of inputs, so that their set stays small
_LOCAL_READERS = 4
_NEW, _GONE, _CHANGES = "new", "gone", "changes"  # output tags
_Row = tuple[Any, ...]  # an InputRef or PublishedRow as plain values, which take less space


def add_changes(plan: Plan, changes: Changes, spec: SinkSpec) -> Plan:
    """Return the plan with the changes since the published dataset.

    A dataset that seemed up to date is not if an input whose ctime alone differed has another
    content.
    """
    is_held = plan.status == "failed" and spec.update
    if not changes.counts or is_held:
        return plan
    if plan.status == "up_to_date" and spec.update:
        plan = plan.start(spec)
    elif plan.status in ("failed", "up_to_date"):
        changed = "; ".join([*plan.changes, str(changes)])
        message = (
            f"The inputs of {spec.output} have changed since it was built ({changed}): run "
            "again with --update to publish a new version, or choose another --output."
        )
        plan = plan.fail(spec, message)
    return replace(plan, changes=(*plan.changes, *changes.lines()))


def compare_group(
    refs: Iterable[bytes], rows: Iterable[bytes], root: str, *, content: bool
) -> Iterator[InputRef | TaggedOutput]:
    """Compare the inputs of some keys with their published rows; see ``compare_key``."""
    keys: dict[str, tuple[list[_Row], list[_Row]]] = defaultdict(lambda: ([], []))
    for ref in unpack(refs):
        keys[ref[0]][0].append(ref)
    for key, row in unpack(rows):
        keys[key][1].append(row)
    for key, (inputs, published) in keys.items():
        yield from compare_key(key, inputs, published, root, content=content)


def compare_key(
    key: str, refs: Iterable[_Row], rows: Iterable[_Row], root: str, *, content: bool = False
) -> Iterator[InputRef | TaggedOutput]:
    """Compare the inputs of one key with its published rows.

    Of several files with one key, which differ in the form of Unicode text, one has a record and
    the others are rejects. A record is taken for the file that it was made of alone.

    Args:
        key: The key.
        refs: Its inputs.
        rows: Its published rows.
        root: Folder that the keys of the references are relative to.
        content: Whether size and times are not trusted.

    Yields:
        Unchanged references; as ``_NEW`` the others, and references that are unchanged only if
        their content equals that of the published record; as ``_GONE`` size and record of a
        deleted input; and changes.
    """
    every = sorted((InputRef(*ref) for ref in refs), key=lambda ref: ref.offset)
    inputs = [*{ref.uri: ref for ref in every}.values()]
    # Members of an archive that a later one of the same name replaces are only counted.
    yield from (ref for ref in every if ref not in inputs)
    published = [PublishedRow(*row) for row in rows]
    # At most one file of a key has a record; the others are rejects, whose size is -1.
    old = max(published, default=PublishedRow(), key=lambda row: row.size)
    rejects, gone = sum(row.size < 0 for row in published), old.record
    for _ in range(len(published) - len(inputs)):
        yield TaggedOutput(_CHANGES, ("removed", key))
    kind = "new" if len(inputs) > len(published) else "changed"
    for ref in inputs:
        # The path too: a deleted file may have had the same key, size and time.
        same = (ref.size, ref.version, path_of(ref.uri, ref.key, root)) == (*old[:2], old.path)
        if same:
            gone = b""
            unchanged = ref._replace(published=old.record)
            if old.record and (content or ref.ctime != old.ctime):
                yield TaggedOutput(_NEW, tuple(unchanged))
            else:
                yield unchanged
        else:
            yield TaggedOutput(_NEW, tuple(ref))
        # A published reject has no path: it may have been any other file of its key.
        if not same and rejects:
            rejects -= 1
        elif not same or (ref.label, ref.values_digest()) != (old.label, old.values):
            yield TaggedOutput(_CHANGES, (kind, key))
    if gone:
        yield TaggedOutput(_GONE, (old.size, gone))


def hash_inputs(refs: list[InputRef]) -> Iterator[tuple[str, InputRef]]:
    """Yield inputs with the BLAKE3 of their content.

    An unreadable input has an empty hash, and is rejected with the reason: the next run may be
    able to read it.

    Raises:
        StorageError: Reading failed three times.
    """

    def digest(ref: InputRef) -> tuple[str, InputRef]:
        (result,) = read_inputs([ref])
        if isinstance(result, RejectedError):
            return "", ref.rejected(result.error, result.message)
        return blake3(result).hexdigest(), ref

    # Waiting for missing files overlaps, and few files are in memory at a time.
    threads = 0
    if refs:
        threads = storage_threads(refs[0].file) or _LOCAL_READERS
    yield from map_ordered(digest, refs, threads)


def hash_candidates(
    refs: list[InputRef], gone_sizes: Collection[int]
) -> Iterator[InputRef | TaggedOutput]:
    """Yield inputs that are unchanged or surely new; others by the hash of their content.

    Unreadable inputs pass: the decoder finds the reason, as in a build from scratch.

    Args:
        refs: Inputs that are not known by their keys, or whose content must be compared.
        gone_sizes: Sizes of the published inputs that are gone, modulo ``_SIZES``.
    """
    candidates = []
    for ref in refs:
        # A new input is read only if it may be a renamed one: most are read once, by the decoder.
        if ref.published or ref.size % _SIZES in gone_sizes:
            candidates.append(ref)
        else:
            yield ref
    try:
        digests = [digest for digest, _ in hash_inputs(candidates)]
    except StorageError:
        digests = [""] * len(candidates)
    for digest, ref in zip(digests, candidates, strict=True):
        if ref.published and PublishedRecord.unpack(ref.published).image.content_hash == digest:
            yield ref
            continue
        # The content changed under an equal size and time. It may equal a deleted input's.
        if ref.published:
            yield TaggedOutput(_CHANGES, ("changed", ref.key))
        unknown = ref._replace(published=b"")
        if digest:
            yield TaggedOutput(_NEW, (digest, tuple(unknown)))
        else:  # Inputs that cannot be read are not copies of each other.
            yield unknown


def match_content(refs: Iterable[_Row], gone: Iterable[bytes]) -> Iterator[InputRef]:
    """Yield inputs of one content with a published record of this content, if there is one."""
    # Of several copies the choice must not depend on the order in which they arrive.
    published = min(gone, default=b"")
    for ref in refs:
        yield InputRef(*ref)._replace(published=published)


def _read_published(
    task: tuple[int, Shard | None], plan: Plan, record_id: str
) -> Iterator[tuple[int, tuple[str, _Row]]]:
    """Yield the group, key and row of each input of a published shard, or of the rejects."""
    number, shard = task  # None stands for the rejects
    if not plan.published:
        return
    folder, root = plan.published_folder, plan.published_root
    rows = read_rows(folder, shard, number, record_id, root) if shard else read_rejected(folder)
    for key, row in rows:
        yield plan.group_of(key), (key, tuple(row))


def _key_inputs(packed: bytes, plan: Plan) -> Iterator[InputRef | TaggedOutput]:
    """Yield references unchanged, or with their groups if they are compared."""
    for ref in unpack([packed], INPUTS):
        if plan.published and not ref.error:
            yield TaggedOutput(_NEW, (plan.group_of(ref.key), tuple(ref)))
        else:
            yield ref


@dataclass(eq=False)
class ComparePublished(beam.PTransform):
    """Compares packed references with the dataset that the plan names.

    Gives all references packed again, unchanged ones with their published records, and a side input
    of one ``Changes``.

    Args:
        plan: One ``Plan``.
        spec: Output and options of the build.
    """

    plan: beam.PCollection[Plan]
    spec: SinkSpec

    def expand(
        self, packed: beam.PCollection[bytes]
    ) -> tuple[beam.PCollection[bytes], AsSingleton]:
        """Wires the joins by key and by content."""
        plan, spec = AsSingleton(self.plan), self.spec
        root, content = spec.root, spec.update == "content"
        direct, keyed = packed | "KeyInputs" >> beam.FlatMap(_key_inputs, plan).with_output_types(
            InputRef, new=tuple[int, Any]
        ).with_outputs(_NEW, main="refs")
        kept = (
            {
                "refs": keyed | "PackKeyed" >> pack_values(int),
                "rows": self._read_rows(plan) | "PackRows" >> pack_values(int),
            }
            | "JoinByKey" >> beam.CoGroupByKey()
            | "CompareKeys"
            >> beam.FlatMap(
                lambda pair: compare_group(pair[1]["refs"], pair[1]["rows"], root, content=content)
            )
            .with_output_types(
                InputRef,
                new=tuple[Any, ...],
                gone=tuple[int, Any],
                changes=tuple[str, str],
            )
            .with_outputs(_NEW, _GONE, _CHANGES, main="refs")
        )
        # A side input of all sizes that are gone replaces a join: it has at most 262,144 numbers.
        sizes = (
            kept[_GONE]
            | "ListSizes" >> beam.MapTuple(lambda size, _: size % _SIZES)
            | "GoneSizes" >> singleton_sum(beam.combiners.ToSetCombineFn())
        )
        hashed = (
            kept[_NEW]
            | "SpreadCandidates" >> beam.Reshuffle()
            | "BatchCandidates" >> beam.BatchElements(1, BATCH)
            | "HashCandidates"
            >> beam.FlatMap(
                lambda refs, sizes: hash_candidates([InputRef(*ref) for ref in refs], sizes), sizes
            )
            .with_output_types(InputRef, new=tuple[str, Any], changes=tuple[str, str])
            .with_outputs(_NEW, _CHANGES, main="refs")
        )
        changed = (kept[_CHANGES], hashed[_CHANGES]) | "AllChanges" >> beam.Flatten()
        changes = changed | "SumChanges" >> singleton_sum(SumInto(Changes, Changes.add))
        gone = kept[_GONE] | "KeyByContent" >> beam.MapTuple(
            lambda _, record: (PublishedRecord.unpack(record).image.content_hash, record)
        ).with_output_types(tuple[str, Any])
        renamed = (
            {"refs": hashed[_NEW], "gone": gone}
            | "JoinByContent" >> beam.CoGroupByKey()
            | "MatchContent"
            >> beam.FlatMap(
                lambda pair: match_content(pair[1]["refs"], pair[1]["gone"])
            ).with_output_types(InputRef)
        )
        # Packed before they are flattened: a runner may store the inputs of a Flatten.
        compared = {
            "Direct": direct,
            "Unchanged": kept["refs"],
            "Hashed": hashed["refs"],
            "Matched": renamed,
        }
        every = [refs | f"Pack{name}" >> pack_all(INPUTS) for name, refs in compared.items()]
        return every | "AllCompared" >> beam.Flatten(), changes

    def _read_rows(self, plan: AsSingleton) -> beam.PCollection[tuple[int, Any]]:
        return (
            self.plan
            | "ListPublished" >> beam.FlatMap(lambda plan: enumerate((*plan.published, None)))
            | "SpreadPublished" >> beam.Reshuffle()
            | "ReadPublished"
            >> beam.FlatMap(_read_published, plan, self.spec.record_id).with_output_types(
                tuple[int, Any]
            )
        )

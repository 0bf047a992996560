"""Compare the matched inputs with the published dataset: what changed, and what can be reused.

References and catalogs are joined by key. Inputs that are new under their key, or changed, may be
renamed or only touched: those that have the size of a published input that is gone are read and
joined with it by the hash of their content. An input that differs in its ctime alone is read and
compared with the hash in the catalog: programs can set the other times of a file, but not this.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, TaggedOutput
from blake3 import blake3

import shardmill.transforms.sink.coders  # noqa: F401 - registers the coders
from shardmill.schemas.errors import ShardmillError, StorageError
from shardmill.schemas.refs import InputRef, KnownRecord
from shardmill.schemas.rejects import TRANSIENT, RejectedError
from shardmill.schemas.storage import open_storage
from shardmill.transforms.match.read_input import read_inputs
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads
from shardmill.transforms.runtime.sum_into import SumInto, singleton_sum
from shardmill.transforms.sink.planning import Plan
from shardmill.transforms.sink.reuse import PublishedRow, PublishedShard, path_of, read_rows

Kind = Literal["new", "changed", "removed"]
_EXAMPLES = 10
BATCH = 256  # inputs that are hashed at a time
_BUCKETS = 1024  # of keys
_LOCAL_READERS = 4
_NEW, _GONE, _DOUBTED, _CHANGES = "new", "gone", "doubted", "changes"  # output tags
_Row = tuple[Any, ...]  # an InputRef or PublishedRow as plain values, which take less space


@dataclass
class Changes:
    """What changed since the dataset was published; independent of the order of adding.

    Attributes:
        counts: Number of inputs by kind of change.
        examples: The smallest keys of each kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, change: tuple[Kind, str]) -> None:
        """Add one input."""
        kind, key = change
        self._add(kind, 1, [key])

    def merge(self, other: Changes) -> None:
        """Add other changes."""
        for kind, count in other.counts.items():
            self._add(kind, count, other.examples[kind])

    def _add(self, kind: str, count: int, keys: list[str]) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.examples[kind] = sorted([*self.examples.get(kind, []), *keys])[:_EXAMPLES]

    def lines(self) -> tuple[str, ...]:
        """Return a line for each kind of change, with its number and some keys."""
        return tuple(
            f"{count:,} {kind}: {', '.join(self.examples[kind])}"
            + (", ..." if count > len(self.examples[kind]) else "")
            for kind, count in sorted(self.counts.items())
        )

    def __str__(self) -> str:
        """Return the numbers, as in ``12 new, 3 changed, 1 removed``; empty for none."""
        kinds = ("new", "changed", "removed")
        return ", ".join(f"{self.counts[kind]:,} {kind}" for kind in kinds if kind in self.counts)


def compare_bucket(
    refs: Iterable[_Row], rows: Iterable[tuple[str, _Row]], root: str, *, doubt: bool
) -> Iterator[InputRef | TaggedOutput]:
    """Compare the inputs of some keys with what is published of them; see ``compare_key``."""
    keys: dict[str, tuple[list[_Row], list[_Row]]] = defaultdict(lambda: ([], []))
    for ref in refs:
        keys[ref[0]][0].append(ref)
    for key, row in rows:
        keys[key][1].append(row)
    for key, (found, published) in keys.items():
        yield from compare_key(key, found, published, root, doubt=doubt)


def compare_key(
    key: str, refs: Iterable[_Row], rows: Iterable[_Row], root: str, *, doubt: bool = False
) -> Iterator[InputRef | TaggedOutput]:
    """Compare the inputs of one key with what is published of it.

    Of several files with one key, which differ in the form of Unicode text, one has a record and
    the others are rejects. A record is taken for the file that it was made of alone.

    Yields:
        The references that need no further search; as ``_DOUBTED`` those whose content must be
        compared, which are all with ``doubt``; the others as ``_NEW`` and the row as ``_GONE`` by
        size; and changes.
    """
    found = [InputRef(*ref) for ref in refs]
    published = [PublishedRow(*row) for row in rows]
    old = max(published, default=PublishedRow(), key=lambda row: row.size)
    rejects, gone = sum(row.size < 0 for row in published), old.record
    for _ in range(len(published) - len(found)):
        yield TaggedOutput(_CHANGES, ("removed", key))
    kind = "new" if len(found) > len(published) else "changed"
    for ref in found:
        same = (ref.size, ref.version, path_of(ref.uri, ref.key, root)) == (*old[:2], old.path)
        if same:
            gone = b""
            doubted = old.record and (doubt or ref.ctime != old.ctime)
            ref = ref._replace(known=old.record)  # noqa: PLW2901
            yield TaggedOutput(_DOUBTED, ref) if doubted else ref
        else:
            yield TaggedOutput(_NEW, (ref.size, tuple(ref)))
        if not same and rejects:
            rejects -= 1
        elif not same or ref.label != old.label:
            yield TaggedOutput(_CHANGES, (kind, key))
    if gone:
        yield TaggedOutput(_GONE, (old.size, gone))


def find_candidates(
    refs: Iterable[_Row], gone: Iterable[bytes]
) -> Iterator[InputRef | TaggedOutput]:
    """Yield new inputs of one size; as ``_NEW`` if a published input of this size is gone."""
    records = iter(gone)
    first = next(records, None)
    if first is None:
        yield from (InputRef(*ref) for ref in refs)
        return
    for ref in refs:
        yield TaggedOutput(_NEW, InputRef(*ref))
    for record in (first, *records):
        yield TaggedOutput(_GONE, (KnownRecord.unpack(record).content_hash, record))


def hash_inputs(refs: list[InputRef]) -> Iterator[tuple[str, InputRef]]:
    """Yield inputs with the BLAKE3 of their content.

    One that cannot be read has an empty one, and is rejected with the reason: perhaps it can be
    read when the next run looks at it again.

    Raises:
        StorageError: Reading failed three times.
    """

    def digest(ref: InputRef) -> tuple[str, InputRef]:
        (result,) = read_inputs([ref])
        if isinstance(result, RejectedError):
            return "", ref.rejected(result.error, result.message)
        return blake3(result).hexdigest(), ref

    # Waiting for missing files overlaps, and few files are in memory at a time.
    threads = storage_threads(refs[0].uri) or _LOCAL_READERS if refs else 0
    yield from map_ordered(digest, refs, threads)


def hash_candidates(refs: list[InputRef]) -> Iterator[InputRef | TaggedOutput]:
    """Yield inputs that have the content of their known record; the others by their hash.

    It is empty for what the decoder will reject, which reads such an input again, as in a build
    from scratch.
    """
    try:
        digests = [digest for digest, _ in hash_inputs(refs)]
    except StorageError:
        digests = [""] * len(refs)
    for digest, ref in zip(digests, refs, strict=True):
        if not ref.known:
            yield TaggedOutput(_NEW, (digest, tuple(ref)))
        elif KnownRecord.unpack(ref.known).content_hash == digest:
            yield ref
        else:
            yield TaggedOutput(_CHANGES, ("changed", ref.key))
            yield TaggedOutput(_NEW, (digest, tuple(ref._replace(known=b""))))


def match_content(refs: Iterable[_Row], gone: Iterable[bytes]) -> Iterator[InputRef]:
    """Yield inputs of one content, with a published record of the same content if there is one."""
    known = min(gone, default=b"")
    for ref in refs:
        yield InputRef(*ref)._replace(known=known)


def read_task(task: _Row, record_id: str) -> Iterator[tuple[int, tuple[str, _Row]]]:
    """Yield the bucket, key and row of each input in a piece of the published dataset."""
    (number, root), shard = task[:2], PublishedShard(*task[2:])
    rows = _rejected_rows(shard.path)
    if shard.catalog:
        rows = read_rows(shard, number, record_id, root)
    for key, row in rows:
        yield _bucket(key), (key, tuple(row))


def _rejected_rows(path: str) -> Iterator[tuple[str, PublishedRow]]:
    """Yield the keys of the published rejects that are compared; they have no row in a catalog."""
    with contextlib.suppress(ShardmillError, OSError, ValueError, TypeError, KeyError):
        for line in open_storage(path).read(path).splitlines():
            reject = json.loads(line)
            # What matching rejects for good is not compared; what it could not read for a moment
            # may be an input now.
            if reject["stage"] != "match" or reject["error"] in {"key_conflict", *TRANSIENT}:
                yield reject["key"], PublishedRow()


class Compared(NamedTuple):
    """The outputs of ``ComparePublished``.

    Attributes:
        refs: All references; unchanged ones with their published records.
        changes: A side input of one ``Changes``.
    """

    refs: beam.PCollection[InputRef]
    changes: AsSingleton


@dataclass(eq=False)
class ComparePublished(beam.PTransform):
    """Compares references with the dataset that the plan names.

    Args:
        plan: One ``Plan``.
        record_id: See ``read_rows``.
        root: Folder that the keys of the references are relative to.
        doubt: Whether the content of all inputs is compared.
    """

    plan: beam.PCollection[Plan]
    record_id: str
    root: str
    doubt: bool = False

    def expand(self, refs: beam.PCollection[InputRef]) -> Compared:
        """Wires the joins by key, size and content."""
        plan, root, doubt = AsSingleton(self.plan), self.root, self.doubt
        direct, keyed = refs | "KeyInputs" >> beam.FlatMap(_key_inputs, plan).with_output_types(
            InputRef, new=tuple[int, Any]
        ).with_outputs(_NEW, main="refs")
        kept = (
            {"refs": keyed, "rows": self._read_published()}
            | "JoinByKey" >> beam.CoGroupByKey()
            | "CompareKeys" >> beam.FlatMap(
                lambda pair: compare_bucket(pair[1]["refs"], pair[1]["rows"], root, doubt=doubt)
            ).with_output_types(
                InputRef, new=tuple[int, Any], gone=tuple[int, Any], doubted=InputRef,
                changes=tuple[str, str],
            ).with_outputs(_NEW, _GONE, _DOUBTED, _CHANGES, main="refs")
        )  # fmt: skip
        sized = (
            {"refs": kept[_NEW], "gone": kept[_GONE]}
            | "JoinBySize" >> beam.CoGroupByKey()
            | "FindCandidates" >> beam.FlatMap(
                lambda pair: find_candidates(pair[1]["refs"], pair[1]["gone"])
            ).with_output_types(InputRef, new=InputRef, gone=tuple[str, Any])
            .with_outputs(_NEW, _GONE, main="refs")
        )  # fmt: skip
        hashed = (
            (sized[_NEW], kept[_DOUBTED])
            | "AllCandidates" >> beam.Flatten()
            | "SpreadCandidates" >> beam.Reshuffle()
            | "BatchCandidates" >> beam.BatchElements(1, BATCH)
            | "HashCandidates"
            >> beam.FlatMap(hash_candidates)
            .with_output_types(InputRef, new=tuple[str, Any], changes=tuple[str, str])
            .with_outputs(_NEW, _CHANGES, main="refs")
        )
        matched = (
            {"refs": hashed[_NEW], "gone": sized[_GONE]}
            | "JoinByContent" >> beam.CoGroupByKey()
            | "MatchContent" >> beam.FlatMap(
                lambda pair: match_content(pair[1]["refs"], pair[1]["gone"])
            ).with_output_types(InputRef)
        )  # fmt: skip
        changed = (kept[_CHANGES], hashed[_CHANGES]) | "AllChanges" >> beam.Flatten()
        changes = changed | "SumChanges" >> singleton_sum(SumInto(Changes, Changes.add))
        refs = (direct, kept["refs"], sized["refs"], hashed["refs"], matched)
        every = refs | "AllCompared" >> beam.Flatten()
        return Compared(every, changes)

    def _read_published(self) -> beam.PCollection[tuple[int, Any]]:
        return (
            self.plan
            | "ListPublished"
            >> beam.FlatMap(
                lambda plan: (
                    (number, plan.published_root, *shard)
                    for number, shard in enumerate(plan.published)
                )
            )
            | "SpreadPublished" >> beam.Reshuffle()
            | "ReadPublished"
            >> beam.FlatMap(read_task, self.record_id).with_output_types(tuple[int, Any])
        )


def _key_inputs(ref: InputRef, plan: Plan) -> Iterator[InputRef | TaggedOutput]:
    """Yield a reference as it is, or with its bucket if it is compared."""
    is_compared = plan.published and not ref.error
    yield TaggedOutput(_NEW, (_bucket(ref.key), tuple(ref))) if is_compared else ref


def _bucket(key: str) -> int:
    """Return the number of a key's bucket: joins of fewer and larger groups cost less."""
    return zlib.crc32(key.encode()) % _BUCKETS

"""Reuse the published shards of a label whose inputs and options did not change.

With ``--shard_by=label``, a series of shards (one split and label) has an identity over all that
decides its bytes. The manifest lists it with the counts of the series' inputs, so that the next
build does not read them again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest, PixelSums, SeriesEntry, Shard
from shardmill.schemas.dataset.shard_names import ShardName
from shardmill.schemas.errors import FormatError, StaleBuildError
from shardmill.schemas.rejects import TRANSIENT, Reject
from shardmill.schemas.storage import Storage, join
from shardmill.transforms.build.assemble import BuiltShard
from shardmill.transforms.build.census import Census
from shardmill.transforms.build.placement import REJECTED, Series
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.totals import Totals
from shardmill.transforms.publish.generation import read_published
from shardmill.transforms.statistics.sums import Summary, Sums


@dataclass(frozen=True)
class ReusedShards:
    """Published shards that become part of a new dataset.

    Attributes:
        shards: The shards; one without a file for a series that has none.
        totals: Totals of their series.
        rejects: The published rejects of series that have some.
    """

    shards: tuple[BuiltShard, ...] = ()
    totals: Mapping[Series, Totals] = field(default_factory=dict)
    rejects: Mapping[Series, tuple[Reject, ...]] = field(default_factory=dict)


def series_ids(keep_id: str, plan: Plan, census: Census) -> dict[Series, str]:
    """Return the identity of each series: 32 hexadecimal digits over all that decides its bytes.

    Args:
        keep_id: Identity of the options without the list of labels; empty gives no identities.
        plan: Number of parts in each series, and the labels.
        census: Census of all references.
    """
    if not keep_id:
        return {}
    classes = {label: number for number, label in enumerate(plan.labels)}
    ids = {}
    for series, (refs, _) in census.series.items():
        if series == REJECTED:
            continue
        body = [keep_id, *series, classes.get(series.label, -1), plan.parts_of(series), refs]
        text = json.dumps([*body, f"{census.digests[series]:032x}"])
        state = hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-series")
        ids[series] = state.hexdigest()
    return ids


def describe_series(
    ids: Mapping[Series, str], census: Census, totals: Mapping[Series, Totals]
) -> tuple[SeriesEntry, ...]:
    """Return the manifest entry of each series that has an identity.

    Args:
        ids: Identities.
        census: Census of all references.
        totals: Totals of each series, reused ones included.
    """
    entries = []
    for series in sorted(ids):
        total = totals.get(series, Totals())
        if total.summary.features:  # entries have no field for them: such shards are not reused
            continue
        entries.append(
            SeriesEntry(
                split=series.split,
                label=series.label,
                id=ids[series],
                refs=census.series[series][0],
                rejected_by_reason=dict(sorted(total.rejects.items())),
                duplicates=total.duplicates,
                multi_frame=total.multi_frame,
                pixels=_pixels(total.summary.channels),
            )
        )
    return tuple(entries)


def _pixels(channels: Sequence[Sums]) -> PixelSums | None:
    if not channels:
        return None
    totals, squares = zip(*((sums.total, sums.squares) for sums in channels), strict=True)
    return PixelSums(channels[0].values, totals, squares)


def _summary(pixels: PixelSums | None, records: int) -> Summary:
    if pixels is None:
        return Summary()
    return Summary(
        channels=tuple(
            Sums("int64", records, pixels.count, total=total, squares=squares)
            for total, squares in zip(pixels.totals, pixels.squares, strict=True)
        )
    )


def reuse_series(
    storage: Storage, spec: SinkSpec, plan: Plan, published: Manifest, ids: Mapping[Series, str]
) -> Plan:
    """Return a plan that reuses the published shards of series that did not change.

    Shards are compared by name and size. A series with rejects is reused only if the published
    rejects are complete, belong to the same root, and have no transient reason.

    Args:
        storage: Storage of the output.
        spec: Output and options of the build.
        plan: The plan of a build from scratch.
        published: The published dataset.
        ids: Identity of each series; empty where shards are never reused.
    """
    entries = {Series(each.split, each.label): each for each in published.series}
    same = {series for series in ids if series in entries and entries[series].id == ids[series]}
    if not same:
        return plan
    shards = _by_series(published)
    sizes = {
        entry.path.rsplit("/", 1)[-1]: entry.size
        for entry in storage.list_dir(published.folder(spec.output))
        if entry.kind == "file"
    }
    same = {
        series
        for series in same
        if _adds_up(entries[series], shards.get(series, []))
        and _is_whole(spec, series, shards.get(series, []), sizes)
    }
    with_rejects = {series for series in same if entries[series].rejected_by_reason}
    if with_rejects:
        rejects = _published_rejects(storage, published.folder(spec.output), published)
        same -= {
            series
            for series in with_rejects
            if series not in rejects
            or published.inputs.root != spec.root
            or TRANSIENT & entries[series].rejected_by_reason.keys()
        }
    return replace(plan, reused=frozenset(same))


def load_reused(storage: Storage, spec: SinkSpec, plan: Plan) -> ReusedShards | None:
    """Return the published shards that a plan reuses, or None if its dataset is published now.

    Raises:
        StaleBuildError: Another dataset was published since the plan was made.
    """
    if not plan.reused:
        return ReusedShards()
    output = spec.output
    published, version = read_published(storage, output)
    if published is None or version != plan.base:
        if published is not None and published.is_dataset(spec.config_id, plan.input_id):
            return None  # by another builder, or by this one: a runner may run steps twice
        raise _replaced_error(output)
    rejects: dict[Series, tuple[Reject, ...]] = {}
    entries = [each for each in published.series if Series(each.split, each.label) in plan.reused]
    if any(each.rejected_by_reason for each in entries):
        rejects = _published_rejects(storage, published.folder(output), published)
    shards = _by_series(published)
    built: list[BuiltShard] = []
    totals: dict[Series, Totals] = {}
    for each in entries:
        series = Series(each.split, each.label)
        if each.rejected_by_reason and series not in rejects:
            raise _replaced_error(output)
        built += _rebuilt(series, shards.get(series, []), published.generation)
        totals[series] = _totals(each, sum(shard.records for shard in shards.get(series, ())))
    mine = {series: rejects[series] for series in totals if series in rejects}
    return ReusedShards(tuple(built), totals, mine)


def _replaced_error(output: str) -> StaleBuildError:
    return StaleBuildError(
        f"Another command replaced the dataset at {output}, whose shards were to be reused: "
        "run again."
    )


def _by_series(manifest: Manifest) -> dict[Series, list[Shard]]:
    found: dict[Series, list[Shard]] = {}
    for name, split in manifest.splits.items():
        for shard in split.shards:
            found.setdefault(Series(name, shard.label or ""), []).append(shard)
    return found


def _adds_up(entry: SeriesEntry, shards: Sequence[Shard]) -> bool:
    records = sum(shard.records for shard in shards)
    return entry.refs == records + sum(entry.rejected_by_reason.values()) + entry.duplicates


def _is_whole(
    spec: SinkSpec, series: Series, shards: Sequence[Shard], sizes: Mapping[str, int]
) -> bool:
    for number, shard in enumerate(shards):
        name = ShardName(series.split, number, len(shards), shard.records, series.label)
        if shard.file != spec.shards.template.format(name) or shard.crc32c is None:
            return False
        if sizes.get(shard.file) != shard.bytes:
            return False
    return True


def _rebuilt(series: Series, shards: Sequence[Shard], generation: str) -> Iterator[BuiltShard]:
    """Yield the published shards of a series as built shards; one without a file for none."""
    if not shards:
        yield BuiltShard(series, 0)
    for index, shard in enumerate(shards):
        crc = int(shard.crc32c or "", 16)
        source = f"{generation}/{shard.file}" if generation else shard.file
        yield BuiltShard(series, index, shard.file, source, shard.bytes, crc, shard.records)


def _totals(entry: SeriesEntry, records: int) -> Totals:
    return Totals(
        records=records,
        label_counts=Counter({entry.label: records} if records else {}),
        rejects=Counter(entry.rejected_by_reason),
        duplicates=entry.duplicates,
        multi_frame=entry.multi_frame,
        summary=_summary(entry.pixels, records),
    )


def _published_rejects(
    storage: Storage, folder: str, manifest: Manifest
) -> dict[Series, tuple[Reject, ...]]:
    """Return the published rejects of each series; nothing if the file was changed.

    The file lists inputs that were rejected while matching first, then each series in order.
    """
    try:
        lines = storage.read(join(folder, shard_names.REJECTS)).splitlines()
        left = iter([_parse(line) for line in lines])
    except (FileNotFoundError, FormatError):
        return {}
    matching = Counter(manifest.inputs.rejected_by_reason)
    for entry in manifest.series:
        matching.subtract(entry.rejected_by_reason)
    wanted: list[tuple[Series, Mapping[str, int]]] = [(REJECTED, +matching)]
    wanted += [
        (Series(each.split, each.label), each.rejected_by_reason) for each in manifest.series
    ]
    rejects = {}
    for series, reasons in wanted:
        mine = _take(left, sum(reasons.values()))
        found: Counter[str] = Counter()
        for reject in mine:
            found[reject.error] += reject.inputs
        if found != Counter(reasons):
            return {}
        rejects[series] = mine
    return rejects if next(left, None) is None else {}


def _take(rejects: Iterator[Reject], inputs: int) -> tuple[Reject, ...]:
    mine = []
    while inputs > 0:
        reject = next(rejects, None)
        if reject is None:
            break
        mine.append(reject)
        inputs -= reject.inputs
    return tuple(mine)


def _parse(line: bytes) -> Reject:
    try:
        reject = Reject(**json.loads(line))
        reject.to_json().encode()
    except (ValueError, TypeError) as error:
        raise FormatError(f"this is not a reject ({error})") from error
    if not isinstance(reject.inputs, int) or not isinstance(reject.error, str):
        raise FormatError(f"this is not a reject ({reject})")
    return reject

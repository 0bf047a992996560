"""Archives give the same inputs as the folders that they were made of, or one clear error."""

import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import tarfile
import unicodedata
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.loaders import open_dataset
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.pipelines.rows import resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas import InputRef, Manifest, RejectedError
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import MatchCounts, sum_counts
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import frame
from shardmill.transforms import LabelSpec, find_input, read_input
from shardmill.transforms.images import encoder
from shardmill.transforms.images.containers import Spool
from shardmill.transforms.match import read_input as read_input_module
from shardmill.transforms.match.containers.expand import MemberOptions, expand, is_archive
from shardmill.transforms.match.inputs import find_inputs
from shardmill.transforms.publish.generation import read_published
from shardmill.transforms.sink.spec import Example
from tests.conftest import build_dataset, make_photos

OPTIONS = {"image_size": "16x24", "splits": "train:0.6,validation:0.4"}


def ref_of(path: Path, key: str = "") -> InputRef:
    status = path.stat()
    return InputRef(
        key, str(path), status.st_size, str(status.st_mtime_ns), ctime=status.st_ctime_ns
    )


def members_of(path: Path) -> dict[str, InputRef]:
    return {ref.key: ref for ref in expand(ref_of(path)) if isinstance(ref, InputRef)}


def read_ref(path: Path) -> InputRef:
    status = path.stat()
    return InputRef(path.name, str(path), status.st_size, str(status.st_mtime_ns))


def published(folder: Path) -> Manifest:
    manifest = read_published(open_storage(str(folder)), str(folder)).manifest
    assert manifest is not None
    return manifest


def build(source: object, output: Path, **options) -> Manifest:
    outcome, _ = build_dataset(input=source, output=output, **{**OPTIONS, **options})
    assert outcome.status == "published", outcome.message
    return published(output)


def records(folder: Path) -> list[tuple]:
    """Return the records of each split in order, without anything that depends on the path."""
    return [
        (
            split,
            {
                name: value.tolist() if hasattr(value, "tolist") else value
                for name, value in row.items()
            },
        )
        for split in ("train", "validation")
        for row in open_dataset(folder, split=split)
    ]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("archives") / "photos", {"cat": 8, "dog": 7})


def tar(path: Path, source: Path, mode: str = "w", kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=kind) as archive:
        archive.add(source, arcname=".")
    return path


def zipped(path: Path, source: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, file.relative_to(source))
    return path


@pytest.fixture(scope="module")
def archives(photos) -> dict[str, Path]:
    folder = photos.parent
    v7 = folder / "v7.tar"  # whose headers have no magic; tarfile does not write them
    subprocess.run(["tar", "--format=v7", "-cf", v7, "-C", photos, "."], check=True)
    return {
        "v7": v7,
        "pax": tar(folder / "pax.tar", photos),
        "gnu": tar(folder / "named.jpg", photos, kind=tarfile.GNU_FORMAT),
        "deflated": zipped(folder / "deflated.zip", photos),
        "stored": zipped(folder / "stored.bin", photos, zipfile.ZIP_STORED),
    }


@pytest.mark.heavy
def test_an_archive_gives_the_records_of_its_folder(photos, archives, tmp_path) -> None:
    loose = build(photos, tmp_path / "loose")
    for kind, archive in archives.items():
        packed = build(archive, tmp_path / kind)
        assert records(tmp_path / kind) == records(tmp_path / "loose"), kind
        assert packed.inputs.matched == loose.inputs.matched == 15
        assert packed.labels == loose.labels == ("cat", "dog")


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def jpegs(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]


def test_a_cls_member_gives_the_label_and_others_are_skipped(photos, tmp_path) -> None:
    first, second, third, *_ = jpegs(photos)
    shards = tmp_path / "shards"
    shards.mkdir()
    pack(
        shards / "a.tar",
        {"0.jpg": first, "0.cls": b"dog\n", "0.json": b"{}", "1.cls": b"cat", "1.jpg": second},
    )
    pack(shards / "b.tar", {"2.cls": b"cat", "2.jpg": third, "3.jpg": first})
    manifest = build(shards, tmp_path / "ds", splits="train:1", max_reject_fraction=0.5)
    made = {
        row["image/key"]: row["image/class/text"]
        for row in open_dataset(tmp_path / "ds", split="train", decode=False)
    }
    assert made == {b"a.tar/0.jpg": b"dog", b"a.tar/1.jpg": b"cat", b"b.tar/2.jpg": b"cat"}
    inputs = manifest.inputs
    assert (inputs.matched, inputs.skipped, inputs.rejected_by_reason) == (8, 4, {"no_label": 1})
    assert any("1 .json (a.tar/0.json)" in warning for warning in manifest.warnings)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_json_of_samples_is_not_passed_over_for_their_folder(photos, tmp_path, kind) -> None:
    """Without a choice the build fails, and says how to choose; each choice then works."""
    members, wanted = {}, {}
    for number, data in enumerate(jpegs(photos)[:8]):
        name = f"part{number % 2}/{number}"
        text = json.dumps({"animal": ["cat", "dog"][number // 4]})
        members |= {f"{name}.jpg": data, f"{name}.json": text.encode()}
        wanted[f"{name}.jpg"] = ["cat", "dog"][number // 4], f"part{number % 2}"
    path = tmp_path / f"a.{kind}"
    if kind == "tar":
        pack(path, members)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    options = {**OPTIONS, "input": path, "output": tmp_path / "ds", "splits": "train:1"}
    outcome, _ = build_dataset(**options)
    assert outcome.status == "failed"
    assert "--label_column=NAME" in outcome.message
    pattern = re.search(r"--label_pattern='(\S+)'", outcome.message)[1]
    for place, choice in enumerate(({"label_column": "animal"}, {"label_pattern": pattern})):
        _, manifest = build_dataset(**options, **choice, overwrite=True)
        assert manifest.inputs.rejected == 0
        made = {
            row["image/key"].decode(): row["image/class/text"].decode()
            for row in open_dataset(tmp_path / "ds", split="train", decode=False)
        }
        assert made == {key: labels[place] for key, labels in wanted.items()}
    _, manifest = build_dataset(**options, label_from="none", overwrite=True)
    assert (manifest.written, manifest.labels) == (8, ())
    # One file for all images, such as COCO's, is not data of a sample.
    others = {name: data for name, data in members.items() if name.endswith("jpg")}
    pack(path, {"part0/instances.json": b"{}", **others, "metadata.json": b"{}"})
    _, manifest = build_dataset(**options, overwrite=True)
    assert (manifest.written, manifest.labels) == (8, ("part0", "part1"))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["cls", "json", "zip", "tgz", "parquet"])
def test_a_pattern_comes_before_labels_of_archives(photos, tmp_path, kind) -> None:
    """As ``re`` finds the labels in the names of the published records."""
    pattern = r"(.*/)?(?P<label>[^/]+)/[^/]+"
    members = {}
    for number, data in enumerate(jpegs(photos)[:6]):
        name = f"part{number % 2}/{number}"
        label = ("json", b'{"label": "a"}') if kind == "json" else ("cls", b"a")
        members |= {f"{name}.jpg": data, f"{name}.{label[0]}": label[1]}
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    elif kind == "parquet":
        images = [data for name, data in members.items() if name.endswith("jpg")]
        pq.write_table(pa.table({"image": images, "label": ["a"] * 6}), path)
        pattern = r"(?P<label>\d+)"
    else:
        pack(path, members)
        if kind == "tgz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    options = {"label_pattern": pattern, "splits": "train:1"}
    manifest = build(path, tmp_path / "ds", **options)
    made = {
        row["image/key"].decode(): row["image/class/text"].decode()
        for row in open_dataset(tmp_path / "ds", split="train", decode=False)
    }
    assert made == {key: re.fullmatch(pattern, key)["label"] for key in made}
    assert (len(made), manifest.inputs.rejected) == (6, 0)
    with pytest.raises(UsageError, match=r"--label_column=x and --label_pattern=.* cannot"):
        build(path, tmp_path / "both", **options, label_column="x")


def test_a_pattern_for_files_leaves_the_named_column_to_archives(photos, tmp_path) -> None:
    data, *others = jpegs(photos)[:3]
    pq.write_table(pa.table({"image": others, "kind": ["a", "b"]}), tmp_path / "x.parquet")
    (tmp_path / "in" / "c").mkdir(parents=True)
    (tmp_path / "in" / "c" / "1.jpg").write_bytes(data)
    options = {"label_pattern": "in/(?P<label>c)/.*", "label_column": "kind"}
    manifest = build([tmp_path / "in", tmp_path / "x.parquet"], tmp_path / "ds", **options)
    assert (manifest.labels, manifest.inputs.rejected) == (("a", "b", "c"), 0)


def test_numbers_in_cls_members_are_lines_of_the_labels_file(photos, tmp_path) -> None:
    pack(
        tmp_path / "a.tar",
        {
            f"{n}.{kind}": data
            for n, jpeg in enumerate(jpegs(photos)[:3])
            for kind, data in (("jpg", jpeg), ("cls", b"%d" % n))
        },
    )
    (tmp_path / "labels.txt").write_text("zebra\ncat\ndog\n")
    build(tmp_path / "a.tar", tmp_path / "ds", labels=tmp_path / "labels.txt", splits="train:1")
    made = open_dataset(tmp_path / "ds", split="train", decode=False)
    found = {row["image/class/text"]: row["image/class/label"] for row in made}
    assert found == {b"zebra": 0, b"cat": 1, b"dog": 2}


def test_what_a_member_can_do_is_one_reject(photos, tmp_path) -> None:
    """Names that lead outside, links, devices, sparse files, and names that are not UTF-8."""
    jpeg = jpegs(photos)[0]
    with tarfile.open(tmp_path / "odd.tar", "w", errors="surrogateescape") as archive:
        for name, kind in (
            ("../out.jpg", tarfile.REGTYPE),
            ("/abs.jpg", tarfile.REGTYPE),
            ("a/link.jpg", tarfile.SYMTYPE),
            ("a/hard.jpg", tarfile.LNKTYPE),
            ("a/dev.jpg", tarfile.CHRTYPE),
            ("a/\udcff.jpg", tarfile.REGTYPE),
            ("a/good.jpg", tarfile.REGTYPE),
            ("a/._good.jpg", tarfile.REGTYPE),
            ("__MACOSX/x.jpg", tarfile.REGTYPE),
            ("a", tarfile.DIRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(jpeg) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(jpeg))
    found = [*expand(ref_of(tmp_path / "odd.tar"))]
    errors = {ref.key: ref.error for ref in found if isinstance(ref, InputRef)}
    assert errors == {
        "../out.jpg": "member",
        "abs.jpg": "member",
        "a/link.jpg": "member",
        "a/hard.jpg": "member",
        "a/dev.jpg": "member",
        "a/%FF.jpg": "bad_name",
        "a/good.jpg": "",
    }
    assert sum(isinstance(each, MatchCounts) for each in found) == 2


@settings(max_examples=150)
@given(st.sampled_from(["pax", "gnu", "deflated", "stored"]), st.integers(0, 2**32), st.booleans())
def test_damage_never_loses_members_silently(archives, kind, seed, cut) -> None:
    """A damaged archive is an error, or each member is as it was, rejected, or has other bytes."""
    source = archives[kind]
    whole = {key: read_input(ref) for key, ref in members_of(source).items()}
    data, chance = bytearray(source.read_bytes()), random.Random(seed)
    at = chance.randrange(600 if cut else 0, len(data))
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << chance.randrange(8)
    damaged = source.with_name("damaged")
    damaged.write_bytes(data)
    try:
        found = [ref for ref in expand(ref_of(damaged)) if isinstance(ref, InputRef)]
    except InputError:
        return
    assert not cut or kind in ("pax", "gnu")  # a tar may be cut in the padding after its end
    if len(found) == 1 and not found[0].member:
        assert at < 512  # it does not begin like an archive any more
        return
    assert len(found) == len(whole)


def test_of_members_with_one_name_the_last_counts(photos, tmp_path) -> None:
    old, new = jpegs(photos)[:2]
    source = pack(tmp_path / "a.tar", {"x/1.jpg": old})
    with tarfile.open(source, "a") as archive:
        info = tarfile.TarInfo("x/1.jpg")
        info.size = len(new)
        archive.addfile(info, io.BytesIO(new))
    manifest = build(source, tmp_path / "ds", splits="train:1")
    assert (manifest.inputs.matched, manifest.inputs.duplicates) == (2, 1)
    build(pack(tmp_path / "b.tar", {"x/1.jpg": new}), tmp_path / "other", splits="train:1")
    assert [*open_dataset(tmp_path / "ds", split="train", decode=False)] == [
        *open_dataset(tmp_path / "other", split="train", decode=False)
    ]
    again, _ = build_dataset(
        input=source, output=tmp_path / "ds", **OPTIONS | {"splits": "train:1"}
    )
    assert again.status == "up_to_date"


def test_which_inputs_are_archives(photos, archives, tmp_path) -> None:
    """Content decides; next to images archives are skipped, with a warning that has the fix."""
    shutil.copytree(photos, tmp_path / "mixed")
    shutil.copy(archives["pax"], tmp_path / "mixed" / "a.tar")
    manifest = build(tmp_path / "mixed", tmp_path / "ds")
    assert (manifest.inputs.matched, manifest.inputs.accepted) == (16, 15)
    assert any("--input='FOLDER/**/*.tar' reads" in warning for warning in manifest.warnings)
    glob = find_input(f"{tmp_path}/mixed/**/*.tar")
    assert glob.archives
    two = find_inputs([str(archives["pax"]), str(archives["gnu"])])
    keys = [key for part in two.parts for key in (part.input[len(part.root) + 1 :],)]
    assert (keys, two.parts[0].archives) == (["pax.tar", "named.jpg"], True)
    assert not find_input(str(photos)).archives


def zlib_records() -> list[bytes]:
    """Return TFRecords in all forms of zlib, as TFRecordOptions("ZLIB") writes one."""
    payload = random.Random(1).randbytes(20_000)
    data = b"".join(frame(payload[:size]) for size in (0, 5, 300, 20_000))
    forms = [(level, bits) for level in (0, 1, 6, 9) for bits in (9, 12, 15)]
    return [zlib.compress(data, level, bits) for level, bits in forms]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.zlib", "a.zz", "a-00000-of-00001"])
def test_records_with_zlib_compression_say_so(name, tmp_path) -> None:
    """Alone and in a folder, as images and as a table."""
    path = tmp_path / "in" / name
    path.parent.mkdir()
    rewrite = "write it with tf.io.TFRecordOptions('GZIP'), or without compression"
    for data in zlib_records():
        path.write_bytes(data)
        with pytest.raises(InputError, match="TFRecords have ZLIB compression") as caught:
            members_of(path)
        assert str(path) in str(caught.value)
        assert rewrite in str(caught.value)
        with pytest.raises(InputError, match="not a CSV file but TFRecords with ZLIB") as caught:
            resolve(RowsConfig(str(path), str(tmp_path / "ds")))
        assert rewrite in str(caught.value)
    for source in (path, path.parent):
        outcome, _ = build_dataset(input=source, output=tmp_path / "ds", **OPTIONS)
        assert "TFRecords have ZLIB compression" in outcome.message
    for other in (zlib.compress(b"a,b\n1,2\n"), zlib_records()[0][:12]):
        path.write_bytes(other)
        assert not is_archive(str(path))


def test_an_archive_that_changes_while_it_is_read_is_not_used(tmp_path) -> None:
    source = pack(tmp_path / "a.tar", {"a.jpg": b"old", "b.jpg": b"x"})
    ref = members_of(source)["a.jpg"]
    assert read_input(ref) == b"old"
    os.utime(source, ns=(1, 1))
    with pytest.raises(RejectedError) as error:
        read_input(ref)
    assert error.value.error == "changed"


@pytest.mark.heavy
def test_a_member_that_could_not_be_read_is_tried_again(photos, tmp_path, monkeypatch) -> None:
    source = pack(
        tmp_path / "a.tar", {f"x/{n}.jpg": data for n, data in enumerate(jpegs(photos)[:4])}
    )

    def read(uri: str, *args, real=read_input_module.read_content) -> bytes:
        if uri.endswith("x/1.jpg"):
            raise FileNotFoundError
        return real(uri, *args)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_is_local", lambda _: False)  # read in this process, as of a bucket
        patch.setattr(read_input_module, "read_content", read)
        first = build(source, tmp_path / "ds", max_reject_fraction=0.5)
    assert first.inputs.rejected_by_reason == {"not_found": 1}
    again, _ = build_dataset(input=source, output=tmp_path / "ds", **OPTIONS)
    assert again.status == "failed"
    assert "can be read now" in again.message
    assert build(source, tmp_path / "ds", update=True).inputs.accepted == 4


@pytest.mark.parametrize("failure", ["", "changed", "not_found"])
@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_the_worker_reads_only_what_a_decoder_could_not_read(
    photos, tmp_path, monkeypatch, kind, failure
) -> None:
    if kind == "folder":  # a copy: other tests use the photos
        files = sorted(shutil.copytree(photos, tmp_path / "in").rglob("*.jpg"))
        refs = [read_ref(path) for path in files]
    else:
        files = [Path(shutil.make_archive(str(tmp_path / "a"), kind, photos))]
        refs = list(members_of(files[0]).values())
    for path in files:
        if failure == "changed":
            os.utime(path, ns=(1, 1))
        elif failure:
            path.unlink()
    asked: list[str] = []

    def read(uri: str, *args, real=read_input_module.read_content) -> bytes:
        asked.append(uri)
        return real(uri, *args)

    monkeypatch.setattr(read_input_module, "read_content", read)
    config = ImagesConfig(str(photos), str(tmp_path / "ds"), image_size="16", label_from="none")
    made = list(config.encoder.encode(refs, []))
    assert len(made) == len(refs) > 1
    if failure:
        assert {item.error for item in made} == {failure}
        assert {*asked} == {ref.uri for ref in refs}
    else:
        assert all(isinstance(item, Example) for item in made)
        assert not asked


@pytest.mark.parametrize("length", [10**6, 2**40, 2**63 + 5])
def test_a_forged_length_of_a_member_costs_one_record(photos, tmp_path, length) -> None:
    first, second, *_ = jpegs(photos)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/0.jpg", first)
        archive.writestr("x/1.jpg", second)
        archive.filelist[0].compress_size = length
    manifest = build(tmp_path / "a.zip", tmp_path / "ds", max_reject_fraction=0.5)
    assert manifest.inputs.rejected_by_reason == {"member": 1}


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_large_member_needs_no_more_memory_than_a_file(photos, tmp_path, method) -> None:
    """Twice its size, where it is decompressed, is more than a decoder may have here."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("x/0.jpg", jpegs(photos)[0] + bytes(500 << 20))
    manifest = build(tmp_path / "a.zip", tmp_path / "ds", decoder_memory="1GiB")
    assert manifest.inputs.accepted == 1


class RawName(zipfile.ZipInfo):
    """An entry of a zip archive whose name has the bytes and the flags that a program writes."""

    __slots__ = ("flags", "raw")

    def __init__(self, raw: bytes, flags: int = 0, extra: bytes = b"") -> None:
        super().__init__(raw.decode("latin-1"))
        self.raw, self.flags, self.extra = raw, flags, extra

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802 - of the standard library
        return self.raw, self.flags


IN_UTF8 = 1 << 11


def path_field(raw: bytes, name: str) -> bytes:
    data = b"\1" + zlib.crc32(raw).to_bytes(4, "little") + name.encode()
    return b"\x75\x70" + len(data).to_bytes(2, "little") + data


def by_python(name: str) -> RawName:
    return RawName(name.encode(), 0 if name.isascii() else IN_UTF8)


def by_info_zip(name: str) -> RawName:
    return RawName(name.encode())


def by_info_zip_with_field(name: str) -> RawName:
    raw = name.encode("ascii", "replace")
    stamp = b"UT\5\0\1abcd"
    return RawName(raw, 0, stamp + path_field(raw, name))


def by_zip_of_macos(name: str) -> RawName:
    return RawName(unicodedata.normalize("NFD", name).encode())


def by_powershell(name: str) -> RawName:
    return by_python(name.replace("/", "\\"))


def by_program_for_windows(name: str) -> RawName:
    """Which writes the first slash only."""
    head, slash, rest = name.partition("/")
    entry = by_python(head + slash + rest.replace("/", "\\"))
    entry.create_system = 0
    return entry


def by_7_zip(name: str) -> RawName:
    """In the code page of the console if that has all characters."""
    try:
        return RawName(name.encode("cp437"))
    except UnicodeEncodeError:
        return RawName(name.encode(), IN_UTF8)


def by_windows_in_japan(name: str) -> RawName:
    return RawName(name.encode("cp932"))


def with_stale_field(name: str) -> RawName:
    """Another program renamed the entry, and left the field."""
    return RawName(name.encode(), 0, path_field(b"old", "old.jpg"))


PRODUCERS = (
    by_python,
    by_info_zip,
    by_info_zip_with_field,
    by_zip_of_macos,
    by_powershell,
    by_program_for_windows,
    by_7_zip,
    with_stale_field,
)
# The second byte of the last folder is a backslash in cp932.
NAMES = ("cat/1.jpg", "a/b c/2.jpg", "top.jpg", "caf\u00e9/\u00fc.jpg", "\u65e5\u672c/\u8868/3.jpg")


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_in_zips_are_those_of_the_files(producer, form, tmp_path) -> None:
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for name in NAMES:
            spelt = unicodedata.normalize(form, name)
            archive.writestr(producer(spelt), name)
            archive.writestr(producer(f"__MACOSX/{spelt}"), b"resource fork")
        archive.writestr(producer("empty/"), b"")
    found = members_of(source)
    assert {key: read_input(ref).decode() for key, ref in found.items()} == dict(
        zip(NAMES, NAMES, strict=True)
    )
    assert not any(ref.error for ref in found.values())


def test_backslashes_are_characters_next_to_slashes(tmp_path) -> None:
    name = "cat/a\\b.jpg"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(by_python(name), b"")
    assert [*members_of(tmp_path / "a.zip")] == [name]
    assert [*members_of(pack(tmp_path / "a.tar", {"a\\b.jpg": b""}))] == ["a\\b.jpg"]


@pytest.mark.parametrize("encoding", ["", "cp932"])
def test_names_in_other_encodings_need_a_flag(encoding, tmp_path) -> None:
    source = tmp_path / "a.zip"
    names = [name for name in NAMES if "\u00e9" not in name]
    with zipfile.ZipFile(source, "w") as archive:
        for name in names:
            archive.writestr(by_windows_in_japan(name), name)
    spool = Spool("", members=MemberOptions(zip_encoding=encoding))
    found = [*expand(ref_of(source), spool)]
    keys = {ref.key for ref in found if isinstance(ref, InputRef)}
    counts = sum_counts(each for each in found if isinstance(each, MatchCounts))
    if encoding:
        assert (keys, counts.guessed) == ({*names}, ())
    else:
        wrong = names[-1].encode("cp932").decode("cp437")
        assert keys == {*names[:-1], wrong}
        assert counts.guessed == (("cp437", 1, wrong),)


def test_a_guessed_encoding_is_a_warning_with_the_flag(photos, tmp_path) -> None:
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for number, data in enumerate(jpegs(photos)[:4]):
            archive.writestr(by_windows_in_japan(f"\u732b/{number}.jpg"), data)
    manifest = build(source, tmp_path / "ds", splits="train:1")
    (warning,) = manifest.warnings
    assert "names in zip archives that are not UTF-8 and were read as cp437: 4, such as " in warning
    assert "--zip_encoding" in warning
    manifest = build(source, tmp_path / "ja", splits="train:1", zip_encoding="cp932")
    assert (manifest.labels, manifest.warnings) == (("\u732b",), ())
    assert "--zip_encoding=cp932" in manifest.build.command


PARTS = st.lists(
    st.sampled_from(["jpg", "left.png", "cls", "CLS", "txt", "json"]), min_size=1, unique=True
)
SHARDS = st.lists(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["", "./", "cat/", "c.d/"]), st.sampled_from(["0", "1", "\u00e9"])
        ),
        PARTS,
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


def judge(number: int, names: list[str]) -> dict[str, dict[str, str]]:
    """Return the names of a shard by sample and part."""
    groups: dict[str, dict[str, str]] = {}
    for spelt in names:
        name = unicodedata.normalize("NFC", spelt.removeprefix("./"))
        folder, slash, base = name.rpartition("/")
        stem, _, part = base.partition(".")
        sample = f"{number}.tar/{folder}{slash}{stem}"
        groups.setdefault(sample, {})[part.lower()] = f"{number}.tar/{name}"
    return groups


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(
    SHARDS,
    st.sampled_from(["", "jpg", "left.png"]),
    st.sampled_from(["", "y"]),
    st.randoms(use_true_random=False),
)
def test_samples_of_webdataset_in_any_order(archives, shards, suffix, column, chance) -> None:
    """The judge groups the names by all before the first dot of the base name."""
    options = MemberOptions(column, (suffix,) if suffix else (), by_path=False)
    spool = Spool("", members=options)
    label_part = "json" if column else "cls"
    wanted: dict[str, str] = {}  # where the label of each image is
    several, labelled = False, False
    found: list = []
    problem = ""
    instead = chance.choice([{}, {"cls": "npy", "CLS": "NPY"}])
    for number, samples in enumerate(shards):
        names = [
            f"{place}{stem}.{instead.get(part, part)}"
            for (place, stem), parts in samples.items()
            for part in parts
        ]
        names = [unicodedata.normalize(chance.choice(["NFC", "NFD"]), name) for name in names]
        chance.shuffle(names)
        labels = {name: f"label {name.lower().removeprefix('./')}" for name in names}
        members = {
            name: (json.dumps({"y": label}) if name.endswith("json") else label).encode()
            for name, label in labels.items()
        }
        path = pack(archives["pax"].parent / f"{number}.tar", members)
        try:
            found += expand(ref_of(path, path.name), spool)
        except InputError as error:
            problem = str(error)
        groups = judge(number, names)
        parts_here = {part for group in groups.values() for part in group}
        labelled |= label_part in parts_here
        for group in groups.values():
            images = [part for part in ("jpg", "left.png") if part in group]
            has_label = label_part in group
            several |= len(images) > 1 and has_label and not suffix
            for key in (group[part] for part in images if suffix in ("", part)):
                if column or label_part in parts_here:
                    wanted[key] = label_part if has_label else ""
                else:
                    at_top = key.count("/") == 1
                    has_data = "json" in group or (at_top and "json" in parts_here)
                    wanted[key] = "" if has_data else "folder"
    assert several == ("several images of the sample" in problem)
    if problem:
        return
    counts = sum_counts(each for each in found if isinstance(each, MatchCounts))
    assert counts.has_labels == labelled
    spec = LabelSpec("directory")
    refs = [each for each in found if isinstance(each, InputRef)]
    assert {ref.key for ref in refs} == wanted.keys()
    for ref in (spec.with_label(each, counts.has_labels) for each in refs):
        place = wanted[ref.key]
        if place == label_part:
            sample = unicodedata.normalize("NFC", ref.label or "").removeprefix("label ")
            assert sample == f"{judge_sample(ref.key)}.{label_part}"
        elif place == "folder" and not labelled:
            assert ref.label == ref.key.split("/")[-2]
        else:
            assert (ref.label, ref.error) == (None, "no_label")


def judge_sample(key: str) -> str:
    folder, slash, base = key.partition("/")[2].rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


@pytest.mark.heavy
def test_labels_of_samples_across_archives(photos, tmp_path) -> None:
    """No image gets the name of its folder or archive, also if one shard has all labels."""
    first, second, *_ = jpegs(photos)
    members = {
        "a.tar": {"0.jpg": first, "1.left.jpg": second, "1.right.jpg": first},
        "b.tar": {"0.jpg": second, "1.left.jpg": first, "0.cls": b"cat", "1.cls": b"dog"},
    }
    for name, files in members.items():
        pack(tmp_path / name, files)
    options = {"splits": "train:1", "max_reject_fraction": 0.6, "image_suffix": "jpg,.LEFT.jpg"}
    manifest = build([tmp_path / name for name in members], tmp_path / "ds", **options)
    assert manifest.labels == ("cat", "dog")
    assert manifest.inputs.rejected_by_reason == {"no_label": 2}
    assert manifest.inputs.matched == 7
    # A split without labels may lack them.
    named = {"splits": "train=b.tar,test=a.tar", "unlabeled_splits": "test"}
    manifest = build(f"{tmp_path}/*.tar", tmp_path / "test", **{**options, **named})
    assert manifest.inputs.rejected_by_reason == {}
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 2,
        "test": 2,
    }
    # Without the option, the choice is an error that names it.
    pack(tmp_path / "b.tar", {**members["b.tar"], "1.right.jpg": second})
    outcome, _ = build_dataset(input=f"{tmp_path}/*.tar", output=tmp_path / "no", **OPTIONS)
    assert outcome.status == "failed"
    assert "'1.left.jpg' and '1.right.jpg'" in outcome.message
    assert "--image_suffix=left.jpg" in outcome.message

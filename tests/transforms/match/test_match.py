"""Matching accounts for every file and does not leave the root."""

import json
import os
import pickle
import shutil
import socket
import unicodedata
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import InputRef
from shardmill.schemas.errors import InputError, StorageError, UsageError
from shardmill.schemas.refs import DUPLICATE, Linked, MatchCounts
from shardmill.transforms import LabelSpec, MatchFiles, find_input, read_input
from shardmill.transforms.match.inputs import (
    MatchSpec,
    key_of_entry,
    match_now,
    merge_entries,
    read_listing,
    walk_input,
)
from shardmill.transforms.match.labels import parse_labels
from shardmill.transforms.match.walk import first_level, glob_regex, walk
from shardmill.transforms.sources.listings import ListingOptions, open_listings
from tests.conftest import make_image


def touch(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def skipped_in(found) -> set[str]:
    """Return the keys of skipped files."""
    return {each.kinds[0][2] for each in found if isinstance(each, MatchCounts)}


def walk_all(pattern: str | Path, **kwargs) -> list[InputRef | MatchCounts]:
    """Return everything that an input matches, without a pipeline."""
    spec = find_input(str(pattern), **kwargs)
    walked = [each for task in first_level(spec.top) for each in walk_input(spec, task)]
    found = [each.ref if isinstance(each, Linked) else each for each in walked]
    found = [each for each in found if each != DUPLICATE]
    keys = {each.key for each in found if isinstance(each, InputRef)}
    assert len(keys | skipped_in(found)) == len(found)
    return found


def match(pattern: str | Path, **kwargs) -> dict[str, str]:
    """Return {key: error} of all inputs without skipped files."""
    found = walk_all(pattern, **kwargs)
    return {ref.key: ref.error for ref in found if isinstance(ref, InputRef)}


def test_matches_globs(tmp_path) -> None:
    for name in ("a/1.jpg", "a/2.png", "b/3.jpg", "b/c/4.jpg", "b/c/5.JPG", "[a]*/6"):
        touch(tmp_path / name)
    assert match(tmp_path / "[a]*") == {"6": ""}  # an existing folder is not a glob
    assert sorted(match(tmp_path / "*/*.jpg")) == ["a/1.jpg", "b/3.jpg"]
    assert sorted(match(tmp_path / "**/*.jpg")) == ["a/1.jpg", "b/3.jpg", "b/c/4.jpg"]
    assert sorted(match(tmp_path / "b/**")) == ["3.jpg", "c/4.jpg", "c/5.JPG"]
    assert sorted(match(tmp_path / "b/**", root=str(tmp_path))) == [
        "b/3.jpg",
        "b/c/4.jpg",
        "b/c/5.JPG",
    ]
    assert sorted(match(tmp_path / "a/[12].???")) == ["1.jpg", "2.png"]
    assert sorted(match(tmp_path / "a/[!1].*")) == ["2.png"]


@given(st.text("ab/.*?[]!^-\\", max_size=8), st.text("ab/.^-\\", max_size=8))
def test_regexes_of_globs_compile(pattern: str, text: str) -> None:
    glob_regex(pattern).fullmatch(text)


def test_skips_and_counts_junk(tmp_path) -> None:
    for name in (
        ".DS_Store",
        "a/desktop.ini",
        "a/Thumbs.db",
        "a/._1.jpg",
        "a/notes.txt",
        "b/ann.XML",
        ".git/config",
        "a/1.jpg",
        "a/no_suffix",
    ):
        touch(tmp_path / name)
    assert match(tmp_path) == {"a/1.jpg": "", "a/no_suffix": ""}
    assert skipped_in(walk_all(tmp_path)) == {
        ".DS_Store",
        "a/desktop.ini",
        "a/Thumbs.db",
        "a/._1.jpg",
        "a/notes.txt",
        "b/ann.XML",
        ".git",  # hidden folders are not entered
    }
    assert skipped_in(walk_all(tmp_path / "a/*")) == {
        "desktop.ini",
        "Thumbs.db",
        "._1.jpg",
        "notes.txt",
    }
    kinds = (
        (".db", 1, "a/Thumbs.db"),
        (".ini", 1, "a/desktop.ini"),
        (".txt", 1, "a/notes.txt"),
        (".xml", 1, "b/ann.XML"),
        ("hidden", 3, ".DS_Store"),
    )
    assert match_now(find_input(str(tmp_path)))[1] == MatchCounts(skipped=7, kinds=kinds)


def test_follows_links_inside_the_root(tmp_path) -> None:
    root = tmp_path / "root"
    touch(root / "a/1.jpg")
    outside = touch(tmp_path / "outside/2.jpg")
    (root / "a/out.jpg").symlink_to(outside)
    (root / "out").symlink_to(outside.parent)
    (root / "a/loop").symlink_to(root)
    (root / "b").symlink_to(root / "a")
    (root / "nowhere.jpg").symlink_to(tmp_path / "missing")
    (root / "self.jpg").symlink_to(root / "self.jpg")
    found = match(root)
    assert found["a/out.jpg"] == "outside_root"
    assert found["out"] == "outside_root"
    assert "b/1.jpg" not in found  # a/1.jpg is the same file
    assert found["nowhere.jpg"] == "outside_root"  # it points outside, even if nothing is there
    assert found["self.jpg"] == "not_found"
    followed = match(root, follow_links=True)
    assert followed["out/2.jpg"] == followed["a/out.jpg"] == ""
    assert followed["nowhere.jpg"] == "not_found"
    assert len(followed) < 20  # the loop was entered once


def both_ways(folder: Path, pattern: str | Path, **kwargs) -> tuple[dict[str, str], MatchCounts]:
    """Return {key: error} and the counts; of the pipeline, which must equal the function."""
    spec = find_input(str(pattern), **kwargs)
    refs, counts = run_match(folder, spec=spec)
    assert (refs, counts) == match_now(spec)
    return {ref.key: ref.error for ref in refs}, counts


def test_each_real_folder_is_read_once(tmp_path) -> None:
    root = tmp_path / "root"
    touch(root / "m/x/1.jpg")
    touch(root / "m/2.jpg")
    for link, target in (("a", "m"), ("z", "m/x"), ("m/again", "x"), ("m/x/up", "../..")):
        (root / link).symlink_to(target)
    (root / "m/3.jpg").symlink_to("2.jpg")
    (root / "m/gone.jpg").symlink_to("none.jpg")
    wanted = {"m/2.jpg": "", "m/x/1.jpg": "", "m/gone.jpg": "not_found"}
    assert both_ways(tmp_path, root) == (wanted, MatchCounts(duplicates=5))
    # A glob that matches only links reads what they lead to.
    assert both_ways(tmp_path, root / "[az]/*.jpg")[0].keys() == {
        "a/2.jpg",
        "a/3.jpg",
        "a/gone.jpg",
        "z/1.jpg",
    }
    assert both_ways(tmp_path, root / "[am]/2.jpg") == ({"m/2.jpg": ""}, DUPLICATE)


def test_first_link_to_a_folder_that_is_not_walked_is_entered(tmp_path) -> None:
    root = tmp_path / "root"
    touch(root / ".v2/1.jpg")
    touch(tmp_path / "out/2.jpg")
    (tmp_path / "out/back").symlink_to(root)
    for link in ("b", "c/d", "e"):
        (root / link).parent.mkdir(exist_ok=True)
        (root / link).symlink_to(root / ".v2")
        (root / f"{link}_out").symlink_to(tmp_path / "out")
    found, counts = both_ways(tmp_path, root, follow_links=True)
    assert found == {"b/1.jpg": "", "b_out/2.jpg": ""}
    assert counts.skipped == 1  # .v2
    assert counts.duplicates == 2 + 2 + 3  # files by other links, and the links back


def test_globs_report_folders_that_they_cannot_enter(tmp_path) -> None:
    touch(tmp_path / "root/a/1.jpg")
    touch(tmp_path / "out/2.jpg")
    (tmp_path / "root/b").symlink_to(tmp_path / "out")
    root = tmp_path / "root"
    for pattern in ("*/*.jpg", "**/*.jpg", "*/**"):
        assert match(root / pattern) == {"a/1.jpg": "", "b": "outside_root"}
    for pattern in ("a/*.jpg", "*.jpg", "[a]/*"):
        assert "outside_root" not in match(root / pattern).values()


@pytest.mark.skipif(os.geteuid() != 0, reason="acts for another user")
def test_folders_that_cannot_be_listed(tmp_path) -> None:
    touch(tmp_path / "root/a/1.jpg")
    touch(tmp_path / "root/no/2.jpg").parent.chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        for pattern in ("", "*/*.jpg"):
            with pytest.raises(InputError, match=r"The folder .*/root/no cannot be listed, and"):
                match(tmp_path / "root" / pattern)
        assert match(tmp_path / "root/a/*.jpg") == {"1.jpg": ""}
        with pytest.raises(
            InputError, match=r"The folder .*/no cannot be listed, and all its files"
        ):
            match(tmp_path / "root/no")
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("gone", ["b", "a/c"])
def test_a_folder_that_disappears_while_it_is_matched_ends_the_run(tmp_path, gone) -> None:
    """All its files would be missing; it was a traceback."""
    for name in ("a/b/1.jpg", "a/c/2.jpg", "b/3.jpg"):
        touch(tmp_path / name)
    tasks = [*first_level(str(tmp_path))]
    found = (each for task in tasks for each in walk(str(tmp_path), task, follow_links=False))
    assert next(found).key == "a/b/1.jpg"
    shutil.rmtree(tmp_path / gone)
    with pytest.raises(InputError, match=rf"/{gone} cannot be listed \(No such .* run again when"):
        list(found)


def test_a_root_that_cannot_be_listed_at_first_is_walked_as_a_whole(tmp_path) -> None:
    """A failure of a moment must not leave out all folders."""
    root = tmp_path / "root"
    tasks = [*first_level(str(root))]
    touch(root / "a/b/1.jpg")
    found = [each for task in tasks for each in walk(str(root), task, follow_links=False)]
    assert [each.key for each in found] == ["a/b/1.jpg"]


def test_paths_must_be_utf8(tmp_path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/in\xff")
    Path(folder).mkdir()
    with pytest.raises(UsageError, match="is not valid UTF-8: rename it"):
        find_input(folder)


def test_labels_are_nfc(listing, tmp_path) -> None:
    nfd, nfc = "cafe\u0301", "caf\u00e9"
    touch(tmp_path / nfd / "1.jpg")
    (ref,), _ = match_now(find_input(str(tmp_path)))
    assert LabelSpec(fixed=parse_labels(nfd + "\n", "x")).with_label(ref).label == nfc
    with pytest.raises(UsageError, match="twice"):
        parse_labels(f"{nfd}\n{nfc}\n", "x")
    refs = listing(f"path,label\n1.jpg,{nfd}\n2.jpg,{nfc}\n".encode())
    assert {ref.label for ref in refs} == {nfc}


def test_rejects_special_files_and_undecodable_names(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s.jpg"))
    os.mkdir(os.fsencode(tmp_path) + b"/dir\xfe")
    for name in (b"bad\xff%.jpg", b"dir\xfe/in.jpg"):
        os.mknod(os.fsencode(tmp_path) + b"/" + name)
    found = match(tmp_path)
    server.close()
    assert found == {
        "pipe.jpg": "not_a_file",
        "s.jpg": "not_a_file",
        "bad%FF%25.jpg": "bad_name",
        "dir%FE/in.jpg": "bad_name",
    }


def opened(path: Path, root: str = "", **options) -> MatchSpec:
    """Return a listing with its table, whose other columns are not features."""
    options = {"labelled": True, **options}
    spec = find_input(str(path), root, listing=True)
    return open_listings(spec, ListingOptions(**options))[0]


@pytest.fixture
def listing(tmp_path):
    """Return a function that returns the references of a listing."""

    def read(data: bytes, root: str = "/data", name: str = "list.csv") -> list[InputRef]:
        (tmp_path / name).write_bytes(data)
        return list(read_listing(opened(tmp_path / name, root)))

    return read


def test_parses_listings(listing) -> None:
    refs = listing(
        b"\xef\xbb\xbfpath, label,split,group\r\n"
        b'a/1.jpg,"cat, big",train,g1\r\n/data/2.jpg,dog,,\r\n'
    )
    assert refs == [
        InputRef("a/1.jpg", "/data/a/1.jpg", label="cat, big", split="train", group="g1"),
        InputRef("2.jpg", "/data/2.jpg", label="dog"),
    ]
    gs = listing(b"uri,label\ngs://b/d/x 1.jpg,cat\n", "gs://b/d")
    assert gs == [InputRef("x 1.jpg", "gs://b/d/x 1.jpg", label="cat")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"path,label\n../x.jpg,a\n", "leads outside the root"),
        (b"path,label\n/data2/x,a\n", "leads outside the root"),
        (b"path,label\n\xff,a\n", "is not UTF-8"),
        (b"uri,label\ngs://b/d/../x.jpg,a\n", "leads outside"),
    ],
)
def test_rejects_malformed_listings(listing, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        listing(data, "gs://b/d" if b"gs://b/d" in data else "/data")


def test_merges_entries_of_one_key() -> None:
    a, b = InputRef("k", "u", label="x"), InputRef("k", "u", label="x")
    assert list(merge_entries("k", [a, b])) == [a, DUPLICATE]
    with pytest.raises(InputError, match="'k' is listed with the label 'x' and with 'y'"):
        list(merge_entries("k", [a, b._replace(label="y")]))
    with pytest.raises(InputError, match="'k' is listed with the label None and with 'x'"):
        list(merge_entries("k", [a, b._replace(label=None)]))
    with pytest.raises(InputError, match="with the split "):
        list(merge_entries("k", [a, b._replace(split="test")]))


def run_match(folder: Path, **kwargs) -> tuple[list[InputRef], MatchCounts]:
    """Return the outputs of the transform in a pipeline."""
    result = folder / "found.pickle"
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        found = pipeline | MatchFiles(**kwargs)
        refs = found.refs | beam.combiners.ToList()
        _ = refs | beam.Map(
            lambda refs, counts: result.write_bytes(pickle.dumps((sorted(refs), counts))),
            found.sum_counts(),
        )
    refs, counts = pickle.loads(result.read_bytes())
    return refs, counts


def test_transform_reads_listings(tmp_path) -> None:
    make_image(1).save(tmp_path / "1.jpg")
    (tmp_path / "sub").mkdir()
    touch(tmp_path / "list.csv", b"path,label\n1.jpg,x\n1.jpg,x\nmissing.jpg,y\nsub,z\n")
    spec = opened(tmp_path / "list.csv")
    found, counts = run_match(tmp_path, spec=spec, labels=LabelSpec("listing"))
    assert [(ref.key, ref.error) for ref in found] == [
        ("1.jpg", ""),
        ("missing.jpg", "not_found"),
        ("sub", "not_a_file"),
    ]
    assert found[0].size == (tmp_path / "1.jpg").stat().st_size
    assert counts == match_now(spec)[1] == MatchCounts(duplicates=1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            b"1.jpg,x\n1.jpg,y\n",
            "'1.jpg' is listed with the label 'x' and with 'y': keep one of the",
        ),
        (b"1.jpg,x\n../2.jpg,x\n", "list.csv, line 3: '../2.jpg' leads outside the root"),
    ],
)
def test_unusable_listing_is_a_fatal_count(tmp_path, entries, message) -> None:
    touch(tmp_path / "1.jpg")
    touch(tmp_path / "list.csv", b"path,label\n" + entries)
    spec = opened(tmp_path / "list.csv")
    _, counts = run_match(tmp_path, spec=spec, labels=LabelSpec("listing"))
    assert (counts.skipped, counts.duplicates) == (0, 0)
    assert message in counts.fatal


def test_lists_of_paths_have_lines_as_files_have(tmp_path):
    (tmp_path / "list.txt").write_bytes("\ufeffa\u2028\x0cb.jpg\r\n\nc.jpg".encode())
    refs = read_listing(find_input(str(tmp_path / "list.txt"), listing=True))
    assert [ref.key for ref in refs] == ["a\u2028\x0cb.jpg", "c.jpg"]


ENTRIES = {
    "cat\\1.jpg": "cat/1.jpg",
    "cat\\deep\\2.jpg": "cat/deep/2.jpg",
    "cat/deep\\2.jpg": "cat/deep/2.jpg",
    "odd\\name.jpg": "odd\\name.jpg",
    "cat/odd\\3.jpg": "cat/odd\\3.jpg",
    "no\\file.jpg": "no/file.jpg",
    ".\\cat\\1.jpg": "cat/1.jpg",
    "caf\u00e9\\4.jpg": "caf\u00e9/4.jpg",
    "cafe\u0301\\4.jpg": "caf\u00e9/4.jpg",
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("absolute", [False, True])
def test_backslashes_separate_folders_unless_a_file_is_called_so(kind, form, absolute, tmp_path):
    for key in {*ENTRIES.values()} - {"no/file.jpg"}:
        touch(tmp_path / "in" / unicodedata.normalize(form, key))
    path = tmp_path / "in" / f"list.{kind}"
    entries = [f"{tmp_path}/in/{entry}" if absolute else entry for entry in ENTRIES]
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps({"path": entry}) for entry in entries))
    else:
        path.write_text("\n".join(["path"] * (kind == "csv") + entries))
    spec = find_input(str(path), listing=True) if kind == "txt" else opened(path, labelled=False)
    refs = [*read_listing(spec)]
    assert [ref.key for ref in refs] == [*ENTRIES.values()]
    merged, counts = match_now(spec)
    assert {ref.key: ref.error for ref in merged} == {
        key: "not_found" if key == "no/file.jpg" else "" for key in ENTRIES.values()
    }
    assert {read_input(ref) for ref in merged if not ref.error} == {b"x"}
    assert counts.duplicates == len(ENTRIES) - len({*ENTRIES.values()})
    if kind == "txt":
        path.write_text("..\\secret.jpg\n")
        with pytest.raises(InputError, match="leads outside the root"):
            [*read_listing(spec)]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("cat\\1.jpg", "cat/1.jpg"),
        ("gs://b/in/cat\\1.jpg", "cat/1.jpg"),
        ("odd\\1.jpg", "odd\\1.jpg"),
    ],
)
def test_backslashes_separate_folders_of_buckets(entry, key):
    folders = {"gs://b/in/cat"}
    made = key_of_entry(entry, "gs://b/in", "list.csv, line 2", folders.__contains__)
    assert made == (key, f"gs://b/in/{key}")


def test_tables_in_a_list_of_paths_may_have_backslashes(tmp_path):
    touch(tmp_path / "my tables" / "a.csv")
    touch(tmp_path / "list.txt", b"my tables\\a.csv\n")
    spec = find_input(str(tmp_path / "list.txt"), wanted="rows")
    assert (spec.kind, [ref.key for ref in match_now(spec)[0]]) == ("listing", ["my tables/a.csv"])


def test_a_listing_that_is_deleted_after_it_was_found_is_one_sentence(tmp_path):
    """As by another call of ``write`` for one output, whose listing has the same name."""
    (tmp_path / "list.txt").write_text("a.jpg\n")
    spec = find_input(str(tmp_path / "list.txt"), listing=True)
    (tmp_path / "list.txt").unlink()
    with pytest.raises(StorageError, match="replaced at the same time; run again"):
        list(read_listing(spec))

"""Errors of the rows command: one sentence each, and nothing is written."""

import pytest

from tests.support.rows_tools import make_table, run_here

# (flags, exit code, words of the message)
ERRORS = [
    (["--label=nme"], 2, "did you mean 'name'?"),
    (["--label=color"], 2, "--label=color is not a column: the input has 'id', 'name', 'x'."),
    (["--key=color"], 2, "--key=color is not a column: the input has 'id', 'name', 'x'."),
    (["--group_by=color"], 2, "--group_by=color is not a column"),
    (["--split_by=color"], 2, "--split_by=color is not a column"),
    (["--label=x", "--schema=short.pbtxt"], 2, "--label=x is not a column: the schema has 'id'"),
    (["--schema=missing.pbtxt"], 2, "--schema=missing.pbtxt does not exist"),
    (["--schema=folder"], 2, "--schema=folder is a folder"),
    (["--schema=broken.pbtxt"], 2, "broken.pbtxt is not a schema (line 2, column"),
    (["--schema=binary.bin"], 2, "it is not UTF-8 (line 3 has the byte 0x80)"),
    (["--schema=empty"], 2, "names no features"),
    (
        ["--schema=absent.pbtxt"],
        1,
        "--schema=absent.pbtxt: most have no column 'color', only 'id', 'name', 'x'; ",
    ),
    (["--schema=twice.pbtxt"], 2, "has the feature 'id' twice"),
    (["--schema=default.pbtxt"], 2, "The column 'id' has a wrong default: 'x' is not an int64"),
    (["--preprocessing=module.py"], 2, "the module 'no_such_module' is not installed"),
    (["--preprocessing=fine.py", "--splits=test:1"], 2, "analyzes the split train"),
    (["--delimiter="], 2, "--delimiter='': must be one or more characters"),
    (["--delimiter=\n"], 2, "must be one or more characters without line breaks"),
    (['--delimiter="'], 2, "contains the quote"),
    (["--quote=''"], 2, "must be one ASCII character"),
    (["--quote=«"], 2, "must be one ASCII character"),
    (["--delimiter=€", "--encoding=latin-1"], 2, "does not exist in --encoding"),
    (["--encoding=utf8x"], 2, "--encoding=utf8x: must be a text encoding"),
    (["--encoding=rot13"], 2, "--encoding=rot13: must be a text encoding"),
    (["--encoding=base64"], 2, "--encoding=base64: must be a text encoding"),
    (["--encoding=idna"], 2, "--encoding=idna: must be a text encoding"),
    (["--encoding=a\0b"], 2, "must be a text encoding"),
    (["--header=second"], 2, "--header=second is unknown: use first or none"),
    (["--columns=a,b"], 1, "its first row has 3 cells and --columns 2 names"),
    (["--columns=a,b,a"], 2, "--columns names 'a' twice"),
    (["--columns=a,,b"], 2, "--columns has an empty name"),
    (["--skip_lines=-1"], 2, "--skip_lines=-1 must be 0 or more"),
    (["--skip_lines=9"], 1, "has no rows"),
    (["--max_rejected_files=-1"], 2, "--max_rejected_files=-1 must be 0 or more"),
    (["--sample_bytes=0"], 2, "--sample_bytes=0 must be 1 or more"),
    (["--sample_bytes=some"], 2, "--sample_bytes=some is not a size"),
    (["--splits=listing"], 2, "use --split_by=COLUMN"),
    (["--split_by=name", "--splits=train:1"], 2, "cannot be combined"),
    (["--split_by=name", "--group_by=x"], 2, "has no effect with --split_by=name"),
    (["--splits=directory"], 1, "(no_split: "),
    (["--input=nowhere.csv"], 1, "--input=nowhere.csv does not exist"),
    (["--input=nowhere/*.csv"], 1, "matched no files"),
    (["--input=*.tsv"], 1, "'*.tsv' matches no file: `**` also matches subfolders"),
    (["--input=folder"], 1, "'folder' matches no file: check --input"),
    (["--input=texts"], 1, "No matched file is named like a table"),
    (["--input=empty"], 1, "empty"),
    (["--input=empty.csv"], 1, "the file has no bytes"),
    (["--input=header.csv"], 1, "has no rows, only 'a', 'b' as names of columns"),
    (["--input=ragged.csv"], 1, "No row of --input=ragged.csv can be read: ragged.csv, line 2"),
    (["--input=sheet.csv"], 1, "sheet.csv, "),
    (["--input=gone.txt"], 1, "(not_found: "),
    (["--input=climb.txt"], 1, "leads outside the root"),
    (["--input=semicolons.csv", "--label=b"], 1, "'a;b', but with --delimiter=';' it has 2"),
    (["--input=tabs.csv", "--key=b"], 1, "but with --delimiter='\\t' it has 2"),
    (["--root=folder"], 2, "is not inside --root"),
    (["--delimeter=;"], 2, "did you mean --delimiter?"),
    (["--image_size=3"], 2, "--image_size belongs to `shardmill images`"),
    (["--labels=x.txt"], 2, "--labels belongs to `shardmill images` and `shardmill arrays`"),
]


def make_inputs(folder) -> None:
    """Write a valid table, and many invalid inputs."""
    make_table(folder / "in.csv", ["id", "name", "x"], [[1, "a", 0.5], [2, "b", 1.5]])
    feature = 'feature {{ name: "{}" type: {} presence {{ min_fraction: 1 }} }}\n'
    (folder / "short.pbtxt").write_text(feature.format("id", "INT"))
    (folder / "absent.pbtxt").write_text(feature.format("color", "BYTES"))
    (folder / "twice.pbtxt").write_text(feature.format("id", "INT") * 2)
    wrong = 'feature { name: "id" type: INT annotation { tag: "default=x" } }'
    (folder / "default.pbtxt").write_text(wrong)
    (folder / "broken.pbtxt").write_text('feature {\n  nam: "id"\n}\n')
    (folder / "binary.bin").write_bytes(bytes(range(256)))
    (folder / "ragged.csv").write_text("a,b\n1,2,3\n4\n")
    (folder / "sheet.csv").write_bytes(b"PK\3\4\x14\0\0\0\x08\0" + bytes(range(256)) * 9)
    (folder / "module.py").write_text("import no_such_module\n")
    (folder / "fine.py").write_text("def preprocessing_fn(inputs): return inputs\n")
    (folder / "folder").mkdir()
    (folder / "texts").mkdir()
    (folder / "texts" / "notes.md").write_text("x")
    for name in ("empty", "empty.csv"):
        (folder / name).write_text("")
    (folder / "header.csv").write_text("a,b\n")
    (folder / "gone.txt").write_text("one.csv\ntwo.csv\n")
    (folder / "climb.txt").write_text("../one.csv\n")
    (folder / "semicolons.csv").write_text("a;b\n1;2\n")
    (folder / "tabs.csv").write_text("a\tb\n1\t2\n")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        pytest.param(
            *case,
            id=" ".join(case[0])[:50],
            # It imports TensorFlow.
            marks=[pytest.mark.xdist_group("tensorflow")] * ("--preprocessing=fine.py" in case[0]),
        )
        for case in ERRORS
    ],
)
def test_fails_in_one_sentence_and_writes_nothing(
    flags, code, message, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    make_inputs(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    default = [] if "--input" in flags[0] else ["--input=in.csv"]
    got, out, err = run_here(capsys, "rows", *default, "--output=ds", *flags)
    assert (got, out) == (code, "")
    assert message in err
    assert err.startswith("shardmill: ")
    assert err.count("\n") == 1
    assert err.rstrip().endswith((".", "?"))
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before

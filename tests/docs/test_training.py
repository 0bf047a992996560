"""The page on training: its code runs, and what its comments say is what comes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill import loaders
from shardmill.schemas.errors import ShardmillError
from tests.conftest import ROOT, build_dataset, make_photos
from tests.support.array_tools import published
from tests.support.docs_code import code_of, run_checked
from tests.support.examples_data import write_digits, write_titanic
from tests.support.rows_tools import build_rows

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("docs")]
PAGE = ROOT / "docs" / "training.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The datasets that the page reads."""
    folder = tmp_path_factory.mktemp("training")
    photos = make_photos(folder / "photos", {"roses": 40, "tulips": 40}, size=(48, 32))
    build_dataset(input=photos, output=folder / "ds", image_size=224, num_shards=2)
    build_dataset(input=photos, output=folder / "by_label", image_size=16, shard_by="label")
    write_titanic(folder / "titanic.csv")
    build_rows(
        input=folder / "titanic.csv", output=folder / "titanic", label="survived", null_values="?"
    )
    write_digits(folder)
    published(input=folder / "arrays", output=folder / "digits")
    return folder


def test_the_code_of_the_page_gives_what_it_says(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    before, _, behind = PAGE.read_text().partition("\n## Without TensorFlow\n")
    _, _, behind = behind.partition("\n## Several hosts\n")
    names: dict = {}
    assert sum(run_checked(code, names) for code in code_of(before + behind)) >= 15


def test_the_code_for_torch_and_jax_runs_without_tensorflow(folder) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'keras', 'apache_beam']))\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support.docs_code import code_of, run_checked\n"
        f"text = open({str(PAGE)!r}).read().partition('\\n## Without TensorFlow\\n')[2]\n"
        "names = {}\n"
        "section = code_of(text.partition('\\n## Several hosts\\n')[0])\n"
        "print(sum(run_checked(code, names) for code in section))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 7


def test_the_errors_of_the_page_are_said(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("newer", "torn", "short"):
        shutil.copytree("ds", name)
    manifest = json.loads(Path("newer/manifest.json").read_text())
    Path("newer/manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    shard = "train-00000-of-00002.tfrecord.gz"
    Path("torn", shard).unlink()
    Path("short", shard).write_bytes(Path("ds", shard).read_bytes()[:-1])
    rows = re.findall(r'^\| `(\w+\("[^`]+\))` \| (.+) \|$', PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 9
    names = {name: getattr(loaders, name) for name in loaders.__all__}
    for asked, said in rows:
        with pytest.raises(ShardmillError) as raised:
            eval(asked, dict(names))
        # Bytes of a JPEG encoder may differ from build to build.
        digits = r"[\d,]+ bytes and manifest.json says [\d,]+"
        assert re.sub(digits, "", str(raised.value)) == re.sub(digits, "", said)


def test_where_the_data_are_damaged_the_page_says_who_finds_it(folder, monkeypatch) -> None:
    import tensorflow as tf

    monkeypatch.chdir(folder)
    shutil.copytree("ds", "damaged")
    (shard, *_) = sorted(Path("damaged").glob("train-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardmillError, match=rf"{shard.name}, record \d+: "):
        list(loaders.open_dataset("damaged"))
    with pytest.raises(tf.errors.DataLossError):
        list(loaders.keras_dataset("damaged"))

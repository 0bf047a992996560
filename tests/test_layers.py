"""Layers: imports go one way, light modules stay light, and names are unique."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import build_dataset, make_photos

pytestmark = pytest.mark.xdist_group("layers")  # which parse all modules once
ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "api": {"loaders", "pipelines", "schemas"},
    "schemas": {"schemas"},
    "loaders": {"loaders", "schemas"},
    "transforms": {"transforms", "schemas"},
    "pipelines": {"pipelines", "transforms", "schemas", "loaders"},
}


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the code of a file."""
    return [*ast.walk(ast.parse(path.read_text()))]


def imported(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        ours = {
            name.split(".")[1]
            for name in imported(path)
            if name.startswith("shardmill.") and len(name.split(".")) > 1
        }
        assert ours <= ALLOWED[package], path
        if package in ("schemas", "loaders"):
            assert "apache_beam" not in {name.split(".")[0] for name in imported(path)}, path


def test_tables_and_sink_know_no_source() -> None:
    for folder in ("tables", "sink"):
        for path in (ROOT / "transforms" / folder).rglob("*.py"):
            ours = imported(path)
            assert not [name for name in ours if name.startswith("shardmill.transforms.sources")], (
                path
            )


def import_graph() -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, anywhere in it."""
    graph = {}
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            parts = [*path.relative_to(ROOT).with_suffix("").parts]
            parts = parts[1:] if package == "api" else parts
            name = ".".join(["shardmill", *parts]).removesuffix(".__init__")
            graph[name] = imported(path)
    # A package that loads its own modules lazily does not form a cycle.
    return {
        name: {
            other for other in names if other in graph and not f"{other}.".startswith(f"{name}.")
        }
        for name, names in graph.items()
    }


def test_no_cycles_of_modules() -> None:
    """Imports inside functions and for type checkers count too."""
    graph = import_graph()
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_cycles_of_folders() -> None:
    """A folder that another one imports does not import it, not even in two steps.

    A folder may import its own subfolders, which may import it.
    """
    folders: dict[str, set[str]] = {}
    for name, names in import_graph().items():
        folder = name.rpartition(".")[0]
        others = {other.rpartition(".")[0] for other in names}
        found = folders.setdefault(folder, set())
        found |= {other for other in others if not other.startswith(folder)}
    assert len(folders) > 20
    TopologicalSorter(folders).prepare()


def test_the_sink_names_no_kind_of_input() -> None:
    """Kinds supply their words through hooks, so that messages are right for any encoder."""
    kinds = re.compile(r"\b(images?|arrays?|CSV|shardmill rows)\b")
    for path in (ROOT / "transforms" / "sink").glob("*.py"):
        nodes = [node for node in nodes_of(path) if hasattr(node, "body")]
        prose = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node.body, list) and node.body and isinstance(node.body[0], ast.Expr)
        }
        texts = (
            str(node.value)
            for node in nodes_of(path)
            if isinstance(node, ast.Constant) and id(node) not in prose
        )
        assert not [text for text in texts if kinds.search(text)], path


LIGHT_MODULES = """shardmill shardmill.loaders shardmill.pipelines.cli
    shardmill.schemas.dataset.manifest shardmill.schemas.dataset.shard_names
    shardmill.schemas.schema_pbtxt.image_features shardmill.schemas.tfrecord.gzip_member
    shardmill.schemas.storage.s3 shardmill.schemas.storage.gcs shardmill.schemas.tfrecord.reader
    shardmill.transforms.images.decoder_process
    shardmill.transforms.runtime.process_pool shardmill.transforms.verify.verify
    shardmill.pipelines.commands.verify shardmill.pipelines.commands.show
    shardmill.pipelines.commands.clean shardmill.pipelines.commands.steps
    shardmill.pipelines.commands.report shardmill.pipelines.report.dataset_report
    shardmill.pipelines.images_config shardmill.pipelines.rows_config
    shardmill.pipelines.arrays_config"""


def test_light_imports_load_neither_beam_nor_tensorflow() -> None:
    code = (
        f"import sys, {', '.join(LIGHT_MODULES.split())}\n"
        "print('apache_beam' in sys.modules, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


WITHOUT_THEM = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("apache_beam", "tensorflow", "keras", "torch", "grain", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from shardmill.loaders import Stream, class_weights, open_dataset, steps_per_epoch
records = open_dataset(DS)
pictures = [row["image"] for row in records]
assert {picture.shape for picture in pictures} == {(16, 24, 3)}
assert len(pictures) == len(records) == len(list(Stream(records, shuffle=True)))
assert (records[-1]["image"] == pictures[-1]).all()
assert steps_per_epoch(DS, "train", 1) == len(records)
assert len(class_weights(DS)) == 2
import shardmill.loaders
assert "keras_dataset" in dir(shardmill.loaders)
from shardmill.loaders import feature_spec, keras_dataset
for function in (keras_dataset, feature_spec):
    try:
        function(DS)
    except ModuleNotFoundError as error:
        assert "tensorflow" in str(error)
    else:
        raise AssertionError(function)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    photos = make_photos(folder / "photos", {"cat": 3, "dog": 2})
    outcome, _ = build_dataset(
        input=photos, output=folder / "ds", image_size="16x24", splits="train:1"
    )
    assert outcome.status == "published"
    return folder / "ds"


def test_records_are_read_without_beam_and_tensorflow(dataset) -> None:
    code = f"DS = {str(dataset)!r}\n{WITHOUT_THEM}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "loaders.keras_dataset(path)",
            "TensorFlow is not installed: pip install 'shardmill[tensorflow]'.",
        ),
        ("loaders.feature_spec(path)", "TensorFlow is not installed: pip install"),
        (
            "loaders.normalization(path)",
            "Keras is not installed: pip install 'shardmill[tensorflow]'.",
        ),
        ("loaders.torch_dataset(path)", "PyTorch is not installed: pip install"),
    ],
)
def test_missing_frameworks_are_errors_with_the_fix(dataset, call, words) -> None:
    code = (
        "import sys, importlib.util\n"
        "real = importlib.util.find_spec\n"
        "gone = ('tensorflow', 'keras', 'torch')\n"
        "importlib.util.find_spec = lambda name: None if name in gone else real(name)\n"
        "from shardmill import loaders\n"
        "import shardmill.loaders\n"
        f"path = {str(dataset)!r}\n"
        f"try:\n    {call}\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("FrameworkError ")
    assert words in done.stdout


def test_named_tuples_have_no_other_base() -> None:
    """Python 3.10 allows none, which no other check of a newer Python notices."""
    for path in (path for package in ALLOWED for path in (ROOT / package).rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                assert bases == ["NamedTuple"] or "NamedTuple" not in bases, (path, node.name)


def repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_class_names_are_unique() -> None:
    names = (
        node.name
        for package in ALLOWED
        for path in (ROOT / package).rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    )
    assert repeated(names) == set()

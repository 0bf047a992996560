"""The layout is a one-way street, and light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "schemas": {"schemas"},
    "loaders": {"loaders", "schemas"},
    "transforms": {"transforms", "schemas"},
    "pipelines": {"pipelines", "transforms", "schemas", "loaders"},
}


def imported(path: Path) -> set[str]:
    """Returns the names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
            heavy = {name.split(".")[0] for name in imported(path)} & {"apache_beam", "tensorflow"}
            assert "apache_beam" not in heavy, path


@pytest.mark.parametrize(
    "modules",
    [
        "shardmill.schemas.manifest, shardmill.schemas.features, shardmill.schemas.storage",
        "shardmill.schemas.index, shardmill.schemas.names",
        "shardmill.loaders",
        "shardmill.pipelines.cli",
        "shardmill.schemas.ranges, shardmill.transforms.pool, shardmill.transforms.verify",
        "shardmill.pipelines.commands.verify, shardmill.pipelines.commands.show",
        "shardmill.pipelines.commands.clean, shardmill.pipelines.commands.steps",
    ],
)
def test_light_imports_load_neither_beam_nor_tensorflow(modules: str) -> None:
    code = (
        f"import sys, {modules}; print('apache_beam' in sys.modules, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("command", ["images", "rows"])
def test_a_build_never_loads_tensorflow(command, photos, tmp_path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,x\n2,y\n")
    source = photos if command == "images" else tmp_path / "table.csv"
    code = (
        "import sys\n"
        "from shardmill.pipelines.cli import main\n"
        f"code = main(['{command}', '--input={source}', '--output={tmp_path}/ds'])\n"
        "assert code == 0\n"
        "assert 'apache_beam' in sys.modules\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'tensorflow', 'tensorflow_transform', 'tfx_bsl'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_file_or_function_outgrew_its_name() -> None:
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            assert text.count("\n") <= 400, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    assert (node.end_lineno or 0) - node.lineno < 55, f"{path}: {node.name}"

"""The public packages: fast to import, with lazy exports that all exist."""

import subprocess
import sys
from importlib import import_module

import pytest

import shardmill
from shardmill import loaders, pipelines
from shardmill.pipelines.commands import INPUT_KINDS
from tests.conftest import cpu_seconds

PACKAGES = [
    f"shardmill{name}" for name in ("", ".loaders", ".pipelines", ".schemas", ".transforms")
]


def test_import_takes_less_than_50_ms_of_cpu_time() -> None:
    codes = ("pass", "import shardmill")
    pairs = [[cpu_seconds("-c", code) for code in codes] for _ in range(5)]
    bare, imported = (min(times) for times in zip(*pairs, strict=True))
    assert imported - bare < 0.05


def test_importing_the_packages_loads_nothing_heavy() -> None:
    code = (
        f"import sys, {', '.join(PACKAGES)}\n"
        "heavy = {'apache_beam', 'tensorflow', 'keras', 'numpy', 'pyarrow', 'PIL', 'rich', 'argparse'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_defined(package) -> None:
    module = import_module(package)
    assert {*module.__all__} - {"__version__"} <= {*dir(module)}
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="attribute missing"):
        _ = module.missing


def test_each_input_kind_and_loader_is_exported() -> None:
    assert {*loaders.__all__, "ShardmillError", "__version__"} <= set(shardmill.__all__)
    for kind in INPUT_KINDS.values():
        assert {kind.load_config().__name__, f"build_{kind.name}"} <= set(pipelines.__all__)


@pytest.mark.heavy
def test_works_without_frameworks() -> None:
    """What needs one says so when it is called, not when its name is looked up."""
    code = (
        "import inspect, pydoc, sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'tensorflow', 'keras'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import shardmill\n"
        "from shardmill import *\n"
        "assert hasattr(shardmill, 'torch_dataset') and callable(torch_dataset)\n"
        "members = dict(inspect.getmembers(shardmill))\n"
        "assert set(shardmill.__all__) - {'__version__'} <= set(members)\n"
        "text = pydoc.render_doc(shardmill, renderer=pydoc.plaintext)\n"
        "assert 'images(input, output, *, root' in text, text\n"
        "assert 'quality: JPEG quality, 1 to 100 (default: 95).' in text\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

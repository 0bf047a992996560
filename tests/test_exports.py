"""The public packages export names lazily."""

import subprocess
import sys
from importlib import import_module

import pytest

from shardmill import pipelines
from shardmill.pipelines.input_kinds import INPUT_KINDS

PACKAGES = [
    f"shardmill{name}" for name in ("", ".loaders", ".pipelines", ".schemas", ".transforms")
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_defined(package) -> None:
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = module.missing


@pytest.mark.parametrize("kind", INPUT_KINDS.values(), ids=INPUT_KINDS)
def test_each_input_kind_is_exported(kind) -> None:
    assert getattr(pipelines, kind.load_config().__name__) is kind.load_config()
    assert getattr(pipelines, f"build_{kind.name}") is kind.load_pipeline().build


def test_importing_the_packages_loads_nothing_heavy() -> None:
    code = (
        f"import sys, {', '.join(PACKAGES)}\n"
        "heavy = {'apache_beam', 'tensorflow', 'numpy', 'pyarrow', 'PIL', 'rich', 'argparse'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

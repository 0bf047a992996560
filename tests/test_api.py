"""The package ``shardmill``: light to import, and every public name can be loaded."""

from __future__ import annotations

import resource
import subprocess
import sys

import shardmill
from shardmill import loaders


def cpu_milliseconds(code: str) -> float:
    """Returns the CPU time of an interpreter that runs code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def test_import_takes_less_than_50_ms_of_cpu_time() -> None:
    pairs = [(cpu_milliseconds("pass"), cpu_milliseconds("import shardmill")) for _ in range(5)]
    bare, imported = (min(times) for times in zip(*pairs, strict=True))
    assert imported - bare < 50


def test_import_loads_no_large_package() -> None:
    code = "import sys, shardmill, shardmill.loaders; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "shardmill" in loaded
    assert not loaded & {"apache_beam", "tensorflow", "keras", "numpy", "pyarrow", "PIL"}


def test_each_public_name_can_be_loaded() -> None:
    assert {*loaders.__all__, "ShardmillError", "__version__"} <= set(shardmill.__all__)
    for module in (shardmill, loaders):
        assert {*module.__all__} - {"__version__"} <= {*dir(module)}
        for name in module.__all__:
            assert getattr(module, name)
        assert not hasattr(module, "no_such_name")

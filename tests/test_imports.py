"""Importing the modules of this project changes no global state of the process."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Imports the other packages first, whose side effects are their own.
CHECK = """
import ast, contextlib, decimal, csv, faulthandler, importlib, locale, logging, mimetypes, os
import pathlib, signal, socket, sys, threading, warnings
import numpy, PIL.Image, PIL.ImageFile, PIL.PngImagePlugin

PACKAGES = "api", "loaders", "pipelines", "schemas", "transforms"
FILES = [path for package in PACKAGES for path in pathlib.Path(package).rglob("*.py")]


def top_level_imports(path):
    for node in ast.parse(path.read_text()).body:
        for each in [node, *getattr(node, "body", ())] if isinstance(node, ast.Try) else [node]:
            if isinstance(each, ast.Import):
                yield from (alias.name for alias in each.names)
            elif isinstance(each, ast.ImportFrom):
                yield each.module
                yield from (f"{each.module}.{alias.name}" for alias in each.names)


def module_name(path):
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "api" else parts
    return ".".join(("shardmill", *parts)).removesuffix(".__init__")


def state():
    root = logging.getLogger()
    return {
        "warnings.filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "PIL.Image.MAX_IMAGE_PIXELS": PIL.Image.MAX_IMAGE_PIXELS,
        "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": PIL.ImageFile.LOAD_TRUNCATED_IMAGES,
        "PIL.ImageFile.MAXBLOCK": PIL.ImageFile.MAXBLOCK,
        "PIL.PngImagePlugin": (PIL.PngImagePlugin.MAX_TEXT_CHUNK, PIL.PngImagePlugin.MAX_TEXT_MEMORY),
        "mimetypes": (mimetypes.inited, dict(mimetypes.types_map), dict(mimetypes.encodings_map)),
        "logging": (root.level, root.handlers[:], root.filters[:], root.manager.disable),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "sys.path": sys.path[:],
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "limits": (sys.getrecursionlimit(), sys.get_int_max_str_digits(), csv.field_size_limit()),
        "switch interval": sys.getswitchinterval(),
        "threads": threading.active_count(),
        "locale": locale.setlocale(locale.LC_ALL),
        "folder": os.getcwd(),
        "sockets": socket.getdefaulttimeout(),
        "numpy": (numpy.geterr(), numpy.get_printoptions()),
        "decimal": str(decimal.getcontext()),
        "faulthandler": faulthandler.is_enabled(),
    }


others = {name for path in FILES for name in top_level_imports(path) if "shardmill" not in name}
for name in sorted(others):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
mimetypes.init()
modules = sorted(set(map(module_name, FILES)) - {"shardmill.__main__"})
assert len(modules) > 150, modules
assert not [name for name in sys.modules if name.startswith("shardmill")]
before = state()
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert str(error).startswith("this needs"), (name, error)
    after = state()
    changed = [key for key in before if after[key] != before[key]]
    assert not changed, f"importing {name} changes {changed}"
"""


@pytest.mark.heavy
def test_importing_changes_no_global_state() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""

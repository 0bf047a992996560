"""What a command imports and starts, and what it asks to install."""

import contextlib
import gc
import importlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from shardmill.pipelines import cli
from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.report.terminal import quiet_import
from shardmill.pipelines.runners.base import find_runner
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import build_dataset, cpu_seconds, make_photos
from tests.support.gcs_builds import download, flags_of, upload
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server"]

# An environment without the extra dataflow: google-cloud-storage and its own dependencies alone.
ONLY_STORAGE = """
import importlib.abc, sys

KEPT = {"storage", "_helpers", "_http", "client", "environment_vars", "exceptions", "obsolete",
        "operation", "version"}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        google = parts[:2] == ["google", "cloud"] and parts[2:] and parts[2] not in KEPT
        beam = name.startswith(("apache_beam.io.gcp.gcs", "apache_beam.runners.dataflow.internal"))
        if google or beam or parts[0] in ("apitools", "googleapiclient"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from shardmill.pipelines.cli import main
"""


def run_blocked(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in such an environment."""
    code = f"{ONLY_STORAGE}sys.exit(main({[str(each) for each in argv]!r}))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.nightly
def test_buckets_need_google_cloud_storage_alone(strict_bucket, tmp_path):
    photos = make_photos(tmp_path / "photos", {"cat": 5, "dog": 4}, size=(40, 30))
    remote = upload(photos, f"{strict_bucket}/photos")
    local = run_blocked(flags_of("images", photos, tmp_path / "local"))
    assert local.returncode == 0, local.stderr
    done = run_blocked(flags_of("images", remote, f"{strict_bucket}/ds"))
    assert done.returncode == 0, done.stderr
    assert "written    9 examples" in done.stdout
    assert "WARNING" not in done.stderr
    files = dataset_files(download(f"{strict_bucket}/ds", tmp_path / "remote"))
    assert files == dataset_files(tmp_path / "local")
    counted = run_blocked(["count", f"--input={strict_bucket}/ds", "--job_name=x"])
    assert counted.returncode == 0, counted.stderr
    assert "WARNING" not in counted.stderr
    job = ["--runner=DataflowRunner", "--project=my-project", "--region=europe-west1"]
    failed = run_blocked([*flags_of("images", remote, f"{strict_bucket}/ds"), *job])
    assert failed.returncode == 2
    assert failed.stderr == (
        "shardmill: --runner=DataflowRunner needs apache-beam[gcp]: pip install "
        "'shardmill[dataflow]'.\n"
    )


def test_names_the_extra_of_dataflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.internal.apiclient", None)
    internal = importlib.import_module("apache_beam.runners.dataflow.internal")
    monkeypatch.delattr(internal, "apiclient", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'shardmill\[dataflow\]'\.$"):
        find_runner("DataflowRunner")


def test_names_the_extra_of_buckets(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.storage.retry", None)
    with pytest.raises(UsageError, match=r"pip install 'shardmill\[gcs\]'\.$"):
        GcsStorage()


@pytest.mark.parametrize("collecting", [True, False])
def test_an_import_leaves_the_collector_and_the_log_as_they_were(collecting):
    before = gc.isenabled()
    try:
        gc.enable() if collecting else gc.disable()
        seen = []
        with contextlib.suppress(ImportError), quiet_import():
            seen.append(gc.isenabled())
            importlib.import_module("no_such_module")
        assert seen == [False]
        assert gc.isenabled() == collecting
        assert logging.root.manager.disable == logging.NOTSET
    finally:
        gc.enable() if before else gc.disable()


def test_an_interrupt_that_an_import_swallows_is_raised_after_it():
    """Weak references and bare except clauses of libraries lose a KeyboardInterrupt."""
    reached = []

    def swallow() -> None:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        reached.append(signal.getsignal(signal.SIGINT))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), quiet_import():
            swallow()
        assert reached == [signal.SIG_DFL]  # a second one would end the process
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored_while_beam_is_imported():
    """As that of a command in the background of a script."""
    code = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from shardmill.pipelines.report.terminal import quiet_import
with quiet_import():
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


FROZEN = """
import gc, sys
from shardmill.pipelines.report.terminal import quiet_import
with quiet_import():
    import {module}
print(gc.get_freeze_count() > 0, gc.isenabled())
"""


@pytest.mark.sweep
@pytest.mark.parametrize("module", ["apache_beam", "json"])
def test_only_the_import_of_beam_is_kept_from_the_collector(module):
    code = FROZEN.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(module == "apache_beam"), "True"]


def test_help_takes_less_than_300_ms_of_cpu_time():
    assert min(cpu_seconds("-m", "shardmill", "verify", "--help") for _ in range(5)) < 0.3


LIGHT = """
import sys
from shardmill.pipelines.cli import main
names, *argv = sys.argv[1:]
assert main(argv) == 0
loaded = sys.modules.keys() & set(names.split())
assert not loaded, loaded
"""
BEAM = "apache_beam tensorflow keras torch "
ALL = BEAM + "numpy PIL pyarrow rich google.cloud.storage google.protobuf jinja2"
UNUSED = "apitools boto3 google.auth google.cloud.storage pandas pymongo"
# Commands on a dataset, and the modules that they do not load.
COMMANDS = {
    "steps ds --batch_size=4": ALL,
    "clean ds": ALL,
    "files ds --split=train": ALL,
    "count ds": BEAM + "pyarrow",
    "count ds --check=index": BEAM + "pyarrow",
    "check ds": BEAM,
    "diff ds ds": BEAM,
    "show ds": BEAM + "google.protobuf",
    "report ds": BEAM,
    "verify ds": BEAM,
    "images photos other": f"tensorflow torch {UNUSED}",
    "rows in.csv rows": f"tensorflow tfx_bsl torch {UNUSED}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("light")
    photos = make_photos(folder / "photos", {"cat": 9}, size=(20, 20))
    (folder / "in.csv").write_text("a,b\n1,x\n2,y\n")
    build_dataset(input=photos, output=folder / "ds", image_size="16")
    return folder


# No module is forbidden to the others that is not forbidden to one of these.
QUICK = ("steps", "count ds", "show", "report", "images", "rows")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.heavy] * (not words.startswith(QUICK)))
        for words in COMMANDS
    ],
)
def test_a_command_loads_only_what_it_needs(words, folder):
    command = [sys.executable, "-c", LIGHT, COMMANDS[words], *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LEFT_OUT = """
import sys
from shardmill.pipelines.quick_start import import_arrow, without
import_arrow("", with_pandas=False)
with without("google.cloud", "pandas"):
    for name in ("pandas", "google.cloud.storage"):
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            assert error.name in (name, "google.cloud"), error.name
        else:
            raise AssertionError(name)
assert "pandas" not in sys.modules
import google.cloud.storage, pandas
import pyarrow as pa
assert pa.array(pandas.Series([1, 2])).to_pylist() == [1, 2]
with without("pandas"):  # imported modules stay
    import pandas
"""


def test_what_imports_leave_out_can_be_imported_later():
    subprocess.run([sys.executable, "-c", LEFT_OUT], check=True)


KEPT = """
from shardmill.pipelines.quick_start import import_arrow
import_arrow("", with_pandas=True)
import pandas
import pyarrow as pa
assert pa.array(pandas.Series([1, float("nan")])).to_pylist() == [1, None]
"""


def test_the_code_of_users_has_arrow_with_pandas():
    subprocess.run([sys.executable, "-c", KEPT], check=True)


THREADS = """
import os, sys
import pyarrow.parquet
from shardmill.schemas.dataset.catalog import row_columns, read_table
before = os.listdir("/proc/self/task")
read_table(open(sys.argv[1], "rb").read(), row_columns())
assert os.listdir("/proc/self/task") == before
"""


def test_a_catalog_is_read_without_threads(folder):
    """Arrow aborts a process that ends while one of its threads starts."""
    catalog, *_ = (folder / "ds" / "current" / "catalog").iterdir()
    subprocess.run([sys.executable, "-c", THREADS, catalog], check=True)


INTERRUPTED = """
import signal, sys, threading

from apache_beam.runners.worker.statesampler import StateSampler

from shardmill.pipelines import cli
from shardmill.pipelines.commands import find_parser

start = threading.Thread.start

def start_and_interrupt(thread):
    sampled = isinstance(getattr(getattr(thread, "_target", None), "__self__", None), StateSampler)
    start(thread)
    if sampled:
        threading.Thread.start = start
        signal.raise_signal(signal.SIGINT)

threading.Thread.start = start_and_interrupt
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.heavy
def test_an_interrupt_while_beam_starts_a_bundle_ends_the_command(tmp_path):
    """Beam leaves a thread then, for which Python would wait forever."""
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    words = ["rows", f"--input={tmp_path / 'a.csv'}", f"--output={tmp_path / 'ds'}"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


def test_commands_and_calls_look_for_garbage_rarely():
    """Both run by this function; Python's own threshold costs a quarter of the parent's time."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        assert cli.report_errors(lambda: 0, json=False) == 0
        assert gc.get_threshold() > (10_000, 0, 0)
    finally:
        gc.set_threshold(*before)


LAUNCHERS = {
    "command": "from shardmill.pipelines.cli import main; main([kind, *sys.argv[2:-1]])",
    "call": "from shardmill.pipelines.calls import _run_as_child; _run_as_child()",
}


@pytest.mark.sweep
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("kind", "is_system"), [("images", True), ("rows", False)])
def test_arrow_takes_little_memory_for_catalogs(tmp_path, kind, is_system, launcher):
    """The variable is not inherited by other commands, which this process may start."""
    code = f"import sys, os; kind = sys.argv[1]; {LAUNCHERS[launcher]}\n"
    code += "import pyarrow as pa\n"
    code += "print('pool', pa.default_memory_pool().backend_name, os.environ.get(sys.argv[-1]))"
    options = find_parser(kind).table(input=str(tmp_path / "none"), output=str(tmp_path / "ds"))
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((kind, options, {})))
    flags = [f"--input={options.input}", f"--output={options.output}"]
    words = [sys.executable, "-c", code, kind, *flags, "ARROW_DEFAULT_MEMORY_POOL"]
    with given.open("rb") as file:
        done = subprocess.run(words, stdin=file, capture_output=True, text=True, check=True)
    assert "does not exist" in done.stdout + done.stderr
    _, used, inherited = done.stdout.splitlines()[-1].split()
    assert inherited == "None"
    assert (used == "system") == is_system

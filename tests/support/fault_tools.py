"""Run commands in forked processes, and check datasets without code of Shardmill."""

import atexit
import contextlib
import functools
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c
import pyarrow.parquet as pq

from shardmill.pipelines import cli
from tests.conftest import ROOT, make_photos
from tests.conftest import SOAK as _SOAK
from tests.support.readers import framed_payloads

SOAK = _SOAK  # re-exported
SMALL = ("--image_size=16", "--shard_examples=8", "--max_reject_fraction=0.2")
PROGRESS = re.compile(r"^(?!shardmill: )[a-z]+: [\d,.]+ .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``peak`` is the most memory it had, in MiB."""

    code: int
    stdout: str
    stderr: str
    peak: int = 0

    @property
    def said(self) -> str:
        """Stderr without lines of progress, which depend on the speed of the machine."""
        return PROGRESS.sub("", self.stderr)

    @property
    def sentence(self) -> str:
        """The only line of stderr, an error message; asserts that there is no other line."""
        lines = self.said.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("shardmill: "), self.stderr
        assert lines[0].endswith((".", "?")), self.stderr
        return lines[0]

    def parts(self) -> tuple[int, int]:
        """Parts (made, reused) of the summary."""
        words = next(line for line in self.stdout.splitlines() if "parts " in line).split()
        return int(words[1]), int(words[3]) if "reused" in words else 0


@dataclass
class Command:
    """A running command."""

    pid: int
    zygote: "Zygote"
    folder: Path
    ended: Ended | None = None

    def wait(self) -> Ended:
        """Wait for its end."""
        answer = self.zygote.ask(order="wait", pid=self.pid)
        assert "code" in answer, "the command is stopped and has not ended"
        return self._end(answer)

    def wait_stopped(self) -> bool:
        """Wait until it stops itself; return False if it ends before."""
        answer = self.zygote.ask(order="wait", pid=self.pid)
        if "code" in answer:
            self._end(answer)
        return bool(answer.get("stopped"))

    def _end(self, answer: dict) -> Ended:
        output = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        self.ended = Ended(answer["code"], *output, answer["peak"] >> 10)
        return self.ended

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


@dataclass
class Watched:
    """See ``fault_zygote.Watch``."""

    root: Path
    since: str = ""
    at: tuple[int, ...] = ()
    number: int = signal.SIGKILL
    copies: Path | str = ""
    log: Path | str = ""
    image: Path | str = ""
    commit: Path | str = ""
    fail: str = ""
    deny: Path | str = ""
    errno: int = 0


@dataclass
class Zygote:
    """A process that forks commands; see ``fault_zygote``."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fault_zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "1"},
        )
        self.folder = Path(tempfile.mkdtemp(prefix="shardmill-zygote-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.count = 0
        assert json.loads(self.process.stdout.readline())["ready"]

    def ask(self, **order: object) -> dict:
        with self.lock:
            self.process.stdin.write(json.dumps(order, default=str) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def start(
        self,
        *argv: object,
        watch: Watched | None = None,
        uid: int = 0,
        cwd: str = "",
        code: str = "",
        env: dict[str, str] | None = None,
    ) -> Command:
        """Start ``shardmill ARGV``, or code, by default with the environment of the caller."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        answer = self.ask(
            order="start",
            argv=[str(a) for a in argv],
            uid=uid,
            cwd=cwd,
            code=code,
            env=dict(os.environ) if env is None else env,
            watch=asdict(watch) if watch else None,
            stdout=folder / "stdout",
            stderr=folder / "stderr",
        )
        return Command(answer["pid"], self, folder)

    def run(self, *argv: object, **options) -> Ended:
        """Run ``shardmill ARGV`` to its end; see ``start`` for the options."""
        return self.start(*argv, **options).wait()


def output_of_process(code: str) -> str:
    """Return what code prints in a process with another hash seed."""
    ended = zygote().start(code=code).wait()
    assert ended.code == 0, ended.stderr
    return ended.stdout


@functools.cache
def zygote() -> Zygote:
    """Return the zygote of this test process; it ends when its stdin is closed."""
    return Zygote()


def images(source: Path, output: Path, *flags: object) -> list[str]:
    """Return the arguments of a small build."""
    return ["images", f"--input={source}", f"--output={output}", *SMALL, *map(str, flags)]


def few_parts(source: Path, output: Path, *flags: object) -> list[str]:
    """Return the arguments of a build whose shards have no size, so that it has few parts."""
    return [a for a in images(source, output, *flags) if not a.startswith("--shard_examples")]


def ended_here(*argv: object) -> Ended:
    """Run a command in this process, which takes a third of the time of ``Zygote.run``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(arg) for arg in argv])
    return Ended(code, out.getvalue(), err.getvalue())


def sentence_here(capsys, *argv: object, code: int = 2) -> str:
    """Run a command that must fail in this process; return its error message."""
    assert cli.main([str(arg) for arg in argv]) == code
    ended = Ended(code, *capsys.readouterr())
    assert ended.stdout == ""
    return ended.sentence


def built(source: Path, output: Path, *flags: object) -> Ended:
    """Run a small build that must succeed."""
    ended = zygote().run(*images(source, output, *flags))
    assert ended.code == 0, ended.stderr
    return ended


def check_manifest(folder: Path) -> dict:
    """Assert that shards and catalogs of a manifest are complete; return it without catalogs.

    Catalogs differ with the place and the times of the inputs.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            data = (folder / shard["file"]).read_bytes()
            assert len(data) == shard["bytes"]
            assert f"{google_crc32c.value(data):08x}" == shard["crc32c"]
            assert len(framed_payloads(gzip.decompress(data))) == shard["records"]
            if "catalog" in shard:
                catalog = shard.pop("catalog")
                data = (folder / catalog["file"]).read_bytes()
                assert f"{google_crc32c.value(data):08x}" == catalog["crc32c"]
                assert pq.read_metadata(folder / catalog["file"]).num_rows == shard["records"]
        assert sum(shard["records"] for shard in split["shards"]) == split["num_examples"]
    return manifest


def check_published(folder: Path) -> dict[str, bytes]:
    """Assert that the published generation is whole; return its files.

    Of the manifest, whose other fields depend on the run, only the splits are returned.
    """
    manifest = check_manifest(folder)
    generation = manifest["generation"]
    folder = folder / generation
    splits = check_manifest(folder)["splits"]
    own = {shard["file"] for split in splits.values() for shard in split["shards"]}
    own |= {"schema.pbtxt", "labels.txt", "rejects.jsonl"}
    assert {path.name for path in folder.iterdir()} - {"catalog"} == own | {"manifest.json"}
    assert json.dumps(splits) == json.dumps(manifest["splits"]).replace(f"{generation}/", "")
    files = {name: (folder / name).read_bytes() for name in sorted(own)}
    return files | {"manifest.json": json.dumps(splits).encode()}


def check_dataset(
    folder: Path, allowed: Iterable[str] = (), *, link: bool = True
) -> dict[str, bytes]:
    """Assert that a folder has exactly the files of a dataset; see ``check_published``.

    Earlier generations that the manifest names are complete too. Copies from object stores have no
    link to the current one.
    """
    files = check_published(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    generation, earlier = manifest["generation"], manifest.get("previous", [])
    found = {path.name for path in folder.iterdir()} - set(allowed)
    assert found == {"manifest.json", generation, *earlier, *(["current"] if link else [])}
    if link:
        assert os.readlink(folder / "current") == generation
    for name in earlier:
        check_manifest(folder / name)
    return files


def build_folder(output: Path) -> Path:
    """Return the only build folder of an output."""
    (found,) = output.glob(".build-*")
    return found


def payload_of(sidecar: Path) -> Path:
    """Return the file that a sidecar describes."""
    return sidecar.parent / json.loads(sidecar.read_text())["payload"]


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def miscount(path: Path) -> None:
    """Increase the number of records in a sidecar."""
    body = json.loads(path.read_text())
    body["totals"]["records"] += 1
    path.write_text(json.dumps(body, separators=(",", ":")))


def make_source(folder: Path, classes: dict[str, int] | None = None) -> Path:
    """Write photos in two classes and two files that are rejected."""
    make_photos(folder, classes or {"cat": 24, "dog": 18}, size=(40, 30))
    (folder / "cat" / "text.jpg").write_text("no image at all")
    (folder / "dog" / "empty.jpg").write_bytes(b"")
    return folder

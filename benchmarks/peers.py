"""Compare Shardmill with other tools on the same work; writes benchmarks-peers.md and its plots.

usage: python benchmarks/peers.py WORK [--page FOLDER] [--rounds N] [--kinds KIND ...] ...

Each tool runs in a separate environment below WORK (environments.py, tool_runners.py,
image_peers.py, row_peers.py). Whole processes are measured, round after round, so that all tools
meet the same load of the machine. Each result is a line of WORK/rounds.jsonl; a second call
measures only what is missing or failed, and writes the page again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import images
import rows
from environments import PACKAGES, SHARED, environment
from peers_page import Results, write_page
from timing import FailedError, folder_bytes, run_tree
from updates import CASES, Update

HERE = Path(__file__).resolve().parent
# Kinds of builds of images, and the sizes of their photos and records.
PHOTOS = {"images": "500x375", "large": "4000x3000", "small": "32x32"}
SIZES = {"images": 224, "large": 224, "small": 32}
TOOLS = {
    "images": (*SHARED, *PACKAGES),
    "large": (*SHARED, *PACKAGES, "shardmill --reducing_gap=1", "shardmill --reducing_gap=0"),
    "small": (*SHARED, *PACKAGES, "shardmill tar"),  # the last: from one archive
    "rows": ("shardmill", "floor", "tutorial", "tfds", "datasets", "ray"),
    "updates": tuple(CASES),
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "NO_GCE_CHECK": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "WANDB_MODE": "disabled",
}


def command(tool: str, kind: str, work: Path, source: Path, out: Path) -> list[str]:
    """Returns the command of a tool.

    Raises:
      RuntimeError: its environment cannot be installed.
    """
    python = environment(tool, work)
    if tool == "shardmill" or tool in SHARED:
        if kind == "rows":
            return [python, *rows.command(tool, source, out)[1:]]
        return [python, *images.commands(source, out, SIZES[kind])[tool][1:]]
    size = [] if kind == "rows" else [str(SIZES[kind])]
    return [python, str(HERE / "tool_runners.py"), tool, str(source), str(out), *size]


class Rounds:
    """The results in a file; each is a dict that begins with kind, tool, case and round."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        all_ = (json.loads(line) for line in lines)
        self.found = {self._key(each): each for each in all_ if "failed" not in each}

    @staticmethod
    def _key(each: dict) -> tuple:
        return each["kind"], each["tool"], each["case"], each["round"]

    def measure(self, what: dict, action: Callable[[], dict]) -> None:
        """Adds a result, unless it is known or the tool failed before; `action` makes it."""
        key = self._key(what)
        if key in self.found or any(
            "failed" in each for other, each in self.found.items() if other[:2] == key[:2]
        ):
            return
        try:
            result = {**what, **action()}
        except (FailedError, RuntimeError) as error:
            result = {**what, "failed": str(error)}
        self.found[key] = result
        with self._path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


class Bench:
    """Runs commands in a fresh folder WORK/run, which holds the output and the home folder."""

    def __init__(self, work: Path, limit: float) -> None:
        self.work, self._limit = work, limit
        self.run_folder = work / "run"
        self.out = self.run_folder / "out"

    def fresh(self) -> None:
        """Empties the folder of runs."""
        shutil.rmtree(self.run_folder, ignore_errors=True)
        (self.run_folder / "home" / "tmp").mkdir(parents=True)

    def run(self, tool: str, kind: str, source: Path, flags: Iterable[str] = ()) -> dict:
        """Runs a tool and returns what was measured."""
        words = [*command(tool, kind, self.work, source, self.out), *flags]
        home = self.run_folder / "home"
        env = {**os.environ, **QUIET, "HOME": str(home), "TMPDIR": str(home / "tmp")}
        env.pop("PYTHONPATH", None)
        os.sync()  # what was written before is not written during the run
        done = run_tree(words, self.work / "last.log", env, self._limit)
        return {**vars(done), "bytes": folder_bytes(self.out)}

    def keys(self, tool: str) -> list[str]:
        """Returns the keys in the output, read with the tool."""
        python = environment("shardmill" if tool in SHARED else tool, self.work)
        words = [python, str(HERE / "tool_runners.py"), tool, "keys", str(self.out)]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise FailedError(f"keys: {done.stderr.strip()[-400:]}")
        return done.stdout.split()


def measure_builds(bench: Bench, rounds: Rounds, flags: argparse.Namespace, kind: str) -> None:
    """Measures builds from scratch of images, large photos, small pictures or rows."""
    counts = {
        "images": flags.counts,
        "large": flags.large,
        "small": flags.small,
        "rows": flags.rows,
    }[kind]
    for turn in range(flags.rounds):
        for count in counts:
            source = write_source(bench.work, kind, count)
            for tool in selected(flags, kind):

                def build(tool: str = tool, source: Path = source, count: int = count) -> dict:
                    name, *options = tool.split()
                    if options == ["tar"]:
                        source, options = write_archive(source), []
                    bench.fresh()
                    done = bench.run(name, kind, source, options)
                    if kind in PHOTOS and (found := len(set(bench.keys(name)))) != count:
                        raise FailedError(f"{found:,} of {count:,} records")
                    return done

                what = {"kind": kind, "tool": tool, "case": str(count), "round": turn}
                rounds.measure(what, build)


def write_source(work: Path, kind: str, count: int) -> Path:
    """Writes the input of a build, unless it is there, and returns its path."""
    if kind in PHOTOS:
        source = work / f"{'photos' if kind == 'images' else kind}-{count}"
        return images.write_photos(source, count, PHOTOS[kind])
    source = work / f"table-{count}.csv"
    _ = source.exists() or rows.write_table(work, count)
    return source


def write_archive(folder: Path) -> Path:
    """Writes a folder as one tar archive, unless it is there, and returns its path."""
    path = folder.with_suffix(".tar")
    if not path.exists():
        unfinished = path.with_suffix(".tmp")
        with tarfile.open(unfinished, "w", dereference=True) as archive:
            archive.add(folder, ".")
        unfinished.rename(path)
    return path


def measure_updates(bench: Bench, rounds: Rounds, flags: argparse.Namespace) -> None:
    """Measures builds and updates of a folder of photos that changes."""
    update = Update(bench, flags.photos, flags.added, flags.removed)
    for turn in range(flags.rounds):
        for tool in selected(flags, "updates"):
            for case in CASES[tool]:
                what = {
                    "kind": "updates",
                    "tool": tool,
                    "case": f"{case}/{flags.photos}",
                    "round": turn,
                }
                rounds.measure(what, lambda tool=tool, case=case: update.run(tool, case))
            results = Results(list(rounds.found.values()), "updates")
            for case in CASES[tool] if tool.startswith("shardmill") else ():
                if len(results.digests(tool, case, flags.photos)) > 1:
                    raise SystemExit(f"{tool}, {case}: updates and new builds differ")


def selected(flags: argparse.Namespace, kind: str) -> Iterable[str]:
    """Returns the tools to measure."""
    return (tool for tool in TOOLS[kind] if not flags.tools or tool in flags.tools)


def main() -> None:
    """Measures what is missing, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder of environments, photos and results")
    parser.add_argument("--page", type=Path, help="folder of the page (default: WORK)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--tools", nargs="+", help="measure only these")
    parser.add_argument("--counts", nargs="+", type=int, default=[500, 3_500, 20_000])
    parser.add_argument("--large", nargs="+", type=int, default=[20, 120])
    parser.add_argument("--small", nargs="+", type=int, default=[10_000, 60_000])
    parser.add_argument("--rows", nargs="+", type=int, default=[20_000, 200_000])
    parser.add_argument("--photos", type=int, default=20_000, help="photos before an update")
    parser.add_argument("--added", type=int, default=200)
    parser.add_argument("--removed", type=int, default=20)
    parser.add_argument("--limit", type=float, default=3_600, help="seconds of a run")
    flags = parser.parse_args()
    work = flags.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    rounds, bench = Rounds(work / "rounds.jsonl"), Bench(work, flags.limit)
    for kind in flags.kinds:
        if kind == "updates":
            measure_updates(bench, rounds, flags)
        else:
            measure_builds(bench, rounds, flags, kind)
    write_page(flags.page or work, list(rounds.found.values()), flags)
    shutil.rmtree(bench.run_folder, ignore_errors=True)


if __name__ == "__main__":
    main()
